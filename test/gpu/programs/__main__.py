"""python3 -m programs NAME [fixed]: runs a program, driven over stdin (base.drive)."""

import os
import sys

from . import base, causes, workloads


def main():
    name = sys.argv[1]
    if name in workloads.WORKLOADS:
        step = workloads.WORKLOADS[name]()
    else:
        step = causes.PROGRAMS[name][0]("fixed" in sys.argv[2:])
    if name != "server":
        for _ in range(3):  # warm
            step()
        base.sync()
    base.drive(os.getpid(), step)


main()
