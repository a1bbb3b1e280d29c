"""Programs with a planted cause whose author had read nothing of how causes are recognized: services and pipelines as
their first version was written, which works.

Each function returns step(), as causes.py says. In a mixture of two causes the planted one takes the most time, and the
twin is without that one only.
"""

import ctypes
import functools
import http.server
import io
import os
import queue
import socket
import subprocess
import sys
import tempfile
import threading
import zlib

import numpy
import torch

from .base import DEVICE, WORDS, Skip, Work, ahead, graph_of, sentences, sync, tensor
from .planted import MB, cuda_runtime, limit_cpu

GPU = DEVICE == "cuda"

CLIENTS = """
import http.client, sys, threading
def ask():
    server = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]))
    while True:
        server.request("POST", "/rank", bytes(4096))
        server.getresponse().read()
for _ in range(2):
    threading.Thread(target=ask).start()
"""


def server_that_asks(fixed):
    """Each of two threads of an HTTP server asks a store (6 ms) for the features of its request before the model runs;
    fixed: they were kept. The clients are no children of the server, and end with it."""
    host, port = os.environ["INFERSCOPE_SERVICE"].split(":")
    work, turns, answered = Work(10), threading.Semaphore(1), threading.Semaphore(0)

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version, wbufsize = "HTTP/1.1", -1  # connections stay, and each answer is sent at once
        disable_nagle_algorithm = True

        def setup(self):
            super().setup()
            self.store = socket.create_connection((host, int(port)))

        def features(self):
            self.store.sendall(b"?")
            return self.store.recv(64)

        def do_POST(self):
            turns.acquire()  # it rests while its twin is measured
            self.rfile.read(int(self.headers["Content-Length"]))
            if not fixed:
                self.features()
            answer = b"%f" % work()[0, 0].item()
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)
            self.wfile.flush()
            answered.release()

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", int(os.environ.get("INFERSCOPE_PORT", "0"))), Handler)
    threading.Thread(target=server.serve_forever, daemon=True, name="accept").start()
    subprocess.run(
        ["sh", "-c", '"$0" "$@" </dev/null >/dev/null 2>&1 &', sys.executable, "-c", CLIENTS, str(server.server_port)],
        check=True,
    )

    def step():
        for _ in range(4):
            turns.release()
            answered.acquire()

    return step


def pool_that_forgets(fixed):
    """Before a CUDA graph decodes a request, cudaMallocAsync takes 4 GB for its cache from the driver's pool, which
    gives them back to the system when the host waits for the GPU; fixed: the pool's release threshold is raised."""
    if not GPU:
        raise Skip("no GPU")
    replay, rt = graph_of(Work(12)), cuda_runtime()

    def check(error):
        if error:
            raise RuntimeError(f"the CUDA runtime answers {error}")

    if fixed:
        pool, everything = ctypes.c_void_p(), ctypes.c_uint64(2**64 - 1)
        check(rt.cudaDeviceGetDefaultMemPool(ctypes.byref(pool), 0))
        check(rt.cudaMemPoolSetAttribute(pool, 4, ctypes.byref(everything)))  # cudaMemPoolAttrReleaseThreshold

    def step():
        for _ in range(2):
            stream = torch.cuda.current_stream()
            cache, on = ctypes.c_void_p(), ctypes.c_void_p(stream.cuda_stream)
            check(rt.cudaMallocAsync(ctypes.byref(cache), ctypes.c_size_t(4096 * MB), on))
            check(rt.cudaMemsetAsync(cache, 0, ctypes.c_size_t(64 * MB), on))
            replay()
            check(rt.cudaFreeAsync(cache, on))
            stream.synchronize()

    return step


def threads_of_the_host(fixed):
    """OpenMP starts as many threads as the host has CPUs for a mask that one could make, and they spin until the next:
    that uses up the 2.5 CPUs that a cgroup gives the program; fixed: two threads."""
    limit_cpu(2.5)
    torch.set_num_threads(2 if fixed else len(os.sched_getaffinity(0)))
    mask, work = torch.zeros(MB), Work(8)

    def step():
        for _ in range(4):
            mask.mul_(0.5).add_(1.0)
            work()[0, 0].item()

    return step


