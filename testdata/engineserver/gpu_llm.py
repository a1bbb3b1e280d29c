"""An HTTP server of completions that decodes in its own process on the (simulated) GPU and tells nobody of its steps,
as llama.cpp and transformers serve do: each step copies the tokens out, waits for the GPU, and writes one to each stream.

Usage: gpu_llm.py LIBCUDART. Prints its port.
"""

import ctypes
import json
import os
import socket
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../victims"))
from victim import D2H, Cuda  # noqa: E402

STEP = 0.004
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(text):
    return b"%x\r\n%s\r\n" % (len(text), text)


class Engine:
    def __init__(self, cuda):
        self.cuda, self.lock, self.running = cuda, threading.Condition(), []
        self.device, self.host = cuda.malloc(4096), (ctypes.c_int * 1024)()

    def run(self):
        while True:
            with self.lock:
                while not self.running:
                    self.lock.wait()
                batch = list(self.running)
            begin = time.monotonic()
            for _ in range(4):
                self.cuda.launch("gemm_us200", 132, 256)
            self.cuda.copy(self.host, self.device, 4096, D2H)
            self.cuda.synchronize()
            for r in batch:
                r["left"] -= 1
                try:
                    r["sock"].sendall(chunk(b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n'))
                    if not r["left"]:
                        r["sock"].sendall(chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")
                except OSError:  # the client has left
                    r["left"] = 0
                if not r["left"]:
                    with self.lock:
                        self.running.remove(r)
            time.sleep(max(0, STEP - time.monotonic() + begin))

    def serve(self, sock):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream = sock.makefile("rb")
        while line := stream.readline():
            if line.lower().startswith(b"content-length:"):
                length = int(line.split(b":")[1])
            if line == b"\r\n":
                question = json.loads(stream.read(length))
                sock.sendall(HEAD)
                with self.lock:
                    self.running.append({"sock": sock, "left": question["max_tokens"]})
                    self.lock.notify()


def main():
    engine = Engine(Cuda(sys.argv[1], ["gemm_us200"]))
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    threading.Thread(target=engine.run, daemon=True).start()
    while True:
        sock, _ = listener.accept()
        threading.Thread(target=engine.serve, args=(sock,), daemon=True).start()


if __name__ == "__main__":
    main()
