"""Programs that hardly get a CPU, attached to again and again: none may be harmed.

Usage: starved.py --bin BIN_DIR [--workloads-dir build/gpu-workloads | --simulated build] [--programs 12] [--together 1]
[--only NAME,...] [--limit 300] [--attachments N] [--stay SECONDS] [--seed N] [--out DIR] Root. Each program is pinned
to one CPU, with two others on it that want all of it. Daemons come one after the other, each for one program or for
several of --together: windows, windows and continuous recordings in turns, ended by SIGTERM or SIGKILL, after a random
time of up to 2 s, or after --stay seconds; one in four takes CPU samples, switches, requests and allocations, too. Ends
with 1 at the first death, and prints its fault address, module and code; else at the limit, or after --attachments; one
in which no window was opened has shown nothing, and fails. Prints the seed, how far it is, and one table of how the
attachments ended. gpu_check.py --stage starved runs it on a GPU, scripts/test-starved.sh on the simulated one.
"""

import argparse
import collections
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
HOGS = 2  # beside each program
READY = 120.0  # s that a program or a daemon may take to be ready
IN = 20.0  # s that an agent is waited for
HOG = "while True: pass"
SAYS = 60.0  # s between two words of how far it is
PARTS = {  # of the time for which threads were held, as the daemon's log names them
    "held_in_windows": ("held_in_windows", "threads held before the daemon's end"),
    "held": ("held_1_2_5_10_more_ms", "threads held in all"),
    "drain": ("drain", "removals and flushes, until all threads were outside"),
    "cpu_wait": ("cpu_wait", "removals and flushes, waits for a CPU"),
    "work": ("work", "removals and flushes, the rest"),
}
ENDS = ["windows", "kept", "disabled", "starved"]
HOLDS = ["1 ms", "2 ms", "5 ms", "10 ms", "longer"]  # how long threads were held at most
AGENT_ALONE = ["--cpu-sampling-frequency-hz", "0", "--scheduling=false", "--memory=false", "--requests", "off"]

SIMULATED = {
    "eager": "until { launch 20 kernel=k_us5; sync; spin 100us }",
    "graphs": "stream-new nonblocking; graph 8 stream=1 kernel=n_us1; until { "
    "graph-launch stream=1; launch 3 kernel=k_us1 stream=1; ssync stream=1; spin 50us }",
    "graphs and launches": "thread 2 nowait { stream-new nonblocking; repeat 1000000000 { launch 3 kernel=k_us5 "
        "stream=1; ssync stream=1; spin 30us } }; stream-new nonblocking; graph 8 stream=1 kernel=n_us1; until { "
        "graph-launch stream=1; ssync stream=1; spin 50us }",
    "streams": "thread 3 nowait { stream-new nonblocking; repeat 1000000000 { launch 3 kernel=k_us5 stream=1; ssync stream=1; spin 30us } }; "
    "until { launch 2; sync; sleep 1ms }",
    "allocations": "until { malloc 4096 x20; launch 2 kernel=k_us2; free 20; sync }",
    "copies": "stream-new nonblocking; until { h2d 65536 x3 async pinned stream=1; launch 2 stream=1; "
    "d2h 4096 x2 stream=1; ssync stream=1 }",
    "no waits": "stream-new nonblocking; until { launch 30 kernel=k_us5 stream=1; event-record 1 stream=1; query "
        "stream=1; sleep 1ms }",
}
REAL = ["plain", "graphs", "streams", "churn", "graph_mixed", "graph_rare"]


def read(path):
    """Returns the text of a file, which may be gone."""
    try:
        with open(path, errors="replace") as f:
            return f.read()
    except OSError:
        return ""


def milliseconds(duration):
    """Returns a duration as Go writes it, which ends with a unit."""
    units = {"h": 3.6e6, "m": 6e4, "s": 1e3, "ms": 1.0, "µs": 1e-3, "ns": 1e-6}
    return sum(float(n) * units[unit] for n, unit in re.findall(r"([\d.]+)(h|ms|m|s|µs|ns)", duration))


