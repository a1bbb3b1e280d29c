"""The stage together of the GPU check: the soak of all workloads at a time, on one GPU, so that hundreds of windows and attachments of
each fit into minutes.

They take turns on the device, which makes iterations and pauses longer than they are alone: what is asked here is harm, and what stays. Each
stretch alone is alone for all of them at once, and so the pace after windows and attachments can be held against the one before. Windows
leave memory, and the daemon makes them rarer for it (internal/gpu/thrift.go): where it does, it is said after how many, and attached anew.
"""

import concurrent.futures
import contextlib
import time

import numpy

from gpu_cost import percent, stretch
from gpu_daemon import Daemon, Harm
from gpu_soak import MANY_WINDOWS, ONE_WINDOW, STOP_GOAL, growth
from gpu_workload import pace
from steps import Steps, largest

ALONE = 5.0  # s of a stretch without the daemon
WINDOWS_SHARE = 0.45  # of the stage's time: what windows may take
ENDING = 30.0  # s that are kept for the end
RARER = "apart"  # what the daemon says where windows come more rarely for the memory they leave
LOOK = 4.0  # s to see how rare


class Soaked:
    """One workload and what was done to it."""

    def __init__(self, check, w):
        self.check, self.w = check, w
        self.paces, self.figures, self.failures, self.dead = [], {}, [], None
        self.ends, self.rarer, self.attached = {"finalized": 0, "disabled": 0, "kept": 0}, [], 0

    def do(self, step, *arguments):
        """A harm to one must not end what is done to the others."""
        if self.dead is None:
            try:
                step(self, *arguments)
            except Harm as e:
                self.dead = str(e)

    def alone(self):
        self.paces.append(stretch(self.w, ALONE))

    # --- windows ---

    def windows(self, until):
        before, begin, steps = self.w.footprint(), time.monotonic_ns(), None
        while sum(self.ends.values()) < self.check.windows and time.monotonic() < until:
            with self._daemon("windows", *MANY_WINDOWS) as d:
                self._settled(d)
                steps = steps or Steps(d)
                steps.daemon = d
                self.attached += 1
                said = self._follow(d, steps, until)
            for end, n in said.items():
                self.ends[end] += n
        iterations = self.w.iterations(begin, time.monotonic_ns())
        n, after = sum(self.ends.values()), self.w.footprint()
        if n < self.check.windows:
            self.failures.append(f"only {n} windows ended in their time")
        subscribed = [v["subscribe"] / 1e6 for v in steps.windows.values()]
        self.figures |= {
            "windows": " ".join(f"{end}:{n}" for end, n in self.ends.items() if n), "in attachments": self.attached,
            "rarer for memory": "; ".join(self.rarer) or "never", "kB a window": f"{1000 * (after['rss_mb'] - before['rss_mb']) / max(1, n):.0f}",
            "largest ms alone/in windows": f"{self.paces[-1]['max']:.1f}/{pace(iterations)['max']:.1f}",
            "subscribe ms p50/max": f"{numpy.median(subscribed):.1f}/{max(subscribed):.1f}", **steps.blame(largest(iterations)),
        }

    def _follow(self, d, steps, until):
        """Until there are enough windows, or they become rarer; how those ended that did."""
        said, rare = {}, 0.0
        while time.monotonic() < until and sum(said.values()) + sum(self.ends.values()) < self.check.windows:
            time.sleep(1)
            agent = self._agent(d)
            said = {"disabled": agent["disabled"], "kept": agent["kept"], "finalized": agent["windows"] - agent["disabled"] - agent["kept"]}
            steps.look()
            if rare and time.monotonic() > rare:
                self.rarer.append(f"after {at}: {agent['windows'] - at} in {LOOK:.0f} s ({agent['detail'].split(';')[0]}; {agent['detail'].split(' at least ')[-1]})")
                break
            if not rare and RARER in agent.get("detail", ""):
                rare, at = time.monotonic() + LOOK, agent["windows"]
        return said

    # --- attachments ---

    def attachments(self, until):
        stops, prints, windows, begin, start = [], [], 0, time.monotonic_ns(), self.w.footprint()
        while len(prints) < self.check.cycles and time.monotonic() < until:
            with self._daemon("attachments", *ONE_WINDOW) as d:
                stops.append(self._settled(d).get("stopped_ns", 0) / 1e6)
                d.wait("a window to end", lambda d=d: self._agent(d)["windows"])
                windows += self._agent(d)["windows"]
            if not self.w.alive():
                raise Harm(f"dead after attachment {len(prints) + 1}: {self.w.process.stderr.read()[-500:]}")
            prints.append(self.w.footprint())
        if len(prints) < self.check.cycles:
            self.failures.append(f"only {len(prints)} attachments in their time")
        figures, late = growth(start, prints)
        self.failures += late + ([f"{sum(s > STOP_GOAL for s in stops)} stops took more than {STOP_GOAL} ms"] if max(stops) > STOP_GOAL else [])
        self.figures |= {
            "attachments": len(prints), "windows in them": windows, "stop ms p50/p99/max": "/".join(f"{q:.3f}" for q in numpy.quantile(stops, [0.5, 0.99, 1])),
            "largest ms in them": f"{pace(self.w.iterations(begin, time.monotonic_ns()))['max']:.1f}", **figures,
        }

    # --- the daemon ---

    def _daemon(self, what, *flags):
        return Daemon(self.check.bin, self.w.pid, self.check.log(f"together {self.w.name} {what}"), "--gpu", "windows", *flags, trace_mb=200)

    def _agent(self, d):
        return next((a for a in d.status().get("agents") or [] if a["pid"] == self.w.pid), {"windows": 0, "disabled": 0, "kept": 0})

    def _settled(self, d):
        """The agent's state once it runs; where CUPTI lets it in late, that is waited for."""
        state = d.settled()
        if state["state"] != "running":
            raise Harm(f"the agent is {state['state']}: {state.get('detail')}")
        return state

    def end(self):
        """The row: it must end well."""
        self.failures += self.w.leftovers() if self.w.alive() else []
        if self.dead is None:
            self.do(lambda s: s.failures.extend(s.w.harmed(s.check)))
        self.w.ended = self.w.ended or {}  # asked once
        for when, p in zip(("windows", "attachments"), self.paces[1:]):
            self.figures[f"added after {when}"] = percent(p["period"] / self.paces[0]["period"] - 1)
        self.check.table.add(f"{self.w.name} together", self.figures, self.failures + ([self.dead] if self.dead else []))


def together(check):
    begin, limit = time.monotonic(), check.left()
    with contextlib.ExitStack() as stack, concurrent.futures.ThreadPoolExecutor(len(check.names)) as pool:
        soaked = [Soaked(check, stack.enter_context(w)) for w in pool.map(check.workload, check.names)]

        def all_at_once(step, *arguments):
            list(pool.map(lambda s: s.do(step, *arguments), soaked))

        time.sleep(1)
        all_at_once(Soaked.alone)
        all_at_once(Soaked.windows, begin + WINDOWS_SHARE * limit)
        all_at_once(Soaked.alone)
        all_at_once(Soaked.attachments, begin + limit - ENDING)
        all_at_once(Soaked.alone)
        for s in soaked:
            s.end()
