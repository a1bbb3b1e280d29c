"""More programs with a planted cause: mixtures, threads, graphs, quotas, neighbours. They were written without a look
at how findings are ranked.

Each function returns step(), as causes.py says. In a mixture of two causes the planted one takes the most time, and the
twin is without that one only.
"""

import atexit
import ctypes
import hashlib
import json
import os
import pickle
import queue
import socket
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor

import torch

from .base import DEVICE, Skip, Work, ahead, graph_of, sentences, sync, tensor
from .causes import prefetched
from .waiting import join_crowd

MB = 1 << 20


def pinned(*shape):
    host = torch.ones(*shape)
    return host.pin_memory() if DEVICE == "cuda" else host


def cuda_runtime():
    """The CUDA runtime that torch has loaded, for calls that torch does not offer."""
    with open("/proc/self/maps") as maps:
        path = next((line.split()[-1] for line in maps if "/libcudart" in line), None)
    if not path:
        raise Skip("no libcudart is loaded")
    return ctypes.CDLL(path)


def graph_with_registered_input(fixed):
    """A graph's input is pinned with cudaHostRegister and released at each step; fixed: once."""
    if DEVICE != "cuda":
        raise Skip("no GPU")
    replay, host, x = graph_of(Work(8)), torch.ones(16 * MB), tensor(16 * MB, dtype=torch.float32)
    rt, size = torch.cuda.cudart(), 64 * MB
    if fixed:
        rt.cudaHostRegister(host.data_ptr(), size, 0)

    def step():
        if not fixed:
            rt.cudaHostRegister(host.data_ptr(), size, 0)
        x.copy_(host, non_blocking=True)
        replay()
        sync()
        if not fixed:
            rt.cudaHostUnregister(host.data_ptr())

    return step


def graph_with_workspace(fixed):
    """Each of four graphs of a step gets a workspace of its own, allocated and freed around it; fixed: allocated
    once."""
    if DEVICE != "cuda":
        raise Skip("no GPU")
    replay, rt = graph_of(Work(4)), cuda_runtime()

    def allocated():
        p = ctypes.c_void_p()
        if rt.cudaMalloc(ctypes.byref(p), ctypes.c_size_t(512 * MB)):
            raise RuntimeError("cudaMalloc failed")
        return p

    once = allocated() if fixed else None

    def step():
        for _ in range(4):
            workspace = once or allocated()
            replay()
            if not fixed:
                rt.cudaFree(workspace)
        sync()

    return step


def rescored(fixed):
    """Python scores each candidate after its value was read back (host-sync too); fixed: scores are remembered."""
    work, words = Work(4), sentences(60, 40)
    known = {}

    def rescore(i):
        total = 0
        for text in words[i * 10:i * 10 + 10]:
            for c in text:
                total = (total * 31 + ord(c)) % 65521
        return total

    def step():
        for i in range(6):
            work()[0, 0].item()
            if fixed and i in known:
                continue
            known[i] = rescore(i)

    return step


def sleep_and_pageable(fixed):
    """64 MB of input come from ordinary memory, and the loop sleeps for 2 ms; fixed: the copies only."""
    if fixed:
        load = prefetched(pinned(16 * MB), Work(8)) if DEVICE == "cuda" else lambda: None
    else:
        host, work = torch.ones(16 * MB), Work(8)

        def load():
            x = host.to(DEVICE)
            (x[:1].sum() + work()[0, 0]).item()

    def step():
        time.sleep(0.002)
        load()

    return step


