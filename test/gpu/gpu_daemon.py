"""The daemon from outside: start it on a process, ask its socket, read recordings. Test support of gpu_check.py."""

import json
import os
import subprocess
import time

import numpy

import recording

# struct event of bpf/event.h
EVENT = numpy.dtype(
    [
        ("ts", "<u8"), ("dur", "<u8"), ("pid", "<u4"), ("tid", "<u4"), ("func", "<u2"), ("kind", "u1"), ("flags", "u1"),
        ("ret", "<i4"), ("args", "<u8", (4,)),
    ]
)
CALL, KERNEL, COPY = 1, 7, 8
CORRELATED = 8
TIMEOUT = 60  # seconds, of anything but a measurement


class Harm(Exception):
    """Something went wrong that the check must report as a failure."""


class Recording:
    """A recording as the daemon streams it: meta (JSON) and events (numpy, unordered)."""

    def __init__(self, data):
        try:
            self.meta, events = recording.parse(data)
        except ValueError as e:
            raise Harm(str(e)) from e
        self.events = numpy.frombuffer(events, EVENT)
        self.gpu = self.meta.get("gpu") or {}

    def kernels(self):
        """Kernel events in order of start."""
        k = self.events[self.events["kind"] == KERNEL]
        return k[numpy.argsort(k["ts"], kind="stable")]

    def names(self):
        """Names of kernels; ret of a kernel event is an index + 1."""
        return [k["name"] for k in self.gpu.get("kernels") or []]

    def named(self, part):
        """Kernel events whose name contains part."""
        k = self.kernels()
        ids = [i + 1 for i, name in enumerate(self.names()) if part in name]
        return k[numpy.isin(k["ret"], ids)]

    def windows(self, pid):
        """Intervals [from, to] in which GPU activity of pid was recorded whole."""
        return [(w["from_ns"], w["to_ns"]) for w in self.gpu.get("windows") or [] if w["pid"] == pid and w["activity"]]

    def dropped(self):
        return sum(w.get("dropped", 0) for w in self.gpu.get("windows") or []) + sum(
            a.get("dropped_records", 0) for a in self.gpu.get("agents") or []
        )

    def losses(self):
        """What the daemon says was lost, beside records of the GPU: reason and count."""
        return {x["reason"]: x.get("count", 0) for x in self.meta.get("losses") or [] if x.get("count", 0)}

    def agent(self, pid):
        return next((a for a in self.gpu.get("agents") or [] if a["pid"] == pid), {})

    def correlated(self, kernels):
        """Share of the kernels whose launch call is in the recording, by correlation id."""
        if not len(kernels):
            return 0.0
        calls = self.events[(self.events["kind"] == CALL) & (self.events["flags"] & CORRELATED != 0)]
        ids = kernels["args"][:, 0].astype(numpy.uint32)
        return float(numpy.isin(ids, calls["ret"].astype(numpy.uint32)).mean())


class Daemon:
    """inferscoped on one process. Use as a context: it is stopped at the end, and must end well."""

    def __init__(self, bin_dir, pid, log, *flags, socket_path=None, trace_mb=1500):
        self.pid = pid
        self.socket = socket_path or f"/tmp/inferscope-gpu-check-{os.getpid()}-{pid}.sock"
        self.log_path = log
        self.began_ns = time.monotonic_ns()
        with open(log, "w") as out:
            self.process = subprocess.Popen(
                [
                    f"{bin_dir}/inferscoped", "--pid", str(pid), "--socket", self.socket, "--trace-size-mb",
                    str(trace_mb), *flags,
                ],
                stdout=out,
                stderr=out,
            )
        try:
            self.wait("inferscoped to be ready", lambda: "ready" in open(log).read())
        except BaseException:
            self.kill()
            raise
        self.ready_s = (time.monotonic_ns() - self.began_ns) / 1e9

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is None:
            self.stop()
        else:
            self.kill()

    def said(self):
        return open(self.log_path).read()

    def wait(self, what, ok, seconds=TIMEOUT):
        end = time.monotonic() + seconds
        while True:
            got = ok()
            if got:
                return got
            if self.process.poll() is not None:
                raise Harm(f"inferscoped ended with {self.process.returncode}:\n{self.said()[-2000:]}")
            if time.monotonic() > end:
                raise Harm(f"waited {seconds} s for {what}; inferscoped said:\n{self.said()[-2000:]}")
            time.sleep(0.02)

    def get(self, path, timeout=TIMEOUT):
        return self.ask("GET", path, timeout)

    def ask(self, method, path, timeout=TIMEOUT):
        try:
            return recording.request(self.socket, path, method, timeout)
        except RuntimeError as e:
            raise Harm(str(e)) from e

    def recording(self, last="120s"):
        return Recording(self.get(f"/v1/recording?pid={self.pid}&last={last}"))

    def agent(self):
        return self.recording("50ms").agent(self.pid)

    def status(self):
        """What `inferscope status` shows."""
        return json.loads(self.get("/v1/status"))

    def settled(self, seconds=TIMEOUT):
        """Waits until the agent runs or is refused, and returns its state as the recording has it."""
        last = {}

        def state():
            last.clear()
            last.update(self.agent())
            return dict(last) if last.get("state") in ("running", "refused") else None
        try:
            return self.wait("the agent to run", state, seconds)
        except Harm as e:
            raise Harm(
                f"{e}\nlast seen: the agent is {last.get('state', 'not there')}: {last.get('detail', '')}"
            ) from None

    def records(self, seconds=TIMEOUT):
        """Waits for the first kernel record, and returns the seconds from the daemon's start to it."""
        self.wait("a kernel record", lambda: len(self.recording("5s").kernels()), seconds)
        first = int(self.recording().kernels()["ts"][0])
        return (first - self.began_ns) / 1e9

    def cpu_s(self):
        """CPU seconds of the daemon so far."""
        f = open(f"/proc/{self.process.pid}/stat").read().rsplit(")", 1)[1].split()
        return (int(f[11]) + int(f[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self):
        """Ends the daemon as a service manager does, and notes the seconds it took."""
        began = time.monotonic()
        self.process.terminate()
        try:
            code = self.process.wait(TIMEOUT)
        except subprocess.TimeoutExpired:
            self.kill()
            raise Harm(f"inferscoped did not stop within {TIMEOUT} s:\n{self.said()[-2000:]}") from None
        if code:
            raise Harm(f"inferscoped ended with {code}:\n{self.said()[-2000:]}")
        self.stopped_s = time.monotonic() - began

    def kill(self):
        self.process.kill()
        self.process.wait()
