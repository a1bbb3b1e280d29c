"""Programs with a planted cause whose author had read nothing of how causes are recognized: what looks harmless in the
code of a service, since it is asynchronous, in the background, or a line of a library.

Each function returns step(), as causes.py says.
"""

import functools
import gc
import mmap
import multiprocessing
import os
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import numpy
import torch

from .base import DEVICE, Skip, Work, sentences, sync, tensor, tokenizer
from .planted import MB, pinned

GPU = DEVICE == "cuda"


def sampler_that_compares(fixed):
    """Each of 40 steps of a diffusion sampler compares its timestep and the peak of its latents with numbers, and both
    are tensors on the GPU; fixed: timesteps are numbers, and the GPU clamps the peak."""
    denoise, start = Work(3, 2048), tensor(64, 64)
    timesteps = torch.linspace(999, 0, 40, device=DEVICE)
    if fixed:
        timesteps = timesteps.tolist()

    def step():
        x = start
        for t in timesteps:
            guidance = 7.5 if t > 200 else 1.0
            x = x - denoise()[:64, :64] * (0.01 * guidance)
            peak = x.abs().amax()
            x = x / (peak.clamp(min=1.0) if fixed else max(1.0, peak))
        x[0, 0].item()

    return step


def parked_sessions(fixed):
    """The caches of four sessions are parked in ordinary memory, and copied in and out by turns. They are copied with
    non_blocking, which has no effect on such memory; fixed: they are parked in pinned memory."""
    layers = 16
    parked = [[pinned(MB // 2) if fixed else torch.ones(MB // 2) for _ in range(layers)] for _ in range(4)]
    cache, work, count = [torch.empty(MB // 2, device=DEVICE) for _ in range(layers)], Work(24), 0

    def step():
        nonlocal count
        session = parked[count % len(parked)]
        count += 1
        for layer, host in zip(cache, session):
            layer.copy_(host, non_blocking=True)
        work()
        for layer, host in zip(cache, session):
            host.copy_(layer, non_blocking=True)
        sync()

    return step


def streamed_text(fixed):
    """For each of 16 tokens the text of eight whole chats is made from their ids again, to stream what has come to it;
    fixed: from the last six ids."""
    t, work = tokenizer(), Work(2)
    chats = [t.encode(text).ids for text in sentences(8, 900)]

    def text_of(ids):
        return t.decode(ids[-6:] if fixed else ids)

    def step():
        for _ in range(16):
            work()[0, 0].item()
            for ids in chats:
                text_of(ids)

    return step


def collected_in_background(fixed):
    """After each answer a thread collects garbage, out of the way, as was meant: it looks through 120,000 objects of a
    cache and holds the GIL; fixed: gc.freeze() exempts the cache."""
    gc.freeze()  # what is imported would take longer than all else
    cache = [[i, str(i)] for i in range(120_000)]
    if fixed:
        gc.freeze()
    work, answered = Work(2), threading.Semaphore(0)

    def collect():
        while True:
            answered.acquire()
            gc.collect()

    threading.Thread(target=collect, daemon=True, name="collector").start()

    def step():
        for _ in range(24):
            work()[0, 0].item()
        answered.release()
        return cache

    return step


def tiles_one_by_one(fixed):
    """A picture on the GPU is cut into 160 tiles, and each is normalized by itself; fixed: all at once."""
    size, rows, columns = 128, 10, 16
    picture = torch.zeros(3, rows * size, columns * size, dtype=torch.uint8, device=DEVICE)
    mean, deviation = (torch.full((3, 1, 1), x, device=DEVICE) for x in (120.0, 60.0))
    batch = torch.empty(rows * columns, 3, size, size, device=DEVICE, dtype=torch.float16)
    work = Work(16)

    def normalized(tiles):
        return (tiles.float() - mean) / deviation

    def cut():
        for i in range(rows * columns):
            y, x = i // columns * size, i % columns * size
            batch[i] = normalized(picture[:, y:y + size, x:x + size])

    def cut_at_once():
        tiles = picture.view(3, rows, size, columns, size).permute(1, 3, 0, 2, 4)
        batch.view(rows, columns, 3, size, size).copy_(normalized(tiles))

    def step():
        if fixed:
            cut_at_once()
        else:
            cut()
        work()[0, 0].item()

    return step


def shared_connection(fixed):
    """Each step reads a row through the connection to a database on which a thread makes reports, and SQLite lets one
    use it at a time; fixed: the thread has a connection of its own."""
    if sqlite3.threadsafety != 3:
        raise Skip("SQLite was built without locks")
    folder = tempfile.TemporaryDirectory()

    def connect():
        return sqlite3.connect(f"{folder.name}/answers.db", check_same_thread=False)

    ours = connect()
    ours.execute("create table answers (id integer primary key, text text, score real)")
    texts = sentences(1000, 4)
    rows = ((i, texts[i % len(texts)], i / 7) for i in range(200_000))
    ours.executemany("insert into answers values (?, ?, ?)", rows)
    ours.commit()
    reports = connect() if fixed else ours

    def report():
        while True:
            reports.execute("select count(*), sum(score * score) from answers where text like '%batching%'").fetchone()
            time.sleep(0.001)  # long enough for one who waits to get it

    threading.Thread(target=report, daemon=True, name="reports").start()
    work = Work(24)

    def step(_=folder):  # it must stay
        ours.execute("select score from answers where id = ?", (17,)).fetchone()
        work()[0, 0].item()

    return step


def nodes_on_disk(fixed):
    """A nearest neighbour is searched in a graph whose nodes are read from the disk, one after the other, past the page
    cache; fixed: the page cache keeps them."""
    nodes, size = 16_384, 4096
    node = numpy.dtype([("vector", numpy.float32, 768), ("neighbours", numpy.int32, 256)])
    table = numpy.zeros(nodes, node)
    table["neighbours"] = numpy.random.default_rng(0).integers(nodes, size=(nodes, 256))
    with tempfile.NamedTemporaryFile(dir=os.environ.get("INFERSCOPE_DISK", ".")) as f:
        f.write(table)
        f.flush()
        os.fsync(f.fileno())
        fd = os.open(f.name, os.O_RDONLY if fixed else os.O_RDONLY | os.O_DIRECT)
    page = mmap.mmap(-1, size)  # aligned, as O_DIRECT needs it
    read, query, work = numpy.frombuffer(page, node), numpy.ones(768, numpy.float32), Work(24)

    def nearest(at):
        for hop in range(48):
            os.preadv(fd, [page], at * size)
            numpy.square(read["vector"][0] - query).sum()
            at = int(read["neighbours"][0, hop])
        return at

    def step():
        nearest(0)
        work()[0, 0].item()

    return step


def polled_future(fixed):
    """The spectrum of a piece of audio, computed by a thread within a millisecond, is asked for every 8 ms until it is
    there; fixed: it is waited for."""
    audio, work = numpy.ones(1 << 16, numpy.float32), Work(24)
    pool = ThreadPoolExecutor(1, thread_name_prefix="spectrum")

    def step():
        spectrum = pool.submit(numpy.fft.rfft, audio)
        while not fixed and not spectrum.done():
            time.sleep(0.008)
        spectrum.result()
        work()[0, 0].item()

    return step


@functools.cache
def scan():
    return zlib.compress(bytes(range(256)) * (3 * MB // 256), 1)


def rendered(page):
    """Unpacks a page of a document and makes it smaller."""
    pixels = numpy.frombuffer(zlib.decompress(scan()), numpy.uint8).reshape(2048, -1)
    return pixels[page::16, ::16].astype(numpy.float32)


def pages_of_a_document(fixed):
    """The four pages of each document are rendered by a pool of processes, which has one; fixed: four."""
    processes = 4 if fixed else 1
    pool = ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("fork"))
    list(pool.map(rendered, range(processes)))  # starts them before the GPU is used
    work = Work(24)

    def step():
        for pixels in pool.map(rendered, range(4)):
            torch.from_numpy(pixels).to(DEVICE)
        work()[0, 0].item()

    return step


def list_of_the_visited(fixed):
    """Each of two searches in a graph of 48 million nodes marks the 1,200 that it visits in a new list of bytes, whose
    pages the kernel must bring in; fixed: in the list of the search before, whose marks are taken out."""
    nodes, r, work = 48 * MB, numpy.random.default_rng(0), Work(20)
    paths = [r.integers(nodes, size=(40, 30)) for _ in range(2)]
    kept = numpy.ones(nodes, numpy.uint8)
    kept[:] = 0

    def search(path):
        visited = kept if fixed else numpy.frombuffer(bytearray(nodes), numpy.uint8)
        for neighbours in path:
            new = neighbours[visited[neighbours] == 0]
            visited[new] = 1
        if fixed:
            visited[path] = 0

    def step():
        for path in paths:
            search(path)
        work()[0, 0].item()

    return step


def healthy_corpus(_):
    """Healthy: a batch job embeds a corpus. The next texts are copied and the last vectors are stored while an encoder
    works."""
    width, layers, rows, length = (1024, 12, 64, 256) if GPU else (64, 2, 4, 16)
    dtype = torch.float16 if GPU else torch.float32
    layer = torch.nn.TransformerEncoderLayer(width, 16, 4 * width, batch_first=True, norm_first=True)
    encoder = torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).to(DEVICE, dtype).eval()
    embedding = torch.nn.Embedding(30_000, width, device=DEVICE, dtype=dtype)
    corpus = torch.randint(30_000, (8, rows, length))
    corpus = corpus.pin_memory() if GPU else corpus
    vectors, stored = [pinned(rows, width) for _ in range(2)], numpy.zeros((8, rows, width), numpy.float32)
    done, count = [torch.cuda.Event() if GPU else None for _ in range(2)], 0

    @torch.no_grad()
    def step():
        nonlocal count
        ids = corpus[count % 8].to(DEVICE, non_blocking=True)
        vectors[count % 2].copy_(encoder(embedding(ids)).mean(1).float(), non_blocking=True)
        if GPU:
            done[count % 2].record()
        count += 1
        if count > 1:
            if GPU:
                done[count % 2].synchronize()
            stored[count % 8] = vectors[count % 2].numpy()

    return step


ASKING = """
import socket, sys, time
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as server:
    while True:
        server.sendall(bytes(8192))
        if not server.recv(1024):
            break
        time.sleep(0.001)
"""


def healthy_request(_):
    """Healthy: a client asks for 20 ms of work, thinks for 1 ms, and asks again; the server waits for it meanwhile. The
    client is no child of the server, and ends with it."""
    listener = socket.create_server(("127.0.0.1", int(os.environ.get("INFERSCOPE_PORT", "0"))))
    subprocess.run(
        ["sh", "-c", '"$0" "$@" </dev/null >/dev/null 2>&1 &', sys.executable, "-c", ASKING,
         str(listener.getsockname()[1])],
        check=True,
    )
    conn, _ = listener.accept()
    work = Work(80)

    def step(_=listener):  # it goes on listening, as a server does
        request = conn.recv(8192, socket.MSG_WAITALL)
        torch.frombuffer(bytearray(request), dtype=torch.float32).to(DEVICE)
        conn.sendall(b"%f" % work()[0, 0].item())

    return step


BLIND5 = {
    "compared-tensors": (sampler_that_compares, ("host-sync",)),
    "parked-sessions": (parked_sessions, ("sync-copy",)),
    "streamed-text": (streamed_text, ("preprocessing", "native-work")),
    "background-gc": (collected_in_background, ("gc", "gil")),
    "tiles": (tiles_one_by_one, ("launch-overhead",)),
    "shared-connection": (shared_connection, ("lock",)),
    "nodes-on-disk": (nodes_on_disk, ("disk",)),
    "polled-future": (polled_future, ("sleep",)),
    "document-pages": (pages_of_a_document, ("worker",)),
    "visited-list": (list_of_the_visited, ("page-faults",)),
    "healthy-corpus": (healthy_corpus, ()),
    "healthy-request": (healthy_request, ()),
}
