"""The programs with a planted cause. Each function returns step(); fixed=True gives the twin without the cause.

PROGRAMS says for each which causes a report may put first: the planted one, and what it cannot be told from.
"""

import gc
import os
import re

import torch

from .base import DEVICE, Work, ahead, sentences, sync, tensor, tokenizer
from .waiting import ask_service, gil_fight, lock_held, one_cpu, poll_with_sleep, read_from_disk, serve, slow_loader


def item_each_step(fixed):
    """A value is read back after each small piece of work."""
    work, total = Work(2, 2048), torch.zeros((), device=DEVICE)

    def step():
        nonlocal total
        for _ in range(20):
            s = work().float().sum()
            if fixed:
                total += s
            else:
                s.item()
        if fixed:
            total.item()

    return step


def pageable_input(fixed):
    """64 MB of input come from ordinary memory for each batch; fixed: pinned, and copied ahead on a stream of its
    own."""
    work, shape = Work(8), (16 << 20,)
    host = torch.randn(*shape)
    if not fixed:
        def step():
            x = host.to(DEVICE)
            y = work()
            (x[:1].sum() + y[0, 0]).item()
        return step
    return prefetched(host.pin_memory() if DEVICE == "cuda" else host, work)


def prefetched(host, work):
    """The input of the next step is copied while this one computes."""
    side, ready = torch.cuda.Stream(), None

    def fetch():
        with torch.cuda.stream(side):
            return host.to(DEVICE, non_blocking=True)

    def step():
        nonlocal ready
        ready = ready if ready is not None else fetch()
        torch.cuda.current_stream().wait_stream(side)
        x, ready = ready, fetch()
        x.record_stream(torch.cuda.current_stream())
        y = work()
        (x[:1].sum() + y[0, 0]).item()

    return step


def copy_in_line(fixed):
    """Pinned input is copied on the stream that computes, so nothing computes meanwhile."""
    work = Work(8)
    host = torch.randn(32 << 20)
    host = host.pin_memory() if DEVICE == "cuda" else host
    if fixed:
        return prefetched(host, work)

    def step():
        x = host.to(DEVICE, non_blocking=True)
        y = work()
        (x[:1].sum() + y[0, 0]).item()

    return step


def tokenize_first(fixed):
    """Requests are tokenized, then the model runs; fixed: a thread tokenizes the next ones meanwhile."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # it would use other threads until it is told
    tok, work, texts = tokenizer(), Work(16), sentences(400, 60)

    def encode_requests():
        return [e.ids[:64] for e in tok.encode_batch(texts)]

    def forward(ids):
        torch.tensor([i + [0] * (64 - len(i)) for i in ids]).to(DEVICE)
        work()[0, 0].item()

    fetch = ahead(encode_requests) if fixed else encode_requests
    return lambda: forward(fetch())


def python_features(fixed):
    """Features are computed in a Python loop before each batch; fixed: a process computes the next ones meanwhile."""
    work, rows = Work(16), sentences(250, 40)

    def features(text):
        counts = [0] * 64
        for word in text.split():
            for c in word:
                counts[(ord(c) * 31) % 64] += 1
        return counts

    def all_features():
        return [features(r) for r in rows]

    fetch = ahead(all_features, process=True) if fixed else all_features

    def step():
        torch.tensor(fetch(), dtype=torch.float32).to(DEVICE)
        work()[0, 0].item()

    return step


def many_launches(fixed):
    """600 element-wise kernels on a small tensor; fixed: a CUDA graph of them."""
    x = tensor(64, 64)

    def body():
        y = x
        for _ in range(200):
            y = torch.relu(y * 1.01 + 0.1)
        return y

    if not fixed or DEVICE != "cuda":
        return lambda: body()[0, 0].item()
    s = torch.cuda.Stream()
    with torch.cuda.stream(s):
        body()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = body()

    def step():
        graph.replay()
        y[0, 0].item()

    return step


def empty_cache(fixed):
    """The caching allocator is emptied at each step, so that each step allocates anew."""
    work = Work(4)

    def step():
        big = [torch.empty(64 << 20, device=DEVICE, dtype=torch.uint8) for _ in range(8)]
        work()
        for b in big:
            b[:1].zero_()
        del big, b
        if not fixed and DEVICE == "cuda":
            torch.cuda.empty_cache()
        work()[0, 0].item()

    return step


def collect_each_step(fixed):
    """gc.collect() after each request, with many objects alive."""
    work, alive = Work(16), [[i, {i: str(i)}] for i in range(200_000)]

    def step():
        work()[0, 0].item()
        if not fixed:
            gc.collect()
        return alive

    return step


def compile_each_step(fixed):
    """A kernel is compiled for each request; fixed: once."""
    work, n = Work(16), 0
    source = 'extern "C" __global__ void scale_%d(float *x) { x[threadIdx.x] *= 1.5f; }'
    x = torch.ones(256, device=DEVICE)

    def compiled(i):
        return torch.cuda._compile_kernel(source % i, "scale_%d" % i)

    once = compiled(0)

    def step():
        nonlocal n
        n += 1
        (once if fixed else compiled(n))((1, 1, 1), (256, 1, 1), (x,))
        work()[0, 0].item()

    return step


def regex_clean(fixed):
    """Text is cleaned with regular expressions before each batch; fixed: once, at start."""
    work, texts = Work(16), sentences(300, 60)
    rules = [re.compile(p) for p in (r"[0-9]+", r"(ing|ed)\b", r"\s+", r"[^a-z ]")]

    def clean(text):
        for r in rules:
            text = r.sub(" ", text)
        return text

    once = [clean(t) for t in texts]

    def step():
        done = once if fixed else [clean(t) for t in texts]
        torch.tensor([len(t) for t in done]).to(DEVICE)
        work()[0, 0].item()

    return step


def busy_products(_):
    """Healthy: large matrix products, one wait for a hundred of them."""
    work = Work(100)

    def step():
        work()
        sync()

    return step


def busy_graph(_):
    """Healthy: a CUDA graph of large products, replayed with no wait for ten of them."""
    work = Work(40)
    work()
    sync()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()

    def step():
        for _ in range(10):
            graph.replay()
        sync()

    return step


# The function, and the keys of the causes that a report may name first; () means that it must accuse nobody.
PROGRAMS = {
    "item": (item_each_step, ("host-sync",)),
    "pageable": (pageable_input, ("sync-copy",)),
    "copy-in-line": (copy_in_line, ("copy-not-overlapped", "copy-bound")),
    "tokenize": (tokenize_first, ("preprocessing",)),
    "regex": (regex_clean, ("preprocessing", "python-work")),
    "python": (python_features, ("python-work",)),
    "launches": (many_launches, ("launch-overhead",)),
    "empty-cache": (empty_cache, ("allocation",)),
    "loader": (slow_loader, ("worker",)),
    "gil": (gil_fight, ("gil",)),
    "gc": (collect_each_step, ("gc",)),
    "sleep": (poll_with_sleep, ("sleep",)),
    "lock": (lock_held, ("lock",)),
    "disk": (read_from_disk, ("disk",)),
    "network": (ask_service, ("network",)),
    "server": (serve, ("no-work",)),
    "one-cpu": (one_cpu, ("no-cpu",)),
    "compile": (compile_each_step, ("compilation",)),
    "healthy-products": (busy_products, ()),
    "healthy-graph": (busy_graph, ()),
}
