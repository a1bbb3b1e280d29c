#!/usr/bin/env python3
"""An inference server in Python on the simulated CUDA: prog for what only Python can do.

Reads lines of actions from standard input until "go", as prog does (main.c): each is repeated for ever in a thread, the
first in the main thread. Actions that are not in ACTIONS are those of script.c. What it does is written down through plan.c.
"""

import array
import asyncio
import concurrent.futures
import contextlib
import csv
import ctypes
import functools
import gc
import http.client
import http.server
import io
import json
import logging
import multiprocessing
import os
import pickle
import queue
import re
import socket
import sys
import threading
import time
import zlib

# Calls through WAITING give up the GIL, as those of an extension that may block; those through SHORT do not.
WAITING = ctypes.CDLL("libserving.so")
SHORT = ctypes.PyDLL("libserving.so")
SHORT.plan_now.restype = ctypes.c_uint64
DEVICE_LEFT = ctypes.c_uint64.in_dll(SHORT, "device_left")
RELEASING = (
    "wait", "rwait", "item", "copyin", "copyout", "sleep", "read", "sync", "ask", "serve", "worker", "child",
    "callback",
)


class Phase:
    """A phase of the truth: the body of a with statement. Where the collector runs meanwhile, that is a phase of its
    own."""

    open = threading.local()

    def __init__(self, cause):
        self.cause = cause.encode()

    def __enter__(self):
        Phase.open.cause = self.cause
        SHORT.plan_begin(self.cause)

    def __exit__(self, *_):
        Phase.open.cause = None
        SHORT.plan_end()

    @staticmethod
    def collecting(event, _):
        """What the collector calls when it starts and stops. What importing makes it collect is the import's."""
        if event == "start":
            Phase.open.since = SHORT.plan_now()
        elif getattr(Phase.open, "cause", None) not in (None, b"gc", b"compilation"):
            SHORT.plan_split(b"gc", ctypes.c_uint64(Phase.open.since))


if "PLAN" in os.environ:
    gc.callbacks.append(Phase.collecting)
else:  # nothing is to be written down
    NO_PHASE = contextlib.nullcontext()

    def Phase(_cause):
        return NO_PHASE


WORDS = "the quick brown fox jumps over a lazy dog and then some more words follow it".split()
VOCABULARY = {word: i for i, word in enumerate(WORDS)}
TEXT = " ".join(WORDS)


def sample_token(rounds):
    """Picks a token by a soft maximum, in Python."""
    best = 0.0
    for i in range(rounds):
        best = max(best, 2.718281828 ** ((i * 7 % 64) / 16) / (best + 1.0))
    return best


def count_beams(rounds):
    """Keeps the books of a beam search, in Python."""
    seen = {}
    for i in range(rounds):
        seen[i % 97] = seen.get(i % 89, 0) + 1
    return seen


def tokenize(rounds):
    """Greedy longest match, letter by letter."""
    tokens = []
    for i in range(rounds):
        word = WORDS[i % len(WORDS)]
        end = len(word)
        while end and word[:end] not in VOCABULARY:
            end -= 1
        tokens.append(VOCABULARY[word[:end]])
    return tokens


DOCUMENT = json.dumps([{"id": i, "text": TEXT, "scores": [i / 7, i / 3]} for i in range(40)])
TABLE = "\n".join(f"{i},{TEXT},{i / 7}" for i in range(60))
PATTERN = re.compile(r"(\w+)\s+(?:quick|lazy|more)\s+(\w+)")
LETTER = TEXT * 20
RECORDS = [{"id": i, "text": TEXT + str(i), "scores": [i, i + 1]} for i in range(150)]
BLOB = os.urandom(20_000)


def parse_requests(rounds):
    return [json.loads(DOCUMENT) for _ in range(rounds)]


def read_table(rounds):
    return [list(csv.reader(io.StringIO(TABLE))) for _ in range(rounds)]


def clean_text(rounds):
    return [PATTERN.findall(LETTER) for _ in range(rounds)]


class Batch:
    """What a worker sends: who receives one collects what is left of the one before."""

    def __init__(self, rows):
        self.rows = rows

    def __setstate__(self, state):
        self.__dict__.update(state)
        if HEAP:
            gc.collect()


SENT = pickle.dumps(RECORDS)


