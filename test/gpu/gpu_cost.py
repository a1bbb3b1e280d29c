"""Stages of the GPU check that measure time: what watching a program adds to its iterations, in parts.

cost        alone, with the probes only, with windows only, with everything: interleaved rounds, and where in a window the time goes
budget      everything, with windows as rare as the daemon makes them by itself, once it has learnt: what it says they take, and what they do
continuous  all the time: time per iteration before, while and after; the same under nsys and torch.profiler
"""

import time

import numpy

import gpu_nsys
from gpu_daemon import Daemon
from gpu_workload import pace
from steps import Steps, largest

QUIET = ["--cpu-sampling-frequency-hz", "0", "--scheduling=false"]
ASKED = ["--overhead-budget", "0"]  # windows as often as was asked for, whatever they cost
PARTS = {
    "probes": ["--gpu", "off", *QUIET],
    "probes+samples+scheduling": ["--gpu", "off"],
    "probes+windows": ["--gpu", "windows", *QUIET, *ASKED],
    "all": ["--gpu", "windows", *ASKED],
}
# Of a window, ms from its beginning or end: CUPTI is subscribed to and enabled before the first, left after the second.
OPENING, CLOSING, AFTERMATH = 60, 60, 400


def stretch(w, seconds):
    """The pace of the next seconds."""
    begin = time.monotonic_ns()
    time.sleep(seconds)
    return pace(w.iterations(begin, time.monotonic_ns()))


def percent(x):
    return f"{100 * x:+.2f}%"


def middle(values):
    """Median and range of shares."""
    return f"{percent(numpy.median(values))} ({percent(min(values))} to {percent(max(values))})"


# --- cost ---

def cost(check):
    for name in check.names:
        needs = check.rounds * (len(PARTS) * (1.4 * check.seconds + 4) + 0.4 * check.seconds) + 25
        check.row(f"{name} in parts", needs, lambda name=name: _parts(check, name))


def _parts(check, name):
    """Each part in each round has a stretch alone before and after it: drift of the machine cancels."""
    alone, added, largest, windows, cpu = [], {p: [] for p in PARTS}, {p: 0.0 for p in PARTS}, [], {p: [] for p in PARTS}
    lost = []
    with check.workload(name) as w:
        time.sleep(2)
        alone.append(stretch(w, 0.4 * check.seconds))
        for i in range(check.rounds):
            order = list(PARTS)
            for part in order[i % len(order):] + order[:i % len(order)]:
                with Daemon(check.bin, w.pid, check.log(f"cost {name} {part}"), *PARTS[part]) as d:
                    if "windows" in PARTS[part]:
                        d.settled()
                    time.sleep(1.0)
                    cpu0, t0 = d.cpu_s(), time.monotonic()
                    during = stretch(w, check.seconds)
                    cpu[part].append((d.cpu_s() - cpu0) / (time.monotonic() - t0))
                    if "windows" in PARTS[part]:
                        got = d.recording().windows(w.pid)
                        windows.append(len(got))
                        lost += lost_in_windows(w, got)
                time.sleep(0.5)
                alone.append(stretch(w, 0.4 * check.seconds))
                base = (alone[-1]["period"] + alone[-2]["period"]) / 2
                added[part].append(during["period"] / base - 1)
                largest[part] = max(largest[part], during["max"])
        failures = w.leftovers() + w.harmed(check)
    figures = {"ms alone": f"{numpy.median([a['period'] for a in alone]):.4f}", "alone varies by": percent(_spread(alone)), "rounds": check.rounds}
    for part in PARTS:
        figures[f"{part} add"] = middle(added[part])
    figures["largest ms alone/all"] = f"{max(a['max'] for a in alone):.1f}/{largest['all']:.1f}"
    figures["daemon CPU probes/all"] = f"{100 * numpy.mean(cpu['probes']):.1f}%/{100 * numpy.mean(cpu['all']):.1f}%"
    if lost:
        figures["ms lost a window opening/open/closing/after"] = "/".join(f"{x:.1f}" for x in numpy.median(numpy.array(lost), 0))
    if not sum(windows):
        failures.append("nothing was recorded: the cost says nothing")
    check.added[name, "windows"] = float(numpy.median(added["all"]))
    figures["goal"] = goal(check.added[name, "windows"], largest["all"], max(a["max"] for a in alone))
    return figures, failures


