"""The stages of the GPU check.

accuracy    kernels seen = made; durations; share correlated to a launch; stop time; time to the first record
multi       several GPUs, a thread for each: kernels and busy time of each GPU
profilers   torch.profiler or nsys holds CUPTI: left alone, named, still right
soak: gpu_soak.py; together: gpu_together.py; mps: gpu_mps.py; cost, budget, continuous: gpu_cost.py; turns:
gpu_turns.py; start: gpu_start.py; floor: gpu_floor.py; inside: gpu_inside.py; threads: gpu_threads.py; detach:
gpu_detach.py; starved: gpu_starved.py
"""

import time

import numpy

import gpu_cost
import gpu_detach
import gpu_floor
import gpu_inside
import gpu_mps
import gpu_nsys
import gpu_soak
import gpu_start
import gpu_starved
import gpu_threads
import gpu_together
import gpu_turns
from gpu_daemon import Daemon, Harm
from gpu_workload import CPP

CLOCK_SLACK_NS = 2000  # of the GPU's clock against CLOCK_MONOTONIC: causality allows no more


def _flags(mode):
    return ["--gpu", mode]


def _attached(check, w, what, mode, *more):
    return Daemon(check.bin, w.pid, check.log(what), *_flags(mode), *more)


# --- accuracy ---

def accuracy(check):
    for name in check.names:
        for mode in check.modes:
            check.row(f"{name} {mode}", 45, lambda name=name, mode=mode: _accurate(check, name, mode))


def _accurate(check, name, mode):
    figures, failures = {}, []
    with check.workload(name) as w:
        with _attached(check, w, f"accuracy {name} {mode}", mode) as d:
            state = d.settled()
            if state["state"] != "running":
                raise Harm(f"the agent is {state['state']}: {state.get('detail')}")
            figures["first record s"] = round(d.records(), 2)
            figures["stop ms"] = round(state.get("stopped_ns", 0) / 1e6, 3)
            if mode == "continuous":
                rec, made = _counted(d, w)
            else:
                rec, made = _watched_windows(check, d, w)
        figures["daemon stops in s"] = round(d.stopped_s, 2)
        time.sleep(0.2)
        failures += w.leftovers()
        profile = None if w.cpp else w.ask("profile 200 300", 120)
        if mode == "continuous":
            _compare_counts(figures, failures, rec, made, w, profile)
        else:
            _compare_windows(figures, failures, rec, w, profile)
        figures["lost"] = rec.dropped()
        figures["losses"] = " ".join(f"{k}:{n}" for k, n in rec.losses().items()) or "none"
        if rec.dropped():
            failures.append(f"{rec.dropped()} records were lost")
        _durations(figures, failures, rec, w, profile)
        failures += w.harmed(check)
    return figures, failures


def _counted(d, w):
    made = w.ask("count 300 400" if w.cpp else "count 200 400", 120)
    time.sleep(0.5)
    return d.recording(), made


def _compare_counts(figures, failures, rec, made, w, profile):
    if w.cpp:
        kernels, truth = rec.named("counted_"), made["kernels"]
    else:
        k = rec.kernels()
        kernels = k[(k["ts"] + CLOCK_SLACK_NS >= made["begin_ns"]) & (k["ts"] <= made["end_ns"])]
        truth = round(profile["kernels"] / profile["iterations"] * made["iterations"])
    figures["kernels seen / made"] = f"{len(kernels)} / {truth}"
    if len(kernels) != truth:
        failures.append(f"{len(kernels)} kernels seen, {truth} made")
    if w.cpp and made["copies"]:
        c = rec.events[rec.events["kind"] == 8]
        c = c[(c["ts"] + CLOCK_SLACK_NS >= made["begin_ns"]) & (c["ts"] <= made["end_ns"])]
        figures["copies seen / made"] = f"{len(c)} / {made['copies']}"
        if len(c) != made["copies"]:
            failures.append(f"{len(c)} copies seen, {made['copies']} made")
    _correlation(figures, failures, rec, kernels)


def _correlation(figures, failures, rec, kernels):
    share = rec.correlated(kernels)
    figures["correlated"] = f"{100 * share:.2f}%"
    if share < 0.999:
        failures.append(f"only {100 * share:.2f}% of the kernels have their launch")


def _watched_windows(check, d, w):
    time.sleep(max(check.seconds, 10))
    return d.recording(), None


