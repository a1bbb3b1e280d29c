"""`inferscope run` with real programs on a real GPU: exit code, report, scope, kernels; and what a real nsys wrote,
imported.

Usage: run_check.py [--bin BIN] [--out DIR] [--only WORKLOAD,...] [--ways own,windows,daemon] [--cpu] [--skip-nsys]

Each workload of programs/workloads.py runs as programs/scoped.py does it, under `inferscope run`: `own` without a
daemon, GPU activity recorded all the time; `windows` the same with the default; `daemon` with a running `inferscoped
--on-request`. Needs root, a GPU and torch; --cpu checks what can be checked without a GPU. Reports and logs are left in
DIR. The exit code is 1 where a check fails.
"""

import argparse
import csv
import glob
import json
import os
import shutil
import sqlite3
import statistics
import subprocess
import sys
import time

from common import print_checks

HERE = os.path.dirname(os.path.abspath(__file__))
STEPS = {"gpt2": 20, "resnet50": 300, "minilm": 100}
SCOPE, NVTX = "llm_inference", "nvtx step"  # as programs/scoped.py names them
LATENCY = 0.05  # how far a report's median may be from the program's own
TIMEOUT = 180  # seconds a program may take, with loading PyTorch


class Runner:
    """Runs programs under `inferscope run` and keeps what they left."""

    def __init__(self, options):
        self.o, self.socket = options, f"/tmp/inferscope-run-check-{os.getpid()}.sock"
        path = os.pathsep.join([os.path.join(HERE, "../../python"), HERE, os.environ.get("PYTHONPATH", "")])
        self.env = dict(os.environ, INFERSCOPE_SOCKET=self.socket, PYTHONPATH=path)

    def run(self, name, flags, program):
        """Returns exit code, standard output and the report of a program."""
        report = f"{self.o.out}/{name}.json"
        with open(f"{self.o.out}/{name}.log", "w") as log:
            done = subprocess.run([f"{self.o.bin}/inferscope", "run", *flags, "--report", report, "--", *program],
                                  env=self.env, stdout=subprocess.PIPE, stderr=log, text=True, timeout=TIMEOUT)
        model = json.load(open(report)) if os.path.exists(report) else None
        return done.returncode, done.stdout, model

    def daemon(self):
        """Starts a daemon for programs that ask."""
        log = open(f"{self.o.out}/daemon.log", "w")
        gpu = "off" if self.o.cpu else "continuous"
        process = subprocess.Popen(
            [
                f"{self.o.bin}/inferscoped", "--on-request", "--gpu", gpu, "--trace-size-mb", "1000", "--socket",
                self.socket,
            ],
            stdout=log,
            stderr=log,
        )
        end = time.monotonic() + 60
        while "ready" not in open(log.name).read():
            if process.poll() is not None or time.monotonic() > end:
                raise SystemExit(f"inferscoped is not ready: {open(log.name).read()}")
            time.sleep(0.05)
        return process


def judge(name, way, code, out, model, cpu):
    """The checks of one workload, as common.print_checks has them."""
    yield "exit code", code, code == 0
    if model is None:
        yield "report", "none", False
        return
    own = json.loads(out.strip().splitlines()[-1])
    d, gpu = model["diagnosis"], model["gpu"] or {}
    yield "kind of the report", model["kind"], model["kind"] == "inferscope.report"
    ranges = {r["name"]: r["count"] for r in gpu.get("ranges") or []}
    yield f"scopes in the report, {own['steps']} were left", ranges.get(SCOPE), ranges.get(SCOPE) == own["steps"]
    it = d["iterations"] or {}
    yield "iterations", f"{it.get('count')} {it.get('source')}", SCOPE in it.get("source", "")
    low, high, said = statistics.median_low(own["ns"]), statistics.median_high(own["ns"]), it.get("p50_ns", 0)
    yield (
        "median step, the report's and the program's, ms",
        f"{said / 1e6:.3f} {low / 1e6:.3f}",
        low * (1 - LATENCY) < said < high * (1 + LATENCY),
    )
    b = d["breakdown"]
    yield (
        "parts of the breakdown minus the whole, ns",
        sum(p["ns"] for p in b["parts"]) - b["ns"],
        sum(p["ns"] for p in b["parts"]) == b["ns"],
    )
    yield "verdict", f"{d['verdict']}: {d['headline'][:100]}", d["verdict"] != "not-enough-evidence"
    yield (
        "in people's words",
        ", ".join(f"{p['name']} {p['share'] * 100:.0f}%" for p in b["view"] if p["share"] >= 0.005),
        None,
    )
    yield "losses", ", ".join(f"{x['reason']} {x['count']}" for x in model["doubts"] or []) or "none", None
    if cpu:
        return
    yield "kernels", gpu["kernels"]["count"], gpu["kernels"]["count"] > 0
    yield "of the activities know their call", f"{gpu['links']['share'] * 100:.2f}%", gpu["links"]["share"] > 0.95
    yield (
        "GPU busy, of the recorded time",
        f"{gpu['busy']['share'] * 100:.1f}% of {gpu['activity']['ns'] / 1e9:.2f} s in {gpu['activity']['count']} "
        "windows",
        gpu["busy"]["ns"] > 0,
    )
    agents = [
        f"{a.get('state')} stopped {a.get('stopped_ns', a.get('stopped', 0))} ns" for a in gpu.get("agents") or []
    ]
    yield "agent", "; ".join(agents), None
    # Ranges of NVTX are recorded while the agent records, and CUPTI must be where `run` looks for it.
    yield f"NVTX ranges, {own['nvtx']} were left", ranges.get(NVTX, 0), None


