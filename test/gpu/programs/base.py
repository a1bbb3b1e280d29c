"""What the programs share: a small model, a loop that is driven over stdin, and text to tokenize."""

import json
import multiprocessing
import queue
import random
import signal
import sys
import threading
import time

import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Skip(Exception):
    """A program cannot run here, for the reason that it gives."""


def say(answer):
    print(json.dumps(answer), flush=True)


def sync():
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def drive(pid, step):
    """Answers the commands of stdin, each with one JSON line.

    run S [W]  calls step() for W seconds and then for S more, waits for the GPU, and answers {"steps", "seconds",
    "from_ns", "to_ns"}
               (CLOCK_MONOTONIC) of the S; SIGUSR1 ends it early; the first line on stdout is {"ready": pid}
    quit       ends
    """
    stopped = False

    def stop(*_):
        nonlocal stopped
        stopped = True

    def run(seconds):
        nonlocal stopped
        stopped, n, began = False, 0, time.monotonic_ns()
        end = began + int(seconds * 1e9)
        while time.monotonic_ns() < end and not stopped:
            step()
            n += 1
        sync()
        now = time.monotonic_ns()
        return {"steps": n, "seconds": (now - began) / 1e9, "from_ns": began, "to_ns": now}

    signal.signal(signal.SIGUSR1, stop)
    say({"ready": pid})
    for line in sys.stdin:
        words = line.split()
        if not words or words[0] == "quit":
            return
        if len(words) > 2 and float(words[2]) > 0:
            run(float(words[2]))
        say(run(float(words[1])))


def tensor(*shape, dtype=torch.float16):
    return torch.randn(*shape, device=DEVICE, dtype=dtype if DEVICE == "cuda" else torch.float32) * 0.01


def graph_of(body):
    """Replays a CUDA graph of body(); without a GPU it is body itself."""
    if DEVICE != "cuda":
        return body
    with torch.cuda.stream(torch.cuda.Stream()):
        body()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = body()

    def replay(_=(body, kept)):  # what the graph reads and writes must stay allocated
        graph.replay()

    return replay


class Work:
    """GPU work of a known kind: n products of size x size matrices, 4096: 0.25 ms each on an H200."""

    def __init__(self, n, size=4096):
        size = size if DEVICE == "cuda" else 128
        self.n, self.weight, self.x = n, tensor(size, size), tensor(size, size)

    def __call__(self):
        x = self.x
        for _ in range(self.n):
            x = x @ self.weight
        return x


def ahead(make, process=False):
    """Makes what the next steps need while this one runs, in a thread or, for what holds the GIL, in a process. Returns
    what fetches one."""
    fork = multiprocessing.get_context("fork")  # as a DataLoader's workers; the child does not touch CUDA
    made = fork.Queue(2) if process else queue.Queue(2)

    def feed():
        while True:
            made.put(make())

    (fork.Process if process else threading.Thread)(target=feed, daemon=True).start()
    return made.get


WORDS = [
    "the", "model", "server", "request", "latency", "inference", "tokenize", "because", "running", "pipeline",
    "graphics", "memory", "question", "answering", "embedding", "sentence", "unbelievable", "throughput", "batching",
    "scheduler",
]


def sentences(n, words, seed=0):
    """n sentences of so many words each, always the same for a seed."""
    r = random.Random(seed)
    return [
        " ".join(r.choice(WORDS) + str(r.randrange(100)) * (r.random() < 0.2) for _ in range(words)) for _ in range(n)
    ]


def tokenizer(vocabulary=2000):
    """A byte-level BPE tokenizer of the tokenizers package, trained here: nothing is downloaded. Where that is missing,
    a plain one."""
    try:
        from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    except ImportError:
        from .models import PlainTokenizer

        return PlainTokenizer(sentences(2000, 30), vocabulary)

    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel()
    t.train_from_iterator(
        sentences(2000, 30), trainers.BpeTrainer(vocab_size=vocabulary, special_tokens=["<pad>"], show_progress=False)
    )
    return t
