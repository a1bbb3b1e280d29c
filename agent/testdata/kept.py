"""Checks on a real GPU, without the daemon and without PyTorch, what the agent does in a process whose threads are
nearly always inside the driver, where cuptiSubscribe waits for seconds: it must say so, record windows at their period
once it is in, lose nothing, cost little, and leave in the good way. The workload gets the agent by LD_PRELOAD, asleep
until it is warm.

    scripts/gpu-workloads.sh && python3 agent/testdata/kept.py agent/agent_amd64.so build/gpu-workloads/streams

One line for each thing measured, a verdict at the end; about 40 s, and as long as cuptiSubscribe takes (given up after
--patience s).
"""

import argparse
import bisect
import ctypes
import json
import mmap
import os
import struct
import subprocess
import sys
import tempfile
import threading
import time

from gpu_check import (
    AT, AT32, CALL, CONTINUOUS, COPY, DATA, ENDS, GONE, KERNEL, MAGIC, OFF, OPEN, QUIT, SLOTS, WINDOW, WINDOWS,
)

NAME, TEXT, IDLE, KEPT = 64, 65, 1, 7
HELLO = 1 << 20
LAUNCHES = (307, 442, 652, 653)  # cuLaunchKernel, cuLaunchKernelEx and their variants for the default stream per thread
SLOT = struct.Struct("<QQIIHBBi4Q")
TS, DUR, SEQ, TID, FUNC, KIND, RET, ARGS = 0, 1, 2, 3, 4, 5, 7, 8


