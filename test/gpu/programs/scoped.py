"""python3 -m programs.scoped NAME STEPS: a workload as a program of its own, each step in a scope, for `inferscope
run`.

It prints one JSON line: {"steps", "ns": of each step, as the program itself measured them, "nvtx": ranges}.
"""

import json
import sys
import time

import torch

from inferscope import scope

from . import base, workloads

SCOPE, NVTX = "llm_inference", "nvtx step"


def main():
    step = workloads.WORKLOADS[sys.argv[1]]()
    step()  # warm
    base.sync()
    took = []
    for n in range(int(sys.argv[2])):
        began = time.monotonic_ns()
        with scope(SCOPE, number=n):
            if base.DEVICE == "cuda":
                with torch.cuda.nvtx.range(NVTX):
                    step()
            else:
                step()
        took.append(time.monotonic_ns() - began)
    print(json.dumps({"steps": len(took), "ns": took, "nvtx": len(took) if base.DEVICE == "cuda" else 0}), flush=True)


main()
