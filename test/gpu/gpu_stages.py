"""The stages of the GPU check.

accuracy    kernels seen = made; durations; share correlated to a launch; stop time; time to the first record
multi       several GPUs, a thread for each: kernels and busy time of each GPU
soak        many attachments and many windows; the target unharmed, nothing left in it, what it grew by
profilers   torch.profiler or nsys holds CUPTI: left alone, named, still right
cost, budget, continuous: gpu_cost.py
"""

import os
import shutil
import sqlite3
import subprocess
import time

import numpy

import gpu_cost
from gpu_cost import nsys, percent, stretch
from gpu_daemon import Daemon, Harm
from gpu_workload import CPP, grown, pace

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
    """For each thread, the number of kernels in each of its iterations that lie wholly in a window. Where there are several
    threads, each has the stream whose counts fit best."""
    streams = [kernels["ts"]] if len(threads) == 1 else [kernels["ts"][kernels["tid"] == s] for s in numpy.unique(kernels["tid"])]
    for times in threads:
        keep = numpy.zeros(len(times), bool)
        for begin, end in windows:
            keep |= (times[:, 0] >= begin + CLOCK_SLACK_NS) & (times[:, 1] <= end)
        t = times[keep]
        best = None
        for starts in streams:
            counts = numpy.searchsorted(starts, t[:, 1], "right") - numpy.searchsorted(starts, t[:, 0] - min(CLOCK_SLACK_NS, 500))
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


# --- soak ---

STOP_GOAL = 2.0  # ms that a thread of the target may be stopped in an attachment


def soak(check):
    for name in check.names:
        check.row(f"{name} {check.cycles} attachments", 1.2 * check.cycles + 10, lambda name=name: _cycles(check, name))
        check.row(f"{name} {check.windows} windows", 0.15 * check.windows + 15, lambda name=name: _windows(check, name))


def _cycles(check, name):
    short = ["--gpu-window", "100ms", "--gpu-period", "300ms", "--overhead-budget", "0"]
    stops, slow, seen, kernels, prints, memory = [], [], 0, 0, [], {}
    with check.workload(name) as w:
        time.sleep(1)
        start = w.footprint()
        for i in range(check.cycles):
            with _attached(check, w, f"soak {name}", "windows", *short) as d:
                state = d.settled()
                if state["state"] != "running":
                    raise Harm(f"attachment {i + 1}: the agent is {state['state']}: {state.get('detail')}")
                stops.append(state.get("stopped_ns", 0) / 1e6)
                d.wait("a window to end", lambda: d.recording("5s").windows(w.pid))
                rec = d.recording("5s")
                seen, kernels = seen + len(rec.windows(w.pid)), kernels + len(rec.kernels())
            slow += [line[line.find("steps"):] for line in d.said().splitlines() if "longer than it should be" in line]
            if not w.alive():
                raise Harm(f"the target is dead after attachment {i + 1}: {w.process.stderr.read()[-500:]}")
            prints.append(w.footprint())
            if i + 1 == min(10, check.cycles):
                memory = w.memory()
        time.sleep(0.3)
        prints[-1], failures = w.footprint(), w.leftovers()
        most = grown(memory, w.memory())
        failures += w.harmed(check)
    figures, late = _growth(start, prints)
    failures += late
    if max(stops) > STOP_GOAL:
        failures.append(f"{sum(s > STOP_GOAL for s in stops)} of {len(stops)} stops took more than {STOP_GOAL} ms: {slow[:3]}")
    quantiles = "/".join(f"{q:.3f}" for q in numpy.quantile(stops, [0.5, 0.99, 1]))
    return {"windows": seen, "kernels": kernels, "stop ms p50/p99/max": quantiles, **figures, "grew most since the 10th": most}, failures


