#!/usr/bin/env python3
"""Compares what a report says of NCCL's collectives on several GPUs with what the program did.

    sudo python3 test/gpu/collectives_check.py --bin bin [--out DIR] [--steps 300] [--attachments 3]

It needs two GPUs and takes about four minutes; --only communicators needs one, and takes a minute. Programs (ranks.py;
--only runs one): one process for each of two GPUs (ranks), one process with both (both), one for each in which NCCL
logs its choices (choices), and one for each in which copy engines do the work (copies). Checked are

    calls and bytes of each operation, exactly; exposed communication against the union of the kernels in the CSV export
    the skew that a straggler of 1 ms on rank 1 makes, against the clocks of the ranks themselves, within 50 us
    work that is uneven in turn: the finding imbalance, and no straggler
    hangs of eight seconds, one before any GPU record: who is missing, and what NCCL's RAS says of it, beside what its
    port says when asked
    copies between GPUs: count and bytes exactly, bandwidth against the events of PyTorch's stream, within 10%
    a pipeline of two stages of one process: the finding pipeline-bubble, and its share against the stages' own times,
    within 5 points
    a pipeline of two processes, the second stage twice as long: the same, against the union of the kernels
    how the GPUs are connected, against nvidia-smi topo; the NUMA node of each GPU, against sysfs by the PCI address
    that nvidia-smi gives; where the host has two nodes, a rank on CPUs of the other one
    algorithm, protocol and channels of each operation, of sizes from 1 KB to 256 MB, chosen by NCCL and forced, against
    NCCL's own log (NCCL_DEBUG_SUBSYS=COLL,TUNING), exactly; groups of calls of one size, and of two, of which none is
    told
    all-gathers that copy engines carry out: calls and bytes exactly, GPU time against the events of PyTorch's stream;
    left out where NCCL takes kernels
    rank, number of ranks and hash of communicators made before the attach, two of each process, against NCCL's own
    log of their making
    attachments with default settings while steps run: each process lives after each

The parts that matter most run first; those that would begin after --limit seconds are left out, and listed. A death is
printed with the address and module of its fault. The table at the end has a line for each check. Exit code 1: something
failed.
"""

import argparse
import contextlib
import csv
import glob
import json
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

import common

HERE = os.path.dirname(os.path.abspath(__file__))
STRAGGLE = 1000  # us
SKEW_GOAL = 50_000  # ns
WARM = 10  # steps in which agents come in
OPERATIONS, REPEATS = 35, 20  # five operations of seven sizes, how often each runs
EXACT = ("--gpu", "continuous", "--overhead-budget", "0")


class Program:
    """ranks.py: one process with both GPUs, or the parent of one for each."""

    def __init__(self, args, kind):
        self.log = open(os.path.join(args.out, f"{kind}.log"), "w+")
        self.p = common.start(
            [sys.executable, f"{HERE}/ranks.py", kind], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log,
            text=True, env={**os.environ, "LD_PRELOAD": args.fault, **(logged(args) if kind == "choices" else {})},
        )
        self.pid, self.kind = self.p.pid, kind
        self._answer()

    def _answer(self):
        while line := self.p.stdout.readline():
            if line.startswith("["):  # NCCL may print its version
                return json.loads(line)
        raise Harm(f"{self.kind} ended with {self.p.wait()}: {open(self.log.name).read()[-3000:]}")

    def start(self, *words):
        print(*words, file=self.p.stdin, flush=True)

    def ask(self, *words):
        """Sends a command and returns what each process says."""
        self.start(*words)
        return self._answer()

    def run(self, *numbers):
        """Runs steps and returns what each process says of them."""
        return self.ask("run", *numbers)

    def end(self):
        print("quit", file=self.p.stdin, flush=True)
        if code := self.p.wait(60):
            raise Harm(f"{self.kind} ended with {code}: {open(self.log.name).read()[-3000:]}")


