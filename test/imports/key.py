"""Answer key for traces of torch.profiler: reads the raw rows of each trace and compares `inferscope analyze` with
them.

    python3 test/imports/key.py FOLDER [--inferscope build/inferscope] [--markdown]

FOLDER holds traces (.json, .json.gz), at any depth, as of HolisticTraceAnalysis (tests/data), Kineto's TensorBoard
plugin (tb_plugin/samples) and PARAM (et_replay/tests/inputs). Nothing of InferScope is used for the key: it merges
intervals.

  busy     union of kernels, copies and sets, of the time from the first to the last row of a GPU or a CUDA call
  exposed  communication (NCCL, RCCL and the like by the kernel's name) that no other kernel covers
  host     what the thread that ends each idle gap was in: a range of DataLoader, a call of CUDA by its kind, an
  operator;
           "queued" is what passes from the call to the beginning of its work, beyond 100 us
  step     median length of ProfilerStep#N, else median distance of the optimizer's steps
"""

import argparse
import bisect
import gzip
import json
import os
import re
import statistics
import subprocess
import sys

GPU = {"kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset"}
CALLS = {"cuda_runtime", "cuda_driver", "Runtime"}
RANGES = {"cpu_op", "Operator", "python_function", "user_annotation"}
TALKS = re.compile(r"^nccl|^rccl|cross_device_reduce|multimem_|nvshmem|deep_ep::|mscclpp::")
QUEUED = 100  # us from a launch to its beginning from which on it waited for something else
SMALL = 5  # rows of GPUs below which nothing is to be told


def rows_of(path):
    opened = gzip.open(path, "rt", errors="replace") if path.endswith(".gz") else open(path, errors="replace")
    with opened as f:
        trace = json.load(f, strict=False)
    rows = trace["traceEvents"] if isinstance(trace, dict) else trace
    out = []
    for r in rows:
        if r.get("ph") != "X" or "ts" not in r:
            continue
        try:
            r["from"] = float(r["ts"])
            r["to"] = r["from"] + float(r.get("dur", 0))
        except (TypeError, ValueError):
            continue
        out.append(r)
    return out


def union(spans):
    out = []
    for a, b in sorted(s for s in spans if s[1] > s[0]):
        if out and a <= out[-1][1]:
            out[-1][1] = max(out[-1][1], b)
        else:
            out.append([a, b])
    return out


def total(spans):
    return sum(b - a for a, b in spans)


def minus(spans, other):
    """Parts of spans that no other span covers; both are unions."""
    out, j = [], 0
    for a, b in spans:
        while j < len(other) and other[j][1] <= a:
            j += 1
        k = j
        while k < len(other) and other[k][0] < b:
            if other[k][0] > a:
                out.append([a, other[k][0]])
            a = max(a, other[k][1])
            k += 1
        if a < b:
            out.append([a, b])
    return out


def kind_of_call(name):
    for words, kind in (
        (("Synchronize",), "sync"),
        (("Malloc", "Free", "HostAlloc", "HostRegister", "MemCreate", "MemMap"), "allocation"),
        (("Memcpy",), "copy"),
        (("Launch",), "launch"),
    ):
        if any(w in name for w in words):
            return kind
    return "other call"