def guide_on_a_stream(fixed):
    """After each token a host function on a stream of its own advances a grammar, reading its tables of 24 MB, and
    the next forward pass waits for that stream as that one does for the token; fixed: only what draws the next token
    waits for it."""
    if not GPU:
        raise Skip("no GPU")
    rt, forward, draw = cuda_runtime(), Work(16), Work(1, 1024)
    tables = torch.ones(24 * MB, dtype=torch.uint8).pin_memory()
    tables[-1] = 0
    advance = ctypes.cast(ctypes.CDLL(None).strlen, ctypes.c_void_p)  # it reads up to the zero
    guide, drawn, advanced = torch.cuda.Stream(), torch.cuda.Event(), torch.cuda.Event()

    def step():
        model = torch.cuda.current_stream()
        for _ in range(4):
            if not fixed:
                model.wait_event(advanced)
            forward()
            if fixed:
                model.wait_event(advanced)
            token = draw()
            drawn.record(model)
            guide.wait_event(drawn)
            if rt.cudaLaunchHostFunc(ctypes.c_void_p(guide.cuda_stream), advance, ctypes.c_void_p(tables.data_ptr())):
                raise RuntimeError("cudaLaunchHostFunc failed")
            advanced.record(guide)
        token[0, 0].item()

    return step


def bpe_in_python(fixed):
    """The byte pairs of each word are merged in Python, as in the code that came with GPT-2, and a small model is
    launched operation by operation (launch-overhead too); fixed: the pieces of each word are remembered."""
    pairs = dict.fromkeys((word[:i], word[i]) for word in WORDS for i in range(1, len(word)))
    ranks = {pair: rank for rank, pair in enumerate(pairs)}
    texts, x, work = sentences(12, 60), tensor(64, 64), Work(4)

    def bpe(word):
        parts = list(word)
        while len(parts) > 1:
            rank, at = min((ranks.get(pair, len(ranks)), i) for i, pair in enumerate(zip(parts, parts[1:])))
            if rank == len(ranks):
                break
            parts[at:at + 2] = [parts[at] + parts[at + 1]]
        return parts

    if fixed:
        bpe = functools.cache(bpe)

    def step():
        pieces = [piece for text in texts for word in text.split() for piece in bpe(word)]
        y = torch.full((64, 64), float(len(pieces)), device=DEVICE) * x
        for _ in range(100):
            y = torch.relu(y * 0.9 + 0.1)
        (work()[0, 0] + y[0, 0]).item()

    return step


def clipped_by_numpy(fixed):
    """Between layers the activations, 8 MB, go to the host and back, since somebody clips them with numpy; fixed: with
    torch, on the GPU."""
    work, activations = Work(4), [tensor(2 * MB, dtype=torch.float32) for _ in range(4)]

    def clipped(x):
        return numpy.clip(x, -1, 1, out=x)

    def step():
        for i, x in enumerate(activations):
            work()
            if fixed:
                x.clamp_(-1, 1)
            else:
                activations[i] = torch.from_numpy(clipped(x.cpu().numpy())).to(DEVICE)
        activations[-1][0].item()

    return step


class Clips(torch.utils.data.IterableDataset):
    """Spectra of pieces of audio, 4 ms of numpy each."""

    def __iter__(self):
        audio, window = numpy.random.default_rng(0).normal(size=64_000), numpy.hanning(512)
        frames = numpy.lib.stride_tricks.sliding_window_view(audio, 512)[::80]
        while True:
            yield numpy.abs(numpy.fft.rfft(frames * window))[:, :40].astype(numpy.float32)


def loader_of_spectra(fixed):
    """A DataLoader's two workers make batches of eight spectra, which its thread pins, and Python makes the labels
    between two steps (python-work too); fixed: eight workers."""
    batches = iter(torch.utils.data.DataLoader(
        Clips(), batch_size=8, num_workers=8 if fixed else 2, pin_memory=GPU, multiprocessing_context="fork"
    ))
    next(batches)  # the workers have started before the GPU is used
    texts, work = sentences(8, 350), Work(16)

    def labels(text):
        return [ord(c) - 97 for c in text if c.isalpha()]

    def step():
        numbers = [labels(text) for text in texts]
        next(batches).to(DEVICE, non_blocking=True)
        torch.tensor([len(n) for n in numbers]).to(DEVICE)
        work()[0, 0].item()

    return step


def state_of_each_head(fixed):
    """In a CUDA graph the state of each of 1,024 heads of a linear attention decays and takes in a token by kernels of
    its own; fixed: one tensor holds all states."""
    heads, work = 1024, Work(4)
    states, keys, values = tensor(heads, 64, 64), tensor(heads, 64, 1), tensor(heads, 1, 64)

    def body():
        for state, key, value in [(states, keys, values)] if fixed else zip(states, keys, values):
            state.mul_(0.99).addcmul_(key, value)
        return work()

    replay = graph_of(body)

    def step():
        for _ in range(2):
            replay()
            sync()

    return step


