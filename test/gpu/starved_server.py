"""A server in Python for the stage starved: a thread that answers requests, each with a few kernels on the GPU, and a
client in the same process.

Ends at "quit" on stdin; with 3 where a CUDA call failed.
"""

import ctypes
import http.client
import http.server
import os
import sys
import threading
import time

if os.environ.get("FAULT_LIBRARY"):
    ctypes.CDLL(os.environ["FAULT_LIBRARY"])  # shows what it dies of

import torch

weights = torch.randn(512, 512, device="cuda", dtype=torch.float16)


class Handler(http.server.BaseHTTPRequestHandler):
    """Multiplies, and copies the answer back."""

    def do_GET(self):
        x = torch.randn(64, 512, dtype=torch.float16).to("cuda", non_blocking=True)
        for _ in range(8):
            x = torch.tanh(x @ weights)
        body = str(float(x.sum())).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def ask(port):
    while True:
        c = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        c.request("GET", "/")
        c.getresponse().read()
        c.close()
        time.sleep(0.002)


def main():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    threading.Thread(target=ask, args=(server.server_port,), daemon=True).start()
    print('{"ready": %d}' % os.getpid(), flush=True)
    while sys.stdin.readline().strip() != "quit":
        pass
    os._exit(0)


if __name__ == "__main__":
    main()
