#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What an attachment itself costs a Python program: time and CPU time of its steps, in buckets of 100 ms from 2 s
before a daemon starts to some seconds after it is ready, and after it has gone. Programs: an eager loop of launches,
and an asyncio server that decodes in a thread, on the simulated CUDA. Root; scripts/build.sh and scripts/cudasim.sh
first. On a busy machine the CPU time is what tells.

    sudo test/bench/attach_check.py [--only asyncio] [--rounds 3] [--seconds 10] [--flags=--no-inject]
"""
import argparse, asyncio, ctypes, mmap, os, struct, subprocess, sys, tempfile, threading, time
from concurrent.futures import ThreadPoolExecutor

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
STEPS = 1 << 20  # that are kept: time and CPU time of each, ns
BUCKET = 100_000_000


class Steps:
    """Steps of a program, in a file that another process reads."""

    def __init__(self, path, create=False):
        with open(path, "w+b" if create else "r+b") as f:
            if create:
                f.truncate(8 + 16 * STEPS)
            self.map = mmap.mmap(f.fileno(), 8 + 16 * STEPS)
        if create:
            self.map[:] = bytes(len(self.map))  # no page fault later
        self.n = 0

    def step(self):
        struct.pack_into("QQ", self.map, 8 + 16 * (self.n % STEPS), time.monotonic_ns(), time.process_time_ns())
        self.n += 1
        struct.pack_into("Q", self.map, 0, self.n)

    def count(self):
        return struct.unpack_from("Q", self.map, 0)[0]

    def since(self, first):
        return [struct.unpack_from("QQ", self.map, 8 + 16 * (i % STEPS)) for i in range(first, self.count())]


def decoder():
    """A token as an eager model makes it: Python, some 60 launches, and a wait."""
    cuda = ctypes.CDLL("libcuda.so.1")
    cuda.cuInit(0)
    context, module, function = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
    cuda.cuCtxSetCurrent(context)
    cuda.cuModuleLoadData(ctypes.byref(module), b"x")
    cuda.cuModuleGetFunction(ctypes.byref(function), module, b"k_us2")
    stream = ctypes.c_void_p()
    cuda.cuStreamCreate(ctypes.byref(stream), 1)

    def layer(x):
        for _ in range(5):
            cuda.cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, None, None)
        return sum(v * 3 % 7 for v in x)

    def token():
        cuda.cuCtxSetCurrent(context)
        x = range(100)
        s = sum(layer(x) for _ in range(12))
        cuda.cuStreamSynchronize(stream)
        return s

    return token


def eager(steps):
    token = decoder()
    for _ in range(200):
        token()
    print("ready", flush=True)
    while True:
        token()
        steps.step()


def serve(steps):
    """Clients are threads of the program; what they do is a part of its steps."""
    token, pool = decoder(), ThreadPoolExecutor(1)

    async def generate(reader, writer):
        while await reader.readline() != b"\r\n":
            pass
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(64):
            t = b"data: %d\n\n" % await asyncio.get_running_loop().run_in_executor(pool, token)
            steps.step()
            writer.write(b"%x\r\n%s\r\n" % (len(t), t))
            await writer.drain()
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        writer.close()

    async def client(port):
        while True:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /generate HTTP/1.1\r\nHost: h\r\n\r\n")
            while await reader.read(65536):
                pass
            writer.close()

    async def main():
        server = await asyncio.start_server(generate, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        for _ in range(4):
            threading.Thread(target=lambda: asyncio.run(client(port)), daemon=True).start()
        await asyncio.sleep(1)
        print("ready", flush=True)
        await server.serve_forever()

    asyncio.run(main())


PROGRAMS = {"eager": eager, "asyncio": serve}


def buckets(steps, begin, end):
    """Of each bucket: mean time and CPU time (ms) of a step but for the slowest twentieth, longest time, steps."""
    out = [[] for _ in range((end - begin) // BUCKET)]
    for (t, cpu), (before, cpu_before) in zip(steps[1:], steps):
        i = (t - begin) // BUCKET
        if 0 <= i < len(out):
            out[i].append((t - before, cpu - cpu_before))
    return [
        (usual([a for a, _ in b]) / 1e6, usual([c for _, c in b]) / 1e6, max(a for a, _ in b) / 1e6, len(b))
        if b else (0, 0, 0, 0) for b in out
    ]


def usual(values):
    s = sorted(values)[: len(values) - len(values) // 20]  # the slowest lost their CPU to others
    return sum(s) / len(s)


def median(values):
    s = sorted(values)
    return s[len(s) // 2] if s else 0


def measure(name, options, folder):
    path, log_path, socket = (os.path.join(folder, f) for f in ("steps", "log", "socket"))
    steps = Steps(path, create=True)
    env = dict(os.environ, CUDASIM_TRUTH_LEVEL="off", LD_LIBRARY_PATH=f"{ROOT}/build/cudasim/r580:{ROOT}/build/cudasim")
    program = subprocess.Popen(
        ["taskset", "-c", str(os.cpu_count() - 1), sys.executable, __file__, "--program", name, path],
        env=env, stdout=subprocess.PIPE, preexec_fn=lambda: os.setpriority(os.PRIO_PROCESS, 0, -20),
    )
    daemon = None
    try:
        program.stdout.readline()
        time.sleep(1)
        first, begin = steps.count(), time.monotonic_ns()
        time.sleep(2)
        started = time.monotonic_ns()
        with open(log_path, "w") as log:
            daemon = subprocess.Popen(
                [f"{ROOT}/bin/inferscoped", "--pid", str(program.pid), "--socket", socket, *options.flags.split()],
                stderr=log,
                preexec_fn=lambda: os.setpriority(os.PRIO_PROCESS, 0, options.nice),
            )
        while "ready" not in open(log_path).read():
            time.sleep(0.01)
        ready = time.monotonic_ns()
        time.sleep(options.seconds)
        gone = time.monotonic_ns()
        daemon.terminate()
        daemon.wait()
        time.sleep(1)
        table = buckets(steps.since(first), begin, time.monotonic_ns())
    finally:
        if daemon and daemon.poll() is None:
            daemon.kill()
        program.kill()
        program.wait()
    at = lambda t: (t - begin) // BUCKET
    off = [b for b in table[: at(started) - 1] if b[3]]
    base, base_cpu, longest = median([b[0] for b in off]), median([b[1] for b in off]), max(b[2] for b in off)
    parts = {
        "start to ready": table[at(started) : at(ready) + 1],
        "first second": table[at(ready) + 1 : at(ready) + 11],
        "next 2 s": table[at(ready) + 11 : at(ready) + 31],
        "rest": table[at(ready) + 31 : at(gone)],
        "stop and after": table[at(gone) :],
    }
    print(
        f"{name}: step {base:.3f} ms, CPU {base_cpu:.3f} ms, longest {longest:.1f} ms, ready in "
        f"{(ready - started) / 1e6:.0f} ms"
    )
    for what, rows in parts.items():
        rows = [r for r in rows if r[3]] or [(0, 0, 0, 0)]
        wall, cpu = median([r[0] for r in rows]), median([r[1] for r in rows])
        print(
            f"  {what:16} {100 * (wall / base - 1):+7.2f}% time {100 * (cpu / base_cpu - 1):+7.2f}% CPU, longest step "
            f"{max(r[2] for r in rows):6.1f} ms, worst bucket {max(r[1] / base_cpu for r in rows):.2f} times the CPU"
        )
    if options.buckets:
        first, last = at(ready) - 10, at(gone) + 8
        print("  CPU by 100 ms from 1 s before ready: " + " ".join(f"{b[1] / base_cpu:.2f}" for b in table[first:last]))
    sys.stdout.flush()


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--only", default="")
    p.add_argument("--rounds", type=int, default=1)
    p.add_argument("--seconds", type=float, default=10, help="from ready to the daemon's end")
    p.add_argument("--flags", default="", help="more flags of the daemon, as in --flags=--no-inject")
    p.add_argument("--nice", type=int, default=0, help="of the daemon")
    p.add_argument("--buckets", action="store_true", help="print the CPU time of each bucket against before")
    p.add_argument("--program", nargs=2, help=argparse.SUPPRESS)
    options = p.parse_args()
    if options.program:
        return PROGRAMS[options.program[0]](Steps(options.program[1]))
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(options.rounds):
            for name in PROGRAMS:
                if options.only in name:
                    measure(name, options, folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
