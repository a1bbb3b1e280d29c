"""What watching costs servers and loops as people run them, on a host that others disturb.

Usage: server_cost.py --bin BIN_DIR [--only NAME,...] [--llama-server PATH --model FILE.gguf] [--vllm DIR]
                      [--limit SECONDS] [--pairs N] [--slice S] [--long S] [--seed N] [--out DIR] [--flags "..."]
Root. Programs: servers/programs.py; where --llama-server names one, llama.cpp's server (llama-graphs-N, llama-eager-N:
with and without CUDA graphs, N streams); where --vllm names a folder with vLLM's packages, vLLM (vllm-N). Each gets an
equal share of what is left of --limit.

The total is the sum of three parts, and is held against the goal of 2%; "unclear": the interval holds the goal.

    in windows       the daemon watches as it does by default, for --long seconds: the mean of what GPU windows take, by
                     the steps around each, at the rate of the second half
    between windows  attached anew a few times, with the levels that it had chosen fixed and no windows, it turns its
                     sources off and on in slices of --slice seconds (SIGUSR2): how much longer a step takes with them
                     on
    all off          what stays with the sources off: attached in the same way again and again, sources off, for
                     --around seconds, against as long before and after without a daemon. "sham" is the same with no
                     daemon in between, and should not differ from 0

Pairs (off and on, sham and attached) lie next to each other in time, the seed decides which comes first, and the middle
of all is given with its 95% interval (pairs.py), so that neighbours on the host widen the interval but do not move it.
Where a part has no data, the total is not known. "usual step" is the same sum by the median step of each slice instead
of its pace: what bursts of a neighbour take from a few steps does not count there, nor does what the daemon takes from
fewer than half of the steps. "CPU a step" is the same comparison as between windows by the CPU time of the program and
its children, which does not count while a neighbour has the CPU. "quiet pairs" leaves out those with
a slice in which others took more than 1% of the CPU time that the program's CPUs wanted (steal in /proc/stat); the rule
is not chosen after looking. "long steps" are those that take over 10 ms longer than the usual one, for each minute
without and with the daemon, attaching and detaching included.

A server's steps are the tokens of all its streams. Their answers are short, and end one after the other: with 16 that
end together the context, and so the pace, would go up and down by itself. The program runs on one half of the CPUs, its
clients on the other, the daemon on all of them. A program that dies is printed with its signal, the fault's address and
module, and its last output, and counted.
"""

import argparse
import glob
import http.client
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import common
import engines
import pairs

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "servers"))
import load  # noqa: E402
from progress import Reader  # noqa: E402

# With autogroup, the scheduler shares CPUs by session (sched(7)).
SESSION = {"process_group": None, "start_new_session": True}
MOST_ADDED = 0.02  # the goal
LONG = 10_000_000  # ns that a step may take longer than the usual one
WARM = 20  # seconds that a program may take to get fast
AROUND = 900_000_000  # ns before and after a window whose steps it is compared with
AFTERMATH = 5_000_000  # ns after a window in which it is still felt
SETTLE = {True: 0.4, False: 0.25}  # seconds after the sources were switched on or off: an answer takes as long
ATTACHED, DETACHED = 2.0, 2.5  # seconds after the daemon is ready, and after it has gone; its agents end within 2
LEVELS = 4  # attachments over which the pairs are spread


class Died(Exception):
    pass


def over(window):
    """When a window is over and no longer felt, ns."""
    return window["off_ns"] + sum(window[k] for k in ("disable", "flush", "leave", "finalize")) + AFTERMATH


