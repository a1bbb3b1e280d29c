"""Checks the agent on a real GPU, without the daemon: this process loads the image into itself, plays the daemon on its
ring, and runs PyTorch workloads beside it. One table, and a verdict for each line.

    python agent/testdata/gpu_check.py agent/agent_amd64.so [--windows 40] [--workloads eager,graph,streams]

Asked of each workload: every window finalized, no record dropped, kernels of a counted stretch = what torch.profiler
counts of the same code, added time in windows and continuous, the largest iteration, time after the agent has gone,
and that torch.profiler afterwards finds its own clock (CLOCK_REALTIME) again.
"""

import argparse
import ctypes
import mmap
import os
import struct
import subprocess
import sys
import threading
import time

# The ring holds a whole measurement: reading in Python would slow the workload.
MAGIC, DATA, SLOTS = 0x41534E49, 4096, 1 << 21
OFF, WINDOWS, CONTINUOUS, QUIT = 0, 1, 2, 3
IDLE, OPEN, REFUSED, GONE = 1, 3, 5, 6
CALL, KERNEL, COPY, WINDOW = 1, 7, 8, 66
ENDS = {1: "finalized", 2: "disabled", 3: "refused", 4: "kept"}
AT = {
    "heartbeat": 64, "tail": 72, "on": 80, "period": 88, "deadline": 96, "flush": 112, "head": 120, "dropped": 128,
    "began": 136,
}
AT32 = {
    "mode": 104, "wake": 108, "state": 144, "error": 148, "version": 152, "windows": 156, "graphs": 160, "flushed": 164,
}