def _growth(start, prints):
    """What the target grew by in the first ten attachments, once, and in each one after them: a leak is in the latter."""
    tenth = prints[min(9, len(prints) - 1)]
    figures = {"MB in 10 attachments": f"{tenth['rss_mb'] - start['rss_mb']:.1f}"}
    later = prints[9:]
    if len(later) < 10:
        return figures, []
    each = float(numpy.polyfit(numpy.arange(len(later)), [p["rss_mb"] for p in later], 1)[0])
    figures["kB in each after that"] = f"{1000 * each:.1f}"
    figures["MB by tenths of them"] = "/".join(f"{p['rss_mb'] - tenth['rss_mb']:.1f}" for p in later[:: max(1, len(later) // 10)])
    last = prints[-1]
    more = {k: last[k] - tenth[k] for k in ("fds", "threads", "maps", "agent_maps")}
    figures["more since the 10th"] = " ".join(f"{k}:{n}" for k, n in more.items())
    failures = [f"since the 10th attachment the target has {n} more {k}" for k, n in more.items() if n > (4 if k == "maps" else 0)]
    return figures, failures + ([f"each attachment leaves {1000 * each:.0f} kB"] if each > 0.1 else [])


def _windows(check, name):
    with check.workload(name) as w:
        time.sleep(1)
        base = stretch(w, 3)
        with _attached(check, w, f"windows {name}", "windows", "--gpu-window", "50ms", "--gpu-period", "120ms", "--overhead-budget", "0") as d:
            d.settled()
            ends, last, begin = {}, 0, time.monotonic_ns()
            limit = time.monotonic() + 0.4 * check.windows + 10
            while sum(ends.values()) < check.windows and time.monotonic() < limit and check.left() > 10:
                time.sleep(5)
                for v in d.recording("20s").gpu.get("windows") or []:
                    if v["from_ns"] > last and v["end"] != "open" and v["activity"]:
                        ends[v["end"]] = ends.get(v["end"], 0) + 1
                        last = v["from_ns"]
            during = pace(w.iterations(begin, time.monotonic_ns()))
        failures = w.leftovers() + w.harmed(check)
    if sum(ends.values()) < check.windows:
        failures.append(f"only {sum(ends.values())} windows ended")
    return {"windows": ends, "added at 50 ms in 120": percent(during["period"] / base["period"] - 1), "largest ms alone/while": f"{base['max']:.1f}/{during['max']:.1f}"}, failures


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
            figures["kernels seen / made by GPU"] = " ".join(f"{i}:{n}/{m}" for i, (n, m) in enumerate(zip(seen, made["by_thread"])))
            failures += [f"GPU {i}: {n} kernels seen, {m} made" for i, (n, m) in enumerate(zip(seen, made["by_thread"])) if n != m]
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
            failures.append(f"GPU {i}: {len(counts) - right} of {len(counts)} iterations have not {CPP['multi']} kernels")


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
    if shutil.which("nsys"):
        check.row("plain under nsys", 60, lambda: _undernsys(check, "plain"))
    else:
        check.table.add("nsys", {"detail": "not installed"})


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


def _undernsys(check, name):
    """nsys is in the process from its start: ours is refused, nsys's count stays right."""
    with check.workload(name, nsys(check, name)) as w:
        pid = w.pid
        with Daemon(check.bin, pid, check.log(f"nsys {name}"), *_flags("continuous")) as d:
            state = d.settled()
            made = w.ask("count 300 400", 60)
        end = w.quit()
    failures = [] if state["state"] == "refused" else [f"the agent is {state['state']} beside nsys"]
    figures = {"agent": state["state"], "it says": (state.get("detail") or "").replace(",", ";")[:120]}
    report, db = f"{check.out}/nsys-{name}.nsys-rep", f"{check.out}/nsys-{name}.sqlite"
    subprocess.run(["nsys", "export", "--type", "sqlite", "-f", "true", "-o", db, report], check=True, capture_output=True, timeout=300)
    with sqlite3.connect(db) as c:
        n = c.execute("select count(*) from CUPTI_ACTIVITY_KIND_KERNEL k join StringIds s on s.id = k.shortName where s.value like 'counted%'").fetchone()[0]
    figures["nsys saw / made"] = f"{n} / {made['kernels']}"
    warm = 10 * CPP[name]  # half of the warm-up's iterations use the counted kernels
    if n != made["kernels"] + warm:
        failures.append(f"nsys saw {n} of {made['kernels'] + warm} counted kernels; the program made {end['kernels']} in all")
    return figures, failures


STAGES = {
    "accuracy": accuracy, "multi": multi, "soak": soak, "profilers": profilers,
    "cost": gpu_cost.cost, "budget": gpu_cost.budget, "continuous": gpu_cost.continuous,
}
