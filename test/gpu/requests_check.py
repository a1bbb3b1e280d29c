#!/usr/bin/env python3
"""Compares the times of requests in a recording with a client's own clock, and measures what watching them costs.

    sudo python3 test/gpu/requests_check.py --bin bin [--llama-server PATH --model FILE] [--pairs 6]

Without --llama-server it starts a small server of its own that decodes with PyTorch. The counts are checked with
requests pinned at full detail (--pin-level requests=all): by default the governor may turn them off. After each
attachment it is asked whether the server lives; attachments and deaths are printed at the end. Exit code 1: a check
failed, or the server died.
"""
import argparse
import asyncio
import http.client
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

PROMPT = "requests-check-canary " * 20


def serve(port):
    """A server with one batch: each step decodes a token for every request in it."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    size = 4096 if device == "cuda" else 512
    layers = [torch.randn(size, size, device=device, dtype=dtype) / size**0.5 for _ in range(24)]
    running = []

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
                n = question["max_tokens"]
                for _ in range(n):
                    token = await queue.get()
                    chunk('data: {"choices":[{"delta":{"content":"t%d"}}]}\n\n' % token)
                running.remove(queue)
                chunk('data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":%d}}\n\n' % n)
                chunk("data: [DONE]\n\n")
                writer.write(b"0\r\n\r\n")
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def run():
        await asyncio.start_server(handle, "127.0.0.1", port)
        await engine()

    asyncio.run(run())


def ask(port, tokens, tag):
    """One request; the client's clock is CLOCK_MONOTONIC too, so that times can be compared as they are."""
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    body = {
        "model": tag, "stream": True, "max_tokens": tokens, "ignore_eos": True,
        "stream_options": {"include_usage": True}, "messages": [{"role": "user", "content": PROMPT}],
    }
    sent = time.monotonic_ns()
    c.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    answer, times = c.getresponse(), []
    usage = None
    for line in answer:
        at = time.monotonic_ns()
        if not line.startswith(b"data: {"):
            continue
        part = json.loads(line[6:])
        usage = (part.get("usage") or {}).get("completion_tokens", usage)
        if any(x.get("delta", {}).get("content") for x in part.get("choices", [])):
            times.append(at)
    c.close()
    return {"sent": sent, "times": times, "end": time.monotonic_ns(), "usage": usage}


def load(port, streams, rounds, tokens):
    out, lock = [], threading.Lock()

    def one():
        for _ in range(rounds):
            r = ask(port, tokens, f"s{streams}")
            with lock:
                out.append(r)

    threads = [threading.Thread(target=one) for _ in range(streams)]
    begin = time.monotonic()
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return out, sum(len(r["times"]) for r in out) / (time.monotonic() - begin)


