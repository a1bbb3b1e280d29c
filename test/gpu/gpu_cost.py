"""Stages of the GPU check that measure time: what watching a program adds to its iterations, in parts.

cost        alone, with the probes only, with windows only, with everything: interleaved rounds, and where in a window
            the time goes
budget      the daemon at all its defaults, with windows as rare as it makes them once it has learnt what they take:
            what it says they do, and what they do
continuous  all the time: time per iteration before, while and after; the same under nsys and torch.profiler
"""

import time

import numpy

import gpu_nsys
from common import interval
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


def share(values):
    """A mean share and half the width of its interval, in percent and points."""
    mean, half = interval(values)
    return f"{percent(mean)} +- {100 * half:.2f}"


def measure_pace(w, seconds):
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
    """Each part in each round has an interval alone before and after it: drift of the machine cancels."""
    alone, added, largest, windows, cpu = (
        [],
        {p: [] for p in PARTS},
        {p: 0.0 for p in PARTS},
        [],
        {p: [] for p in PARTS},
    )
    lost = []
    with check.workload(name) as w:
        time.sleep(2)
        alone.append(measure_pace(w, 0.4 * check.seconds))
        for i in range(check.rounds):
            order = list(PARTS)
            for part in order[i % len(order):] + order[:i % len(order)]:
                with Daemon(check.bin, w.pid, check.log(f"cost {name} {part}"), *PARTS[part]) as d:
                    if "windows" in PARTS[part]:
                        d.settled()
                    time.sleep(1.0)
                    cpu0, t0 = d.cpu_s(), time.monotonic()
                    during = measure_pace(w, check.seconds)
                    cpu[part].append((d.cpu_s() - cpu0) / (time.monotonic() - t0))
                    if "windows" in PARTS[part]:
                        got = d.recording().windows(w.pid)
                        windows.append(len(got))
                        lost += lost_in_windows(w, got)
                time.sleep(0.5)
                alone.append(measure_pace(w, 0.4 * check.seconds))
                base = (alone[-1]["period"] + alone[-2]["period"]) / 2
                added[part].append(during["period"] / base - 1)
                largest[part] = max(largest[part], during["max"])
        failures = w.leftovers() + w.harmed(check)
    figures = {
        "ms alone": f"{numpy.median([a['period'] for a in alone]):.4f}",
        "alone varies by": percent(_spread(alone)),
        "rounds": check.rounds,
    }
    for part in PARTS:
        figures[f"{part} add"] = middle(added[part])
    figures["largest ms alone/all"] = f"{max(a['max'] for a in alone):.1f}/{largest['all']:.1f}"
    figures["daemon CPU probes/all"] = f"{100 * numpy.mean(cpu['probes']):.1f}%/{100 * numpy.mean(cpu['all']):.1f}%"
    if lost:
        figures["ms lost a window opening/open/closing/after"] = "/".join(
            f"{x:.1f}" for x in numpy.median(numpy.array(lost), 0)
        )
    if not sum(windows):
        failures.append("nothing was recorded: the cost says nothing")
    check.added[name, "windows"] = float(numpy.median(added["all"]))
    figures["goal"] = goal(check.added[name, "windows"], largest["all"], max(a["max"] for a in alone))
    return figures, failures


def _spread(paces):
    periods = [p["period"] for p in paces]
    return max(periods) / min(periods) - 1


def lost_in_windows(w, windows):
    """For each window, the ms that the first thread lost while it was opened, open, closed, and after: the time less
    what the iterations made in it take when no window is near."""
    ends = w.iterations()[0][:, 1].astype(float)
    number = numpy.arange(len(ends), dtype=float)
    made = lambda a, b: float(numpy.interp(b, ends, number) - numpy.interp(a, ends, number))  # noqa: E731
    ms, out = 1e6, []
    for i in range(1, len(windows) - 1):
        begin, end = windows[i]
        quiet = [
            (windows[i - 1][1] + (CLOSING + AFTERMATH) * ms, begin - OPENING * ms),
            (end + (CLOSING + AFTERMATH) * ms, windows[i + 1][0] - OPENING * ms),
        ]
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

# s in which the daemon learns what a window costs, and reads the tables of the unwinder: 8 windows, of which it wants 6
LEARNING = 16
WATCHED = 22  # s after that


def budget(check):
    for name in check.names:
        check.row(
            f"{name} at the defaults",
            check.rounds * (LEARNING + WATCHED + 1.5 * check.seconds + 3) + 12,
            lambda name=name: _budget(check, name),
        )


