"""What a recording predicts of a fix against what the fixed program brings: measurements, and a table of them.

Only what diagnosis_check.py hands over is used, so that twins_test.py needs no GPU.
"""

import fcntl
import json
import os
import statistics

NEAR = 0.10  # how far a prediction may lie from what is measured
# of ABBA before the recording, and as many after; seconds. What was made ahead while it waited is used up in WARM
ROUNDS, WARM, MEASURED = (
    2,
    0.4,
    0.8,
)

# What the fixed twin of each program changes, as `inferscope whatif` takes it. Where that is the remedy which the
# planted cause's finding predicts by itself, both figures are the same.
FIXES = {
    "item": ("--without", "host-sync"),
    "pageable": ("--without", "sync-copy"),
    "copy-in-line": ("--without", "copy-not-overlapped"),
    "tokenize": ("--overlap", "preprocessing"),
    "regex": ("--without", "*.clean"),
    "python": ("--overlap", "python-work"),
    "launches": ("--without", "launch-overhead"),
    "empty-cache": ("--without", "allocation"),
    "loader": ("--without", "worker", "--workers", "12"),
    "gil": ("--without", "gil"),
    "gc": ("--without", "gc"),
    "sleep": ("--without", "sleep"),
    "lock": ("--without", "lock"),
    "disk": ("--overlap", "disk"),
    "network": ("--overlap", "network"),
    "one-cpu": ("--without", "no-cpu"),
    "compile": ("--without", "compilation"),
    "graph-registers": ("--without", "allocation"),
    "graph-allocates": ("--without", "allocation"),
    "rescored": ("--without", "*.rescore"),
    "sleep-pageable": ("--without", "sync-copy"),
    "handlers": ("--without", "worker", "--workers", "4"),
    "pickled": ("--faster", "serialization=1e6"),  # it is not done at all
    "fresh-pages": ("--without", "page-faults"),
    "lock-threads": ("--without", "lock"),
    "future": ("--without", "worker", "--workers", "1"),  # the worker that there is, one answer ahead
    "quota": ("--without", "throttled"),
    "crowded-pair": ("--without", "no-cpu"),
    "own-neighbour": ("--without", "no-cpu"),
    "unpacked": ("--overlap", "*.unpack"),
    "host-search": ("--without", "*.search", "--without", "sync-copy"),
    "masked": ("--without", "host-sync"),
    "output-pageable": ("--without", "sync-copy"),
    "event-poll": ("--without", "sleep"),
    "prefill-eager": ("--without", "launch-overhead"),
    "gil-sort": ("--without", "gil"),
    "asked-process": ("--without", "worker"),
    "service-python": ("--overlap", "network"),
    "storage-loader": ("--without", "worker", "--workers", "4"),  # 8 instead of 2
    "json-answers": ("--faster", "serialization=1e6"),
    "host-memory": ("--without", "allocation"),
    "tiny-operations": ("--without", "launch-overhead"),
    "item-per-layer": ("--without", "host-sync"),
    "offloaded": ("--without", "copy-not-overlapped"),
    "acknowledged": ("--without", "worker"),
    "host-sort": ("--without", "*.order"),
    "settings": ("--without", "*.fresh"),
    "resized": ("--without", "*.resized"),
    "committed": ("--faster", "disk=1e6"),
    "early-stop": ("--without", "host-sync"),
    "quota-threads": ("--without", "throttled"),
    "noisy-neighbours": ("--without", "no-cpu"),
    "paged-weights": ("--without", "sync-copy"),
    "decode-eager": ("--without", "launch-overhead"),
    "pool-loader": ("--without", "worker", "--workers", "5"),  # 10 instead of 2
    "graph-expandable": ("--without", "allocation"),
    "loaded-server": ("--faster", "serialization=1e6"),
    "feature-threads": ("--without", "worker", "--workers", "1"),  # one answer ahead
    "sampled-on-host": ("--without", "*.sample", "--without", "sync-copy"),
    "gc-in-decode": ("--without", "gc"),
    "frames-both-ways": ("--without", "copy-not-overlapped"),
    "expert-on-host": ("--without", "*.expert", "--without", "sync-copy"),
    "filter-program": ("--without", "worker", "--workers", "1"),  # one answer ahead
    "batch-window": ("--without", "sleep"),
    "debug-log": ("--without", "*.describe"),
    "timed-layers": ("--without", "host-sync"),
    "file-lock": ("--without", "lock"),
    "mapped-table": ("--without", "page-faults"),
    "asked-by-loop": ("--overlap", "network"),
    "captured-each": ("--without", "compilation"),  # it is captured once
    "slow-reader": ("--without", "worker"),
    "settings-reread": ("--faster", "serialization=1e6"),
    "answer-thread": ("--without", "worker", "--workers", "1"),  # one answer ahead
    "sampled-items": ("--without", "host-sync"),
    "cache-cat": ("--without", "allocation"),
    "bags-on-host": ("--without", "*.pooled", "--without", "sync-copy"),
    "graph-inputs": ("--merge", "sync-copy"),
    "grammar": ("--without", "*.allowed"),
    "gc-now-and-then": ("--without", "gc"),
    "log-handler": ("--without", "lock"),
    # The small kernels are fused, which a graph does not do.
    "optimizer-loop": ("--merge", "launch-overhead"),
    "too-many-threads": ("--without", "no-cpu"),
    "piped-logits": ("--faster", "serialization=1e6"),  # neither process does it
    "autocast-weights": ("--kernel", "*copy_kernel*=1e6"),  # what casts the weights
    "gradient-norms": ("--without", "host-sync"),
    "unpinned-batch": ("--without", "sync-copy"),
    "lora-unmerged": ("--without", "*.adapted"),
    "whole-chat": ("--faster", "*.encode_chat=30"),
    "checkpoint": ("--overlap", "disk"),
    "debug-fstring": ("--without", "*.__format__"),
    "uncached-allocator": ("--without", "allocation"),
    "inherited-affinity": ("--without", "no-cpu"),
    "session-snapshot": ("--without", "gil"),
    "batch-of-one": ("--kernel", "*=4"),
    "one-key-at-a-time": ("--faster", "network=3"),
    "compared-tensors": ("--without", "host-sync"),
    "parked-sessions": ("--without", "sync-copy"),
    "streamed-text": ("--without", "*.text_of"),
    "background-gc": ("--without", "gc"),
    "tiles": ("--merge", "launch-overhead"),
    "shared-connection": ("--without", "lock"),
    "nodes-on-disk": ("--faster", "disk=1e6"),
    "polled-future": ("--without", "sleep"),
    "document-pages": ("--without", "worker", "--workers", "4"),
    "visited-list": ("--without", "page-faults"),
    "asking-server": ("--faster", "network=1e6"),  # it is not asked at all
    "forgetful-pool": ("--without", "allocation"),
    "host-threads": ("--without", "throttled"),
    "guide-stream": ("--without", "dependency"),
    "bpe-in-python": ("--without", "*.bpe"),
    "numpy-clip": ("--without", "*.clipped", "--without", "sync-copy"),
    "spectra-loader": ("--without", "worker", "--workers", "4"),  # 8 instead of 2
    "state-per-head": ("--merge", "tiny-kernels"),
    "model-lock": ("--without", "lock"),
    "jpeg-in-line": ("--overlap", "*.decoded"),
    "audit-log": ("--faster", "disk=8"),  # one synchronization instead of eight
    "dynamo-reset": ("--without", "compilation"),
}


