"""Nsight Systems beside the GPU check: which nsys, and a workload under it."""

import glob
import os
import shutil
import sqlite3
import subprocess

from gpu_daemon import Daemon
from gpu_workload import CPP


def find(asked):
    """Path of an nsys: the one that was asked for, that of PATH, or the newest that came with Nsight Compute; "" where
    there is none."""
    brought = sorted(glob.glob("/opt/nvidia/nsight-compute/*/host/target-linux-x64/nsys"))
    return asked or shutil.which("nsys") or (brought[-1] if brought else "")


def command(check, name):
    """The command that runs a workload under nsys."""
    return [
        check.nsys, "profile", "-t", "cuda", "--sample=none", "--cpuctxsw=none", "--cuda-graph-trace=node", "-f",
        "true", "-o", f"{check.out}/nsys-{name}",
    ]


def recorded(check, name):
    """What nsys left of a workload: its raw data or its report, in bytes; 0: nothing."""
    return sum(os.path.getsize(p) for p in files(check, name))


def files(check, name):
    """Paths of what nsys left of a workload."""
    return [p for p in glob.glob(f"{check.out}/nsys-{name}.*") if p.endswith((".qdstrm", ".nsys-rep"))]


def under(check, name):
    """nsys is in the process from its start: ours is refused, and nsys's count stays right, where it can make a
    report."""
    with check.workload(name, command(check, name)) as w:
        with Daemon(check.bin, w.pid, check.log(f"nsys {name}"), "--gpu", "continuous") as d:
            state = d.settled()
            made = w.ask("count 300 400", 60)
        end = w.quit()
    failures = [] if state["state"] == "refused" else [f"the agent is {state['state']} beside nsys"]
    figures = {
        "agent": state["state"],
        "it says": (state.get("detail") or "").replace(",", ";")[:120],
        "nsys recorded MB": f"{recorded(check, name) / 1e6:.1f}",
    }
    report = f"{check.out}/nsys-{name}.nsys-rep"
    if not os.path.exists(report):
        figures["nsys saw / made"] = "this nsys came without its importer: its recording cannot be read"
        return figures, failures
    n = _counted(check, report, f"{check.out}/nsys-{name}.sqlite")
    figures["nsys saw / made"] = f"{n} / {made['kernels']}"
    warm = 10 * CPP[name]  # half of the warm-up's iterations use the counted kernels
    if n != made["kernels"] + warm:
        failures.append(
            f"nsys saw {n} of {made['kernels'] + warm} counted kernels; the program made {end['kernels']} in all"
        )
    return figures, failures


def _counted(check, report, db):
    subprocess.run(
        [check.nsys, "export", "--type", "sqlite", "-f", "true", "-o", db, report],
        check=True,
        capture_output=True,
        timeout=300,
    )
    with sqlite3.connect(db) as c:
        return c.execute(
            "select count(*) from CUPTI_ACTIVITY_KIND_KERNEL k join StringIds s on s.id = k.shortName where s.value "
            "like 'counted%'"
        ).fetchone()[0]
