"""A GPT-2-size decode in PyTorch, eager or out of a CUDA graph captured at the start, one iteration a token.

Usage: torch_decode.py [--mode eager|graph] [--stats FILE] [--device cuda]

Random weights, half precision, a key-value cache of fixed size, so that each token makes the same kernels. The protocol
and the statistics file are those of workload.h: `count N MS`, `pause`, `go`, `quit`, and for comparison with PyTorch's
own view
    profile N [MS]   N tokens under torch.profiler (CUDA activities), after and before MS of silence: answers its
    kernels by name
It ends with 3 where a CUDA call failed.
"""

import argparse
import collections
import ctypes
import json
import mmap
import os
import select
import signal
import struct
import sys
import time

if os.environ.get("FAULT_LIBRARY"):
    ctypes.CDLL(os.environ["FAULT_LIBRARY"])  # shows what it dies of

import torch
import torch.nn.functional as F

LAYERS, WIDTH, HEADS, CONTEXT, VOCABULARY = 12, 768, 12, 256, 50257
PAGE, CAPACITY = 4096, 1 << 20


class Stats:
    """Begin and end of each iteration, CLOCK_MONOTONIC ns, in a file that others may map."""

    def __init__(self, path):
        size = PAGE + 16 * CAPACITY
        if path:
            with open(path, "wb+") as f:
                f.truncate(size)
                self.map = mmap.mmap(f.fileno(), size)
        else:
            self.map = mmap.mmap(-1, size)
        self.map[:8] = b"ISWORK1\0"
        struct.pack_into("<Q", self.map, 40, CAPACITY)
        self.count = 0

    def add(self, begin, end):
        if self.count < CAPACITY:
            struct.pack_into("<QQ", self.map, PAGE + 16 * self.count, begin, end)
        self.count += 1
        struct.pack_into("<Q", self.map, 8, self.count)


class Block(torch.nn.Module):
    """One transformer layer that decodes a single token."""

    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.LayerNorm(WIDTH), torch.nn.LayerNorm(WIDTH)
        self.qkv, self.out = torch.nn.Linear(WIDTH, 3 * WIDTH), torch.nn.Linear(WIDTH, WIDTH)
        self.up, self.down = torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.Linear(4 * WIDTH, WIDTH)
        self.register_buffer("cache", torch.zeros(2, 1, HEADS, CONTEXT, WIDTH // HEADS))

    def forward(self, x, position):
        q, k, v = self.qkv(self.first(x)).view(1, 1, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        self.cache[0].index_copy_(2, position, k)
        self.cache[1].index_copy_(2, position, v)
        a = F.scaled_dot_product_attention(q, self.cache[0], self.cache[1])
        x = x + self.out(a.transpose(1, 2).reshape(1, 1, WIDTH))
        return x + self.down(F.gelu(self.up(self.second(x))))


class Decoder(torch.nn.Module):
    """Embedding, layers, head and greedy choice: token and position in, token out."""

    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = torch.nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = torch.nn.LayerNorm(WIDTH)

    def forward(self, token, position):
        x = self.embedding(token)
        for block in self.blocks:
            x = block(x, position)
        return F.linear(self.norm(x), self.embedding.weight).argmax(-1)


class Work:
    """The decode loop's state; step makes one token and waits for it."""

    def __init__(self, mode, device):
        torch.manual_seed(0)
        dtype = torch.float16 if device == "cuda" else torch.float32
        self.model = Decoder().to(device=device, dtype=dtype).eval()
        self.token = torch.zeros(1, 1, dtype=torch.long, device=device)
        self.position = torch.zeros(1, dtype=torch.long, device=device)
        self.graph = None
        if mode == "graph":
            self._capture()
        for _ in range(30):
            self.step()

    def _once(self):
        self.token.copy_(self.model(self.token, self.position))
        self.position.copy_((self.position + 1) % CONTEXT)

    def _capture(self):
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for _ in range(3):
                self._once()
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self._once()

    def step(self):
        if self.graph:
            self.graph.replay()
        else:
            self._once()
        return self.token.item()  # a copy to the host: the token is there when it returns


def profile(work, n, silence):
    """n tokens under torch.profiler, and what it saw on the GPU."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as torch_profile

    with torch_profile(activities=[ProfilerActivity.CUDA]) as prof:
        time.sleep(silence)
        begin = time.monotonic_ns()
        for _ in range(n):
            work.step()
        torch.cuda.synchronize()
        end = time.monotonic_ns()
        time.sleep(silence)
    names = collections.defaultdict(list)
    for event in prof.events():
        if event.device_type == torch.autograd.DeviceType.CUDA and not event.name.startswith(("Memcpy", "Memset")):
            names[event.name].append(event.device_time if hasattr(event, "device_time") else event.cuda_time)
    return {
        "begin_ns": begin, "end_ns": end, "iterations": n, "kernels": sum(map(len, names.values())),
        "names": {name: [len(times), sum(times) / len(times)] for name, times in names.items()},
    }


class Server:
    """Iterates, and answers commands between iterations."""

    def __init__(self, work, stats):
        self.work, self.stats, self.paused, self.ended, self.buffer = work, stats, False, False, b""

    def one(self):
        begin = time.monotonic_ns()
        self.work.step()
        self.stats.add(begin, time.monotonic_ns())

    def count(self, n, ms=300):
        time.sleep(ms / 1e3)
        begin = time.monotonic_ns()
        for _ in range(n):
            self.one()
        torch.cuda.synchronize() if torch.cuda.is_available() else None
        end = time.monotonic_ns()
        time.sleep(ms / 1e3)
        return {"begin_ns": begin, "end_ns": end, "iterations": n}

    def command(self, word, *numbers):
        numbers = [int(n) for n in numbers]
        if word == "count":
            return self.count(*numbers)
        if word == "profile":
            return profile(self.work, numbers[0], (numbers + [300])[1] / 1e3)
        if word in ("pause", "go"):
            self.paused = word == "pause"
            return {}
        if word == "quit":
            self.ended = True
            return None
        return {"error": "no such command"}

    def listen(self, timeout):
        if not select.select([0], [], [], timeout)[0]:
            return
        got = os.read(0, 4096)
        self.ended = self.ended or not got
        self.buffer += got
        while b"\n" in self.buffer:
            line, self.buffer = self.buffer.split(b"\n", 1)
            answer = self.command(*line.decode().split())
            if answer is not None:
                print(json.dumps(answer), flush=True)

    def serve(self):
        while not self.ended:
            self.listen(0.01 if self.paused else 0)
            if not self.paused and not self.ended:
                self.one()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", choices=("eager", "graph"), default="eager")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--stats", default="")
    args = parser.parse_args()
    stats = Stats(args.stats)
    with torch.inference_mode():
        server = Server(Work(args.mode, args.device), stats)
        signal.signal(signal.SIGTERM, lambda *_: setattr(server, "ended", True))
        print(json.dumps({"ready": os.getpid(), "threads": 1}), flush=True)
        try:
            server.serve()
        except RuntimeError as e:
            print(e, file=sys.stderr)
            os._exit(3)
    print(json.dumps({"ended": True, "iterations": stats.count}), flush=True)


if __name__ == "__main__":
    main()
