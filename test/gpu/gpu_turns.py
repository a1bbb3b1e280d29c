"""The stage turns of the GPU check: what windows add to a program, in many short turns of the daemon and of nothing,
and what recording all the time adds beside what CUPTI alone does (gpu_floor.py), nsys and torch.profiler, of every
workload in one run.

A turn alone lies before and after each turn with the daemon, so a pace that drifts evenly cancels. Windows come more
often than by default here (PERIOD), and as often as asked for: what one of them takes is the difference to the time
just around it, and what they add by default follows from it. Figures of several turns or windows have the half width of
their 95% confidence interval.
"""

import contextlib
import os
import time

import numpy

import gpu_nsys
from common import interval
from gpu_cost import AFTERMATH, CLOSING, OPENING, lost_in_windows, measure_pace, percent, share
from gpu_daemon import CALL, CORRELATED, Daemon, Harm
from gpu_floor import BOTH, Floor, ended
from steps import Steps, largest

PERIOD, DEFAULT = 1.0, 2.0  # s from window to window: here, and by default
SHARE = 0.015  # of a program's time that windows may take by default: three quarters of --overhead-budget 2
UNEVEN = {"torch-eager": 2, "plain": 2}  # turns more for those whose own pace varies by some percent
# threads always inside of the driver: CUPTI alone subscribes at the start, so in a process that nobody attaches to
INSIDE = {
    "streams"
}
OFTEN = ["--gpu", "windows", "--gpu-period", f"{PERIOD:g}s", "--overhead-budget", "0"]


def turns(check):
    for name in check.names:
        needs = (
            _turns_of(check, name) * (1.5 * check.seconds + 3.2)
            + (1.5 * check.seconds + 2) * 2 * check.pairs
            + 2 * check.seconds
            + 15
        )
        check.row(f"{name} in turns", needs, lambda name=name: _measure(check, name))


def _turns_of(check, name):
    return check.rounds and check.rounds + UNEVEN.get(name, 0)


def added(during, alone):
    """Of each turn, beside the turns alone before and after it: alone has one more."""
    return [2 * d / (a + b) - 1 for d, a, b in zip(during, alone, alone[1:])]


class Turns:
    """What the turns of one workload gave."""

    def __init__(self, check, w):
        self.check, self.w = check, w
        self.alone, self.during, self.quiet, self.lost, self.largest, self.steps = [], [], [], [], [], None

    def rest(self):
        self.alone.append(measure_pace(self.w, self.check.seconds / 2))

    def watched(self):
        """One turn with the daemon; the window with which it came is not part of it."""
        with Daemon(self.check.bin, self.w.pid, self.check.log(f"turns {self.w.name}"), *OFTEN) as d:
            d.settled()
            d.wait("the first window to end", lambda: any(a["windows"] for a in d.status().get("agents") or []))
            time.sleep((CLOSING + AFTERMATH) / 1000)
            if self.steps is None:
                self.steps = Steps(d)
            self.steps.daemon = d
            begin = time.monotonic_ns()
            self.during.append(measure_pace(self.w, self.check.seconds))
            end = time.monotonic_ns()
            self.steps.look()
            windows = [
                v
                for v in d.recording(f"{self.check.seconds + 3:.0f}s").windows(self.w.pid)
                if v[0] > begin and v[1] < end
            ]
        self.quiet.append(_outside(self.w, windows, begin, end))
        # What lies before the first and after the last window of the turn is quiet, too.
        edges = [(0, begin - (CLOSING + AFTERMATH) * 10**6), *windows, (end + OPENING * 10**6, end)]
        self.lost += [sum(parts) for parts in lost_in_windows(self.w, edges)]
        self.largest += largest(self.w.iterations(begin, end))

    def figures(self):
        base = [a["period"] for a in self.alone]
        figures = {
            "ms alone": f"{numpy.median(base):.4f}",
            "alone varies by": percent(max(base) / min(base) - 1),
            "turns": len(self.during),
            f"windows each {PERIOD:g} s add": share(added([d["period"] for d in self.during], base)),
            "outside of windows": share(added(self.quiet, base)),
        }
        if len(self.lost) > 2:
            each, wide = interval(self.lost)
            period = max(DEFAULT, each / 1000 / SHARE)
            figures["a window takes ms"] = f"{each:.1f} +- {wide:.1f} ({len(self.lost)})"
            figures[f"so each {DEFAULT:g} s"] = f"{each / DEFAULT / 10:+.2f}% +- {wide / DEFAULT / 10:.2f}"
            figures["so within the budget"] = (
                f"{each / period / 10:+.2f}% +- {wide / period / 10:.2f}, each {period:.1f} s"
            )
        pauses = sorted(self.largest, reverse=True)[:3]
        figures["largest ms alone/with windows"] = (
            f"{max(a['max'] for a in self.alone):.1f}/{max(d['max'] for d in self.during):.1f}"
        )
        return {**figures, **self.steps.figures(), **self.steps.blame(pauses)}


def _outside(w, windows, begin, end):
    """Mean ms of an iteration outside of windows and what comes with them: of each thread, and of these the mean."""
    periods = []
    for times in w.iterations(begin, end):
        keep = numpy.ones(len(times), bool)
        for a, b in windows:
            keep &= (times[:, 1] < a - OPENING * 10**6) | (times[:, 0] > b + (CLOSING + AFTERMATH) * 10**6)
        starts = numpy.diff(times[:, 0]) / 1e6  # from one to the next: what lies between them is theirs
        periods.append(float(starts[keep[:-1] & keep[1:]].mean()))
    return float(numpy.mean(periods))