def receive_batch(rounds):
    for _ in range(rounds):
        pickle.loads(SENT)
    pickle.loads(pickle.dumps(Batch(RECORDS[:1])))


def encode_results(rounds):
    for _ in range(rounds):
        pickle.dumps(RECORDS)


def compress(rounds):
    """Lets go of the GIL."""
    for _ in range(rounds):
        zlib.compress(BLOB, 1)


def read_rates():
    """What an earlier program wrote into the file of RATES, as work.c does: {function's name: rounds in a
    microsecond}."""
    try:
        with open(os.environ["RATES"]) as f:
            return {name: float(rate) for name, rate in map(str.split, f)}
    except (KeyError, FileNotFoundError):
        return {}


def write_rate(name, rate):
    if "RATES" in os.environ:
        with open(os.environ["RATES"], "a") as f:
            f.write(f"{name} {rate:.9g}\n")


RATES = read_rates()


def fastest(function):
    """How many rounds a microsecond holds on a quiet machine: by the fastest of some tries."""
    rounds, best = 1, 0
    for _ in range(12):
        start = time.perf_counter()
        function(rounds)
        took = time.perf_counter() - start
        best = max(best, rounds / took / 1e6)
        rounds = max(1, int(best * 500))
    return best


def rounds_for(function, us):
    """How many rounds of a function take so many microseconds."""
    name = function.__name__
    if name not in RATES:
        RATES[name] = fastest(function)
        write_rate(name, RATES[name])
    return max(1, int(us * RATES[name]))


def working(cause, function):
    """An action that computes, and how to get ready for it."""

    def act(us, _):
        rounds = rounds_for(function, us)
        with Phase(cause):
            results = function(rounds)
        with Phase("python-work"):
            del results

    return act, lambda us, _: rounds_for(function, us)


def receive(us, _):
    rounds = rounds_for(receive_batch, us)
    with Phase("serialization"):
        receive_batch(rounds)


def start_receiving(us, size):
    rounds_for(receive_batch, us)
    fill_heap(size, 0)


HEAP = []


def fill_heap(size, _):
    gc.disable()
    HEAP.extend({"key": [i]} for i in range(size))


def collect(_size, _):
    with Phase("gc"):
        gc.collect()


