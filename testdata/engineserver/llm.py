"""An HTTP server of completions with an inference engine in a process of its own, as vLLM has: the two talk as
server.py says. The engine has no GPU; its steps sleep. The standard library alone.

Usage: llm.py '{"slots": 8, "step_ms": 3, ...}'
Prints its port. What can be wrong with a server is planted by the settings below.
"""

import asyncio
import concurrent.futures
import contextlib
import itertools
import json
import os
import socket
import struct
import sys
import threading
import time

from server import frame, output, pack, request, send

SETTINGS = {
    "slots": 8,  # requests in a batch
    "step_ms": 3,  # of a step of the engine
    "prefill_ms": 0.5,  # more for each 100 words of a new request's prompt
    "blocks": 10000,  # of the KV cache, of 16 words each
    "tokenize_ms": 0,  # the event loop computes so long for each 100 words of a prompt
    "detokenize_ms": 0,  # and so long for each token
    "audit_ms": 0,  # and so long every 200 ms, for something else
    "token_bytes": 8,  # of the text of a token
    "merge": 1,  # tokens of a part of the answer
    "usage": 1,  # 0: an answer has no account of its tokens
    "admit": 0,  # requests that the API server works on at a time; 0: all
    "await_ms": 0,  # each request waits so long for something else before the engine has it
    "block_ms": 0,  # and the event loop waits so long for each request: a call that is not asynchronous
    "pool": 0,  # threads that tokenize in place of the event loop
    "survey": 0,  # 1: a thread computes all the time
    "log_kb": 0,  # the event loop writes so much JSON to a log for each token
    "lock_ms": 0,  # each request waits in a thread of its own, which holds a lock of all of them for so long
    "resolve_ms": 0,  # every fourth request waits so long in a thread, as for a name server
    "alone": 0,  # 1: the next request may go to the engine only once this one has its first token
}


def tokenize(words, s):
    until = time.thread_time() + s["tokenize_ms"] * len(words) / 1e5
    while time.thread_time() < until:
        pass
    return [31337] * len(words)


def detokenize(s):
    until = time.thread_time() + s["detokenize_ms"] / 1e3
    while time.thread_time() < until:
        pass
    return "x" * s["token_bytes"]


def audit(s):
    until = time.thread_time() + s["audit_ms"] / 1e3
    while time.thread_time() < until:
        pass


