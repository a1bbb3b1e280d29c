"""More programs with a planted cause whose author had read nothing of how causes are recognized: other processes, event
loops, files, and what happens now and then.

Each function returns step(), as causes.py says.
"""

import asyncio
import fcntl
import json
import logging
import mmap
import os
import socket
import subprocess
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy
import torch

from .base import DEVICE, Work, ahead, graph_of, sentences, sync, tensor
from .planted import MB


def expert_on_the_host(fixed):
    """One expert of a layer has no room on the GPU, and is computed by one CPU; fixed: it has."""
    torch.set_num_threads(1)
    work, x = Work(10), torch.randn(16, 2048, device=DEVICE)
    place = DEVICE if fixed else "cpu"
    up, down = torch.randn(2048, 4096, device=place), torch.randn(4096, 2048, device=place)

    def expert(rows):
        return torch.relu(rows @ up) @ down

    def step():
        work()
        y = expert(x) if fixed else expert(x.cpu()).to(DEVICE)
        y[0, 0].item()

    return step


def filter_program(fixed):
    """The input of each step goes through a program that is started for it, and awaited; fixed: that of the next steps
    does so meanwhile."""
    work = Work(48)
    data = os.urandom(MB // 8) + " ".join(sentences(600, 40)).encode()

    def filtered():
        return subprocess.run(["gzip", "-1"], input=data, stdout=subprocess.PIPE, check=True).stdout

    fetch = ahead(filtered) if fixed else filtered

    def step():
        fetch()
        work()[0, 0].item()

    return step


def window_of_a_batch(fixed):
    """An event loop waits for 5 ms whether more requests come for the batch; fixed: it takes those that are there."""
    work, loop, waiting = Work(12), asyncio.new_event_loop(), asyncio.Queue()

    async def collect():
        batch = [await waiting.get()]
        end = loop.time() + 0.005
        while not fixed and (left := end - loop.time()) > 0:
            try:
                batch.append(await asyncio.wait_for(waiting.get(), left))
            except asyncio.TimeoutError:
                break
        return batch

    def step():
        waiting.put_nowait("request")
        loop.run_until_complete(collect())
        work()[0, 0].item()

    return step


class Nowhere:
    def write(self, text):
        return len(text)

    def flush(self):
        pass


def debug_log(fixed):
    """What each token of each request is goes to a log, record by record; fixed: it is not logged."""
    work, log = Work(16), logging.getLogger("debug_log")
    handler = logging.StreamHandler(Nowhere())
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.DEBUG)
    log.propagate = False

    def describe():
        for request in range(8):
            for token in range(50):
                log.debug("request %d token %d id %d", request, token, token * 31 % 7919)

    def step():
        work()[0, 0].item()
        if not fixed:
            describe()

    return step


def timed_layers(fixed):
    """Somebody has left in that each of 32 layers is timed, with a synchronization before and after; fixed: the step is
    timed."""
    work, times = Work(1, 2048), []

    def step():
        times.clear()
        for _ in range(32):
            began = time.perf_counter()
            work()
            if not fixed:
                sync()
            times.append(time.perf_counter() - began)
        sync()

    return step


def lock_of_a_file(fixed):
    """Another process, which writes statistics, holds the flock that each step takes; fixed: it has a file of its
    own."""
    paths = [f"{tempfile.mkdtemp()}/{name}" for name in ("state", "statistics")]
    for path in paths:
        with open(path, "w"):
            pass
    us = os.getpid()

    def hold():
        with open(paths[1 if fixed else 0]) as f:
            while os.getppid() == us:
                fcntl.flock(f, fcntl.LOCK_EX)
                time.sleep(0.006)
                fcntl.flock(f, fcntl.LOCK_UN)
                time.sleep(0.0005)

    if os.fork() == 0:
        try:
            hold()
        finally:
            os._exit(0)
    work, state = Work(16), open(paths[0])

    def step():
        fcntl.flock(state, fcntl.LOCK_EX)
        fcntl.flock(state, fcntl.LOCK_UN)
        work()[0, 0].item()

    return step


def mapped_table(fixed):
    """Rows of a mapped table of 256 MB (all in the page cache) are read, and its pages given back after each step;
    fixed: they stay."""
    size = 256 * MB
    with tempfile.TemporaryFile() as f:
        for _ in range(size // (16 * MB)):
            f.write(bytes(16 * MB))
        f.flush()
        mapping = mmap.mmap(f.fileno(), size, prot=mmap.PROT_READ)
    table, work = numpy.frombuffer(mapping, dtype=numpy.float32), Work(16)

    def step():
        torch.from_numpy(table[::1024].copy()).to(DEVICE)
        work()[0, 0].item()
        if not fixed:
            mapping.madvise(mmap.MADV_DONTNEED)

    return step


def asked_by_a_loop(fixed):
    """An event loop asks a service (6 ms) over three connections at once, and waits for all answers; fixed: a thread
    with a loop of its own asks for the next ones meanwhile."""
    work, loop = Work(16), asyncio.new_event_loop()
    host, port = os.environ["INFERSCOPE_SERVICE"].split(":")

    async def connect():
        return [await asyncio.open_connection(host, int(port)) for _ in range(3)]

    connections = loop.run_until_complete(connect())

    async def ask(reader, writer):
        writer.write(b"?")
        return await reader.read(16)

    async def ask_all():
        return await asyncio.gather(*(ask(*c) for c in connections))

    def answers():
        return loop.run_until_complete(ask_all())

    fetch = ahead(answers) if fixed else answers

    def step():
        fetch()
        work()[0, 0].item()

    return step


def captured_each_step(fixed):
    """The 300 kernels of a step are captured into a new CUDA graph each time, which is launched once; fixed: captured
    once."""
    x = tensor(64, 64)

    def body():
        for _ in range(100):
            x.mul_(1.01).add_(0.1).relu_()

    def captured():
        if DEVICE != "cuda":
            body()
            return None
        graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            graph.capture_begin(capture_error_mode="thread_local")
            body()
            graph.capture_end()
        return graph

    body()
    sync()
    once = captured()

    def step():
        graph = once if fixed else captured()
        if graph:
            graph.replay()
        sync()

    return step


def slow_reader(fixed):
    """Each answer of 128 KB goes to another process over a socket that has no room for it, and that process reads 32 KB
    each 2 ms; fixed: it reads as fast as it can."""
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16 << 10)

    def read():
        ours.close()
        while theirs.recv(32 << 10):
            if not fixed:
                time.sleep(0.002)

    if os.fork() == 0:
        try:
            read()
        finally:
            os._exit(0)
    theirs.close()
    work, answer = Work(16), bytes(128 << 10)

    def step():
        work()[0, 0].item()
        ours.sendall(answer)

    return step


