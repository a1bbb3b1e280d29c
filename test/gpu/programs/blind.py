"""Programs with a planted cause whose author had read nothing of how causes are recognized: servers, mixtures, threads.

Each function returns step(), as causes.py says. In a mixture of two causes the planted one takes the most time, and the
twin is without that one only.
"""

import asyncio
import gc
import hashlib
import json
import multiprocessing
import os
import subprocess
import sys
import threading
import zlib
from collections import deque
from concurrent.futures import ThreadPoolExecutor

import numpy
import torch

from .base import DEVICE, Skip, Work, ahead, graph_of, sentences, sync, tensor
from .planted import MB, limit_cpu, pinned
from .waiting import join_crowd


def early_stop(fixed):
    """After each token the host looks at the last token of each of four sequences, by .item(); fixed: the GPU remembers
    which have ended, and the host looks once for 24 tokens."""
    work, end = Work(3, 2048), 2
    last, ended = torch.ones(4, dtype=torch.long, device=DEVICE), torch.zeros(4, dtype=torch.bool, device=DEVICE)

    def step():
        for _ in range(24):
            work()
            if fixed:
                ended.logical_or_(last == end)
            elif any(last[i].item() == end for i in range(4)):
                return
        ended.any().item()

    return step


def quota_of_threads(fixed):
    """Three threads check sums beside the one that launches, and a cgroup gives all of them 1.5 CPUs; fixed: as many
    as they use."""
    if not fixed:
        limit_cpu(1.5)
    work, data, asked = Work(8), bytes(2 * MB), threading.Semaphore(0)

    def check():
        while True:  # for each step: it is idle while the twin is measured
            asked.acquire()
            hashlib.sha256(data).digest()

    for i in range(3):
        threading.Thread(target=check, daemon=True, name=f"checker-{i}").start()

    def step():
        while asked._value < 6:
            asked.release()
        work()[0, 0].item()

    return step


def noisy_neighbours(fixed):
    """Six other programs compute on the three CPUs that this one may use; fixed: it may use the others too."""
    join_crowd(fixed)
    work, words = Work(2, 2048), sentences(8, 40)

    def step():
        for i in range(12):
            work()[0, 0].item()
            [w.upper() for w in words[i % 8].split()]

    return step


def paged_weights(fixed):
    """The 32 MB of weights of each of four layers come from ordinary memory before the layer; fixed: from pinned
    memory, while the layer before works."""
    if DEVICE != "cuda":
        raise Skip("no GPU")
    host = [pinned(8 * MB) if fixed else torch.ones(8 * MB) for _ in range(4)]
    device = [torch.empty(8 * MB, device=DEVICE) for _ in range(2)]
    work, side = Work(4), torch.cuda.Stream()
    copied, used = [torch.cuda.Event() for _ in range(2)], [torch.cuda.Event() for _ in range(2)]

    def in_line():
        for i, w in enumerate(host):
            device[i % 2].copy_(w)
            work()
        sync()

    def prefetch(i):
        with torch.cuda.stream(side):
            used[i % 2].wait()
            device[i % 2].copy_(host[i], non_blocking=True)
            copied[i % 2].record()

    def prefetched():
        prefetch(0)
        for i in range(4):
            if i < 3:
                prefetch(i + 1)
            copied[i % 2].wait()
            work()
            used[i % 2].record()
        sync()

    return prefetched if fixed else in_line


class Decoder:
    """16 layers that decode one token with batch 1: products of matrices with a vector, and small operations."""

    def __init__(self, layers=16, width=2048 if DEVICE == "cuda" else 64):
        self.weights = [[tensor(width, width) for _ in range(4)] for _ in range(layers)]
        self.gains, self.x = [torch.ones_like(self.weights[0][0][0]) for _ in range(layers)], tensor(width)

    def __call__(self):
        x = self.x
        for (q, k, up, down), gain in zip(self.weights, self.gains):
            y = x * torch.rsqrt(x.square().mean() + 1e-5) * gain
            x = x + torch.sigmoid(q @ y) * (k @ y)
            x = x + down @ torch.relu(up @ x)
        return x


