#!/usr/bin/env python3
"""An HTTP/1.1 server that streams tokens as language model servers do, with every way to write to a socket.

POST /v1/chat/completions with {"stream": true, "max_tokens": N, "gap_ms": G, "prefill_ms": P, "write": W, "usage":
true}; W is one of write, writev, send, sendmsg. Without "stream" it answers with the "status". With "failures": N, a
question is answered with 503 the first N times. Prints its port.

With the names of a certificate and a key it speaks TLS, and sends only; with "memory" behind them, OpenSSL does not
touch the sockets, as in asyncio.
"""
import collections
import json
import os
import socket
import ssl
import sys
import threading
import time

WRITERS = {
    "write": lambda s, b: os.write(s.fileno(), b),
    "writev": lambda s, b: os.writev(s.fileno(), [b[:7], b[7:]]),
    "send": lambda s, b: s.sendall(b),
    "sendmsg": lambda s, b: s.sendmsg([b[:1], b[1:]]),
}
FAILED = collections.Counter()  # by question


def chunk(text):
    data = text.encode()
    return b"%x\r\n%s\r\n" % (len(data), data)


def answer(sock, question):
    put = WRITERS[question.get("write", "send")]
    n, gap = question.get("max_tokens", 4), question.get("gap_ms", 1) / 1000
    usage = {"prompt_tokens": question.get("prompt_tokens", 5), "completion_tokens": n}
    if not question.get("stream"):
        time.sleep(question.get("prefill_ms", 0) / 1000)
        body = json.dumps({"id": "cmpl-1", "choices": [{"text": "secret " * n}], "usage": usage}).encode()
        put(
            sock,
            b"HTTP/1.1 %d OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
            % (question.get("status", 200), len(body), body),
        )
        return
    put(sock, b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
    head = {"id": "chatcmpl-1", "model": question.get("model", "m")}
    put(
        sock, chunk("data: %s\n\n" % json.dumps({**head, "choices": [{"delta": {"role": "assistant", "content": ""}}]}))
    )
    time.sleep(question.get("prefill_ms", 0) / 1000)
    for i in range(n):
        if i:
            time.sleep(gap)
        put(sock, chunk("data: %s\n\n" % json.dumps({**head, "choices": [{"delta": {"content": "secret"}}]})))
    if question.get("usage", True):
        put(sock, chunk("data: %s\n\n" % json.dumps({**head, "choices": [], "usage": usage})))
    put(sock, chunk("data: [DONE]\n\n") + b"0\r\n\r\n")


class Memory:
    """A connection whose TLS is done in memory."""

    def __init__(self, sock, context):
        self.sock, self.into, self.out = sock, ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.into, self.out, server_side=True)
        self.do(self.tls.do_handshake)

    def do(self, what, *args):
        while True:
            try:
                return what(*args)
            except ssl.SSLWantReadError:
                self.flush()
                data = self.sock.recv(65536)
                if not data:
                    return b""
                self.into.write(data)

    def flush(self):
        if self.out.pending:
            self.sock.sendall(self.out.read())

    def recv(self, n):
        return self.do(self.tls.read, n)

    def sendall(self, data):
        self.do(self.tls.write, data)
        self.flush()

    def close(self):
        self.tls = None
        self.sock.close()


def serve(sock, context):
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    data = b""
    try:
        if context:
            sock = Memory(sock, context) if sys.argv[3:] == ["memory"] else context.wrap_socket(sock, server_side=True)
        while True:
            while b"\r\n\r\n" not in data:
                more = sock.recv(65536)
                if not more:
                    return
                data += more
            head, data = data.split(b"\r\n\r\n", 1)
            length = 0
            for line in head.split(b"\r\n")[1:]:
                name, value = line.split(b":", 1)
                if name.lower() == b"content-length":
                    length = int(value)
            while len(data) < length:
                data += sock.recv(65536)
            body, data = data[:length], data[length:]
            question = json.loads(body)
            if FAILED[body] < question.get("failures", 0):
                FAILED[body] += 1
                question = {"status": 503}
            answer(sock, question)
    except (ConnectionError, BrokenPipeError):
        pass
    finally:
        sock.close()


def main():
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    print(listener.getsockname()[1], flush=True)
    threading.stack_size(256 * 1024)
    context = None
    if sys.argv[1:]:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*sys.argv[1:3])
    while True:
        sock, _ = listener.accept()
        threading.Thread(target=serve, args=(sock, context), daemon=True).start()


if __name__ == "__main__":
    sys.exit(main())
