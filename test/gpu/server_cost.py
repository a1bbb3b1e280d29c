"""What watching costs servers and loops as people run them: time per step with the daemon on and off in the same
process, ABBA.

Usage: server_cost.py --bin BIN_DIR [--only NAME,...] [--llama-server PATH --model FILE.gguf] [--vllm DIR] [--rounds N]
                      [--seconds S] [--settle S] [--limit SECONDS] [--out DIR] [--flags "..."] [--anywhere] [--beside]
Root. Programs: servers/programs.py; where --llama-server names one, llama.cpp's server with and without CUDA graphs
(llama-graphs-N, llama-eager-N) under N = 1, 8 and 16 streams; where --vllm names a folder with vLLM's packages, vLLM
(vllm-N) under 1 and 16. Each round is off, on, on, off, S seconds each; an "on" begins --settle seconds after the
daemon says that it is ready. Each program gets an equal share of what is left of --limit, and as many rounds as fit, N
at most. The table gives the added time per step with its 95% interval over rounds - the mean, and "usual", which one
disturbed slice does not move -, what stays after the last detach against the first "off", the longest step off, on, and
from a start of the daemon to its end, and the daemon's own figure. Before the first round a
program runs until its steps no longer get faster; "warm" says how long that took and how much slower its first second
was: that is the program's own, no daemon has been there. "first 2 s" is what the steps of the first two seconds after
the daemon is ready take longer than those of the slice before it. "a window takes" is what GPU windows took of the
program's time, by its steps around them. "between + in windows" are the two parts of the cost: the usual step (the mean
of the middle nine tenths, so that one late step of a noisy host does not count) outside of windows against that of the
slices without the daemon, and the share of the slice that its windows took. The goals: at most 2% added (the usual
figure), and no pause more than 10 ms longer than the longest without the daemon; "unclear" is a figure whose interval
holds the goal. After each attachment the target is asked for more steps. A program that dies is printed with its
signal, the fault's address and module, and its last output, and counted.

A server's step is the time between two tokens of one answer: the time between two requests is the load generator's. The
program runs on one half of the CPUs and what drives it on the other, unless --anywhere is given; the daemon may run on
all of them. With --beside, the same program runs a second time, on the second GPU and a quarter of the CPUs, and
nobody watches it: steps are held against its steps of the same time, which what slows the whole host changes alike.
"""

import argparse
import http.client
import json
import math
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import typing

import numpy

import common
import engines

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "servers"))
import load  # noqa: E402
from progress import Reader  # noqa: E402

# With autogroup, the scheduler shares CPUs by session (sched(7)).
SESSION = {"process_group": None, "start_new_session": True}
MOST_ADDED, MOST_PAUSE_MS = 0.02, 10  # the goals
WARM = 20  # seconds that a program may take to get fast
AROUND = 900e6  # ns before and after a window whose steps it is compared with
AFTERMATH = 5e6  # ns after a window in which it is still felt
FIRST = 2  # seconds after the daemon is ready that are looked at by themselves


def middle(gaps):
    """Mean of the middle nine tenths."""
    low, high = numpy.quantile(gaps, (0.05, 0.95))
    return float(gaps[(gaps >= low) & (gaps <= high)].mean())


def usual(values):
    """Hodges-Lehmann estimate of the middle of values, and its 95% interval by Wilcoxon's signed ranks (normal
    approximation, six values or more).

    A neighbour on the host that slows one slice by half moves the mean and hardly this.
    """
    n = len(values)
    walsh = sorted((values[i] + values[j]) / 2 for i in range(n) for j in range(i, n))
    if n < 6:
        return statistics.median(walsh), -math.inf, math.inf
    cut = int(n * (n + 1) / 4 - 1.96 * math.sqrt(n * (n + 1) * (2 * n + 1) / 24))
    cut = max(cut, 0)
    return statistics.median(walsh), walsh[cut], walsh[-1 - cut]


class Died(Exception):
    pass


class Slice(typing.NamedTuple):
    """Steps from begin to end (time.monotonic_ns): their mean and longest time, ns."""

    begin: int
    end: int
    mean: float
    longest: float