def decode_eagerly(fixed):
    """A small decoder with batch 1 is launched one operation at a time, and each token is looked at; fixed: a CUDA
    graph."""
    decoder = Decoder()
    out = tensor(1)

    def body():
        out.copy_(decoder()[:1])

    decode = graph_of(body) if fixed else body

    def step():
        decode()
        out.item()

    return step


def augmented(seed):
    """Makes one sample with numpy, some 8 ms."""
    r = numpy.random.default_rng(seed)
    x = r.standard_normal((160, 1024), dtype=numpy.float32)
    for _ in range(6):
        x = numpy.tanh(x + numpy.roll(x, 1, axis=1) * 0.5)
    return x[:8, :64].copy()


def pool_loader(fixed):
    """Two processes of a pool make samples, of which six are asked for ahead; fixed: ten processes and thirty."""
    workers = 10 if fixed else 2
    pool = multiprocessing.get_context("fork").Pool(workers)
    work, asked, n = Work(10), deque(), 0

    def step():
        nonlocal n
        while len(asked) < 3 * workers:
            n += 1
            asked.append(pool.apply_async(augmented, (n,)))
        torch.from_numpy(asked.popleft().get()).to(DEVICE)
        work()[0, 0].item()

    return step


def expandable_segments(fixed):
    """Beside the replay of a graph each step takes 512 MB in expandable segments, and gives them back to the driver;
    fixed: it keeps them."""
    if DEVICE != "cuda":
        raise Skip("no GPU")
    torch.cuda.memory._set_allocator_settings("expandable_segments:True")
    replay = graph_of(Work(8))

    def step():
        pages = [torch.empty(64 * MB, device=DEVICE, dtype=torch.uint8) for _ in range(8)]
        replay()
        for p in pages:
            p[:1].zero_()
        sync()
        del pages, p
        if not fixed:
            torch.cuda.empty_cache()

    return step


CLIENT = """
import http.client, os, sys, threading, time
server, port, streams, body = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), open(sys.argv[4], "rb").read()
os.unlink(sys.argv[4])
def run():
    while os.path.exists(f"/proc/{server}"):
        try:
            c = http.client.HTTPConnection("127.0.0.1", port)
            while True:
                c.request("POST", "/predict", body)
                c.getresponse().read()
        except (OSError, http.client.HTTPException):
            time.sleep(0.1)
for _ in range(streams):
    threading.Thread(target=run).start()
"""


def http_server(body, answer):
    """An aiohttp server that four clients keep busy with the same request. Returns a step that answers one.

    The clients are a process of their own that is no child of this one, and end with it.
    """
    from aiohttp import web

    port, path = int(os.environ.get("INFERSCOPE_PORT", "0")), f"/tmp/inferscope-body-{os.getpid()}"
    loop, state = asyncio.new_event_loop(), {"answered": None}

    async def predict(request):
        said = answer(await request.read())
        if state["answered"] and not state["answered"].done():
            state["answered"].set_result(None)
        return web.json_response(said)

    async def start():
        app = web.Application(client_max_size=64 * MB)
        app.router.add_post("/predict", predict)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        return runner

    runner = loop.run_until_complete(start())
    with open(path, "wb") as f:
        f.write(body)
    subprocess.run(
        ["sh", "-c", '"$0" "$@" </dev/null >/dev/null 2>&1 &', sys.executable, "-c", CLIENT, str(os.getpid()),
         str(port), "4", path],
        check=True,
    )

    async def one():
        state["answered"] = loop.create_future()
        await state["answered"]

    def step(_=runner):  # it must stay
        loop.run_until_complete(one())

    return step


