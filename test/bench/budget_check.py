#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a daemon with default settings adds to programs that make steps (testdata/steady.c on the simulated CUDA),
measured from outside: watched and released in the order on, off, off, on, after the governor has settled. Beside it
what the daemon itself says. Root; scripts/build.sh and scripts/cudasim.sh first.

    sudo test/bench/budget_check.py [--rounds 8] [--only launches] [--settle 60]
"""
import argparse, glob, http.client, json, math, mmap, os, socket, subprocess, sys, tempfile, time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LOADS = {  # ns of a step, threads, launches, pairs of cuMemAlloc and cuMemFree
    "1,000 switches/s": (990_000, 2, 0, 0),
    "10,000 switches/s": (97_000, 2, 0, 0),
    "100,000 switches/s": (7_000, 2, 0, 0),
    "1,000 launches/s": (990_000, 1, 1, 0),
    "10,000 launches/s": (99_000, 1, 1, 0),
    "45,000 launches/s": (22_000, 1, 1, 0),
    "300,000 launches/s": (3_300, 1, 1, 0),
    "10,000 allocations/s": (99_000, 1, 0, 1),
    "100,000 allocations/s": (10_000, 1, 0, 1),
    "1 thread": (1_000_000, 1, 0, 0),
    "100 threads": (325_000, 100, 0, 0),
    "1,000 threads": (325_000, 1000, 0, 0),
}


class Daemon(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("inferscoped")
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self.path)

    def ask(self, method, path):
        self.request(method, path)
        answer = self.getresponse()
        body = answer.read()
        if answer.status >= 300:
            raise RuntimeError(f"{method} {path}: {answer.status} {body[:200]!r}")
        return body


def rate(counter, seconds):
    """Steps a second of the next so many seconds."""
    n, t = int.from_bytes(counter[:8], "little"), time.monotonic()
    time.sleep(seconds)
    return (int.from_bytes(counter[:8], "little") - n) / (time.monotonic() - t)


def interval(values):
    mean = sum(values) / len(values)
    deviation = math.sqrt(sum((v - mean) ** 2 for v in values) / max(1, len(values) - 1))
    student = {2: 12.7, 3: 4.3, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36, 10: 2.26, 12: 2.2, 16: 2.13}
    t = student.get(len(values), 2.1)
    return mean, t * deviation / math.sqrt(len(values))


def measure(name, load, options, folder):
    counter_file = os.path.join(folder, "counter")
    with open(counter_file, "wb") as f:
        f.write(bytes(8))
    library = glob.glob(os.path.join(ROOT, "build/cudasim/r580/libcuda.so.1"))[0]
    work, threads, launches, allocs = load
    program = subprocess.Popen(
        [
            os.path.join(folder, "steady"), counter_file, str(os.cpu_count() - 1), library, str(work), str(threads),
            str(launches), str(allocs),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    os.setpriority(os.PRIO_PROCESS, program.pid, -20)  # its threads come later; others on the machine cost precision
    program.stdout.readline()
    path = os.path.join(folder, "socket")
    daemon = subprocess.Popen(
        [os.path.join(ROOT, "bin/inferscoped"), "--pid", str(program.pid), "--socket", path, *options.flags.split()],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        while not os.path.exists(path):
            time.sleep(0.05)
        with open(counter_file, "rb") as f:
            counter = mmap.mmap(f.fileno(), 8, access=mmap.ACCESS_READ)
        target = f"/v1/targets?pid={program.pid}"
        time.sleep(options.settle)
        said = [
            o
            for o in json.loads(Daemon(path).ask("GET", "/v1/status")).get("overhead", [])
            if o["target"] == program.pid
        ]
        costs = []
        for _ in range(options.rounds):
            on, off = [], []
            for watched in (True, False, False, True):
                Daemon(path).ask("PUT" if watched else "DELETE", target)
                time.sleep(0.3)
                (on if watched else off).append(rate(counter, options.slice))
            costs.append(sum(map(math.log, off)) / 2 - sum(map(math.log, on)) / 2)
        mean, half = interval(costs)
        own, levels = "not known", ""
        if said:
            total = said[0]["total"]
            own = (
                f"{100 * total['share']:.1f} ({100 * total['low']:.1f} to {100 * total['high']:.1f}), {total['basis']}"
            )
            levels = ", ".join(f"{s['name']}: {s['level']}" for s in said[0]["sources"])
        print(f"| {name} | {100 * mean:.1f} ± {100 * half:.1f}% | {own} | {levels} |", flush=True)
        return mean - half <= 0.02
    finally:
        daemon.terminate()
        daemon.communicate()
        program.stdin.close()
        program.wait()


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--rounds", type=int, default=8, help="of on, off, off, on")
    p.add_argument("--slice", type=float, default=1.0, help="seconds of each")
    p.add_argument("--settle", type=float, default=60, help="seconds before the first")
    p.add_argument("--flags", default="", help="more flags of the daemon, as in --flags=--no-inject")
    p.add_argument("--only", default="", help="the programs whose name has this")
    options = p.parse_args()
    print("| a program with | added, from outside | the daemon's own figure, % | levels |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [
                "cc", "-O2", "-pthread", "-o", os.path.join(folder, "steady"),
                os.path.join(ROOT, "test/bench/testdata/steady.c"), "-ldl",
            ],
            check=True,
        )
        good = [measure(n, l, options, folder) for n, l in LOADS.items() if options.only in n]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