def log(question, s):
    record = {"event": "token", "question": [question["max_tokens"]] * (s["log_kb"] * 1024 // 4)}
    with open(os.devnull, "w") as out:
        out.write(json.dumps(record))


LOCK = threading.Lock()


def guarded(s):
    with LOCK:
        time.sleep(s["lock_ms"] / 1e3)


def survey():
    while True:
        sum(range(1000))


class Sequence:
    """A request in the engine."""

    def __init__(self, name, words, tokens):
        self.name, self.words, self.tokens = name, words, tokens
        self.made, self.queued, self.scheduled, self.events = 0, time.monotonic(), None, []

    def blocks(self):
        return 1 + (self.words + self.made) // 16


class Engine:
    """Schedules like vLLM: new requests first, as far as slots and blocks go; who needs a block that is not there makes
    the latest start anew."""

    def __init__(self, s, sock):
        self.s, self.sock = s, sock
        self.waiting, self.running, self.lock = [], [], threading.Condition()

    def read(self):
        """Takes requests: the id and the prompt of the msgpack, and how many tokens from the id."""
        stream = self.sock.makefile("rb")
        while True:
            body = b""
            while True:
                head = stream.read(1)
                if not head:
                    os._exit(0)
                size = struct.unpack(">Q", stream.read(8))[0] if head[0] & 2 else stream.read(1)[0]
                body = stream.read(size)
                if not head[0] & 1:
                    break
            at = 3 if body[0] == 0xDC else 1
            length = body[at + 1] if body[at] == 0xD9 else body[at] & 31
            at += 2 if body[at] == 0xD9 else 1
            name = body[at:at + length].decode()
            mark = body[at + length]
            words = struct.unpack(">H", body[at + length + 1:at + length + 3])[0] if mark == 0xDC else mark & 15
            self.add(name, words, int(name.split("-")[2]))

    def add(self, name, words, tokens):
        with self.lock:
            self.waiting.append(Sequence(name, words, tokens))
            self.lock.notify()

    def used(self):
        return sum(r.blocks() for r in self.running)

    def admit(self):
        """Returns those that join the batch."""
        new = []
        while (
            self.waiting
            and len(self.running) < self.s["slots"]
            and self.used() + self.waiting[0].blocks() <= self.s["blocks"]
        ):
            r = self.waiting.pop(0)
            if r.scheduled is None:
                r.events = [{"type": 1, "timestamp": r.queued}, {"type": 2, "timestamp": time.monotonic()}]
            r.scheduled = time.monotonic()
            self.running.append(r)
            new.append(r)
        return new

    def preempt(self):
        while self.used() > self.s["blocks"] and len(self.running) > 1:
            r = self.running.pop()
            r.events = [{"type": 3, "timestamp": time.monotonic()}]
            self.waiting.insert(0, r)

    def step(self):
        with self.lock:
            while not self.waiting and not self.running:
                self.lock.wait()
            self.preempt()
            new, left = self.admit(), len(self.waiting)
        usage = self.used() / self.s["blocks"]
        time.sleep((self.s["step_ms"] + sum(self.s["prefill_ms"] * (r.words + r.made) / 100 for r in new)) / 1e3)
        self.end(list(self.running), left, usage)

    def end(self, batch, left, usage):
        """Ends a step of these requests."""
        for r in batch:
            r.made += 1
        self.tell(batch, left, usage)
        for r in batch:
            if r.made == r.tokens:
                self.running.remove(r)

    def tell(self, batch, left, usage):
        """Sends what the step has made."""
        outputs = []
        for r in batch:
            prefill = {"num_prompt_tokens": r.words, "num_computed_tokens": r.words, "num_cached_tokens": 0}
            finish = 1 if r.made == r.tokens else None
            outputs.append(output(r.name, [1234], finish, r.events or None, prefill if r.made == 1 else None))
            r.events = []
        stats = {
            "num_running_reqs": len(batch),
            "num_waiting_reqs": left,
            "num_skipped_waiting_reqs": 0,
            "kv_cache_usage": usage,
            "prefix_cache_stats": {"requests": 0, "queries": 0, "hits": 0},
        }
        # In front of the tokens, the ids: what the API server needs is found without a reader of msgpack.
        told = json.dumps([[r[0], r[5]] for r in outputs]).encode()
        send(self.sock, frame(pack([0, outputs, stats, time.monotonic(), None, None, None, None]), True) + frame(told))

    def run(self):
        threading.Thread(target=self.read, daemon=True).start()
        while True:
            self.step()


class Server:
    """The API server: one event loop."""

    def __init__(self, s):
        self.s, self.numbers, self.queues = s, itertools.count(), {}
        self.admitted = asyncio.Semaphore(s["admit"]) if s["admit"] else contextlib.nullcontext()
        self.alone = asyncio.Lock() if s["alone"] else contextlib.nullcontext()
        self.pool = concurrent.futures.ThreadPoolExecutor(s["pool"]) if s["pool"] else None
        if s["survey"]:
            threading.Thread(target=survey, daemon=True).start()

    async def listen(self, sock):
        self.engine = sock
        self.reader, self.writer = await asyncio.open_connection(sock=sock)
        server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        print(server.sockets[0].getsockname()[1], flush=True)
        if self.s["audit_ms"]:
            asyncio.ensure_future(self.audits())
        await self.outputs()

    async def audits(self):
        while True:
            await asyncio.sleep(0.2)
            audit(self.s)

    async def outputs(self):
        """Hands what the engine made to the requests."""
        while True:
            more = True
            while more:
                flags = (await self.reader.readexactly(1))[0]
                size = (
                    struct.unpack(">Q", await self.reader.readexactly(8))[0]
                    if flags & 2
                    else (await self.reader.readexactly(1))[0]
                )
                body, more = await self.reader.readexactly(size), flags & 1
            for name, finish in json.loads(body):
                if queue := self.queues.get(name):
                    queue.put_nowait(finish)

    async def serve(self, reader, writer):
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        writer.transport.set_write_buffer_limits(high=1 << 14)
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = next(
                    int(x.split(b":")[1]) for x in head.split(b"\r\n") if x.lower().startswith(b"content-length")
                )
                question = json.loads(await reader.readexactly(length))
                async with self.admitted:
                    await asyncio.sleep(self.s["await_ms"] / 1e3)
                    await self.complete(question, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def ask(self, name, prompt, _tokens):
        send(self.engine, frame(b"\x00", True) + frame(pack(request(name, prompt))))

    async def tokenize(self, words):
        if self.pool is None:
            return tokenize(words, self.s)
        return await asyncio.get_running_loop().run_in_executor(self.pool, tokenize, words, self.s)

    async def middleware(self, number):
        if self.s["lock_ms"]:
            await asyncio.to_thread(guarded, self.s)
        if self.s["resolve_ms"] and number % 4 == 0:
            await asyncio.to_thread(time.sleep, self.s["resolve_ms"] / 1e3)

    async def complete(self, question, writer):
        tokens = question["max_tokens"]
        time.sleep(self.s["block_ms"] / 1e3)
        prompt = await self.tokenize(question["prompt"].split())
        number = next(self.numbers)
        await self.middleware(number)
        name = f"cmpl-{number}"
        full = f"{name}-{tokens}-deadbeef"
        queue = self.queues[full] = asyncio.Queue()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        async with self.alone:
            self.ask(full, prompt, tokens)
            finish = await queue.get()

        async def event(data):
            text = f"data: {data}\n\n".encode()
            writer.write(b"%x\r\n%s\r\n" % (len(text), text))
            await writer.drain()

        text = []
        while True:
            text.append(detokenize(self.s))
            if self.s["log_kb"]:
                log(question, self.s)
            if len(text) == self.s["merge"] or finish is not None:
                await event(json.dumps({"id": name, "choices": [{"text": "".join(text)}]}))
                text = []
            if finish is not None:
                break
            finish = await queue.get()
        if self.s["usage"]:
            usage = {"prompt_tokens": len(prompt), "completion_tokens": tokens}
            await event(json.dumps({"id": name, "choices": [], "usage": usage}))
        await event("[DONE]")
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        del self.queues[full]


def main(make=Engine):
    s = {**SETTINGS, **json.loads(sys.argv[1] if len(sys.argv) > 1 else "{}")}
    api, core = socket.socketpair()
    if os.fork() == 0:
        api.close()
        make(s, core).run()
    core.close()
    api.setblocking(False)
    asyncio.run(Server(s).listen(api))


if __name__ == "__main__":
    main()
