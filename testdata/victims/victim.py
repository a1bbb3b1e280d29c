#!/usr/bin/env python3
"""A GPT-like decode loop in pure Python over the simulated CUDA runtime, through ctypes.

Each request: tokenize() the prompt, then per token one small copy in, the layers' kernels, one copy out, a stream
synchronize, and sample(). Prints "ready PID" when CUDA is up; with --wait it then waits for a line on stdin.
"""

import argparse
import ctypes
import os
import sys
import time

H2D, D2H = 1, 2


class Dim3(ctypes.Structure):
    """dim3, passed by value."""

    _fields_ = [("x", ctypes.c_uint), ("y", ctypes.c_uint), ("z", ctypes.c_uint)]


def check(code, what):
    if code:
        sys.exit(f"victim.py: {what} returned {code}")


class Cuda:
    """The few runtime calls that the loop makes."""

    def __init__(self, path, kernels):
        self.lib = ctypes.CDLL(path)
        register_binary, register = (getattr(self.lib, "__cudaRegister" + what) for what in ("FatBinary", "Function"))
        register_binary.restype = ctypes.c_void_p
        self.stream = ctypes.c_void_p()
        self.handles = {}
        check(self.lib.cudaFree(None), "cudaFree")
        check(self.lib.cudaStreamCreateWithFlags(ctypes.byref(self.stream), 1), "cudaStreamCreateWithFlags")
        binary = ctypes.c_void_p(register_binary(b"image"))
        for name in kernels:
            host = ctypes.create_string_buffer(name.encode())
            self.handles[name] = host
            register(binary, host, host, host, -1, None, None, None, None, None)

    def malloc(self, size):
        p = ctypes.c_void_p()
        check(self.lib.cudaMalloc(ctypes.byref(p), ctypes.c_size_t(size)), "cudaMalloc")
        return p

    def copy(self, dst, src, size, kind):
        check(self.lib.cudaMemcpyAsync(dst, src, ctypes.c_size_t(size), kind, self.stream), "cudaMemcpyAsync")

    def launch(self, name, grid, block):
        check(
            self.lib.cudaLaunchKernel(
                self.handles[name], Dim3(grid, 1, 1), Dim3(block, 1, 1), None, ctypes.c_size_t(0), self.stream
            ),
            "cudaLaunchKernel",
        )

    def synchronize(self):
        check(self.lib.cudaStreamSynchronize(self.stream), "cudaStreamSynchronize")


VOCABULARY = {
    word: i
    for i, word in enumerate("the quick brown fox jumps over a lazy dog and then some more words follow".split())
}


def tokenize(text, rounds):
    """A slow tokenizer: greedy longest match, letter by letter, as often as asked."""
    tokens = []
    for _ in range(rounds):
        tokens = []
        for word in text.split():
            end = len(word)
            while end and word[:end] not in VOCABULARY:
                end -= 1
            tokens.append(VOCABULARY.get(word[:end], 0))
    return tokens


def sample(logits, rounds):
    """Picks the next token by a soft maximum over a short list, in Python."""
    best = 0
    for _ in range(rounds):
        total = sum(2.718281828 ** (x / 16) for x in logits)
        best = max(range(len(logits)), key=lambda i: 2.718281828 ** (logits[i] / 16) / total)
    return best


def forward(cuda, layers):
    for _ in range(layers):
        cuda.launch("layer_norm_us4", 8, 256)
        cuda.launch("attention_us20", 96, 128)
        cuda.launch("gemm_us30", 132, 256)


def decode_token(cuda, buffers, token, args):
    device, host, size = buffers
    host[0] = token
    cuda.copy(device, host, size, H2D)
    forward(cuda, args.layers)
    cuda.copy(host, device, size, D2H)
    cuda.synchronize()
    return sample([(token * 31 + i * 7) % 64 for i in range(32)], args.sample_rounds)


def generate(cuda, buffers, args):
    tokens = tokenize("the quick brown fox jumps over a lazy dog " * 8, args.tokenize_rounds)
    token = tokens[-1]
    for _ in range(args.tokens):
        token = decode_token(cuda, buffers, token, args)
    return token


def parse():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--lib", default="libcudart.so.13", help="runtime library to load")
    p.add_argument("--requests", type=int, default=4, help="requests to serve; 0: until --seconds are over")
    p.add_argument("--seconds", type=float, default=0, help="with --requests 0: for how long")
    p.add_argument("--tokens", type=int, default=16, help="tokens per request")
    p.add_argument("--layers", type=int, default=4, help="three kernels each")
    p.add_argument("--bytes", type=int, default=4096, help="size of the copies in and out")
    p.add_argument("--tokenize-rounds", type=int, default=20)
    p.add_argument("--sample-rounds", type=int, default=5)
    p.add_argument("--wait", action="store_true", help="wait for a line on stdin before the first request")
    return p.parse_args()


def main():
    args = parse()
    cuda = Cuda(args.lib, ["layer_norm_us4", "attention_us20", "gemm_us30"])
    buffers = (cuda.malloc(args.bytes), (ctypes.c_int * (args.bytes // 4 or 1))(), args.bytes)
    print(f"ready {os.getpid()}", flush=True)
    if args.wait:
        print(f"waiting {os.getpid()}", flush=True)
        if not sys.stdin.readline():
            return
    served, end = 0, time.monotonic() + args.seconds
    while served < args.requests or (not args.requests and time.monotonic() < end):
        generate(cuda, buffers, args)
        served += 1
    print(f"served {served} requests of {args.tokens} tokens", flush=True)


if __name__ == "__main__":
    main()