def loaded_server(fixed):
    """Four clients keep a server busy whose requests are JSON with 8,000 candidates, parsed where it launches; fixed:
    they are arrays of bytes."""
    work = Work(10)
    scores = numpy.arange(8000, dtype=numpy.float32)
    body = (
        scores.tobytes()
        if fixed
        else json.dumps([{"id": i, "score": i / 7, "title": f"candidate {i}"} for i in range(8000)]).encode()
    )

    def answer(data):
        if fixed:
            x = torch.frombuffer(bytearray(data), dtype=torch.float32)
        else:
            x = torch.tensor([c["score"] for c in json.loads(data)])
        x.to(DEVICE)
        return {"best": float(work()[0, 0])}

    return http_server(body, answer)


def feature_threads(fixed):
    """Four threads compute features in Python for one that launches, and take turns with the GIL; fixed: a process
    computes the next ones meanwhile."""
    rows = [sentences(40, 40, seed) for seed in range(4)]

    def features(texts):
        counts = [0] * 64
        for text in texts:
            for c in text:
                counts[(ord(c) * 31) % 64] += 1
        return counts

    def all_features():
        return [features(r) for r in rows]

    fetch = ahead(all_features, process=True) if fixed else None
    work = Work(24)
    pool = ThreadPoolExecutor(4, thread_name_prefix="features")

    def step():
        made = fetch() if fixed else list(pool.map(features, rows))
        torch.tensor(made, dtype=torch.float32).to(DEVICE)
        work()[0, 0].item()

    return step


def sampled_on_the_host(fixed):
    """The logits of 16 sequences come to the host, where numpy finds the best 50 and draws one; fixed: the GPU does
    both."""
    work, logits, r = Work(10), torch.randn(16, 64_000, device=DEVICE), numpy.random.default_rng(0)

    def sample(scores):
        best = numpy.argpartition(scores, -50, axis=-1)[:, -50:]
        p = numpy.exp(numpy.take_along_axis(scores, best, axis=-1))
        return [int(r.choice(b, p=q / q.sum())) for b, q in zip(best, p)]

    def sampled_by_gpu():
        values, best = torch.topk(logits, 50, dim=-1)
        return best.gather(1, torch.multinomial(torch.softmax(values, -1), 1)).cpu()

    def step():
        work()[0, 0]
        if fixed:
            sampled_by_gpu()
        else:
            sample(logits.cpu().numpy())

    return step


def collected_in_decode(fixed):
    """Tokens are decoded eagerly (launch-overhead too), and after each gc.collect() looks through 100,000 objects;
    fixed: it does not."""
    decoder = Decoder()
    gc.freeze()  # what is imported would take longer than all else
    alive = [[i, str(i)] for i in range(100_000)]

    def step():
        decoder()[0].item()
        if not fixed:
            gc.collect()
        return alive

    return step


def frames_both_ways(fixed):
    """Pinned frames of 48 MB are copied in and out on the stream that computes, and Python tidies up for a moment;
    fixed: a stream for each way carries the next frame and the last result."""
    if DEVICE != "cuda":
        raise Skip("no GPU")
    work, n = Work(6), 12 * MB
    source, results = pinned(n), [pinned(n) for _ in range(2)]
    inputs = [torch.empty(n, device=DEVICE) for _ in range(2)]
    out = [torch.empty(n, device=DEVICE) for _ in range(2)]
    words, count = sentences(1, 60)[0].split(), 0

    def tidy():
        return sorted(w.upper() for w in words)

    def in_line():
        inputs[0].copy_(source, non_blocking=True)
        work()
        out[0].copy_(inputs[0])
        results[0].copy_(out[0], non_blocking=True)
        sync()
        tidy()

    to, back = torch.cuda.Stream(), torch.cuda.Stream()
    arrived, computed, left = ([torch.cuda.Event() for _ in range(2)] for _ in range(3))

    def fetch(i):
        with torch.cuda.stream(to):
            computed[i].wait()
            inputs[i].copy_(source, non_blocking=True)
            arrived[i].record()

    def beside():
        nonlocal count
        i, j = count % 2, (count + 1) % 2
        if count == 0:
            fetch(0)
        fetch(j)
        arrived[i].wait()
        left[i].wait()
        work()
        out[i].copy_(inputs[i])
        computed[i].record()
        with torch.cuda.stream(back):
            computed[i].wait()
            results[i].copy_(out[i], non_blocking=True)
            left[i].record()
        if count:
            left[j].synchronize()
        count += 1
        tidy()

    return beside if fixed else in_line


