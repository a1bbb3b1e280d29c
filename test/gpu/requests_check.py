#!/usr/bin/env python3
"""Compares the times of requests in a recording with those of their clients, and measures what watching them costs.

    sudo python3 test/gpu/requests_check.py --bin bin [--servers NAME,...] [--llama-server PATH --model FILE]
        [--packages NAME=FOLDER ...] [--pairs 4] [--tls-pairs 4]

Servers: "own", a small one here that decodes with PyTorch; "llama" (llama.cpp's); "vllm", "sglang" and "transformers"
(transformers serve), each of the packages of its FOLDER, if one is given, with a small llama of random weights that is
made here: nothing is downloaded. One that does not start is a failure. At 1, 16 and 256 streams, each request is
compared with its client: requests and tokens, the time to the first token, and each gap between tokens. A client has
two clocks: its own, when its thread has read a token, and its kernel's, when the packet came in. Spans that the daemon
sends over OTLP are counted by a receiver here. Requests are pinned at full detail (--pin-level requests=all): by
default the governor may turn them off. After each attachment it is asked whether the server lives; attachments and
deaths are printed at the end. Exit code 1: a check failed, or the server died.
"""
import argparse
import asyncio
import contextlib
import gzip
import http.server
import itertools
import json
import os
import random
import signal
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import threading
import time

import common
import engines

PROMPT = "requests-check-canary " * 20


STREAMS = ((1, 8), (16, 3), (256, 2))  # and rounds
PER_CLIENT = 16  # streams of one process of clients


def serve(port, certificate):
    """A server with one batch: each step decodes a token for every request in it."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    size = 4096 if device == "cuda" else 512
    layers = [torch.randn(size, size, device=device, dtype=dtype) / size**0.5 for _ in range(24)]
    running, asked = [], itertools.count()

    def step(x):
        for w in layers:
            x = torch.tanh(x @ w)
        return x.argmax(-1).tolist()

    async def engine():
        loop = asyncio.get_running_loop()
        while True:
            if not running:
                await asyncio.sleep(0.001)
                continue
            batch = list(running)
            x = torch.ones(len(batch), size, device=device, dtype=dtype)
            tokens = await loop.run_in_executor(None, step, x)
            for queue, token in zip(batch, tokens):
                queue.put_nowait(token)

    async def handle(reader, writer):
        def chunk(text):
            data = text.encode()
            writer.write(b"%x\r\n%s\r\n" % (len(data), data))

        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(
                    (int(l.split(b":")[1]) for l in head.split(b"\r\n") if l.lower().startswith(b"content-length")), 0
                )
                question = json.loads(await reader.readexactly(length))
                writer.write(
                    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
                )
                chunk('data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n')
                queue = asyncio.Queue()
                running.append(queue)
                n, name = question["max_tokens"], f"chatcmpl-{next(asked)}"
                for _ in range(n):
                    token = await queue.get()
                    chunk('data: {"id":"%s","choices":[{"delta":{"content":"t%d"}}]}\n\n' % (name, token))
                running.remove(queue)
                chunk('data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":%d}}\n\n' % n)
                chunk("data: [DONE]\n\n")
                writer.write(b"0\r\n\r\n")
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def run():
        context = None
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
        await asyncio.start_server(handle, "127.0.0.1", port, ssl=context, backlog=1024)
        await engine()

    asyncio.run(run())


SO_TIMESTAMPNS = 35  # linux/socket.h


class Arrivals:
    """Reads lines from a socket; with each, when its last byte came in: by this thread's clock and the kernel's."""

    def __init__(self, sock):
        self.sock, self.data = sock, b""
        self.plain = not isinstance(sock, ssl.SSLSocket)
        if self.plain:
            sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        self.own = self.kernel = 0

    def fill(self):
        if not self.plain:
            part, extra = self.sock.recv(1 << 16), []
        else:
            part, extra, _, _ = self.sock.recvmsg(1 << 16, 64)
        self.own = time.time_ns()
        if not part:
            raise ConnectionError("the server closed the connection")
        for _, kind, stamp in extra:
            if kind == SO_TIMESTAMPNS:
                seconds, rest = struct.unpack("qq", stamp[:16])
                self.kernel = seconds * 10**9 + rest
        self.data += part

    def line(self):
        while b"\n" not in self.data:
            self.fill()
        line, self.data = self.data.split(b"\n", 1)
        return line.rstrip(b"\r")


def connect(port, tls):
    sock = socket.create_connection(("127.0.0.1", port), timeout=300)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if not tls:
        return sock
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context.wrap_socket(sock)


def ask(port, tokens, tag, tls=False):
    """One request. Its tag is its model, or the path of its model before a #: transformers serve knows models by their
    paths, and answers 422 to fields that it does not know, as ignore_eos."""
    path, _, _ = tag.partition("#")
    question = {
        "model": path or tag, "stream": True, "max_tokens": tokens, "stream_options": {"include_usage": True},
        "messages": [{"role": "user", "content": PROMPT}],
    }
    if path == tag:
        question["ignore_eos"] = True
    body = json.dumps(question).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        % len(body)
    )
    with connect(port, tls) as sock:
        lines, own, kernel, usage, name, metrics = Arrivals(sock), [], [], None, "", None
        sent = time.time_ns()
        sock.sendall(head.encode() + body)
        status = lines.line()
        if b" 200 " not in status:
            raise ConnectionError(f"the server answers {status.decode()!r} to a request for model {tag}")
        while (line := lines.line()) != b"0":  # the last chunk
            if not line.startswith(b"data: {"):
                continue
            part = json.loads(line[6:])
            name, metrics = name or part.get("id", ""), part.get("metrics") or metrics
            usage = (part.get("usage") or {}).get("completion_tokens", usage)
            if any(x.get("delta", {}).get("content") for x in part.get("choices", [])):
                own.append(lines.own)
                kernel.append(lines.kernel)
    return {"tag": tag, "id": name, "sent": sent, "own": own, "kernel": kernel, "usage": usage, "metrics": metrics}


def tags(streams, rounds):
    """The models that load's requests ask for."""
    return [
        f"s{streams}-{i}-{k}-{j}"
        for i in range(0, streams, PER_CLIENT)
        for k in range(min(PER_CLIENT, streams - i))
        for j in range(rounds)
    ]


