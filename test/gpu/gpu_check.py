"""Checks InferScope's view of a real GPU, and what it costs, against programs that count for themselves and against
PyTorch's profiler.

Usage: gpu_check.py --bin BIN_DIR [--workloads-dir build/gpu-workloads] [--out OUT_DIR] --stage STAGE
                    [--only plain,graphs,...] [--modes continuous,windows] [--limit SECONDS] [--nsys PATH]
Root; the programs of scripts/gpu-workloads.sh; for the torch workloads PyTorch with CUDA. gpu_stages.py names the
stages, and says where each of them is described. Each stage prints one table, writes OUT_DIR/gpu_check-STAGE.json after
every row, keeps to its time limit (what did not fit is named), and ends with 1 if a row failed. The card's settings are
left alone.
"""

import argparse
import json
import os
import signal
import sys
import time
import traceback

import gpu_nsys
import gpu_stages
import gpu_workload
from gpu_daemon import Harm


class OutOfTime(Exception):
    """The stage's time limit is over."""


class Table:
    """Rows of figures; each is shown at once and kept in a file."""

    def __init__(self, stage, path):
        self.stage, self.path, self.rows, self.failed = stage, path, [], 0

    def add(self, what, figures, failures=()):
        row = {"what": what, **figures, "failures": list(failures)}
        self.rows.append(row)
        self.failed += bool(failures)
        print(
            f"{'FAIL' if failures else 'ok  '}  {what}: "
            + ", ".join(f"{k} {v}" for k, v in figures.items() if k != "detail"),
            flush=True,
        )
        for f in failures:
            print(f"        {f}", flush=True)
        with open(self.path, "w") as out:
            json.dump({"stage": self.stage, "rows": self.rows}, out, indent=1)

    def show(self):
        columns = ["what"]
        for row in self.rows:
            columns += [k for k in row if k not in columns and k not in ("failures", "detail")]
        cells = [columns] + [
            [str(row.get(c, "")) for c in columns]
            + (["FAIL: " + "; ".join(row["failures"])] if row["failures"] else [])
            for row in self.rows
        ]
        widths = [max(len(r[i]) for r in cells) for i in range(len(columns))]
        print()
        for r in cells:
            print("  ".join(c.ljust(w) for c, w in zip(r, widths + [0])).rstrip())


class Check:
    """What the stages need: where things are, and how much time is left."""

    def __init__(self, args):
        self.bin, self.cpp, self.out = args.bin, args.workloads_dir, args.out
        self.modes = args.modes.split(",")
        self.cycles, self.windows, self.seconds, self.rounds = args.cycles, args.windows, args.seconds, args.rounds
        self.pairs = args.pairs
        self.deadline = time.monotonic() + args.limit
        self.simulated = args.simulated
        self.nsys = gpu_nsys.find(args.nsys)
        self.added = {}  # share of time that a mode added to a workload, for comparison with other profilers
        self.table = Table(args.stage, f"{args.out}/gpu_check-{args.stage}.json")
        names, missing = (
            gpu_workload.available(self.cpp)
            if not self.simulated
            else ([n for n in gpu_workload.NAMES if n in gpu_workload.CPP], {})
        )
        self.asked = args.only.split(",") if args.only else []
        self.names = [n for n in self.asked or names if n in names]
        for name, why in missing.items():
            print(f"not run: {name}: {why}")

    def left(self):
        return self.deadline - time.monotonic()

    def workload(self, name, before=(), env=None, suffix=""):
        return gpu_workload.Workload(name, self.cpp, before=before, env=env, suffix=suffix)

    def log(self, what):
        return f"{self.out}/daemon-{what.replace(' ', '-').replace('/', '-')}.log"

    def row(self, what, needs_s, measure):
        """Runs one measurement, which returns figures and failures, unless its time is over."""
        if self.left() < needs_s:
            self.table.add(what, {"detail": "", "skipped": f"needs {needs_s:.0f} s, {self.left():.0f} are left"})
            return
        try:
            figures, failures = measure()
        except Harm as e:
            figures, failures = {}, [str(e)]
        except OutOfTime:
            raise
        except Exception:  # a row must not take the others with it
            figures, failures = {}, [traceback.format_exc(limit=-3)]
        self.table.add(what, figures, failures)


def parse():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--bin", required=True, help="folder of inferscoped and inferscope")
    p.add_argument("--workloads-dir", default="build/gpu-workloads")
    p.add_argument("--out", default="build/gpu")
    p.add_argument("--stage", required=True, choices=sorted(gpu_stages.STAGES))
    p.add_argument("--only", default="", help="workloads, by comma")
    p.add_argument("--modes", default="continuous,windows")
    p.add_argument("--limit", type=float, default=520, help="seconds the whole stage may take")
    p.add_argument("--seconds", type=float, default=8, help="length of a measured interval")
    p.add_argument(
        "--rounds", type=int, default=2, help="cost, budget, continuous, turns, floor: times that each is measured"
    )
    p.add_argument("--pairs", type=int, default=3, help="turns: turns of CUPTI alone, and of recording all the time")
    p.add_argument("--cycles", type=int, default=100, help="soak, together, detach: attachments, 0: none")
    p.add_argument("--windows", type=int, default=500, help="soak, together: windows, 0: none")
    p.add_argument(
        "--nsys",
        default="",
        help="the nsys to compare with (default: of PATH, or the one that comes with Nsight Compute)",
    )
    p.add_argument(
        "--simulated",
        action="store_true",
        help="the programs are linked with the simulated CUDA: no torch, no counts by the device",
    )
    return p.parse_args()


def main():
    args = parse()
    os.makedirs(args.out, exist_ok=True)
    check = Check(args)

    def over(*_):
        raise OutOfTime

    signal.signal(signal.SIGALRM, over)
    signal.alarm(int(args.limit) + 10)
    try:
        gpu_stages.STAGES[args.stage](check)
    except OutOfTime:
        check.table.add("time", {}, [f"the stage did not end within {args.limit:.0f} s"])
    finally:
        signal.alarm(0)
    check.table.show()
    sys.exit(1 if check.table.failed or not check.table.rows else 0)


if __name__ == "__main__":
    main()
