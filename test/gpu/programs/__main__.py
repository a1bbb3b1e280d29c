"""python3 -m programs NAME [fixed] [later]: runs a program, driven over stdin (base.drive).

With "later" it waits, imports done and before it uses the GPU, for the line "begin" on stdin: it is at the lowest
priority until then, so that it does not disturb one that is measured. A program that cannot run here answers {"skip":
why}.
"""

import os
import sys

from . import base, blind, blind2, blind3, blind4, blind5, blind6, causes, heldout, planted, workloads


def step_of(name, fixed):
    if name in workloads.WORKLOADS:
        return workloads.WORKLOADS[name]()
    programs = causes.PROGRAMS | planted.PLANTED | heldout.HELD_OUT
    programs |= blind.BLIND | blind2.BLIND2 | blind3.BLIND3 | blind4.BLIND4 | blind5.BLIND5 | blind6.BLIND6
    return programs[name][0](fixed)


def main():
    name, words = sys.argv[1], sys.argv[2:]
    if "later" in words:
        sys.stdin.readline()
        os.setpriority(os.PRIO_PROCESS, 0, 0)
    try:
        step = step_of(name, "fixed" in words)
    except base.Skip as why:
        base.say({"skip": str(why)})
        return
    if name != "server":
        for _ in range(3):  # warm
            step()
        base.sync()
    base.drive(os.getpid(), step)


main()