def clients(port, streams, rounds, tokens, tag, tls):
    """A process of clients, a thread for each stream."""
    out = []

    def one(i):
        for j in range(rounds):
            out.append(ask(port, tokens, f"{tag}-{i}-{j}", tls))

    threads = [threading.Thread(target=one, args=(i,)) for i in range(streams)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    json.dump(out, sys.stdout)


def load(port, streams, rounds, tokens, tls=False, path=""):
    """Returns what the clients saw, and tokens a second."""
    begin = time.monotonic()
    processes = []
    for i in range(0, streams, PER_CLIENT):
        command = [
            sys.executable, os.path.abspath(__file__), "--clients",
            json.dumps([port, min(PER_CLIENT, streams - i), rounds, tokens, f"{path}s{streams}-{i}", tls]),
        ]
        processes.append(common.start(command, stdout=subprocess.PIPE))
    out = []
    for p in processes:
        out += json.loads(p.communicate()[0])
    if len(out) != streams * rounds:
        print(f"FAILED: {streams * rounds - len(out)} requests had no answer")
    return out, sum(len(r["own"]) for r in out) / (time.monotonic() - begin)


def percent(values, n):
    values = sorted(values)
    return values[(len(values) * n + 99) // 100 - 1] if values else 0


class Receiver(http.server.BaseHTTPRequestHandler):
    """Counts spans that come over OTLP."""

    spans = 0

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        if self.path == "/v1/traces":
            for resource in submessages(body, 1):
                for scope in submessages(resource, 2):
                    Receiver.spans += len(submessages(scope, 2))
        self.send_response(200)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


def submessages(b, wanted):
    """Returns the fields of protobuf with that number, which are messages."""

    def number(at):
        value = shift = 0
        while True:
            value |= (b[at] & 127) << shift
            at, shift = at + 1, shift + 7
            if not b[at - 1] & 128:
                return value, at

    out, at = [], 0
    while at < len(b):
        tag, at = number(at)
        kind = tag & 7
        if kind == 2:
            size, at = number(at)
            if tag >> 3 == wanted:
                out.append(b[at:at + size])
            at += size
        elif kind == 0:
            _, at = number(at)
        else:
            at += 8 if kind == 1 else 4
    return out


class Daemon:
    attachments = 0

    def __init__(self, args, pid, *flags):
        Daemon.attachments += 1
        self.dir = tempfile.mkdtemp()
        self.socket, self.bin = os.path.join(self.dir, "s"), args.bin
        self.log = open(os.path.join(self.dir, "log"), "w+")
        self.p = common.start(
            [f"{args.bin}/inferscoped", "--pid", str(pid), "--socket", self.socket, "--keep", "10m", *flags],
            stdout=self.log,
            stderr=self.log,
        )
        deadline = time.time() + 60
        while subprocess.run(
            [f"{args.bin}/inferscope", "--socket", self.socket, "status"], capture_output=True
        ).returncode:
            if time.time() > deadline or self.p.poll() is not None:
                sys.exit("the daemon does not answer: " + open(self.log.name).read())
            time.sleep(0.2)
        time.sleep(2)

    def client(self, *args):
        return subprocess.run(
            [f"{self.bin}/inferscope", "--socket", self.socket, *args], capture_output=True, text=True, check=True
        ).stdout

    def requests(self, pid):
        """Returns the requests by id, each with the durations before its chunks, in ns; and all of the text."""
        text = self.client("export", "--pid", str(pid), "--to", "jsonl", "-o", "-")
        requests, chunks = {}, {}
        for line in text.splitlines():
            if '"kind":"request' not in line:
                continue
            row = json.loads(line)
            if row["kind"] == "request_chunk":
                chunks.setdefault(row["request"], []).append((row["ts"], row["dur_us"] * 1e3))
            elif row["kind"] == "request":
                requests[row.get("id") or row["request"]] = row
        for row in requests.values():
            row["durations"] = [d for _, d in sorted(chunks.get(row["request"], []))]
        return requests, text

    def stop(self):
        self.p.send_signal(signal.SIGTERM)
        self.p.wait(60)
        code = Daemon.target.poll()
        if code is not None:
            print(
                f"DEAD: the server ended with {code} in attachment {Daemon.attachments}: "
                f"{open(self.log.name).read()[-800:]}\n" + "\n".join(common.faults())
            )
            print(f"attachments {Daemon.attachments}, deaths 1")
            sys.exit(1)


def errors(seen, requests, clock):
    """Returns by how much the times of first tokens and the gaps differ from the client's, in ms."""
    first, gaps = [], []
    for x in seen:
        row = requests.get(x["id"])
        at = x[clock]
        # What a client reads at once has the time of the last packet, and is not compared.
        if not row or len(at) != len(row["durations"]) or not all(at):
            continue
        if at[0] != at[1]:
            first.append(at[0] / 1e6 - row["ts"] * 1e3 - row["durations"][0] / 1e6)
        if len(set(at)) == len(at):
            gaps += [abs(b - a - d) / 1e6 for a, b, d in zip(at, at[1:], row["durations"][1:])]
    # The recording has one pair of monotonic and wall clock: what all first tokens are off by is that pair's error.
    least = min(first, default=0)
    return [x - least for x in first], gaps


HEAD = """ms from the clock of the client's kernel (first token: when, gaps: how long), from the client's own, and from
its send to the server's read, which is no part of TTFT
server       streams  requests        tokens     spans | first token p50   p99 | gaps p50   p99    of | \
own clock p99 gaps p99 | until read p50     p99"""


def check(args, name, port, pid, path):
    failed = False
    receiver = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=receiver.serve_forever, daemon=True).start()
    for streams, rounds in STREAMS:
        Receiver.spans = 0
        endpoint = f"http://127.0.0.1:{receiver.server_address[1]}"
        daemon = Daemon(args, pid, "--pin-level", "requests=all", "--otlp-endpoint", endpoint)
        seen, _ = load(port, streams, rounds, args.tokens, path=path)
        deadline = time.time() + 30
        while Receiver.spans < len(seen) and time.time() < deadline:
            time.sleep(0.2)
        requests, text = daemon.requests(pid)
        report = daemon.client("report", str(pid), "--json")
        status = json.loads(daemon.client("status", "--json"))
        daemon.stop()
        found = [requests[x["id"]] for x in seen if x["id"] in requests]
        wanted = sum(x["usage"] or len(x["own"]) for x in seen)
        tokens = sum(r["output_tokens"] for r in found)
        first, gaps = errors(seen, requests, "kernel")
        first_own, gaps_own = errors(seen, requests, "own")
        wait = [requests[x["id"]]["ts"] * 1e3 - x["sent"] / 1e6 for x in seen if x["id"] in requests]
        print(
            f"{name:12} {streams:7} {len(found):4}/{len(seen):<4} {tokens:6}/{wanted:<6} {Receiver.spans:4}/{len(seen):<4} |"
            f"{percent(first, 50):16.3f} {percent(first, 99):5.3f} |{percent(gaps, 50):9.3f} {percent(gaps, 99):5.3f} "
            f"{len(gaps):5} |{percent(first_own, 99):14.3f} {percent(gaps_own, 99):8.3f} |{percent(wait, 50):15.3f} "
            f"{percent(wait, 99):7.3f}"
        )
        if len(found) != len(seen) or len(requests) != len(seen) or tokens != wanted:
            failed = True
            print(
                f"FAILED: requests and tokens are not exact; {len(requests)} requests in the recording, which reaches "
                f"back {status['recorder']['reach_seconds']:.0f} s of {status['uptime_seconds']:.0f}; lost: "
                f"{[one for t in status['targets'] for one in t.get('losses') or []]}"
            )
        if Receiver.spans != len(seen):
            failed = True
            print("FAILED: spans are not exact")
        if "requests-check-canary" in text + report:
            failed = True
            print("FAILED: the prompt is in the recording")
    receiver.shutdown()
    return failed


def cost(args, port, pid, pairs, tls):
    """ABBA: tokens a second at 16 streams with requests and without, the daemon running in both."""
    ratios = []
    for i in range(pairs):
        rate = {}
        for way in ("on", "off") if i % 2 == 0 else ("off", "on"):
            daemon = Daemon(args, pid, f"--requests={way}", *(["--pin-level", "requests=all"] if way == "on" else []))
            load(port, 16, 1, args.tokens, tls)
            rate[way] = load(port, 16, 2, args.tokens, tls)[1]
            daemon.stop()
        ratios.append(1 - rate["on"] / rate["off"])
    mean, half = common.interval(ratios)
    print(
        f"cost of requests at 16 streams{' over TLS' if tls else ''}: {100 * mean:.2f}% ± "
        f"{100 * half:.2f}% ({len(ratios)} ABBA pairs)"
    )


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--bin", default="bin", help="folder with inferscope and inferscoped")
    a.add_argument("--servers", default="", help="own, llama, vllm, sglang, transformers; costs are the first one's")
    a.add_argument("--packages", action="append", default=[], help="NAME=FOLDER: packages of a server")
    a.add_argument("--llama-server")
    a.add_argument("--model")
    a.add_argument("--tokens", type=int, default=64)
    a.add_argument("--pairs", type=int, default=4, help="pairs of the cost measurement; 0: none")
    a.add_argument("--tls-pairs", type=int, default=4, help="likewise over TLS, with the server here")
    a.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    a.add_argument("--certificate", help=argparse.SUPPRESS)
    a.add_argument("--clients", help=argparse.SUPPRESS)
    args = a.parse_args()
    if args.serve:
        return serve(args.serve, args.certificate)
    if args.clients:
        return clients(*json.loads(args.clients))
    failed = False
    names = (args.servers or ("llama" if args.llama_server else "own")).split(",")
    print(HEAD)
    for name in names:
        try:
            with running(args, name, None) as (port, pid, path):
                failed = check(args, name, port, pid, path) or failed
                if args.pairs and name == names[0]:
                    cost(args, port, pid, args.pairs, False)
        except NoAnswer as e:
            failed = True
            print(f"FAILED: {name}: {e}")
    if args.tls_pairs and "own" in names:
        with tempfile.NamedTemporaryFile(suffix=".pem") as pem:
            made = subprocess.run(
                ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost",
                 "-keyout", pem.name + ".key", "-out", pem.name + ".crt"], capture_output=True)
            if made.returncode:
                print("no openssl to make a certificate with: the cost over TLS is not measured")
            else:
                for part in (".crt", ".key"):
                    pem.write(open(pem.name + part, "rb").read())
                    os.unlink(pem.name + part)
                pem.flush()
                with running(args, "own", pem.name) as (port, pid, _):
                    cost(args, port, pid, args.tls_pairs, True)
    print(f"attachments {Daemon.attachments}, deaths 0")
    return 1 if failed else 0


