"""Programs with a planted cause that were written after the model was frozen: what a service does beside its model, one
thing each.

Each function returns step(), as causes.py says.
"""

import copy
import ctypes
import json
import os
import socket
import sqlite3
import tempfile
import threading

import torch

from .base import DEVICE, Skip, Work, graph_of, sentences, sync, tensor
from .planted import MB, cuda_runtime, pinned


def json_answers(fixed):
    """Each step's answer is written as JSON with 20,000 scores; fixed: as it is."""
    work, answer = Work(8), {"scores": [{"id": i, "score": i / 7, "label": f"label-{i}"} for i in range(20_000)]}

    def step():
        work()[0, 0].item()
        if not fixed:
            json.dumps(answer)

    return step


def host_memory(fixed):
    """Each step allocates 32 MB of pinned memory for its input and frees it; fixed: once."""
    if DEVICE != "cuda":
        raise Skip("no GPU")
    work, x, rt, kept = Work(8), tensor(8 * MB, dtype=torch.float32), cuda_runtime(), ctypes.c_void_p()

    def staging():
        p = ctypes.c_void_p()
        rt.cudaHostAlloc(ctypes.byref(p), ctypes.c_size_t(32 * MB), 0)
        return p

    if fixed:
        kept = staging()

    def step():
        p = kept if fixed else staging()
        rt.cudaMemcpyAsync(
            ctypes.c_void_p(x.data_ptr()),
            p,
            ctypes.c_size_t(32 * MB),
            1,
            ctypes.c_void_p(torch.cuda.current_stream().cuda_stream),
        )
        work()[0, 0].item()
        if not fixed:
            rt.cudaFreeHost(p)

    return step


def tiny_operations(fixed):
    """300 operations on 16 K numbers each; fixed: the same in a CUDA graph."""
    x = tensor(16_384)

    def body():
        y = x
        for _ in range(100):
            y = torch.relu(y * 1.01 + 0.1)
        return y

    replay = graph_of(body) if fixed else body

    def step():
        replay()
        sync()

    return step


def item_of_each_layer(fixed):
    """After each of 24 layers the host looks at a number of it; fixed: at the end only."""
    work = Work(2, 1024)

    def step():
        x = None
        for _ in range(24):
            x = work()
            if not fixed:
                float(x[0, 0])
        float(x[0, 0])

    return step


def offloaded_weights(fixed):
    """Each layer's weights come from pinned memory right before it; fixed: those of the next one come while a layer
    works."""
    if DEVICE != "cuda":
        raise Skip("no GPU")
    host = [pinned(8 * MB) for _ in range(4)]
    device = [torch.empty(8 * MB, device=DEVICE) for _ in range(2)]
    work, side = Work(3), torch.cuda.Stream()
    done = [torch.cuda.Event(), torch.cuda.Event()]

    def in_line():
        for w in host:
            device[0].copy_(w, non_blocking=True)
            work()
        sync()

    def prefetched():
        main = torch.cuda.current_stream()
        for i, w in enumerate(host):
            with torch.cuda.stream(side):
                device[i % 2].copy_(w, non_blocking=True)
                done[i % 2].record()
            if i:
                work()
            main.wait_event(done[i % 2])
        work()
        sync()

    return prefetched if fixed else in_line


def acknowledged(fixed):
    """Each answer is sent over TCP to a peer that takes 3 ms to acknowledge it, which the step awaits; fixed: it is not
    awaited."""
    here, there = socket.socketpair()
    work = Work(8)
    wait = threading.Event()

    def peer():
        while there.recv(64):
            wait.wait(0.003)
            there.sendall(b"k")

    def drain():
        while here.recv(64):
            pass

    threading.Thread(target=peer, daemon=True).start()
    if fixed:
        threading.Thread(target=drain, daemon=True).start()

    def step():
        work()[0, 0].item()
        here.sendall(b"a")
        if not fixed:
            here.recv(1)

    return step


def sorted_on_the_host(fixed):
    """A million scores are sorted by the CPU at each step; fixed: not at all."""
    torch.set_num_threads(1)
    work, scores = Work(8), torch.rand(400_000)

    def order():
        return torch.sort(scores).indices

    def step():
        work()[0, 0].item()
        if not fixed:
            order()

    return step


def copied_settings(fixed):
    """The settings of each request are a deep copy of the defaults; fixed: the defaults."""
    work, defaults = (
        Work(8),
        {f"key-{i}": {"value": i, "allowed": [i, i + 1], "nested": {"a": str(i)}} for i in range(400)},
    )

    def fresh():
        return copy.deepcopy(defaults)

    def step():
        work()[0, 0].item()
        if not fixed:
            fresh()

    return step


def resized_on_the_host(fixed):
    """A picture is made smaller by the CPU before it is copied; fixed: by the GPU."""
    torch.set_num_threads(1)
    work, picture = Work(8), pinned(1, 3, 1080, 1920)

    def resized(x):
        return torch.nn.functional.interpolate(x, size=(224, 224), mode="bilinear", antialias=True)

    def step():
        x = resized(picture.to(DEVICE)) if fixed else resized(picture).to(DEVICE)
        work()[0, 0].item()
        return x

    return step


def committed_rows(fixed):
    """Each step's text is committed to a database on the disk; fixed: it stays in memory."""
    work, texts = Work(4), sentences(64, 400)
    path = ":memory:" if fixed else os.path.join(tempfile.mkdtemp(), "answers.db")
    base = sqlite3.connect(path, check_same_thread=False)
    base.execute("pragma synchronous=full")
    base.execute("create table answers (text text)")

    def step():
        work()[0, 0].item()
        base.executemany("insert into answers values (?)", [(t,) for t in texts])
        base.commit()

    return step


def busy_eager(_):
    """Healthy: large products, launched one by one well ahead of the GPU, with a look at the result after each 40."""
    work = Work(40)

    def step():
        work()[0, 0].item()

    return step


HELD_OUT = {
    "json-answers": (json_answers, ("serialization",)),
    "host-memory": (host_memory, ("allocation",)),
    "tiny-operations": (tiny_operations, ("launch-overhead",)),
    "item-per-layer": (item_of_each_layer, ("host-sync",)),
    "offloaded": (offloaded_weights, ("copy-not-overlapped", "copy-bound")),
    "acknowledged": (acknowledged, ("worker", "network")),
    "host-sort": (sorted_on_the_host, ("native-work",)),
    "settings": (copied_settings, ("python-work",)),
    "resized": (resized_on_the_host, ("preprocessing", "native-work")),
    "committed": (committed_rows, ("disk",)),
    "healthy-eager": (busy_eager, ()),
}