def settings_now_and_then(fixed):
    """Every sixth step reads the settings of all models from JSON again; fixed: never."""
    work, steps = Work(16), 0
    text = json.dumps([{"model": i, "limits": [i / 7, i / 9], "aliases": [f"model-{i}", str(i)]} for i in range(40_000)])

    def step():
        nonlocal steps
        steps += 1
        if not fixed and steps % 6 == 0:
            json.loads(text)
        work()[0, 0].item()

    return step


def answered_by_a_thread(fixed):
    """A thread of a pool turns the tokens into text, in Python, and is awaited at once; fixed: what it makes of the step
    before is."""
    work, pool, words = Work(24), ThreadPoolExecutor(1, thread_name_prefix="answers"), sentences(160, 40)
    before = []

    def answer():
        text = []
        for w in words:
            for c in w:
                text.append(chr((ord(c) + 1) % 128))
        return "".join(text)

    def step():
        work()[0, 0].item()
        made = pool.submit(answer)
        if not fixed:
            made.result()
            return
        if before:
            before.pop().result()
        before.append(made)

    return step


def healthy_hidden(_):
    """Healthy: Python makes the next input while the GPU works, and is ready long before it."""
    work, words = Work(60), sentences(160, 40)

    def step():
        y = work()
        sum(ord(c) for text in words for c in text)
        y[0, 0].item()

    return step


def healthy_filter(_):
    """Healthy: a program is started for the input of each of the next steps, beside 15 ms of products."""
    work, data = Work(60), bytes(MB)

    def filtered():
        return subprocess.run(["gzip", "-1"], input=data, stdout=subprocess.PIPE, check=True).stdout

    fetch = ahead(filtered)

    def step():
        fetch()
        work()[0, 0].item()

    return step


def healthy_loop(_):
    """Healthy: an event loop launches, and its other tasks run while an executor's thread waits for the GPU."""
    work, loop, pool = Work(60), asyncio.new_event_loop(), ThreadPoolExecutor(1)

    async def tick():
        while True:
            await asyncio.sleep(0.001)

    async def start():
        return [asyncio.ensure_future(tick()) for _ in range(3)]

    ticking = loop.run_until_complete(start())

    async def one():
        y = work()
        await loop.run_in_executor(pool, lambda: y[0, 0].item())

    def step(_=ticking):  # the loop knows them by weak references only
        loop.run_until_complete(one())

    return step


def healthy_streams(_):
    """Healthy: two streams hand graphs of products over to each other by events, four steps ahead of the host."""
    replay = graph_of(Work(10))
    if DEVICE != "cuda":
        return replay
    streams, ahead_of = [torch.cuda.Stream() for _ in range(2)], [torch.cuda.Event() for _ in range(4)]
    handed, n = torch.cuda.Event(), 0

    def step():
        nonlocal n
        for s in streams:
            with torch.cuda.stream(s):
                handed.wait()
                replay()
                handed.record()
        if n >= 4:
            ahead_of[n % 4].synchronize()
        with torch.cuda.stream(streams[1]):
            ahead_of[n % 4].record()
        n += 1

    return step


def healthy_locks(_):
    """Healthy: two threads fight for a lock, and sleep with it, which the one that launches never takes."""
    work, lock = Work(60), threading.Lock()

    def keep_books():
        while True:
            with lock:
                time.sleep(0.004)

    for i in range(2):
        threading.Thread(target=keep_books, daemon=True, name=f"books-{i}").start()

    def step():
        work()[0, 0].item()

    return step


BLIND2 = {
    "expert-on-host": (expert_on_the_host, ("native-work",)),
    "filter-program": (filter_program, ("worker",)),
    "batch-window": (window_of_a_batch, ("sleep",)),
    "debug-log": (debug_log, ("python-work",)),
    "timed-layers": (timed_layers, ("host-sync",)),
    "file-lock": (lock_of_a_file, ("lock",)),
    "mapped-table": (mapped_table, ("page-faults",)),
    "asked-by-loop": (asked_by_a_loop, ("network",)),
    "captured-each": (captured_each_step, ("launch-overhead", "compilation")),
    "slow-reader": (slow_reader, ("worker", "network")),
    "settings-reread": (settings_now_and_then, ("serialization",)),
    "answer-thread": (answered_by_a_thread, ("worker",)),
    "healthy-hidden": (healthy_hidden, ()),
    "healthy-filter": (healthy_filter, ()),
    "healthy-loop": (healthy_loop, ()),
    "healthy-streams": (healthy_streams, ()),
    "healthy-locks": (healthy_locks, ()),
}
