"""Checks what InferScope says of a framework's GPU memory against PyTorch itself, and of sensors against NVML.

Usage: memory_live_check.py BIN_DIR OUT_DIR [--quick | --cost]     (root; a GPU, PyTorch; about five minutes)

A process of memory_live.py is watched after it has loaded its weights. Checked are: bytes in blocks and in segments,
also at instants, and counts of allocations against torch.cuda; live bytes of the ten stacks that hold most against
torch's own memory history, block by block as the allocator rounds them up in both; three planted leaks; an allocation
that fails; the exports; what watching costs at 30,000 allocations a second (--cost: nothing else); and power,
clocks, temperature, memory and energy against NVML and nvidia-smi. Each attachment asks whether the process lives.
Prints a table; exits 1 if a check failed.
"""

import bisect
import ctypes
import json
import os
import statistics
import subprocess
import sys
import threading
import time

import recording
from common import SOCKET, Daemon, interval, print_checks

RATE = 30_000  # allocations a second
CHUNK = 500  # allocations that memory_live.py times at once
TURN = 24  # chunks with all sources on, or off, in turn: 0.4 s
TURNS = 40
SETTLE_S = 8  # until the daemon has found what its budget allows
WINDOWS_S = 45  # for which it is watched then
FLAGS = ("--gpu", "off", "--overhead-budget", "0", "--scheduling=false")
MEMORY, CUDA = 80, 1  # enum event_kind of bpf/event.h, and the low byte of a device


