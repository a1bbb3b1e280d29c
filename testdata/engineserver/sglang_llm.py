"""The server of llm.py in the three processes of SGLang: tokenizer and HTTP, scheduler, detokenizer. They send each other
the objects of 0.5.10. With a wheel of SGLang they are of its classes, and go over sockets of pyzmq (ipc://); without one
the standard library alone makes and sends the like.

Usage: sglang_llm.py '{"slots": 8, ...}' [WHEEL]
"""

import asyncio
import dataclasses
import json
import os
import pickle
import shutil
import socket
import struct
import sys
import tempfile
import threading
import types

import llm
from sglang_messages import Kit, frame, make
from server import send

MODULE = "sglang.srt.managers.io_struct"
FIELDS = {
    "TokenizedGenerateReqInput": "rid http_worker_ipc input_text input_ids mm_inputs sampling_params return_logprob stream",
    "BatchTokenIDOutput": "spec_verify_ct rids http_worker_ipcs finished_reasons decoded_texts decode_ids read_offsets "
    "output_ids skip_special_tokens spaces_between_special_tokens no_stop_trim prompt_tokens reasoning_tokens "
    "completion_tokens cached_tokens output_hidden_states retraction_counts load time_stats",
    "BatchStrOutput": "spec_verify_ct rids http_worker_ipcs finished_reasons output_strs output_ids prompt_tokens "
    "completion_tokens reasoning_tokens cached_tokens",
    "AbortReq": "rid http_worker_ipc abort_all",
    "GetLoadReqOutput": "rid http_worker_ipc dp_rank num_reqs num_waiting_reqs num_tokens ts_tic",
}


class Plain(Kit):
    """Makes messages without a wheel."""

    def __init__(self):
        self.io, self.structs = types.ModuleType(MODULE), False
        for at in range(MODULE.count(".")):  # its packages
            package = MODULE.rsplit(".", at + 1)[0]
            sys.modules[package] = types.ModuleType(package)
        sys.modules[MODULE] = self.io
        for name, fields in FIELDS.items():
            cls = dataclasses.make_dataclass(name, fields.split())
            cls.__module__ = MODULE
            setattr(self.io, name, cls)

    def request(self, rid, text, ids):
        return make(self.io.TokenizedGenerateReqInput, rid=rid, input_text=text, input_ids=ids, stream=True)

    def stats(self, times):
        return None


class Pipe:
    """One direction between two processes: PUSH and PULL of ZeroMQ, or the like on a pair of sockets."""

    def __init__(self, real, path):
        self.real, self.folder, self.path = real, os.path.dirname(path), "ipc://" + path
        self.end, self.sock, self.stream = None, None, None
        self.pair = None if real else socket.socketpair()

    def open(self, kind):
        import zmq

        if self.sock is None:
            self.sock = zmq.Context.instance().socket(kind)
            (self.sock.bind if kind == zmq.PULL else self.sock.connect)(self.path)
        return self.sock

    def ready(self, sends):
        """Opens this process's end; what it does not use is closed, so that the end of the other is seen."""
        if self.real:
            import zmq

            self.open(zmq.PUSH if sends else zmq.PULL)
        else:
            self.end, other = self.pair if sends else self.pair[::-1]
            other.close()

    def send(self, message, kit):
        if self.real:
            self.sock.send_pyobj(message)
        else:
            send(self.end, frame(kit.encode(message)))

    def receive(self):
        if self.real:
            return self.sock.recv_pyobj()
        self.stream = self.stream or self.end.makefile("rb")
        head = self.stream.read(1)
        if not head:
            shutil.rmtree(self.folder, ignore_errors=True)
            os._exit(0)
        size = struct.unpack(">Q", self.stream.read(8))[0] if head[0] & 2 else self.stream.read(1)[0]
        return pickle.loads(self.stream.read(size))


class Scheduler(llm.Engine):
    def __init__(self, s, kit, requests, tokens):
        super().__init__(s, None)
        self.kit, self.requests, self.tokens, self.retracted = kit, requests, tokens, {}

    def read(self):
        while True:
            r = self.requests.receive()
            self.add(r.rid, len(r.input_ids), int(r.rid.split("-")[2]))

    def tell(self, batch, left, usage):
        rows = []
        for r in batch:
            self.retracted[r.name] = self.retracted.get(r.name, 0) + sum(e["type"] == 3 for e in r.events)
            r.events = []
            rows.append((r.name, "length" if r.made == r.tokens else None, [1234], r.words, r.made, 0,
                         self.retracted[r.name], (r.queued, r.scheduled)))
        self.tokens.send(self.kit.step(rows, load=self.kit.load(len(batch), left)), self.kit)


def detokenizer(s, kit, tokens, texts):
    while True:
        batch = tokens.receive()
        rows = [(rid, why and why["type"], llm.detokenize(s), n)
                for rid, why, n in zip(batch.rids, batch.finished_reasons, batch.completion_tokens)]
        texts.send(kit.text(rows), kit)


class Tokenizer(llm.Server):
    async def run(self, kit, requests, texts):
        self.kit, self.requests, self.loop = kit, requests, asyncio.get_running_loop()
        server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        threading.Thread(target=self.hand_out, args=(texts,), daemon=True).start()
        print(server.sockets[0].getsockname()[1], flush=True)
        if self.s["audit_ms"]:
            asyncio.ensure_future(self.audits())
        await server.serve_forever()

    def hand_out(self, texts):
        while True:
            batch = texts.receive()
            for rid, why in zip(batch.rids, batch.finished_reasons):
                if queue := self.queues.get(rid):
                    self.loop.call_soon_threadsafe(queue.put_nowait, why)

    def ask(self, name, prompt, _tokens):
        self.requests.send(self.kit.request(name, "canary-of-a-prompt-4711", prompt), self.kit)


def start(work, folder):
    """Runs work in a process of its own, which ends with this one and removes the folder then."""
    if os.fork() == 0:
        parent = os.getppid()

        def watch():
            while os.getppid() == parent:
                threading.Event().wait(0.2)
            shutil.rmtree(folder, ignore_errors=True)
            os._exit(0)

        threading.Thread(target=watch, daemon=True).start()
        work()


def main():
    s = {**llm.SETTINGS, **json.loads(sys.argv[1])}
    wheel = sys.argv[2] if len(sys.argv) > 2 else None
    kit = Kit(wheel) if wheel else Plain()
    folder = tempfile.mkdtemp(prefix="sglang-ipc-")
    requests, tokens, texts = (Pipe(wheel, os.path.join(folder, name)) for name in ("requests", "tokens", "texts"))

    def schedule():
        requests.ready(False)
        tokens.ready(True)
        Scheduler(s, kit, requests, tokens).run()

    def detokenize():
        tokens.ready(False)
        texts.ready(True)
        detokenizer(s, kit, tokens, texts)

    start(schedule, folder)
    start(detokenize, folder)
    requests.ready(True)
    texts.ready(False)
    asyncio.run(Tokenizer({**s, "detokenize_ms": 0}).run(kit, requests, texts))


main()
