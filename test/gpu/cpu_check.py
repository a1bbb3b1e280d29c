"""Checks InferScope's CPU evidence against real PyTorch: what it costs, how much of the stacks it gets.

Usage: cpu_check.py [options] BIN_DIR OUT_DIR      (root; PyTorch and transformers installed)

One process decodes with GPT-2, eager, random weights. Round by round it is left
alone and watched in several ways, with time alone before and after each, so that
every added time compares neighbours in one process. Of each way: share of the
samples that are whole and that carry Python frames once the unwinder is warm,
time until then, launches seen against those that torch itself counts, sums of
the threads' states, what the daemon takes. Then the rows of test/samplerbench,
where bin/samplerbench exists. Prints tables, leaves cpu_check.json in OUT_DIR;
exits 1 if a check failed.
"""

import argparse
import collections
import json
import os
import statistics
import subprocess
import sys
import time

import recording
from common import LAUNCHES, SOCKET, Daemon, Workload, launches_of_torch, print_checks, report

CHUNKS = 4         # of --tokens, measured while watched; half as many alone, before and after
WARM_SHARE = 0.9   # stacks count as whole once this share of a second's samples is
WARM_LIMIT = 30    # seconds to wait for that
GOAL = 0.95        # of samples after warm-up: whole, and with Python frames
MEMORY = 200       # MB that the daemon may have resident, at any time
SUM_ERROR = 0.001  # of the window: how far a thread's states may add up to something else
ROWS = "pure,json,numpy,conv2d,transformer"

PROBES = ("--gpu", "continuous", "--no-inject")  # every launch, to be counted; GPU records are gpu_check.py's
RARE = ("--gpu", "off", "--no-inject")           # the probes that are always on, launches not among them

WAYS = {
    "rare calls": ("--cpu-sampling-frequency-hz", "0", "--scheduling=false", *RARE),
    "scheduling": ("--cpu-sampling-frequency-hz", "0", "--scheduling=true", *RARE),
    "99 Hz": ("--cpu-sampling-frequency-hz", "99", "--scheduling=true", *RARE),
    "499 Hz": ("--cpu-sampling-frequency-hz", "499", "--scheduling=true", *RARE),
    "calls": ("--cpu-sampling-frequency-hz", "0", "--scheduling=false", *PROBES),
    "all": ("--cpu-sampling-frequency-hz", "499", "--scheduling=true", *PROBES),  # fills the recorder soonest
}


FULL = "all"  # of the ways, the one that goes on until the recorder is full
FILL = 60     # seconds to do that in at most


def sampled(way):
    return WAYS[way][1] != "0"


def chunks(options, workload, n):
    """Runs n chunks, the unit of time and of launch counts; returns the workload's answers."""
    return [workload.ask(f"tokens {options.tokens}") for _ in range(n)]


def ms_per_token(answers):
    return statistics.median(1e3 * a["seconds"] / a["tokens"] for a in answers)


def share(part, whole):
    return len(part) / len(whole) if whole else 0.0


def python_threads(samples):
    """The samples of threads of which any sample has a Python frame."""
    tids = {s.tid for s in samples if s.python}
    return [s for s in samples if s.tid in tids]


def whole_since(samples, began_ns):
    """Seconds from began_ns to the first second of which WARM_SHARE of the samples are whole; None if there is none."""
    low = 0
    for high, s in enumerate(samples):
        while s.ts - samples[low].ts > 1e9:
            low += 1
            if samples[low].origin != recording.WHOLE:
                continue
            window = samples[low:high]
            if share([w for w in window if w.origin == recording.WHOLE], window) >= WARM_SHARE:
                return (samples[low].ts - began_ns) / 1e9
    return None


def first(samples, began_ns, wanted):
    return next(((s.ts - began_ns) / 1e9 for s in samples if wanted(s)), None)