def _spread(paces):
    periods = [p["period"] for p in paces]
    return max(periods) / min(periods) - 1


def lost_in_windows(w, windows):
    """For each window, the ms that the first thread lost while it was opened, open, closed, and after: the time less what the
    iterations made in it take when no window is near."""
    ends = w.iterations()[0][:, 1].astype(float)
    number = numpy.arange(len(ends), dtype=float)
    made = lambda a, b: float(numpy.interp(b, ends, number) - numpy.interp(a, ends, number))  # noqa: E731
    ms, out = 1e6, []
    for i in range(1, len(windows) - 1):
        begin, end = windows[i]
        quiet = [(windows[i - 1][1] + (CLOSING + AFTERMATH) * ms, begin - OPENING * ms), (end + (CLOSING + AFTERMATH) * ms, windows[i + 1][0] - OPENING * ms)]
        time_ns, iterations = sum(b - a for a, b in quiet), sum(made(a, b) for a, b in quiet)
        if iterations < 20 or any(b <= a for a, b in quiet):
            continue
        each = time_ns / iterations
        edges = [begin - OPENING * ms, begin, end, end + CLOSING * ms, end + (CLOSING + AFTERMATH) * ms]
        out.append([(b - a - made(a, b) * each) / ms for a, b in zip(edges, edges[1:])])
    return out


def goal(added, largest, alone):
    """At most 2%, and pauses of at most 10 ms."""
    missed = [f"{100 * added:.1f}% added"] if added > 0.02 else []
    missed += [f"a pause of {largest:.1f} ms"] if largest > max(10, alone) else []
    return "missed: " + " and ".join(missed) if missed else "met"


# --- budget ---

LEARNING = 20  # s in which the daemon learns what a window costs, and reads the tables of the unwinder


def budget(check):
    for name in check.names:
        check.row(f"{name} within 2%", check.rounds * (LEARNING + 4.5 * check.seconds + 4) + 12, lambda name=name: _budget(check, name))


def _budget(check, name):
    """The daemon with its defaults, once it has learnt: what it adds beside stretches alone before and after, and what the windows of that time
    take, each beside the time just around it, so that a program whose own pace drifts by more than is looked for can be judged."""
    alone, during, says, lost, periods, steps = [], [], "", [], [], {}
    with check.workload(name) as w:
        time.sleep(2)
        for _ in range(check.rounds):
            alone.append(stretch(w, 0.75 * check.seconds))
            with Daemon(check.bin, w.pid, check.log(f"budget {name}")) as d:
                d.settled()
                time.sleep(LEARNING)
                begin, look = time.monotonic_ns(), Steps(d)
                during.append(stretch(w, 3 * check.seconds))
                pauses = largest(w.iterations(begin, time.monotonic_ns()))
                windows = [v for v in d.recording("1h").windows(w.pid) if v[1] > begin]
                says = d.agent().get("detail", "")
                look.look()
                steps = {**look.figures(), **look.blame(pauses)}
            lost += [sum(x) for x in lost_in_windows(w, windows)]
            periods += [(b[0] - a[0]) / 1e9 for a, b in zip(windows, windows[1:])]
            time.sleep(0.5)
            alone.append(stretch(w, 0.75 * check.seconds))
        failures = w.leftovers() + w.harmed(check)
    added = [d["period"] / ((alone[2 * i]["period"] + alone[2 * i + 1]["period"]) / 2) - 1 for i, d in enumerate(during)]
    check.added[name, "budget"] = float(numpy.median(added))
    figures = {"ms alone": f"{numpy.median([a['period'] for a in alone]):.4f}", "alone varies by": percent(_spread(alone)), "added": middle(added)}
    if len(lost) > 2:
        period = 1000 * float(numpy.mean(periods))
        figures["windows take"] = f"{percent(numpy.mean(lost) / period)} +- {percent(numpy.std(lost, ddof=1) / len(lost) ** 0.5 / period)} ({len(lost)} windows of {numpy.mean(lost):.1f} ms)"
        figures["s from window to window"] = f"{period / 1000:.1f}"
    else:
        figures["windows take"] = f"{len(lost)} windows are too few to say"
    figures["largest ms alone/with"] = f"{max(a['max'] for a in alone):.1f}/{max(d['max'] for d in during):.1f}"
    figures["goal"] = goal(check.added[name, "budget"], max(d["max"] for d in during), max(a["max"] for a in alone))
    return {**figures, **steps, "the daemon says": says.replace(",", ";")}, failures