class Agent:
    """The agent in this process, seen by its daemon. Offsets and layouts: agent/abi.h."""

    def __init__(self, image):
        self.image = image
        self.library = None

    def start(self, mode, on_ms=200, period_ms=2000, deadline_ms=1000):
        """Brings the agent in: by dlopen for the first time, by its entry from then on."""
        size, hello_at = 64 + 480, 1 << 20
        fd = os.memfd_create("agent")
        params = struct.pack(
            "<IIiIII5QQ", MAGIC, 1, fd, SLOTS, mode, 0, on_ms * 10**6, period_ms * 10**6, deadline_ms * 10**6,
            time.monotonic_ns(), hello_at, 0,
        )
        params = params[:64].ljust(size, b"\0")
        if self.library is None:
            blob = bytearray(open(self.image, "rb").read())
            at = blob.index(struct.pack("<IIi", MAGIC, 1, -1))
            blob[at : at + size] = params
            os.pwrite(fd, bytes(blob), 0)
            kept = os.dup(fd)
            self.library = ctypes.CDLL(f"/proc/self/fd/{fd}")
        else:
            os.pwrite(fd, params, 0)
            kept = os.dup(fd)
            self.library.inferscope_start(fd)
        self._open(kept, hello_at)

    def _open(self, fd, hello_at):
        for _ in range(1000):
            hello = os.pread(fd, 40, hello_at)
            if len(hello) == 40 and struct.unpack_from("<I", hello)[0] == MAGIC:
                break
            time.sleep(0.005)
        error, ring_fd = struct.unpack_from("<ii", hello, 8)
        os.close(fd)
        if error:
            raise OSError(-error, "the agent did not start")
        self.ring = mmap.mmap(os.dup(ring_fd), DATA + SLOTS * 64)
        self.tail, self.slots, self.alive = 0, [], True
        self.wake()
        self.thread = threading.Thread(target=self._beat, args=(self.ring,), daemon=True)
        self.thread.start()

    def _beat(self, ring):
        while self.alive and ring is self.ring:
            struct.pack_into("<Q", ring, AT["heartbeat"], time.monotonic_ns())
            time.sleep(0.1)

    def get(self, name):
        if name in AT32:
            return struct.unpack_from("<I", self.ring, AT32[name])[0]
        return struct.unpack_from("<Q", self.ring, AT[name])[0]

    def put(self, name, value):
        struct.pack_into("<I" if name in AT32 else "<Q", self.ring, AT32.get(name, AT.get(name)), value)

    def wake(self):
        """The futex word is changed; the agent looks at it after at most its next time-out (100 ms while recording)."""
        self.put("wake", self.get("wake") + 1)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self.ring)) + AT32["wake"]
        number = {"x86_64": 202, "aarch64": 98}[os.uname().machine]
        ctypes.CDLL(None).syscall(number, ctypes.c_void_p(address), 1, 1 << 30, None, None, 0)

    def mode(self, mode):
        self.put("mode", mode)
        self.wake()

    def wait(self, what, ok, seconds=20):
        end = time.monotonic() + seconds
        while not ok():
            if time.monotonic() > end:
                raise TimeoutError(
                    f"no {what}: state {self.get('state')}, error {self.get('error')}, windows {self.get('windows')}"
                )
            time.sleep(0.002)

    def read(self):
        while True:
            at = DATA + self.tail % SLOTS * 64
            slot = struct.unpack_from("<QQIIHBBi4Q", self.ring, at)
            if slot[2] != (self.tail // SLOTS + 1) & 0xFFFFFFFF:
                return
            self.slots.append(slot)
            self.tail += 1
            struct.pack_into("<Q", self.ring, AT["tail"], self.tail)

    def flush(self):
        want = self.get("flush") + 1
        self.put("flush", want)
        self.wake()
        self.wait("flush", lambda: self.get("flushed") == want & 0xFFFFFFFF)
        self.read()

    def of(self, kind):
        return [s for s in list(self.slots) if s[5] == kind]

    def quit(self, work):
        """Ends the agent; work is done meanwhile, because a window ends at a synchronizing call."""
        self.mode(QUIT)
        end = time.monotonic() + 20
        while self.get("state") != GONE and time.monotonic() < end:
            work()
        state = self.get("state")
        self.alive = False
        self.thread.join()
        self.read()
        if state != GONE:
            raise TimeoutError("the agent does not go")


def eager(torch):
    layers = [torch.nn.Linear(1024, 1024).cuda().half() for _ in range(24)]
    x = torch.randn(8, 1024, device="cuda", dtype=torch.half)

    def step():
        y = x
        for layer in layers:
            y = torch.nn.functional.gelu(layer(y)) + x
        return float(y.sum())

    return step


def graph(torch):
    x = torch.randn(64, 64, device="cuda")
    g = torch.cuda.CUDAGraph()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            y = x
            for _ in range(200):
                y = y * 1.0001
    torch.cuda.synchronize()
    with torch.cuda.graph(g):
        y = x
        for _ in range(200):
            y = y * 1.0001

    def step():
        for _ in range(4):
            g.replay()
        torch.cuda.synchronize()

    return step


def streams(torch):
    pool = [torch.cuda.Stream() for _ in range(8)]
    x = torch.randn(256, 256, device="cuda")

    def one(stream):
        with torch.cuda.stream(stream):
            y = x
            for _ in range(40):
                y = y @ x
        stream.synchronize()

    def step():
        threads = [threading.Thread(target=one, args=(s,)) for s in pool]
        for t in threads:
            t.start()
        for t in threads:
            t.join()

    return step


def timed(step, seconds):
    """Median and largest time of an iteration, ms."""
    times, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        began = time.perf_counter_ns()
        step()
        times.append((time.perf_counter_ns() - began) / 1e6)
    mean = sum(times) / len(times)
    return mean, max(times)


def profiled(torch, step, n):
    """Kernels in n steps, and how far the profiler's clock is from CLOCK_REALTIME, s."""
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CUDA, torch.profiler.ProfilerActivity.CPU]
    ) as p:
        began = time.time_ns()
        for _ in range(n):
            step()
        torch.cuda.synchronize()
    events = p.profiler.kineto_results.events()
    kernels = [
        e
        for e in events
        if str(e.device_type()).endswith("CUDA")
        and not e.name().startswith(("Memcpy", "Memset"))
        and e.duration_ns() > 0
        and e.name() not in ("Context Sync", "Stream Sync", "Event Sync")
    ]
    base = p.profiler.kineto_results.trace_start_ns()
    return len(kernels), abs(base - began) / 1e9, [abs(e.start_ns() - began) / 1e9 for e in kernels[:1]]


