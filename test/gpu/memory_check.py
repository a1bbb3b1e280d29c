"""Does a target grow while it is watched? Windows by the hundred, on a real GPU, as a table.

Usage: memory_check.py --bin BIN --workloads-dir DIR [--out DIR] [--only NAME,...] [--seconds S] [--env NAME=VALUE,...]     (root)

Each workload runs S seconds alone, S under many short windows, S under one long one, S alone again. What it grows by itself is
taken off what it grows while watched; what is left is of the agent, or of CUPTI. Growth is shown by whose the mapping is: the agent's
own are left out of core dumps (dd of VmFlags, proc(5)), arenas of the C library begin at multiples of 64 MB. --env MALLOC_ARENA_MAX=1 for
the workloads tells what is spread over arenas from what is lost. The exit code is 1 where a window leaves more than
LEFT kB.
"""

import argparse
import collections
import os
import sys
import time

import gpu_daemon
import gpu_workload

LEFT = 16  # kB that a window may leave: 86,400 windows of a day, 2 s apart, are 43,200 x 16 kB = 0.7 GB
SHORT = ("--gpu-window", "50ms", "--gpu-period", "120ms", "--overhead-budget", "0", "--cpu-sampling-frequency-hz", "0", "--scheduling=false")


def watch(w, seconds, parts=4):
    """Resident MB at the beginning and after each part of a stretch of time."""
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


def owners(pid):
    """Resident kB of the unnamed mappings of a process by whose they are."""
    sizes = collections.Counter()
    with open(f"/proc/{pid}/smaps") as lines:
        for line in lines:
            words = line.split()
            if not words[0].endswith(":"):
                begin, end = (int(x, 16) for x in words[0].split("-"))
                named, rss = len(words) > 5, 0
            elif words[0] == "Rss:":
                rss = int(words[1])
            elif words[0] == "VmFlags:" and not named:
                owner = "agent" if "dd" in words else "arena" if begin % (64 << 20) == 0 else "other, large" if end - begin >= 8 << 20 else "other"
                sizes[owner] += rss
    return sizes


def measure(o, name):
    """Returns whether windows leave little."""
    env = dict(os.environ, **dict(pair.split("=", 1) for pair in o.env.split(",") if pair))
    with gpu_workload.Workload(name, o.workloads_dir, env=env) as w:
        time.sleep(2)
        own = show(name, "alone", watch(w, o.seconds))
        with gpu_daemon.Daemon(o.bin, w.pid, f"{o.out}/{name}.log", "--gpu", "windows", *SHORT) as d:
            d.records()
            began, before, owned = len(d.recording("1h").windows(w.pid)), w.memory(), owners(w.pid)
            mb = watch(w, o.seconds)
            windows = len(d.recording("1h").windows(w.pid)) - began
            left = (show(name, f"{windows} windows", mb, windows) - max(0, own)) / max(1, windows)
            print(f"{name:12} grew: {gpu_workload.grown(before, w.memory())}")
            print(f"{name:12} unnamed, by owner: {gpu_workload.grown(owned, owners(w.pid))}; the agent: {d.agent().get('state')} {d.agent().get('detail', '')}")
        with gpu_daemon.Daemon(o.bin, w.pid, f"{o.out}/{name}.log", "--gpu", "continuous", *SHORT[4:]) as d:
            d.records()
            show(name, "one long window", watch(w, o.seconds))
        show(name, "alone again", watch(w, o.seconds))
        w.quit()
    return left <= LEFT


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--bin", default="bin")
    p.add_argument("--workloads-dir", default="build/gpu-workloads")
    p.add_argument("--out", default="build/gpu")
    p.add_argument("--only", default="graphs,plain,torch-eager")
    p.add_argument("--env", default="", help="environment of the workloads, NAME=VALUE by comma")
    p.add_argument("--seconds", type=float, default=12)
    o = p.parse_args()
    os.makedirs(o.out, exist_ok=True)
    good = [measure(o, name) for name in o.only.split(",")]
    sys.exit(not all(good))


if __name__ == "__main__":
    main()
