"""The stage threads of the GPU check: programs of several threads, mostly with CUDA graphs, which a finalize in the
wrong thread kills.

graph_threads   several threads launch graphs: nothing may be recorded, and the daemon must say why
graph_mixed     one launches graphs, others launch and wait for kernels: windows must end in calls of the first
graph_rare      one launches a graph now and then, as a server with each request, beside others: the same, though few
                windows have a graph
graph_born      threads are made for one launch of a graph each, beside others: nothing may be recorded either
graph_ahead     one launches graphs, and has the next on the device when it waits for the last
graph_capture   one captures graphs nearly all of the time, which calls of other threads may spoil
graph_prepare   one captures and launches none, another launches kernels, and nobody waits: windows must end in a call
                of the agent's own
graph_beside    one captures, one replays graphs, one launches kernels: windows must end in calls of the second, during
                a capture
churn           one makes and destroys modules, streams, events and memory, others launch kernels: a window may begin
                and end during that
"""

import time

from gpu_cost import measure_pace, percent
from gpu_daemon import Daemon
from gpu_soak import MANY_WINDOWS
from gpu_workload import pace

NAMES = (
    "graph_threads", "graph_mixed", "graph_rare", "graph_born", "graph_ahead", "graph_capture", "graph_prepare",
    "graph_beside", "churn",
)
REFUSED = ("graph_threads", "graph_born")


def threads(check):
    for name in [n for n in NAMES if not check.asked or n in check.asked]:
        check.row(f"{name} in windows", 2 * check.seconds + 15, lambda name=name: _windows(check, name))


def _windows(check, name):
    with check.workload(name) as w:
        base = measure_pace(w, check.seconds / 2)
        with Daemon(check.bin, w.pid, check.log(name), "--gpu", "windows", *MANY_WINDOWS, trace_mb=200) as d:
            d.settled()
            begin = time.monotonic_ns()
            until = time.monotonic() + check.seconds
            while w.alive() and time.monotonic() < until:
                time.sleep(0.1)
            agent = next((a for a in d.status().get("agents") or [] if a["pid"] == w.pid), {})
            during = pace(w.iterations(begin, time.monotonic_ns()))
        time.sleep(1)
        after = measure_pace(w, check.seconds / 2)
        failures = w.leftovers() + w.harmed(check)
    state, windows, disabled = agent.get("state"), agent.get("windows", 0), agent.get("disabled", 0)
    if name in REFUSED and (state != "refused" or windows):
        failures.append(f"the agent is {state} and opened {windows} windows: several threads launch graphs")
    if name not in REFUSED and (not windows or disabled):
        failures.append(f"of {windows} windows {disabled} ended without taking CUPTI out")
    return {
        "agent": state,
        "it says": (agent.get("detail") or "").replace(",", ";")[:60],
        "windows": windows,
        "disabled": disabled,
        "added after": percent(after["period"] / base["period"] - 1),
        "largest ms alone/in windows": f"{base['max']:.1f}/{during['max']:.1f}",
    }, failures