class Program:
    """One program, its hogs, and what came of its attachments."""

    def __init__(self, check, number, name, command, env):
        self.check, self.number, self.name, self.command, self.env = check, number, name, command, env
        cpus = sorted(os.sched_getaffinity(0))
        self.cpu, self.log = cpus[number % len(cpus)], f"{check.out}/starved-{number}.log"
        self.hogs_wanted = HOGS if number < len(cpus) else 0  # one that shares its CPU shares the hogs
        self.counts, self.process, self.hogs = collections.Counter(), None, []
        self.holds = {part: collections.Counter() for part in PARTS}
        self.longest, self.ends = dict.fromkeys(PARTS, "0s"), collections.Counter()

    def pinned(self, command, **more):
        return subprocess.Popen(["taskset", "-c", str(self.cpu), *command], **more)

    def said(self):
        return read(self.log)

    def start(self):
        self.hogs = [self.pinned([sys.executable, "-c", HOG]) for _ in range(self.hogs_wanted)]
        with open(self.log, "w") as out:
            self.process = self.pinned(
                self.command, stdin=subprocess.PIPE, stdout=out, stderr=out, env=dict(os.environ, **self.env)
            )
        end = time.monotonic() + READY
        while "ready" not in self.said():
            if self.process.poll() is not None or time.monotonic() > end:
                raise SystemExit(f"{self.name} does not begin: {self.said()[-500:]}")
            time.sleep(0.05)

    def died(self, after):
        """Says what it died of, where it has, and ends the campaign."""
        if self.process.poll() is None:
            return
        self.counts["deaths"] += 1
        last = [line for line in self.said().splitlines() if "ready" not in line][-6:]
        self.check.stop(
            f"DEAD  {self.name} ({self.number}) ended with {self.process.returncode} after attachment "
            f"{self.counts['attachments']}: {after}\n        " + "\n        ".join(last)
        )

    def tally(self, said, how):
        """Counts one way in which this attachment ended, by what the daemon's log says of this program."""
        lines = [line for line in said.splitlines() if f'"pid": {self.process.pid},' in line]
        has_agent = any("an agent is in the process" in line for line in lines)
        ends = [re.search(r'"windows": (\d+).*"end": "(\w+)"', line) for line in lines]
        windows, last = next((m.groups() for m in reversed(ends) if m), (0, ""))
        self.counts["attachments"] += 1
        self.counts["windows"] += int(windows)
        for line in lines:
            if m := re.search(r'"windows": (\d+), "kept": (\d+), "disabled": (\d+), "starved": (\d+)', line):
                self.ends.update(dict(zip(ENDS, map(int, m.groups()))))
            for part, (key, _) in PARTS.items():
                if m := re.search(rf'"{key}": \[([^]]*)\], "{part}_longest": "([^"]+)"', line):
                    self.holds[part].update(dict(zip(HOLDS, map(int, m[1].split(",")))))
                    self.longest[part] = max(self.longest[part], m[2], key=milliseconds)
        if how == signal.SIGKILL:
            self.counts["killed" if has_agent else "killed on its way in"] += 1
        elif not has_agent:
            self.counts["stopped on its way in"] += 1
        else:
            self.counts[last or "ended by itself"] += 1

    def end(self):
        """It must go on to its own end; one that reads nothing is left at it."""
        if self.name == "server" or self.process.poll() is not None:
            return
        try:
            self.process.communicate(b"quit\n", timeout=60)
        except subprocess.TimeoutExpired:
            self.counts["did not end"] += 1
        if self.process.returncode:
            self.counts["ended badly"] += 1
            print(f"BAD END  {self.name} ended with {self.process.returncode}: {self.said()[-500:]}", flush=True)

    def kill(self):
        for p in [*self.hogs, self.process]:
            if p and p.poll() is None:
                p.kill()
                p.wait()