def check_workloads(r):
    ok = True
    for way in r.o.ways.split(","):
        flags = {
            "own": ["--gpu", "off" if r.o.cpu else "continuous", "--trace-size-mb", "1000"],
            "windows": [],
            "daemon": [],
        }[way]
        daemon = r.daemon() if way == "daemon" else None
        try:
            for name in r.o.only.split(","):
                steps = str(max(8, STEPS[name] // (10 if r.o.cpu else 1)))
                print(f"== {name}, {way}", flush=True)
                began = time.monotonic()
                code, out, model = r.run(f"{name}-{way}", flags, [sys.executable, "-m", "programs.scoped", name, steps])
                ok &= print_checks(list(judge(name, way, code, out, model, r.o.cpu)))
                print(f"      {time.monotonic() - began:.1f} s", flush=True)
        finally:
            if daemon:
                daemon.terminate()
                ok &= daemon.wait(30) == 0
    return ok


def check_endings(r):
    """Programs that use the GPU and end badly."""
    device = "cpu" if r.o.cpu else "cuda"
    work = f"import torch, os, signal; x = torch.ones(8, device='{device}'); y = (x + 1).sum().item(); "
    checks = []
    for name, ending, want in (
        ("code", "raise SystemExit(7)", 7),
        ("kill", "os.kill(os.getpid(), signal.SIGKILL)", 137),
        ("abort", "os.abort()", 134),
        ("exception", "1 / 0", 1),
    ):
        code, _, model = r.run(f"ending-{name}", [], [sys.executable, "-c", work + ending])
        end = (model or {}).get("target", {}).get("ending") or {}
        said = 128 + end.get("signal", 0) if end.get("signal") else end.get("code")
        checks.append(
            (
                f"a program that ends by {name}: exit code, in the report",
                f"{code}, {said}",
                code == want and said == want,
            )
        )
    print("== endings")
    return print_checks(checks)


def find_nsys():
    """nsys of the PATH, or of where NVIDIA's packages put it."""
    places = [shutil.which("nsys")] + sorted(
        glob.glob("/opt/nvidia/nsight-systems*/*/bin/nsys")
        + glob.glob("/opt/nvidia/nsight-systems*/bin/nsys")
        + glob.glob("/usr/local/cuda*/bin/nsys")
    )
    return next((p for p in places if p), None)


def nsys_says(nsys, path):
    """Kernels and their summed time by nsys's own summary; the report was called gpukernsum once."""
    for report in ("cuda_gpu_kern_sum", "gpukernsum"):
        done = subprocess.run(
            [nsys, "stats", "--report", report, "--format", "csv", "--force-export=false", path],
            capture_output=True,
            text=True,
        )
        rows = list(csv.reader(done.stdout.splitlines()))
        head = next((i for i, row in enumerate(rows) if "Instances" in row), None)
        if head is None:
            continue
        count, total = (
            rows[head].index("Instances"),
            next(i for i, c in enumerate(rows[head]) if c.startswith("Total Time")),
        )
        body = [row for row in rows[head + 1:] if len(row) == len(rows[head])]
        return sum(int(row[count]) for row in body), sum(int(float(row[total])) for row in body)
    return None


def union(rows):
    """How long at least one of the intervals ran, ns."""
    busy, until = 0, 0
    for start, end in sorted(rows):
        busy += max(0, end - max(start, until))
        until = max(until, end)
    return busy


def check_nsys(r):
    nsys = find_nsys()
    print("== nsys", nsys)
    if not nsys:
        return True
    base = f"{r.o.out}/nsys"
    with open(f"{base}.log", "w") as log:
        for command in (
            [
                nsys, "profile", "-t", "cuda,nvtx,osrt", "--force-overwrite", "true", "-o", base, sys.executable, "-m",
                "programs.scoped", "gpt2", "8",
            ],
            [
                nsys, "export", "--type", "sqlite", "--force-overwrite", "true", "-o", f"{base}.sqlite",
                f"{base}.nsys-rep",
            ],
            [f"{r.o.bin}/inferscope", "import", f"{base}.sqlite", "-o", f"{base}.isc"],
            [f"{r.o.bin}/inferscope", "export", f"{base}.isc", "--to", "csv", "-o", f"{base}.csv"],
            [f"{r.o.bin}/inferscope", "analyze", f"{base}.isc", "--format", "json", "-o", f"{base}.json"],
            [f"{r.o.bin}/inferscope", "analyze", f"{base}.sqlite", "-o", f"{base}.md"],
        ):
            print("$", " ".join(command), file=log, flush=True)
            code = subprocess.run(command, env=r.env, stdout=log, stderr=log, timeout=300).returncode
            if code:
                print(f"FAIL  {command[:2]} ended with {code}: {base}.log says why")
                return False
    ours = [
        (int(k["start_ns"]), int(k["start_ns"]) + int(k["duration_ns"])) for k in csv.DictReader(open(f"{base}.csv"))
    ]
    db = sqlite3.connect(f"file:{base}.sqlite?mode=ro", uri=True)
    theirs = db.execute("SELECT start, end FROM CUPTI_ACTIVITY_KIND_KERNEL").fetchall()
    nvtx = db.execute("SELECT count(*) FROM NVTX_EVENTS WHERE eventType IN (59, 60) AND end IS NOT NULL").fetchone()[0]
    model = json.load(open(f"{base}.json"))
    ranges = sum(x["count"] for x in model["gpu"]["ranges"] or [])
    version = subprocess.run([nsys, "--version"], capture_output=True, text=True).stdout.strip()
    stats = nsys_says(nsys, f"{base}.sqlite")
    summed = sum(e - s for s, e in ours)
    return print_checks(
        [
            ("version", version, None),
            ("kernels: ours, rows of its table", f"{len(ours)} {len(theirs)}", len(ours) == len(theirs)),
            (
                "kernels and their time: nsys stats",
                stats and f"{stats[0]}, {stats[1]} ns; ours {summed} ns",
                stats is None or (stats[0] == len(ours) and abs(stats[1] - summed) <= len(ours)),
            ),
            (
                "a kernel ran, ns: ours, its table's union",
                f"{union(ours)} {union(theirs)}",
                union(ours) == union(theirs),
            ),
            (
                "kernels in the report's table, GPU busy",
                f"{model['gpu']['kernels']['count']}, {model['gpu']['busy']['ns'] / 1e6:.1f} ms",
                model["gpu"]["kernels"]["count"] == len(ours),
            ),
            ("NVTX ranges: ours, its table", f"{ranges} {nvtx}", ranges == nvtx),
            ("verdict", model["diagnosis"]["headline"], None),
        ]
    )


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--bin", default="bin")
    p.add_argument("--out", default="build/gpu/run")
    p.add_argument("--only", default=",".join(STEPS))
    p.add_argument("--ways", default="own,windows,daemon")
    p.add_argument("--cpu", action="store_true")
    p.add_argument("--skip-nsys", action="store_true")
    o = p.parse_args()
    o.bin, o.out = os.path.abspath(o.bin), os.path.abspath(o.out)
    os.makedirs(o.out, exist_ok=True)
    r = Runner(o)
    ok = check_workloads(r)
    ok &= check_endings(r)
    if not o.skip_nsys and not o.cpu:
        ok &= check_nsys(r)
    sys.exit(0 if ok else 1)


main()
