#!/usr/bin/env python3
"""Compares what the daemon records of GPUs' sensors with nvidia-smi itself and with what a program copies.

    sudo python3 test/gpu/sensors_check.py --bin bin [--out DIR] [--limit 120]

It needs a GPU and takes about 50 s, with two GPUs about 80 s. One program copies to the GPU, back, computes, and, where
there are two GPUs, copies from GPU 0 to GPU 1; each for some seconds, counting bytes. Checked are

    power, temperature, clocks, memory, utilization and reasons for low clocks, against an nvidia-smi of its own
    what PCIe and NVLink carry, against nvidia-smi dmon and nvlink, and against the bytes that the program copied
    what the program holds of each GPU, against nvidia-smi
    what the daemon's nvidia-smi cost: CPU time, no goal
    a program that uses a bad pointer: the verdict is stopped, with Xid 31, and the process lives

What each nvidia-smi says goes to nvidia-smi.txt, with the seconds after which the first line came through a pipe. Parts
that would begin after --limit seconds are left out, and listed. Exit code 1: something failed.
"""

import argparse
import contextlib
import glob
import json
import os
import statistics
import subprocess
import sys
import threading
import time

import common
import recording

SECONDS = {"up": 9, "down": 9, "burn": 7, "peer": 25}  # NVLink is read every ten seconds
BLOCK = 256 << 20
COLUMNS = {  # of --query-gpu, with the unit that a recording has and by how much a sample may be outside
    "power.draw.instant": ("power_mw", 1000, 20_000),
    "temperature.gpu": ("temperature_c", 1, 1),
    "clocks.sm": ("sm_clock_mhz", 1, 15),
    "clocks.mem": ("memory_clock_mhz", 1, 0),
    "memory.used": ("memory_used_bytes", 1 << 20, 1 << 20),
    "utilization.gpu": ("utilization_pct", 1, 2),
}
QUERY = ("--query-gpu=index," + ",".join(COLUMNS), "--format=csv,noheader,nounits")
ONCE = (
    ("-L",),
    QUERY,
    ("nvlink", "-s"),
    ("nvlink", "-gt", "d"),
    ("--query-compute-apps=pid,gpu_uuid,used_gpu_memory", "--format=csv,noheader,nounits"),
    ("--query-gpu=index,pcie.link.gen.current,pcie.link.width.current,clocks_event_reasons.active", "--format=csv"),
)
# A kernel that writes to an address: the driver compiles it itself.
PTX = b""".version 7.0
.target sm_80
.address_size 64
.visible .entry write_word(.param .u64 address) {
  .reg .b64 %a;
  .reg .b32 %v;
  ld.param.u64 %a, [address];
  mov.u32 %v, 1;
  st.global.u32 [%a], %v;
  ret;
}
\0"""


# The programs.


def copies():
    """Answers each line, what and for how many seconds, with the bytes it copied and when."""
    import torch

    host, near = torch.empty(BLOCK, dtype=torch.uint8).pin_memory(), torch.empty(BLOCK, dtype=torch.uint8, device=0)
    far = torch.empty(BLOCK, dtype=torch.uint8, device=1) if torch.cuda.device_count() > 1 else None
    w = torch.randn(4096, 4096, device=0).bfloat16()
    if far is not None:
        far.copy_(near)
    print(json.dumps({"gpus": torch.cuda.device_count()}), flush=True)
    work = {
        "up": lambda: near.copy_(host, non_blocking=True),
        "down": lambda: host.copy_(near, non_blocking=True),
        "peer": lambda: far.copy_(near, non_blocking=True),
        "burn": lambda: w @ w,
    }
    for line in sys.stdin:
        what, seconds = line.split()
        torch.cuda.synchronize()
        begin, n = time.monotonic_ns(), 0
        while time.monotonic_ns() < begin + float(seconds) * 1e9:
            for _ in range(8):
                work[what]()
            torch.cuda.synchronize()
            n += 8
        print(json.dumps({"bytes": n * BLOCK, "from": begin, "to": time.monotonic_ns()}), flush=True)