class Group:
    """Programs that have their daemons together."""

    def __init__(self, check, number, programs):
        self.check, self.programs, self.counts = check, programs, collections.Counter()
        self.socket = f"/tmp/inferscope-starved-{os.getpid()}-{number}.sock"
        self.log = f"{check.out}/daemon-{number}.log"

    def attach(self, rng):
        """One daemon, from its start to its end, for one program or for all."""
        programs = rng.choice([self.programs, self.programs, self.programs, [rng.choice(self.programs)]])
        kind = rng.choice(["windows", "windows", "continuous", "turns"])
        how = rng.choice([signal.SIGTERM, signal.SIGTERM, signal.SIGKILL])
        lasts = rng.uniform(0.2, rng.choice([0.4, 0.8, 2.0]))
        lasts = min(self.check.stay, max(0, self.check.left() - 10)) if self.check.stay else lasts
        flags = [
            "--gpu", "continuous" if kind == "continuous" else "windows", "--gpu-window", "50ms", "--gpu-period",
            "120ms", "--overhead-budget", "0", "--trace-size-mb", "20", "--socket", self.socket,
        ]
        flags += [word for p in programs for word in ("--pid", str(p.process.pid))]
        flags += rng.choice([[], AGENT_ALONE, AGENT_ALONE, AGENT_ALONE])
        with open(self.log, "w") as out:
            d = subprocess.Popen([f"{self.check.bin}/inferscoped", *flags], stdout=out, stderr=out)
        if rng.random() < 0.9:  # the others end while agents are on their way in
            self.until_in(d, programs)
        end = time.monotonic() + lasts
        while time.monotonic() < end and self.all_live(programs) and d.poll() is None:
            if kind == "turns" and os.path.exists(self.socket):
                self.record(rng.choice(programs).process.pid)
            time.sleep(0.05)
        d.send_signal(how)
        try:
            d.wait(60)
        except subprocess.TimeoutExpired:
            self.counts["daemons that hung"] += 1
            self.show_hung(d)
            d.kill()
            d.wait()
        for p in programs:
            p.tally(self.said(), how)
        time.sleep(rng.choice([0, 0, rng.uniform(0, 1)]))
        return f"{kind}, {len(programs)} together, {lasts:.1f} s, {how.name}; the daemon's log: {self.log}"

    def show_hung(self, daemon):
        """Prints where the threads of a daemon wait that did not end; its log is kept, with the stacks of Go."""
        tasks = f"/proc/{daemon.pid}/task"
        for tid in os.listdir(tasks):
            stack = [line.split()[-1] for line in read(f"{tasks}/{tid}/stack").splitlines()]
            state = read(f"{tasks}/{tid}/stat").rpartition(")")[2].split()[:1]
            if stack and not stack[0].startswith("futex"):
                print(f"HUNG  {read(f'{tasks}/{tid}/comm').strip()} {''.join(state)} {' < '.join(stack[:8])}")
        for pid in filter(str.isdigit, os.listdir("/proc")):  # one of them may hold the lock that it waits for
            for tid in os.listdir(f"/proc/{pid}/task") if os.path.exists(f"/proc/{pid}/task") else []:
                name, _, rest = read(f"/proc/{pid}/task/{tid}/stat").rpartition(")")
                if rest.split()[:1] == ["D"]:
                    stack = [line.split()[-1] for line in read(f"/proc/{pid}/task/{tid}/stack").splitlines()]
                    print(f"HUNG  besides {name}) D {' < '.join(stack[:12])}")
        daemon.send_signal(signal.SIGQUIT)
        try:
            daemon.wait(10)
        except subprocess.TimeoutExpired:
            print("HUNG  it did not end at SIGQUIT")
        kept = f"{self.log}.hung-{self.counts['daemons that hung']}"
        shutil.copy(self.log, kept)
        kernel = subprocess.run(["dmesg"], capture_output=True, text=True).stdout.splitlines()[-12:]
        print(f"HUNG  its log: {kept}; longest time without a tick of this script: {self.check.longest:.1f} s; the "
            "kernel's last words:\n        " + "\n        ".join(kernel), flush=True)

    def said(self):
        return read(self.log)

    def all_live(self, programs):
        return all(p.process.poll() is None for p in programs)

    def until_in(self, daemon, programs):
        """Waits for the agents, which on a CPU that is taken can take their time."""
        end = time.monotonic() + min(IN, max(0, self.check.left() - 5))
        while time.monotonic() < end and daemon.poll() is None and self.all_live(programs):
            if self.said().count("an agent is in the process") >= len(programs):
                return
            time.sleep(0.1)

    def record(self, pid):
        """A recording of all of a moment, by the client: windows, then continuous, then windows again."""
        try:
            subprocess.run(
                [
                    f"{self.check.bin}/inferscope", "record", "--pid", str(pid), "--socket", self.socket, "--for",
                    "300ms", "--gpu", "continuous", "-o", f"{self.log}.isc.zip", "--force",
                ],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=20,
            )
        except subprocess.TimeoutExpired:
            pass

    def run(self, seed):
        rng = random.Random(seed)
        try:
            for p in self.programs:
                p.start()
            while self.check.goes_on():
                after = self.attach(rng)
                for p in self.programs:
                    p.died(after)
            for p in self.programs:
                p.end()
        except (Exception, SystemExit) as e:  # one group must not take the others with it
            self.counts["broken off"] += 1
            self.check.stop(f"BROKEN  {', '.join(p.name for p in self.programs)}: {e}")
        finally:
            for p in self.programs:
                p.kill()


