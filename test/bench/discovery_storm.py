#!/usr/bin/env python3
"""What discovery costs while programs that use a GPU come and go.

Starts a daemon that discovers, and short programs with the simulated CUDA, and prints what the daemon and its helpers
take. Needs root, `make build cudasim`, and no other daemon that would watch the same programs.

    sudo python3 test/bench/discovery_storm.py --per-minute 200 --minutes 7
"""

import argparse
import http.client
import json
import os
import socket
import subprocess
import tempfile
import time

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
WORD = f"storm-{os.getpid()}"


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


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--per-minute", type=float, default=200)
    parser.add_argument("--minutes", type=float, default=7)
    parser.add_argument("--life", default="1s", help="how long each program runs")
    options = parser.parse_args()
    sim = os.path.join(ROOT, "build", "cudasim")
    os.environ["LD_LIBRARY_PATH"] = f"{sim}/r580:{sim}"
    victim = [os.path.join(ROOT, "build", "victims", "victim"), "--lib", "driver", f"print {WORD}", "launch 10", f"sleep {options.life}"]
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "s")
        with open(os.path.join(folder, "log"), "w", encoding="utf-8") as log:
            daemon = subprocess.Popen(
                [os.path.join(ROOT, "bin", "inferscoped"), "--socket", path, "--allow", f"cmdline=*{WORD}*", "--keep", "10s"], stderr=log
            )
        try:
            storm(options, path, daemon.pid, victim, wait(path))
        finally:
            daemon.terminate()
            daemon.wait()


def storm(options, path, pid, victim, before):
    running, started, began = [], 0, time.time()
    cpu, at = before["self"]["cpu_seconds"], began
    print("programs  cpu %  MB     files  targets  watched  skipped")
    while time.time() - began < 60 * options.minutes:
        running.append(subprocess.Popen(victim, stdout=subprocess.DEVNULL))
        started += 1
        time.sleep(max(0, began + started * 60 / options.per_minute - time.time()))
        running = [p for p in running if p.poll() is None]
        if time.time() - at < 30:
            continue
        now, s = time.time(), status(path)
        share = 100 * (s["self"]["cpu_seconds"] - cpu) / (now - at)
        files, found = len(os.listdir(f"/proc/{pid}/fd")), s["discovery"]
        print(
            f"{started:8}  {share:5.1f}  {s['self']['rss_bytes'] / 1e6:5.1f}  {files:5}  {len(s['targets']):7}  "
            f"{found['watched']:7}  {found['skipped']:7}",
            flush=True,
        )
        cpu, at = s["self"]["cpu_seconds"], now
    for process in running:
        process.wait()


if __name__ == "__main__":
    main()
