"""Two small stages of the GPU check.

start   what an agent that CUDA loads at the start (CUDA_INJECTION64_PATH) adds to cuInit, in processes of their own
floor   what CUPTI itself costs a launch, whoever asks it (workloads/floor.cu): kernel records alone, with callbacks that do nothing
"""

import glob
import json
import os
import re
import subprocess
import sys
import time

import numpy

from gpu_cost import percent
from gpu_daemon import PATIENCE, Harm

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


# --- start ---

def start(check):
    check.row("cuInit", 4 * ROUNDS, lambda: _start(check))


def _start(check):
    timer = f"{check.out}/injection.so"
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", timer, f"{HERE}/injection.c", "-ldl"], check=True)
    agent = os.path.abspath(AGENT)
    ways = {"alone": {}, "with the agent": {"CUDA_INJECTION64_PATH": agent}, "timed": {"CUDA_INJECTION64_PATH": os.path.abspath(timer), "INJECTED": agent}}
    took, parts = {way: [] for way in ways}, []
    until = time.monotonic() + 3 * ROUNDS
    while len(parts) < ROUNDS and (len(parts) < 2 or time.monotonic() < until):
        for way, more in ways.items():
            said = _init(more)
            took[way].append(int(said["init"]) / 1e6)
            if way == "timed":
                parts.append([int(said["load"]) / 1e6, int(said["start"]) / 1e6])
    figures = {f"ms {way}, median (range)": f"{numpy.median(v):.1f} ({min(v):.1f} to {max(v):.1f})" for way, v in took.items() if way != "timed"}
    load, begun = numpy.median(parts, 0)
    figures |= {"ms to load it/InitializeInjection, median": f"{load:.3f}/{begun:.3f}", "longest": "/".join(f"{x:.3f}" for x in numpy.max(parts, 0)), "processes": len(parts)}
    return figures, []


def _init(more):
    r = subprocess.run([sys.executable, "-c", INIT], env=dict(os.environ, **more), capture_output=True, text=True, timeout=PATIENCE)
    said = dict(re.findall(r"(\w+) (\d+)", r.stdout))
    if r.returncode or "init" not in said:
        raise Harm(f"cuInit in a process of its own ended with {r.returncode}: {r.stdout}{r.stderr}")
    return said


# --- floor ---

def floor(check):
    check.row("plain launches, by what CUPTI does", 20, lambda: _floor(check))


def _floor(check):
    r = subprocess.run([f"{check.cpp}/floor", libcupti(), str(check.rounds)], capture_output=True, text=True, timeout=PATIENCE)
    if r.returncode:
        raise Harm(f"floor ended with {r.returncode}: {r.stdout}{r.stderr}")
    ns = json.loads(r.stdout)
    alone = numpy.median(ns["alone"])
    figures = {"ns a launch alone": f"{alone:.0f}"}
    for way, values in ns.items():
        if way != "alone" and values:
            figures[way] = f"{numpy.median(values) - alone:+.0f} ns {percent(numpy.median(values) / alone - 1)}"
    return figures, [] if ns["alone"] else ["nothing was measured"]


def libcupti():
    """A libcupti of this machine: what the environment names, that of this Python's packages, or the toolkit's."""
    patterns = [f"{p}/nvidia/*/lib/libcupti.so.1*" for p in sys.path] + ["/usr/local/cuda/extras/CUPTI/lib64/libcupti.so.1?"]
    found = [os.environ["CUPTI"]] if os.environ.get("CUPTI") else [f for p in patterns for f in sorted(glob.glob(p))]
    if not found:
        raise Harm("no libcupti is found: name one in the environment variable CUPTI")
    return found[0]
