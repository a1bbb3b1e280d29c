"""Programs of collectives_check.py: ranks of torch.distributed, and one process with all GPUs.

Usage: ranks.py ranks (or choices, or copies, which are the same), or ranks.py both. The first is the parent of one
process for each GPU. Commands come on standard input, an answer of JSON to each, a list with what each process says:
    run STEPS STRAGGLE_US COVERED UNEVEN   STEPS steps; rank 1 works for STRAGGLE_US on the CPU before each; with
                                           COVERED=1 products run beside; with UNEVEN=1 ranks have more to do in turn
    hang SECONDS                           an all-reduce to which rank 1 comes so late; ranks only
    stages STEPS PART                      ranks pass a tensor around, each after products of its own, the last rank
                                           after PART times as many; ranks only
    group VARIANT                          makes a communicator whose algorithms or protocols are forced (VARIANTS), 0:
                                           none is; ranks only, as the next three
    warm                                   a few operations on it, of a type of their own
    sizes REPEATS                          operations of all SIZES on it
    together REPEATS                       groups of all-reduces on it: of one size, and of two
    gather REPEATS                         all-gathers that copy engines carry out; ranks only
    peer COPIES BYTES                      copies from GPU 0 to GPU 1 and half as many back; both only
    pipe STEPS                             half of the products of a step on GPU 0, then half on GPU 1; both only
    quit
"""

import json
import os
import subprocess
import sys
import tempfile
import time

import torch

ELEMENTS = 1 << 20
VARIANTS = ({}, {"NCCL_ALGO": "allreduce:tree"}, {"NCCL_PROTO": "LL128"}, {"NCCL_PROTO": "Simple"})
SIZES = {  # bytes that a rank gives, of a type for each, by which reports tell them apart
    "float32": 1 << 10, "float16": 8 << 10, "bfloat16": 64 << 10, "float64": 512 << 10, "int8": 4 << 20,
    "int64": 32 << 20, "int32": 256 << 20,
}


