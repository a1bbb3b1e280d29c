"""A PyTorch program whose allocations are known, for memory_live_check.py.

It answers one line of JSON to each command on its standard input:
  state            what torch says of the device now
  steps N          N steps of small products: activations that come and go
  leak N           N steps, each of which leaks in three places (first_leak, second_leak, third_leak)
  instants N       N calls after a pause each; answers what torch says after each, and between which times it was
  keep             twelve functions keep blocks of sizes of their own; answers torch's own history by stack
  oom              asks for more than there is
  calibrate RATE   finds how much work between allocations gives RATE of them a second
  churn N          N times 500 allocations with that work between them; answers when each began and ended, and its CPU
                   time, ns
  burn SECONDS     large products for so long
  quit
"""

import json
import sys
import time

import torch

DEVICE = "cuda:0"
MIB = 1 << 20
leaked, kept = [], []


def block(size):
    return torch.empty(size, dtype=torch.uint8, device=DEVICE)


def first_leak():
    leaked.append(block(256 * 1024))


def second_leak():
    leaked.append(block(1 * MIB))


def third_leak():
    leaked.append(torch.zeros(64 * 1024, dtype=torch.float16, device=DEVICE))


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(1024, 1024, bias=True) for _ in range(8))

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x)) + x
        return x


# Each keeps blocks at a line of its own.
KEEPERS = []
for i in range(12):
    source = "\n" * i + f"def keeper_{i}():\n    kept.append(block({(i + 1) * 640 * 1024}))\n"
    scope = {"kept": kept, "block": block}
    exec(compile(source, "keepers.py", "exec"), scope)
    KEEPERS.append(scope[f"keeper_{i}"])


def state():
    torch.cuda.synchronize()
    return {
        "allocated": torch.cuda.memory_allocated(),
        "reserved": torch.cuda.memory_reserved(),
        "peak": torch.cuda.max_memory_allocated(),
        "at": time.monotonic_ns(),
        "allocations": torch.cuda.memory_stats()["allocation.all.allocated"],
        "frees": torch.cuda.memory_stats()["allocation.all.freed"],
    }


def by_stack():
    """Live bytes of blocks allocated since the history began, by Python stack (innermost first): of the blocks, and of
    what was asked for.

    A block may be up to 1 MiB larger than that: the allocator does not split off less.
    """
    out = {}
    for segment in torch.cuda.memory._snapshot()["segments"]:
        for b in segment["blocks"]:
            if b["state"] != "active_allocated" or not b.get("frames"):
                continue
            stack = tuple((f["name"], f["filename"].rsplit("/", 1)[-1], f["line"]) for f in b["frames"])
            size, asked = out.get(stack, (0, 0))
            out[stack] = (size + b["size"], asked + b["requested_size"])
    return [{"stack": stack, "bytes": size, "asked": asked} for stack, (size, asked) in out.items()]


def instants(n):
    """Each call comes more than 10 ms after the one before, so that the daemon is told how memory stands after it."""
    out = []
    for i in range(n):
        time.sleep(0.015)
        begin = time.monotonic_ns()
        if i % 3 == 2:
            del kept[-1]
        else:
            kept.append(block((1 + i % 7) * 300_000))
        end = time.monotonic_ns()
        says = {"allocated": torch.cuda.memory_allocated(), "reserved": torch.cuda.memory_reserved()}
        out.append({"begin": begin, "end": end, **says})
    return out


def keep(model, x):
    torch.cuda.memory._record_memory_history(max_entries=100_000, stacks="python")
    for round_ in range(12):
        for i, keeper in enumerate(KEEPERS):
            if round_ <= i:
                keeper()
        for _ in range(20):
            model(x)
        torch.cuda.synchronize()
        time.sleep(0.05)
    stacks = by_stack()
    torch.cuda.memory._record_memory_history(enabled=None)
    return {"stacks": stacks, **state()}


def oom():
    total = torch.cuda.get_device_properties(0).total_memory
    try:
        block(total)
    except torch.OutOfMemoryError as e:
        return {"caught": str(e)[:200], "asked": total, **state()}
    return {"caught": None}


work = 0


def allocations(n):
    """Returns the thread's CPU time, ns."""
    began = time.thread_time_ns()
    for _ in range(n):
        for _ in range(work):
            pass
        torch.empty(4096, dtype=torch.uint8, device=DEVICE)
    return time.thread_time_ns() - began


def churn(n):
    out = []
    for _ in range(n):
        begin = time.monotonic_ns()
        cpu = allocations(500)
        out.append((begin, time.monotonic_ns(), cpu))
    return out


def calibrate(rate):
    """Rates are of many rounds: of one alone chance decides."""
    global work

    def period():
        return sorted(allocations(2000) / 2e12 for _ in range(9))[4]

    work = 0
    least = period()
    work = 2000
    each = max(1e-10, (period() - least) / work)
    for _ in range(3):
        work = max(0, int(work + (1 / rate - period()) / each))
    return {"work": work, "rate": 1 / period()}


def burn(seconds):
    x = torch.randn(8192, 8192, device=DEVICE, dtype=torch.float16)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for _ in range(20):
            x @ x
        torch.cuda.synchronize()


def leak(model, x, n):
    for _ in range(n):
        first_leak()
        second_leak()
        third_leak()
        model(x)
        time.sleep(0.005)


def main():
    with torch.inference_mode():
        model = Model().half().to(DEVICE)
        weights = [torch.zeros(16 * MIB, dtype=torch.uint8, device=DEVICE) for _ in range(32)]
        x = torch.randn(16, 1024, dtype=torch.float16, device=DEVICE)
        model(x)
        print(json.dumps({"ready": len(weights), **state()}), flush=True)
        for line in sys.stdin:
            command, _, argument = line.strip().partition(" ")
            answer = {}
            if command == "steps":
                for _ in range(int(argument)):
                    model(x)
            elif command == "leak":
                leak(model, x, int(argument))
            elif command == "instants":
                answer = {"instants": instants(int(argument))}
            elif command == "burn":
                burn(float(argument))
            elif command == "keep":
                answer = keep(model, x)
            elif command == "oom":
                answer = oom()
            elif command == "calibrate":
                answer = calibrate(float(argument))
            elif command == "churn":
                answer = {"chunks": churn(int(argument))}
            elif command == "quit":
                break
            print(json.dumps({**state(), **answer}), flush=True)


main()