def lock_of_the_model(fixed):
    """Three threads answer requests, and each holds the model's lock until its answer is packed as well (native code
    without the GIL); fixed: until the model has run."""
    work, lock, answer = Work(10), threading.Lock(), bytes(range(256)) * (MB // 256)
    asked, answered = threading.Semaphore(2), threading.Semaphore(0)

    def pack():
        return zlib.compress(answer, 6)

    def serve():
        while True:
            asked.acquire()
            with lock:
                work()[0, 0].item()
                if not fixed:
                    pack()
            if fixed:
                pack()
            answered.release()

    for i in range(3):
        threading.Thread(target=serve, daemon=True, name=f"request-{i}").start()

    def step():
        for _ in range(4):
            asked.release()
            answered.acquire()

    return step


def pictures_in_line(fixed):
    """Two JPEG pictures are decoded before each batch; fixed: a thread decodes the next ones meanwhile."""
    try:
        from PIL import Image
    except ImportError:
        raise Skip("no Pillow") from None
    colours = numpy.random.default_rng(0).integers(256, size=(64, 64, 3), dtype=numpy.uint8)
    picture, work = io.BytesIO(), Work(120)
    Image.fromarray(colours).resize((1024, 768)).save(picture, "JPEG", quality=90)

    def decoded():
        return [numpy.array(Image.open(io.BytesIO(picture.getvalue()))) for _ in range(2)]

    fetch = ahead(decoded) if fixed else decoded

    def step():
        for pixels in fetch():
            torch.from_numpy(pixels).to(DEVICE)
        work()[0, 0].item()

    return step


def log_of_an_auditor(fixed):
    """A record of each of eight requests must be on the disk before the next one runs; fixed: those of eight together
    before they are answered."""
    log = tempfile.TemporaryFile(dir=os.environ.get("INFERSCOPE_DISK", "."), buffering=0)
    record, work = bytes(1024), Work(3)

    def step():
        for _ in range(8):
            work()[0, 0].item()
            log.write(record)
            if not fixed:
                os.fdatasync(log)
        if fixed:
            os.fdatasync(log)

    return step


def reset_between_tenants(fixed):
    """torch.compile is reset between the tenants of a server, so that nothing of the one before stays, and traces the
    same model again; fixed: it is not."""
    x, weights, work = tensor(64, 256), tensor(256, 256), Work(80)

    @torch.compile(backend="eager")  # it needs no compiler
    def model(x):
        return torch.relu(x @ weights)

    def step():
        if not fixed:
            torch.compiler.reset()
        y = model(x)
        (work()[0, 0] + y[0, 0]).item()

    return step


def healthy_request_threads(_):
    """Healthy: four threads parse requests in Python, and are ahead of the one that runs 20 ms of products for four."""
    parsed, texts, work = queue.Queue(8), sentences(4, 150), Work(80)

    def parse(text):
        while True:
            parsed.put([ord(c) % 97 for c in text])

    for i, text in enumerate(texts):
        threading.Thread(target=parse, args=(text,), daemon=True, name=f"request-{i}").start()

    def step():
        for _ in texts:
            torch.tensor(parsed.get()).to(DEVICE)
        work()[0, 0].item()

    return step


def healthy_spectra(_):
    """Healthy: a DataLoader's six workers and the thread that pins are well ahead of 30 ms of products."""
    batches = iter(torch.utils.data.DataLoader(
        Clips(), batch_size=8, num_workers=6, pin_memory=GPU, multiprocessing_context="fork"
    ))
    next(batches)
    work = Work(120)

    def step():
        next(batches).to(DEVICE, non_blocking=True)
        work()[0, 0].item()

    return step


BLIND6 = {
    "asking-server": (server_that_asks, ("network",)),
    "forgetful-pool": (pool_that_forgets, ("allocation",)),
    "host-threads": (threads_of_the_host, ("throttled",)),
    "guide-stream": (guide_on_a_stream, ("dependency",)),
    "bpe-in-python": (bpe_in_python, ("preprocessing", "python-work")),
    "numpy-clip": (clipped_by_numpy, ("sync-copy",)),
    "spectra-loader": (loader_of_spectra, ("worker",)),
    "state-per-head": (state_of_each_head, ("tiny-kernels", "small-batch")),
    "model-lock": (lock_of_the_model, ("lock", "native-work")),
    "jpeg-in-line": (pictures_in_line, ("preprocessing", "native-work")),
    "audit-log": (log_of_an_auditor, ("disk",)),
    "dynamo-reset": (reset_between_tenants, ("compilation",)),
    "healthy-request-threads": (healthy_request_threads, ()),
    "healthy-spectra": (healthy_spectra, ()),
}