def bad_pointer():
    """Computes, and when told uses an address that is not mapped. It goes on, as a server that catches the error."""
    import ctypes

    import torch

    x = torch.randn(2048, 2048, device=0)
    (x @ x).sum().item()
    driver, module, function = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_void_p()

    def call(name, *args):
        if code := getattr(driver, name)(*args):
            raise OSError(f"{name} returned {code}")

    call("cuModuleLoadData", ctypes.byref(module), PTX)
    call("cuModuleGetFunction", ctypes.byref(function), module, b"write_word")
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        until, said = time.monotonic() + float(line.split()[1]), ""
        if line.startswith("bad"):
            address = ctypes.c_uint64(0x7000_0000_0000)
            parameters = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.byref(address), ctypes.c_void_p))
            call("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, None, parameters, None)
        while time.monotonic() < until:
            try:
                (x @ x).sum().item()
            except RuntimeError as e:
                said = str(e).splitlines()[0]
                time.sleep(0.05)
        print(json.dumps({"error": said}), flush=True)
    os._exit(0)  # the context is lost: nothing can be cleaned up


# The check.


class Program:
    """One of the two."""

    def __init__(self, args, kind):
        self.log = open(os.path.join(args.out, f"{kind}.log"), "w+")
        self.p = common.start(
            [sys.executable, __file__, "program", kind], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log,
            text=True, env={**os.environ, "LD_PRELOAD": args.fault},
        )
        self.pid = self.p.pid
        self.ready = self._answer()

    def _answer(self):
        line = self.p.stdout.readline()
        if not line:
            raise RuntimeError(common.aftermath(self.p, self.log.name))
        return json.loads(line)

    def ask(self, *words):
        print(*words, file=self.p.stdin, flush=True)
        return self._answer()

    def end(self):
        self.p.stdin.close()
        return self.p.wait(30)


@contextlib.contextmanager
def watched(args, program, name, *flags):
    """inferscoped on a program; it is ended in any case."""
    daemon = common.Daemon(f"{args.bin}/inferscoped", program.pid, f"{args.out}/{name}.log", *flags)
    try:
        yield daemon
        daemon.stop()
    finally:
        daemon.process.kill()


class Follower:
    """An nvidia-smi that goes on, line by line through a pipe: when each came, and its text."""

    def __init__(self, *words):
        self.began, self.lines = time.monotonic_ns(), []
        self.p = common.start(["nvidia-smi", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        threading.Thread(target=self._follow, daemon=True).start()

    def _follow(self):
        for line in self.p.stdout:
            self.lines.append((time.monotonic_ns(), line.rstrip()))

    def first_s(self):
        """Seconds until the first line of values; None: none came."""
        return next(((at - self.began) / 1e9 for at, line in self.lines if not line.strip().startswith("#")), None)


def counters():
    """Bytes that NVLink has carried, by GPU: {gpu: [sent, received]}; empty where it does not tell."""
    out, gpu = {}, None
    done = subprocess.run(["nvidia-smi", "nvlink", "-gt", "d"], capture_output=True, text=True)
    for line in done.stdout.splitlines():
        words = line.split()
        if line.startswith("GPU "):
            gpu = int(words[1].rstrip(":"))
        elif len(words) == 6 and words[0] == "Link" and words[5] == "KiB":
            out.setdefault(gpu, [0, 0])[words[3] == "Rx:"] += int(words[4]) << 10
    return out


def dmon_rates(lines):
    """(when, gpu, bytes a second received, sent) of nvidia-smi dmon -s t."""
    out, names = [], []
    for at, line in lines:
        cells = line.replace("#", " ").split()
        if line.strip().startswith("#"):
            names = cells if "rxpci" in cells else names
        elif names and len(cells) >= len(names):
            row = dict(zip(names, cells))
            if row["rxpci"] != "-":
                out.append((at, int(row["gpu"]), int(row["rxpci"]) * 1e6, int(row["txpci"]) * 1e6))
    return out


def smi_cpu(daemon_pid):
    """CPU seconds of the daemon's nvidia-smi: of each that runs, by its arguments, and of all that have ended."""
    tick, out, pids = os.sysconf("SC_CLK_TCK"), {}, [daemon_pid]
    while pids:
        pid = pids.pop()
        try:
            words = open(f"/proc/{pid}/cmdline").read().split("\0")
            stat = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
            for path in glob.glob(f"/proc/{pid}/task/*/children"):
                pids += map(int, open(path).read().split())
        except OSError:  # it ended meanwhile
            continue
        if os.path.basename(words[0]) == "nvidia-smi":
            out[words[1].split("=")[0]] = (int(stat[11]) + int(stat[12])) / tick
        elif pid == daemon_pid:
            out["those that ended"] = (int(stat[13]) + int(stat[14])) / tick
    return out


def raw(args):
    """Keeps what each nvidia-smi says, for who reads its format."""
    with open(os.path.join(args.out, "nvidia-smi.txt"), "w") as out:
        for words in ONCE:
            done = subprocess.run(["nvidia-smi", *words], capture_output=True, text=True)
            text = "\n".join((done.stdout + done.stderr).splitlines()[:45])
            print(f"$ nvidia-smi {' '.join(words)}\n{text}\nexit code {done.returncode}\n", file=out)


def sensors(args, checks):
    program = Program(args, "copies")
    raw(args)
    query, dmon = Follower(*QUERY, "-lms=100"), Follower("dmon", "-s", "t", "-d", "1")
    said, links = {}, {}
    with watched(args, program, "sensors", "--gpu", "off") as daemon:
        time.sleep(2)
        cpu, began = smi_cpu(daemon.process.pid), time.monotonic()
        for what, seconds in SECONDS.items():
            if what == "peer" and program.ready["gpus"] < 2:
                continue
            before = counters()
            said[what] = program.ask(what, seconds)
            after = counters()
            links[what] = {gpu: [b - a for a, b in zip(before[gpu], after[gpu])] for gpu in after if gpu in before}
        spent, ended = smi_cpu(daemon.process.pid), time.monotonic() - began
        for follower in (query, dmon):
            follower.p.terminate()
        meta, _ = recording.fetch(common.SOCKET, program.pid)
        words = ["status", "--json", "--socket", common.SOCKET]
        status = json.loads(
            subprocess.run([f"{args.bin}/inferscope", *words], check=True, capture_output=True, text=True).stdout
        )
        held(args, program, checks)
        open(f"{args.out}/sensors.txt", "w").write(common.report(args.bin, program.pid, "text", "--full"))
    checks.append(("the program's exit code", code := program.end(), code == 0))
    keep_lines(args, query, dmon)
    source = next((s for s in status["sources"] if s["name"] == "gpu sensors"), {})
    checks.append(("source", f"{source.get('state')}: {source.get('detail')}", source.get("state") == "running"))
    for name, follower in (("--query-gpu", query), ("dmon", dmon)):
        first = follower.first_s()
        checks.append((f"first line of {name} through a pipe, s", first, first is not None and first < 5))
    samples = meta.get("sensors") or []
    values(samples, query.lines, checks)
    pcie(samples, dmon_rates(dmon.lines), said, checks)
    if "peer" in said:
        nvlink(samples, said["peer"], links["peer"], checks)
    for name, seconds in sorted(spent.items()):
        share = (seconds - cpu.get(name, 0)) / ended
        checks.append((f"CPU of the daemon's nvidia-smi: {name}", f"{100 * share:.2f}% of a CPU", None))


def held(args, program, checks):
    """What the program, which allocates nothing any more, holds of each GPU: the report's, once the daemon has asked
    nvidia-smi again, which it does every ten seconds, and nvidia-smi's."""
    words = ["nvidia-smi", "--query-compute-apps=pid,gpu_uuid,used_gpu_memory", "--format=csv,noheader,nounits"]
    until = time.monotonic() + 15
    while True:
        rows = [r.split(", ") for r in subprocess.run(words, capture_output=True, text=True).stdout.splitlines()]
        theirs = {r[1]: int(r[2]) << 20 for r in rows if r[0] == str(program.pid) and r[2].isdigit()}
        gpus = (json.loads(common.report(args.bin, program.pid, "json")).get("sensors") or {}).get("gpus") or []
        told = {g["uuid"]: h["used_bytes"] for g in gpus for h in g.get("held_by") or [] if h["pid"] == program.pid}
        if told == theirs or time.monotonic() > until:
            break
        time.sleep(1)
    good = told == theirs if theirs else None
    checks.append(("bytes of each GPU that the program holds", f"{told} of {theirs}", good))


def keep_lines(args, *followers):
    with open(os.path.join(args.out, "nvidia-smi.txt"), "a") as out:
        for f in followers:
            print(f"$ {' '.join(f.p.args)}: first values after {f.first_s()} s", file=out)
            for at, line in f.lines[:12]:
                print(f"{(at - f.began) / 1e9:7.3f} {line}", file=out)


def values(samples, lines, checks):
    """Each sample of the recording, against what nvidia-smi said within 400 ms of it."""
    rows = []
    for at, line in lines:
        cells = [c.strip() for c in line.split(",")]
        if len(cells) == len(COLUMNS) + 1 and cells[0].isdigit():
            rows.append((at, int(cells[0]), dict(zip(COLUMNS, cells[1:]))))
    for column, (key, scale, step) in COLUMNS.items():
        met, off = 0, []
        for s in samples:
            near = [
                float(r[column]) * scale for at, gpu, r in rows
                if gpu == s["gpu"] and abs(at - s["ts_ns"]) < 400e6 and not r[column].startswith("[")
            ]
            if near:
                met += 1
                low, high = min(near) - step, max(near) + step
                off += [] if low <= s[key] <= high else [(s[key], low, high)]
        good = met >= 100 and len(off) <= 0.03 * met
        checks.append((f"{key}: samples outside of nvidia-smi's", f"{len(off)} of {met} {off[:2]}", good))


def pcie(samples, theirs, said, checks):
    """Medians of what was said in the time that a program copied, less the first two seconds of it."""
    for what, column, key in (("up", 2, "pcie_rx_bytes_per_s"), ("down", 3, "pcie_tx_bytes_per_s")):
        begin, end = said[what]["from"] + 2e9, said[what]["to"]
        own = said[what]["bytes"] / (said[what]["to"] - said[what]["from"]) * 1e9
        smi = [t[column] for t in theirs if begin < t[0] < end and t[1] == 0]
        told = [s[key] for s in samples if begin < s["ts_ns"] < end and s["gpu"] == 0 and s["links_known"] & 1]
        if not smi:
            checks.append((f"PCIe {what}", f"nvidia-smi dmon does not tell; samples {len(told)}", None))
            continue
        smi, told = statistics.median(smi), statistics.median(told or [0])
        checks.append(
            (
                f"PCIe {what}, GB/s: recorded, dmon, the program's",
                f"{told / 1e9:.2f} {smi / 1e9:.2f} {own / 1e9:.2f}",
                abs(told - smi) <= 0.15 * smi and abs(told - own) <= 0.2 * own,
            )
        )


def nvlink(samples, said, counted, checks):
    """The reading whose ten seconds lie within the copies, at both ends."""
    begin, seconds = said["from"] + 11e9, (said["to"] - said["from"]) / 1e9
    for gpu, way, key in ((0, 0, "nvlink_tx_bytes_per_s"), (1, 1, "nvlink_rx_bytes_per_s")):
        told = [s[key] for s in samples if begin < s["ts_ns"] < said["to"] and s["gpu"] == gpu and s["links_known"] & 2]
        smi, own = counted.get(gpu, [0, 0])[way] / seconds, said["bytes"] / seconds
        name = f"NVLink {'from' if way == 0 else 'to'} GPU {gpu}, GB/s: recorded, nvlink -gt, program's"
        if not smi:
            checks.append((name, f"nvidia-smi nvlink counts nothing; samples {len(told)}; {own / 1e9:.1f}", None))
            continue
        told = max(told or [0])
        good = abs(told - smi) <= 0.1 * smi and abs(told - own) <= 0.15 * own
        checks.append((name, f"{told / 1e9:.1f} {smi / 1e9:.1f} {own / 1e9:.1f}", good))


def stopped(args, checks):
    """A program with a bad pointer."""
    program = Program(args, "bad_pointer")
    with watched(args, program, "stopped", "--gpu", "continuous", "--overhead-budget", "0"):
        program.ask("good", 4)  # the agent comes in, the kernel's log is read
        error = program.ask("bad", 3)["error"]
        model = json.loads(common.report(args.bin, program.pid, "json"))
        open(f"{args.out}/stopped.txt", "w").write(common.report(args.bin, program.pid, "text", "--full"))
        meta, _ = recording.fetch(common.SOCKET, program.pid)
    lives = program.p.poll() is None
    d, xids = model["diagnosis"], (meta.get("driver") or {}).get("xid_errors") or []
    lines = subprocess.run(["dmesg"], capture_output=True, text=True).stdout.splitlines()
    checks.append(("bad pointer: what the program sees", error, "CUDA error" in error))
    checks.append(("bad pointer: the kernel's log", [x for x in lines if "Xid" in x][-1:], None))
    checks.append(("bad pointer: Xid recorded", xids[:2], any(x["code"] == 31 for x in xids)))
    checks.append(("bad pointer: verdict", f"{d['verdict']}: {d['headline']}", d["verdict"] == "stopped"))
    checks.append(("bad pointer: the process lives", lives, lives))
    program.end()


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--bin", default="bin", help="folder with inferscope and inferscoped")
    p.add_argument("--out", default="build/gpu/sensors", help="folder for reports and logs")
    p.add_argument("--limit", type=float, default=120, help="seconds after which no part begins")
    args = p.parse_args()
    os.makedirs(args.out, exist_ok=True)
    args.fault = common.fault_library(args.out)
    began, checks = time.monotonic(), []
    for part in (sensors, stopped):
        if time.monotonic() - began > args.limit:
            checks.append((part.__name__, f"not begun within {args.limit:.0f} s", None))
            continue
        try:
            part(args, checks)
        except (Exception, SystemExit) as e:  # noqa: BLE001 - the other part is to run
            checks.append((part.__name__, repr(e), False))
    print(f"{time.monotonic() - began:.0f} s")
    sys.exit(0 if common.print_checks(checks) else 1)


if __name__ == "__main__":
    if sys.argv[1:2] == ["program"]:
        {"copies": copies, "bad_pointer": bad_pointer}[sys.argv[2]]()
    else:
        main()
