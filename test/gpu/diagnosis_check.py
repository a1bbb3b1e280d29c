"""Does a report name the cause that was planted? PyTorch programs on a real GPU, as a table.

Usage: diagnosis_check.py --bin BIN --out DIR [--only NAME,...] [--gpu windows|continuous] [--seconds S] [--twins] [--limit S]

Each program of programs/causes.py runs under the daemon, and the first finding of its report is compared with what was planted; healthy
ones must not be accused. Those of programs/workloads.py must state a latency, a breakdown that sums to it, a class and two suggestions.
With --twins the fixed program runs too, without the daemon, and how much faster it is stands beside the finding's cost. Reports are left
in DIR. Needs root, a GPU, torch and transformers. The exit code is 1 where a check fails.
"""

import argparse
import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time

import gpu_daemon
from programs.causes import PROGRAMS
from programs.workloads import WORKLOADS

PATIENT, RARE = 12, 40  # seconds for the agent to come in; it comes with a call, and a server that is idle makes few
AHEAD = 3  # programs that are being started while one is measured: loading PyTorch takes seconds


class Service:
    """Answers each byte after 6 ms: what the program `network` asks."""

    def __init__(self):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            conn, _ = self.listener.accept()
            threading.Thread(target=self._answer, args=(conn,), daemon=True).start()

    def _answer(self, conn):
        while conn.recv(16):
            time.sleep(0.006)
            conn.sendall(b"!")


def ask_now_and_then(port):
    """Is the client of the program `server`: a request each 250 ms."""
    def run():
        for _ in range(600):
            with contextlib.suppress(OSError):
                with socket.create_connection(("127.0.0.1", port)) as conn:
                    while True:
                        conn.sendall(b"?")
                        if not conn.recv(16):
                            return
                        time.sleep(0.25)
            time.sleep(0.1)
    threading.Thread(target=run, daemon=True).start()


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as s:
        return s.getsockname()[1]


