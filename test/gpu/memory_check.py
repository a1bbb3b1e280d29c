"""Does a target grow while it is watched? Windows and attachments by the hundred, on a real GPU, as a table.

Usage: memory_check.py --bin BIN --workloads-dir DIR [--out DIR] [--only NAME,...] [--seconds S] [--attachments N]
[--env NAME=VALUE,...]     (root)

Each workload runs S seconds alone, S under many short windows, S under one long one, S alone again. What it grows by
itself is taken off what it grows while watched; what is left is of the agent, or of CUPTI. With --attachments that many
follow, of one window each. Growth is shown by whose the mapping is (gpu_memory.py), and, of blocks of malloc that are
alive, by the library that asked for them: what is resident and not alive is malloc's own. --env MALLOC_ARENA_MAX=1 for
the workloads tells what is spread over arenas from what is lost. The exit code is 1 where a window leaves more than
LEFT kB, or each of the later half of the attachments more than LEFT_ATTACHED.
"""

import argparse
import os
import sys
import time

import numpy

import gpu_daemon
import gpu_memory
import gpu_workload

LEFT = 16  # kB that a window may leave: 86,400 windows of a day, 2 s apart, are 43,200 x 16 kB = 0.7 GB
LEFT_ATTACHED = 100  # kB that an attachment may leave
LEAN = ("--overhead-budget", "0", "--cpu-sampling-frequency-hz", "0", "--scheduling=false")
SHORT = ("--gpu-window", "50ms", "--gpu-period", "120ms", *LEAN)
ONE = ("--gpu-window", "50ms", "--gpu-period", "60s", *LEAN)


def watch(w, seconds, parts=4):
    """Resident MB at the beginning and after each part of an interval."""
    out = [w.footprint()["rss_mb"]]
    for _ in range(parts):
        time.sleep(seconds / parts)
        out.append(w.footprint()["rss_mb"])
    return out


def show(name, what, mb, windows=0):
    grown = (mb[-1] - mb[0]) * 1000
    each = f", {grown / windows:.0f} kB a window" if windows else ""
    print(f"{name:12} {what:28} MB {' '.join(f'{x:.1f}' for x in mb)}: {grown:+.0f} kB{each}", flush=True)
    return grown


def measure(o, name, allocations):
    """Returns whether windows and attachments leave little."""
    env = dict(os.environ, **allocations.environment(), **dict(pair.split("=", 1) for pair in o.env.split(",") if pair))
    with gpu_workload.Workload(name, o.workloads_dir, env=env) as w:
        time.sleep(2)
        left = windows(o, w, allocations, show(name, "alone", watch(w, o.seconds)))
        with gpu_daemon.Daemon(o.bin, w.pid, f"{o.out}/{name}.log", "--gpu", "continuous", *LEAN) as d:
            d.records()
            show(name, "one long window", watch(w, o.seconds))
        show(name, "alone again", watch(w, o.seconds))
        each = attachments(o, w, allocations) if o.attachments else 0
        w.quit()
    return left <= LEFT and each <= LEFT_ATTACHED


def windows(o, w, allocations, own):
    """kB that each of many windows of one attachment leaves, where the program grows by own kB meanwhile."""
    with gpu_daemon.Daemon(o.bin, w.pid, f"{o.out}/{w.name}.log", "--gpu", "windows", *SHORT) as d:
        d.records()
        began, before = len(d.recording("1h").windows(w.pid)), gpu_memory.Holdings(w, allocations)
        mb = watch(w, o.seconds)
        n = len(d.recording("1h").windows(w.pid)) - began
        left = (show(w.name, f"{n} windows", mb, n) - max(0, own)) / max(1, n)
        print(
            f"{w.name:12} grew: {gpu_memory.Holdings(w, allocations).grown(before)}; the agent: "
            f"{d.agent().get('state')} {d.agent().get('detail', '')}",
            flush=True,
        )
    return left


def attachments(o, w, allocations):
    """kB that each of the later half of the attachments leaves: what the first ones take is taken once."""
    before, mb = gpu_memory.Holdings(w, allocations), []
    for i in range(o.attachments):
        with gpu_daemon.Daemon(o.bin, w.pid, f"{o.out}/{w.name}.log", "--gpu", "windows", *ONE) as d:
            d.wait("a window to end", lambda d=d: any(a["windows"] for a in d.status().get("agents") or []))
        time.sleep(0.05)  # the agent gives its pages back last
        mb.append(w.footprint()["rss_mb"])
        if (i + 1) % max(1, o.attachments // 4) == 0:
            now = gpu_memory.Holdings(w, allocations)
            print(f"{w.name:12} to attachment {i + 1}: {now.grown(before)}", flush=True)
            before = now
    half = mb[len(mb) // 2:]
    each = 1000 * float(numpy.polyfit(numpy.arange(len(half)), half, 1)[0])
    print(
        f"{w.name:12} {len(mb)} attachments, MB {' '.join(f'{x:.1f}' for x in mb[:: max(1, len(mb) // 16)])}: "
        f"{each:+.0f} kB each in the later half",
        flush=True,
    )
    return each


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--bin", default="bin")
    p.add_argument("--workloads-dir", default="build/gpu-workloads")
    p.add_argument("--out", default="build/gpu")
    p.add_argument("--only", default="graphs,plain,torch-eager")
    p.add_argument("--env", default="", help="environment of the workloads, NAME=VALUE by comma")
    p.add_argument("--seconds", type=float, default=12)
    p.add_argument("--attachments", type=int, default=0)
    o = p.parse_args()
    os.makedirs(o.out, exist_ok=True)
    allocations = gpu_memory.Allocations(o.out)
    good = [measure(o, name, allocations) for name in o.only.split(",")]
    sys.exit(not all(good))


if __name__ == "__main__":
    main()