def p99(values):
    values = sorted(values)
    return values[(len(values) * 99 + 99) // 100 - 1] if values else 0


class Daemon:
    attachments = 0

    def __init__(self, args, pid, *flags):
        Daemon.attachments += 1
        self.dir = tempfile.mkdtemp()
        self.socket, self.bin = os.path.join(self.dir, "s"), args.bin
        self.log = open(os.path.join(self.dir, "log"), "w+")
        self.p = subprocess.Popen(
            [f"{args.bin}/inferscoped", "--pid", str(pid), "--socket", self.socket, *flags], stderr=self.log
        )
        deadline = time.time() + 60
        while subprocess.run(
            [f"{args.bin}/inferscope", "--socket", self.socket, "status"], capture_output=True
        ).returncode:
            if time.time() > deadline or self.p.poll() is not None:
                sys.exit("the daemon does not answer: " + open(self.log.name).read())
            time.sleep(0.2)
        time.sleep(2)

    def report(self, pid):
        return subprocess.run(
            [f"{self.bin}/inferscope", "--socket", self.socket, "report", str(pid), "--json"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    def stop(self):
        self.p.send_signal(signal.SIGTERM)
        self.p.wait(60)
        code = Daemon.target.poll()
        if code is not None:
            print(
                f"DEAD: the server ended with {code} in attachment {Daemon.attachments}: "
                f"{open(self.log.name).read()[-800:]}"
            )
            print(f"attachments {Daemon.attachments}, deaths 1")
            sys.exit(1)


def check(args, port, pid):
    failed = False
    for streams, rounds in ((1, 8), (16, 3)):
        daemon = Daemon(args, pid, "--pin-level", "requests=all")
        seen, _ = load(port, streams, rounds, args.tokens)
        time.sleep(1)
        text = daemon.report(pid)
        daemon.stop()
        r = {
            "ttft": {"p50_ns": 0},
            "tpot": {"p50_ns": 0},
            **(json.loads(text).get("requests") or {"ended": 0, "output_tokens": 0}),
        }
        ttft = sorted(x["times"][0] - x["sent"] for x in seen)
        tpot = sorted((x["times"][-1] - x["times"][0]) / max(1, (x["usage"] or len(x["times"])) - 1) for x in seen)
        # Rows carry the slowest 20: match each with the client's request that was sent last before it was read.
        worst = []
        for row in r.get("slow", []):
            near = min(seen, key=lambda x: abs(x["times"][0] - (row["received_ns"] + row.get("ttft_ns", 0))))
            worst.append(abs(near["times"][0] - (row["received_ns"] + row.get("ttft_ns", 0))) / 1e6)
        wanted = sum(x["usage"] or len(x["times"]) for x in seen)
        exact = r["ended"] == len(seen) and r["output_tokens"] == wanted
        print(
            f"{streams} streams: {r['ended']} of {len(seen)} requests, {r['output_tokens']} of {wanted} tokens; TTFT "
            f"p50 {r['ttft']['p50_ns'] / 1e6:.2f} ms "
            f"(client {statistics.median(ttft) / 1e6:.2f}), TPOT p50 {r['tpot']['p50_ns'] / 1e6:.3f} ms (client "
            f"{statistics.median(tpot) / 1e6:.3f}); "
            f"first token of the {len(worst)} slowest: {p99(worst):.3f} ms from the client's at most"
        )
        if not exact:
            failed = True
            print("FAILED: requests and tokens are not exact")
        if "requests-check-canary" in text:
            failed = True
            print("FAILED: the prompt is in the report")
    return failed


def cost(args, port, pid):
    """ABBA: tokens a second at 16 streams with requests and without, the daemon running in both."""
    ratios = []
    for i in range(args.pairs):
        rate = {}
        for way in ("on", "off") if i % 2 == 0 else ("off", "on"):
            daemon = Daemon(args, pid, f"--requests={way}", *(["--pin-level", "requests=all"] if way == "on" else []))
            load(port, 16, 1, args.tokens)
            rate[way] = load(port, 16, 2, args.tokens)[1]
            daemon.stop()
        ratios.append(1 - rate["on"] / rate["off"])
    half = 2 * statistics.stdev(ratios) / len(ratios) ** 0.5 if len(ratios) > 1 else 0
    print(
        f"cost of requests at 16 streams: {100 * statistics.mean(ratios):.2f}% ± {100 * half:.2f}% ({len(ratios)} ABBA "
        "pairs)"
    )


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--bin", default="bin", help="folder with inferscope and inferscoped")
    a.add_argument("--llama-server")
    a.add_argument("--model")
    a.add_argument("--tokens", type=int, default=64)
    a.add_argument("--pairs", type=int, default=6, help="pairs of the cost measurement; 0: none")
    a.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    args = a.parse_args()
    if args.serve:
        return serve(args.serve)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    if args.llama_server:
        command = [args.llama_server, "-m", args.model, "--port", str(port), "-np", "16", "-ngl", "99", "-c", "32768"]
    else:
        command = [sys.executable, os.path.abspath(__file__), "--serve", str(port)]
    server = Daemon.target = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.time() + 180
        while True:
            try:
                ask(port, 4, "warm")
                break
            except (OSError, http.client.HTTPException):
                if time.time() > deadline or server.poll() is not None:
                    sys.exit("the server does not answer")
                time.sleep(1)
        failed = check(args, port, server.pid)
        if args.pairs:
            cost(args, port, server.pid)
        print(f"attachments {Daemon.attachments}, deaths 0")
    finally:
        server.kill()
        server.wait()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