class NoAnswer(Exception):
    """A server that does not start."""


def command_of(args, name, port, certificate):
    """How a server is started, with what environment, and what stands before the names of its models."""
    if name == "llama":
        return [
            args.llama_server, "-m", args.model, "--port", str(port), "-np", "256", "-ngl", "99", "-c", "262144",
            "--threads-http", "260",
        ], None, ""
    if name == "own":
        more = ["--certificate", certificate] if certificate else []
        return [sys.executable, os.path.abspath(__file__), "--serve", str(port), *more], None, ""
    env = {**engines.environment(dict(p.split("=", 1) for p in args.packages).get(name)), "OMP_NUM_THREADS": "1"}
    model = tempfile.mkdtemp(prefix="model-")
    # transformers serve cannot make up weights.
    engines.write_model(model, 8, 1024, *(["bfloat16"] if name == "transformers" else []))
    address = ["--host", "127.0.0.1", "--port", str(port)]
    if name == "transformers":
        command = [sys.executable, "-m", "transformers.cli.transformers", "serve", "--continuous-batching", *address]
        return command, env, model + "#"
    if name == "sglang":
        return [
            sys.executable, "-m", "sglang.launch_server", "--model-path", model, "--load-format", "dummy",
            "--attention-backend", "triton", "--sampling-backend", "pytorch", "--grammar-backend", "none",
            "--disable-piecewise-cuda-graph", "--mem-fraction-static", "0.5", "--max-running-requests", "256", *address,
        ], env, ""
    if name != "vllm":
        sys.exit(f"no server is called {name}")
    names = ["warm", *(tag for load in STREAMS for tag in tags(*load))]
    return engines.vllm(model, port, names, 256), env, ""


