"""The steps of windows, as the agent measured them (`inferscope status`), and on which of them a pause of a program's
own work fell.

Only what gpu_check.py hands over is used, so that steps_test.py needs no GPU.
"""

import statistics

IN = ("subscribe", "set_up", "callbacks", "kinds")  # of the way in, one after the other from began_ns on
OUT = ("disable", "flush", "leave", "finalize")  # of the way out, one after the other from off_ns on
PAUSES = 3  # that are looked at


class Steps:
    """Collects the steps of all windows: a daemon remembers the last 64 of each agent."""

    def __init__(self, daemon):
        self.daemon, self.windows = daemon, {}

    def look(self):
        for agent in self.daemon.status().get("agents") or []:
            for w in agent.get("window_steps") or []:
                self.windows[w["began_ns"]] = w

    def intervals(self):
        """(step, begin, end) of each step of each window, CLOCK_MONOTONIC ns."""
        for w in self.windows.values():
            for at, steps in ((w["began_ns"], IN), (w["off_ns"], OUT)):
                for step in steps:
                    yield step, at, at + w[step]
                    at += w[step]
            yield "ending", w["off_ns"] - w["ending"], w["off_ns"]
            yield (
                "flush while open",
                w["opened_ns"] + w["longest_flush_from"],
                w["opened_ns"] + w["longest_flush_from"] + w["longest_flush"],
            )

    def figures(self):
        """ms of each step, median / largest."""
        by = {}
        for step, begin, end in self.intervals():
            by.setdefault(step, []).append((end - begin) / 1e6)
        return {
            "steps ms p50/max": " ".join(
                f"{step}:{statistics.median(v):.2f}/{max(v):.1f}" for step, v in by.items() if max(v) >= 0.05
            )
        }

    def blame(self, pauses):
        """Each pause [ms, begin, end] with the step that covers most of it."""
        return {"largest pauses ms, on": "; ".join(f"{ms:.1f} {self._of(begin, end)}" for ms, begin, end in pauses)}

    def _of(self, begin, end):
        covered = {}
        for step, a, b in self.intervals():
            if min(b, end) > max(a, begin):
                covered[step] = covered.get(step, 0) + (min(b, end) - max(a, begin)) / 1e6
        if covered:
            step = max(covered, key=covered.get)
            if covered[step] >= 0.1:
                return f"{step} {covered[step]:.1f}"
        if any(w["opened_ns"] < end and w["off_ns"] > begin for w in self.windows.values()):
            return "in an open window"
        return "in no window"


def largest(iterations, n=PAUSES):
    """The n longest pauses of all threads, each (ms, begin, end): an iteration, or what lies between two."""
    found = []
    for times in iterations:
        for begin, end in ((times[:, 0], times[:, 1]), (times[:-1, 1], times[1:, 0])):
            took = end - begin
            found += [(took[i] / 1e6, int(begin[i]), int(end[i])) for i in took.argsort()[-n:]]
    return sorted(found, reverse=True)[:n]
