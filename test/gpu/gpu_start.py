"""The stage start of the GPU check: what an agent that CUDA loads at the start (CUDA_INJECTION64_PATH) adds to cuInit,
in processes of their own."""

import os
import re
import subprocess
import sys
import time

import numpy

from gpu_daemon import TIMEOUT, Harm

HERE = os.path.dirname(os.path.abspath(__file__))
AGENT = os.path.join(HERE, "..", "..", "agent", "agent_amd64.so")
INIT = """import ctypes, os, time
cuda = ctypes.CDLL("libcuda.so.1")
t = time.monotonic_ns()
code = cuda.cuInit(0)
print("init", time.monotonic_ns() - t, "code", code, flush=True)
os._exit(code)  # the agent's thread is in no one's way at the end
"""
ROUNDS = 8


def start(check):
    check.row("cuInit", 4 * ROUNDS, lambda: _start(check))


def _start(check):
    timer = f"{check.out}/injection.so"
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", timer, f"{HERE}/injection.c", "-ldl"], check=True)
    agent = os.path.abspath(AGENT)
    ways = {
        "alone": {},
        "with the agent": {"CUDA_INJECTION64_PATH": agent},
        "timed": {"CUDA_INJECTION64_PATH": os.path.abspath(timer), "INJECTED": agent},
    }
    took, parts = {way: [] for way in ways}, []
    until = time.monotonic() + 3 * ROUNDS
    while len(parts) < ROUNDS and (len(parts) < 2 or time.monotonic() < until):
        for way, more in ways.items():
            said = _init(more)
            took[way].append(int(said["init"]) / 1e6)
            if way == "timed":
                parts.append([int(said["load"]) / 1e6, int(said["start"]) / 1e6])
    figures = {
        f"ms {way}, median (range)": f"{numpy.median(v):.1f} ({min(v):.1f} to {max(v):.1f})"
        for way, v in took.items()
        if way != "timed"
    }
    load, begun = numpy.median(parts, 0)
    figures |= {
        "ms to load it/InitializeInjection, median": f"{load:.3f}/{begun:.3f}",
        "longest": "/".join(f"{x:.3f}" for x in numpy.max(parts, 0)),
        "processes": len(parts),
    }
    return figures, []


def _init(more):
    r = subprocess.run(
        [sys.executable, "-c", INIT], env=dict(os.environ, **more), capture_output=True, text=True, timeout=TIMEOUT
    )
    said = dict(re.findall(r"(\w+) (\d+)", r.stdout))
    if r.returncode or "init" not in said:
        raise Harm(f"cuInit in a process of its own ended with {r.returncode}: {r.stdout}{r.stderr}")
    return said
