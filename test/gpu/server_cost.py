"""What watching costs servers and loops as people run them: time per step with the daemon on and off in the same
process, ABBA.

Usage: server_cost.py --bin BIN_DIR [--only NAME,...] [--llama-server PATH --model FILE.gguf] [--rounds N] [--seconds S]
[--settle S]
                      [--limit SECONDS] [--out DIR] [--flags "..."] [--anywhere]
Root. Programs: servers/programs.py and, where --llama-server names one, llama.cpp's server with and without CUDA graphs
under 1 and 8 streams. Each round is off, on, on, off, S seconds each; an "on" begins --settle seconds after the daemon
says that it is ready. The table gives the added time per step with its 95% interval over pairs - the mean, and "usual",
which one disturbed slice does not move -, what stays after the last detach against the first "off", the longest step
off and on, and the daemon's own figure. A program that dies is printed with its signal and last output, and counted.

A server's step is the time between two tokens of one answer: the time between two requests is the load generator's. The
program runs on one half of the CPUs and what drives it on the other, unless --anywhere is given; the daemon may run on
all of them.
"""

import argparse
import http.client
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import numpy

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "servers"))
from progress import Reader  # noqa: E402

# Two-sided 95% quantiles of Student's t by degrees of freedom.
T95 = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 9: 2.26, 10: 2.23, 15: 2.13, 20: 2.09}


def interval(values):
    """Mean and half width of its 95% interval."""
    if len(values) < 2:
        return statistics.fmean(values), math.inf
    t = T95[max(k for k in T95 if k <= len(values) - 1)]
    return statistics.fmean(values), t * statistics.stdev(values) / math.sqrt(len(values))


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


class Program:
    """A measured program, and the load that drives it."""

    def __init__(self, name, args, port):
        self.name, self.port = name, port
        self.dir = tempfile.mkdtemp(prefix="server-cost-")
        self.answers = []  # of servers: the times (ns) of each answer's tokens
        self.steps_path, self.log_path = f"{self.dir}/steps", f"{self.dir}/log"
        self.stopped = threading.Event()
        env, command, load = dict(os.environ), None, None
        if name.startswith("llama"):
            streams = int(name.rsplit("-", 1)[1])
            if "eager" in name:
                env["GGML_CUDA_DISABLE_GRAPHS"] = "1"
            command = [
                args.llama_server, "-m", args.model, "-ngl", "99", "-np", str(streams), "-c", str(2048 * streams),
                "--port", str(port), "--host", "127.0.0.1", "--no-webui",
            ]
            load = [self._llama] * streams
        else:
            command = [sys.executable, f"{HERE}/servers/programs.py", name, self.steps_path, str(port)]
            load = [self._aio] * 4 if name == "aio" else []
        if args.cpus:
            command = ["taskset", "-c", args.cpus, *command]
        self.process = subprocess.Popen(
            command, stdout=open(self.log_path, "w"), stderr=subprocess.STDOUT, env=env, start_new_session=True
        )
        if name.startswith("llama"):
            self._wait(self._llama_ready, "the server to load its model")
        else:
            self._wait(lambda: "ready" in open(self.log_path).read(), "the program to be warm")
        for i, f in enumerate(load):
            threading.Thread(target=self._drive, args=(f, i), daemon=True).start()
        self.steps = None if name.startswith("llama") else Reader(self.steps_path)
        self._wait(lambda: self._count() > 20, "the first steps")

    def _count(self):
        return self.steps.count() if self.steps else sum(len(a) for a in self.answers)

    def _wait(self, condition, what, patience=180):
        until = time.monotonic() + patience
        while not condition():
            self.alive()
            if time.monotonic() > until:
                raise Died(f"{self.name}: waited {patience} s for {what}: {open(self.log_path).read()[-500:]}")
            time.sleep(0.05)

    def alive(self):
        code = self.process.poll()
        if code is not None:
            how = f"signal {signal.Signals(-code).name}" if code < 0 else f"code {code}"
            raise Died(f"{self.name} ended with {how}: {open(self.log_path).read()[-1500:]}")

    def _llama_ready(self):
        try:
            c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
            c.request("GET", "/health")
            return c.getresponse().status == 200
        except OSError:
            return False

    def _drive(self, load, i):
        while not self.stopped.is_set():
            try:
                load(i)
            except (OSError, http.client.HTTPException):
                if not self.stopped.is_set() and self.process.poll() is None:
                    time.sleep(0.05)

    def _stream(self, method, path, body, each):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        c.request(method, path, body, {"Content-Type": "application/json"})
        response = c.getresponse()
        while not self.stopped.is_set():
            line = response.readline()
            if not line:
                return
            if line.startswith(b"data: "):
                each()
        c.close()

    def _llama(self, i):
        times = []
        self.answers.append(times)
        body = json.dumps(
            {
                "prompt": f"stream {i} ", "n_predict": 1500, "stream": True, "ignore_eos": True, "cache_prompt": False,
                "temperature": 1.0,
            }
        )
        self._stream("POST", "/completion", body, lambda: times.append(time.monotonic_ns()))

    def _gaps(self, begin, end):
        """Times between steps that began and ended in [begin, end), ns; of servers between the tokens of one answer."""
        if self.steps:
            return numpy.diff(self.steps.between(begin, end))
        gaps = [numpy.diff([t for t in a if begin <= t < end]) for a in list(self.answers) if a and a[-1] >= begin]
        return numpy.concatenate(gaps) if gaps else numpy.array([])

    def _aio(self, _):
        self._stream("GET", "/generate?n=256", None, lambda: None)

    def measure(self, seconds):
        """Mean and longest ns of a step in the next seconds."""
        begin = time.monotonic_ns()
        time.sleep(seconds)
        self.alive()
        gaps = self._gaps(begin, time.monotonic_ns())
        if len(gaps) < 10:
            raise Died(f"{self.name}: {len(gaps)} steps in {seconds} s")
        return float(gaps.mean()), float(gaps.max())

    def stop(self):
        self.stopped.set()
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