def warm_up(workload, daemon):
    """Lets the workload run until its stacks are whole; returns the seconds from the daemon's start to the stages of
    that."""
    limit = time.monotonic() + WARM_LIMIT
    while True:
        workload.ask("tokens 64")
        latest = python_threads(recording.samples(*recording.fetch(SOCKET, workload.pid, last=2)))
        if whole_since(latest, 0) is not None or time.monotonic() > limit:
            break
    found = python_threads(recording.samples(*recording.fetch(SOCKET, workload.pid)))
    return {
        "ready_s": daemon.ready_s,
        "first_sample_s": first(found, daemon.began_ns, lambda s: True),
        "first_python_s": first(found, daemon.began_ns, lambda s: s.python),
        "first_whole_s": first(found, daemon.began_ns, lambda s: s.origin == recording.WHOLE),
        "whole_s": whole_since(found, daemon.began_ns),
        "start_cpu_s": daemon.stats()[0],
    }


def stacks(samples):
    """Shares of the samples of Python threads, and of the others."""
    mine = python_threads(samples)
    whole = [s for s in mine if s.origin == recording.WHOLE]
    return {
        "samples": len(mine),
        "whole": share(whole, mine),
        "python": share([s for s in mine if s.python], mine),
        "both": share([s for s in whole if s.python], mine),
        "spliced": share([s for s in mine if s.origin == recording.SPLICED], mine),
        "other_threads": len(samples) - len(mine),
    }


def sums(summary):
    """The largest error of a thread's partition, as a share of the window, and the number of threads."""
    length = summary["length_ns"]
    errors = [abs(t["running_ns"] + t["runnable_ns"] + t["blocked_ns"] + t["absent_ns"] - length) / length
              for t in summary["threads"]] if summary["scheduled"] else []
    return {"threads": len(errors), "worst": max(errors, default=0.0)}


def fill(workload):
    """Lets the workload run until the recorder has no room, or for FILL seconds."""
    limit = time.monotonic() + FILL
    while time.monotonic() < limit and not recording.recorder(SOCKET)["overwritten"]:
        workload.ask("tokens 64")


def watch(way, options, workload):
    """Watches the workload in one way for an interval, and returns what was found."""
    daemon = Daemon(
        f"{options.bin}/inferscoped", workload.pid, f"{options.out}/daemon-{way.replace(' ', '')}.log", *WAYS[way]
    )
    found = warm_up(workload, daemon) if sampled(way) else {"ready_s": daemon.ready_s}
    cpu0, _ = daemon.stats()
    answers = chunks(options, workload, CHUNKS)
    (cpu1, found["rss_mb"]), rest = daemon.stats(), daemon.memory()
    time.sleep(0.4)  # timers of the readers, and stacks on their way
    seconds = (answers[-1]["to_ns"] - answers[0]["from_ns"]) / 1e9
    found["ms"] = ms_per_token(answers)
    found["cpu_share"] = (cpu1 - cpu0) / seconds
    meta, events = recording.fetch(SOCKET, workload.pid, last=seconds + 2)
    spans = [(a["from_ns"], a["to_ns"]) for a in answers]
    found["launches"] = recording.count_calls(meta, events, LAUNCHES, spans)
    if sampled(way):
        inside = [s for s in recording.samples(meta, events) if spans[0][0] <= s.ts <= spans[-1][1]]
        found["stacks"] = stacks(inside)
        found["cuts"], found["ends"] = cuts(meta, inside), ends(meta, inside)
    text = report(options.bin, workload.pid, "json", "--last", f"{seconds:.0f}s")
    open(f"{options.out}/report-{way.replace(' ', '')}.json", "w").write(text)
    model = json.loads(text)
    found["sums"] = sums(model["cpu"])
    found["losses"] = [d for d in model["doubts"] if d["severity"] != "info"]
    if way == FULL:
        fill(workload)
        report(options.bin, workload.pid, "json")
    found["held_mb"] = recording.recorder(SOCKET)["used_bytes"] / 1e6
    found["peak_mb"], found["peak"], found["rest"] = daemon.peak_mb, daemon.peak, rest
    daemon.stop()
    return found


