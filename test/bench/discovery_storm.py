#!/usr/bin/env python3
"""What discovery costs while programs that use a GPU come and go, and how soon it watches them.

Starts a daemon that discovers, and short programs with the simulated CUDA, and prints what the daemon and its helpers
take, how long it took from the start of each program (some time before its first CUDA call) until all its probes were
on, and what is left when all have ended. Needs root, `make build cudasim`, and no other daemon that would watch the
same programs.

    sudo python3 test/bench/discovery_storm.py --per-minute 200 --minutes 5
"""

import argparse
import contextlib
import datetime
import glob
import http.client
import json
import math
import os
import socket
import statistics
import subprocess
import tempfile
import time

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
WORD = f"storm-{os.getpid()}"
KEEP = 10  # seconds for which the recording of a program that has ended is kept
IDLE = 10  # seconds for which the daemon is measured before any program runs
EVERY = 5  # seconds between two looks at the memory
WARM = 360  # seconds after which memory is to be flat: what is known of ended processes is kept for 5 minutes
MEASURES = ("live heap", "daemon", "helpers", "all")  # of memory: see memory()


class Socket(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path):
        super().__init__("daemon", timeout=10)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self.path)


def status(path):
    connection = Socket(path)
    connection.request("GET", "/v1/status")
    answer = json.loads(connection.getresponse().read())
    connection.close()
    return answer


def wait(path):
    for _ in range(300):
        try:
            return status(path)
        except OSError:
            time.sleep(0.1)
    raise SystemExit("the daemon does not answer")


def children(pid):
    """The processes that work for the daemon: their names by pid."""
    out = {}
    for path in glob.glob(f"/proc/{pid}/task/*/children"):
        with contextlib.suppress(OSError), open(path, encoding="utf-8") as file:
            for child in file.read().split():
                with open(f"/proc/{child}/comm", encoding="utf-8") as comm:
                    out[int(child)] = comm.read().strip()
    return out


def resident(pid):
    """Resident memory of a process that is its own, in bytes: no file, nothing that others share."""
    with contextlib.suppress(OSError, StopIteration), open(f"/proc/{pid}/status", encoding="utf-8") as file:
        return 1024 * int(next(line for line in file if line.startswith("RssAnon:")).split()[1])
    return 0


def memory(s, pid):
    """The daemon's live heap at its last garbage collection, its resident memory, that of its helpers, and their sum."""
    own, helpers = resident(pid), sum(resident(child) for child in children(pid))
    return s["self"]["heap_bytes"], own, helpers, own + helpers


def held(pid):
    """Open files, threads, and BPF links of the daemon and its helpers, and how many helpers there are."""
    files = threads = links = 0
    helpers = children(pid)
    for process in [pid, *helpers]:
        with contextlib.suppress(OSError):
            threads += len(os.listdir(f"/proc/{process}/task"))
            for name in os.listdir(f"/proc/{process}/fd"):
                files += 1
                with contextlib.suppress(OSError):
                    links += "bpf_link" in os.readlink(f"/proc/{process}/fd/{name}") and process != pid
    return {"files": files, "threads": threads, "links": links, "helpers": len(helpers)}


def settled(path, pid):
    """The daemon's status once all targets are forgotten, and their probes off."""
    for _ in range(6 * KEEP):  # seconds
        s = status(path)
        if not s["targets"] and held(pid)["links"] == 0:
            break
        time.sleep(1)
    return s


def slope(points):
    """Slope and half its 95% interval by least squares, with as many observations as neighbours are independent."""
    n = len(points)
    if n < 10:
        return math.nan, math.nan
    mx, my = (statistics.fmean(p[i] for p in points) for i in (0, 1))
    spread = sum((x - mx) ** 2 for x, _ in points)
    b = sum((x - mx) * (y - my) for x, y in points) / spread
    rest = [y - my - b * (x - mx) for x, y in points]
    square = sum(r * r for r in rest)
    alike = max(0, sum(p * q for p, q in zip(rest, rest[1:], strict=False)) / square) if square else 0
    independent = max(3, n * (1 - alike) / (1 + alike))
    return b, 1.96 * math.sqrt(square / (independent - 2) / spread * n / independent)