def over(window):
    """When a window is over and no longer felt, ns."""
    steps = sum(window[k] for k in ("disable", "flush", "leave", "finalize"))
    return window["off_ns"] + steps + AFTERMATH


class Program:
    """A measured program, and the load that drives it."""

    def __init__(self, name, args, port, cpus, **env):
        self.name, self.port, self.env = name, port, env
        self.dir = tempfile.mkdtemp(prefix="server-cost-")
        self.streams = []  # clients that are asking
        self.beside, self.reference = None, 0.0  # another one, which nobody watches, and its usual step, ns
        self.steps_path, self.log_path = f"{self.dir}/steps", f"{self.dir}/log"
        self.server = name.startswith(("llama", "vllm"))
        self.clients = int(name.rsplit("-", 1)[1]) if self.server else 4 if name == "aio" else 0
        self.answering = self.clients if self.server else 1  # steps that are under way at a time
        taskset = ["taskset", "-c", cpus] if cpus else []
        with open(self.log_path, "w") as log:
            self.process = self._start(args, taskset, log)

    def await_steps(self):
        if self.server:
            self._wait(self._healthy, "the server to load its model")
        else:
            self._wait(lambda: "ready" in open(self.log_path).read(), "the program to be warm")
        self.streams = [load.Stream(self.name.split("-")[0], self.port, i) for i in range(self.clients)]
        self.steps = None if self.server else Reader(self.steps_path)
        self._wait(lambda: self._count() > 20, "the first steps")

    def _start(self, args, taskset, log):
        env = dict(os.environ)
        if self.name.startswith("vllm"):
            env = engines.environment(args.vllm)
            engines.write_model(self.dir, 8, 1024)
            env["PYTHONFAULTHANDLER"] = "1"
            command = engines.vllm(self.dir, self.port, ["m"], 16)
        elif self.name.startswith("llama"):
            if "eager" in self.name:
                env["GGML_CUDA_DISABLE_GRAPHS"] = "1"
            command = [
                args.llama_server, "-m", args.model, "-ngl", "99", "-np", str(self.clients), "-c",
                str(2048 * self.clients),
                "--port", str(self.port), "--host", "127.0.0.1", "--no-webui",
            ]
        else:
            command = [sys.executable, f"{HERE}/servers/programs.py", self.name, self.steps_path, str(self.port)]
        return common.start(
            [*taskset, *command], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env | self.env, **SESSION
        )

    def _count(self):
        return self.steps.count() if self.steps else sum(s.count() for s in self.streams)

    def _wait(self, condition, what, timeout=240):
        until = time.monotonic() + timeout
        while not condition():
            self.alive()
            if time.monotonic() > until:
                raise Died(f"{self.name}: waited {timeout} s for {what}: {self._aftermath()}")
            time.sleep(0.05)

    def alive(self):
        code = self.process.poll()
        if code is not None:
            how = f"signal {signal.Signals(-code).name}" if code < 0 else f"code {code}"
            raise Died(f"{self.name} ended with {how}: {self._aftermath()}")

    def _aftermath(self):
        return common.aftermath(self.process, self.log_path)

    def _healthy(self):
        try:
            c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
            c.request("GET", "/health")
            return c.getresponse().status == 200
        except OSError:
            return False

    def _gaps(self, begin, end):
        """Times between steps that began and ended in [begin, end), ns; of servers between the tokens of one answer."""
        if self.steps:
            return numpy.diff(self.steps.between(begin, end))
        return numpy.concatenate([s.gaps(begin, end) for s in self.streams])

    def measure(self, seconds):
        """The steps of the next seconds."""
        begin = time.monotonic_ns()
        time.sleep(seconds)
        self.alive()
        end = time.monotonic_ns()
        gaps = self._gaps(begin, end)
        if len(gaps) < 10:
            raise Died(f"{self.name}: {len(gaps)} steps in {seconds} s")
        return Slice(begin, end, float(gaps.mean()) * self._scale(begin, end), float(gaps.max()))

    def _scale(self, begin, end):
        """How fast the other one was in a stretch of time, against its first one; 1 where there is none."""
        if not self.beside:
            return 1.0
        self.beside.alive()
        gaps = self.beside._gaps(begin, end)
        if len(gaps) < 10:
            raise Died(f"{self.name}: {len(gaps)} steps of the one beside it")
        step = middle(gaps)
        self.reference = self.reference or step
        return self.reference / step

    def between_windows(self, part, windows):
        """The usual step, ns, of a slice outside of windows."""
        gaps, begin = [], part.begin
        for w in sorted(windows, key=lambda w: w["began_ns"]):
            if w["began_ns"] < part.end and over(w) > begin:
                gaps.append(self._gaps(begin, w["began_ns"]))
                begin = over(w)
        gaps.append(self._gaps(begin, part.end))
        steps = numpy.concatenate(gaps)
        if len(steps) < 10:
            raise Died(f"{self.name}: {len(steps)} steps outside of windows")
        return middle(steps) * self._scale(part.begin, part.end)

    def settle(self):
        """Runs until the steps of a second are no more than 10% faster than those of any of the two before, for WARM
        seconds at most. Returns seconds, and how many times as long a step of the first took as one of the last."""
        means = []
        while len(means) < WARM and (len(means) < 3 or means[-1] < 0.9 * max(means[-3:])):
            means.append(self.measure(1).mean)
        return len(means), means[0] / means[-1]

    def lost(self, window):
        """What a window took of the program's time, ns: its length, less what its steps take in the second before and
        after; None where there are too few."""
        begin = window["began_ns"]
        end = over(window)
        inside = self._gaps(begin, end)
        around = numpy.concatenate(
            [self._gaps(begin - AROUND, begin - AFTERMATH), self._gaps(end + AFTERMATH, end + AROUND)]
        )
        return end - begin - len(inside) * float(around.mean()) / self.answering if len(around) >= 20 else None

    def longest_since(self, begin):
        """The longest ns of a step since a time."""
        gaps = self._gaps(begin, time.monotonic_ns())
        return float(gaps.max()) if len(gaps) else 0.0

    def stop(self):
        for s in self.streams:
            s.stop()
        common.end_group(self.process)


