"""Programs that hardly get a CPU, attached to again and again: none may be harmed.

Usage: starved.py --bin BIN_DIR [--workloads-dir build/gpu-workloads | --simulated build] [--programs 12] [--only
NAME,...] [--limit 300] [--seed N] [--out DIR] Root. Each program is pinned to one CPU, with two others on it that want
all of it, and has daemons of its own one after the other: windows, windows and continuous recordings in turns, ended by
SIGTERM or SIGKILL, after a random time. Prints the seed, each death at once - fault address, module and code where the
program could still say so - and one table at the end; ends with 1 where a program died. gpu_check.py --stage starved
runs it on a GPU, scripts/test-starved.sh on the simulated one.
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


class Program:
    """One program, its hogs, and what came of its attachments."""

    def __init__(self, check, number, name, command, env):
        self.check, self.number, self.name, self.command, self.env = check, number, name, command, env
        self.cpu = sorted(os.sched_getaffinity(0))[number % len(os.sched_getaffinity(0))]
        self.log = f"{check.out}/starved-{number}.log"
        self.counts, self.process, self.stop = collections.Counter(), None, False

    def pinned(self, command, **more):
        return subprocess.Popen(["taskset", "-c", str(self.cpu), *command], **more)

    def start(self):
        out = open(self.log, "w")
        self.process = self.pinned(
            self.command, stdin=subprocess.PIPE, stdout=out, stderr=out, env=dict(os.environ, **self.env)
        )
        out.close()
        end = time.monotonic() + READY
        while "ready" not in open(self.log, errors="replace").read():
            if self.process.poll() is not None or time.monotonic() > end:
                raise SystemExit(f"{self.name} does not begin: {open(self.log, errors='replace').read()[-500:]}")
            time.sleep(0.05)

    def died(self, after):
        """Says what it died of, where it has, and begins it anew."""
        if self.process.poll() is None:
            return False
        said = [line for line in open(self.log, errors="replace").read().splitlines() if "ready" not in line][-6:]
        self.counts["deaths"] += 1
        if os.path.exists(f"{self.log}.daemon"):
            shutil.copy(f"{self.log}.daemon", f"{self.log}.death-{self.counts['deaths']}")
        print(
            f"DEAD  {self.name} ({self.number}) ended with {self.process.returncode} after attachment "
            f"{self.counts['attachments']}: {after}\n        "
            + "\n        ".join(said),
            flush=True,
        )
        self.start()
        return True

    def attach(self, rng):
        """One daemon, from its start to its end."""
        kind, how = (
            rng.choice(["windows", "windows", "continuous", "turns"]),
            rng.choice([signal.SIGTERM, signal.SIGTERM, signal.SIGKILL]),
        )
        lasts, socket_path, log = (
            rng.uniform(0.3, 3.0),
            f"/tmp/inferscope-starved-{os.getpid()}-{self.number}.sock",
            f"{self.log}.daemon",
        )
        flags = [
            "--gpu", "continuous" if kind == "continuous" else "windows", "--gpu-window", "50ms", "--gpu-period",
            "120ms", "--overhead-budget", "0", "--trace-size-mb", "20",
        ]
        with open(log, "w") as out:
            d = subprocess.Popen(
                [f"{self.check.bin}/inferscoped", "--pid", str(self.process.pid), "--socket", socket_path, *flags],
                stdout=out,
                stderr=out,
            )
        self.counts["attachments"] += 1
        if rng.random() < 0.9: # the others end while the agent is on its way in
            self.until_in(d, log)
        end = time.monotonic() + lasts
        while time.monotonic() < end and self.process.poll() is None and d.poll() is None:
            if kind == "turns" and os.path.exists(socket_path):
                self.record(socket_path)
            time.sleep(0.05)
        d.send_signal(how)
        try:
            d.wait(60)
        except subprocess.TimeoutExpired:
            d.kill()
            d.wait()
            self.counts["daemons that hung"] += 1
        self.tally(open(log, errors="replace").read(), how)
        time.sleep(rng.choice([0, 0, rng.uniform(0, 2)]))
        return f"{kind}, {lasts:.1f} s, {how.name}; the daemon's log: {log}"

    def until_in(self, daemon, log):
        """Waits for an agent, which on a CPU that is taken can take its time."""
        end = time.monotonic() + min(IN, max(0, self.check.left() - 5))
        while time.monotonic() < end and daemon.poll() is None and self.process.poll() is None:
            if "an agent is in the process" in open(log, errors="replace").read():
                return
            time.sleep(0.1)

    def record(self, path):
        """A recording of all of a moment, by the client: windows, then continuous, then windows again."""
        try:
            subprocess.run(
                [
                    f"{self.check.bin}/inferscope", "record", "--pid", str(self.process.pid), "--socket", path, "--for",
                    "300ms", "--gpu", "continuous", "-o", f"{self.log}.isc.zip", "--force",
                ],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=20,
            )
        except subprocess.TimeoutExpired:
            pass

    def tally(self, said, how):
        self.counts["killed" if how == signal.SIGKILL else "stopped"] += 1
        if "an agent is in the process" in said:
            self.counts["with an agent"] += 1
        for end in re.findall(r'"end": "(\w+)"', said):
            self.counts[f"last window {end}"] += 1
        m = re.findall(r'"windows": (\d+)', said)
        self.counts["windows"] += int(m[-1]) if m else 0

    def end(self):
        """It must go on to its own end; one that reads nothing is left at it."""
        if self.name == "server":
            return
        try:
            self.process.communicate(b"quit\n", timeout=60)
        except subprocess.TimeoutExpired:
            self.counts["did not end"] += 1
        if self.process.returncode:
            self.counts["ended badly"] += 1
            print(
                f"BAD END  {self.name} ended with {self.process.returncode}: "
                f"{open(self.log, errors='replace').read()[-500:]}",
                flush=True,
            )

    def run(self, seed):
        rng, hogs = (
            random.Random(seed),
            [
                self.pinned([sys.executable, "-c", HOG])
                for _ in range(HOGS)
                if self.number < len(os.sched_getaffinity(0))
            ],
        )
        try:
            self.start()
            while self.check.left() > 8:
                after = self.attach(rng)
                self.died(after)
            self.died("the last one")
            self.end()
        except Exception as e:  # one program must not take the others with it
            self.counts["broken off"] += 1
            print(f"BROKEN  {self.name}: {e}", flush=True)
        finally:
            for p in hogs + [self.process]:
                if p and p.poll() is None:
                    p.kill()
                    p.wait()


class Campaign:
    def __init__(self, args):
        self.bin, self.out, self.deadline = os.path.abspath(args.bin), args.out, time.monotonic() + args.limit
        os.makedirs(self.out, exist_ok=True)
        kinds = self.simulated(args.simulated) if args.simulated else self.real(args.workloads_dir)
        if args.only:
            kinds = [k for k in kinds if k[0] in args.only.split(",")]
        if not kinds:
            raise SystemExit("there is no program to starve: scripts/gpu-workloads.sh, or --simulated build")
        self.programs = [Program(self, i, *kinds[i % len(kinds)]) for i in range(args.programs)]

    def left(self):
        return self.deadline - time.monotonic()

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
        return kinds + [
            (
                "server",
                [sys.executable, f"{HERE}/../../testdata/victims/victim.py", "--requests", "0", "--seconds", "100000"],
                env,
            )
        ]

    def real(self, folder):
        library = os.path.abspath(f"{self.out}/fault.so")
        subprocess.run(
            ["cc", "-O1", "-shared", "-fPIC", "-x", "c", "-o", library, "-", f"-I{HERE}"],
            check=True,
            text=True,
            input='#include "fault.h"\n__attribute__((constructor)) static void show(void) { fault_show(); }\n',
        )
        env = {"FAULT_LIBRARY": library}
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
        threads = [threading.Thread(target=p.run, args=(f"{seed}-{p.number}",)) for p in self.programs]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        return self.table()

    def table(self):
        total = sum((p.counts for p in self.programs), collections.Counter())
        columns = sorted(total, key=lambda c: (c != "attachments", c != "with an agent", c != "deaths", c))
        rows = (
            [["program", *columns]]
            + [[p.name, *(str(p.counts[c]) for c in columns)] for p in self.programs]
            + [["all", *(str(total[c]) for c in columns)]]
        )
        widths = [max(len(r[i]) for r in rows) for i in range(len(columns) + 1)]
        print()
        for r in rows:
            print("  ".join(c.ljust(w) for c, w in zip(r, widths)).rstrip())
        return total


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--bin", default="bin")
    p.add_argument("--workloads-dir", default="build/gpu-workloads")
    p.add_argument("--simulated", default="", help="the build folder of the simulated CUDA and its victims")
    p.add_argument("--programs", type=int, default=12)
    p.add_argument("--only", default="", help="names of programs, with commas between them")
    p.add_argument("--limit", type=float, default=300, help="seconds")
    p.add_argument("--seed", type=int, default=int(time.time()))
    p.add_argument("--least", type=int, default=0, help="attachments that there must be")
    p.add_argument("--out", default="build/starved")
    args = p.parse_args()
    print(f"seed {args.seed}", flush=True)
    total = Campaign(args).run(args.seed)
    bad = [c for c in ("deaths", "broken off", "ended badly", "did not end") if total[c]]
    print(
        f"\n{total['attachments']} attachments, {total['deaths']} deaths, {total['windows']} windows"
        + (f"; FAIL: {', '.join(bad)}" if bad else "")
    )
    sys.exit(1 if bad or total["attachments"] < args.least else 0)


if __name__ == "__main__":
    main()
