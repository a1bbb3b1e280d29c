"""Does a report name the cause that was planted? PyTorch programs on a real GPU, as a table.

Usage: diagnosis_check.py --bin BIN --out DIR [--only NAME,...|fixes] [--gpu windows|continuous|none] [--seconds S] [--twins] [--record-twins] [--again] [--limit S]

Each program of programs/causes.py runs under the daemon, and the first finding of its report is compared with what was planted; healthy
ones must not be accused. Those of programs/workloads.py must state a latency, a breakdown that sums to it, a class and two suggestions.
With --twins the fixed program runs too, in turns with the first one and without the daemon, half of them before it is recorded and half after: how much faster it is stands beside what the recording
predicts of the finding and of the very change (twins.py), in DIR/twins.md, with the programs of earlier calls on the same DIR. --only fixes takes the programs
that have a twin. Recordings (NAME.isc.zip) and reports are left in DIR. Needs root, a GPU, torch and transformers; --gpu none tries it out without a GPU, on
programs that need none (python, regex, sleep, ...). The exit code is 1 where a check of a diagnosis fails; predictions that miss do not count.
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time

import gpu_daemon
import twins
from programs.causes import PROGRAMS
from programs.workloads import WORKLOADS

PATIENT = 300  # seconds that a program goes on while it is watched, unless it is told to stop
SETTLED = 30  # seconds for the agent to come in; it comes with a call, and a server that is idle makes few
UNWINDING = 1.0  # seconds after that, for the tables of the unwinder


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
        self.name, self.crowded, self.hogs = name, name == "one-cpu" and "fixed" not in words, []
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
        if self.crowded:
            burn = f"import os; os.sched_setaffinity(0, {{{self.cpu}}})\nwhile True: pass"
            self.hogs = [subprocess.Popen([sys.executable, "-c", burn]) for _ in range(2)]

    def send(self, seconds, warm=0.0):
        print("run", seconds, warm, file=self.process.stdin, flush=True)

    def stop(self):
        """Ends a run early, and returns its answer."""
        self.process.send_signal(signal.SIGUSR1)
        return self.answer()

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


def client(o, *words):
    """What the client prints."""
    run = subprocess.run([f"{o.bin}/inferscope", *words], capture_output=True, text=True)
    if run.returncode:
        raise gpu_daemon.Harm(f"inferscope {' '.join(words)}: {run.stderr}")
    return run.stdout


def recorded(o, program, name, meanwhile):
    """Records a program that runs under the daemon. Returns the recording's path, and the program's pace meanwhile."""
    path = f"{o.out}/{name}.isc"
    program.send(PATIENT)
    gpu = () if o.gpu == "none" else ("--gpu", o.gpu)
    with gpu_daemon.Daemon(o.bin, program.pid, f"{o.out}/{name}.log", *gpu) as d:
        meanwhile()  # starting other programs is over before anything is recorded
        if o.gpu != "none":
            d.settled(SETTLED)
        time.sleep(UNWINDING)
        continuous = ("--gpu", "continuous") if o.gpu == "continuous" else ()
        client(o, "record", "--pid", str(program.pid), "--socket", d.socket, "--for", f"{o.seconds}s", "--force", "-o", path, *continuous)
    a = program.stop()
    client(o, "pack", path, "--force")
    shutil.rmtree(path)
    return path + ".zip", a["steps"] / a["seconds"]


def analysed(o, name, path):
    """The report of a recording as JSON, kept in other forms too, and what the fix would bring."""
    words = {"md": ("analyze", path, "-f", "markdown"), "txt": ("analyze", path, "-f", "text", "--full"), "json": ("analyze", path, "-f", "json"),
             "whatif.json": ("whatif", path, "--json", *twins.FIXES.get(name, ()))}
    out = {}
    for ending, w in words.items():
        out[ending] = client(o, *w)
        with open(f"{o.out}/{name}.{ending}", "w") as f:
            f.write(out[ending])
    return json.loads(out["json"]), json.loads(out["whatif.json"])


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


class Pair:
    """A program, and its fixed twin where there is one and it is asked for."""

    def __init__(self, o, name, service):
        self.name, self.is_ready = name, False
        self.program = Program(name, service)
        self.twin = Program(name, service, "fixed") if o.twins and name in twins.FIXES else None

    def ready(self):
        if not self.is_ready:
            for p in filter(None, (self.program, self.twin)):
                p.ready()
            self.is_ready = True

    def end(self):
        if self.twin:
            self.twin.end()
        return self.program.end()


def measure(o, pair, meanwhile):
    """One row of the table."""
    name = pair.name
    pair.ready()
    row = {"name": name, "planted": (PROGRAMS.get(name, (None, ()))[1] or ("-",))[0]}
    pairs = twins.alternate(pair.program, pair.twin) if pair.twin else []
    path, watched = recorded(o, pair.program, name, meanwhile)
    if pair.twin:
        pairs += twins.alternate(pair.program, pair.twin)
    fixed = recorded(o, pair.twin, name + "-fixed", lambda: None) if pair.twin and o.record_twins else None
    row["code"] = pair.end()
    model, answer = analysed(o, name, path)
    d = model["diagnosis"]
    f = (d["findings"] or [{}])[0]
    row |= {"verdict": d["verdict"], "covered": d["breakdown"]["share"], "cost": f.get("share", 0.0), "title": f.get("title", ""), "headline": d["headline"]}
    row["ok"], row["said"] = judge_cause(name, d) if name in PROGRAMS else judge_workload(model)
    if pairs:
        row |= twins.predicted(d, answer, PROGRAMS[name][1])
        row |= {"measured": twins.measured(pairs), "turns": pairs, "watched": watched / statistics.median(a for a, _ in pairs)}
    if fixed:
        after = json.loads(client(o, "analyze", fixed[0], "-f", "json"))
        row |= {"watched_twin": fixed[1] / statistics.median(b for _, b in pairs), "lengthened": twins.lengthened(kernels(model), kernels(after))}
    return row


def kernels(model):
    """The rows of a report's table of kernels."""
    return ((model.get("gpu") or {}).get("kernels") or {}).get("rows")