class Watch:
    """The daemon on a program, from its start to its end."""

    def __init__(self, args, pid, log):
        self.socket = f"/tmp/server-cost-{os.getpid()}.sock"
        self.log_path, self.args = log, args
        mark, until = os.path.getsize(log) if os.path.exists(log) else 0, time.monotonic() + 60
        with open(log, "a") as out:
            self.process = common.start(
                [
                    *args.free, f"{args.bin}/inferscoped", "--pid", str(pid), "--socket", self.socket,
                    *args.flags.split(),
                ],
                stdout=out,
                stderr=out,
            )
        while b"ready" not in open(log, "rb").read()[mark:]:
            if self.process.poll() is not None or time.monotonic() > until:
                raise Died(f"the daemon did not come up: {open(log).read()[-800:]}")
            time.sleep(0.02)

    def status(self):
        out = subprocess.run(
            [f"{self.args.bin}/inferscope", "status", "--socket", self.socket, "--json"],
            capture_output=True,
            text=True,
            timeout=30,
        )
        try:
            return json.loads(out.stdout)
        except ValueError:
            return {}

    def stop(self):
        began = time.monotonic()
        self.process.terminate()
        try:
            code = self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise Died("the daemon did not stop within 30 s") from None
        if code:
            raise Died(f"the daemon ended with {code}: {open(self.log_path).read()[-800:]}")
        return time.monotonic() - began


def own_figure(status):
    """What the daemon says that watching costs, and the levels that it chose, as text."""
    for o in status.get("overhead") or []:
        total = o["total"]
        levels = [f"{q['name']}={q['level']}" for q in o["sources"] if q.get("index")]
        share = f"{total['share'] * 100:.2f}% ({total['low'] * 100:.2f} to {total['high'] * 100:.2f}, {total['basis']}"
        return f"{share}, {o.get('pairs', 0)} pairs) {', '.join(levels)}"
    return "-"


