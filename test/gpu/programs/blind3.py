"""Programs with a planted cause whose author had read nothing of how causes are recognized: what decoding loops,
training loops and servers do by oversight.

Each function returns step(), as causes.py says.
"""

import gc
import logging
import mmap
import multiprocessing
import os
import threading
import time
import zlib

import numpy
import torch

from .base import DEVICE, Work, graph_of, sync, tensor
from .planted import MB, pinned


def item_of_each_sequence(fixed):
    """The token of each of 64 sequences is drawn by the GPU and fetched with .item(); fixed: all are fetched at
    once."""
    work, logits = Work(4), torch.randn(64, 32_000, device=DEVICE)
    noise = torch.empty(32_000, device=DEVICE)

    def drawn(row):
        return (torch.softmax(row, -1) / noise.exponential_()).argmax()

    def step():
        work()
        if fixed:
            return torch.stack([drawn(row) for row in logits]).tolist()
        return [drawn(row).item() for row in logits]

    return step


def cache_by_concatenation(fixed):
    """Each of 24 tokens makes a new KV cache, 2 MB longer, with torch.cat, and a request gives its memory back to the
    driver at its end; fixed: the new one is written to one of two buffers by turns."""
    work, begin, token = Work(1), tensor(64 * MB // 2), tensor(2 * MB // 2)
    size, added = begin.numel(), token.numel()
    buffers = [tensor(size + 24 * added) for _ in range(2)] if fixed else None

    def step():
        cache = begin
        for i in range(24):
            out = buffers[i % 2][:size + (i + 1) * added] if fixed else None
            cache = torch.cat((cache, token), out=out)
            work()
        cache[:1].item()
        del cache, out
        if not fixed:
            torch.cuda.empty_cache()

    return step


def bags_on_the_host(fixed):
    """A recommender's table of 200 MB lies in host memory, where one CPU adds up the 300 rows of each of 512 users;
    fixed: the table lies on the GPU."""
    torch.set_num_threads(1)
    place = DEVICE if fixed else "cpu"
    table = torch.ones(200_000, 256, device=place)
    ids = torch.randint(200_000, (512, 300), generator=torch.Generator().manual_seed(0)).to(place)
    work = Work(12)

    def pooled():
        return torch.nn.functional.embedding_bag(ids, table, mode="sum")

    def step():
        users = pooled().to(DEVICE)
        work()
        users[0, 0].item()

    return step


def inputs_of_a_graph(fixed):
    """The 256 rows of a block table are copied to a graph's input from ordinary memory, one by one; fixed: at once,
    from pinned memory."""
    work, table = Work(8), torch.zeros(256, 4096, dtype=torch.int32, device=DEVICE)
    replay = graph_of(lambda: work()[0, 0] + table.sum())
    rows = [torch.ones(4096, dtype=torch.int32) for _ in range(256)]
    packed = torch.ones(256, 4096, dtype=torch.int32, pin_memory=DEVICE == "cuda")

    def step():
        if fixed:
            table.copy_(packed, non_blocking=True)
        else:
            for place, row in zip(table, rows):
                place.copy_(row)
        replay()
        sync()

    return step


# The states of a small JSON grammar, and the state after each kind of character; a missing one is not allowed.
GRAMMAR = {
    "value": {"{": "key", '"': "string", "0": "number"},
    "key": {'"': "string", "}": "after"},
    "string": {"a": "string", "0": "string", " ": "string", '"': "after"},
    "number": {"0": "number", ",": "value", "}": "after"},
    "after": {",": "value", ":": "value", "}": "after", " ": "after"},
}


def grammar_in_python(fixed):
    """The tokens that a JSON grammar allows next are found in Python for each of eight sequences; fixed: those of each
    state are remembered."""
    work, states = Work(8), list(GRAMMAR)
    vocabulary = [f'{"{,:}"[i % 4]}"token {i}" ' if i % 3 else f"token {i}" for i in range(3000)]
    known, count = {}, 0

    def allowed(state):
        mask = []
        for token in vocabulary:
            at = state
            for c in token:
                kind = "0" if c.isdigit() else "a" if c.isalpha() else c
                at = GRAMMAR[at].get(kind)
                if at is None:
                    break
            mask.append(at is not None)
        return torch.tensor(mask)

    def mask_of(state):
        if not fixed:
            return allowed(state)
        if state not in known:
            known[state] = allowed(state)
        return known[state]

    def step():
        nonlocal count
        count += 1
        masks = torch.stack([mask_of(states[(count + i) % 5]) for i in range(8)])
        masks.to(DEVICE)
        work()[0, 0].item()

    return step


def collected_now_and_then(fixed):
    """After every sixth request gc.collect() looks through the 400,000 objects of a server's cache; fixed: never."""
    work, count = Work(24), 0
    gc.freeze()  # what is imported would take longer than all else
    cache = [[i, str(i)] for i in range(400_000)]

    def step():
        nonlocal count
        count += 1
        work()[0, 0].item()
        if not fixed and count % 6 == 0:
            gc.collect()
        return cache

    return step


class PackingHandler(logging.Handler):
    """Packs long records, as a handler does that ships them; short ones it keeps as they are."""

    def emit(self, record):
        text = record.getMessage()
        if len(text) > 1000:
            zlib.compress(text.encode(), 6)


def lock_of_a_log(fixed):
    """A thread logs reports of 2 MB, which the handler packs under its lock, and each step logs a line to the same
    handler; fixed: the reports have a handler of their own."""
    def log_to(name, handler):
        log = logging.getLogger(name)
        log.addHandler(handler)
        log.setLevel(logging.INFO)
        log.propagate = False
        return log

    handler = PackingHandler()
    lines = log_to("lock_of_a_log.lines", handler)
    reports = log_to("lock_of_a_log.reports", PackingHandler() if fixed else handler)
    report, work = "request 17: 128 tokens, 7 ms\n" * (2 * MB // 29), Work(12)

    def write_reports():
        while True:
            reports.info(report)
            time.sleep(0.001)  # long enough for one who waits to get the lock

    threading.Thread(target=write_reports, daemon=True, name="reports").start()

    def step():
        lines.info("a step")
        work()[0, 0].item()

    return step


def optimizer_in_a_loop(fixed):
    """SGD with momentum updates 400 small parameters one after the other; fixed: all at once, by torch._foreach."""
    work = Work(4)
    parameters, gradients, momenta = ([torch.ones(64, 64, device=DEVICE) for _ in range(400)] for _ in range(3))

    def update():
        for p, g, m in zip(parameters, gradients, momenta):
            m.mul_(0.9).add_(g)
            p.add_(m, alpha=-1e-3)

    def update_at_once():
        torch._foreach_mul_(momenta, 0.9)
        torch._foreach_add_(momenta, gradients)
        torch._foreach_add_(parameters, momenta, alpha=-1e-3)

    def step():
        work()
        if fixed:
            update_at_once()
        else:
            update()
        sync()

    return step


def more_threads_than_cpus(fixed):
    """Scores are filtered by 16 threads of OpenMP on the two CPUs that the program may use; fixed: by two threads."""
    os.sched_setaffinity(0, set(sorted(os.sched_getaffinity(0))[-2:]))
    torch.set_num_threads(2 if fixed else 16)
    work, scores = Work(8), torch.rand(1 << 20)

    def filtered():
        x = scores
        for _ in range(4):
            x = torch.tanh(x * 0.9 + 0.1)
        return x

    def step():
        best = filtered()[:1024].to(DEVICE)
        work()
        best[0].item()

    return step


def logits_through_a_pipe(fixed):
    """The logits of 64 sequences are pickled to another process through a pipe; fixed: they are written to memory that
    both share, and the pipe says so."""
    rows, columns = 64, 32_000
    shared = numpy.frombuffer(mmap.mmap(-1, rows * columns * 4), dtype=numpy.float32).reshape(rows, columns)
    theirs, ours = multiprocessing.Pipe(duplex=False)

    def read():
        ours.close()
        while True:
            received = theirs.recv()
            (shared if received is None else received)[0].argmax()

    if os.fork() == 0:
        try:
            read()
        except EOFError:
            pass
        finally:
            os._exit(0)
    theirs.close()
    work, logits, host = Work(8), torch.randn(rows, columns, device=DEVICE), pinned(rows, columns)

    def hand_over(scores):
        if fixed:
            shared[:] = scores
            ours.send(None)
        else:
            ours.send(scores)

    def step():
        work()
        host.copy_(logits, non_blocking=True)
        sync()
        hand_over(host.numpy())

    return step


def healthy_single_precision(_):
    """Healthy: products in fp32, one wait for ten of them; half precision would be faster, but not for the CPU."""
    size = 3072 if DEVICE == "cuda" else 128
    x, weight = tensor(size, size, dtype=torch.float32), tensor(size, size, dtype=torch.float32)

    def step():
        y = x
        for _ in range(10):
            y = y @ weight
        y[0, 0].item()

    return step


def healthy_collection(_):
    """Healthy: gc.collect() looks through 50,000 objects while the GPU works, and is done before it."""
    work = Work(60)
    gc.freeze()
    alive = [[i, str(i)] for i in range(50_000)]

    def step():
        y = work()
        gc.collect()
        y[0, 0].item()
        return alive

    return step


BLIND3 = {
    "sampled-items": (item_of_each_sequence, ("host-sync",)),
    "cache-cat": (cache_by_concatenation, ("allocation",)),
    "bags-on-host": (bags_on_the_host, ("native-work",)),
    "graph-inputs": (inputs_of_a_graph, ("sync-copy", "host-sync")),
    "grammar": (grammar_in_python, ("python-work",)),
    "gc-now-and-then": (collected_now_and_then, ("gc",)),
    "log-handler": (lock_of_a_log, ("lock",)),
    "optimizer-loop": (optimizer_in_a_loop, ("launch-overhead",)),
    "too-many-threads": (more_threads_than_cpus, ("no-cpu", "native-work")),
    "piped-logits": (logits_through_a_pipe, ("serialization", "worker")),
    "healthy-fp32": (healthy_single_precision, ()),
    "healthy-gc": (healthy_collection, ()),
}
