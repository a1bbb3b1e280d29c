"""The server of llm.py with an engine that works on the (simulated) GPU and, as vLLM does, launches a step before it
tells of the last one. Every other step takes the GPU much longer.

Usage: gpu_vllm.py SETTINGS LIBCUDART. Prints its port.
"""

import ctypes
import os
import sys
import time

import llm

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../victims"))
from victim import D2H, Cuda, check  # noqa: E402

SHORT, LONG = 4, 20  # kernels of 200 us in a step
LAG = 0.002  # s, from a step's tokens to its message


class Engine(llm.Engine):
    def __init__(self, s, sock):
        super().__init__(s, sock)
        self.cuda = Cuda(sys.argv[2], ["gemm_us200"])
        self.bytes = 4 * s["slots"]
        self.device, self.host = self.cuda.malloc(self.bytes), ctypes.c_void_p()
        check(self.cuda.lib.cudaMallocHost(ctypes.byref(self.host), ctypes.c_size_t(self.bytes)), "cudaMallocHost")
        self.launched, self.steps = 0, []  # launched, and not told of
        self.events = [ctypes.c_void_p() for _ in range(2)]
        for e in self.events:
            check(self.cuda.lib.cudaEventCreateWithFlags(ctypes.byref(e), 2), "cudaEventCreateWithFlags")

    def launch(self):
        """Launches a step of the requests that will not have all their tokens by then; there may be none."""
        with self.lock:
            while not self.steps and not self.waiting and not self.running:
                self.lock.wait()
            self.admit()
            left = len(self.waiting)
        batch = [r for r in self.running if r.made + sum(r in of for of, _, _ in self.steps) < r.tokens]
        if not batch:
            return
        for _ in range(LONG if self.launched % 2 else SHORT):
            self.cuda.launch("gemm_us200", 132, 256)
        self.cuda.copy(self.host, self.device, self.bytes, D2H)
        event = self.events[self.launched % 2]
        check(self.cuda.lib.cudaEventRecord(event, self.cuda.stream), "cudaEventRecord")
        self.launched += 1
        self.steps.append((batch, left, event))

    def step(self):
        if not self.steps:
            self.launch()
        self.launch()
        batch, left, event = self.steps.pop(0)
        check(self.cuda.lib.cudaEventSynchronize(event), "cudaEventSynchronize")
        time.sleep(LAG)
        self.end(batch, left, self.used() / self.s["blocks"])


if __name__ == "__main__":
    llm.main(Engine)