def _measure(check, name):
    figures, failures = {}, []
    with Floor(check, name, name in INSIDE) as f, contextlib.ExitStack() as stack:
        beside = Beside(check, f)
        if name in INSIDE:
            with check.workload(name, env=f.env) as w:
                beside.measure(w, "CUPTI alone")
                failures += w.harmed(check, must_exit=False)
        w = stack.enter_context(check.workload(name, env=None if name in INSIDE else f.env))
        time.sleep(1)
        t = Turns(check, w)
        t.rest()
        for _ in range(_turns_of(check, name)):
            t.watched()
            time.sleep(0.3)
            t.rest()
        if t.during:
            figures = t.figures()
        w.left()
        beside.measure(w, *["continuous"] if name in INSIDE else ["CUPTI alone", "continuous"])
        figures |= beside.figures()
        failures += beside.failures + w.leftovers(beside.log)
        figures |= w.leaving()
        if not w.cpp and not check.simulated:
            _torch_profiler(check, w, beside.alone[-1], figures)
        base = numpy.median([a["period"] for a in t.alone + beside.alone])
        failures += w.harmed(check, must_exit=False)
        figures |= ended(w)
    if t.during and not t.lost:
        failures.append("no window was recorded: the cost says nothing")
    if check.nsys:
        try:
            figures.update(_nsys(check, name, base, float(numpy.mean(beside.added["continuous"]))))
        except Harm as e:  # nsys's, not ours
            figures["nsys"] = " ".join(str(e).split())[:80]
    return figures, failures


class Beside:
    """Turns of CUPTI alone and of the daemon that records all the time, in the order ABBA, each between two turns
    alone."""

    def __init__(self, check, floor):
        self.check, self.w, self.floor = check, None, floor
        self.alone, self.added, self.failures, self.first, self.early, self.log = (
            [], {"CUPTI alone": [], "continuous": []}, [], [], 0, "",
        )

    def measure(self, w, *names):
        ways, self.w = {"CUPTI alone": self._cupti, "continuous": self._continuous}, w
        time.sleep(1)
        self._rest()
        for i in range(self.check.pairs):
            for way in names if i % 2 == 0 else reversed(names):
                during = ways[way]()
                time.sleep(0.3)
                self._rest()
                self.added[way] += added([during["period"]], [a["period"] for a in self.alone[-2:]])

    def _rest(self):
        self.alone.append(measure_pace(self.w, self.check.seconds / 2))

    def _cupti(self):
        if not self.floor.on(BOTH):
            raise Harm("this CUPTI cannot be asked for records and callbacks")
        time.sleep(0.3)
        during = measure_pace(self.w, self.check.seconds)
        if not self.floor.off():
            self.failures.append("no records came of CUPTI alone: the cost says nothing")
        return during

    def _continuous(self):
        """Also how long the agent needed, and what was seen until then."""
        with Daemon(
            self.check.bin, self.w.pid, self.check.log(f"turns continuous {self.w.name}"), "--gpu", "continuous"
        ) as d:
            d.settled()
            first = d.records()
            time.sleep(0.3)
            during = measure_pace(self.w, self.check.seconds)
            rec = d.recording("2s")
            early = d.recording("10m").events if first > 2 else rec.events[:0]
        self.first.append(first)
        self.log = d.said()
        self.w.left()  # CUPTI has room for one
        if len(early):
            probed = (
                (early["kind"] == CALL)
                & (early["flags"] & CORRELATED == 0)
                & (early["ts"] < d.began_ns + int(first * 1e9))
            )
            self.early += int(probed.sum())
        if not len(rec.kernels()):
            self.failures.append("nothing was recorded all the time: the cost says nothing")
        return during

    def figures(self):
        floor, ours = (float(numpy.mean(self.added[way])) for way in ("CUPTI alone", "continuous"))
        return {
            "pairs": self.check.pairs,
            "CUPTI alone adds": share(self.added["CUPTI alone"]),
            "continuous adds": share(self.added["continuous"]),
            **({"continuous / CUPTI alone": f"{100 * ours / floor:.0f}%"} if floor > 0 else {}),
            "after it": percent(self.alone[-1]["period"] / self.alone[0]["period"] - 1),
            "first record s": "/".join(f"{s:.2f}" for s in self.first),
            **({"calls seen before it": self.early} if self.early else {}),
        }


def _torch_profiler(check, w, base, figures):
    n = min(1000, max(50, int(300 * check.seconds / base["period"])))  # its events take longer to read than to record
    p = w.ask(f"profile {n} 0", 240)
    figures["torch.profiler adds"] = percent((p["end_ns"] - p["begin_ns"]) / 1e6 / n / base["period"] - 1)
    figures["after torch.profiler"] = percent(measure_pace(w, check.seconds / 2)["period"] / base["period"] - 1)


def _nsys(check, name, base, continuous):
    with check.workload(name, gpu_nsys.command(check, name)) as w:
        time.sleep(1)
        added = measure_pace(w, check.seconds)["period"] / base - 1
    figures = {"nsys adds": percent(added), "nsys recorded MB": f"{gpu_nsys.recorded(check, name) / 1e6:.1f}"}
    for path in gpu_nsys.files(check, name):
        os.unlink(path)
    if added > 0:
        figures["continuous / nsys"] = f"{100 * continuous / added:.0f}% (goal 25%)"
    return figures