class Target:
    """A workload with the agent in it, and the ring between the two. Offsets and layouts: agent/abi.h."""

    def __init__(self, image, workload, threads, on_ms, period_ms):
        self.fd = os.memfd_create("agent", 0)
        blob = bytearray(open(image, "rb").read())
        at, size = blob.index(struct.pack("<IIi", MAGIC, 1, -1)), 64 + 480
        params = struct.pack(
            "<IIiIII5QQ", MAGIC, 1, self.fd, SLOTS, OFF, 0, on_ms * 10**6, period_ms * 10**6, 10**9,
            time.monotonic_ns(), HELLO, 0,
        )
        blob[at : at + size] = params[:64].ljust(size, b"\0")
        os.pwrite(self.fd, bytes(blob), 0)
        self.stats = os.path.join(tempfile.mkdtemp(), "stats")
        self.threads = threads
        self.process = subprocess.Popen(
            [workload, "--stats", self.stats, "--threads", str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=[self.fd],
            env=os.environ | {"LD_PRELOAD": f"/proc/self/fd/{self.fd}"},
        )
        self.tail, self.slots, self.names, self.name, self.alive = 0, [], {}, None, True
        self._open()
        self.ready = json.loads(self.process.stdout.readline())

    def _open(self):
        self.wait("hello", lambda: self._hello() is not None, 10)
        error, ring = struct.unpack_from("<ii", self._hello(), 8)
        if error:
            raise OSError(-error, "the agent did not start")
        fd = os.open(f"/proc/{self.process.pid}/fd/{ring}", os.O_RDWR)
        self.ring = mmap.mmap(fd, DATA + SLOTS * 64)
        os.close(fd)
        self.wake()
        threading.Thread(target=self._beat, daemon=True).start()

    def _hello(self):
        hello = os.pread(self.fd, 40, HELLO)
        return hello if len(hello) == 40 and struct.unpack_from("<I", hello)[0] == MAGIC else None

    def _beat(self):
        while self.alive:
            struct.pack_into("<Q", self.ring, AT["heartbeat"], time.monotonic_ns())
            time.sleep(0.1)

    def get(self, name):
        return (
            struct.unpack_from("<I", self.ring, AT32[name])[0]
            if name in AT32
            else struct.unpack_from("<Q", self.ring, AT[name])[0]
        )

    def put(self, name, value):
        struct.pack_into("<I" if name in AT32 else "<Q", self.ring, AT32.get(name, AT.get(name)), value)

    def mode(self, mode):
        self.put("mode", mode)
        self.wake()

    def wake(self):
        """Changes the futex word and wakes who waits on it."""
        self.put("wake", self.get("wake") + 1)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self.ring)) + AT32["wake"]
        number = {"x86_64": 202, "aarch64": 98}[os.uname().machine]
        ctypes.CDLL(None).syscall(number, ctypes.c_void_p(address), 1, 1 << 30, None, None, 0)

    def wait(self, what, ok, seconds):
        """Waits for something, and reads meanwhile; how long it took, s."""
        began = time.monotonic()
        while not ok():
            if self.process.poll() is not None:
                sys.exit(f"FAIL: the workload ended with {self.process.returncode} while waiting for {what}")
            if time.monotonic() - began > seconds:
                raise TimeoutError(f"no {what} within {seconds} s")
            if hasattr(self, "ring"):
                self.read()
            time.sleep(0.01)
        return time.monotonic() - began

    def read(self):
        """Reads what is there now: a workload may write faster than Python reads."""
        head = self.get("head")
        while self.tail < head:
            at = self.tail % SLOTS
            n = min(SLOTS - at, 1 << 14)
            turn, whole = (self.tail // SLOTS + 1) & 0xFFFFFFFF, 0
            block = self.ring[DATA + at * 64 : DATA + (at + n) * 64]
            for i, slot in enumerate(SLOT.iter_unpack(block)):
                if slot[SEQ] != turn:
                    break
                whole += 1
                self._take(slot, block[i * 64 : i * 64 + 64])
            self.tail += whole
            self.put("tail", self.tail)
            if whole < n:
                return

    def _take(self, slot, raw):
        if slot[KIND] == NAME:
            self.name = [slot[RET], slot[FUNC], b""]
        elif slot[KIND] == TEXT and self.name:
            self.name[2] += raw[:16] + raw[20:26] + raw[27:]
            self.names[self.name[0]] = self.name[2][: self.name[1]].decode(errors="replace")
        else:
            self.slots.append(slot)

    def of(self, kind):
        return [s for s in self.slots if s[KIND] == kind]

    def flush(self):
        want = self.get("flush") + 1
        self.put("flush", want)
        self.wake()
        self.wait("flush", lambda: self.get("flushed") == want & 0xFFFFFFFF, 20)
        self.read()

    def say(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def iterations(self):
        """Begins and ends (ns) of every thread's iterations so far."""
        out = []
        for i in range(self.threads):
            with open(self.stats + (f".{i}" if i else ""), "rb") as f:
                n = struct.unpack_from("<Q", f.read(4096), 8)[0]
                times = struct.unpack(f"<{2 * n}Q", f.read(16 * n))
                out.append((times[::2], times[1::2]))
        return out


def pace(iterations, stretches):
    """Mean and largest iteration that lies within one of some stretches of time, and how many there are; us."""
    took = []
    for begins, ends in iterations:
        for since, until in stretches:
            for i in range(bisect.bisect_left(begins, since), len(begins)):
                if ends[i] > until:
                    break
                took.append(ends[i] - begins[i])
    return (sum(took) / len(took) / 1e3, max(took) / 1e3, len(took)) if took else (0.0, 0.0, 0)


def unseen(target, windows):
    """Launches within windows that have no kernel, and how many launches there are; those of a window's last 20 ms may
    run on after it."""
    kernels = {s[ARGS] & 0xFFFFFFFF for s in target.of(KERNEL)}
    spans = [(w[TS], w[TS] + w[DUR] - 20 * 10**6) for w in windows]
    launches = [
        s for s in target.of(CALL) if s[FUNC] in LAUNCHES and any(a <= s[TS] and s[TS] + s[DUR] <= b for a, b in spans)
    ]
    return sum(1 for s in launches if s[RET] & 0xFFFFFFFF not in kernels), len(launches)


def ms(ns):
    return f"{ns / 1e6:.2f} ms"


def windows_of(target, seconds, patience):
    """Records in windows; the stretch before the first one opened, and that after it."""
    asked = time.monotonic_ns()
    target.mode(WINDOWS)
    target.wait("open window", lambda: target.get("state") == OPEN, patience)
    opened = time.monotonic_ns()
    print(f"opened after {(opened - asked) / 1e9:.2f} s", flush=True)
    end = time.monotonic() + seconds
    target.wait("end of the stretch", lambda: time.monotonic() > end, seconds + 5)
    return (asked, opened), (opened, time.monotonic_ns())


def count(target):
    """Kernels and copies of a counted stretch: recorded, and done."""
    target.say("pause")
    target.mode(CONTINUOUS)
    target.wait("open window", lambda: target.get("state") == OPEN, 20)
    target.flush()
    at = len(target.slots)
    answer = target.say("count 200 300")
    target.say("pause")
    target.flush()
    target.mode(WINDOWS)
    target.say("go")
    within = [s for s in target.slots[at:] if answer["begin_ns"] <= s[TS] <= answer["end_ns"]]
    kernels = sum(1 for s in within if s[KIND] == KERNEL and "counted" in target.names.get(s[RET], ""))
    return kernels, answer["kernels"], sum(1 for s in within if s[KIND] == COPY), answer["copies"]


def leave(target, patience):
    """The way out, from between two windows: whether it was the good one, and its stretch of time."""
    target.mode(WINDOWS)
    target.wait("end of a window", lambda: target.get("state") in (KEPT, IDLE), patience)
    subscribed = target.get("state") == KEPT
    target.slots.clear()
    began = time.monotonic_ns()
    target.mode(QUIT)
    took = target.wait("end of the agent", lambda: target.get("state") == GONE, patience)
    target.read()
    w = (target.of(WINDOW) or [None])[-1]
    print(
        f"way out: {took:.2f} s; last window "
        f"{ENDS[w[RET]] + ' after ' + ms(w[DUR]) + ', left in ' + ms(w[ARGS + 3]) if w else 'none'}; graphs word "
        f"{target.get('graphs')}",
        flush=True,
    )
    return w[RET] == 1 if w else not subscribed, (began, time.monotonic_ns())


def say_windows(target, base, waiting, recording, period_ms):
    windows = [w for w in target.of(WINDOW) if w[RET] in (1, 2, 4)]
    ways = {name: sum(1 for w in windows if w[RET] == k) for k, name in ENDS.items()}
    iterations = target.iterations()
    between = [(a[TS] + a[DUR] + a[ARGS + 3], b[TS] - b[ARGS + 2]) for a, b in zip(windows, windows[1:])]
    opened = [ms(w[ARGS + 2]) for w in windows]
    print(
        f"{len(windows)} windows in {(recording[1] - recording[0]) / 1e9:.1f} s: {ways}; opening the first took "
        f"{opened[0] if opened else '-'}, "
        f"of the others {ms(max((w[ARGS + 2] for w in windows[1:]), default=0))} at most; ending "
        f"{ms(max((w[ARGS + 3] for w in windows), default=0))} at most; "
        f"{sum(w[ARGS + 1] for w in windows)} dropped by CUPTI, {target.get('dropped')} by the ring",
        flush=True,
    )
    for name, stretches in {
        "while it waited": [waiting],
        "with windows": [recording],
        "within windows": [(w[TS], w[TS] + w[DUR]) for w in windows],
        "between windows": between,
    }.items():
        mean, largest, n = pace(iterations, stretches)
        print(
            f"{name}: {mean:.1f} us ({100 * (mean / base[0] - 1):+.1f}%), largest {largest / 1e3:.2f} ms, {n} "
            "iterations",
            flush=True,
        )
    missing, launches = unseen(target, windows)
    print(f"launches within windows: {launches}, without a kernel: {missing}", flush=True)
    wanted = (recording[1] - recording[0]) / 1e6 / period_ms
    return {
        "windows": len(windows) < 0.8 * wanted,
        "dropped": any(w[ARGS + 1] for w in windows) or target.get("dropped") > 0,
        "kernels in windows": missing > 0,
        "empty windows": not windows or any(w[ARGS] == 0 for w in windows),
        "disabled": ways["disabled"] > 0,
    }


def check(args):
    target = Target(args.image, args.workload, args.threads, args.on, args.period)
    time.sleep(1)
    stretch = time.monotonic_ns()
    time.sleep(4)
    before = (stretch, time.monotonic_ns())
    base = pace(target.iterations(), [before])
    print(
        f"without windows: {base[0]:.1f} us an iteration, largest {base[1] / 1e3:.2f} ms, {base[2]} iterations",
        flush=True,
    )
    waiting, recording = windows_of(target, args.seconds, args.patience)
    bad = say_windows(target, base, waiting, recording, args.period)
    kernels, ran, copies, made = count(target)
    print(f"counted stretch: {kernels} kernels of {ran}, {copies} copies of {made}", flush=True)
    good, out = leave(target, args.patience)
    time.sleep(3)
    iterations = target.iterations()
    for name, stretches in {"on the way out": [out], "after it": [(out[1], time.monotonic_ns())]}.items():
        mean, largest, n = pace(iterations, stretches)
        print(
            f"{name}: {mean:.1f} us ({100 * (mean / base[0] - 1):+.1f}%), largest {largest / 1e3:.2f} ms, {n} "
            "iterations",
            flush=True,
        )
    target.alive = False
    end = target.say("quit")
    code = target.process.wait(30)
    print(
        f"the workload ended with {code}: {end['kernels']} kernels launched, {end['executed']} counted by the GPU",
        flush=True,
    )
    bad |= {
        "counted kernels": kernels != ran,
        "counted copies": copies != made,
        "way out": not good,
        "workload": code != 0,
    }
    return [what for what, wrong in bad.items() if wrong]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("image")
    parser.add_argument("workload")
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--on", type=int, default=200, help="length of a window, ms")
    parser.add_argument(
        "--period", type=int, default=2000, help="from the beginning of a window to that of the next, ms"
    )
    parser.add_argument("--seconds", type=float, default=20, help="how long windows are recorded")
    parser.add_argument("--patience", type=float, default=90, help="how long a wait may be, s")
    bad = check(parser.parse_args())
    print("FAIL: " + ", ".join(bad) if bad else "ok")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
