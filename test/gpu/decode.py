"""An eager GPT-2 decode with random weights, driven line by line on stdin.

Usage: decode.py [cuda|cpu]      (cpu: to try the scripts without a GPU)

Commands, each answered by one JSON line on stdout:
    tokens N   generate N tokens; answers {"tokens", "seconds", "from_ns", "to_ns"}, times of CLOCK_MONOTONIC
    count N    generate N tokens under torch.profiler; answers {"tokens", "calls": {name: n}}
               (last, because torch.profiler leaves a cost behind in its process)
    quit
It says {"ready": pid} once the model is warm. Nothing is downloaded.
"""

import collections
import json
import os
import sys
import time

import torch
from transformers import GPT2Config, GPT2LMHeadModel

PROMPT = 32


def build(device):
    """Returns a function that generates n tokens on device and waits for them."""
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config()).to(device).eval()
    if device == "cuda":
        model = model.half()
    prompt = torch.randint(0, 50000, (1, PROMPT)).to(device)

    def generate(n):
        with torch.no_grad():
            model.generate(prompt, max_new_tokens=n, min_new_tokens=n, do_sample=False, pad_token_id=0)
        if device == "cuda":
            torch.cuda.synchronize()

    return generate


def count(generate, n):
    """Counts the CUDA API calls that torch itself sees while it generates n tokens."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as prof:
        generate(n)
    calls = collections.Counter(
        e.name for e in prof.events() if e.name.startswith(("cuda", "cu")) and not e.name.startswith("cub")
    )
    kernels = sum(1 for e in prof.events() if e.device_type == torch.autograd.DeviceType.CUDA)
    return {"tokens": n, "calls": dict(calls), "device_events": kernels}


def say(answer):
    print(json.dumps(answer), flush=True)


def main():
    generate = build(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    for _ in range(8):
        generate(32)
    say({"ready": os.getpid()})
    for line in sys.stdin:
        word, *rest = line.split()
        if word == "quit":
            return
        n = int(rest[0])
        if word == "tokens":
            began = time.monotonic_ns()
            generate(n)
            ended = time.monotonic_ns()
            say({"tokens": n, "seconds": (ended - began) / 1e9, "from_ns": began, "to_ns": ended})
        elif word == "count":
            say(count(generate, n))
        else:
            sys.exit(f"decode.py: unknown command {word!r}")


if __name__ == "__main__":
    main()
