"""Does a report name the cause that was planted? PyTorch programs on a real GPU, as a table.

Usage: diagnosis_check.py --bin BIN --out DIR [--only NAME,...|fixes|planted|heldout|blind|blind2|...|blind6]
    [--gpu windows|continuous|none] [--seconds S] [--twins] [--rounds N] [--record-twins] [--again] [--limit S]

Each program of programs/causes.py, planted.py, heldout.py, blind.py and blind2.py to blind6.py runs under the daemon,
and the first finding of its report is compared with what was planted; healthy ones must not be accused. Those of
programs/workloads.py must state a latency, a breakdown that sums to it, a class and two suggestions.

With --twins the fixed program runs too, in turns with the first one and without the daemon, half of them before it is
recorded and half after: how much faster it is stands beside what the recording predicts of the finding and of the very
change (twins.py), in DIR/twins.md, with the programs of earlier calls on the same DIR. --only fixes takes the programs
that have a twin, --only planted, heldout, blind or blind2 to blind6 those of that file. The last line holds all programs
of the call against the goals. A program whose twin is hardly faster on this machine is void, and counts for nothing.

Calls at the same time need CPUs and a GPU of their own each (taskset, CUDA_VISIBLE_DEVICES); they may share DIR if
their programs differ. After --limit seconds no further program starts: with --rounds 1 each takes some 20 s. While one
is measured, the next one imports torch, and the report of the one before is made, both at the lowest priority.

Attachments and programs that died are counted, with what the kernel says of faults. Recordings (NAME.isc.zip) and
reports are left in DIR. Needs root, a GPU and torch; transformers where it is there; --gpu none tries it out without a
GPU, on programs that need none (python, regex, sleep, ...). The exit code is 1 where a check of a diagnosis fails;
predictions that miss do not count.
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
from concurrent.futures import ThreadPoolExecutor

import common
import gpu_daemon
import twins
from programs.blind import BLIND
from programs.blind2 import BLIND2
from programs.blind3 import BLIND3
from programs.blind4 import BLIND4
from programs.blind5 import BLIND5
from programs.blind6 import BLIND6
from programs.causes import PROGRAMS as CAUSES
from programs.heldout import HELD_OUT
from programs.planted import PLANTED
from programs.workloads import WORKLOADS

PROGRAMS = CAUSES | PLANTED | HELD_OUT | BLIND | BLIND2 | BLIND3 | BLIND4 | BLIND5 | BLIND6
# What --only takes in place of names.
SETS = {
    "fixes": twins.FIXES,
    "planted": PLANTED,
    "heldout": HELD_OUT,
    "blind": BLIND,
    "blind2": BLIND2,
    "blind3": BLIND3,
    "blind4": BLIND4,
    "blind5": BLIND5,
    "blind6": BLIND6,
}
# CPUs that a program shares with so many others.
CROWDS = {"one-cpu": (1, 2), "crowded-pair": (2, 4), "noisy-neighbours": (3, 6)}

WATCH_TIMEOUT = 300  # seconds after which a watched program that is not told to stop ends by itself
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


class Skipped(Exception):
    """A program says that it cannot run on this machine."""


def background():
    """Keeps a child process from disturbing what is measured."""
    os.nice(19)


class Program:
    """A program of `programs`, driven over its stdin. It imports torch at once, and uses the GPU from ready on."""

    def __init__(self, name, service, log, *words):
        self.name, self.hogs = name, []
        cpus, self.neighbours = CROWDS.get(name, (1, 0))
        self.cpus, self.begun = sorted(os.sched_getaffinity(0))[-cpus:], False
        if "fixed" in words:
            self.neighbours = 0
        port = free_port()
        env = dict(
            os.environ,
            INFERSCOPE_SERVICE=service.address,
            INFERSCOPE_PORT=str(port),
            INFERSCOPE_CPUS=",".join(map(str, self.cpus)),
            PYTHONUNBUFFERED="1",
        )
        self.log = log
        with open(log, "w") as err:
            self.process = common.start(
                [sys.executable, "-m", "programs", name, *words, "later"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=err, text=True, env=env,
                cwd=os.path.dirname(os.path.abspath(__file__)), preexec_fn=background,
            )
        self.pid = self.process.pid
        self.port = port

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            raise gpu_daemon.Harm(
                f"{self.name} ended with {self.process.wait()}: {common.aftermath(self.process, self.log)}"
            )
        return json.loads(line)

    def begin(self):
        if not self.begun:
            self.begun = True
            print("begin", file=self.process.stdin, flush=True)
            if self.name == "server":
                ask_now_and_then(self.port)

    def ready(self):
        self.begin()
        said = self.answer()
        if "skip" in said:
            raise Skipped(said["skip"])
        for i in range(self.neighbours):
            burn = f"import os; os.sched_setaffinity(0, {{{self.cpus[i % len(self.cpus)]}}})\nwhile True: pass"
            self.hogs.append(common.start([sys.executable, "-c", burn], stdout=subprocess.DEVNULL))

    def send(self, seconds, warm=0.0):
        print("run", seconds, warm, file=self.process.stdin, flush=True)

    def stop(self):
        """Ends a run early, and returns its answer."""
        self.process.send_signal(signal.SIGUSR1)
        return self.answer()

    def end(self):
        for h in self.hogs:
            common.end_group(h)
        with contextlib.suppress(OSError):
            print("quit", file=self.process.stdin, flush=True)
        try:
            if not self.begun:
                common.end_group(self.process)
            return self.process.wait(20)
        except subprocess.TimeoutExpired:
            common.end_group(self.process)
            return None
        finally:
            for level in ("", "cpu/"):
                with contextlib.suppress(OSError):
                    os.rmdir(f"/sys/fs/cgroup/{level}inferscope-quota-{self.pid}")


def client(o, *words):
    """What the client prints."""
    run = subprocess.run(
        [f"{o.bin}/inferscope", *words],
        capture_output=True,
        text=True,
        preexec_fn=background if words[0] in ("analyze", "whatif") else None,
    )
    if run.returncode and not (words[0] == "whatif" and run.stdout):  # it answers, and says that nothing has the name
        raise gpu_daemon.Harm(f"inferscope {' '.join(words)}: {run.stderr}")
    return run.stdout


def recorded(o, program, name):
    """Records a program that runs under the daemon. Returns the recording's path, and the program's pace meanwhile."""
    path = f"{o.out}/{name}.isc"
    program.send(WATCH_TIMEOUT)
    gpu = () if o.gpu == "none" else ("--gpu", o.gpu)
    with gpu_daemon.Daemon(o.bin, program.pid, f"{o.out}/{name}.log", *gpu) as d:
        if o.gpu != "none":
            d.settled(SETTLED)
        time.sleep(UNWINDING)
        continuous = ("--gpu", "continuous") if o.gpu == "continuous" else ()
        client(
            o, "record", "--pid", str(program.pid), "--socket", d.socket, "--for", f"{o.seconds}s", "--force", "-o",
            path, *continuous,
        )
    a = program.stop()
    client(o, "pack", path, "--force")
    shutil.rmtree(path)
    return path + ".zip", a["steps"] / a["seconds"]


def analysed(o, name, path):
    """The report of a recording as JSON, kept in other forms too, and what the fix would bring."""
    words = {
        "md": ("analyze", path, "-f", "markdown"),
        "txt": ("analyze", path, "-f", "text", "--full"),
        "json": ("analyze", path, "-f", "json"),
        "whatif.json": ("whatif", path, "--json", *twins.FIXES.get(name, ())),
    }
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
    ok = (
        latency
        and abs(sum(p["ns"] for p in parts) - time_ns) == 0
        and d["verdict"] != "not-enough-evidence"
        and (changes >= 2 or d["verdict"] in ("healthy", "gpu-bound"))
    )
    shares = ", ".join(f"{p['name']} {p['share'] * 100:.0f}%" for p in d["breakdown"]["view"] if p["share"] >= 0.005)
    return bool(ok), f"p50 {(latency or 0) / 1e6:.2f} ms; {shares}; {changes} suggestions"


class Pair:
    """A program, and its fixed twin where there is one and it is asked for."""

    def __init__(self, o, name, service):
        self.name, self.is_ready = name, False
        log = os.path.join(os.path.abspath(o.out), name)
        self.program = Program(name, service, f"{log}-program.log")
        self.twin = Program(name, service, f"{log}-twin.log", "fixed") if o.twins and name in twins.FIXES else None

    def ready(self):
        if not self.is_ready:
            both = list(filter(None, (self.program, self.twin)))
            for p in both:
                p.begin()
            for p in both:
                p.ready()
            self.is_ready = True

    def end(self):
        if self.twin:
            self.twin.end()
        return self.program.end()


def measure(o, pair):
    """Runs and records a program and its twin. Returns what is known without the recording, the recording, and the
    twin's."""
    name = pair.name
    pair.ready()
    row = new_row(name)
    pairs = twins.alternate(pair.program, pair.twin, o.rounds) if pair.twin else []
    path, watched = recorded(o, pair.program, name)
    if pair.twin:
        pairs += twins.alternate(pair.program, pair.twin, o.rounds)
    fixed = recorded(o, pair.twin, name + "-fixed") if pair.twin and o.record_twins else None
    row["code"] = pair.end()
    if pairs:
        row |= {
            "measured": twins.measured(pairs),
            "turns": pairs,
            "watched": watched / statistics.median(a for a, _ in pairs),
        }
    return row, path, fixed


