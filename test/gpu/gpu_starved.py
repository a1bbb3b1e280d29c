"""The stage starved of the GPU check: programs that hardly get a CPU, attached to again and again (starved.py)."""

import os
import re
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ENDING = 30.0  # s that the programs may take to end


def starved(check):
    command = [
        sys.executable, f"{HERE}/starved.py", "--bin", check.bin, "--workloads-dir", check.cpp, "--out",
        f"{check.out}/starved", "--limit", f"{check.left() - ENDING:.0f}",
    ]
    said = ""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as p:
        for line in p.stdout:
            print(line, end="", flush=True)
            said += line
    found = re.search(r"(\d+) attachments, (\d+) deaths, (\d+) windows", said)
    if not found:
        check.table.add("starved", {}, [f"it broke off with {p.returncode}"])
        return
    seed = re.search(r"seed (\d+)", said).group(1)
    figures = dict(zip(("attachments", "deaths", "windows"), found.groups()), seed=seed)
    check.table.add(
        "starved",
        figures,
        [line for line in said.splitlines() if line.startswith(("DEAD", "BROKEN", "BAD END"))]
        or (["see above"] if p.returncode else []),
    )