def grow_heap(size, _):
    """Makes containers, and the collector runs by itself: young ones often, all of them at times."""
    if not gc.isenabled():
        gc.set_threshold(size // 2, 1, 1)
        gc.enable()
    with Phase("python-work"):
        del HEAP[2 * size :]
        HEAP.extend([i] for i in range(size))


def log_metrics():
    totals = {}
    while True:
        for i in range(1000):
            totals[i % 50] = totals.get(i % 50, 0) + i


def start_logging(*_):
    threading.Thread(target=log_metrics, name="metrics", daemon=True).start()


def wait_and_take(*_):
    """Waits for the GPU without the GIL, and then for the GIL."""
    WAITING.serve_action(b"wait")
    SHORT.plan_add(b"gil", DEVICE_LEFT, ctypes.c_uint64(SHORT.plan_now()))


LOCK, HOLD, HELD = threading.Lock(), threading.Semaphore(0), threading.Semaphore(0)


def refresh_cache(rounds):
    while True:
        HOLD.acquire()
        with LOCK:
            HELD.release()
            compress(rounds)


def start_refreshing(us, _):
    threading.Thread(target=refresh_cache, args=(rounds_for(compress, us),), daemon=True).start()


def look_up(*_):
    HOLD.release()
    HELD.acquire()
    with Phase("lock"):
        LOCK.acquire()
    LOCK.release()


ASKED, BATCHES = queue.Queue(), queue.Queue()


def make_batches(rounds):
    while True:
        ASKED.get()
        compress(rounds)
        BATCHES.put(rounds)


def start_making(us, _):
    threading.Thread(target=make_batches, args=(rounds_for(compress, us),), daemon=True).start()
    ASKED.put(1)


def next_batch(*_):
    ASKED.put(1)
    with Phase("worker"):
        BATCHES.get()


def handle_requests(us, rounds):
    """Half of it waits for somebody else, half of it holds the GIL."""
    while True:
        ASKED.get()
        time.sleep(us / 1e6)
        tokenize(rounds)
        BATCHES.put(rounds)


def start_handlers(us, handlers):
    rounds = rounds_for(tokenize, us)
    for _ in range(handlers):
        threading.Thread(target=handle_requests, args=(us, rounds), daemon=True).start()
    for _ in range(8):
        ASKED.put(1)


def answer_requests(rounds):
    """Holds the GIL for all that it does."""
    while True:
        ASKED.get()
        tokenize(rounds)
        BATCHES.put(rounds)


def start_feeding(us, threads):
    rounds = rounds_for(tokenize, us)
    for _ in range(threads):
        threading.Thread(target=answer_requests, args=(rounds,), daemon=True).start()
    for _ in range(8):
        ASKED.put(1)


def start_answering(us, ahead):
    rounds = rounds_for(tokenize, us)
    threading.Thread(target=answer_requests, args=(rounds,), daemon=True).start()
    for _ in range(ahead):
        ASKED.put(1)


PIPE, THEIRS = multiprocessing.Pipe()


def load_data(rounds):
    ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL: it must not outlive the program, however that ends
    while True:
        THEIRS.recv()
        THEIRS.send(len(count_beams(rounds)))


def start_loading(us, _):
    context = multiprocessing.get_context("fork")
    context.Process(target=load_data, args=(rounds_for(count_beams, us),), daemon=True).start()


def next_data(*_):
    with Phase("python-work"):
        PIPE.send(1)
    with Phase("worker"):
        PIPE.recv()


MADE = []


def send_made(connection, rows):
    """Sends what it has pickled once, before it is asked for."""
    ctypes.CDLL(None).prctl(1, 9)
    made = pickle.dumps([{"id": i, "text": f"{TEXT} {i}", "scores": [i / 7, i / 3]} for i in range(rows)])
    while True:
        connection.send_bytes(made)


def start_sending(rows, _):
    mine, theirs = multiprocessing.Pipe()
    MADE.append(mine)
    context = multiprocessing.get_context("fork")
    context.Process(target=send_made, args=(theirs, rows), daemon=True).start()


def receive_made(*_):
    with Phase("serialization"):
        rows = MADE[0].recv()
    with Phase("python-work"):
        del rows


class SyncedFile(logging.FileHandler):
    """A log that is on the disk before the program goes on."""

    def emit(self, record):
        super().emit(record)
        os.fsync(self.stream.fileno())


LOG = logging.getLogger("steps")


def open_log(synced, _):
    kind = SyncedFile if synced else logging.FileHandler
    path = f"{os.environ.get('DATA', '.')}/steps.{os.getpid()}.log"
    LOG.addHandler(kind(path))
    os.unlink(path)
    LOG.setLevel(logging.INFO)
    LOG.propagate = False


def log_step(*_):
    with Phase("disk"):
        LOG.info("step done: %s", TEXT)


LOGITS = [i / 7 for i in range(400)]


def write_answers(rounds):
    return [json.dumps({"text": TEXT, "logprobs": LOGITS}) for _ in range(rounds)]


def to_tensors(rounds):
    return [array.array("f", LOGITS) for _ in range(rounds)]


def upload_lists(us, lists):
    rounds = rounds_for(to_tensors, us)
    for _ in range(lists):
        with Phase("python-work"):
            to_tensors(rounds)
        SHORT.serve_action(b"copyin 2k")


POOL = []


def start_pool(us, threads):
    rounds_for(compress, us // 4)
    POOL.append(concurrent.futures.ThreadPoolExecutor(threads))


def share_out(us, _):
    rounds = rounds_for(compress, us // 4)
    with Phase("worker"):
        for answer in [POOL[0].submit(compress, rounds) for _ in range(4)]:
            answer.result()


def look_for_batch(_us, every):
    """Looks at times whether the batch is there; with 0 it waits for it."""
    ASKED.put(1)
    with Phase("sleep" if every else "worker"):
        while every and BATCHES.empty():
            time.sleep(every / 1e6)
        BATCHES.get()


LOOP = asyncio.new_event_loop()


def await_timer(us, _):
    with Phase("sleep"):
        LOOP.run_until_complete(asyncio.sleep(us / 1e6))


def import_again(*_):
    with Phase("compilation"):
        for name in ("argparse", "tarfile", "zipfile"):
            sys.modules.pop(name, None)
            __import__(name)


def sleep(us, _):
    with Phase("sleep"):
        time.sleep(us / 1e6)


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers nothing much."""

    def do_GET(self):
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_):
        pass


class Server(http.server.HTTPServer):
    """Says when a request has come."""

    def get_request(self):
        out = super().get_request()
        SHORT.plan_end()
        return out


SERVER = []


def listen(*_):
    SERVER.append(Server(("127.0.0.1", 0), Handler))
    print("port", SERVER[0].server_address[1], flush=True)


def handle(*_):
    SHORT.plan_begin(b"no-work")
    SERVER[0].handle_request()


CONNECTION = []


def fetch(port, us):
    if not CONNECTION:
        CONNECTION.append(http.client.HTTPConnection("127.0.0.1", port))
    with Phase("python-work"):
        CONNECTION[0].request("GET", f"/{us}")
    with Phase("network"):
        CONNECTION[0].sock.recv(1, socket.MSG_PEEK)
    with Phase("python-work"):
        CONNECTION[0].getresponse().read()


def load_operators(*_):
    """The operators of a framework: of tensors on the host, or before a launch."""
    global operate
    library = ctypes.PyDLL("libtorch_cpu.so")
    add = library["_ZN2at4_ops10add_Tensor4callEPFvlEl"]
    operate = functools.partial(add, SHORT.work_dispatch)


def compare_scores(us, _):
    with Phase("python-work"):
        for _ in range(us // 20):
            operate(20)


def forward_layers(n, us):
    with Phase("launch-overhead"):
        for _ in range(n):
            operate(us)
            SHORT.serve_action(b"kernels 1 tiny_us3")


# What it does, and what it needs before CUDA is up.
ACTIONS = {
    "tensors": (compare_scores, load_operators),
    "layers": (forward_layers, load_operators),
    "python": working("python-work", sample_token),
    "beams": working("python-work", count_beams),
    "pytokenize": working("preprocessing", tokenize),
    "json": working("serialization", parse_requests),
    "csv": working("preprocessing", read_table),
    "regex": working("preprocessing", clean_text),
    "pickle": working("serialization", encode_results),
    "collect": (collect, fill_heap),
    "grow": (grow_heap, fill_heap),
    "gilwait": (wait_and_take, start_logging),
    "gwait": (wait_and_take, None),
    "phandlers": (next_batch, start_handlers),
    "pfeed": (next_batch, start_feeding),
    "panswer": (next_batch, start_answering),
    "precv": (receive_made, start_sending),
    "aio": (await_timer, None),
    "unpickle": (receive, start_receiving),
    "plock": (look_up, start_refreshing),
    "pqueue": (next_batch, start_making),
    "pchild": (next_data, start_loading),
    "flog": (log_step, open_log),
    "dumps": working("serialization", write_answers),
    "lists": (upload_lists, lambda us, _: rounds_for(to_tensors, us)),
    "pool": (share_out, start_pool),
    "look": (look_for_batch, lambda us, _: threading.Thread(
        target=make_batches, args=(rounds_for(compress, us),), daemon=True).start()),
    "import": (import_again, None),
    "psleep": (sleep, None),
    "handle": (handle, listen),
    "fetch": (fetch, None),
    "nocuda": (lambda *_: None, None),
}


def parse(text):
    """One action: what to call with what."""
    name, *rest = text.split()
    if name not in ACTIONS:
        library = WAITING if name in RELEASING else SHORT
        return name, library.serve_action, (text.strip().encode(),)
    numbers = [int(n) for n in rest] + [0, 0]
    return name, ACTIONS[name][0], tuple(numbers[:2])


def prepare(actions):
    for name, _, args in actions:
        if name not in ACTIONS:
            SHORT.serve_prepare(args[0])
        elif ACTIONS[name][1]:
            ACTIONS[name][1](*args)


def serve(actions):
    while True:
        for _, act, args in actions:
            act(*args)


def main():
    lines = list(iter(sys.stdin.readline, "go\n"))
    scripts = [[parse(text) for text in line.split(";") if text.strip()] for line in lines]
    SHORT.work_calibrate()
    for actions in scripts:
        prepare(actions)
    if all(name != "nocuda" for name, _, _ in scripts[0]):
        SHORT.device_open()
    print("ready", os.getpid(), flush=True)
    for actions in scripts[1:]:
        threading.Thread(target=serve, args=(actions,), daemon=True).start()
    serve(scripts[0])


if __name__ == "__main__":
    main()