def _compare_windows(figures, failures, rec, w, profile):
    windows = rec.windows(w.pid)
    per = CPP[w.name] if w.cpp else profile["kernels"] // profile["iterations"]
    inside, right, seen = 0, 0, 0
    for counts in _per_iteration(rec.kernels(), w.iterations(), windows, per):
        inside, right, seen = inside + len(counts), right + int((counts == per).sum()), seen + int(counts.sum())
    figures["windows"] = len(windows)
    figures["kernels seen / made"] = f"{seen} / {inside * per}"
    figures["iterations right / in windows"] = f"{right} / {inside}"
    if len(windows) < 3 or not inside:
        failures.append(f"{len(windows)} windows with {inside} whole iterations: nothing to compare")
    if right != inside:
        failures.append(f"{inside - right} of {inside} iterations wholly in a window have not {per} kernels")
    _correlation(figures, failures, rec, _within(rec.kernels(), windows))


def _per_iteration(kernels, threads, windows, per):
    """For each thread, the number of kernels in each of its iterations that lie wholly in a window. Where there are
    several threads, each has the stream whose counts fit best."""
    streams = (
        [kernels["ts"]]
        if len(threads) == 1
        else [kernels["ts"][kernels["tid"] == s] for s in numpy.unique(kernels["tid"])]
    )
    for times in threads:
        keep = numpy.zeros(len(times), bool)
        for begin, end in windows:
            keep |= (times[:, 0] >= begin + CLOCK_SLACK_NS) & (times[:, 1] <= end)
        t = times[keep]
        best = None
        for starts in streams:
            counts = numpy.searchsorted(starts, t[:, 1], "right") - numpy.searchsorted(
                starts, t[:, 0] - min(CLOCK_SLACK_NS, 500)
            )
            if best is None or (counts == per).sum() > (best == per).sum():
                best = counts
        yield best if best is not None else numpy.zeros(len(t), int)


def _durations(figures, failures, rec, w, profile):
    if w.cpp:
        k = rec.named("_us5")
        if len(k):
            q = numpy.percentile(k["dur"], [0.1, 50, 99]) / 1e3
            figures["5 us kernels last us p0.1/p50/p99"] = "/".join(f"{x:.2f}" for x in q)
            if q[0] < 4.9 or q[1] > 9:
                failures.append(f"a kernel that spins for 5 us is said to last {q[1]:.2f}")
        return
    names, weight, off = rec.names(), 0, []
    k = rec.kernels()
    for name, (count, mean) in (profile or {}).get("names", {}).items():
        mine = k["dur"][numpy.isin(k["ret"], [i + 1 for i, n in enumerate(names) if _same(n, name)])] / 1e3
        if len(mine) and count >= 50:
            off.append((abs(float(mine.mean()) / mean - 1), count, name))
            weight += count
    if not off:
        failures.append("no kernel name of torch.profiler's is in the recording")
        return
    figures["durations off torch.profiler's, mean"] = f"{100 * sum(o * c for o, c, _ in off) / weight:.2f}%"
    figures["names matched"] = f"{len(off)} of {sum(c >= 50 for c, _ in profile['names'].values())}"


def _same(a, b):
    return a == b or a.replace(" ", "") == b.replace(" ", "")


# --- multi ---

def multi(check):
    """Needs a machine with several GPUs: one process, a thread and a stream on each."""
    for mode in check.modes:
        check.row(f"multi {mode}", 60, lambda mode=mode: _multi(check, mode))


def _multi(check, mode):
    figures, failures = {}, []
    with check.workload("multi") as w:
        if w.threads < 2:
            raise Harm(f"{w.threads} GPU can be seen: this stage needs several")
        with _attached(check, w, f"multi {mode}", mode) as d:
            state = d.settled()
            if state["state"] != "running":
                raise Harm(f"the agent is {state['state']}: {state.get('detail')}")
            d.records()
            made = _counted(d, w) if mode == "continuous" else _watched_windows(check, d, w)
        rec, made = made
        kernels = rec.kernels()
        device = kernels["func"] & 0xFF
        figures["GPUs"], figures["devices"] = w.threads, len(rec.gpu.get("devices") or [])
        if figures["devices"] != w.threads:
            failures.append(f"{figures['devices']} devices are told of, there are {w.threads}")
        if mode == "continuous":
            counted = rec.named("counted_")
            seen = [int((counted["func"] & 0xFF == i).sum()) for i in range(w.threads)]
            figures["kernels seen / made by GPU"] = " ".join(
                f"{i}:{n}/{m}" for i, (n, m) in enumerate(zip(seen, made["by_thread"]))
            )
            failures += [
                f"GPU {i}: {n} kernels seen, {m} made"
                for i, (n, m) in enumerate(zip(seen, made["by_thread"]))
                if n != m
            ]
        else:
            _each_gpu(figures, failures, rec, w, kernels, device)
        _correlation(figures, failures, rec, kernels if mode == "continuous" else _within(kernels, rec.windows(w.pid)))
        failures += w.leftovers() + w.harmed(check)
    return figures, failures