def alternate(options, workload):
    """Rounds of all ways, the order turned round each time, with time alone between; returns a list of results by
    way."""
    results = {way: [] for way in options.ways.split(",")}
    alone, end, rounds = [chunks(options, workload, CHUNKS // 2)], time.monotonic() + options.seconds, 0
    while rounds < options.rounds or time.monotonic() < end:
        ways = options.ways.split(",")
        for way in ways if rounds % 2 == 0 else reversed(ways):
            found = watch(way, options, workload)
            alone.append(chunks(options, workload, CHUNKS // 2))
            found["alone_ms"] = ms_per_token(alone[-2] + alone[-1])
            found["added"] = found["ms"] / found["alone_ms"] - 1
            results[way].append(found)
            print(f"  {way}: {found['ms']:.3f} ms per token, {100 * found['added']:+.1f}%", file=sys.stderr, flush=True)
        rounds += 1
    return results, ms_per_token([a for block in alone for a in block])


def samplerbench(options):
    """The rows of test/samplerbench under this interpreter, as a list; empty where the program is missing."""
    program, path = f"{options.bin}/samplerbench", f"{options.out}/samplerbench.json"
    rows = [r for r in options.rows.split(",") if r]
    if not rows or not os.path.exists(program):
        return []
    subprocess.run(
        [program, "-python", sys.executable, "-seconds", "4", "-warmup", "1", "-json", path, *rows],
        timeout=240,
        check=False,
    )
    return json.load(open(path)) if os.path.exists(path) else []


def middle(results, *path):
    """The median of a figure over the rounds; None where no round has it."""
    values = []
    for r in results:
        for key in path:
            r = r[key]
        values.append(r)
    values = [v for v in values if v is not None]
    return statistics.median(values) if values else None


def number(value, form="{:.2f}"):
    return "-" if value is None else form.format(value)


def table(results):
    """Prints one line for each way, medians of its rounds."""
    print(f"\n{'':12}{'ms/token':>9}{'added':>8}{'samples':>9}{'whole':>8}{'Python':>8}{'both':>8}"
          f"{'1st py s':>9}{'1st whole':>10}{'whole s':>8}{'CPU':>7}{'RSS MB':>8}{'peak':>6}")
    for way, rounds in results.items():
        line = f"{way:12}{middle(rounds, 'ms'):9.3f}{100 * middle(rounds, 'added'):+7.1f}%"
        if sampled(way):
            line += f"{sum(r['stacks']['samples'] for r in rounds):9}" + "".join(
                f"{100 * middle(rounds, 'stacks', k):7.2f}%" for k in ("whole", "python", "both"))
            line += f"{number(middle(rounds, 'first_python_s')):>9}{number(middle(rounds, 'first_whole_s')):>10}{number(middle(rounds, 'whole_s')):>8}"
        else:
            line += " " * 60
        print(
            f"{line}{100 * middle(rounds, 'cpu_share'):6.2f}%{middle(rounds, 'rss_mb'):8.0f}{max(r['peak_mb'] for r in rounds):6.0f}"
        )


def memory_table(results):
    """Prints what the memory of the daemon and its helper was made of: at the peak of all rounds, and at the end of the
    last."""
    print(f"\n{'MB (Pss)':26}{'all':>7}{'anon':>7}{'file':>7}{'shmem':>7}")
    for way, rounds in results.items():
        peak = max(rounds, key=lambda r: r["peak_mb"])
        for when, found in (("peak", peak["peak"]), ("at rest", rounds[-1]["rest"])):
            for role, parts in found.items():
                print(f"{way + ', ' + when + ', ' + role:26}" + "".join(
                    f"{parts.get(k, 0):7.1f}" for k in ("Pss", "Pss_Anon", "Pss_File", "Pss_Shmem")))


def cuts(meta, samples):
    """Counts why stacks of Python threads are not whole: {reason: share of all their samples}, the most frequent."""
    mine = python_threads(samples)
    names = {recording.SPLICED: "spliced", 2: "Python and leaf only", 3: "leaf only"}
    found = collections.Counter(f"{names[s.origin]}: {recording.cut(meta, s)}"
                                for s in mine if s.origin != recording.WHOLE)
    return {reason: n / len(mine) for reason, n in found.most_common(8)}


def ends(meta, samples):
    """Counts where the walk of stacks ended that are not whole: [frames, samples], the most frequent."""
    return collections.Counter(
        recording.ends(meta, s) for s in python_threads(samples) if s.origin != recording.WHOLE
    ).most_common(40)


def cuts_table(results):
    """Prints why stacks were not whole, of the last round of each way."""
    for way, rounds in results.items():
        for reason, part in rounds[-1].get("cuts", {}).items():
            print(f"{way}: {100 * part:6.2f}%  {reason}")


def checks_of(results, made, code):
    """The checks, as print_checks takes them; made is torch's own count of launches in a chunk."""
    checks = []
    for way, rounds in results.items():
        if made and set(PROBES) <= set(WAYS[way]):
            counts = [n for r in rounds for n in r["launches"]]
            checks.append(
                (f"{way}: launches in each chunk seen / made", f"{sorted(set(counts))} / {made}", set(counts) == {made})
            )
        losses = [d for r in rounds for d in r["losses"]]
        checks.append((f"{way}: losses", str([(d["reason"], d.get("count")) for d in losses] or 0), not losses))
        if "--scheduling=true" in WAYS[way]:
            worst, threads = max(r["sums"]["worst"] for r in rounds), middle(rounds, "sums", "threads")
            checks.append(
                (
                    f"{way}: threads' states add up, worst error",
                    f"{worst:.2e} of the window, {threads} threads",
                    bool(threads) and worst <= SUM_ERROR,
                )
            )
        peak = max(r["peak_mb"] for r in rounds)
        checks.append(
            (
                f"{way}: daemon's memory at most",
                f"{peak:.0f} MB, recorder {max(r['held_mb'] for r in rounds):.0f} MB",
                peak <= MEMORY,
            )
        )
        if sampled(way):
            both = middle(rounds, "stacks", "both")
            checks.append((f"{way}: samples whole and with Python", f"{100 * both:.2f}%", both >= GOAL))
    return checks + [("workload's exit code", str(code), code == 0)]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda", help="cuda, or cpu to try this without a GPU")
    parser.add_argument("--seconds", type=float, default=60, help="no new round begins after so many")
    parser.add_argument("--rounds", type=int, default=2, help="at least so many")
    parser.add_argument("--tokens", type=int, default=256, help="of a chunk")
    parser.add_argument(
        "--ways", default="rare calls,scheduling,99 Hz,499 Hz,calls,all", help=f"with commas, of: {', '.join(WAYS)}"
    )
    parser.add_argument("--rows", default=ROWS, help="of test/samplerbench, with commas; empty for none")
    parser.add_argument("bin")
    parser.add_argument("out")
    return parser.parse_args()


def main():
    options = arguments()
    os.makedirs(options.out, exist_ok=True)
    workload = Workload(options.device)
    results, alone = alternate(options, workload)
    made = 0
    if options.device == "cuda":
        made = launches_of_torch(workload.ask(f"count {options.tokens}")["calls"])
    code = workload.quit()
    rows = samplerbench(options)
    with open(f"{options.out}/cpu_check.json", "w") as file:
        json.dump({"alone_ms": alone, "launches_of_torch": made, "ways": results, "samplerbench": rows}, file, indent=1)
    print(f"alone: {alone:.3f} ms per token (median)")
    table(results)
    memory_table(results)
    print("\nsamples whose stacks are not whole, by why")
    cuts_table(results)
    print()
    sys.exit(0 if print_checks(checks_of(results, made, code)) else 1)


if __name__ == "__main__":
    main()
