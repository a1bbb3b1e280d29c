"""Programs with a planted cause whose author had read nothing of how causes are recognized: what platforms do for
their models that nobody has looked at since.

Each function returns step(), as causes.py says.
"""

import json
import logging
import multiprocessing
import os
import socket
import tempfile
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor

import torch

from .base import DEVICE, Work, graph_of, sentences, sync, tensor, tokenizer
from .planted import MB, pinned

GPU = DEVICE == "cuda"
HALF = torch.float16 if GPU else torch.bfloat16


def layers_of(n, size, dtype=torch.float32):
    layers = [torch.nn.Linear(size, size, device=DEVICE, dtype=dtype) for _ in range(n)]
    return torch.nn.Sequential(*layers)


def weights_cast_each_token(fixed):
    """Autocast makes half precision of fp32 weights for each token anew; fixed: the weights are kept in half
    precision."""
    size = 8192 if GPU else 64
    model = layers_of(8, size)
    x = torch.ones(1, size, device=DEVICE)
    if fixed:
        model, x = model.to(HALF), x.to(HALF)

    @torch.no_grad()
    def step():
        for _ in range(4):
            with torch.autocast(DEVICE, dtype=HALF, enabled=not fixed):
                y = model(x)
        y[0, 0].item()

    return step


def training(rows, size=2048, layers=24):
    """A model that is trained on the same batch. Returns it, and what computes the loss of a step and its gradients."""
    if not GPU:
        rows, size = 8, 32
    dtype = HALF if GPU else torch.float32
    model, x = layers_of(layers, size, dtype), torch.ones(rows, size, device=DEVICE, dtype=dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)

    def backward():
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss.detach()

    return model, optimizer, backward


def norm_of_each_gradient(fixed):
    """A training loop reads the norm of each of 48 gradients for its dashboard with .item(); fixed: all at once."""
    model, optimizer, backward = training(2048)

    def step():
        backward()
        gradients = [p.grad for p in model.parameters()]
        if fixed:
            norms = torch.stack([g.norm() for g in gradients]).tolist()
        else:
            norms = [g.norm().item() for g in gradients]
        optimizer.step()
        return norms

    return step