class Victim:
    """memory_live.py, driven over its stdin."""

    def __init__(self):
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "memory_live.py")
        self.process = subprocess.Popen(
            [sys.executable, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.pid = self.process.pid
        self.ready = self._answer()

    def _answer(self):
        line = self.process.stdout.readline()
        if not line:
            print(f"DEATH: the watched process ended with code {self.process.wait()}", flush=True)
            raise SystemExit(1)
        return json.loads(line)

    def ask(self, command):
        print(command, file=self.process.stdin, flush=True)
        return self._answer()

    def lives(self, when):
        """Says a death at once."""
        code = self.process.poll()
        if code is not None:
            print(f"DEATH {when}: code {code}", flush=True)
            raise SystemExit(1)

    def quit(self):
        print("quit", file=self.process.stdin, flush=True)
        return self.process.wait(timeout=60)


def client(bin_dir, *args):
    return subprocess.run(
        [f"{bin_dir}/inferscope", *args],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "INFERSCOPE_SOCKET": SOCKET},
    ).stdout


def memory(bin_dir, pid, *flags):
    """The first GPU of `inferscope memory`."""
    text = client(bin_dir, "memory", "--pid", str(pid), "--json", *flags)
    devices = [d for d in json.loads(text)["memory"]["devices"] if d["type"] == "cuda"]
    return devices[0]


def totals(bin_dir, victim, checks):
    start = victim.ask("state")
    worst = 0
    for n in (10, 100, 400):
        victim.ask(f"steps {n}")
        torch_says = victim.ask("state")
        seen = memory(bin_dir, victim.pid)
        worst = max(
            worst,
            abs(seen["allocated_bytes"] - torch_says["allocated"]),
            abs(seen["reserved_bytes"] - torch_says["reserved"]),
        )
        checks.append(
            (
                f"after {n} steps: allocated, torch / seen",
                f"{torch_says['allocated']} / {seen['allocated_bytes']}",
                seen["allocated_bytes"] == torch_says["allocated"],
            )
        )
        checks.append(
            (
                f"after {n} steps: reserved, torch / seen",
                f"{torch_says['reserved']} / {seen['reserved_bytes']}",
                seen["reserved_bytes"] == torch_says["reserved"],
            )
        )
    counted = torch_says["allocations"] - start["allocations"]
    checks.append(
        (
            "allocations since the attach, torch / seen",
            f"{counted} / {seen['allocations']}",
            counted == seen["allocations"],
        )
    )
    checks.append(
        (
            "frees since the attach, torch / seen",
            f"{torch_says['frees'] - start['frees']} / {seen['frees']}",
            torch_says["frees"] - start["frees"] == seen["frees"],
        )
    )
    checks.append(("peak, torch / seen", f"{torch_says['peak']} / {seen['peak_bytes']}", None))
    checks.append(("before the attach", seen["before_bytes"], seen["before_bytes"] == start["allocated"]))


def instants(bin_dir, victim, checks):
    """Totals when a call was told: what torch says after it."""
    said = victim.ask("instants 120")["instants"]
    _, events = recording.fetch(SOCKET, victim.pid)
    levels = sorted(
        (e[0] + e[1], e[8], e[9])
        for e in recording.EVENT.iter_unpack(events)
        if e[5] == MEMORY and e[4] & 0xFF == CUDA and e[2] == victim.pid
    )
    met, wrong = 0, []
    for x in said:
        i = bisect.bisect_left(levels, (x["begin"], 0, 0))
        if i == len(levels) or levels[i][0] > x["end"]:
            continue
        met += 1
        if levels[i][1:] != (x["allocated"], x["reserved"]):
            wrong.append((x, levels[i]))
    checks.append(
        (
            "instants at which allocated and reserved are torch's",
            f"{met - len(wrong)} of {met} ({len(said)} asked){f', first: {wrong[0]}' if wrong else ''}",
            met >= 0.9 * len(said) and not wrong,
        )
    )


def python_stack(site):
    """(file, line) of a site's Python frames, innermost first."""
    return tuple((os.path.basename(f["file"]), f["line"]) for f in site["stack"] if f["kind"] == "python")


def places(bin_dir, victim, checks):
    """Both count blocks as the allocator has rounded them up; what was asked for is less, and said beside."""
    history = sorted(victim.ask("keep")["stacks"], key=lambda s: -s["bytes"])
    seen = {}
    for s in memory(bin_dir, victim.pid)["sites"]:
        live = seen.setdefault(python_stack(s), [0, 0, 0])
        for i, key in enumerate(("live_bytes", "live_low_bytes", "live_high_bytes")):
            live[i] += s[key]
    for h in history[:10]:
        stack = tuple((file, line) for _, file, line in h["stack"])
        name = next((n for n, _, _ in h["stack"] if n.startswith("keeper_")), h["stack"][0][0])
        got, low, high = seen.get(stack, (0, 0, 0))
        checks.append(
            (
                f"{name}: bytes of blocks, torch's history / seen, range",
                f"{h['bytes']} / {got}, {low}-{high}: {100 * (got / h['bytes'] - 1):+.1f}% (asked for {h['asked']})",
                abs(got - h["bytes"]) <= 0.05 * h["bytes"],
            )
        )


def leaks(bin_dir, victim, checks):
    victim.ask("leak 1500")
    d = memory(bin_dir, victim.pid, "--last", "6s")
    found = {}
    for leak in d["leaks"]:
        s = d["sites"][leak["site"]]
        for f in s["stack"][:3]:
            if f["name"].endswith("_leak"):
                found[f["name"]] = (leak["bytes_per_s"], f"{os.path.basename(f.get('file', ''))}:{f.get('line')}")
    for name in ("first_leak", "second_leak", "third_leak"):
        checks.append((f"planted {name}", found.get(name, "not found"), name in found))
    others = [
        d["sites"][l["site"]]["name"]
        for l in d["leaks"]
        if not any(f["name"].endswith("_leak") for f in d["sites"][l["site"]]["stack"][:3])
    ]
    checks.append(("leaks that were not planted", others, not others))


def exhausted(bin_dir, victim, checks):
    answer = victim.ask("oom")
    d = memory(bin_dir, victim.pid)
    failed = d["out_of_memory"]
    checks.append(
        ("an allocation failed in torch / seen", f"{answer['caught'] is not None} / {len(failed)}", len(failed) >= 1)
    )
    if failed:
        held = sum(h["bytes"] for h in failed[-1]["live"])
        checks.append(
            (
                "it asked for, torch / seen",
                f"{answer['asked']} / {failed[-1]['asked_bytes']}",
                failed[-1]["asked_bytes"] >= answer["asked"],
            )
        )
        checks.append(
            (
                "held then, in blocks / explained",
                f"{failed[-1]['allocated_bytes']} / {held}",
                abs(held - failed[-1]["allocated_bytes"]) <= 0.05 * failed[-1]["allocated_bytes"],
            )
        )
        checks.append(
            (
                "where",
                [f["name"] for f in failed[-1]["stack"]][:3],
                any(f["name"] == "oom" for f in failed[-1]["stack"]),
            )
        )


def exports(bin_dir, out_dir, victim, checks):
    import pickle

    snapshot = f"{out_dir}/snapshot.pickle"
    client(bin_dir, "export", "--pid", str(victim.pid), "--to", "memory_viz", "-o", snapshot)
    with open(snapshot, "rb") as f:
        data = pickle.load(f)
    checks.append(
        (
            "memory_viz: segments, trace entries",
            f"{len(data['segments'])}, {[len(t) for t in data['device_traces']]}",
            len(data["segments"]) > 0,
        )
    )
    try:
        from torch.cuda import _memory_viz

        page = _memory_viz.trace_plot(data)
        checks.append(("torch's own _memory_viz draws it", f"{len(page)} bytes", len(page) > 1000))
    except Exception as e:  # noqa: BLE001 - whatever it is, it is the answer
        checks.append(("torch's own _memory_viz draws it", repr(e), False))
    heap = f"{out_dir}/heap.pb.gz"
    client(bin_dir, "export", "--pid", str(victim.pid), "--to", "heap", "-o", heap)
    checks.append(("pprof heap, bytes", os.path.getsize(heap), os.path.getsize(heap) > 100))


def on_and_off(bin_dir, out_dir, victim):
    """How much longer a chunk takes while all is watched, for each pair of turns next to each other."""
    flags = (*FLAGS, "--pin-level", "framework memory=sampled")
    daemon = Daemon(f"{bin_dir}/inferscoped", victim.pid, f"{out_dir}/cost.log", *flags)
    found, on, switched = [], True, 0
    for i in range(TURNS):
        took = {}
        for want in (True, False) if i % 2 else (False, True):
            if on != want:
                on, switched = want, switched + 1
                daemon.switch(switched)
                time.sleep(0.3)
            took[on] = statistics.median(cpu for _, _, cpu in victim.ask(f"churn {TURN}")["chunks"])
            victim.lives("while sources are switched on and off")
        found.append(took[True] / took[False] - 1)
    daemon.stop()
    victim.lives("after the daemon left")
    return found


def in_windows(bin_dir, out_dir, victim):
    """Returns what each window takes of the thread's CPU time, the time watched, both in ns, and the level.

    A window is where the recording has allocations, with two chunks before and after; its chunks are compared with the
    mean of those outside within two seconds: chunks scatter to one side, so that a median would be less than it.
    """
    daemon = Daemon(f"{bin_dir}/inferscoped", victim.pid, f"{out_dir}/cost.log", "--gpu", "off", "--scheduling=false")
    victim.ask(f"churn {SETTLE_S * RATE // CHUNK}")
    chunks = victim.ask(f"churn {WINDOWS_S * RATE // CHUNK}")["chunks"]
    sources = json.loads(client(bin_dir, "status", "--json"))["sources"]
    level = next((s["detail"] for s in sources if s["name"] == "framework memory"), None)
    meta, events = recording.fetch(SOCKET, victim.pid)
    daemon.stop()
    victim.lives("after the daemon left")
    times = sorted(e[0] for e in recording.EVENT.iter_unpack(events) if e[5] == MEMORY and e[2] == victim.pid)
    windows = []
    for t in (t for t in times if chunks[0][0] <= t <= chunks[-1][1]):
        if windows and t - windows[-1][1] < 500e6:
            windows[-1][1] = t
        else:
            windows.append([t, t])
    margin = 2 * statistics.median(end - begin for begin, end, _ in chunks)
    inside = [any(end > a - margin and begin < b + margin for a, b in windows) for begin, end, _ in chunks]
    added = []
    for a, b in windows:
        own = [cpu for begin, end, cpu in chunks if end > a - margin and begin < b + margin]
        near = [c[2] for c, within in zip(chunks, inside) if not within and a - 2e9 < c[0] < b + 2e9]
        if near and a - 2e9 > chunks[0][0] and b + 2e9 < chunks[-1][1]:
            added.append(sum(own) - len(own) * statistics.fmean(near))
    return added, chunks[-1][1] - chunks[0][0], len(windows), level


def cost(bin_dir, out_dir, victim, checks):
    """By CPU time of the thread, which others' use of the machine changes less than the time by the clock."""
    rate = victim.ask(f"calibrate {RATE}")["rate"]
    mean, half = interval(on_and_off(bin_dir, out_dir, victim))
    checks.append(
        (
            f"cost at {rate:.0f} allocations/s, no budget: all of it",
            f"{100 * mean:+.2f}% ± {100 * half:.2f} ({mean / rate * 1e9:.0f} ns a pair) of {TURNS} turns",
            None,
        )
    )
    added, lasted, windows, level = in_windows(bin_dir, out_dir, victim)
    mean, half = (v * windows / lasted for v in interval(added))
    good = mean + half <= 0.02
    if good or mean - half > 0.02:
        verdict = good
    else:
        verdict = None  # unclear
    checks.append(
        (
            f"cost at {rate:.0f} allocations/s, default budget, after it has settled",
            f"{100 * mean:+.2f}% ± {100 * half:.2f} of {len(added)} windows",
            verdict,
        )
    )
    checks.append(("framework memory, when it has settled", level, None))


class NVML:
    """libnvidia-ml by ctypes, as it was when asked: {what: value}, and the energy counter."""

    def __init__(self):
        self.lib = ctypes.CDLL("libnvidia-ml.so.1")
        self._call("nvmlInit_v2")
        self.device = ctypes.c_void_p()
        self._call("nvmlDeviceGetHandleByIndex_v2", 0, ctypes.byref(self.device))
        self.rows, self.ended = [], threading.Event()

    def _call(self, name, *args):
        if code := getattr(self.lib, name)(*args):
            raise OSError(f"{name} returned {code}")

    def _number(self, name, *args, kind=ctypes.c_uint):
        value = kind()
        self._call(name, self.device, *args, ctypes.byref(value))
        return value.value

    def read(self):
        used = (ctypes.c_ulonglong * 5)(40 | 2 << 24)  # nvmlMemory_v2_t: version, total, reserved, free, used
        self._call("nvmlDeviceGetMemoryInfo_v2", self.device, ctypes.byref(used))
        at = time.monotonic_ns()
        energy = self._number("nvmlDeviceGetTotalEnergyConsumption", kind=ctypes.c_ulonglong)
        return {
            "at": at,
            "energy_mj": energy,
            "temperature_c": self._number("nvmlDeviceGetTemperature", 0),
            "sm_clock_mhz": self._number("nvmlDeviceGetClockInfo", 1),
            "memory_clock_mhz": self._number("nvmlDeviceGetClockInfo", 2),
            "memory_used_bytes": used[4] >> 20 << 20,
        }

    def follow(self):
        while not self.ended.wait(0.02):
            self.rows.append(self.read())


def sensors(bin_dir, out_dir, victim, checks):
    """Samples of the recording against what NVML said within 200 ms of them, and energy against NVML's counter."""
    try:
        nvml = NVML()
        nvml.read()
    except OSError as e:
        checks.append(("NVML", repr(e), None))
        return
    daemon = Daemon(f"{bin_dir}/inferscoped", victim.pid, f"{out_dir}/sensors.log")
    thread = threading.Thread(target=nvml.follow)
    thread.start()
    time.sleep(1)
    victim.ask("burn 6")
    time.sleep(1)
    nvml.ended.set()
    thread.join()
    report = json.loads(client(bin_dir, "report", "--pid", str(victim.pid), "--json"))
    meta, _ = recording.fetch(SOCKET, victim.pid)
    daemon.stop()
    victim.lives("after the daemon left")
    samples = [s for s in meta.get("sensors") or [] if s["gpu"] == 0]
    if len(samples) < 2:
        checks.append(("samples of the sensors", len(samples), False))
        return
    steps = {"temperature_c": 1, "sm_clock_mhz": 15, "memory_clock_mhz": 0, "memory_used_bytes": 1 << 20}
    for what, step in steps.items():
        off = []
        for s in samples:
            near = [r[what] for r in nvml.rows if abs(r["at"] - s["ts_ns"]) < 200e6]
            if near and not min(near) - step <= s[what] <= max(near) + step:
                off.append((s[what], min(near), max(near)))
        good = len(off) <= 0.02 * len(samples)
        checks.append((f"{what} of {len(samples)} samples, outside of NVML's", off[:3], good))
    energy_against_samples(samples, nvml.rows, report, checks)
    columns = {
        "uuid": "uuid",
        "name": "name",
        "power_limit_mw": "power.limit",
        "sm_clock_max_mhz": "clocks.max.sm",
        "memory_total_bytes": "memory.total",
    }
    line = subprocess.run(
        ["nvidia-smi", "-i", "0", "--format=csv,noheader,nounits", f"--query-gpu={','.join(columns.values())}"],
        capture_output=True,
        text=True,
    ).stdout
    scale = {"power_limit_mw": 1000, "memory_total_bytes": 1 << 20}
    truth = {
        k: v.strip() if k in ("uuid", "name") else round(float(v) * scale.get(k, 1))
        for k, v in zip(columns, line.split(","))
    }
    told = {k: samples[-1][k] for k in columns}
    checks.append(("fixed values, nvidia-smi / seen", told if told == truth else f"{truth} / {told}", told == truth))


def energy(samples):
    """J of samples, whose power is taken to change evenly between them."""
    return sum(
        (b["ts_ns"] - a["ts_ns"]) / 1e9 * (a["power_mw"] + b["power_mw"]) / 2e3 for a, b in zip(samples, samples[1:])
    )


def energy_against_samples(samples, rows, report, checks):
    gpu = next(g for g in report["sensors"]["gpus"] if g["index"] == 0)
    summed, told = energy(samples[:gpu["samples"]]), gpu["energy_j"]  # some came after the report
    checks.append(
        ("energy J, sum of the samples / report", f"{summed:.1f} / {told:.1f}", abs(summed - told) <= 0.02 * summed)
    )

    def counter(at):
        i = min(max(1, bisect.bisect_left([r["at"] for r in rows], at)), len(rows) - 1)
        a, b = rows[i - 1], rows[i]
        return (a["energy_mj"] + (b["energy_mj"] - a["energy_mj"]) * (at - a["at"]) / (b["at"] - a["at"])) / 1e3

    within = [s for s in samples if rows[0]["at"] <= s["ts_ns"] <= rows[-1]["at"]]
    mine, truth = energy(within), counter(within[-1]["ts_ns"]) - counter(within[0]["ts_ns"])
    checks.append(
        ("energy J, NVML's counter / samples", f"{truth:.1f} / {mine:.1f}", abs(mine - truth) <= 0.05 * truth)
    )


def main():
    bin_dir, out_dir = sys.argv[1:3]
    os.makedirs(out_dir, exist_ok=True)
    victim = Victim()
    checks = []
    if "--cost" not in sys.argv:
        compare(bin_dir, out_dir, victim, checks)
    if "--quick" not in sys.argv:
        cost(bin_dir, out_dir, victim, checks)
    checks.append(("the process's exit code", victim.quit(), None))
    print()
    good = print_checks(checks)
    sys.exit(0 if good and checks[-1][1] == 0 else 1)


def compare(bin_dir, out_dir, victim, checks):
    """Compares what is said of memory and sensors with PyTorch's and NVML's own."""
    daemon = Daemon(f"{bin_dir}/inferscoped", victim.pid, f"{out_dir}/memory.log", *FLAGS)
    time.sleep(2)  # the unwinder and the interpreter's layout
    for check in (totals, instants, places, leaks, exhausted):
        check(bin_dir, victim, checks)
        victim.lives(f"after {check.__name__}")
    exports(bin_dir, out_dir, victim, checks)
    open(f"{out_dir}/memory.txt", "w").write(client(bin_dir, "memory", "--pid", str(victim.pid)))
    daemon.stop()
    victim.lives("after the daemon left")
    print_checks(checks)
    begun = len(checks)
    sensors(bin_dir, out_dir, victim, checks)
    print_checks(checks[begun:])


main()