def show(row):
    cells = f"{'ok  ' if row['ok'] and row['code'] == 0 else 'MISS'} {row['name']:18} {row['verdict']:20} {row['said']:20} {row['cost'] * 100:5.1f}%"
    fixed = f" fixed: {row['measured']['speedup']:.2f} x, predicted {twins.figure(row['fix'])}" if "measured" in row else ""
    harmed = "" if row["code"] == 0 else f" ENDED WITH {row['code']}"
    print(f"{cells}{fixed}{harmed}  {row['title'] or row['headline']}", flush=True)


def chosen(only):
    if only == "fixes":
        return list(twins.FIXES)
    return only.split(",") if only else list(PROGRAMS) + list(WORKLOADS)


def run_all(o, names):
    """Measures one program after the other; the next one starts while the daemon comes to the one before."""
    end, service, rows, pairs = time.monotonic() + o.limit, Service(), [], {}

    def start(i):
        if i < len(names) and names[i] not in pairs:
            pairs[names[i]] = Pair(o, names[i], service)
        if i < len(names):
            pairs[names[i]].ready()

    for i, name in enumerate(names):
        if time.monotonic() > end:
            print(f"out of time before {name}")
            break
        row = {"name": name, "planted": (PROGRAMS.get(name, (None, ()))[1] or ("-",))[0], "ok": False}
        try:
            start(i)
            row = measure(o, pairs[name], lambda: start(i + 1))
            show(row)
        except (gpu_daemon.Harm, KeyError, BrokenPipeError, json.JSONDecodeError) as problem:
            row |= {"code": pairs[name].end(), "problem": repr(problem)}
            print(f"FAIL {name}: {problem!r}", flush=True)
        rows.append(row)
    for name in names[len(rows):]:
        if name in pairs:
            pairs[name].end()
    return rows


def again(o):
    """Predicts anew from the recordings of an earlier call; what was measured stays."""
    with open(f"{o.out}/twins.json") as f:
        rows = json.load(f)
    for row in rows:
        if "measured" in row:
            model, answer = analysed(o, row["name"], f"{o.out}/{row['name']}.isc.zip")
            row |= twins.predicted(model["diagnosis"], answer, PROGRAMS[row["name"]][1])
    print(twins.keep(o.out, rows, list(twins.FIXES)))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--bin", default="bin")
    p.add_argument("--out", default="build/gpu")
    p.add_argument("--only", default="")
    p.add_argument("--gpu", default="continuous", choices=("continuous", "windows", "none"))
    p.add_argument("--seconds", type=int, default=4)
    p.add_argument("--twins", action="store_true")
    p.add_argument("--record-twins", action="store_true", help="record the twins too, to see how much longer their kernels take")
    p.add_argument("--again", action="store_true", help="predict anew from the recordings in DIR, and run nothing")
    p.add_argument("--limit", type=float, default=3600)
    o = p.parse_args()
    o.bin = os.path.abspath(o.bin)
    os.makedirs(o.out, exist_ok=True)
    if o.again:
        again(o)
        return
    rows = run_all(o, chosen(o.only))
    planted = [r for r in rows if r["name"] in PROGRAMS]
    print(f"{sum(r['ok'] for r in planted)} of {len(planted)} programs right; {sum(r['ok'] for r in rows) - sum(r['ok'] for r in planted)} of {len(rows) - len(planted)} workloads")
    with open(f"{o.out}/diagnosis.json", "w") as f:
        json.dump(rows, f, indent=1)
    if o.twins:
        print("\n" + twins.keep(o.out, rows, list(twins.FIXES)))
    sys.exit(any(not r["ok"] or r["code"] != 0 for r in rows))


main()
