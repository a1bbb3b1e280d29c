"""The programs that wait for something: a worker, a lock, a disk, a service, a CPU. Each function returns step(), as
causes.py says."""

import mmap
import os
import socket
import tempfile
import threading
import time

import torch

from .base import DEVICE, Work, ahead


class Images(torch.utils.data.Dataset):
    """Images that take 4 ms of Python and numpy each to make."""

    def __len__(self):
        return 1 << 30

    def __getitem__(self, i):
        end = time.perf_counter() + 0.004
        x = 0
        while time.perf_counter() < end:
            x += sum(range(200))
        return torch.full((3, 32, 32), float(x % 7))


def slow_loader(fixed):
    """One worker makes the batches; fixed: twelve do."""
    work = Work(8)
    loader = torch.utils.data.DataLoader(Images(), batch_size=8, num_workers=12 if fixed else 1, prefetch_factor=4)
    batches = iter(loader)

    def step():
        next(batches).to(DEVICE)
        work()[0, 0].item()

    return step


def gil_fight(fixed):
    """A thread of the same process computes in Python all the time; fixed: it does not."""
    work = Work(1, 1024)
    stop = threading.Event()

    def statistics():
        while not stop.is_set():
            sum(i * i for i in range(1000))

    if not fixed:
        threading.Thread(target=statistics, daemon=True, name="statistics").start()

    def step():
        for _ in range(20):
            work()[0, 0].item()

    return step


def poll_with_sleep(fixed):
    """The loop sleeps 5 ms before it looks for the next request."""
    work = Work(16)

    def step():
        if not fixed:
            time.sleep(0.005)
        work()[0, 0].item()

    return step


def lock_held(fixed):
    """A thread holds the lock that each step takes most of the time, with the GIL released; fixed: it does not."""
    work, lock = Work(16), threading.Lock()

    def flush_statistics():
        while True:
            if fixed:
                time.sleep(0.008)
            else:
                with lock:
                    time.sleep(0.008)
            time.sleep(0.0005)  # long enough for one who waits to get it

    threading.Thread(target=flush_statistics, daemon=True, name="flusher").start()

    def step():
        with lock:
            pass
        work()[0, 0].item()

    return step


def read_from_disk(fixed):
    """Each step reads 32 MB past the page cache; fixed: a thread reads the next ones meanwhile."""
    size = 32 << 20
    f = tempfile.NamedTemporaryFile(dir=os.environ.get("INFERSCOPE_DISK", "."), delete=False)
    f.write(os.urandom(size))
    f.flush()
    os.fsync(f.fileno())
    fd = os.open(f.name, os.O_RDONLY | os.O_DIRECT)
    os.unlink(f.name)
    buffer, work = mmap.mmap(-1, size), Work(16)

    def read():
        return os.preadv(fd, [buffer], 0)

    fetch = ahead(read) if fixed else read

    def step():
        fetch()
        work()[0, 0].item()

    return step


def ask_service(fixed):
    """Each step asks another service, which takes 6 ms; its address comes in INFERSCOPE_SERVICE. Fixed: a thread asks
    for the next ones meanwhile."""
    work = Work(16)
    host, port = os.environ["INFERSCOPE_SERVICE"].split(":")
    conn = socket.create_connection((host, int(port)))

    def fetch_features():
        conn.sendall(b"?")
        return conn.recv(64)

    fetch = ahead(fetch_features) if fixed else fetch_features

    def step():
        fetch()
        work()[0, 0].item()

    return step


def serve(fixed):
    """A server that nobody asks much: a request comes every 250 ms; it connects to INFERSCOPE_SERVICE's twin, which
    asks it."""
    work = Work(16)
    listener = socket.create_server(("127.0.0.1", int(os.environ["INFERSCOPE_PORT"])))
    conn, _ = listener.accept()

    def step(
        still_listening=listener,
    ):  # as a server does: who opened a connection shows only while somebody listens on one of its ends
        conn.recv(16)
        work()[0, 0].item()
        conn.sendall(b"!")

    return step


def join_crowd(fixed):
    """Stays on the CPUs of INFERSCOPE_CPUS, where the check starts other programs; the twin, which has no such
    neighbours, does not."""
    if not fixed:
        os.sched_setaffinity(0, {int(c) for c in os.environ["INFERSCOPE_CPUS"].split(",")})


def one_cpu(fixed):
    """Two programs compute on the only CPU that this one may use."""
    join_crowd(fixed)
    work = Work(1, 1024)

    def step():
        for _ in range(20):
            work()[0, 0].item()

    return step