class Defaults:
    """What the daemon at its defaults adds, beside intervals alone before and after it, and what its windows take, each
    beside the time just around it, so that a program whose own pace drifts by more than is looked for can be judged. A
    window takes no less while the daemon learns."""

    def __init__(self):
        self.alone, self.during, self.added, self.lost, self.periods, self.steps, self.says, self.log = (
            [], [], [], [], [], {}, "", "",
        )

    def measure(self, check, w):
        self.alone.append(measure_pace(w, 0.75 * check.seconds))
        with Daemon(check.bin, w.pid, check.log(f"budget {w.name}")) as d:
            d.settled()
            came = time.monotonic_ns()
            time.sleep(LEARNING)
            begin, look = time.monotonic_ns(), Steps(d)
            self.during.append(measure_pace(w, WATCHED))
            pauses = largest(w.iterations(begin, time.monotonic_ns()))
            windows = d.recording("1h").windows(w.pid)
            self.says = d.agent().get("detail", "")
            look.look()
            self.steps = {**look.figures(), **look.blame(pauses)}
        self.log = d.said()
        time.sleep(0.5)
        self.alone.append(measure_pace(w, 0.75 * check.seconds))
        base = (self.alone[-1]["period"] + self.alone[-2]["period"]) / 2
        self._windows(w, [v for v in windows if v[0] > came + 10**9], begin, base)

    def _windows(self, w, windows, begin, base):
        """windows: but for the first, which loads CUPTI. From one to the next one is a part of the watched time of its
        own."""
        self.lost += [sum(x) for x in lost_in_windows(w, windows)]
        watched = [v for v in windows if v[0] > begin]
        for a, b in zip(watched, watched[1:]):
            self.periods.append((b[0] - a[0]) / 1e9)
            self.added.append(pace(w.iterations(a[0], b[0]))["period"] / base - 1)

    def figures(self):
        figures = {
            "ms alone": f"{numpy.median([a['period'] for a in self.alone]):.4f}",
            "alone varies by": percent(_spread(self.alone)),
        }
        most = max(d["max"] for d in self.during), max(a["max"] for a in self.alone)
        if len(self.lost) < 3 or len(self.periods) < 2:
            return {**figures, "windows add": f"{len(self.lost)} windows are too few to say"}
        period = float(numpy.mean(self.periods))
        shares = [ms / 1000 / period for ms in self.lost]
        lost, half = interval(self.lost)
        figures |= {
            "windows add": share(shares),
            "a window takes ms": f"{lost:.1f} +- {half:.1f} ({len(self.lost)})",
            "each s": f"{period:.1f}",
            "all adds": share(self.added),
            "largest ms alone/with": f"{most[1]:.1f}/{most[0]:.1f}",
            "goal": goal(float(numpy.mean(shares)), *most)
            + ("" if sum(interval(shares)) <= 0.02 else "; the interval reaches beyond 2%"),
        }
        return {**figures, **self.steps, "the daemon says": self.says.replace(",", ";")}


def _budget(check, name):
    measured = Defaults()
    with check.workload(name) as w:
        time.sleep(2)
        for _ in range(check.rounds):
            measured.measure(check, w)
        failures = w.leftovers(measured.log) + w.harmed(check)
    return {**measured.figures(), **w.leaving()}, failures


# --- continuous ---

def continuous(check):
    for name in check.names:
        check.row(
            f"{name} continuous", check.rounds * (3.5 * check.seconds + 4), lambda name=name: _continuous(check, name)
        )
        check.row(f"{name} profiler", 4 * check.seconds + 20, lambda name=name: _other_profiler(check, name))


def _continuous(check, name):
    before, during, after, attach = [], [], [], []
    with check.workload(name) as w:
        time.sleep(2)
        for _ in range(check.rounds):
            before.append(measure_pace(w, check.seconds))
            begin = time.monotonic_ns()
            with Daemon(check.bin, w.pid, check.log(f"continuous {name}"), "--gpu", "continuous") as d:
                d.settled()
                time.sleep(0.5)
                attach.append(pace(w.iterations(begin, time.monotonic_ns()))["max"])
                during.append(measure_pace(w, 1.5 * check.seconds))
                seen = len(d.recording("2s").kernels())
            time.sleep(0.5)
            after.append(measure_pace(w, check.seconds))
        failures = w.leftovers() + w.harmed(check)
    base = numpy.mean([b["period"] for b in before])
    check.added[name, "continuous"] = float(numpy.mean([d["period"] for d in during]) / base - 1)
    figures = {
        "ms alone": f"{base:.4f}",
        "added while": percent(check.added[name, "continuous"]),
        "added after": percent(numpy.mean([a["period"] for a in after]) / base - 1),
        "largest ms alone/while": f"{max(b['max'] for b in before):.1f}/{max(d['max'] for d in during):.1f}",
        "largest ms at attach": f"{max(attach):.1f}",
    }
    if not seen:
        failures.append("nothing was recorded: the cost says nothing")
    return figures, failures


def _other_profiler(check, name):
    """What torch.profiler and nsys add to the same workload."""
    figures = {}
    with check.workload(name) as w:
        time.sleep(2)
        base = measure_pace(w, check.seconds)
        if not w.cpp:
            n = max(100, int(1e3 * check.seconds / base["period"] / 2))
            p = w.ask(f"profile {n} 0", 240)
            figures["torch.profiler adds"] = percent((p["end_ns"] - p["begin_ns"]) / 1e6 / n / base["period"] - 1)
            figures["and after it"] = percent(measure_pace(w, check.seconds)["period"] / base["period"] - 1)
    if check.nsys:
        with check.workload(name, gpu_nsys.command(check, name)) as w:
            time.sleep(2)
            added = measure_pace(w, check.seconds)["period"] / base["period"] - 1
        figures["nsys adds"], figures["nsys recorded MB"] = (
            percent(added),
            f"{gpu_nsys.recorded(check, name) / 1e6:.1f}",
        )
        if added > 0 and (name, "continuous") in check.added:
            figures["continuous / nsys"] = f"{100 * check.added[name, 'continuous'] / added:.0f}% (goal 25%)"
    elif w.cpp:
        figures["nsys"] = "is not installed"
    return figures, []