class Measured:
    """What is known of a program so far: added time of rounds, longest steps, and what the daemon says."""

    def __init__(self, first, warm):
        self.first, self.added, self.early, self.kept, self.own, self.warm = first, [], [], [], "-", warm
        self.windows, self.kernels = [], [0, 0]  # ns that windows took; how many of windows and kernels
        self.between, self.inside = [], []  # shares of time added between windows, by rounds, and in them, by slices
        self.longest = {"off": 0.0, "on": 0.0, "whole": 0.0}

    def figures(self):
        mean, half = common.interval(self.added)
        middle, low, high = usual(self.added)
        pause = (max(self.longest["on"], self.longest["whole"]) - self.longest["off"]) / 1e6
        if math.isinf(low):  # too few rounds for signed ranks
            low, high = mean - half, mean + half
        return {
            "step ms": f"{self.first / 1e6:.3f}",
            "added %": f"{mean * 100:+.2f} +- {half * 100:.2f}",
            "usual %": f"{middle * 100:+.2f} ({low * 100:+.2f} to {high * 100:+.2f})",
            "at most 2%": "yes" if high <= MOST_ADDED else "NO" if low > MOST_ADDED else
                          f"unclear, {'yes' if middle <= MOST_ADDED else 'NO'}",
            "longest off/on/whole ms": "/".join(f"{self.longest[k] / 1e6:.1f}" for k in ("off", "on", "whole")),
            "first 2 s %": f"{statistics.median(self.early) * 100:+.2f} (at most {max(self.early) * 100:+.2f})",
            "warm": f"{self.warm[0]} s, {self.warm[1]:.1f} times",
            "pause": f"{pause:+.1f} ms {'ok' if pause <= MOST_PAUSE_MS else 'TOO LONG'}",
            "between + in windows %": self._parts(),
            "a window takes ms": self._window(),
            "stays %": f"{statistics.fmean(self.kept) * 100:+.2f}",
            "daemon says": self.own,
            "rounds": " ".join(f"{a * 100:+.1f}" for a in self.added),
        }

    def _parts(self):
        between, half = common.interval(self.between)
        inside, of_inside = common.interval(self.inside)
        return f"{between * 100:+.2f} +- {half * 100:.2f}, {inside * 100:+.2f} +- {of_inside * 100:.2f}"

    def _window(self):
        if not self.windows:
            return "-"
        mean, half = common.interval(self.windows)
        kernels = self.kernels[1] / max(1, self.kernels[0])
        return f"{mean / 1e6:.0f} +- {half / 1e6:.0f} ({len(self.windows)} windows, {kernels:.0f} kernels each)"


def measure(name, args, port, until):
    """Measures a program until a time (time.monotonic) at the latest. Returns attachments, deaths, figures."""
    program, attached, seen = None, 0, None
    log = f"{args.out}/server-cost-{name}.log"
    try:
        program = Program(name, args, port, args.cpus, **({"CUDA_VISIBLE_DEVICES": "0"} if args.beside else {}))
        if args.beside:
            program.beside = Program(name, args, port + 100, args.other_cpus, CUDA_VISIBLE_DEVICES="1")
            program.beside.await_steps()
        program.await_steps()
        warm = program.settle()
        seen = Measured(program.measure(args.seconds).mean, warm)
        took = 4 * args.seconds + 2 * max(args.settle, FIRST) + 6
        for n in range(args.rounds):
            began = time.monotonic()
            if n and began + took > until:
                break
            attached = measure_round(program, args, log, seen, attached)
            took = time.monotonic() - began
        return attached, 0, seen.figures()
    except Died as e:
        return attached, 1, (seen.figures() if seen and seen.added else {}) | {"died": str(e)}
    finally:
        for p in (program, program and program.beside):
            if p:
                p.stop()