def new_row(name):
    return {"name": name, "planted": (PROGRAMS.get(name, (None, ()))[1] or ("-",))[0], "ok": False, "code": 0}


def judge(o, row, path, fixed):
    """Adds to a row what the recording says."""
    name = row["name"]
    model, answer = analysed(o, name, path)
    d = model["diagnosis"]
    f = (d["findings"] or [{}])[0]
    row |= {
        "verdict": d["verdict"],
        "covered": d["breakdown"]["share"],
        "cost": f.get("share", 0.0),
        "title": f.get("title", ""),
        "headline": d["headline"],
    }
    row["ok"], row["said"] = judge_cause(name, d) if name in PROGRAMS else judge_workload(model)
    if "measured" in row:
        row |= twins.predicted(d, answer, PROGRAMS[name][1])
    if fixed:
        after = json.loads(client(o, "analyze", fixed[0], "-f", "json"))
        row |= {
            "watched_twin": fixed[1] / statistics.median(b for _, b in row["turns"]),
            "lengthened": twins.lengthened(kernels(model), kernels(after)),
        }
    return row


def kernels(model):
    """The rows of a report's table of kernels."""
    return ((model.get("gpu") or {}).get("kernels") or {}).get("rows")


def show(row):
    """Prints a row: named first or not, what was measured of the twin, what was predicted of it, and whether the
    interval holds it."""
    good = row["ok"] and row["code"] == 0
    cells = (
        f"{'ok  ' if good else 'MISS'} {row['name']:18} {row['verdict']:20} {row['said']:20} {row['cost'] * 100:5.1f}%"
    )
    fixed = ""
    if "measured" in row:
        fix, m = row["fix"], row["measured"]
        fixed = f" fixed: {m['speedup']:.2f}x ({m['low']:.2f} to {m['high']:.2f}), predicted {twins.figure(fix)}"
        if twins.void(row):
            fixed += " void"
        elif fix:
            inside = "inside" if twins.inside(fix, row) else "OUTSIDE"
            fixed += f" {'near' if twins.near(fix, row) else 'OFF'} {inside} +-{twins.width(fix):.0%}"
        fixed += f"; finding: place {row['place'] or '-'}, {twins.figure(row['gain'])}"
        fixed += f"; pace while recorded {row['watched']:.0%};"
    harmed = "" if row["code"] == 0 else f" ENDED WITH {row['code']}"
    print(f"{cells}{fixed}{harmed}  {row['title'] or row['headline']}", flush=True)


