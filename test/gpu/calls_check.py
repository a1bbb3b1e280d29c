"""Checks InferScope's view of CUDA calls against a real GPU and real PyTorch.

Usage: calls_check.py BIN_DIR OUT_DIR      (root; PyTorch and transformers installed)

One process decodes with GPT-2, eager, random weights. It is watched and left
alone in turn, so that the added time compares the process with itself. Then:
launches seen against the launches that torch itself counts, the report, and
that nothing stays attached. Prints a table; exits 1 if a check failed.
"""

import json
import os
import statistics
import sys
import time

from common import LAUNCHES, Daemon, Workload, base, launches_of_torch, print_checks, report

ROUNDS = 7          # watched and unwatched, alternating
TOKENS = 256        # per round
# the rest is cpu_check.py's
CALLS_ONLY = (
    "--cpu-sampling-frequency-hz", "0", "--scheduling=false", "--gpu", "continuous", "--no-inject",
)


def text_differences(pid):
    """Bytes in which the mapped text of libcuda and libcudart differs from its files.

    A uprobe is an int3 or a jump in the text: with every probe gone there is no difference.
    """
    differences = 0
    with open(f"/proc/{pid}/mem", "rb") as memory:
        for line in open(f"/proc/{pid}/maps"):
            fields = line.split(maxsplit=5)
            if len(fields) < 6 or "x" not in fields[1]:
                continue
            path = fields[5].strip()
            if not os.path.basename(path).startswith(("libcuda.so", "libcudart")):
                continue
            start, end = (int(x, 16) for x in fields[0].split("-"))
            memory.seek(start)
            mapped = memory.read(end - start)
            with open(f"/proc/{pid}/root{path}", "rb") as file:
                file.seek(int(fields[2], 16))
                stored = file.read(end - start)
            differences += sum(a != b for a, b in zip(mapped, stored)) if mapped != stored else 0
    return differences


def alternate(bin_dir, out_dir, workload):
    """Runs watched and unwatched rounds; returns their ms per token and the last watched round's evidence."""
    watched, alone, evidence = [], [], {}
    for round_ in range(ROUNDS):
        alone.append(1e3 * workload.ask(f"tokens {TOKENS}")["seconds"] / TOKENS)
        daemon = Daemon(f"{bin_dir}/inferscoped", workload.pid, f"{out_dir}/daemon.log", *CALLS_ONLY)
        cpu0, _ = daemon.stats()
        answer = workload.ask(f"tokens {TOKENS}")
        watched.append(1e3 * answer["seconds"] / TOKENS)
        time.sleep(0.2)  # the reader's timer
        cpu1, rss = daemon.stats()
        evidence = {
            "ready_s": daemon.ready_s,
            "cpu_share": (cpu1 - cpu0) / answer["seconds"],
            "rss_mb": rss,
            "json": json.loads(report(bin_dir, workload.pid, "json")),
            "text": report(bin_dir, workload.pid, "markdown"),
            "while": text_differences(workload.pid),
        }
        daemon.stop()
    return watched, alone, evidence


def main():
    bin_dir, out_dir = sys.argv[1:3]
    workload = Workload()
    watched, alone, evidence = alternate(bin_dir, out_dir, workload)
    after = text_differences(workload.pid)
    torch_calls = workload.ask(f"count {TOKENS}")["calls"]
    code = workload.quit()

    open(f"{out_dir}/report.md", "w").write(evidence["text"])
    json.dump(evidence["json"], open(f"{out_dir}/report.json", "w"), indent=1)
    functions = evidence["json"]["summary"]["functions"] + evidence["json"]["summary"]["inside"]
    seen = sum(f["count"] for f in functions if base(f["name"]) in LAUNCHES)
    made = launches_of_torch(torch_calls)
    without_us, with_us = statistics.median(alone), statistics.median(watched)
    pairs = [w / a - 1 for w, a in zip(watched, alone)]
    losses = [d for d in evidence["json"]["doubts"] if d["severity"] != "info"]

    checks = [
        ("launches: seen / made by torch", f"{seen:,} / {made:,}", seen == made),
        ("events lost", str(losses or 0), not losses),
        ("text bytes changed: watched / after", f"{evidence['while']} / {after}", evidence["while"] > 0 and after == 0),
        ("workload's exit code", str(code), code == 0),
        ("ms per token, unwatched (median)", f"{without_us:.3f}", None),
        ("ms per token, watched (median)", f"{with_us:.3f}", None),
        ("added, median of the pairs", f"{100 * statistics.median(pairs):+.1f}%", None),
        ("daemon: ready after", f"{evidence['ready_s']:.2f} s", None),
        ("daemon: CPU while watching", f"{100 * evidence['cpu_share']:.2f}% of a core", None),
        ("daemon: resident", f"{evidence['rss_mb']:.0f} MB", None),
    ]
    print(evidence["text"])
    print(f"calls that torch counted: {torch_calls}")
    sys.exit(0 if print_checks(checks) else 1)


if __name__ == "__main__":
    main()