class Key:
    """What the raw rows of a trace say."""

    def __init__(self, rows):
        self.gpu = [r for r in rows if r.get("cat") in GPU]
        calls = [r for r in rows if r.get("cat") in CALLS]
        self.calls = len(calls)
        self.rows = len(self.gpu)
        steps = sorted(
            r["to"] - r["from"]
            for r in rows
            if str(r.get("name", "")).startswith("ProfilerStep#") and r.get("cat") in RANGES
        )
        self.step = statistics.median_low(steps) / 1e6 if len(steps) >= 3 else None
        self.least = steps[0] / 1e6 if steps else 0  # what is shorter is a part of a step
        self.near = 0.05  # how near a latency must come
        if not self.step:
            self.step, self.near = self.period(rows), 0.1
        if not self.gpu:
            return
        self.start = min(r["from"] for r in self.gpu + calls)
        self.end = max(r["to"] for r in self.gpu + calls)
        kernels = [r for r in self.gpu if r["cat"] in ("kernel", "Kernel")]
        talks = [r for r in kernels if TALKS.search(str(r["name"]))]
        compute = union((r["from"], r["to"]) for r in kernels if not TALKS.search(str(r["name"])))
        talking = union((r["from"], r["to"]) for r in talks)
        copies = union(
            (r["from"], r["to"])
            for r in self.gpu
            if r["cat"] in ("gpu_memcpy", "Memcpy") and "DtoD" not in str(r["name"])
        )
        busy = union((r["from"], r["to"]) for r in self.gpu)
        self.window = (self.end - self.start) / 1e6
        self.busy = total(busy) / 1e6
        self.compute = total(compute) / 1e6
        self.exposed = total(minus(talking, compute)) / 1e6
        self.copies = total(minus(minus(copies, compute), talking)) / 1e6
        self.idle = minus([[self.start, self.end]], busy)
        self.host = self.host_in_idle(rows, calls)

    def period(self, rows):
        """Median distance of the optimizer's steps, where the trace has no ProfilerStep."""
        begins = {}
        for r in rows:
            if r.get("cat") in RANGES and str(r.get("name", "")).startswith("Optimizer.step#"):
                begins.setdefault((r.get("pid"), r.get("tid"), r["name"]), []).append(r["from"])
        most = sorted(max(begins.values(), key=len, default=[]))
        apart = sorted(b - a for a, b in zip(most, most[1:]))
        if len(apart) < 3 or apart[-1] > 10 * apart[0]:  # one optimizer of several, or several steps in a row
            return None
        return statistics.median_low(apart) / 1e6

    def host_in_idle(self, rows, calls):
        """Time of each kind of doing in idle time, by the thread that made the call behind the row that ends a gap."""
        by_id = {
            r["args"]["correlation"]: r for r in calls if isinstance(r.get("args"), dict) and "correlation" in r["args"]
        }
        threads = {}
        for r in rows:
            if r.get("cat") in CALLS or r.get("cat") in RANGES:
                threads.setdefault((r.get("pid"), r.get("tid")), []).append(r)
        order = sorted(self.gpu, key=lambda r: r["from"])
        starts = [r["from"] for r in order]
        jobs, out = {}, {}
        for a, b in self.idle:
            i = bisect.bisect_left(starts, b)
            thread = None
            while i < len(order) and order[i]["from"] == b:
                call = by_id.get((order[i].get("args") or {}).get("correlation"))
                if call is not None:
                    thread = (call.get("pid"), call.get("tid"))
                    queued = max(a, min(call["to"], b))  # from here on the work was asked for, whatever the host did
                i += 1
            if thread is not None and b - queued > QUEUED:
                out["queued"] = out.get("queued", 0) + (b - queued) / 1e6
                b = queued
            if thread is None:
                out["unknown"] = out.get("unknown", 0) + (b - a) / 1e6
            else:
                jobs.setdefault(thread, []).append((a, b))
        for thread, gaps in jobs.items():
            mine = threads.get(thread, [])
            left = [list(g) for g in gaps]
            ranges = [r for r in mine if r["cat"] in RANGES]
            layers = [("dataloader", [r for r in ranges if "DataLoader" in str(r["name"])])]
            for kind in ("sync", "allocation", "copy", "launch", "other call"):
                layers.append((kind, [r for r in mine if r["cat"] in CALLS and kind_of_call(r["name"]) == kind]))
            layers.append(
                (
                    "operator",
                    [
                        r
                        for r in ranges
                        if r["cat"] in ("cpu_op", "Operator", "python_function")
                        and not str(r["name"]).startswith("ProfilerStep")
                    ],
                )
            )
            layers.append(
                (
                    "annotation",
                    [r for r in ranges if r["cat"] == "user_annotation" or str(r["name"]).startswith("ProfilerStep")],
                )
            )
            for name, list_of in layers:
                rest = minus(left, union((r["from"], r["to"]) for r in list_of))
                out[name] = out.get(name, 0) + (total(left) - total(rest)) / 1e6
                left = rest
            out["nothing recorded"] = out.get("nothing recorded", 0) + total(left) / 1e6
        return out

    def verdicts(self):
        """The verdicts that are right, by the definitions of docs/report.md."""
        if not self.gpu or self.rows < SMALL:
            return {"not-enough-evidence", "cpu-only"}
        share = lambda x: x / self.window if self.window else 0
        idle = self.window - self.busy
        right = set()
        for slack in (-0.02, 0, 0.02):  # near a bound either side is right
            if share(self.exposed) >= 1 / 3 + slack and self.exposed >= idle * (1 + slack):
                right.add("communication-bound")
            elif self.copies > self.compute * (1 + slack) and self.copies >= idle:
                right.add("copy-bound")
            elif share(self.busy) >= 0.9 + slack:
                right |= {"healthy", "gpu-bound"}
            elif share(idle) >= 1 / 3 + slack:
                right.add("cpu-bound")
            else:
                right |= {"balanced"}
        unknown = self.host.get("unknown", 0) + self.host.get("nothing recorded", 0)
        proven = max([self.exposed] + [v for k, v in self.host.items() if k not in ("unknown", "nothing recorded")])
        if unknown > proven * 0.8 and share(idle) > 0.1:
            right.add("not-enough-evidence")
        if "copy" in self.host and self.host["copy"] + self.copies > self.compute:
            right.add("copy-bound")  # waiting in a copy's call counts as the copy
        return right

    def doing(self):
        """What the host did for most of the idle time."""
        return max(self.host, key=self.host.get) if self.idle and self.host else None