def logged(args):
    """What has NCCL write down each choice. Only the first rank does."""
    return {
        "NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,COLL,TUNING",
        "NCCL_DEBUG_FILE": os.path.join(os.path.abspath(args.out), "nccl.%p.log"),
    }


class Harm(Exception):
    pass


class Daemon:
    """inferscoped on a program."""

    attachments, all = 0, []

    def __init__(self, args, program, *flags):
        Daemon.attachments += 1
        Daemon.all.append(self)
        self.args, self.program = args, program
        self.socket, self.log = tempfile.mktemp(prefix="collectives-"), os.path.join(args.out, "inferscoped.log")
        mark, out = os.path.getsize(self.log) if os.path.exists(self.log) else 0, open(self.log, "a")
        self.p = common.start(
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

    def await_agents(self, n, *words):
        """Runs steps, at whose calls agents come in, until they record in so many processes. Returns what was said of
        them."""
        until, said = time.monotonic() + 30, []
        while sum(a["state"] == "running" for a in self.agents()) < n:
            if time.monotonic() > until:
                raise Harm(f"agents: {self.agents()}")
            said.append(self.program.ask(*(words or ("run", WARM))))
        return said

    def seen(self, name):
        """The report of all that is held, and the rows of the kernels of the same time as near as can be."""
        csv_file, text = os.path.join(self.args.out, f"{name}.csv"), os.path.join(self.args.out, f"{name}.txt")
        report = self.client("report", str(self.program.pid), "--json")
        self.client("export", "--pid", str(self.program.pid), "--to", "csv", "-o", csv_file)
        open(text, "w").write(self.client("report", str(self.program.pid), "--full", "--no-pager", "-f", "text"))
        return json.loads(report), list(csv.DictReader(open(csv_file)))

    @classmethod
    def kill_all(cls):
        """Ends those that a failed check has left."""
        for d in cls.all:
            if d.p.poll() is None:
                d.p.send_signal(signal.SIGTERM)
                try:
                    d.p.wait(20)
                except subprocess.TimeoutExpired:
                    d.p.kill()

    def stop(self):
        self.p.send_signal(signal.SIGTERM)
        if self.p.wait(60):
            raise Harm(f"inferscoped ended with {self.p.returncode}: {open(self.log).read()[-1500:]}")


class Checks:
    """What was checked, for the table at the end."""

    def __init__(self):
        self.rows, self.began = [], time.monotonic()

    def check(self, what, value, good):
        """good is None for what could not be checked."""
        mark = "SKIP" if good is None else "PASS" if good else "FAIL"
        self.rows.append((mark, what, str(value)))
        print(f"{mark}  {what:44} {value}", flush=True)

    def seconds(self):
        return time.monotonic() - self.began

    def failed(self):
        return sum(mark == "FAIL" for mark, _, _ in self.rows)

    def table(self):
        print(f"\n{'':4}  {'check':44} value (in {self.seconds():.0f} s)")
        for mark, what, value in self.rows:
            print(f"{mark}  {what:44} {value[:200]}")


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
    runs = [*daemon.await_agents(processes, "run", WARM, *run), program.run(args.steps, *run)]
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
    collectives = report.get("collectives") or {}
    ranks = [c.get("ranks", 0) for c in collectives.get("communicators") or []]
    good = min(ranks, default=0) >= 2 if "ras" in collectives else None
    checks.check(f"{name}: ranks of communicators, by NCCL's RAS", ranks, good)
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
    show_evidence(report, "straggler")


def show_evidence(report, cause):
    for e in (finding(report, cause) or {}).get("evidence") or []:
        print(f"      {e['text']}", flush=True)


def finding(report, cause):
    """The finding of a cause, None where there is none."""
    return next((f for f in (report.get("diagnosis") or {}).get("findings") or [] if f["cause"] == cause), None)


def uneven(args, checks, program):
    """Ranks that have more to compute in turn."""
    daemon = Daemon(args, program, *EXACT)
    daemon.await_agents(2, "run", WARM, 0, 0, 1)
    program.run(args.steps, 0, 0, 1)
    time.sleep(0.5)
    report, _ = daemon.seen("uneven")
    daemon.stop()
    found = finding(report, "imbalance")
    title = found["title"] if found else None
    checks.check("uneven: is named imbalance", f"{title}; findings {causes(report)}", bool(found))
    checks.check("uneven: no rank is a straggler", causes(report), "straggler" not in causes(report))


def ras_answer(out, *lines):
    """What NCCL's RAS says to a client (src/ras/client_support.cc), "" where nobody listens."""
    text = b""
    try:
        with socket.create_connection(("localhost", 28028), 2) as c:
            c.settimeout(5)
            c.sendall("".join(line + "\n" for line in ("client protocol 2", *lines)).encode())
            while part := c.recv(1 << 16):
                text += part
    except OSError as e:
        text += repr(e).encode()
    name = "ras." + "-".join(w.replace(" ", "_") for w in lines)
    open(os.path.join(out, name), "wb").write(text)
    return text.decode(errors="replace")


def hang_at_once(args, checks, program):
    """A hang before GPU records have begun, a second after the agents have come: RAS alone tells who is missing."""
    hang(args, checks, program, "hang at once", 0)


def hang_later(args, checks, program):
    hang(args, checks, program, "hang", 3)


def hang(args, checks, program, name, after_s):
    """A rank that does not come for eight seconds."""
    daemon = Daemon(args, program, *EXACT)
    daemon.await_agents(2)
    until = time.monotonic() + after_s
    program.run(50)
    while time.monotonic() < until:
        program.run(50)
    program.start("hang", 8)
    time.sleep(5)
    direct = ras_answer(args.out, "set format json", "verbose status")
    text = ras_answer(args.out, "verbose status")
    report, _ = daemon.seen(name.replace(" ", "-"))
    program._answer()
    program.run(20)
    daemon.stop()
    collectives = report.get("collectives") or {}
    hangs = collectives.get("hangs") or []
    missing = [m["pid"] for h in hangs for m in h["missing"]]
    waiting = [p for h in hangs for p in h["waiting"]]
    checks.check(
        f"{name}: is the verdict, one rank is missing",
        f"{report['diagnosis']['verdict']}, missing {missing}, waiting {waiting}",
        report["diagnosis"]["verdict"] == "hung" and len(missing) == 1 and len(waiting) == 1,
    )
    ras = collectives.get("ras") or {}
    print(f"      RAS asked directly: {len(direct)} bytes of JSON, {len(text)} of text: {args.out}/ras.*", flush=True)
    print("      " + "\n      ".join(text.splitlines()[-25:]), flush=True)
    if "SERVER PROTOCOL" not in text:
        checks.check(f"{name}: RAS answers", f"nobody at localhost:28028: {text[:100]!r}; report {ras}", not ras)
        return
    told = {r["pid"]: r for c in ras.get("communicators") or [] for r in c["ranks"]}
    checks.check(
        f"{name}: RAS is in the report, with both ranks",
        f"{sorted(told)}, version {ras.get('version')}",
        len(told) == 2 and set(missing) | set(waiting) == set(told),
    )
    lag = {p: (r.get("counts") or {}).get("AllReduce", -1) for p, r in told.items()}
    one = len(missing) == 1 and len(waiting) == 1
    checks.check(
        f"{name}: RAS counts one all-reduce less of it",
        lag,
        one and lag.get(waiting[0], 0) == lag.get(missing[0], 0) + 1 > 1,
    )


def pairs(report):
    """Copies between GPUs: count and bytes by pair, and bandwidth."""
    out = {}
    for p in (report.get("gpu") or {}).get("peer_copies") or []:
        out[f"{p['source']}>{p['destination']}"] = (p["count"], p["bytes"], p["bandwidth_bytes_per_second"])
    return out


def peer(args, checks, program):
    """Copies between two GPUs, which are recorded from a time on at which none is under way."""
    count, size = 40, 256 << 20
    daemon = Daemon(args, program, *EXACT)
    daemon.await_agents(1)
    program.ask("peer", 2, size)  # buffers
    time.sleep(0.5)
    before = pairs(daemon.seen("peer-before")[0])
    said = program.ask("peer", count, size)[0]
    time.sleep(1)
    report, _ = daemon.seen("peer")
    daemon.stop()
    after = pairs(report)
    for c in report["gpu"]["copies"]:
        way = f"{c['direction']}, {c['source']} to {c['destination']}"
        print(f"      {way}: {c['count']} copies, {c['bytes']} bytes", flush=True)
    for pair, (n, total_bytes) in said["peers"].items():
        got = [x - y for x, y in zip(after.get(pair, (0, 0, 0)), before.get(pair, (0, 0, 0)))]
        checks.check(f"peer {pair}: copies and bytes", f"{got[:2]} of {[n, total_bytes]}", got[:2] == [n, total_bytes])
        own = total_bytes / said["ns"][pair] * 1e9
        told = after.get(pair, (0, 0, 0))[2]
        checks.check(
            f"peer {pair}: GB/s, by events of the stream",
            f"{told / 1e9:.1f} {own / 1e9:.1f}",
            abs(told - own) <= 0.1 * own,
        )


def pipeline(args, checks, program):
    """Two stages, one after the other."""
    daemon = Daemon(args, program, *EXACT)
    daemon.await_agents(1, "pipe", 5)
    said = program.ask("pipe", args.steps // 3)[0]
    time.sleep(0.5)
    report, _ = daemon.seen("pipeline")
    daemon.stop()
    found = finding(report, "pipeline-bubble")
    told, truth = (found or {}).get("share", 0), sum(said["busy_ns"]) / (2 * said["ns"])
    checks.check("pipeline: bubbles are the first finding", causes(report), causes(report)[:1] == ["pipeline-bubble"])
    checks.check("pipeline: share, by the stages' own times", f"{told:.3f} {truth:.3f}", abs(told - truth) <= 0.05)
    show_evidence(report, "pipeline-bubble")


def intersection(a, b):
    """Length of what two unions of (from, to) have in common."""
    return union(a) + union(b) - union(a + b)


def bubbles(rows):
    """ns for which a GPU only communicated while another one computed, summed over GPUs."""
    computes, talks = {}, {}
    for r in rows:
        begin = int(r["start_ns"])
        to = talks if r["name"].startswith("nccl") else computes
        to.setdefault((r["pid"], r["device"]), []).append((begin, begin + int(r["duration_ns"])))
    out = 0
    for gpu, spans in talks.items():
        own = computes.get(gpu, [])
        others = [s for other, of in computes.items() if other != gpu for s in of]
        out += intersection(own + spans, others) - intersection(own, others)  # of its communication, less its own work
    return out


def stages(args, checks, program):
    """A pipeline of processes; the last stage takes twice as long."""
    daemon = Daemon(args, program, *EXACT)
    daemon.await_agents(2, "stages", 5, 2)
    said = program.ask("stages", args.steps, 2)
    time.sleep(0.5)
    report, rows = daemon.seen("stages")
    daemon.stop()
    found = finding(report, "pipeline-bubble")
    told, truth = (found or {}).get("share", 0), bubbles(rows) / max(1, report["diagnosis"]["breakdown"]["ns"])
    checks.check("stages: bubbles are the first finding", causes(report), causes(report)[:1] == ["pipeline-bubble"])
    checks.check("stages: share, by the kernels' union", f"{told:.3f} {truth:.3f}", abs(told - truth) <= 0.05 < truth)
    parts = " and ".join(f"{s['busy_ns'] / s['ns']:.3f}" for s in said)
    print(f"      stages: by their events the GPUs worked {parts} of the time", flush=True)
    show_evidence(report, "pipeline-bubble")


def nodes():
    """CPUs by NUMA node, of nodes that have some."""
    out = {}
    for path in glob.glob("/sys/devices/system/node/node[0-9]*/cpulist"):
        if ranges := open(path).read().strip():
            out[int(path.split("/")[-2][4:])] = {
                cpu for r in ranges.split(",") for cpu in range(int(r.split("-")[0]), int(r.split("-")[-1]) + 1)
            }
    return out


def place(pid, cpus):
    for tid in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(tid), cpus)


def far(args, checks, program):
    """Each rank on its GPU's NUMA node, but one, which is on another one."""
    cpus, gpus = nodes(), []
    if len(cpus) > 1:
        daemon = Daemon(args, program, *EXACT)
        daemon.await_agents(2)
        gpus = ((daemon.seen("near")[0].get("topology") or {}).get("gpus")) or []
        daemon.stop()
    if not gpus or any(g["node"] not in cpus for g in gpus):
        why = f"nodes with CPUs {sorted(cpus)}, GPUs' {[g['node'] for g in gpus]}"
        checks.check("far: a rank on another node", why, None)
        return
    other = next(n for n in sorted(cpus) if n != gpus[-1]["node"])
    for g in gpus:
        place(g["pid"], cpus[other if g is gpus[-1] else g["node"]])
    daemon = Daemon(args, program, *EXACT)  # it sees nothing from before
    daemon.await_agents(2)
    program.run(args.steps)
    report, _ = daemon.seen("far")
    daemon.stop()
    for g in gpus:
        place(g["pid"], set().union(*cpus.values()))
    shares = {}
    for x in report["topology"]["launchers"]:
        pid = report["topology"]["gpus"][x["gpu"]]["pid"]
        if x["ran_ns"]:
            shares.setdefault(pid, []).append(x["far_ns"] / x["ran_ns"])
    checks.check(
        "far: share of its time a thread was far, by pid",
        f"{shares}; far is {gpus[-1]['pid']}",
        len(shares) == len(gpus)
        and all(min(s) > 0.9 if p == gpus[-1]["pid"] else max(s) < 0.1 for p, s in shares.items()),
    )


def topology(args, checks, report):
    """The NUMA node of each GPU."""
    lines = subprocess.run(
        ["nvidia-smi", "--query-gpu=uuid,pci.bus_id", "--format=csv,noheader"], capture_output=True, text=True
    ).stdout.splitlines()
    truth = {}
    for line in lines:
        uuid, bus = (w.strip() for w in line.split(","))
        path = f"/sys/bus/pci/devices/{bus.lower()[-12:]}/numa_node"
        truth[uuid] = int(open(path).read()) if os.path.exists(path) else None
    told = report.get("topology") or {}
    nodes = {g["uuid"]: g["node"] for g in told.get("gpus") or []}
    print(f"      topology {json.dumps(told)[:600]}", flush=True)
    matrix = subprocess.run(["nvidia-smi", "topo", "-m"], capture_output=True, text=True).stdout.splitlines()
    row = next((line for line in matrix if line.startswith("GPU0\t")), "").split("\t")
    links = [l["kind"] for l in told.get("links") or []]
    checks.check(
        "topology: link of the GPUs, by nvidia-smi topo", f"{links} {row[:3]}", len(row) > 2 and links == [row[2].strip()]
    )
    checks.check(
        "topology: NUMA nodes of the GPUs, by sysfs",
        f"{nodes} of {truth}",
        bool(nodes) and all(u in truth and (truth[u] is None or truth[u] == n) for u, n in nodes.items()),
    )


def attachments(args, checks, program, processes):
    """Default settings, attached and detached while steps run."""
    before = program.run(args.steps)[0]["step_ns"]
    windows = {}
    for _ in range(args.attachments):
        program.start("run", max(50, int(4e9 / before)))
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


LOGGED = re.compile(r"(\w+): (\d+) Bytes -> Algo (\w+) proto (\w+) channel\{Lo\.\.Hi\}=\{(\d+)\.\.(\d+)\}")


class Choices:
    """What NCCL has logged since, by operation and bytes: calls, fewest and most channels by algorithm and protocol."""

    def __init__(self, args):
        self.paths = os.path.join(args.out, "nccl.*.log")
        self.marks = {p: os.path.getsize(p) for p in glob.glob(self.paths)}

    def truth(self):
        out = {}
        for path in glob.glob(self.paths):
            with open(path, errors="replace") as f:
                f.seek(self.marks.get(path, 0))
                lines = LOGGED.findall(f.read())
            for name, size, algorithm, protocol, low, high in lines:
                add(out.setdefault((name, int(size)), {}), f"{algorithm} {protocol}", 1, int(high) - int(low) + 1)
        return out


def add(choices, name, calls, *channels):
    before = choices.get(name, (0, 1 << 30, 0))
    choices[name] = (before[0] + calls, min(before[1], *channels), max(before[2], *channels))


def told_choices(report):
    """The same by a report, by process; of operations whose calls have one size."""
    out = {}
    for c in (report.get("collectives") or {}).get("communicators") or []:
        for o in c["operations"]:
            if o["smallest_bytes"] == o["largest_bytes"]:
                one = out.setdefault(c["pid"], {}).setdefault((o["name"], o["smallest_bytes"]), {})
                for x in o.get("choices") or []:
                    add(one, f"{x['algorithm']} {x['protocol']}", x["calls"], x["fewest_channels"], x["most_channels"])
    return out


def chosen(report, warm):
    """Calls whose choice is told, of each process: those that warm up, or all others."""
    out = {}
    for c in (report.get("collectives") or {}).get("communicators") or []:
        for o in c["operations"]:
            if (o["type"] == "uint8") == warm:
                out[c["pid"]] = out.get(c["pid"], 0) + sum(x["calls"] for x in o.get("choices") or [])
    return sorted(out.values())


def recorded_choices(args, program, variant, command, calls):
    """Makes a communicator, then attaches and runs a command once all is recorded. Returns NCCL's log of the command,
    and the report once it tells the choices of so many calls of each rank."""
    program.ask("group", variant)
    daemon = Daemon(args, program, *EXACT)
    daemon.await_agents(2, "warm")

    def told(warm, enough):
        until = time.monotonic() + 20
        while True:
            if warm:
                program.ask("warm")
            report = json.loads(daemon.client("report", str(program.pid), "--json"))
            found = chosen(report, warm)
            if len(found) == 2 and found[0] >= enough:
                return report
            if time.monotonic() > until:
                raise Harm(f"choices of {found} calls are told, not of {enough} in each of 2 processes")
            time.sleep(0.1)

    told(warm=True, enough=1)  # GPU records begin a second after the agents have come
    log = Choices(args)
    program.ask(command, REPEATS)
    report = told(warm=False, enough=calls)
    open(os.path.join(args.out, f"choices-{command}-{variant}.json"), "w").write(json.dumps(report))
    daemon.stop()
    return log.truth(), report


def choices(args, checks, program):
    """Algorithm, protocol and channels, by size and operation."""
    for variant, name in enumerate(("NCCL's own", "tree", "LL128", "Simple")):
        truth, report = recorded_choices(args, program, variant, "sizes", OPERATIONS * REPEATS)
        told = told_choices(report)
        wrong = [
            f"{pid} {key}: {one.get(key)} of {wanted}"
            for pid, one in told.items() for key, wanted in truth.items() if one.get(key) != wanted
        ]
        checks.check(
            f"choices, {name}: {len(truth)} operations and sizes",
            f"{len(wrong)} differ in {len(told)} processes {wrong[:4]}",
            len(truth) == OPERATIONS and len(told) == 2 and not wrong,
        )
        for key, wanted in sorted(truth.items()):
            print(f"      {key[0]:14} {key[1]:10} NCCL {wanted}, told {[one.get(key) for one in told.values()]}")


def grouped(args, checks, program):
    """Groups of all-reduces: of one size all take what NCCL chose; of two sizes nothing is told."""
    truth, report = recorded_choices(args, program, 0, "together", 4 * REPEATS)
    wanted = {name: calls for name, (calls, _, _) in truth.get(("AllReduce", 64 << 10), {}).items()}
    told = [
        {f"{x['algorithm']} {x['protocol']}": x["calls"] for x in o.get("choices") or []}
        for c in report["collectives"]["communicators"] for o in c["operations"]
        if (o["name"], o["type"]) == ("AllReduce", "float32")
    ]
    checks.check("choices: groups of one size", f"{told} of {wanted}", bool(wanted) and told == [wanted] * 2)
    told = [
        o.get("choices")
        for c in report["collectives"]["communicators"] for o in c["operations"]
        if (o["name"], o["type"]) == ("AllReduce", "float16")
    ]
    checks.check("choices: groups of two sizes", told, len(told) == 2 and not any(told))


def gathered(report):
    """What a report says of all-gathers by copy engines, of each process."""
    return {
        c["pid"]: o
        for c in (report.get("collectives") or {}).get("communicators") or [] for o in c["operations"]
        if (o["name"], o["type"]) == ("AllGather", "float64")
    }


def copy_engines(args, checks, program):
    """All-gathers that copy engines carry out."""
    program.ask("gather", 1)
    daemon = Daemon(args, program, *EXACT)
    daemon.await_agents(2, "gather", WARM)
    until, before = time.monotonic() + 20, {}
    while not (len(before) == 2 and all(o["seen_bytes"] for o in before.values())) and time.monotonic() < until:
        program.ask("gather", WARM)  # GPU records begin a second after the agents have come
        before = gathered(json.loads(daemon.client("report", str(program.pid), "--json")))
    said = program.ask("gather", args.steps)
    time.sleep(0.5)
    report, _ = daemon.seen("copies")
    daemon.stop()
    grown = [
        {key: o[key] - before[pid][key] for key in ("calls", "copied_calls", "kernels", "copy_ns", "seen_bytes")}
        for pid, o in gathered(report).items() if pid in before
    ]
    wanted = [args.steps, 8 * (1 << 20) * args.steps]
    checks.check(
        "copy engines: calls and bytes, of two ranks",
        f"{[[g['copied_calls'], g['seen_bytes']] for g in grown]} of {wanted}, {[g['kernels'] for g in grown]} kernels",
        None if any(g["kernels"] for g in grown) else
        len(grown) == 2 and all([g["copied_calls"], g["seen_bytes"]] == wanted for g in grown),
    )
    times = sorted(s["ns"] for s in said)
    checks.check(
        "copy engines: GPU time ms, by the stream's events",
        f"{[g['copy_ns'] / 1e6 for g in grown]} {[ns / 1e6 for ns in times]}",
        None if any(g["kernels"] for g in grown) else
        len(grown) == 2 and all(0.3 * times[0] <= g["copy_ns"] <= 1.02 * times[-1] for g in grown),
    )
    show_evidence(report, "exposed-communication")


MADE = re.compile(r"comm 0x([0-9a-f]+) rank (\d+) nranks (\d+) cudaDev \d+ (.*) - Init COMPLETE")


def communicators(args, checks, program):
    """What communicators that were made before the attach say of themselves."""
    program.ask("group", 0)
    program.ask("warm")  # the group is made at its first operation
    daemon = Daemon(args, program, "--gpu", "off")
    until, told = time.monotonic() + 30, {}
    while len(told) < 2 * torch_gpus() and time.monotonic() < until:
        program.run(1)
        program.ask("warm")
        report = json.loads(daemon.client("report", str(program.pid), "--json"))
        for c in (report.get("collectives") or {}).get("communicators") or []:
            told[c["pid"], c["address"]] = (c["rank"], c.get("ranks"), c.get("hash"))
    daemon.stop()
    truth = {}
    for path in glob.glob(os.path.join(args.out, "nccl.*.log")):
        for address, rank, ranks, rest in MADE.findall(open(path, errors="replace").read()):
            key, hashed = (int(path.split(".")[-2]), int(address, 16)), re.search("commId 0x([0-9a-f]+)", rest)
            # Of one that was split off another one NCCL does not log the hash.
            truth[key] = (int(rank), int(ranks), hashed.group(1) if hashed else told.get(key, (0, 0, ""))[2])
    wrong = [f"{key}: {one} of {truth.get(key)}" for key, one in told.items() if one != truth.get(key)]
    checks.check(
        "communicators: rank, ranks and hash, by NCCL's log",
        f"{len(told) - len(wrong)} of {len(told)} {wrong[:4] or list(told.values())}",
        len(told) == 2 * torch_gpus() and not wrong,
    )


def torch_gpus():
    import torch

    return torch.cuda.device_count()


def ranks_alone(args, checks, program):
    report, _ = exactly(args, checks, program, 2, "ranks")
    topology(args, checks, report)


def covered(args, checks, program):
    exactly(args, checks, program, 2, "covered", 0, 1)


def both_alone(args, checks, program):
    exactly(args, checks, program, 1, "both")


def both_attachments(args, checks, program):
    attachments(args, checks, program, 2)


def one_attachments(args, checks, program):
    attachments(args, checks, program, 1)


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--bin", default="bin", help="folder with inferscope and inferscoped")
    a.add_argument("--out", default="build/gpu", help="folder for reports and logs")
    a.add_argument("--steps", type=int, default=300)
    a.add_argument("--limit", type=float, default=600, help="seconds after which no part begins")
    a.add_argument("--attachments", type=int, default=3, help="of each program, with default settings")
    kinds = ("ranks", "both", "choices", "copies", "communicators")
    a.add_argument("--only", choices=kinds, help="parts of one program")
    args = a.parse_args()
    os.makedirs(args.out, exist_ok=True)
    args.fault = common.fault_library(args.out)
    checks, deaths = Checks(), 0
    for kind, parts in (
        ("ranks", (ranks_alone, covered, skew, both_attachments)),
        ("both", (both_alone, one_attachments, peer, pipeline)),
        ("ranks", (hang_at_once, hang_later, stages, uneven, far)),
        ("choices", (choices, grouped)),
        ("communicators", (communicators,)),
        ("copies", (copy_engines,)),
    ):
        if args.only not in (None, kind):
            continue
        program = None
        for part in parts:
            if checks.seconds() > args.limit:
                checks.check(f"{kind}: {part.__name__}", f"after {args.limit:.0f} s", None)
                continue
            try:
                program = program or Program(args, "choices" if kind == "communicators" else kind)
                part(args, checks, program)
            except (Harm, OSError, subprocess.SubprocessError, LookupError, TypeError, ValueError) as e:
                checks.check(f"{kind}: {part.__name__}", repr(e), False)
                Daemon.kill_all()
                if program and (program.p.poll() is not None or "ended with" in repr(e)):
                    deaths += 1
                    print(f"      {open(program.log.name).read()[-2000:]}", flush=True)  # fault.h: address and module
                if program:
                    common.end_group(program.p)
                    program = None
        try:
            if program:
                program.end()
        except (Harm, OSError, subprocess.SubprocessError) as e:
            deaths += 1
            common.end_group(program.p)
            checks.check(f"{kind}: its end", repr(e), False)
    checks.check("harmed", f"{deaths} of {Daemon.attachments} attachments", deaths == 0 and Daemon.attachments > 0)
    checks.table()
    return 1 if checks.failed() else 0


if __name__ == "__main__":
    sys.exit(main())
