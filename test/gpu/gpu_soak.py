"""The soak of the GPU check: many attachments and many windows; the target unharmed, nothing left in it, what it grew
by and whose that is."""

import os
import time

import numpy

import gpu_memory
from gpu_cost import measure_pace, percent
from gpu_daemon import Daemon, Harm
from gpu_workload import pace
from steps import Steps, largest

STOP_GOAL = 2.0  # ms that a thread of the target may be stopped in an attachment
PAUSE_GOAL = 10.0  # ms that a window may keep a thread of the target from its work
ONE_WINDOW = ["--gpu-window", "100ms", "--gpu-period", "300ms", "--overhead-budget", "0"]
MANY_WINDOWS = ["--gpu-window", "50ms", "--gpu-period", "120ms", "--overhead-budget", "0"]


def soak(check):
    for name in check.names:
        if check.cycles:
            check.row(
                f"{name} {check.cycles} attachments", 1.2 * check.cycles + 10, lambda name=name: _cycles(check, name)
            )
        if check.windows:
            check.row(
                f"{name} {check.windows} windows", 0.15 * check.windows + 15, lambda name=name: _windows(check, name)
            )


def _attached(check, w, what, *flags):
    return Daemon(check.bin, w.pid, check.log(what), "--gpu", "windows", *flags)


# --- attachments ---

def _cycles(check, name):
    stops, slow, seen, kernels, prints, held = [], [], 0, 0, [], None
    allocations = gpu_memory.Allocations(check.out)
    with check.workload(name, env=dict(os.environ, **allocations.environment())) as w:
        time.sleep(1)
        start = w.footprint()
        for i in range(check.cycles):
            with _attached(check, w, f"soak {name}", *ONE_WINDOW) as d:
                windows, records = _attachment(i, d, w, stops)
                seen, kernels = seen + windows, kernels + records
            slow += [line[line.find("steps"):] for line in d.said().splitlines() if "longer than it should be" in line]
            if not w.alive():
                raise Harm(f"the target is dead after attachment {i + 1}: {w.process.stderr.read()[-500:]}")
            prints.append(w.footprint())
            if i + 1 == min(10, check.cycles):
                held = gpu_memory.Holdings(w, allocations)
        time.sleep(0.3)
        prints[-1], failures = w.footprint(), w.leftovers()
        late = gpu_memory.Holdings(w, allocations)
        failures += w.harmed(check)
    figures, more = growth(start, prints)
    failures += more
    whose, ours = gpu_memory.left_by(check.cycles - 10, held, late)
    failures += ours
    if max(stops) > STOP_GOAL:
        failures.append(
            f"{sum(s > STOP_GOAL for s in stops)} of {len(stops)} stops took more than {STOP_GOAL} ms: {slow[:3]}"
        )
    quantiles = "/".join(f"{q:.3f}" for q in numpy.quantile(stops, [0.5, 0.99, 1]))
    return {"windows": seen, "kernels": kernels, "stop ms p50/p99/max": quantiles, **figures, **whose}, failures


def _attachment(i, d, w, stops):
    """One attachment until a window has ended; returns windows and kernels."""
    state = d.settled()
    if state["state"] != "running":
        raise Harm(f"attachment {i + 1}: the agent is {state['state']}: {state.get('detail')}")
    stops.append(state.get("stopped_ns", 0) / 1e6)
    d.wait("a window to end", lambda: d.recording("5s").windows(w.pid))
    rec = d.recording("5s")
    return len(rec.windows(w.pid)), len(rec.kernels())


def growth(start, prints):
    """What the target grew by in the first ten attachments, once, and in each one after them: a leak is in the latter.
    CUPTI and the driver leave memory with each window (docs/gpu-agent.md), so the size of it is a figure, and a failure
    only what is the agent's: _cycles."""
    tenth = prints[min(9, len(prints) - 1)]
    figures = {"MB in 10 attachments": f"{tenth['rss_mb'] - start['rss_mb']:.1f}"}
    later = prints[9:]
    if len(later) < 10:
        return figures, []
    each, last_half = (_slope(x) for x in (later, later[len(later) // 2:]))
    figures["kB in each after that/of the last half"] = f"{1000 * each:.1f}/{1000 * last_half:.1f}"
    figures["MB by tenths of them"] = "/".join(
        f"{p['rss_mb'] - tenth['rss_mb']:.1f}" for p in later[:: max(1, len(later) // 10)]
    )
    last = prints[-1]
    more = {k: last[k] - tenth[k] for k in ("fds", "threads", "maps", "agent_maps")}
    figures["more since the 10th"] = " ".join(f"{k}:{n}" for k, n in more.items())
    failures = [
        f"since the 10th attachment the target has {n} more {k}"
        for k, n in more.items()
        if n > (4 if k == "maps" else 0)
    ]
    return figures, failures


def _slope(prints):
    return float(numpy.polyfit(numpy.arange(len(prints)), [p["rss_mb"] for p in prints], 1)[0])


# --- windows ---

def _windows(check, name):
    with check.workload(name) as w:
        time.sleep(1)
        base, alone = measure_pace(w, 6), time.monotonic_ns()
        with _attached(check, w, f"windows {name}", *MANY_WINDOWS) as d:
            d.settled()
            begin, steps = time.monotonic_ns(), Steps(d)
            ends = _await_windows(check, d, steps)
            during = w.iterations(begin, time.monotonic_ns())
        attach = pace(w.iterations(alone, begin))["max"]
        failures = w.leftovers() + w.harmed(check)
    if sum(ends.values()) < check.windows:
        failures.append(f"only {sum(ends.values())} windows ended")
    p = pace(during)
    if p["max"] > max(PAUSE_GOAL, base["max"]):
        failures.append(f"a pause of {p['max']:.1f} ms")
    return {
        "windows": ends,
        "added at 50 ms in 120": percent(p["period"] / base["period"] - 1),
        "largest ms alone/at the attach/in windows": f"{base['max']:.1f}/{attach:.1f}/{p['max']:.1f}",
        **steps.figures(),
        **steps.blame(largest(during)),
    }, failures


def _await_windows(check, d, steps):
    """How so many windows ended, by kind of end."""
    ends, last = {}, 0
    limit = time.monotonic() + 0.4 * check.windows + 10
    while sum(ends.values()) < check.windows and time.monotonic() < limit and check.left() > 10:
        time.sleep(4)
        steps.look()
        for v in d.recording("20s").gpu.get("windows") or []:
            if v["from_ns"] > last and v["end"] != "open" and v["activity"]:
                ends[v["end"]] = ends.get(v["end"], 0) + 1
                last = v["from_ns"]
    return ends