def check(torch, agent, name, step, windows):
    timed(step, 2)
    base, base_max = timed(step, 4)
    agent.start(WINDOWS)
    during, during_max = timed(step, windows * 2)
    agent.quit(step)
    ended = agent.of(WINDOW)
    after, _ = timed(step, 4)
    agent.start(CONTINUOUS)
    agent.wait("open window", lambda: agent.get("state") == OPEN)
    continuous, _ = timed(step, 4)
    agent.flush()
    before = len(agent.of(KERNEL)), len(agent.of(CALL))
    for _ in range(20):
        step()
    torch.cuda.synchronize()
    agent.flush()
    kernels, calls = len(agent.of(KERNEL)) - before[0], len(agent.of(CALL)) - before[1]
    dropped, version = agent.get("dropped"), agent.get("version")
    agent.quit(step)
    left, _ = timed(step, 4)
    correlated = {s[7] for s in agent.of(CALL)}
    known = sum(1 for s in agent.of(KERNEL) if s[8] & 0xFFFFFFFF in {c & 0xFFFFFFFF for c in correlated})
    want, clock, first = profiled(torch, step, 20)
    ways = {ENDS[k]: sum(1 for w in ended if w[7] == k) for k in ENDS}
    print(
        f"{name}: CUPTI {version}; base {base:.3f} ms (max {base_max:.1f}); windows {100 * (during / base - 1):+.1f}% "
        f"(max {during_max:.1f} ms) {ways}, "
        f"enter {max((w[10] for w in ended), default=0) / 1e6:.1f} ms, leave "
        f"{max((w[11] for w in ended), default=0) / 1e6:.1f} ms; after {100 * (after / base - 1):+.1f}%; "
        f"continuous {100 * (continuous / base - 1):+.1f}%; after {100 * (left / base - 1):+.1f}%; kernels {kernels} "
        f"(profiler {want}), calls {calls}, "
        f"correlated {known} of {len(agent.of(KERNEL))}; dropped {dropped} + {sum(w[9] for w in agent.of(WINDOW))}; "
        f"profiler's clock off by {clock:.3f} s, its first kernel by {first}",
        flush=True,
    )
    bad = [
        what
        for what, wrong in {
            "windows": ways["finalized"] + ways["kept"] < len(ended) or len(ended) < windows * 0.8,
            "kernels": kernels != want,
            "dropped": dropped > 0,
            "clock": clock > 5 or (first and first[0] > 5),
        }.items()
        if wrong
    ]
    print(f"{name}: {'FAIL: ' + ', '.join(bad) if bad else 'ok'}", flush=True)
    return not bad


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("image")
    parser.add_argument("--windows", type=int, default=20)
    parser.add_argument("--workloads", default="eager,graph,streams")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if not args.child:  # a workload that dies must not take the others' results along
        failed = 0
        for name in args.workloads.split(","):
            code = subprocess.call(
                [sys.executable, __file__, args.image, "--windows", str(args.windows), "--workloads", name, "--child"]
            )
            if code:
                print(f"{name}: FAIL: ended with {code}", flush=True)
            failed += code != 0
        sys.exit(1 if failed else 0)
    import torch

    step = {"eager": eager, "graph": graph, "streams": streams}[args.workloads](torch)
    sys.exit(0 if check(torch, Agent(args.image), args.workloads, step, args.windows) else 1)


if __name__ == "__main__":
    main()