def request_handlers(fixed):
    """A server's thread unpacks requests (native code without the GIL) for the one that launches; fixed: four threads
    do."""
    work, made = Work(8), queue.Queue(8)
    packed = zlib.compress(bytes(range(256)) * (8 * MB // 256), 1)

    def handle():
        while True:
            made.put(len(zlib.decompress(packed)))

    for i in range(4 if fixed else 1):
        threading.Thread(target=handle, daemon=True, name=f"handler-{i}").start()

    def step():
        made.get()
        work()[0, 0].item()

    return step


def pickled_state(fixed):
    """The state of each session is pickled and read back; fixed: it is passed on as it is."""
    work, state = Work(8), [{"id": i, "tokens": [i, i + 1, i + 2], "text": str(i)} for i in range(15_000)]

    def step():
        if not fixed:
            pickle.loads(pickle.dumps(state))
        work()[0, 0].item()

    return step


def fresh_pages(fixed):
    """Each step fills a new host buffer of 64 MB, whose pages the kernel must bring in; fixed: the same buffer
    again."""
    torch.set_num_threads(1)
    work, kept = Work(8), torch.empty(16 * MB)

    def step():
        buffer = kept if fixed else torch.empty(16 * MB)
        buffer.fill_(1.0)
        work()[0, 0].item()

    return step


def lock_between_threads(fixed):
    """A second thread checks sums of its data (without the GIL) under the lock that each step takes; fixed: outside of
    it."""
    work, lock, data = Work(8), threading.Lock(), bytes(8 * MB)

    def check():
        while True:
            if fixed:
                hashlib.sha256(data).digest()
            with lock:
                if not fixed:
                    hashlib.sha256(data).digest()
            time.sleep(0.0005)

    threading.Thread(target=check, daemon=True, name="checker").start()

    def step():
        with lock:
            pass
        work()[0, 0].item()

    return step


def awaited_future(fixed):
    """The answer is signed in a pool's thread and awaited at once; fixed: the one of the step before is awaited."""
    work, pool, data = Work(16), ThreadPoolExecutor(1), bytes(6 * MB)
    before = []

    def sign():
        return hashlib.sha256(data).digest()

    def step():
        work()[0, 0].item()
        f = pool.submit(sign)
        if not fixed:
            f.result()
            return
        if before:
            before.pop().result()
        before.append(f)

    return step


def used_up_quota(fixed):
    """A cgroup gives the program 30 ms of CPU time of each 100 ms; fixed: none."""
    work, words = Work(4), sentences(20, 40)
    if not fixed:
        limit_cpu(0.3)

    def step():
        counts = {}
        for text in words:
            for c in text:
                counts[c] = counts.get(c, 0) + 1
        work()[0, 0].item()

    return step


def limit_cpu(cpus):
    """Moves this process into a cgroup with a CPU quota (version 2 or 1), or skips the program where that is not
    allowed. The check removes it."""
    name, period = f"inferscope-quota-{os.getpid()}", 100_000
    try:
        if os.path.exists("/sys/fs/cgroup/cgroup.controllers"):
            folder = f"/sys/fs/cgroup/{name}"
            with open("/sys/fs/cgroup/cgroup.subtree_control", "w") as f:
                f.write("+cpu")
            os.mkdir(folder)
            with open(f"{folder}/cpu.max", "w") as f:
                f.write(f"{int(cpus * period)} {period}")
        else:
            folder = f"/sys/fs/cgroup/cpu/{name}"
            os.mkdir(folder)
            with open(f"{folder}/cpu.cfs_quota_us", "w") as f:
                f.write(str(int(cpus * period)))
        with open(f"{folder}/cgroup.procs", "w") as f:
            f.write(str(os.getpid()))
    except OSError as e:
        raise Skip(f"no CPU quota can be set: {e}") from None


def crowded_pair(fixed):
    """Four programs compute on the two CPUs that this one may use."""
    join_crowd(fixed)
    work, words = Work(1, 2048), sentences(4, 40)

    def step():
        for i in range(20):
            work()[0, 0].item()
            sum(ord(c) for c in words[i % 4])

    return step


def own_neighbour(fixed):
    """A thread of the program computes (native code without the GIL) on the CPU of the one that launches; fixed: on
    another."""
    cpus = sorted(os.sched_getaffinity(0))
    work, data, steps = Work(1, 2048), bytes(4 * MB), threading.Semaphore(0)

    def index():
        os.sched_setaffinity(0, {cpus[-1] if not fixed else cpus[-2]})
        while True:  # while the program makes steps: it leaves the CPU to its twin
            steps.acquire()
            for _ in range(4):
                hashlib.sha256(data).digest()

    os.sched_setaffinity(0, {cpus[-1]})
    threading.Thread(target=index, daemon=True, name="indexer").start()

    def step():
        if steps._value < 4:
            steps.release()
        for _ in range(20):
            work()[0, 0].item()

    return step


def unpacked_input(fixed):
    """Input is unpacked (native code) before each batch; fixed: a thread unpacks the next one meanwhile."""
    work = Work(24)
    packed = zlib.compress(bytes(range(256)) * (16 * MB // 256), 1)

    def unpack():
        return len(zlib.decompress(packed))

    fetch = ahead(unpack) if fixed else unpack

    def step():
        fetch()
        work()[0, 0].item()

    return step


def search_on_the_host(fixed):
    """Logits come to the host and are searched there, on one CPU; fixed: they are searched on the GPU."""
    torch.set_num_threads(1)
    work, logits = Work(8), torch.randn(16, 128_000, device=DEVICE)

    def search(scores):
        return torch.topk(scores, 50, dim=-1).indices

    def step():
        work()[0, 0]
        if fixed:
            search(logits).cpu()
        else:
            search(logits.cpu())

    return step


def masked(fixed):
    """Each layer selects by a mask, whose size the host must know; fixed: where() keeps the shape."""
    work, total = Work(2, 2048), torch.zeros((), device=DEVICE)

    def step():
        total.zero_()
        for _ in range(24):
            x = work().float()
            total.add_(torch.where(x > 0, x, 0).sum() if fixed else x[x > 0].sum())
        total.item()

    return step


def output_to_pageable(fixed):
    """64 MB of output go to ordinary memory; fixed: to pinned memory, beside the next step."""
    work, out = Work(8), tensor(16 * MB, dtype=torch.float32)
    if not fixed or DEVICE != "cuda":
        host = torch.empty(16 * MB)

        def step():
            work()
            host.copy_(out)

        return step
    hosts, side, done = [pinned(16 * MB) for _ in range(2)], torch.cuda.Stream(), [torch.cuda.Event() for _ in range(2)]
    n = 0

    def overlapped():
        nonlocal n
        work()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            hosts[n % 2].copy_(out, non_blocking=True)
            done[n % 2].record()
        n += 1
        if n > 1:
            done[n % 2].synchronize()

    return overlapped


def poll_an_event(fixed):
    """The GPU's work is polled every 3 ms; fixed: it is waited for."""
    work = Work(6)
    event = torch.cuda.Event() if DEVICE == "cuda" else None

    def step():
        work()
        if event is None:
            return None if fixed else time.sleep(0.003)
        event.record()
        if fixed:
            return event.synchronize()
        while not event.query():
            time.sleep(0.003)

    return step


def prefill_without_graph(fixed):
    """Eight tokens are decoded by a graph, then a prompt is prefilled by 450 launches; fixed: by a graph as well."""
    decode, x = graph_of(Work(12, 2048)), tensor(64, 64)

    def prefill():
        y = x
        for _ in range(150):
            y = torch.relu(y * 1.01 + 0.1)
        return y

    run = graph_of(prefill) if fixed else prefill

    def step():
        for _ in range(8):
            decode()
            sync()
        run()
        sync()

    return step


def sort_with_the_gil(fixed):
    """A thread sorts a long list again and again, and holds the GIL for as long as each takes; fixed: it does not."""
    work, numbers = Work(2, 2048), [(i * 7919) % 100_003 for i in range(60_000)]

    def rank():
        while True:
            sorted(numbers)
            time.sleep(0.001)

    if not fixed:
        threading.Thread(target=rank, daemon=True, name="ranker").start()

    def step():
        for _ in range(10):
            work()[0, 0].item()

    return step


def asked_process(fixed):
    """Another process computes features in Python when it is asked, and is waited for; fixed: it is asked for the next
    ones before."""
    ours, theirs = socket.socketpair()
    rows = sentences(60, 40)

    def serve():
        ours.close()
        while theirs.recv(1):
            theirs.sendall(json.dumps([sum(ord(c) for c in r) for r in rows]).encode().ljust(4096))

    if os.fork() == 0:
        try:
            serve()
        finally:
            os._exit(0)
    theirs.close()
    work, asked = Work(8), False

    def features():
        return json.loads(ours.recv(4096, socket.MSG_WAITALL))

    def step():
        nonlocal asked
        if not asked:
            ours.sendall(b"?")
        features()
        asked = fixed
        if fixed:
            ours.sendall(b"?")
        work()[0, 0].item()

    return step


def service_and_python(fixed):
    """Another service is asked (6 ms), and its answer is worked on in Python; fixed: a thread asks for the next one
    meanwhile."""
    work, words = Work(8), sentences(15, 40)
    host, port = os.environ["INFERSCOPE_SERVICE"].split(":")
    conn = socket.create_connection((host, int(port)))

    def ask():
        conn.sendall(b"?")
        return conn.recv(64)

    fetch = ahead(ask) if fixed else ask

    def step():
        fetch()
        sum(ord(c) for text in words for c in text)
        work()[0, 0].item()

    return step


class Stored(torch.utils.data.Dataset):
    """Samples that a storage elsewhere sends within 5 ms each."""

    def __len__(self):
        return 1 << 30

    def __getitem__(self, i):
        time.sleep(0.005)
        return torch.full((16,), float(i % 7))


def loader_of_a_storage(fixed):
    """Two workers fetch batches of 4 from a storage; fixed: eight do."""
    work = Work(8)
    batches = iter(
        torch.utils.data.DataLoader(Stored(), batch_size=4, num_workers=8 if fixed else 2, prefetch_factor=4)
    )

    def step():
        next(batches).to(DEVICE)
        work()[0, 0].item()

    return step


def busy_threads(_):
    """Healthy: two threads keep the GPU busy, each on a stream of its own."""

    ending = threading.Event()

    def until_the_end():
        work = Work(50)
        with torch.cuda.stream(torch.cuda.Stream()):
            while not ending.is_set():
                work()
                torch.cuda.current_stream().synchronize()

    if DEVICE == "cuda":
        second = threading.Thread(target=until_the_end, daemon=True, name="second")
        second.start()
        # A daemon thread that comes out of C++ while Python ends terminates the process.
        atexit.register(lambda: (ending.set(), second.join()))
    work = Work(50)

    def step():
        work()
        sync()

    return step


def busy_memory(_):
    """Healthy: a graph of products of a matrix with a vector, as in decoding with batch 1, replayed with no wait for
    twenty of them."""
    n = 8192 if DEVICE == "cuda" else 128
    weights, x = [tensor(n, n) for _ in range(8)], tensor(n, 1)

    def body():
        y = x
        for w in weights * 5:
            y = w @ y
        return y

    replay = graph_of(body)

    def step():
        for _ in range(20):
            replay()
        sync()

    return step


PLANTED = {
    "graph-registers": (graph_with_registered_input, ("allocation",)),
    "graph-allocates": (graph_with_workspace, ("allocation",)),
    "rescored": (rescored, ("python-work",)),
    "sleep-pageable": (sleep_and_pageable, ("sync-copy",)),
    "handlers": (request_handlers, ("worker",)),
    "pickled": (pickled_state, ("serialization",)),
    "fresh-pages": (fresh_pages, ("page-faults",)),
    "lock-threads": (lock_between_threads, ("lock",)),
    "future": (awaited_future, ("worker",)),
    "quota": (used_up_quota, ("throttled",)),
    "crowded-pair": (crowded_pair, ("no-cpu",)),
    "own-neighbour": (own_neighbour, ("no-cpu",)),
    "unpacked": (unpacked_input, ("preprocessing", "native-work")),
    "host-search": (search_on_the_host, ("native-work",)),
    "masked": (masked, ("host-sync",)),
    "output-pageable": (output_to_pageable, ("sync-copy",)),
    "event-poll": (poll_an_event, ("sleep",)),
    "prefill-eager": (prefill_without_graph, ("launch-overhead",)),
    "gil-sort": (sort_with_the_gil, ("gil",)),
    "asked-process": (asked_process, ("worker",)),
    "service-python": (service_and_python, ("network",)),
    "storage-loader": (loader_of_a_storage, ("worker",)),
    "healthy-threads": (busy_threads, ()),
    "healthy-memory": (busy_memory, ()),
}