class Program:
    """A program of `programs`, driven over its stdin."""

    def __init__(self, name, service, *words):
        self.name, self.hogs = name, []
        port, cpu = free_port(), max(os.sched_getaffinity(0))
        env = dict(os.environ, INFERSCOPE_SERVICE=service.address, INFERSCOPE_PORT=str(port), INFERSCOPE_CPU=str(cpu), PYTHONUNBUFFERED="1")
        self.process = subprocess.Popen([sys.executable, "-m", "programs", name, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True, env=env, cwd=os.path.dirname(os.path.abspath(__file__)))
        self.pid, self.cpu = self.process.pid, cpu
        if name == "server":
            ask_now_and_then(port)

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            raise gpu_daemon.Harm(f"{self.name} ended with {self.process.wait()}")
        return json.loads(line)

    def ready(self):
        self.answer()
        if self.name == "one-cpu":
            burn = f"import os; os.sched_setaffinity(0, {{{self.cpu}}})\nwhile True: pass"
            self.hogs = [subprocess.Popen([sys.executable, "-c", burn]) for _ in range(2)]

    def send(self, seconds):
        print("run", seconds, file=self.process.stdin, flush=True)

    def end(self):
        for h in self.hogs:
            h.kill()
        with contextlib.suppress(OSError):
            print("quit", file=self.process.stdin, flush=True)
        try:
            return self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return None


def rate(program, seconds):
    """Steps a second without the daemon."""
    program.send(seconds)
    a = program.answer()
    return a["steps"] / a["seconds"]


def client(o, d, pid, form, last):
    run = subprocess.run([f"{o.bin}/inferscope", "report", "--pid", str(pid), "--socket", d.socket, "--format", form, "--last", f"{last}s"],
                         capture_output=True, text=True)
    if run.returncode:
        raise gpu_daemon.Harm(f"report: {run.stderr}")
    return run.stdout


def watched(o, program):
    """The report of a program that runs under the daemon: as JSON, and kept in the other forms too."""
    program.send(o.seconds + (RARE if program.name == "server" else PATIENT))
    with gpu_daemon.Daemon(o.bin, program.pid, f"{o.out}/{program.name}.log", "--gpu", o.gpu) as d:
        d.settled(30)
        time.sleep(o.seconds)
        for form, ending in (("markdown", "md"), ("text", "txt")):
            with open(f"{o.out}/{program.name}.{ending}", "w") as f:
                f.write(client(o, d, program.pid, form, o.seconds))
        return json.loads(client(o, d, program.pid, "json", o.seconds))


def judge_cause(name, diagnosis):
    """Returns whether the diagnosis is right, and what it says."""
    wanted, findings = PROGRAMS[name][1], diagnosis["findings"] or []
    first = findings[0]["cause"] if findings else "-"
    if not wanted:
        return diagnosis["verdict"] in ("healthy", "gpu-bound"), diagnosis["verdict"]
    return first in wanted, first


def judge_workload(model):
    """What a report must hold, and a line about it."""
    d = model["diagnosis"]
    parts, time_ns = d["breakdown"]["parts"], d["breakdown"]["ns"]
    changes = sum(len(f["changes"]) for f in d["findings"] or [])
    latency = (d["iterations"] or {}).get("p50_ns")
    ok = latency and abs(sum(p["ns"] for p in parts) - time_ns) == 0 and d["verdict"] != "not-enough-evidence" and (changes >= 2 or d["verdict"] in ("healthy", "gpu-bound"))
    shares = ", ".join(f"{p['name']} {p['share'] * 100:.0f}%" for p in d["breakdown"]["view"] if p["share"] >= 0.005)
    return bool(ok), f"p50 {(latency or 0) / 1e6:.2f} ms; {shares}; {changes} suggestions"


def measure(o, name, program, service):
    """One row of the table."""
    program.ready()
    twin = Program(name, service, "fixed") if o.twins and PROGRAMS.get(name, (None, ()))[1] and name not in ("server",) else None
    plain = rate(program, 1.5) if twin else None
    model = watched(o, program)
    program.answer()
    code = program.end()
    d = model["diagnosis"]
    f = (d["findings"] or [{}])[0]
    row = {"name": name, "code": code, "verdict": d["verdict"], "covered": d["breakdown"]["share"], "cost": f.get("share", 0.0), "title": f.get("title", ""), "headline": d["headline"]}
    row["ok"], row["said"] = judge_cause(name, d) if name in PROGRAMS else judge_workload(model)
    if twin:
        twin.ready()
        row["faster"] = rate(twin, 1.5) / plain
        twin.end()
    return row


def show(row):
    cells = f"{'ok  ' if row['ok'] and row['code'] == 0 else 'MISS'} {row['name']:18} {row['verdict']:20} {row['said']:20} {row['cost'] * 100:5.1f}%"
    faster = f" fixed: {row['faster']:.2f} x" if "faster" in row else ""
    harmed = "" if row["code"] == 0 else f" ENDED WITH {row['code']}"
    print(f"{cells}{faster}{harmed}  {row['title'] or row['headline']}", flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--bin", default="bin")
    p.add_argument("--out", default="build/gpu")
    p.add_argument("--only", default="")
    p.add_argument("--gpu", default="continuous", choices=("continuous", "windows"))
    p.add_argument("--seconds", type=int, default=4)
    p.add_argument("--twins", action="store_true")
    p.add_argument("--limit", type=float, default=3600)
    o = p.parse_args()
    o.bin = os.path.abspath(o.bin)
    os.makedirs(o.out, exist_ok=True)
    end, service = time.monotonic() + o.limit, Service()
    names = o.only.split(",") if o.only else list(PROGRAMS) + list(WORKLOADS)
    waiting, rows = [], []
    for i, name in enumerate(names):
        while len(waiting) < AHEAD and i + len(waiting) < len(names):
            waiting.append(Program(names[i + len(waiting)], service))
        program = waiting.pop(0)
        if time.monotonic() > end:
            print(f"out of time before {name}")
            break
        try:
            rows.append(measure(o, name, program, service))
            show(rows[-1])
        except (gpu_daemon.Harm, KeyError, BrokenPipeError) as problem:
            rows.append({"name": name, "ok": False, "code": program.end()})
            print(f"FAIL {name}: {problem!r}", flush=True)
    for program in waiting:
        program.end()
    planted = [r for r in rows if r["name"] in PROGRAMS]
    print(f"{sum(r['ok'] for r in planted)} of {len(planted)} programs right; {sum(r['ok'] for r in rows) - sum(r['ok'] for r in planted)} of {len(rows) - len(planted)} workloads")
    with open(f"{o.out}/diagnosis.json", "w") as f:
        json.dump(rows, f, indent=1)
    sys.exit(any(not r["ok"] or r["code"] != 0 for r in rows))


main()
