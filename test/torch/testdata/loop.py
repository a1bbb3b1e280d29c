"""Runs PyTorch on the CPU for ever, in phases of PHASE seconds that take turns.

Usage: loop.py PHASE_NAME...      (attention, convolution, scripted, compiled)

Each phase is a Python function of its own name, so that a sample says by its
Python stack which phase it is of. It prints {"torch": version, "phases": [...],
"failed": {name: why}} once every phase has run once; a phase that cannot run on
this machine (compiled wants a C++ compiler) is in "failed" and left out.
"""

import json
import sys
import time
import warnings

import torch

warnings.filterwarnings("ignore")
PHASE = 0.25


class Attention(torch.nn.Module):
    """A transformer's layer of single operators, so that each of them is dispatched."""

    def __init__(self, width=128, heads=4):
        super().__init__()
        self.heads = heads
        self.qkv = torch.nn.Linear(width, 3 * width)
        self.out = torch.nn.Linear(width, width)
        self.norm = torch.nn.LayerNorm(width)
        self.up = torch.nn.Linear(width, 4 * width)
        self.down = torch.nn.Linear(4 * width, width)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (y.view(b, t, self.heads, -1).transpose(1, 2) for y in self.qkv(x).chunk(3, dim=-1))
        weights = torch.softmax(q @ k.transpose(-2, -1) / 8.0, dim=-1)
        x = self.norm(x + self.out((weights @ v).transpose(1, 2).reshape(b, t, c)))
        return x + self.down(torch.nn.functional.gelu(self.up(x)))


class Pointwise(torch.nn.Module):
    """What a compiler can work on: many small steps."""

    def forward(self, x):
        for _ in range(8):
            x = torch.tanh(x) * 0.5 + x.sin() * 0.25
        return x


def until(step):
    end = time.monotonic() + PHASE
    while time.monotonic() < end:
        step()


def attention():
    layer, x = Attention().eval(), torch.randn(2, 64, 128)

    def attention():
        until(lambda: layer(x))
    return attention


def convolution():
    layer, x = torch.nn.Conv2d(32, 32, 3).eval(), torch.randn(1, 32, 64, 64)

    def convolution():
        until(lambda: layer(x))
    return convolution


def scripted():
    model, x = torch.jit.script(Pointwise().eval()), torch.randn(64, 256)

    def scripted():
        until(lambda: model(x))
    return scripted


def compiled():
    model, x = torch.compile(Pointwise().eval()), torch.randn(64, 256)
    model(x)

    def compiled():
        until(lambda: model(x))
    return compiled


MAKERS = {"attention": attention, "convolution": convolution, "scripted": scripted, "compiled": compiled}


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    phases, failed = {}, {}
    with torch.no_grad():
        for name in sys.argv[1:]:
            try:
                phases[name] = MAKERS[name]()
                phases[name]()
            except Exception as why:  # whatever a compiler may raise
                phases.pop(name, None)
                failed[name] = f"{type(why).__name__}: {why}"[:300]
        print(json.dumps({"torch": torch.__version__, "phases": list(phases), "failed": failed}), flush=True)
        while True:
            for phase in phases.values():
                phase()


main()