def watched(log):
    """When each process was watched, by the daemon's log: all its probes were on."""
    out = {}
    with open(log, encoding="utf-8") as file:
        for line in file:
            with contextlib.suppress(ValueError, KeyError):
                entry = json.loads(line)
                if entry["msg"] == "a target is followed":
                    at = datetime.datetime.strptime(entry["ts"], "%Y-%m-%dT%H:%M:%S.%f%z")
                    out.setdefault(entry["pid"], []).append(at.timestamp())
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--per-minute", type=float, default=200)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--life", default="1s", help="how long each program runs")
    options = parser.parse_args()
    sim = os.path.join(ROOT, "build", "cudasim")
    os.environ["LD_LIBRARY_PATH"] = f"{sim}/r580:{sim}"
    victim = [os.path.join(ROOT, "build", "victims", "victim"), "--lib", "driver", f"print {WORD}", "launch 10", f"sleep {options.life}"]
    with tempfile.TemporaryDirectory() as folder:
        path, log = os.path.join(folder, "s"), os.path.join(folder, "log")
        command = [os.path.join(ROOT, "bin", "inferscoped"), "--socket", path, "--allow", f"cmdline=*{WORD}*", "--keep", f"{KEEP}s"]
        with open(log, "w", encoding="utf-8") as file:
            daemon = subprocess.Popen([*command, "--log-level", "debug", "--log-format", "json"], stderr=file)
        try:
            wait(path)
            subprocess.run(victim, stdout=subprocess.DEVNULL, check=True)  # some is loaded for the first one, and stays
            settled(path, daemon.pid)
            before = status(path)["self"]["cpu_seconds"]
            time.sleep(IDLE)
            idle = (status(path)["self"]["cpu_seconds"] - before) / IDLE
            storm(options, path, daemon.pid, victim, idle, log)
        finally:
            daemon.terminate()
            daemon.wait()


def storm(options, path, pid, victim, idle, log):
    running, started, looks, shares = [], {}, [], []
    first, clean = status(path), held(pid)
    began = time.time()
    cpu = lines = first["self"]["cpu_seconds"]
    at = looked = began
    number = 0
    print(f"before any program: {100 * idle:.1f}% of a core, {first['self']['rss_bytes'] / 1e6:.1f} MB")
    print("started  watched  skipped  CPU %     MB  files  targets")
    while time.time() - began < 60 * options.minutes:
        now = time.time()
        process = subprocess.Popen(victim, stdout=subprocess.DEVNULL)
        started.setdefault(process.pid, []).append(now)
        running.append(process)
        number += 1
        time.sleep(max(0, began + number * 60 / options.per_minute - time.time()))
        running = [p for p in running if p.poll() is None]
        now = time.time()
        if now - looked >= EVERY:
            looked, s = now, status(path)
            looks.append((now - began, *memory(s, pid)))
            if now - at < 30:
                continue
            share = 100 * (s["self"]["cpu_seconds"] - lines) / (now - at)
            shares.append((now - began, share))
            found = s["discovery"]
            print(
                f"{number:7}  {found['watched']:7}  {found['skipped']:7}  {share:5.1f}  {s['self']['rss_bytes'] / 1e6:5.1f}  "
                f"{len(os.listdir(f'/proc/{pid}/fd')):5}  {len(s['targets']):7}",
                flush=True,
            )
            lines, at = s["self"]["cpu_seconds"], now
    for process in running:
        process.wait()
    took = time.time() - began
    s, left = settled(path, pid), held(pid)
    summary(started, number, s, (s["self"]["cpu_seconds"] - cpu) - idle * (time.time() - began), took, idle, log)
    flat(looks, shares, 1e3 * took / number)
    for name, count in left.items():
        print(f"{name}: {clean[name]} before, {count} after all had ended")
    print(f"targets after all had ended: {len(s['targets'])}")


def summary(started, number, last, cpu, took, idle, log):
    delays, seen = [], watched(log)
    for pid, times in started.items():
        for begin in times:
            delays += [t - begin for t in seen.get(pid, []) if 0 <= t - begin < 60][:1]
    delays.sort()
    found = last["discovery"]
    print(f"\nprograms: {number} in {took:.0f} s; watched {found['watched']}, skipped {found['skipped']}, failed {found['failed']}")
    if delays:
        p50, p99 = delays[len(delays) // 2], delays[min(len(delays) - 1, math.ceil(0.99 * len(delays)) - 1)]
        print(f"from start to watched: p50 {p50:.3f} s, p99 {p99:.3f} s, max {delays[-1]:.3f} s, of {len(delays)} programs")
    print(f"CPU time of the daemon and its helpers: {1e3 * cpu / number:.1f} ms a program, {100 * (idle + cpu / took):.1f}% of a core")


def flat(looks, shares, per):
    """Prints the slopes of what is to be flat; per is the time in which 1,000 programs start, in seconds."""
    print(f"\nafter the first {WARM} s{'':20} mean   per 1,000 programs (95% interval)")
    for i, name in enumerate(MEASURES, 1):
        row(f"MB, {name}", [(look[0], look[i] / 1e6) for look in looks], per)
    row("CPU, % of a core", shares, per)


def row(name, points, per):
    points = [p for p in points if p[0] >= WARM]
    b, half = slope(points)
    mean = statistics.fmean(y for _, y in points) if points else math.nan
    print(f"{name:36} {mean:7.2f}   {b * per:+.3f} ({(b - half) * per:+.3f} to {(b + half) * per:+.3f})")


if __name__ == "__main__":
    main()