def measure_round(program, args, log, seen, attached):
    """Off, on, on, off. Returns the number of attachments so far."""
    turn, before, usual_steps = {"off": [], "on": []}, seen.first, {"off": [], "on": []}
    for what in ("off", "on", "on", "off"):
        watch, began = None, time.monotonic_ns()
        if what == "on":
            watch = Watch(args, program.process.pid, log)
            attached += 1
        try:
            if watch:
                seen.early.append(program.measure(FIRST).mean / before - 1)
            time.sleep(max(0, args.settle - FIRST) if watch else 0.5)
            part = program.measure(args.seconds)
        except BaseException:
            if watch:
                common.end_group(watch.process)
            raise
        turn[what].append(part.mean)
        if what == "off":
            before = part.mean
        seen.longest[what] = max(seen.longest[what], part.longest)
        windows = []
        if watch:
            status = watch.status()
            seen.own = own_figure(status)
            for agent in status.get("agents") or []:
                windows += agent.get("window_steps") or []
                seen.kernels = [seen.kernels[0] + agent["windows"], seen.kernels[1] + agent["kernels"]]
            lost = [(w, program.lost(w)) for w in windows]
            seen.windows += [ns for _, ns in lost if ns is not None]
            took = sum(ns for w, ns in lost if ns is not None and part.begin <= w["began_ns"] < part.end)
            seen.inside.append(took / (part.end - part.begin))
        usual_steps[what].append(program.between_windows(part, windows))
        if watch:
            watch.stop()
            time.sleep(0.2)
            program.alive()
            seen.longest["whole"] = max(seen.longest["whole"], program.longest_since(began))
    # By rounds: what changes evenly in the course of off, on, on, off is in both sums.
    seen.added.append(sum(turn["on"]) / sum(turn["off"]) - 1)
    seen.between.append(sum(usual_steps["on"]) / sum(usual_steps["off"]) - 1)
    seen.kept.append(turn["off"][1] / seen.first - 1)
    return attached


def print_table(rows):
    """One Markdown table of all programs."""
    keys = [k for k in dict.fromkeys(k for r in rows for k in r) if k not in ("rounds", "died")]
    print("\n| " + " | ".join(keys) + " |\n|" + "---|" * len(keys))
    for r in rows:
        print("| " + " | ".join(str(r.get(k, "died" if "died" in r else "-")) for k in keys) + " |")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--bin", required=True)
    p.add_argument("--only", default="eager,aio,allocations,jax")
    p.add_argument("--llama-server", default="")
    p.add_argument("--model", default="")
    p.add_argument("--vllm", default="")
    p.add_argument("--rounds", type=int, default=8)
    p.add_argument("--seconds", type=float, default=5)
    p.add_argument("--settle", type=float, default=5)
    p.add_argument("--limit", type=float, default=520)
    p.add_argument("--out", default="build/gpu")
    p.add_argument("--flags", default="")
    p.add_argument("--anywhere", action="store_true")
    p.add_argument("--beside", action="store_true")
    args = p.parse_args()
    cpus = sorted(os.sched_getaffinity(0))
    args.cpus, args.other_cpus, args.free = "", "", []  # the daemon may run anywhere
    if len(cpus) >= 8 and not args.anywhere:
        args.cpus = args.other_cpus = ",".join(map(str, cpus[: len(cpus) // 2]))
        if args.beside:
            args.cpus = ",".join(map(str, cpus[: len(cpus) // 4]))
            args.other_cpus = ",".join(map(str, cpus[len(cpus) // 4 : len(cpus) // 2]))
        args.free = ["taskset", "-c", ",".join(map(str, cpus))]
        os.sched_setaffinity(0, cpus[len(cpus) // 2 :])
    os.makedirs(args.out, exist_ok=True)
    names = [n for n in args.only.split(",") if n]
    if args.llama_server and not any(n.startswith("llama") for n in names):
        names += [f"llama-{how}-{n}" for n in (1, 8, 16) for how in ("graphs", "eager")]
    if args.vllm and not any(n.startswith("vllm") for n in names):
        names += ["vllm-1", "vllm-16"]
    until, attached, deaths, rows = time.monotonic() + args.limit, 0, 0, []
    for i, name in enumerate(names):
        now = time.monotonic()
        if now + 4 * args.seconds + 2 * args.settle + 20 > until:
            print(f"{name}: skipped, the time is over", flush=True)
            continue
        a, d, figures = measure(name, args, 18080 + i, now + (until - now) / (len(names) - i))
        attached, deaths = attached + a, deaths + d
        rows.append({"program": name, **figures})
        print(f"{name}: " + ", ".join(f"{k} {v}" for k, v in figures.items()), flush=True)
        with open(f"{args.out}/server-cost.json", "w") as out:
            json.dump(rows, out, indent=1)
    print_table(rows)
    print(f"attachments {attached}, deaths {deaths}")
    sys.exit(1 if deaths else 0)


if __name__ == "__main__":
    main()