# What is asked of all programs together: the planted cause first, predictions near what is measured, intervals that
# hold it and are narrow.
FIRST, CLOSE, HELD, WIDTH = 0.95, 0.75, 0.90, 0.15
TAKES = 1.05  # times as fast as the program must a twin be at least, or else nothing was planted on this machine


def alternate(program, twin, rounds=ROUNDS):
    """Steps a second of both, in turns, ABBA, so that what drifts cancels: [(program's, twin's), ...]."""
    pairs = []
    for _ in range(rounds):
        a, b = pace(program), pace(twin)
        b2, a2 = pace(twin), pace(program)
        pairs += [(a, b), (a2, b2)]
    return pairs


def pace(program):
    program.send(MEASURED, WARM)
    a = program.answer()
    return a["steps"] / a["seconds"]


def lengthened(before, after):
    """How many times as long the kernels of a program take in its twin: of those that both have, weighted by the
    program's time. Both are a report's table of kernels. None: they have none in common."""
    means = {k["full_name"]: k["mean_ns"] for k in after or []}
    both = [(k["ns"], k["count"] * means[k["full_name"]]) for k in before or [] if k["full_name"] in means]
    return sum(b for _, b in both) / sum(a for a, _ in both) if both else None


def measured(pairs):
    """How many times as fast the twin is: the median of the pairs, the least and the most."""
    ratios = sorted(b / a for a, b in pairs)
    return {"speedup": statistics.median(ratios), "low": ratios[0], "high": ratios[-1]}


