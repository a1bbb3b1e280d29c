"""The workloads of the GPU check: start one, command it, and read what its iterations took. Test support of
gpu_check.py."""

import collections
import json
import mmap
import os
import select
import shutil
import struct
import subprocess
import sys
import time

import numpy

from gpu_daemon import TIMEOUT, Harm

HERE = os.path.dirname(os.path.abspath(__file__))
TORCH = os.path.join(HERE, "workloads", "torch_decode.py")
# Name: kernels an iteration makes of which thread; None: as many as torch.profiler counts.
CPP = {
    "plain": 200, "graphs": 96, "streams": 6, "multi": 20, "graph_threads": 96, "graph_mixed": None, "graph_rare": None,
    "graph_born": None, "graph_ahead": 96, "graph_capture": 8, "graph_prepare": None, "graph_beside": None,
    "churn": None,
}
NAMES = ("plain", "graphs", "streams", "torch-eager", "torch-graph")  # the others are asked for by their stages
PAGE = 4096
EXIT_TIMEOUT = 10  # s, of a workload that need not end by itself
AGENT_EXIT_TIMEOUT = 15.0  # s, of an agent that exits late
TURN = "wait for their turn to leave CUPTI"  # the daemon's word for those that do


class Workload:
    """A running workload. Use as a context: it is ended, and must end well."""

    def __init__(self, name, cpp_dir, stats_dir="/dev/shm", before=(), env=None, suffix=""):
        self.name, self.cpp = name, name in CPP
        self.stats = f"{stats_dir}/inferscope-gpu-check-{os.getpid()}-{name}{suffix}"
        command = [f"{cpp_dir}/{name}"] if self.cpp else [sys.executable, TORCH, "--mode", name.removeprefix("torch-")]
        self.process = subprocess.Popen(
            [*before, *command, "--stats", self.stats],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=env,
        )
        self.buffer, self.ended, self.hung, self.leaving_s = b"", None, False, 0.0
        ready = self.answer(180)
        self.pid, self.threads = ready["ready"], ready["threads"]
        self.times = [self._map(i) for i in range(self.threads)]

    def _map(self, i):
        with open(self.stats + (f".{i}" if i else ""), "rb") as f:
            return mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        try:
            if kind is None and self.ended is None:
                self.quit()
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()
            for i in range(self.threads):
                try:
                    os.unlink(self.stats + (f".{i}" if i else ""))
                except FileNotFoundError:
                    pass

    def answer(self, seconds=TIMEOUT):
        """The next line of JSON."""
        end = time.monotonic() + seconds
        while b"\n" not in self.buffer:
            if not select.select([self.process.stdout], [], [], max(0, end - time.monotonic()))[0]:
                raise Harm(f"{self.name} said nothing for {seconds} s")
            got = os.read(self.process.stdout.fileno(), 1 << 16)
            if not got:
                raise Harm(
                    f"{self.name} ended with {self.process.wait()}: "
                    f"{self.process.stderr.read()[-1000:].decode(errors='replace')}"
                )
            self.buffer += got
        line, self.buffer = self.buffer.split(b"\n", 1)
        return json.loads(line) if line.startswith(b"{") else self.answer(seconds)

    def ask(self, command, seconds=TIMEOUT):
        try:
            self.process.stdin.write(command.encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # answer says how it ended
        return self.answer(seconds)

    def quit(self, must_exit=True):
        """Ends it; returns what it says of itself. Where it need not exit by itself, it is killed after a while: hung
        says so."""
        if self.process.poll() is not None:
            raise Harm(
                f"{self.name} had ended with {self.process.returncode}: "
                f"{self.process.stderr.read()[-1000:].decode(errors='replace')}"
            )
        end = self.ask("quit")
        try:
            code = self.process.wait(TIMEOUT if must_exit else EXIT_TIMEOUT)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            if must_exit:
                raise Harm(f"{self.name} did not exit within {TIMEOUT} s") from None
            self.ended, self.hung = end, True
            return end
        if code:
            raise Harm(f"{self.name} ended with {code}: {self.process.stderr.read()[-1000:].decode(errors='replace')}")
        self.ended = end
        return end

    def alive(self):
        return self.process.poll() is None

    def iterations(self, begin=0, end=1 << 63):
        """[begin, end] in ns of the iterations wholly between two times, of each thread."""
        out = []
        for m in self.times:
            count, capacity = struct.unpack_from("<Q", m, 8)[0], struct.unpack_from("<Q", m, 40)[0]
            t = numpy.frombuffer(m, "<u8", 2 * min(count, capacity), PAGE).reshape(-1, 2)
            lo, hi = numpy.searchsorted(t[:, 0], begin), numpy.searchsorted(t[:, 1], end, "right")
            out.append(t[lo:max(lo, hi)].copy())
        return out

    def footprint(self):
        """What the process holds: a leak shows as growth."""
        base = f"/proc/{self.pid}"
        status = dict(line.split(":", 1) for line in open(f"{base}/status"))
        maps = open(f"{base}/maps").read().splitlines()
        return {
            "fds": len(os.listdir(f"{base}/fd")), "maps": len(maps), "threads": int(status["Threads"]),
            # Without shared memory: the file of what the iterations took grows by itself.
            "rss_mb": (int(status["RssAnon"].split()[0]) + int(status["RssFile"].split()[0])) * 1024 / 1e6,
            "agent_maps": sum("inferscope" in line for line in maps),
            "agent_threads": sum(_comm(f"{base}/task/{t}") == "inferscope" for t in os.listdir(f"{base}/task")),
        }

    def memory(self):
        """Resident kB by the name of the mapping, to see whose a growth is. Unnamed ones count together, but for those
        of 8 MB and more: stacks and arenas of threads are of that size."""
        sizes, name = collections.Counter(), ""
        with open(f"/proc/{self.pid}/smaps") as lines:
            for line in lines:
                words = line.split()
                if not words[0].endswith(":"):
                    begin, end = (int(x, 16) for x in words[0].split("-"))
                    name = (
                        words[5].rsplit("/", 1)[-1]
                        if len(words) > 5
                        else "unnamed, large"
                        if end - begin >= 8 << 20
                        else "unnamed"
                    )
                elif words[0] == "Rss:":
                    sizes[name] += int(words[1])
        return sizes

    def left(self):
        """Waits for the agent to go, and says whether it has: CUPTI may keep its thread for longer than the daemon
        waits."""
        began = time.monotonic()
        while self.alive() and self.footprint()["agent_threads"]:
            waited = time.monotonic() - began
            self.leaving_s = max(self.leaving_s, waited)
            if waited > AGENT_EXIT_TIMEOUT:
                return False
            time.sleep(0.02)
        return True

    def leftovers(self, said=""):
        """What the daemon left in the target that must not stay: code may be mapped, nothing may run. An agent whose
        own thread waits for its turn to leave CUPTI, as the daemon said then, slows nobody: leaving tells how long it
        was there."""
        return [] if self.left() or TURN in said else ["a thread of the agent is still there"]

    def leaving(self):
        """The figure of it, where there is something to say."""
        if self.leaving_s < 0.2:
            return {}
        return {
            "the agent was gone after s": f"{self.leaving_s:.1f}"
            if self.leaving_s < AGENT_EXIT_TIMEOUT
            else f"not within {AGENT_EXIT_TIMEOUT:.0f}"
        }

    def harmed(self, check, must_exit=True):
        """Ends it, and says what of its own end should not be."""
        end = self.quit(must_exit)
        if self.cpp and not check.simulated and end["executed"] != end["kernels"]:
            return [f"the device ran {end['executed']} kernels, the program launched {end['kernels']}"]
        return []


def grown(before, after, least=64):
    """What grew most, in kB."""
    more = collections.Counter({k: n - before.get(k, 0) for k, n in after.items()})
    return " ".join(f"{k}:{n:+.0f}" for k, n in more.most_common(5) if n > least) or f"none by more than {least} kB"


def _comm(task):
    try:
        return open(f"{task}/comm").read().strip()
    except OSError:
        return ""


def pace(iterations):
    """What iterations of all threads took: mean ms, median ms, largest ms, and the largest gap of a thread's own work
    in ms (its longest iteration, or pause between two)."""
    took = numpy.concatenate([s[:, 1] - s[:, 0] for s in iterations]) / 1e6
    if not len(took):
        return {"n": 0, "mean": 0.0, "period": 0.0, "median": 0.0, "max": 0.0}
    periods, gap = [], float(took.max())
    for s in iterations:
        if len(s) > 1:
            periods.append((s[-1, 1] - s[0, 0]) / 1e6 / len(s))
            gap = max(gap, float((s[1:, 0] - s[:-1, 1]).max()) / 1e6)
    return {
        "n": len(took),
        "mean": float(took.mean()),
        "period": float(numpy.mean(periods)) if periods else float(took.mean()),
        "median": float(numpy.median(took)),
        "max": gap,
    }


def available(cpp_dir):
    """Names of the workloads that can run here, and why the others cannot."""
    names, missing = [], {}
    for name in NAMES:
        if name in CPP and not os.path.exists(f"{cpp_dir}/{name}"):
            missing[name] = f"{cpp_dir}/{name} is not built: scripts/gpu-workloads.sh"
        elif name not in CPP and not _has_torch():
            missing[name] = f"{sys.executable} has no torch with CUDA"
        else:
            names.append(name)
    return names, missing


def _has_torch():
    if shutil.which("nvidia-smi") is None:
        return False
    return (
        subprocess.run(
            [sys.executable, "-c", "import torch; assert torch.cuda.is_available()"], capture_output=True, timeout=120
        ).returncode
        == 0
    )
