#!/usr/bin/env python3
"""Compares what a report says of NCCL's collectives on several GPUs with what the program did.

    sudo python3 test/gpu/collectives_check.py --bin bin [--out DIR] [--steps 300] [--attachments 6]

Two programs (ranks.py): one process for each of two GPUs, and one process with both. Checked are the calls and bytes of
each operation, the skew that a straggler of 1 ms on rank 1 makes against the clocks of the ranks themselves (within 50
us), and the exposed communication against the union of the kernels that the CSV export has. Then the daemon is attached
and detached with its default settings while steps run. After each attachment each process is asked whether it lives; a
death is printed with the address and module of its fault. Exit code 1: something failed.
"""

import argparse
import csv
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
STRAGGLE = 1000  # us
SKEW_GOAL = 50_000  # ns
WARM = 10  # steps in which agents come in
EXACT = ("--gpu", "continuous", "--overhead-budget", "0")


class Program:
    """ranks.py: one process with both GPUs, or the parent of one for each."""

    def __init__(self, args, kind):
        self.log = open(os.path.join(args.out, f"{kind}.log"), "w+")
        self.p = subprocess.Popen(
            [sys.executable, f"{HERE}/ranks.py", kind], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log,
            text=True, env={**os.environ, "LD_PRELOAD": args.fault},
        )
        self.pid, self.kind = self.p.pid, kind
        self._answer()

    def _answer(self):
        while line := self.p.stdout.readline():
            if line.startswith("["):  # NCCL may print its version
                return json.loads(line)
        raise Harm(f"{self.kind} ended with {self.p.wait()}: {open(self.log.name).read()[-3000:]}")

    def start(self, steps, straggle=0, covered=0):
        print(f"run {steps} {straggle} {covered}", file=self.p.stdin, flush=True)

    def run(self, *numbers):
        """Runs steps and returns what each process says of them."""
        self.start(*numbers)
        return self._answer()

    def end(self):
        print("quit", file=self.p.stdin, flush=True)
        if code := self.p.wait(60):
            raise Harm(f"{self.kind} ended with {code}: {open(self.log.name).read()[-3000:]}")


class Harm(Exception):
    pass


class Daemon:
    """inferscoped on a program."""

    attachments = 0

    def __init__(self, args, program, *flags):
        Daemon.attachments += 1
        self.args, self.program = args, program
        self.socket, self.log = tempfile.mktemp(prefix="collectives-"), os.path.join(args.out, "inferscoped.log")
        mark, out = os.path.getsize(self.log) if os.path.exists(self.log) else 0, open(self.log, "a")
        self.p = subprocess.Popen(
            [f"{args.bin}/inferscoped", "--pid", str(program.pid), "--socket", self.socket, *flags],
            stderr=out,
            stdout=out,
        )
        until = time.monotonic() + 60
        while b"ready" not in open(self.log, "rb").read()[mark:]:
            if self.p.poll() is not None or time.monotonic() > until:
                raise Harm(f"inferscoped did not come up: {open(self.log).read()[-1500:]}")
            time.sleep(0.02)

    def client(self, *words):
        done = subprocess.run(
            [f"{self.args.bin}/inferscope", *words, "--socket", self.socket], capture_output=True, text=True
        )
        if done.returncode:
            raise Harm(f"inferscope {' '.join(words)}: {done.stderr[-800:]}")
        return done.stdout

    def agents(self):
        return json.loads(self.client("status", "--json")).get("agents") or []

    def await_agents(self, n, *run):
        """Runs steps, at whose calls agents come in, until they record in so many processes. Returns what was said of
        them."""
        until, said = time.monotonic() + 30, []
        while sum(a["state"] == "running" for a in self.agents()) < n:
            if time.monotonic() > until:
                raise Harm(f"agents: {self.agents()}")
            said.append(self.program.run(WARM, *run))
        return said

    def seen(self, name):
        """The report of all that is held, and the rows of the kernels of the same time as near as can be."""
        csv_file, text = os.path.join(self.args.out, f"{name}.csv"), os.path.join(self.args.out, f"{name}.txt")
        report = self.client("report", str(self.program.pid), "--json")
        self.client("export", "--pid", str(self.program.pid), "--to", "csv", "-o", csv_file)
        open(text, "w").write(self.client("report", str(self.program.pid), "--full", "--no-pager", "-f", "text"))
        return json.loads(report), list(csv.DictReader(open(csv_file)))

    def stop(self):
        self.p.send_signal(signal.SIGTERM)
        if self.p.wait(60):
            raise Harm(f"inferscoped ended with {self.p.returncode}: {open(self.log).read()[-1500:]}")


class Checks:
    failed = 0

    def check(self, what, value, good):
        self.failed += not good
        print(f"{'ok  ' if good else 'FAIL'}  {what:44} {value}", flush=True)


def counted(report):
    """Calls and bytes by process and operation."""
    out = {}
    for c in (report.get("collectives") or {}).get("communicators") or []:
        for o in c["operations"]:
            calls, size = out.setdefault(c["pid"], {}).get(f"{o['name']} {o['type']}", (0, 0))
            out[c["pid"]][f"{o['name']} {o['type']}"] = [calls + o["calls"], size + o["bytes"]]
    return out