def predicted(diagnosis, answer, wanted):
    """What the recording says: of the finding with a wanted cause, and of the very change that the twin makes."""
    findings = diagnosis["findings"] or []
    place, finding = next(((i + 1, f) for i, f in enumerate(findings) if f["cause"] in wanted), (0, {}))
    basis = answer["replay"]
    return {
        "found": findings[0]["cause"] if findings else "-",
        "place": place,
        "gain": finding.get("gain"),
        "share": finding.get("share", 0.0),
        "fix": {k: answer["asked"][k] for k in ("plan", "speedup", "low", "high")} if answer["asked"] else None,
        "basis": {k: basis[k] for k in basis if k != "nodes"},
    }


def vague(prediction):
    """Whether reports print no more of an interval than its lower end (Vague in internal/analysis/cause/gain.go)."""
    return prediction["high"] > 3 * prediction["low"]


def near(prediction, row):
    if prediction is None or vague(prediction):
        return False
    return abs(prediction["speedup"] / row["measured"]["speedup"] - 1) <= NEAR


def inside(prediction, row):
    if prediction is None or vague(prediction):
        return False
    return prediction["low"] <= row["measured"]["speedup"] <= prediction["high"]


def figure(p):
    if p and vague(p):
        return f"at least {p['low']:.2f}"
    return f"{p['speedup']:.2f} ({p['low']:.2f} to {p['high']:.2f})" if p else "-"


HEADER = """| program | planted | found | gain of the finding | change that the twin makes | predicted | measured | off | within 10% | inside | while recorded | of the twin | its kernels |
|---|---|---|--:|---|--:|--:|--:|---|---|--:|--:|--:|
"""


def line(row):
    """One row of the table; one that failed says so."""
    if "measured" not in row:
        return f"| {row['name']} | {row['planted']} | failed: {row.get('problem', '?')} |  |  |  |  |  | no | no |  |  |  |\n"
    fix = row["fix"]
    off = f"{100 * (fix['speedup'] / row['measured']['speedup'] - 1):+.1f}%" if fix else "-"
    found = row["found"] + ("" if row["place"] == 1 else f" (planted: {row['place'] or 'not found'})")
    yes = {True: "yes", False: "**no**"}
    slower, of_twin, kernels = (
        f"{100 * row[k]:.0f}%" if row.get(k) else "" for k in ("watched", "watched_twin", "lengthened")
    )
    return (
        f"| {row['name']} | {row['planted']} | {found} | {figure(row['gain'])} | {fix['plan'] if fix else '-'} | "
        f"{figure(fix)} | {figure(row['measured'])} | {off} "
        f"| {yes[near(fix, row)]} | {yes[inside(fix, row)]} | {slower} | {of_twin} | {kernels} |\n"
    )