class Rank:
    """One process per GPU: each step has an all-reduce, an all-gather and a reduce-scatter of a type of their own."""

    def __init__(self, rank, ranks, store):
        import torch.distributed as dist

        rank, ranks = int(rank), int(ranks)
        self.dist, self.rank, self.ranks = dist, rank, ranks
        torch.cuda.set_device(rank)
        dist.init_process_group(
            "nccl",
            store=dist.FileStore(store, ranks),
            rank=rank,
            world_size=ranks,
            device_id=torch.device("cuda", rank),
        )
        self.x, self.w = (torch.randn(2048, 2048, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        self.reduced = torch.randn(ELEMENTS, device="cuda", dtype=torch.bfloat16)
        self.part, self.whole = torch.randn(ELEMENTS // ranks, device="cuda"), torch.empty(ELEMENTS, device="cuda")
        self.half, self.halves = (
            torch.empty(ELEMENTS // ranks, device="cuda").half(),
            torch.randn(ELEMENTS, device="cuda").half(),
        )
        self.passed = torch.randn(1 << 16, device="cuda", dtype=torch.bfloat16)
        for _ in range(8):
            self.step(0, False)

    def step(self, straggle_ns, covered, more=0):
        """One step; returns when this rank called the first collective, CLOCK_MONOTONIC ns."""
        until = time.monotonic_ns() + straggle_ns
        while straggle_ns and time.monotonic_ns() < until:
            pass
        for _ in range(more):
            self.x @ self.w
        at = time.monotonic_ns()
        work = self.dist.all_reduce(self.reduced, async_op=covered)
        y = self.x @ self.w
        if covered:
            for _ in range(4):
                y = y @ self.w
            work.wait()
        if not straggle_ns and more == 0:  # a straggler's steps have one collective, which its skew is measured by
            self.dist.all_gather_into_tensor(self.whole, self.part)
            y = y @ self.w
            self.dist.reduce_scatter_tensor(self.half, self.halves)
        torch.cuda.synchronize()
        return at

    def run(self, steps, straggle=0, covered=0, uneven=0):
        own = straggle * 1000 if self.rank == 1 else min(straggle, 1)
        began = time.monotonic_ns()
        times = [self.step(own, covered, uneven and (60 if i % 2 == self.rank else 20)) for i in range(steps)]
        n = ELEMENTS
        expect = {"AllReduce bfloat16": [steps, 2 * n * steps]}
        if not straggle and not uneven:
            expect |= {
                "AllGather float32": [steps, 4 * n // self.ranks * steps],
                "ReduceScatter float16": [steps, 2 * n // self.ranks * steps],
            }
        return {"expect": expect, "times": times, "step_ns": (time.monotonic_ns() - began) / steps}

    def group(self, variant):
        for name in ("NCCL_ALGO", "NCCL_PROTO"):
            os.environ.pop(name, None)
        os.environ.update(VARIANTS[variant])
        self.made = self.dist.new_group(list(range(self.ranks)), backend="nccl")
        return self.warm()

    def warm(self):
        for _ in range(20):
            self.operations("uint8", 7 * self.ranks, 1)
        return {"expect": {}}

    def operations(self, kind, elements, repeats):
        """Each of five operations so many times; elements are those that a rank gives."""
        kind, group = getattr(torch, kind), self.made
        part, whole = (torch.zeros(n, device="cuda", dtype=kind) for n in (elements, elements * self.ranks))
        for _ in range(repeats):
            self.dist.all_reduce(part, group=group)
            self.dist.all_gather_into_tensor(whole, part, group=group)
            self.dist.reduce_scatter_tensor(part, whole, group=group)
            self.dist.broadcast(part, 0, group=group)
            self.dist.reduce(part, 0, group=group)
        torch.cuda.synchronize()

    def sizes(self, repeats):
        for kind, size in SIZES.items():
            self.operations(kind, size // getattr(torch, kind).itemsize, repeats)
        return {"expect": {}}

    def together(self, repeats):
        same = [torch.zeros(16 << 10, device="cuda") for _ in range(4)]
        others = [torch.zeros(n, device="cuda", dtype=torch.float16) for n in (2 << 10, 8 << 20)]
        for _ in range(repeats):
            for tensors in (same, others):
                self.dist.all_reduce_coalesced(tensors, group=self.made)
        torch.cuda.synchronize()
        return {"expect": {}}

    def gather(self, repeats):
        """All-gathers of symmetric memory, on a communicator that is to use no thread blocks: NCCL 2.28 and newer has
        copy engines do them. Returns how long they took on the GPU, ns, by events of the stream."""
        if not hasattr(self, "symmetric"):
            import torch.distributed._symmetric_memory as symmetric

            symmetric.set_backend("NCCL")
            options = self.dist.ProcessGroupNCCL.Options()
            options.config.cta_policy = self.dist.ProcessGroupNCCL.NCCL_CTA_POLICY_ZERO
            group = self.dist.new_group(list(range(self.ranks)), backend="nccl", pg_options=options)
            self.dist.barrier(group=group)  # the communicator is made at the first operation
            whole = symmetric.empty(ELEMENTS * self.ranks, dtype=torch.float64, device=torch.device("cuda", self.rank))
            symmetric.rendezvous(whole, group=group.group_name)
            self.symmetric = group, whole
        group, whole = self.symmetric
        part = whole[self.rank * ELEMENTS : (self.rank + 1) * ELEMENTS]
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(repeats):
            self.dist.all_gather_into_tensor(whole, part, group=group)
        end.record()
        torch.cuda.synchronize()
        return {"expect": {"AllGather float64": [repeats, 8 * ELEMENTS * repeats]}, "ns": begin.elapsed_time(end) * 1e6}

    def hang(self, seconds):
        """An all-reduce to which rank 1 comes late."""
        if self.rank == 1:
            time.sleep(seconds)
        self.dist.all_reduce(self.reduced)
        torch.cuda.synchronize()
        return {"expect": {"AllReduce bfloat16": [1, 2 * ELEMENTS]}}

    def stages(self, steps, part):
        """Steps of a pipeline, one micro-batch at a time: what the last rank sends begins the first one's next step.
        Returns how long the products took, ns, by events of the stream."""
        products, marks, began = 30 * (part if self.rank == self.ranks - 1 else 1), [], time.monotonic_ns()
        for step in range(steps):
            if step or self.rank:
                self.transfer(self.dist.irecv, (self.rank - 1) % self.ranks)
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            for _ in range(products):
                self.x @ self.w
            end.record()
            marks.append((begin, end))
            if step < steps - 1 or self.rank < self.ranks - 1:
                self.transfer(self.dist.isend, (self.rank + 1) % self.ranks)
            torch.cuda.synchronize()
        busy = sum(begin.elapsed_time(end) for begin, end in marks) * 1e6
        return {"expect": {}, "busy_ns": busy, "ns": time.monotonic_ns() - began}

    def transfer(self, operation, rank):
        """One send or receive by the communicator of the group: by itself it would have one of its own."""
        for work in self.dist.batch_isend_irecv([self.dist.P2POp(operation, self.passed, rank)]):
            work.wait()


class Both:
    """One process with all GPUs: a group of one all-reduce per GPU, through torch.cuda.nccl, whose communicators
    ncclCommInitAll makes."""

    def __init__(self):
        import torch.cuda.nccl as nccl

        self.nccl, self.ranks = nccl, torch.cuda.device_count()
        self.tensors = [torch.randn(ELEMENTS, device=f"cuda:{i}") for i in range(self.ranks)]
        self.w = [torch.randn(2048, 2048, device=f"cuda:{i}") for i in range(self.ranks)]
        for _ in range(8):
            self.step()
        self.buffers = {}
        self.peer(4, 1 << 20)
        self.pipe(2)

    def step(self):
        for w in self.w:
            w @ w
        self.nccl.all_reduce(self.tensors)
        for i in range(self.ranks):
            torch.cuda.synchronize(i)

    def run(self, steps, *_):
        began = time.monotonic_ns()
        for _ in range(steps):
            self.step()
        return {
            "expect": {"AllReduce float32": [self.ranks * steps, self.ranks * 4 * ELEMENTS * steps]},
            "times": [],
            "step_ns": (time.monotonic_ns() - began) / steps,
        }

    def copies(self, source, destination, count, size):
        """Copies one after the other; returns how long they took on the GPU, ns, by events of the stream."""
        if (source, size) not in self.buffers:
            self.buffers[source, size] = torch.empty(size, dtype=torch.uint8, device=f"cuda:{source}")
        x, y = self.buffers[source, size], torch.empty(size, dtype=torch.uint8, device=f"cuda:{destination}")
        for i in range(self.ranks):
            torch.cuda.synchronize(i)
        with torch.cuda.device(source):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            for _ in range(count):
                y.copy_(x, non_blocking=True)
            end.record()
            end.synchronize()
            return begin.elapsed_time(end) * 1e6

    def peer(self, count, size):
        back = count // 2
        return {
            "peers": {"0>1": [count, count * size], "1>0": [back, back * size]},
            "ns": {"0>1": self.copies(0, 1, count, size), "1>0": self.copies(1, 0, back, size)},
        }

    def pipe(self, steps):
        """Each step: products on GPU 0, their result to GPU 1, products there, a wait. Returns how long each GPU
        computed, ns, by events of its stream."""
        if not hasattr(self, "v"):
            self.v = [torch.randn(4096, 4096, device=f"cuda:{i}") / 64 for i in range(2)]
        busy, began = [0.0, 0.0], time.monotonic_ns()
        for _ in range(steps):
            x, marks = self.v[0], []
            for i in range(2):
                with torch.cuda.device(i):
                    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                    x = x.to(f"cuda:{i}", non_blocking=True)
                    begin.record()
                    for _ in range(10):
                        x = x @ self.v[i]
                    end.record()
                    marks.append((begin, end))
            for i in range(2):
                torch.cuda.synchronize(1 - i)
            for i, (begin, end) in enumerate(marks):
                busy[i] += begin.elapsed_time(end) * 1e6
        return {"expect": {}, "busy_ns": busy, "ns": time.monotonic_ns() - began}


class Ranks:
    """The parent of one process for each GPU."""

    def __init__(self):
        ranks, store = torch.cuda.device_count(), tempfile.mktemp(prefix="ranks-")
        self.children = [
            subprocess.Popen(
                [sys.executable, __file__, "rank", str(i), str(ranks), store],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for i in range(ranks)
        ]
        self._answers()

    def _answers(self):
        return [answer for c in self.children for answer in self._answer(c)]

    def _answer(self, child):
        while line := child.stdout.readline():
            if line.startswith("["):  # NCCL may print its version
                return json.loads(line)
        raise SystemExit(f"rank process {child.pid} ended with {child.wait()}")

    def ask(self, *words):
        for c in self.children:
            print(*words, file=c.stdin, flush=True)
        return self._answers()


def main():
    kind, arguments = sys.argv[1], sys.argv[2:]
    program = {"both": Both, "ranks": Ranks, "choices": Ranks, "copies": Ranks, "rank": Rank}[kind](*arguments)
    print(json.dumps([{"ready": True}]), flush=True)
    for line in sys.stdin:
        words = line.split()
        if words[0] == "quit":
            break
        if isinstance(program, Ranks):
            answer = program.ask(*words)
        else:
            answer = [getattr(program, words[0])(*map(int, words[1:]))]
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
