"""What the checks against a real GPU share: the workload, the daemon, and the client.

calls_check.py and cpu_check.py use it; the workload itself is decode.py.
"""

import atexit
import contextlib
import glob
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import threading
import time

SOCKET = "/tmp/inferscope-gpu-test.sock"

# Functions that launch a kernel, without version suffix: the driver's, and all
# that torch.profiler counts (it sees the runtime's call, or the driver's where
# there is no other).
LAUNCHES = ("cuLaunchKernel", "cuLaunchKernelEx", "cuLaunchCooperativeKernel")
TORCH_LAUNCHES = ("cudaLaunchKernel", "cudaLaunchKernelExC", "cudaLaunchCooperativeKernel") + LAUNCHES


def faults():
    """What the kernel and Python say of faults: address and module."""
    lines = subprocess.run(["dmesg"], capture_output=True, text=True).stdout.splitlines()
    return [x for x in lines if "segfault" in x or "trap" in x or "general protection" in x][-8:]


def start(command, **more):
    """Starts a process in a group of its own, which ends with this program at the latest: what stays would keep the
    GPU, and the pipe in which this program prints."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    process = subprocess.Popen(command, **{"process_group": 0, **more})
    atexit.register(end_group, process)
    return process


def end_group(process):
    """Kills what start started, and its children, which may outlive it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def tail(path, lines=40):
    """The last lines of a log."""
    with open(path, errors="replace") as log:
        return "".join(log.readlines()[-lines:])


def fault_library(out):
    """Builds what a program preloads (LD_PRELOAD) to say the address and the module of a fault in its log."""
    library = os.path.abspath(f"{out}/fault.so")
    include = os.path.dirname(os.path.abspath(__file__))
    source = '#include "fault.h"\n__attribute__((constructor)) static void show(void) { fault_show(); }\n'
    command = ["cc", "-O1", "-shared", "-fPIC", "-x", "c", "-o", library, "-", f"-I{include}"]
    subprocess.run(command, check=True, text=True, input=source)
    return library


def aftermath(process, log):
    """Says whether a process lives, the last lines of its log, and what the kernel says of faults."""
    code = process.poll()
    how = "lives" if code is None else f"ended with {code}"
    return f"the process {how}; its log ends:\n{tail(log)}\nfaults: " + ("\n".join(faults()) or "none in dmesg")


# Two-sided 95% of Student's t by degrees of freedom, from 1.
STUDENT = (
    12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13, 2.12, 2.11, 2.10, 2.09,
    2.09,
)


def interval(values):
    """The mean of values and half the width of its 95% confidence interval, which is infinite for one value."""
    n = len(values)
    mean = statistics.fmean(values) if n else math.nan
    if n < 2:
        return mean, math.inf
    return mean, STUDENT[min(n - 1, len(STUDENT)) - 1] * statistics.stdev(values) / math.sqrt(n)


def base(name):
    """Returns a function's name without its version suffix: cuLaunchKernel of cuLaunchKernel_ptsz."""
    return name.split("_")[0]


def launches_of_torch(calls):
    """Counts the launches in what decode.py's `count` answers, {name: calls}."""
    return sum(n for name, n in calls.items() if base(name) in TORCH_LAUNCHES)


PARTS = ("Pss:", "Pss_Anon:", "Pss_File:", "Pss_Shmem:")  # of /proc/PID/smaps_rollup