def table(rows):
    """The Markdown table of all programs with a twin, and what it amounts to. Failed ones count as misses."""
    rows = [r for r in rows if r["name"] in FIXES]
    if not rows:
        return ""
    done = [r for r in rows if "measured" in r]

    def share(n):
        return f"{n} of {len(rows)} ({100 * n / len(rows):.0f}%)"

    def count(judge, key):
        return share(sum(judge(r[key], r) for r in done))

    unchanged = max((abs(r["basis"]["error"]) for r in done), default=0)
    return (
        HEADER
        + "".join(map(line, rows))
        + f"\n{len(rows)} programs and their fixed twins: of the change that the twin makes, {count(near, 'fix')} are predicted to within 10%, {count(inside, 'fix')} of the measured lie inside the interval; "
        f"of the finding's own figure, {count(near, 'gain')} and {count(inside, 'gain')}; the replay without changes "
        f"is off by {100 * unchanged:.2f}% at most. Measured: the median of "
        f"{max((len(r.get('turns', ())) for r in done), default=0)} turns, "
        "and the least and the most of them, without the daemon. While recorded: the program's pace under the daemon, "
        "of its pace without; the same of the twin, and how long its kernels take, of what "
        "they take in the program.\n"
    )


def void(row):
    """Whether a twin is hardly faster than its program: this machine does not show what was planted."""
    return "measured" in row and row["measured"]["speedup"] < TAKES


def width(prediction):
    """Half the width of a prediction's interval, relative to the prediction."""
    return (prediction["high"] - prediction["low"]) / 2 / prediction["speedup"]


def goals(rows):
    """What the rows of programs with a planted cause and a twin amount to, against the goals: a line of text, and
    whether all are met. Healthy programs (without "planted") must not be accused. Programs that were skipped or are
    void count for nothing; those that failed are misses."""
    acquitted = [r["ok"] for r in rows if r["planted"] == "-"]
    rows = [r for r in rows if r["planted"] != "-" and r["name"] in FIXES and "skipped" not in r]
    left_out = [r["name"] for r in rows if void(r)]
    rows = [r for r in rows if not void(r)]
    fixes = [(r["fix"], r) for r in rows if "measured" in r and r.get("fix")]
    first, close, held = sum(r["ok"] for r in rows), sum(near(*f) for f in fixes), sum(inside(*f) for f in fixes)
    middle = statistics.median([width(f) for f, _ in fixes]) if fixes else float("inf")
    n = max(1, len(rows))
    checks = [(first / n >= FIRST, f"{first} of {len(rows)} named first (goal {FIRST:.0%})"),
              (close / n >= CLOSE, f"{close} within {NEAR:.0%} (goal {CLOSE:.0%})"),
              (held / n >= HELD, f"{held} inside the interval (goal {HELD:.0%})"),
              (middle <= WIDTH, f"median width +-{middle:.1%} (goal {WIDTH:.0%})"),
              (all(acquitted), f"{sum(acquitted)} of {len(acquitted)} healthy acquitted")]
    text = "; ".join(f"{'' if ok else 'MISSED '}{what}" for ok, what in checks)
    return text + (f"; void: {', '.join(left_out)}" if left_out else ""), bool(rows) and all(ok for ok, _ in checks)


def keep(folder, rows, order):
    """Writes the rows beside those of earlier calls, which they replace, and the table of all. Returns the table. Calls
    at the same time wait for each other."""
    with open(f"{folder}/twins.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return keep_locked(folder, rows, order)


def keep_locked(folder, rows, order):
    path = f"{folder}/twins.json"
    known = {}
    if os.path.exists(path):
        with open(path) as f:
            known = {r["name"]: r for r in json.load(f)}
    known.update((r["name"], r) for r in rows if r["name"] in FIXES)
    kept = [known[n] for n in order if n in known]
    with open(path, "w") as f:
        json.dump(kept, f, indent=1)
    text = table(kept)
    with open(f"{folder}/twins.md", "w") as f:
        f.write(text)
    return text