def batch_of_many_tensors(fixed):
    """A batch is 40 tensors of 1 MB in ordinary memory; fixed: in pinned memory, and the copies are not awaited."""
    names = [f"feature-{i}" for i in range(40)]
    batch = {name: pinned(MB // 4) if fixed else torch.ones(MB // 4) for name in names}
    work = Work(24)

    def step():
        on_gpu = {name: x.to(DEVICE, non_blocking=fixed) for name, x in batch.items()}
        work()
        on_gpu[names[-1]][0].item()

    return step


def adapters_not_merged(fixed):
    """Each of 96 small layers of a decoder adds its LoRA adapter by operations of its own; fixed: the adapters are
    merged into the weights."""
    size, rank, scale = 1024, 16, 0.5
    weights = [tensor(size, size) for _ in range(96)]
    adapters = [(tensor(size, rank), tensor(rank, size)) for _ in weights]
    if fixed:
        weights = [w + (a @ b) * scale for w, (a, b) in zip(weights, adapters)]
    x = tensor(1, size)

    def adapted(y, x, adapter):
        down, up = adapter
        return y + (x @ down @ up) * scale

    @torch.no_grad()
    def step():
        for _ in range(4):
            y = x
            for weight, adapter in zip(weights, adapters):
                out = y @ weight
                y = out if fixed else adapted(out, y, adapter)
        y[0, 0].item()

    return step


def whole_chat_tokenized(fixed):
    """With each message the whole chat, 30 times as long, is tokenized again; fixed: the message only."""
    t, work = tokenizer(), Work(24)
    message, = sentences(1, 200)
    chat = [message] * (1 if fixed else 30)

    def encode_chat():
        return [len(t.encode(text).ids) for text in chat]

    def step():
        encode_chat()
        work()[0, 0].item()

    return step


def checkpoint_in_line(fixed):
    """After each step 8 MB of state are written and flushed to the disk; fixed: a thread does it during the next
    step."""
    work, state, host = Work(32), tensor(2 * MB, dtype=torch.float32), [pinned(2 * MB) for _ in range(2)]
    file, count = tempfile.TemporaryFile(), 0
    writer, before = ThreadPoolExecutor(1, thread_name_prefix="checkpoint"), []

    def save(buffer):
        os.pwrite(file.fileno(), memoryview(buffer.numpy()), 0)
        os.fsync(file.fileno())

    def step():
        nonlocal count
        count += 1
        work()
        buffer = host[count % 2]
        buffer.copy_(state, non_blocking=True)
        sync()
        if not fixed:
            save(buffer)
            return
        if before:
            before.pop().result()
        before.append(writer.submit(save, buffer))

    return step


def formatted_for_nobody(fixed):
    """An f-string makes text of 900 scores for a debug log that is turned off; fixed: the log makes it if it is on."""
    log, work = logging.getLogger("formatted_for_nobody"), Work(12)
    log.setLevel(logging.INFO)
    scores = torch.randn(30, 30, device=DEVICE)

    def step():
        work()
        on_host = scores.cpu()
        if fixed:
            log.debug("scores %s", on_host)
        else:
            log.debug(f"scores {on_host}")

    return step


def allocator_of_a_debugger(fixed):
    """PYTORCH_NO_CUDA_MEMORY_CACHING has been left on since a leak was looked for; fixed: it is off."""
    if not fixed:
        os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
    work = Work(20)

    def step():
        work()[0, 0].item()

    return step


def inherited_affinity(fixed):
    """The program is pinned to one CPU, and so are the two processes that it starts and that pack its logs; fixed: they
    may use the other CPUs."""
    cpus = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cpus[-1:])

    def pack():
        if fixed:
            os.sched_setaffinity(0, cpus[:-1])
        text = b"request 17: 128 tokens, 7 ms\n" * 10_000
        while True:
            zlib.compress(text)

    for _ in range(2):
        multiprocessing.get_context("fork").Process(target=pack, daemon=True).start()
    x = tensor(256, 256)

    def step():
        y = x
        for _ in range(400):
            y = y @ x
        y[0, 0].item()

    return step


def snapshot_of_sessions(fixed):
    """A thread makes a JSON snapshot of all sessions, again and again, and holds the GIL for as long as each takes;
    fixed: it does so once a minute."""
    sessions, work = [{"id": i, "tokens": list(range(40))} for i in range(1500)], Work(2)

    def snapshot():
        while True:
            time.sleep(60 if fixed else 0.002)
            json.dumps(sessions)

    threading.Thread(target=snapshot, daemon=True, name="snapshot").start()

    def step():
        for _ in range(8):
            work()[0, 0].item()

    return step


def one_request_after_the_other(fixed):
    """Four requests are decoded one after the other, and each reads all 8 GB of weights for its token; fixed: as one
    batch."""
    size, n = (8192, 64) if GPU else (64, 4)
    weights, x = [tensor(size, size) for _ in range(n)], tensor(4 if fixed else 1, size)

    def body():
        y = x
        for w in weights:
            y = y @ w
        return y

    replay = graph_of(body)

    def step():
        for _ in range(1 if fixed else 4):
            replay()
        sync()

    return step


def one_key_at_a_time(fixed):
    """Three features are asked of a store one after the other, 6 ms each; fixed: all with one question."""
    host, port = os.environ["INFERSCOPE_SERVICE"].split(":")
    conn, work = socket.create_connection((host, int(port))), Work(24)

    def ask(keys):
        conn.sendall(keys)
        conn.recv(16)

    def step():
        for keys in (b"uic",) if fixed else (b"u", b"i", b"c"):
            ask(keys)
        work()[0, 0].item()

    return step


def healthy_training(_):
    """Healthy: a training loop of large layers, whose loss is looked at each 10 steps."""
    _, optimizer, backward = training(16_384, layers=8)
    count = 0

    def step():
        nonlocal count
        count += 1
        loss = backward()
        optimizer.step()
        if count % 10 == 0:
            loss.item()

    return step


def healthy_metrics(_):
    """Healthy: scores of each step go to pinned memory, and are formatted two steps later, while the GPU works."""
    work, scores = Work(40), tensor(64, 64, dtype=torch.float32)
    sent, free = [], [pinned(64, 64) for _ in range(3)]

    def step():
        work()
        host = free.pop()
        host.copy_(scores, non_blocking=True)
        done = torch.cuda.Event() if GPU else None
        if done:
            done.record()
        sent.append((done, host))
        if len(sent) < 3:
            return
        done, host = sent.pop(0)
        if done:
            done.synchronize()
        json.dumps(host.tolist())
        free.append(host)

    return step


BLIND4 = {
    "autocast-weights": (weights_cast_each_token, ("bandwidth-bound",)),
    "gradient-norms": (norm_of_each_gradient, ("host-sync",)),
    "unpinned-batch": (batch_of_many_tensors, ("sync-copy",)),
    "lora-unmerged": (adapters_not_merged, ("launch-overhead",)),
    "whole-chat": (whole_chat_tokenized, ("preprocessing",)),
    "checkpoint": (checkpoint_in_line, ("disk",)),
    "debug-fstring": (formatted_for_nobody, ("python-work",)),
    "uncached-allocator": (allocator_of_a_debugger, ("allocation",)),
    "inherited-affinity": (inherited_affinity, ("no-cpu",)),
    "session-snapshot": (snapshot_of_sessions, ("gil",)),
    "batch-of-one": (one_request_after_the_other, ("bandwidth-bound", "small-batch")),
    "one-key-at-a-time": (one_key_at_a_time, ("network",)),
    "healthy-training": (healthy_training, ()),
    "healthy-metrics": (healthy_metrics, ()),
}