class Workload:
    """The decode process, driven over its stdin."""

    def __init__(self, device="cuda"):
        """Starts decode.py on device ("cuda" or "cpu") and waits until its model is warm."""
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "decode.py")
        self.process = subprocess.Popen(
            [sys.executable, script, device], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.pid = self._answer()["ready"]

    def _answer(self):
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the workload ended with code {self.process.wait()}: its standard error says why")
        return json.loads(line)

    def ask(self, command):
        """Sends one of decode.py's commands and returns its answer."""
        print(command, file=self.process.stdin, flush=True)
        return self._answer()

    def quit(self):
        """Ends the process and returns its exit code."""
        print("quit", file=self.process.stdin, flush=True)
        return self.process.wait(timeout=60)


class Daemon:
    """inferscoped on one process, from ready to stopped."""

    def __init__(self, binary, pid, log, *flags):
        """Starts the daemon and waits until it says that it is ready; log is a file's path."""
        self.log = open(log, "w+")
        self.began_ns = time.monotonic_ns()
        self.process = subprocess.Popen(
            [binary, "--pid", str(pid), "--socket", SOCKET, *flags], stderr=self.log, stdout=self.log
        )
        self.peak_mb, self.peak = 0.0, {}
        threading.Thread(target=self._follow, daemon=True).start()
        while "ready" not in open(log).read():
            if self.process.poll() is not None:
                raise SystemExit(f"inferscoped ended: {open(log).read()}")
            time.sleep(0.01)
        self.ready_s = (time.monotonic_ns() - self.began_ns) / 1e9

    def switch(self, times):
        """Turns all sources off, or on again (SIGUSR2), and waits until they are; times: how often that was asked
        for."""
        self.process.send_signal(signal.SIGUSR2)
        while open(self.log.name).read().count("switched all sources") < times:
            if self.process.poll() is not None:
                raise SystemExit(f"inferscoped ended: {open(self.log.name).read()}")
            time.sleep(0.005)

    def stats(self):
        """CPU seconds and resident MB (Pss) of the daemon and its helpers, now."""
        ticks = 0
        for pid in self._family():
            stat = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
            ticks += int(stat[11]) + int(stat[12])
        return ticks / os.sysconf("SC_CLK_TCK"), self._resident()

    def _family(self):
        pids = [self.process.pid]
        for path in glob.glob(f"/proc/{self.process.pid}/task/*/children"):
            try:
                pids += open(path).read().split()
            except OSError:  # the thread ended meanwhile
                pass
        return pids

    def memory(self):
        """MB of the daemon and its helper as the kernel shares them out (/proc/PID/smaps_rollup, proc(5)), each a dict.

        Pss is the whole: a physical page counts once, however often it is mapped. VmRSS counts
        the data of a BPF ring twice, because it is mapped twice in a row, and the program's own
        pages in each process. Pss_Anon is heap and stacks, Pss_File the program and the BPF rings,
        Pss_Shmem the agents' rings.
        """
        found = {}
        for role, pid in zip(("daemon", "helper"), self._family()):
            with open(f"/proc/{pid}/smaps_rollup") as lines:
                fields = (line.split() for line in lines)
                found[role] = {f[0][:-1]: int(f[1]) * 1024 / 1e6 for f in fields if f[0] in PARTS}
        return found

    def _resident(self):
        return sum(parts["Pss"] for parts in self.memory().values())

    def _follow(self):
        """Keeps the most memory that was seen in peak_mb, and what it was made of in peak."""
        while self.process.poll() is None:
            try:
                found = self.memory()
                total = sum(parts["Pss"] for parts in found.values())
                if total > self.peak_mb:
                    self.peak_mb, self.peak = total, found
            except (OSError, KeyError):  # a process or thread ended meanwhile
                pass
            time.sleep(0.1)

    def stop(self):
        """Ends the daemon as a service manager does; it must then end well."""
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(timeout=30)
        if code != 0:
            raise SystemExit(f"inferscoped ended with {code}: {open(self.log.name).read()}")


def report(bin_dir, pid, form, *flags):
    """The report of everything that the daemon holds about pid, or of the window that flags say."""
    return subprocess.run(
        [f"{bin_dir}/inferscope", "report", "--pid", str(pid), "--socket", SOCKET, "--format", form, *flags],
        check=True, capture_output=True, text=True,
    ).stdout


def print_checks(checks):
    """Prints (what, value, good) lines; good is None for a figure that nothing is asked of. Returns whether all are
    good."""
    for name, value, good in checks:
        mark = "    " if good is None else "ok  " if good else "FAIL"
        print(f"{mark}  {name:52} {value}")
    return all(good is not False for _, _, good in checks)