class Watch:
    """The daemon on a program, from its start to its end."""

    def __init__(self, args, pid, log):
        self.socket = f"/tmp/server-cost-{os.getpid()}.sock"
        self.log_path, self.args = log, args
        mark, until = os.path.getsize(log) if os.path.exists(log) else 0, time.monotonic() + 60
        with open(log, "a") as out:
            self.process = subprocess.Popen(
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


def measure(name, args, port):
    program = Program(name, args, port)
    attached, added, kept, figures = 0, [], [], {}
    longest = {"off": 0.0, "on": 0.0}
    log = f"{args.out}/server-cost-{name}.log"
    own = "-"
    try:
        program.measure(args.seconds / 2)  # warm
        first = program.measure(args.seconds)[0]
        for _ in range(args.rounds):
            turn = {"off": [], "on": []}
            for what in ("off", "on", "on", "off"):
                watch = None
                if what == "on":
                    watch = Watch(args, program.process.pid, log)
                    attached += 1
                    time.sleep(args.settle)
                else:
                    time.sleep(0.5)
                mean, worst = program.measure(args.seconds)
                turn[what].append(mean)
                longest[what] = max(longest[what], worst)
                if watch:
                    own = own_figure(watch.status())
                    watch.stop()
                    program.alive()
            added += [on / off - 1 for on, off in zip(turn["on"], turn["off"])]
            kept.append(turn["off"][1] / first - 1)
        mean, half = interval(added)
        middle, low, high = usual(added)
        figures = {
            "step ms": f"{first / 1e6:.3f}",
            "added %": f"{mean * 100:+.2f} +- {half * 100:.2f}",
            "usual %": f"{middle * 100:+.2f} ({low * 100:+.2f} to {high * 100:+.2f})",
            "pairs": " ".join(f"{a * 100:+.1f}" for a in added),
            "stays %": f"{statistics.fmean(kept) * 100:+.2f}",
            "longest off/on ms": f"{longest['off'] / 1e6:.1f}/{longest['on'] / 1e6:.1f}",
            "daemon says": own,
        }
        return attached, 0, figures
    except Died as e:
        return attached, 1, {"died": str(e)}
    finally:
        program.stop()


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--bin", required=True)
    p.add_argument("--only", default="eager,aio,allocations,jax")
    p.add_argument("--llama-server", default="")
    p.add_argument("--model", default="")
    p.add_argument("--rounds", type=int, default=2)
    p.add_argument("--seconds", type=float, default=5)
    p.add_argument("--settle", type=float, default=5)
    p.add_argument("--limit", type=float, default=520)
    p.add_argument("--out", default="build/gpu")
    p.add_argument("--flags", default="")
    p.add_argument("--anywhere", action="store_true")
    args = p.parse_args()
    cpus = sorted(os.sched_getaffinity(0))
    args.cpus, args.free = "", []  # the daemon may run anywhere
    if len(cpus) >= 8 and not args.anywhere:
        args.cpus = ",".join(map(str, cpus[: len(cpus) // 2]))
        args.free = ["taskset", "-c", ",".join(map(str, cpus))]
        os.sched_setaffinity(0, cpus[len(cpus) // 2 :])
    os.makedirs(args.out, exist_ok=True)
    names = args.only.split(",")
    if args.llama_server:
        names = [n for n in names if n] + [
            n for n in ("llama-graphs-1", "llama-eager-1", "llama-graphs-8", "llama-eager-8") if n not in names
        ]
    until, attached, deaths, rows = time.monotonic() + args.limit, 0, 0, []
    for i, name in enumerate(n for n in names if n):
        if time.monotonic() + args.rounds * (4 * args.seconds + 2 * args.settle + 4) + 20 > until:
            print(f"{name}: skipped, the time is over", flush=True)
            continue
        a, d, figures = measure(name, args, 18080 + i)
        attached, deaths = attached + a, deaths + d
        rows.append({"program": name, **figures})
        print(f"{name}: " + ", ".join(f"{k} {v}" for k, v in figures.items()), flush=True)
        with open(f"{args.out}/server-cost.json", "w") as out:
            json.dump(rows, out, indent=1)
    print(f"attachments {attached}, deaths {deaths}")
    sys.exit(1 if deaths else 0)


if __name__ == "__main__":
    main()