def _each_gpu(figures, failures, rec, w, kernels, device):
    """In windows: the iterations of each GPU's thread that lie wholly in one have all of their kernels, on that GPU."""
    for i, times in enumerate(w.iterations()):
        counts = next(_per_iteration(kernels[device == i], [times], rec.windows(w.pid), CPP["multi"]))
        right = int((counts == CPP["multi"]).sum())
        figures[f"GPU {i} iterations right / in windows"] = f"{right} / {len(counts)}"
        if right != len(counts) or not right:
            failures.append(
                f"GPU {i}: {len(counts) - right} of {len(counts)} iterations have not {CPP['multi']} kernels"
            )


def _within(kernels, windows):
    inside = numpy.zeros(len(kernels), bool)
    for begin, end in windows:
        inside |= (kernels["ts"] >= begin) & (kernels["ts"] + kernels["dur"] <= end)
    return kernels[inside]


# --- profilers ---

def profilers(check):
    for name in check.names:
        if name not in CPP:
            check.row(f"{name} torch.profiler holds CUPTI", 60, lambda name=name: _torch_holds(check, name))
            check.row(f"{name} torch.profiler beside windows", 60, lambda name=name: _torch_beside(check, name))
    if check.nsys:
        check.row("plain under nsys", 60, lambda: gpu_nsys.under(check, "plain"))
    else:
        check.table.add("nsys", {"detail": "", "skipped": "not installed: name one with --nsys"})


def _torch_holds(check, name):
    """The profiler is there first and stays: ours must leave it alone and say so."""
    figures, failures = {}, []
    with check.workload(name) as w:
        alone = w.ask("profile 200 300", 120)
        w.process.stdin.write(b"profile 2000 1500\n")
        w.process.stdin.flush()
        time.sleep(1.0)
        with _attached(check, w, f"profiler {name}", "continuous") as d:
            state = d.settled()
            figures["agent"] = state.get("state")
            figures["it says"] = (state.get("detail") or "").replace(",", ";")[:120]
            with_us = w.answer(120)
        want = alone["kernels"] / alone["iterations"]
        figures["profiler saw a token alone/with us"] = f"{want:.2f}/{with_us['kernels'] / with_us['iterations']:.2f}"
        if with_us["kernels"] != round(want * with_us["iterations"]):
            failures.append(f"torch.profiler saw {with_us['kernels']} kernels, not {want * with_us['iterations']:.0f}")
        failures += w.leftovers()
    return figures, failures


def _torch_beside(check, name):
    """Ours is there first, in windows: how many of ten profiles fall onto an open window and see nothing?"""
    with check.workload(name) as w:
        want = w.ask("profile 100 50", 120)
        want = want["kernels"] / want["iterations"]
        with _attached(check, w, f"beside {name}", "windows") as d:
            d.settled()
            got = [w.ask("profile 100 50", 120) for _ in range(10)]
        full = sum(g["kernels"] == round(want * g["iterations"]) for g in got)
        none = sum(g["kernels"] == 0 for g in got)
    failures = [] if full + none == len(got) else [f"profiles that saw a part: {[g['kernels'] for g in got]}"]
    return {"profiles whole/nothing/of": f"{full}/{none}/{len(got)}"}, failures


STAGES = {
    "accuracy": accuracy, "multi": multi, "soak": gpu_soak.soak, "mps": gpu_mps.mps, "profilers": profilers,
    "cost": gpu_cost.cost, "budget": gpu_cost.budget, "continuous": gpu_cost.continuous, "turns": gpu_turns.turns,
    "together": gpu_together.together, "start": gpu_start.start, "floor": gpu_floor.floor,
    "threads": gpu_threads.threads, "detach": gpu_detach.detach, "inside": gpu_inside.inside,
    "starved": gpu_starved.starved,
}