def total(*expected):
    """Adds up what was done, calls and bytes by operation."""
    out = {}
    for e in expected:
        for name, (calls, size) in e.items():
            before = out.get(name, (0, 0))
            out[name] = [before[0] + calls, before[1] + size]
    return out


def union(spans):
    """Length of a union of (from, to)."""
    total, end = 0, 0
    for low, high in sorted(spans):
        total, end = total + max(0, high - max(low, end)), max(end, high)
    return total


def exposed(rows):
    """ns for which communication ran and nothing else, summed over the GPUs of each process."""
    by = {}
    for r in rows:
        begin = int(r["start_ns"])
        by.setdefault((r["pid"], r["device"]), []).append(
            (begin, begin + int(r["duration_ns"]), r["name"].startswith("nccl"))
        )
    return sum(union(k[:2] for k in spans) - union(k[:2] for k in spans if not k[2]) for spans in by.values())


def told_exposed(report):
    parts = ((report.get("diagnosis") or {}).get("breakdown") or {}).get("parts") or []
    return sum(p["ns"] for p in parts if p["key"] in ("communication", "exposed-communication"))


def causes(report):
    return [f["cause"] for f in (report.get("diagnosis") or {}).get("findings") or []]


def exactly(args, checks, program, processes, name, *run):
    """Counts, bytes and exposed time of steps that run while everything is recorded. Returns the report and what the
    program said."""
    daemon = Daemon(args, program, *EXACT)
    runs = [*daemon.await_agents(processes, *run), program.run(args.steps, *run)]
    time.sleep(0.5)
    report, rows = daemon.seen(name)
    daemon.stop()
    told = counted(report)
    wanted = total(*(said[0]["expect"] for said in runs))
    checks.check(
        f"{name}: calls and bytes of {processes} processes",
        f"{told} of {wanted}",
        len(told) == processes and all(t == wanted for t in told.values()),
    )
    own, theirs = told_exposed(report), exposed(rows)
    checks.check(
        f"{name}: exposed ms, by the kernels' union",
        f"{own / 1e6:.3f} {theirs / 1e6:.3f}",
        theirs > 0 and abs(own - theirs) <= 0.02 * theirs,
    )
    print(
        f"      {name}: step {runs[-1][0]['step_ns'] / 1e6:.3f} ms, verdict {report['diagnosis']['verdict']}, findings "
        f"{causes(report)}",
        flush=True,
    )
    return report, runs


def skew(args, checks, program):
    report, runs = exactly(args, checks, program, 2, "straggler", STRAGGLE)
    truth = [abs(a - b) for said in runs for a, b in zip(*(s["times"] for s in said))]
    told = (report["collectives"] or {}).get("skew") or {"p50_ns": 0, "collectives": 0, "ranks": []}
    off = told["p50_ns"] - statistics.median(truth)
    checks.check(
        "straggler: skew p50 us, by the ranks' clocks",
        f"{told['p50_ns'] / 1e3:.1f} {statistics.median(truth) / 1e3:.1f} of {told['collectives']}",
        abs(off) <= SKEW_GOAL,
    )
    last = [r["came_last"] for r in told["ranks"]]
    checks.check("straggler: who came last", last, len(last) == 2 and max(last) >= 0.95 * told["collectives"])
    checks.check("straggler: is named", causes(report)[:2], "straggler" in causes(report)[:1])


def attachments(args, checks, program, processes):
    """Default settings, attached and detached while steps run."""
    before = program.run(args.steps)[0]["step_ns"]
    for _ in range(args.attachments):
        program.start(max(50, int(4e9 / before)))
        daemon = Daemon(args, program)
        program._answer()
        windows = {a["pid"]: a["windows"] for a in daemon.agents()}
        daemon.stop()
        program.run(20)  # it lives
    print(
        f"      {program.kind}: {args.attachments} attachments, last windows {list(windows.values())}, step ms before "
        f"and after {before / 1e6:.3f} {program.run(args.steps)[0]['step_ns'] / 1e6:.3f}",
        flush=True,
    )


def fault_library(out):
    library = os.path.abspath(f"{out}/fault.so")
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-x", "c", "-o", library, "-", f"-I{HERE}"], check=True, text=True,
                   input='#include "fault.h"\n__attribute__((constructor)) static void show(void) { fault_show(); }\n')
    return library


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--bin", default="bin", help="folder with inferscope and inferscoped")
    a.add_argument("--out", default="build/gpu", help="folder for reports and logs")
    a.add_argument("--steps", type=int, default=300)
    a.add_argument("--attachments", type=int, default=6, help="of each program, with default settings")
    args = a.parse_args()
    os.makedirs(args.out, exist_ok=True)
    args.fault = fault_library(args.out)
    checks, deaths = Checks(), 0
    for kind, processes in (("ranks", 2), ("both", 1)):
        program = None
        try:
            program = Program(args, kind)
            exactly(args, checks, program, processes, kind)
            if kind == "ranks":
                exactly(args, checks, program, processes, "covered", 0, 1)
                skew(args, checks, program)
            attachments(args, checks, program, processes)
            program.end()
        except (Harm, OSError, KeyError, TypeError, ValueError) as e:
            checks.check(kind, repr(e), False)
            if program and program.p.poll() is not None:
                deaths += 1
            elif program:
                program.p.kill()
    print(f"attachments {Daemon.attachments}, deaths {deaths}")
    return 1 if checks.failed or deaths else 0


if __name__ == "__main__":
    sys.exit(main())