class Campaign:
    def __init__(self, args):
        self.bin, self.out, self.wanted = os.path.abspath(args.bin), args.out, args.attachments
        self.stay = args.stay
        self.began, self.stopped, self.longest = time.monotonic(), False, 0.0
        self.deadline = self.began + args.limit
        os.makedirs(self.out, exist_ok=True)
        kinds = self.simulated(args.simulated) if args.simulated else self.real(args.workloads_dir)
        if args.only:
            kinds = [k for k in kinds if k[0] in args.only.split(",")]
        if not kinds:
            raise SystemExit("there is no program to starve: scripts/gpu-workloads.sh, or --simulated build")
        self.programs = [Program(self, i, *kinds[i % len(kinds)]) for i in range(args.programs)]
        together = [self.programs[i : i + args.together] for i in range(0, args.programs, args.together)]
        self.groups = [Group(self, i, programs) for i, programs in enumerate(together)]

    def left(self):
        return self.deadline - time.monotonic()

    def total(self):
        return sum((one.counts for one in [*self.programs, *self.groups]), collections.Counter())

    def goes_on(self):
        done = self.total()["attachments"]
        return not self.stopped and self.left() > 8 and not (self.wanted and done >= self.wanted)

    def stop(self, why):
        self.stopped = True
        print(why, flush=True)

    def simulated(self, build):
        build = os.path.abspath(build)
        env = {
            "LD_LIBRARY_PATH": f"{build}/cudasim/r580:{build}/cudasim",
            "CUDASIM_CUPTI_LOCK": "1",
            "CUDASIM_CUPTI_FINALIZE_NS": "2000000",
            "CUDASIM_CUPTI_STALL_NS": "40000000",
            "CUDASIM_CUPTI_WORK_NS": "3000000",
            "VICTIM_FAULTS": "1",
        }
        kinds = [(name, [f"{build}/victims/victim", script], env) for name, script in SIMULATED.items()]
        server = [f"{HERE}/../../testdata/victims/victim.py", "--requests", "0", "--seconds", "100000"]
        return [*kinds, ("server", [sys.executable, *server], dict(env, LD_PRELOAD=self.fault_library()))]

    def fault_library(self):
        """Shows what a program dies of whose own code does not."""
        library = os.path.abspath(f"{self.out}/fault.so")
        subprocess.run(
            ["cc", "-O1", "-shared", "-fPIC", "-x", "c", "-o", library, "-", f"-I{HERE}"],
            check=True,
            text=True,
            input='#include "fault.h"\n__attribute__((constructor)) static void show(void) { fault_show(); }\n',
        )
        return library

    def real(self, folder):
        env = {"FAULT_LIBRARY": self.fault_library()}
        kinds = [(name, [f"{folder}/{name}"], {}) for name in REAL if os.path.exists(f"{folder}/{name}")]
        if (
            subprocess.run(
                [sys.executable, "-c", "import torch; assert torch.cuda.is_available()"], capture_output=True
            ).returncode
            == 0
        ):
            torch = f"{HERE}/workloads/torch_decode.py"
            kinds += [(f"torch {mode}", [sys.executable, torch, "--mode", mode], env) for mode in ("eager", "graph")]
            kinds.append(("python server", [sys.executable, f"{HERE}/starved_server.py"], env))
        return kinds

    def run(self, seed):
        threads = [threading.Thread(target=g.run, args=(f"{seed}-{i}",)) for i, g in enumerate(self.groups)]
        threading.Thread(target=self.tick, daemon=True).start()
        for t in threads:
            t.start()
        for t in threads:
            while t.is_alive():
                t.join(SAYS)
                if t.is_alive():
                    self.say()
        return self.table()

    def tick(self):
        """Measures for how long this script itself got no CPU: a daemon then hung no longer than the machine did."""
        last = time.monotonic()
        while True:
            time.sleep(0.2)
            now = time.monotonic()
            self.longest, last = max(self.longest, now - last), now

    def say(self):
        total, seconds = self.total(), time.monotonic() - self.began
        print(f"{seconds:.0f} s: {total['attachments']} attachments, {total['deaths']} deaths, longest time without a "
            f"tick {self.longest:.1f} s", flush=True)

    def table(self):
        total = self.total()
        columns = sorted(total, key=lambda c: (c != "attachments", c != "deaths", c != "windows", c))
        rows = (
            [["program", *columns]]
            + [[p.name, *(str(p.counts[c]) for c in columns)] for p in self.programs]
            + [["all", *(str(total[c]) for c in columns)]]
        )
        widths = [max(len(r[i]) for r in rows) for i in range(len(columns) + 1)]
        print()
        for r in rows:
            print("  ".join(c.ljust(w) for c, w in zip(r, widths)).rstrip())
        ends = sum((p.ends for p in self.programs), collections.Counter())
        print(f"\n{ends['windows']} windows of daemons that were not killed: {ends['kept']} kept, {ends['disabled']} "
            f"disabled; {ends['starved']} of these because the thread that removes CUPTI waits for CPUs")
        for part, (_, label) in PARTS.items():
            holds = sum((p.holds[part] for p in self.programs), collections.Counter())
            longest = max((p.longest[part] for p in self.programs), key=milliseconds)
            print(f"{label}: {', '.join(f'{holds[h]} for {h}' for h in HOLDS)}; the longest {longest}")
        return total


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--bin", default="bin")
    p.add_argument("--workloads-dir", default="build/gpu-workloads")
    p.add_argument("--simulated", default="", help="the build folder of the simulated CUDA and its victims")
    p.add_argument("--programs", type=int, default=12)
    p.add_argument("--together", type=int, default=1, help="programs that share a daemon, as a rule")
    p.add_argument("--only", default="", help="names of programs, with commas between them")
    p.add_argument("--limit", type=float, default=300, help="seconds")
    p.add_argument("--seed", type=int, default=int(time.time()))
    p.add_argument("--attachments", type=int, default=0, help="end after so many; fewer within the limit fail")
    p.add_argument("--stay", type=float, default=0, help="seconds that each daemon stays")
    p.add_argument("--out", default="build/starved")
    args = p.parse_args()
    print(f"seed {args.seed}", flush=True)
    campaign = Campaign(args)
    total = campaign.run(args.seed)
    minutes = (time.monotonic() - campaign.began) / 60
    bad = [c for c in ("deaths", "broken off", "ended badly", "did not end", "daemons that hung") if total[c]]
    if total["attachments"] < args.attachments:
        bad.append(f"fewer than {args.attachments} attachments")
    if not total["windows"]:
        bad.append("no window was opened")
    print(
        f"\n{total['attachments']} attachments, {total['deaths']} deaths, {total['windows']} windows "
        f"in {minutes:.1f} minutes ({total['attachments'] / minutes:.0f} a minute)"
        + (f"; FAIL: {', '.join(bad)}" if bad else "")
    )
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
