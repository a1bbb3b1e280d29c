#!/usr/bin/env python3
"""NVTX ranges of a PyTorch loop, with the daemon's windows: does each window have them, and not the first one alone?

Each window ends with a finalize of CUPTI, and the next one subscribes anew; whether CUPTI's NVTX functions live through
that is what this is about. The loop names each step and two parts of it (torch.cuda.nvtx). Run once with
NVTX_INJECTION64_PATH naming PyTorch's libcupti at the start, and once without, where nothing may come.

    sudo python3 test/gpu/nvtx_check.py --bin bin
"""

import argparse
import collections
import glob
import os
import subprocess
import sys
import tempfile
import time

from gpu_daemon import Daemon, Harm

RANGE, NVTX = 12, 0  # enum event_kind of bpf/event.h; func of such an event
LOOP = """
import sys, time, torch
a = torch.randn(512, 512, device="cuda")
torch.cuda.synchronize()
print("ready", flush=True)
while True:
    with torch.cuda.nvtx.range("step"):
        with torch.cuda.nvtx.range("decode"):
            for _ in range(10):
                b = a @ a
        torch.cuda.nvtx.mark("decoded")
        with torch.cuda.nvtx.range("wait"):
            torch.cuda.synchronize()
"""


def cupti_of_torch():
    import torch
    site = os.path.dirname(os.path.dirname(torch.__file__))
    found = glob.glob(f"{site}/nvidia/cu*/lib/libcupti.so.1[0-9]") + glob.glob(
        f"{site}/nvidia/cuda_cupti/lib/libcupti.so.1[0-9]"
    )
    if not found:
        raise SystemExit("no libcupti in PyTorch's environment")
    return found[0]


def per_window(rec, pid):
    """For each window that is over: how many ranges began in it, by name."""
    ranges = rec.events[(rec.events["kind"] == RANGE) & (rec.events["func"] == NVTX)]
    names = rec.gpu.get("ranges") or []
    out = []
    for start, end in rec.windows(pid):
        inside = ranges[(ranges["ts"] >= start) & (ranges["ts"] < end)]
        out.append(collections.Counter(names[r - 1] if 0 < r <= len(names) else "?" for r in inside["ret"]))
    return out


def watch(bin_dir, env, seconds):
    with subprocess.Popen([sys.executable, "-c", LOOP], env=env, stdout=subprocess.PIPE) as p:
        try:
            p.stdout.readline()
            with tempfile.NamedTemporaryFile() as log, Daemon(bin_dir, p.pid, log.name, "--overhead-budget", "0") as d:
                d.settled()
                time.sleep(seconds)
                found = per_window(d.recording(), p.pid)
            if p.poll() is not None:
                raise Harm(f"the program ended with {p.returncode}")
            return found
        finally:
            p.kill()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True)
    parser.add_argument("--seconds", type=float, default=15)
    args = parser.parse_args()
    env = {k: v for k, v in os.environ.items() if k != "NVTX_INJECTION64_PATH"}
    good = True
    for named in (True, False):
        windows = watch(
            args.bin, {**env, **({"NVTX_INJECTION64_PATH": cupti_of_torch()} if named else {})}, args.seconds
        )
        print("NVTX_INJECTION64_PATH set:" if named else "not set:", f"{len(windows)} windows")
        for i, counts in enumerate(windows):
            print(f"  window {i + 1}: {dict(counts)}")
        whole = [all(c[n] > 0 for n in ("step", "decode", "wait")) for c in windows]
        good &= len(windows) >= 3 and all(whole[:-1]) if named else not any(windows)
    print("ok" if good else "FAIL")
    sys.exit(not good)


if __name__ == "__main__":
    main()