# --- continuous ---

def continuous(check):
    for name in check.names:
        check.row(f"{name} continuous", check.rounds * (3.5 * check.seconds + 4), lambda name=name: _continuous(check, name))
        check.row(f"{name} profiler", 4 * check.seconds + 20, lambda name=name: _other_profiler(check, name))


def _continuous(check, name):
    before, during, after, attach = [], [], [], []
    with check.workload(name) as w:
        time.sleep(2)
        for _ in range(check.rounds):
            before.append(stretch(w, check.seconds))
            begin = time.monotonic_ns()
            with Daemon(check.bin, w.pid, check.log(f"continuous {name}"), "--gpu", "continuous") as d:
                d.settled()
                time.sleep(0.5)
                attach.append(pace(w.iterations(begin, time.monotonic_ns()))["max"])
                during.append(stretch(w, 1.5 * check.seconds))
                seen = len(d.recording("2s").kernels())
            time.sleep(0.5)
            after.append(stretch(w, check.seconds))
        failures = w.leftovers() + w.harmed(check)
    base = numpy.mean([b["period"] for b in before])
    check.added[name, "continuous"] = float(numpy.mean([d["period"] for d in during]) / base - 1)
    figures = {
        "ms alone": f"{base:.4f}", "added while": percent(check.added[name, "continuous"]), "added after": percent(numpy.mean([a["period"] for a in after]) / base - 1),
        "largest ms alone/while": f"{max(b['max'] for b in before):.1f}/{max(d['max'] for d in during):.1f}", "largest ms at attach": f"{max(attach):.1f}",
    }
    if not seen:
        failures.append("nothing was recorded: the cost says nothing")
    return figures, failures


def _other_profiler(check, name):
    """What torch.profiler and nsys add to the same workload."""
    figures = {}
    with check.workload(name) as w:
        time.sleep(2)
        base = stretch(w, check.seconds)
        if not w.cpp:
            n = max(100, int(1e3 * check.seconds / base["period"] / 2))
            p = w.ask(f"profile {n} 0", 240)
            figures["torch.profiler adds"] = percent((p["end_ns"] - p["begin_ns"]) / 1e6 / n / base["period"] - 1)
            figures["and after it"] = percent(stretch(w, check.seconds)["period"] / base["period"] - 1)
    if check.nsys:
        with check.workload(name, gpu_nsys.command(check, name)) as w:
            time.sleep(2)
            added = stretch(w, check.seconds)["period"] / base["period"] - 1
        figures["nsys adds"], figures["nsys recorded MB"] = percent(added), f"{gpu_nsys.recorded(check, name) / 1e6:.1f}"
        if added > 0 and (name, "continuous") in check.added:
            figures["continuous / nsys"] = f"{100 * check.added[name, 'continuous'] / added:.0f}% (goal 25%)"
    elif w.cpp:
        figures["nsys"] = "is not installed"
    return figures, []