# Which causes are right for what the rows say the host was in.
RIGHT = {
    "dataloader": {"preprocessing", "worker", "python-work", "native-work", "disk"},
    "sync": {"host-sync", "compilation"},
    "allocation": {"allocation"},
    "copy": {"sync-copy", "host-sync", "launch-overhead"},
    "launch": {"launch-overhead", "compilation", "host-sync", "dependency"},
    "other call": {"launch-overhead", "compilation", "host-sync", "allocation"},
    "operator": {
        "launch-overhead", "native-work", "python-work", "preprocessing", "host-sync", "worker", "sleep", "compilation",
    },
    "annotation": {"python-work", "launch-overhead", "host-sync", "preprocessing", "network"},
    "queued": {"dependency", "launch-overhead"},
    "nothing recorded": {"unknown", "launch-overhead", "host-sync"},
    "unknown": {"unknown", "launch-overhead", "dependency"},
}
BUSY = ("compute", "communication", "h2d", "d2h", "d2d", "set")


def analyze(binary, path):
    p = subprocess.run([binary, "analyze", path, "--format", "json"], capture_output=True, text=True)
    if p.returncode != 0:
        return None, p.stderr.strip().splitlines()[0] if p.stderr.strip() else f"exit status {p.returncode}"
    return json.loads(p.stdout)["diagnosis"], ""


