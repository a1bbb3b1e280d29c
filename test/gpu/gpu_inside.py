"""The stage inside of the GPU check: what CUPTI does while a thread is inside of it (inside.c), each case in processes
of its own. One row a case: how long each call of another thread took, whether it waited for the thread that was inside,
and how the process ended."""

import os
import subprocess

from gpu_floor import libcupti

HERE = os.path.dirname(os.path.abspath(__file__))


def inside(check):
    program = os.path.abspath(f"{check.out}/inside")
    subprocess.run(["cc", "-O2", "-pthread", "-o", program, f"{HERE}/inside.c", "-ldl"], check=True)
    said = subprocess.run(
        [program, libcupti()], stdout=subprocess.PIPE, text=True, timeout=check.left(), check=True
    ).stdout
    rows = [line.split("\t") for line in said.splitlines()[1:]]
    for name in dict.fromkeys(r[0] for r in rows):
        _row(check, name, [r for r in rows if r[0] == name])


def _row(check, name, runs):
    ends = ", ".join(f"{r[3]} ({r[1]})" for r in runs)
    figures = {
        "ms of each step, T was": runs[0][2].strip(),
        "ends (freed memory)": ends,
        "last words": next((r[4] for r in runs if r[4]), ""),
    }
    harmed = [r[3] for r in runs if r[3] != "unharmed"]
    # The order that kills, and dropping a window beside a thread in a callback, are to be seen, whatever comes of them.
    failures = harmed if "again when it is out" in name or "own refused call" in name or "nobody" in name else []
    check.table.add(name, figures, failures)