def healthy_server(_):
    """Healthy: four clients keep a server busy whose requests are 30 ms of products each."""
    work = Work(150)

    def answer(data):
        torch.frombuffer(bytearray(data), dtype=torch.float32).to(DEVICE)
        return {"best": float(work()[0, 0])}

    return http_server(numpy.zeros(4000, dtype=numpy.float32).tobytes(), answer)


def healthy_decode(_):
    """Healthy: tokens are decoded by a graph with batch 1, each from the one before, and looked at 32 at a time."""
    decoder = Decoder(8, 8192 if DEVICE == "cuda" else 64)

    def body():
        decoder.x.copy_(decoder() * 0.5)

    decode = graph_of(body)

    def step():
        for _ in range(32):
            decode()
        decoder.x[0].item()

    return step


def healthy_pool(_):
    """Healthy: eight processes unpack the input well ahead of 10 ms of products."""
    packed = zlib.compress(bytes(range(256)) * (MB // 256), 1)
    pool = multiprocessing.get_context("fork").Pool(8)
    work, asked = Work(50), deque()

    def step():
        while len(asked) < 16:
            asked.append(pool.apply_async(zlib.decompress, (packed,)))
        work()
        torch.frombuffer(bytearray(asked.popleft().get()), dtype=torch.uint8)
        sync()

    return step


def healthy_copies(_):
    """Healthy: pinned input is copied beside products, one step ahead."""
    if DEVICE != "cuda":
        raise Skip("no GPU")
    work, host, side = Work(30), pinned(8 * MB), torch.cuda.Stream()
    inputs, done = [torch.empty(8 * MB, device=DEVICE) for _ in range(2)], [torch.cuda.Event() for _ in range(2)]
    n = 0

    def step():
        nonlocal n
        with torch.cuda.stream(side):
            inputs[n % 2].copy_(host, non_blocking=True)
        work()
        done[n % 2].record()
        n += 1
        if n > 1:
            done[n % 2].synchronize()  # of the step before: one is always ahead

    return step


def healthy_quota(_):
    """Healthy: a cgroup gives the program four CPUs, of which it uses one."""
    limit_cpu(4)
    work = Work(50)

    def step():
        work()[0, 0].item()

    return step


BLIND = {
    "early-stop": (early_stop, ("host-sync",)),
    "quota-threads": (quota_of_threads, ("throttled",)),
    "noisy-neighbours": (noisy_neighbours, ("no-cpu",)),
    "paged-weights": (paged_weights, ("sync-copy",)),
    "decode-eager": (decode_eagerly, ("launch-overhead",)),
    "pool-loader": (pool_loader, ("worker",)),
    "graph-expandable": (expandable_segments, ("allocation",)),
    "loaded-server": (loaded_server, ("serialization",)),
    "feature-threads": (feature_threads, ("worker", "gil")),
    "sampled-on-host": (sampled_on_the_host, ("native-work",)),
    "gc-in-decode": (collected_in_decode, ("gc",)),
    "frames-both-ways": (frames_both_ways, ("copy-not-overlapped", "copy-bound")),
    "healthy-server": (healthy_server, ()),
    "healthy-decode": (healthy_decode, ()),
    "healthy-pool": (healthy_pool, ()),
    "healthy-copies": (healthy_copies, ()),
    "healthy-quota": (healthy_quota, ()),
}