def compare(binary, path):
    """One row of the table: name, what the rows say, what the report says, and what is wrong with it."""
    try:
        rows = rows_of(path)
        key = Key(rows)
    except (KeyError, ValueError, TypeError, OSError) as e:
        got, fault = analyze(binary, path)
        return {
            "verdict": "unreadable" if got is None else got["verdict"],
            "wrong": [] if got is None else [f"read, though {e}"],
            "rows": 0,
            "fault": fault,
        }
    got, fault = analyze(binary, path)
    row = {"rows": key.rows, "wrong": [], "fault": fault, "key": sorted(key.verdicts())}
    if got is None:
        row["verdict"] = "refused"
        if key.rows:
            row["wrong"].append("refused")
        return row
    row["verdict"] = got["verdict"]
    if got["verdict"] not in key.verdicts():
        row["wrong"].append(f"verdict {got['verdict']}")
    it = got.get("iterations")
    row["latency"] = it["p50_ns"] / 1e9 if it else None
    row["source"] = it["source"] if it else ""
    row["step"] = key.step
    if it:
        if key.step and abs(row["latency"] / key.step - 1) > key.near:
            row["wrong"].append(f"latency {row['latency'] * 1e3:.3f} ms")
        elif row["latency"] < key.least * (1 - key.near):
            row["wrong"].append(f"latency of a part of a step, {row['latency'] * 1e3:.3f} ms")
        if re.search(r'ranges named "[^"]*((nccl|gloo):|zero_grad|DataLoader|ncclGroup|Optimizer\.step)', row["source"]):
            row["wrong"].append("latency of " + row["source"])
    if key.rows < SMALL or not key.gpu:
        return row
    parts = {p["key"]: p["ns"] / 1e9 for p in got["breakdown"]["parts"]}
    seen = got["breakdown"]["ns"] / 1e9
    row["busy"], row["own_busy"] = key.busy / key.window, sum(parts.get(k, 0) for k in BUSY) / seen if seen else 0
    row["exposed"], row["own_exposed"] = key.exposed / key.window, parts.get("communication", 0) / seen if seen else 0
    row["covered"] = seen / key.window
    outside = sum((p["to_ns"] - p["from_ns"]) / 1e9 for p in (got.get("start"), got.get("end")) if p)
    if not outside and row["covered"] > 0.98:
        for name in ("busy", "exposed"):
            if abs(row[name] - row["own_" + name]) > 0.01:
                row["wrong"].append(f"{name} {row['own_' + name]:.1%} instead of {row[name]:.1%}")
    causes = [p for p in got["breakdown"]["parts"] if not p["busy"]]
    row["doing"] = key.doing()
    row["cause"] = causes[0]["key"] if causes else ""
    idle = sum(key.host.values())
    if (
        got["verdict"] != "not-enough-evidence"
        and idle > 0.1 * key.window
        and key.host.get(row["doing"], 0) > 0.5 * idle
        and causes
        and row["cause"] not in RIGHT[row["doing"]]
    ):
        row["wrong"].append(f"cause {row['cause']} while the host was in {row['doing']}")
    return row


def percent(x):
    return "" if x is None else f"{x:.1%}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--inferscope", default="build/inferscope")
    parser.add_argument("--markdown", action="store_true")
    args = parser.parse_args()
    paths = sorted(
        os.path.join(d, f) for d, _, files in os.walk(args.folder) for f in files if f.endswith((".json", ".json.gz"))
    )
    right = judged = 0
    if args.markdown:
        print(
            "| trace | GPU rows | busy | InferScope | exposed | InferScope | host in idle time | InferScope | step | "
            "latency | verdict | wrong |"
        )
        print("|---|--:|--:|--:|--:|--:|---|---|--:|--:|---|---|")
    for path in paths:
        row = compare(args.inferscope, path)
        judged += 1
        right += not row["wrong"]
        name = os.path.relpath(path, args.folder)
        ms = lambda s: "" if not s else f"{s * 1e3:.3f} ms"
        cells = [
            name, row["rows"], percent(row.get("busy")), percent(row.get("own_busy")), percent(row.get("exposed")),
            percent(row.get("own_exposed")), row.get("doing") or "", row.get("cause", ""), ms(row.get("step")),
            ms(row.get("latency")), row["verdict"], "; ".join(row["wrong"]),
        ]
        print(
            "| " + " | ".join(str(c) for c in cells) + " |" if args.markdown else "\t".join(str(c) for c in cells),
            flush=True,
        )
    print(f"{right} of {judged} right", file=sys.stderr)
    return 0 if right >= 0.9 * judged else 1


if __name__ == "__main__":
    sys.exit(main())