class Program:
    """A measured program, and the load that drives it."""

    def __init__(self, name, args, port):
        self.name, self.port, self.cpus = name, port, args.cpus
        self.dir = tempfile.mkdtemp(prefix="server-cost-")
        self.streams, self.steps = [], None
        self.steps_path, self.log_path = f"{self.dir}/steps", f"{self.dir}/log"
        self.server = name.startswith(("llama", "vllm"))
        self.clients = int(name.rsplit("-", 1)[1]) if self.server else 4 if name == "aio" else 0
        with open(self.log_path, "w") as log:
            self.process = self._start(args, log)

    def await_steps(self):
        if self.server:
            self._wait(self._healthy, "the server to load its model")
        else:
            self._wait(lambda: "ready" in open(self.log_path).read(), "the program to be warm")
            self.steps = Reader(self.steps_path)
        kind = self.name.split("-")[0]
        self.streams = [load.Stream(kind, self.port, i, (i + 1) / self.clients) for i in range(self.clients)]
        self._wait(lambda: len(self.times(0, time.monotonic_ns())) > 20, "the first steps")

    def _start(self, args, log):
        env = dict(os.environ)
        if self.name.startswith("vllm"):
            env = engines.environment(args.vllm) | {"PYTHONFAULTHANDLER": "1"}
            engines.write_model(self.dir, 8, 1024)
            command = engines.vllm(self.dir, self.port, ["m"], 16)
        elif self.name.startswith("llama"):
            if "eager" in self.name:
                env["GGML_CUDA_DISABLE_GRAPHS"] = "1"
            command = [
                args.llama_server, "-m", args.model, "-ngl", "99", "-np", str(self.clients), "-c",
                str(2048 * self.clients), "--port", str(self.port), "--host", "127.0.0.1", "--no-webui",
            ]
        else:
            command = [sys.executable, f"{HERE}/servers/programs.py", self.name, self.steps_path, str(self.port)]
        taskset = ["taskset", "-c", ",".join(map(str, self.cpus))]
        return common.start([*taskset, *command], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env, **SESSION)

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

    def times(self, begin, end):
        """Sorted times of the steps that ended in [begin, end), ns."""
        if self.steps:
            return self.steps.between(begin, end).tolist()
        return sorted(t for s in self.streams for t in s.between(begin, end))

    def gaps(self, begin, end):
        """How long steps took in [begin, end), ns; of servers between two tokens of one answer."""
        if self.steps:
            times = self.steps.between(begin, end)
            return (times[1:] - times[:-1]).tolist()
        return [g for s in self.streams for g in s.gaps(begin, end)]

    def cpu(self):
        """CPU seconds of the program and its children so far."""
        ticks = 0
        for path in glob.glob("/proc/[0-9]*/stat"):
            try:
                stat = open(path).read().rsplit(")", 1)[1].split()
            except OSError:  # it ended meanwhile
                continue
            if int(stat[3]) == self.process.pid:  # its session
                ticks += int(stat[11]) + int(stat[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def stolen(self):
        """Ticks that the program's CPUs wanted so far, and of these what others took."""
        wanted = taken = 0
        for line in open("/proc/stat"):
            name, *ticks = line.split()
            if name[:3] == "cpu" and name[3:] and int(name[3:]) in self.cpus:
                user, nice, system, _, _, irq, softirq, steal = map(int, ticks[:8])
                wanted, taken = wanted + user + nice + system + irq + softirq + steal, taken + steal
        return wanted, taken

    def settle(self):
        """Runs until the last second is no more than 10% faster than any of the four before, for WARM seconds at
        most."""
        paces = []
        while len(paces) < WARM and (len(paces) < 5 or paces[-1] > 1.1 * min(paces[-5:])):
            paces.append(self.measure(1).pace)

    def measure(self, seconds):
        return Slice(self, seconds)

    def lost(self, window):
        """What a window took of the program's time, ns: its length less what its steps take in the second before and
        after; None where there are too few."""
        begin, end = window["began_ns"], over(window)
        around = (begin - AROUND, begin - AFTERMATH), (end + AFTERMATH, end + AROUND)
        steps = sum(len(self.times(*a)) for a in around)
        if steps < 20:
            return None
        each = sum(b - a for a, b in around) / steps
        return end - begin - len(self.times(begin, end)) * each

    def stop(self):
        for s in self.streams:
            s.stop()
        common.end_group(self.process)


def pressure():
    """us for which something waited for a CPU so far (/proc/pressure/cpu)."""
    try:
        return int(open("/proc/pressure/cpu").readline().rsplit("=", 1)[1])
    except OSError:
        return 0


class Slice:
    """The next seconds of a program: its pace, CPU time a step, and what others took."""

    def __init__(self, program, seconds):
        cpu, (wanted, taken), waited, self.begin = program.cpu(), program.stolen(), pressure(), time.monotonic_ns()
        time.sleep(seconds)
        program.alive()
        self.end = time.monotonic_ns()
        cpu, waited, stolen = program.cpu() - cpu, pressure() - waited, program.stolen()
        times = program.times(self.begin, self.end)
        steps = max(1, len(times))  # a host can stand still for a slice
        self.pace, self.cpu = steps / (self.end - self.begin) * 1e9, cpu / steps
        self.usual = statistics.median(program.gaps(self.begin, self.end) or [1e9 / self.pace])
        self.steal = (stolen[1] - taken) / max(1, stolen[0] - wanted)
        self.waited = waited * 1e3 / (self.end - self.begin)


class Watch:
    """The daemon on a program, from its start to its end."""

    def __init__(self, args, pid, log, *flags):
        self.socket = f"/tmp/server-cost-{os.getpid()}.sock"
        self.log_path, self.args = log, args
        self.mark = os.path.getsize(log) if os.path.exists(log) else 0
        self.began = time.monotonic_ns()
        with open(log, "a") as out:
            self.process = common.start(
                [
                    "taskset", "-c", args.all_cpus, f"{args.bin}/inferscoped", "--pid", str(pid), "--socket",
                    self.socket, *args.flags.split(), *flags,
                ],
                stdout=out,
                stderr=out,
            )
        self._await(b"ready")

    def _await(self, text, times=1):
        until = time.monotonic() + 60
        while open(self.log_path, "rb").read()[self.mark :].count(text) < times:
            if self.process.poll() is not None or time.monotonic() > until:
                raise Died(f"the daemon did not say {text.decode()}: {common.tail(self.log_path)}")
            time.sleep(0.005)

    def switch(self, times):
        """Turns all sources off, or on again; times: how often that was asked for."""
        self.process.send_signal(signal.SIGUSR2)
        self._await(b"switched all sources", times)

    def status(self):
        out = subprocess.run(
            [f"{self.args.bin}/inferscope", "status", "--socket", self.socket, "--json"],
            capture_output=True, text=True, timeout=30,
        )
        try:
            return json.loads(out.stdout)
        except ValueError:
            raise Died(f"no status: {out.stderr[-300:]}") from None

    def stop(self):
        self.process.terminate()
        try:
            code = self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise Died("the daemon did not stop within 30 s") from None
        if code:
            raise Died(f"the daemon ended with {code}: {common.tail(self.log_path)}")


class Measured:
    """What is known of a program so far."""

    def __init__(self, program, args, log):
        self.program, self.args, self.log = program, args, log
        self.attached, self.usual = 0, 0.0  # attachments; ns that a step takes
        self.long, self.lasted = {False: 0, True: 0}, {False: 0, True: 0}  # long steps, ns; without and with the daemon
        self.pairs, self.windows = [], []  # (off, on); ns that windows took
        self.off = {False: [], True: []}  # what is added on the pace around: with no daemon, and with its sources off
        self.off_usual = {False: [], True: []}  # the same by the usual step
        self.rate, self.levels, self.says, self.kernels = 0.0, [], "-", 0.0

    def unwatched(self):
        part = self.program.measure(self.args.around)
        self.usual = self.usual or statistics.median(self.program.gaps(part.begin, part.end) or [0])
        self.note(False, part.begin)
        return part

    def note(self, watched, begin):
        """Counts the long steps since."""
        now = time.monotonic_ns()
        self.long[watched] += sum(g > self.usual + LONG for g in self.program.gaps(begin, now))
        self.lasted[watched] += now - begin

    def attachment(self, act, *flags):
        """Attaches the daemon, lets act do its part, and detaches it. Returns what act does."""
        watch = Watch(self.args, self.program.process.pid, self.log, *flags)
        self.attached += 1
        try:
            time.sleep(ATTACHED)
            found = act(watch)
            watch.stop()
        finally:
            common.end_group(watch.process)
        time.sleep(DETACHED)
        self.note(True, watch.began)
        return found

    def all_off(self, order, until):
        """Attachments with the sources off, and shams without a daemon, in pairs in order, until a time."""

        def off(watch):
            watch.switch(1)
            time.sleep(SETTLE[False])
            return self.program.measure(self.args.around)

        before = self.unwatched()
        for pair in order:
            if time.monotonic() > until:
                break
            for attached in pair:
                if not attached and 2 * len(self.off[False]) > len(self.off[True]):
                    continue  # half as many shams are enough
                if attached:
                    part = self.attachment(off, *self.fixed())
                else:
                    time.sleep(ATTACHED + SETTLE[False])
                    part = self.unwatched()
                    time.sleep(DETACHED)
                after = self.unwatched()
                self.off[attached].append((before.pace * after.pace) ** 0.5 / part.pace)
                self.off_usual[attached].append(part.usual / (before.usual * after.usual) ** 0.5)
                before = after

    def by_default(self, watch):
        """Looks at windows, and at the levels that the daemon chooses."""
        began = time.monotonic_ns()
        time.sleep(self.args.long)
        self.program.alive()
        status, middle, now = watch.status(), began + self.args.long * 5e8, time.monotonic_ns()
        windows = [w for a in status.get("agents") or [] for w in a.get("window_steps") or []]
        lost = [self.program.lost(w) for w in windows if over(w) + AROUND < now]
        self.windows = [ns for ns in lost if ns is not None]
        self.rate = sum(w["began_ns"] >= middle for w in windows) * 1e9 / (now - middle)
        agents = [a for a in status.get("agents") or [] if a["windows"]]
        self.kernels = sum(a["kernels"] for a in agents) / max(1, sum(a["windows"] for a in agents))
        for o in status.get("overhead") or []:
            total, self.levels = o["total"], [(q["name"], q["level"].split(",")[0]) for q in o["sources"]]
            reduced = "".join(f", {q['name']}={q['level']}" for q in o["sources"] if q.get("index"))
            share = " to ".join(f"{total[k] * 100:.2f}" for k in ("low", "high"))
            self.says = f"{total['share'] * 100:.2f}% ({share}, {total['basis']}, {o.get('pairs', 0)} pairs){reduced}"
        if not self.levels:
            raise Died("the daemon lists no levels")

    def fixed(self):
        """The flags that fix the levels which the daemon has chosen, without windows."""
        levels = [(name, "off" if name == "gpu windows" else level) for name, level in self.levels]
        return ("--overhead-budget", "0", "--pin-level", ",".join(f"{n}={v}" for n, v in levels))

    def turns(self, order, until):
        """Pairs of slices with the sources off and on, in order, until a time."""

        def act(watch):
            on, times, found = True, 0, 0
            for pair in order:
                if time.monotonic() > until and found:
                    break
                parts = {}
                for want in pair:
                    if on != want:
                        times += 1
                        watch.switch(times)
                        on = want
                        time.sleep(SETTLE[on])
                    parts[on] = self.program.measure(self.args.slice)
                found += 1
                self.pairs.append((parts[False], parts[True]))

        return act

    def figures(self):
        paces = [off.pace / on.pace for off, on in self.pairs]
        cpu = [on.cpu / off.cpu for off, on in self.pairs if off.cpu and on.cpu]
        slices = [s for p in self.pairs for s in p]
        quiet = [v for v, p in zip(paces, self.pairs) if max(s.steal for s in p) <= pairs.DISTURBED]
        between, window, off = pairs.added(paces), pairs.mean(self.windows), pairs.added(self.off[True])
        inside = tuple(v * self.rate / 1e9 for v in window) if self.windows and self.rate else pairs.NOTHING
        middle, low, high = pairs.together(between, inside, off)
        steps = [on.usual / off.usual for off, on in self.pairs]
        usual = pairs.added(steps), inside, pairs.added(self.off_usual[True])
        return {
            "steps/s": f"{statistics.median(off.pace for off, _ in self.pairs):.0f}",
            "total %": percent(middle, low, high),
            "at most 2%": pairs.verdict(low, middle, high, MOST_ADDED),
            "usual step, total %": percent(*pairs.together(*usual)),
            "usual step, between / all off / sham %": " / ".join(
                percent(*f) for f in (usual[0], usual[2], pairs.added(self.off_usual[False]))
            ) + f", scatter {pairs.scatter(steps) * 100:.1f}",
            "between windows %": f"{percent(*between)}, {len(paces)} pairs, scatter {pairs.scatter(paces) * 100:.1f}",
            "in windows %": percent(*inside),
            "all off %": f"{percent(*off)}, {len(self.off[True])} attachments",
            "sham %": percent(*pairs.added(self.off[False])),
            "CPU a step %": percent(*pairs.added(cpu)),
            "quiet pairs %": f"{percent(*pairs.added(quiet))}, {len(quiet)} pairs",
            "steal / pressure %": " / ".join(
                f"{statistics.median(v) * 100:.1f} (at most {max(v) * 100:.1f})"
                for v in ([s.steal for s in slices], [s.waited for s in slices])
            ),
            "a window ms": f"{milliseconds(window)}, {len(self.windows)} windows of {self.kernels:.0f} kernels, "
                           f"every {1 / self.rate if self.rate else 0:.1f} s",
            "long steps a minute alone / watched": " / ".join(
                f"{self.long[k] * 6e10 / max(1, self.lasted[k]):.1f}" for k in (False, True)
            ),
            "daemon says": self.says,
            "pairs": " ".join(f"{(v - 1) * 100:+.1f}" for v in paces),
        }


def percent(middle, low, high):
    return f"{middle * 100:+.2f} ({low * 100:+.2f} to {high * 100:+.2f})"


def milliseconds(figure):
    middle, low, high = (v / 1e6 for v in figure)
    return f"{middle:.0f} ({low:.0f} to {high:.0f})"


def measure(name, args, port, until):
    """Measures a program until a time (time.monotonic). Returns attachments, deaths, figures."""
    program = seen = None
    died = {}
    try:
        program = Program(name, args, port)
        program.await_steps()
        program.settle()
        seen = Measured(program, args, f"{args.out}/server-cost-{name}.log")
        seen.unwatched()
        seen.attachment(seen.by_default)
        order, middle = pairs.order(args.pairs, args.seed), (time.monotonic() + until) / 2
        for left in range(LEVELS, 0, -1):
            now = time.monotonic()
            done = len(seen.pairs)
            some = order[done : done + (len(order) - done) // left]
            if some and (now < middle or not done):
                flags = seen.fixed()
                seen.attachment(seen.turns(some, now + (middle - now) / left - ATTACHED - DETACHED - 2), *flags)
        seen.all_off(order, until - 6 * args.around - 2 * (ATTACHED + DETACHED))
    except Died as e:
        died = {"died": str(e)}
    finally:
        if program:
            program.stop()
    figures = seen.figures() if seen and len(seen.pairs) > 1 else {}
    return seen.attached if seen else 0, len(died), figures | died


def print_table(rows):
    """One Markdown table of all programs."""
    keys = [k for k in dict.fromkeys(k for r in rows for k in r) if k not in ("pairs", "died")]
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
    p.add_argument("--limit", type=float, default=520)
    p.add_argument("--pairs", type=int, default=1000)
    p.add_argument("--slice", type=float, default=0.5)
    p.add_argument("--around", type=float, default=1.5)
    p.add_argument("--long", type=float, default=60)
    p.add_argument("--seed", type=int, default=random.randrange(1 << 16))
    p.add_argument("--out", default="build/gpu")
    p.add_argument("--flags", default="")
    args = p.parse_args()
    print(f"seed {args.seed}", flush=True)
    cpus = sorted(os.sched_getaffinity(0))
    args.all_cpus, args.cpus = ",".join(map(str, cpus)), cpus
    if len(cpus) >= 8:
        args.cpus = cpus[: len(cpus) // 2]
        os.sched_setaffinity(0, cpus[len(cpus) // 2 :])
    os.makedirs(args.out, exist_ok=True)
    names = [n for n in args.only.split(",") if n]
    if args.llama_server and not any(n.startswith("llama") for n in names):
        names += [f"llama-{how}-{n}" for n in (1, 16) for how in ("graphs", "eager")]
    if args.vllm and not any(n.startswith("vllm") for n in names):
        names += ["vllm-1", "vllm-16"]
    until, attached, deaths, rows = time.monotonic() + args.limit, 0, 0, []
    for i, name in enumerate(names):
        now = time.monotonic()
        if now + args.long + 40 > until:
            print(f"{name}: skipped, the time is over", flush=True)
            continue
        a, d, figures = measure(name, args, 18080 + i, now + (until - now) / (len(names) - i))
        attached, deaths = attached + a, deaths + d
        rows.append({"program": name, **figures})
        print(f"{name}: " + ", ".join(f"{k} {v}" for k, v in figures.items()), flush=True)
        with open(f"{args.out}/server-cost.json", "w") as out:
            json.dump({"seed": args.seed, "programs": rows}, out, indent=1)
    print_table(rows)
    print(f"attachments {attached}, deaths {deaths}")
    sys.exit(1 if deaths else 0)


if __name__ == "__main__":
    main()