def chosen(only):
    if only in SETS:
        return list(SETS[only])
    return only.split(",") if only else list(PROGRAMS) + list(WORKLOADS)


PROBLEMS = (gpu_daemon.Harm, KeyError, BrokenPipeError, json.JSONDecodeError)


def failed(row, problem):
    print(f"FAIL {row['name']}: {problem!r}", flush=True)
    return row | {"ok": False, "problem": repr(problem)}


def judged(o, *what):
    """Judges a recording and shows the row."""
    try:
        row = judge(o, *what)
        show(row)
        return row
    except PROBLEMS as problem:
        return failed(what[0], problem)


def run_all(o, names):
    """Measures one program after the other. The next one imports torch meanwhile, and recordings are analysed while the
    next ones are made."""
    end, service, rows, pairs = time.monotonic() + o.limit, Service(), [], {}
    with ThreadPoolExecutor(1) as analyst:
        for i, name in enumerate(names):
            if time.monotonic() > end:
                print(f"out of time before {name}")
                break
            for n in names[i:i + 2]:
                pairs[n] = pairs.get(n) or Pair(o, n, service)
            try:
                rows.append(analyst.submit(judged, o, *measure(o, pairs[name])))
            except Skipped as why:
                pairs[name].end()
                print(f"skip {name}: {why}", flush=True)
                rows.append(new_row(name) | {"skipped": str(why), "ok": True})
            except PROBLEMS as problem:
                rows.append(failed(new_row(name) | {"code": pairs[name].end()}, problem))
        for name in names[len(rows):]:
            if name in pairs:
                pairs[name].end()
        return [r if isinstance(r, dict) else r.result() for r in rows]


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
    p.add_argument(
        "--record-twins", action="store_true", help="record the twins too, to see how much longer their kernels take"
    )
    p.add_argument("--again", action="store_true", help="predict anew from the recordings in DIR, and run nothing")
    p.add_argument(
        "--rounds",
        type=int,
        default=twins.ROUNDS,
        help="turns of program, twin, twin, program before the recording, and after it",
    )
    p.add_argument("--limit", type=float, default=3600)
    o = p.parse_args()
    o.bin = os.path.abspath(o.bin)
    os.makedirs(o.out, exist_ok=True)
    if o.again:
        again(o)
        return
    rows = run_all(o, chosen(o.only))
    attached = [r for r in rows if "skipped" not in r]
    dead = [r["name"] for r in attached if r["code"] != 0]
    print(f"attachments {len(attached)}, deaths {len(dead)} {' '.join(dead)}")
    if dead:
        print("\n".join(common.faults()))
    planted = [r for r in rows if r["name"] in PROGRAMS]
    print(
        f"{sum(r['ok'] for r in planted)} of {len(planted)} programs right; "
        f"{sum(r['ok'] for r in rows) - sum(r['ok'] for r in planted)} of {len(rows) - len(planted)} workloads"
    )
    with open(f"{o.out}/diagnosis.json", "w") as f:
        json.dump(rows, f, indent=1)
    if o.twins:
        print("\n" + twins.keep(o.out, [r for r in rows if "skipped" not in r], list(twins.FIXES)))
        print("goals: " + twins.goals(rows)[0])
    sys.exit(any(not r["ok"] or r["code"] != 0 for r in rows))


main()