def free_port():
    """A port below those that are given out by themselves, as is one that is 10,000 higher: SGLang listens there, too."""
    for port in random.sample(range(20000, 30000, 7), 100):  # checks run side by side, and servers bind late
        with contextlib.suppress(OSError), socket.socket() as s, socket.socket() as second:
            s.bind(("127.0.0.1", port))
            second.bind(("127.0.0.1", port + 10000))
            return port
    raise NoAnswer("of 100 ports between 20000 and 30000 none is free, with the one that is 10,000 higher")


@contextlib.contextmanager
def running(args, name, certificate):
    """Runs a server; gives its port, its process, and what stands before its models' names once it has answered."""
    port = free_port()
    command, env, path = command_of(args, name, port, certificate)
    log = open(os.path.join(tempfile.mkdtemp(), "log"), "w")
    server = Daemon.target = common.start(command, stdout=log, stderr=log, env=env)
    try:
        await_answer(server, log.name, port, path + "warm", bool(certificate))
        yield port, server.pid, path
    finally:
        common.end_group(server)


def await_answer(server, log, port, model, tls=False):
    """Waits until a server answers, which may load its model first."""
    deadline = time.monotonic() + 240
    while True:
        try:
            return ask(port, 4, model, tls)
        except OSError as e:
            if time.monotonic() > deadline or server.poll() is not None:
                raise NoAnswer(f"{e}; {common.aftermath(server, log)}") from e
            time.sleep(1)


if __name__ == "__main__":
    sys.exit(main())
