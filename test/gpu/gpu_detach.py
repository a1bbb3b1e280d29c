"""The stage detach of the GPU check: a program is let go of (DELETE /v1/targets, `inferscope detach`) and watched
again, many times, by one daemon: how long that takes, how the last windows end, that nothing of ours runs in the
program then, and what it costs the program's threads."""

import time

import numpy

from gpu_daemon import Daemon, Harm
from gpu_soak import MANY_WINDOWS
from gpu_together import WaysOut
from gpu_workload import pace

PER_CYCLE = 3.0  # s that a detach and what is before it take, as a rule
ALONE = 4.0  # s without the daemon
WINDOW_TIMEOUT = 20.0  # s


def detach(check):
    for name in check.names:
        check.row(
            f"{name} let go of {check.cycles} times",
            PER_CYCLE * check.cycles + 20,
            lambda name=name: _detached(check, name),
        )


def _detached(check, name):
    took, failures, out = [], [], WaysOut()
    with check.workload(name) as w:
        begin = time.monotonic_ns()
        time.sleep(ALONE)
        alone = pace(w.iterations(begin, time.monotonic_ns()))
        begin = time.monotonic_ns()
        with Daemon(check.bin, w.pid, check.log(f"detach {name}"), "--gpu", "windows", *MANY_WINDOWS) as d:
            for i in range(check.cycles):
                if i:
                    d.ask("PUT", f"/v1/targets?pid={w.pid}")
                _window(d, w)
                since = time.monotonic()
                d.ask("DELETE", f"/v1/targets?pid={w.pid}")
                took.append(time.monotonic() - since)
                failures += [f"detach {i + 1}: {what}" for what in w.leftovers()]
                if not w.alive():
                    raise Harm(f"the target is dead after detach {i + 1}: {w.process.stderr.read()[-500:]}")
            during = pace(w.iterations(begin, time.monotonic_ns()))
        for line in d.said().splitlines():
            if "an agent is done with" in line:
                out.read(line)
        failures += w.harmed(check)
    if sum(out.ends.values()) != check.cycles or out.ends.keys() & {
        "later than the daemon",
        "by the agent, later than the daemon",
        "disabled",
    }:
        failures.append(f"of {check.cycles} agents it is said: {dict(out.ends)}")
    return {
        "s until it was out p50/max": f"{numpy.median(took):.2f}/{max(took):.2f}", **out.figures(),
        "largest ms alone/with windows and detaches": f"{alone['max']:.1f}/{during['max']:.1f}",
    }, failures


def _window(d, w):
    """Waits for a window that begins and ends in this attachment."""
    since = time.monotonic_ns()

    def ended():
        return any(
            v["from_ns"] > since and v["end"] != "open" and v["activity"]
            for v in d.recording("5s").gpu.get("windows") or []
        )

    d.wait("a window to end", ended, WINDOW_TIMEOUT)
