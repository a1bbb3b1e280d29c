"""The stage together of the GPU check: the soak of all workloads at a time, on one GPU, so that hundreds of windows and
attachments of each fit into minutes.

They take turns on the device, which makes iterations and pauses longer than they are alone: what is asked here is harm,
and what stays. Each interval alone is alone for all of them at once, and so the pace after windows and attachments can
be held against the one before. Windows leave memory, and the daemon makes them rarer for it
(internal/capture/gpu/leak_limit.go): where it does, it is said after how many, and attached anew.
"""

import collections
import concurrent.futures
import contextlib
import json
import os
import re
import time

import numpy

import gpu_memory

from gpu_cost import measure_pace, percent
from gpu_daemon import Daemon, Harm
from gpu_soak import MANY_WINDOWS, ONE_WINDOW, STOP_GOAL, growth
from gpu_workload import pace
from steps import Steps, largest

ALONE = 5.0  # s without the daemon
WINDOWS_SHARE = 0.45  # of the stage's time: what windows may take
ENDING = 30.0  # s that are kept for the end
RARER = "apart"  # what the daemon says where windows come more rarely for the memory they leave
LOOK = 4.0  # s to see how rare
WINDOW_TIMEOUT = 15.0  # s that an attachment waits for its window: where CUPTI lets nobody in, it is left without one
FIRST = 50  # windows in which CUPTI and the driver take memory that they need once


def milliseconds(text):
    """Of a duration as the daemon writes it."""
    unit = {"h": 3.6e6, "m": 6e4, "s": 1e3, "ms": 1.0, "µs": 1e-3, "ns": 1e-6}
    return sum(float(n) * unit[u] for n, u in re.findall(r"([0-9.]+)(h|ms|m|s|µs|ns)", text))


class WaysOut:
    """How attachments ended, by the daemons' logs."""

    def __init__(self):
        self.ends, self.took = collections.Counter(), []

    def read(self, log):
        said = [json.loads(line[line.index("{"):]) for line in log.splitlines() if "an agent is done with" in line]
        last = said[-1] if said else {}
        if not last.get("gone"):
            self.ends["by the agent, later than the daemon" if last.get("leaving") else "later than the daemon"] += 1
        elif "end" in last:
            self.ends[last["end"] + (" by the agent" if last["own"] else "")] += 1
            self.took.append(milliseconds(last["way_out"]))
        else:
            self.ends["none"] += 1

    def figures(self):
        took = f"{numpy.median(self.took):.1f}/{max(self.took):.1f}" if self.took else "none was seen"
        return {
            "last windows": " ".join(f"{end}:{n}" for end, n in self.ends.most_common()),
            "their ways out ms p50/max": took,
        }


class Soaked:
    """One workload and what was done to it."""

    def __init__(self, check, w, allocations):
        self.check, self.w, self.allocations = check, w, allocations
        self.paces, self.figures, self.failures, self.dead = [], {}, [], None
        self.ends, self.rarer, self.attached = {"finalized": 0, "disabled": 0, "kept": 0}, [], 0
        self.log = ""  # the last daemon's
        self.memory = []  # windows so far, resident MB

    def do(self, step, *arguments):
        """A harm to one must not end what is done to the others."""
        if self.dead is None:
            try:
                step(self, *arguments)
            except Harm as e:
                self.dead = str(e)

    def alone(self):
        self.paces.append(measure_pace(self.w, ALONE))

    # --- windows ---

    def windows(self, until):
        begin, steps, out = time.monotonic_ns(), None, 0.0
        while sum(self.ends.values()) < self.check.windows and time.monotonic() < until:
            with self._daemon("windows", *MANY_WINDOWS) as d:
                self._settled(d)
                steps = steps or Steps(d)
                steps.daemon = d
                self.attached += 1
                said = self._follow(d, steps, until)
                left = time.monotonic_ns()
            out = max(out, self._pause(left))
            for end, n in said.items():
                self.ends[end] += n
        iterations = self.w.iterations(begin, time.monotonic_ns())
        n = sum(self.ends.values())
        if n < self.check.windows:
            self.failures.append(f"only {n} windows ended in their time")
        subscribed = [v["subscribe"] / 1e6 for v in steps.windows.values()]
        self.figures |= {
            "windows": " ".join(f"{end}:{n}" for end, n in self.ends.items() if n),
            "in attachments": self.attached,
            "rarer for memory": "; ".join(self.rarer) or "never",
            "kB a window": self._slope(),
            "largest ms alone/in windows/at the way out": f"{self.paces[-1]['max']:.1f}/{pace(iterations)['max']:.1f}/{out:.1f}",
            "subscribe ms p50/max": f"{numpy.median(subscribed):.1f}/{max(subscribed):.1f}",
            **steps.blame(largest(iterations)),
        }

    def _pause(self, since):
        """The largest pause from a time on to now, ms."""
        time.sleep(0.3)
        return pace(self.w.iterations(since, time.monotonic_ns()))["max"]

    def _slope(self):
        """kB that each window leaves, of those after the first."""
        later = numpy.array([m for m in self.memory if m[0] >= FIRST])
        return f"{1000 * numpy.polyfit(later[:, 0], later[:, 1], 1)[0]:.0f}" if len(later) > 5 else "too few to say"

    def _follow(self, d, steps, until):
        """Until there are enough windows, or they become rarer; how those ended that did."""
        said, rare, at = {}, 0.0, 0
        while time.monotonic() < until and sum(said.values()) + sum(self.ends.values()) < self.check.windows:
            time.sleep(1)
            agent = self._agent(d)
            said = {
                "disabled": agent["disabled"],
                "kept": agent["kept"],
                "finalized": agent["windows"] - agent["disabled"] - agent["kept"],
            }
            steps.look()
            self.memory.append((sum(self.ends.values()) + agent["windows"], self.w.footprint()["rss_mb"]))
            if rare and time.monotonic() > rare:
                self.rarer.append(
                    f"after {at}: {agent['windows'] - at} in {LOOK:.0f} s ({agent['detail'].split(';')[0]}; "
                    f"{agent['detail'].split(' at least ')[-1]})"
                )
                break
            if not rare and RARER in agent.get("detail", ""):
                rare, at = time.monotonic() + LOOK, agent["windows"]
        return said

    # --- attachments ---

    def attachments(self, until):
        held = gpu_memory.Holdings(self.w, self.allocations)
        stops, slow, prints, windows, without, outs, ways, begin, start = (
            [], [], [], 0, 0, [], WaysOut(), time.monotonic_ns(), self.w.footprint(),
        )
        while len(prints) < self.check.cycles and time.monotonic() < until:
            with self._daemon("attachments", *ONE_WINDOW) as d:
                got = self._windows_of(d)
                stops.append(self._agent(d).get("stopped_ns", 0) / 1e6)
                windows, without, left = windows + got, without + (not got), time.monotonic_ns()
            self.w.left()
            outs.append(self._pause(left))
            self.log = d.said()
            slow += re.findall('"steps": "([^"]*)', self.log)  # of stops that took longer than they should
            ways.read(self.log)
            if not self.w.alive():
                raise Harm(f"dead after attachment {len(prints) + 1}: {self.w.process.stderr.read()[-500:]}")
            prints.append(self.w.footprint())
            if len(prints) == 10:
                held = gpu_memory.Holdings(self.w, self.allocations)
        if len(prints) < self.check.cycles:
            self.failures.append(f"only {len(prints)} attachments in their time")
        figures, late = growth(start, prints)
        whose, ours = gpu_memory.left_by(len(prints) - 10, held, gpu_memory.Holdings(self.w, self.allocations))
        self.failures += (
            late
            + ours
            + (
                [f"{sum(s > STOP_GOAL for s in stops)} stops took more than {STOP_GOAL} ms: {' | '.join(slow)}"]
                if max(stops) > STOP_GOAL
                else []
            )
        )
        self.figures |= {
            "attachments": len(prints),
            "windows in them": windows,
            "left without one": without,
            "stop ms p50/p99/max": "/".join(f"{q:.3f}" for q in numpy.quantile(stops, [0.5, 0.99, 1])),
            "largest ms in them": f"{pace(self.w.iterations(begin, time.monotonic_ns()))['max']:.1f}",
            "at the way out p50/max": f"{numpy.median(outs):.1f}/{max(outs):.1f}",
            **ways.figures(),
            **figures,
            **whose,
        }

    # --- the daemon ---

    def _daemon(self, what, *flags):
        return Daemon(
            self.check.bin, self.w.pid, self.check.log(f"together {self.w.name} {what}"), "--gpu", "windows", *flags,
            trace_mb=200,
        )

    def _agent(self, d):
        return next(
            (a for a in d.status().get("agents") or [] if a["pid"] == self.w.pid),
            {"windows": 0, "disabled": 0, "kept": 0},
        )

    def _windows_of(self, d):
        """Windows of an attachment, once one has ended; 0 where CUPTI did not let the agent in."""
        until = time.monotonic() + WINDOW_TIMEOUT
        while time.monotonic() < until and not self._agent(d)["windows"]:
            if d.process.poll() is not None:
                raise Harm(f"inferscoped ended with {d.process.returncode}: {d.said()[-500:]}")
            time.sleep(0.05)
        return self._agent(d)["windows"]

    def _settled(self, d):
        """The agent's state once it runs; where CUPTI lets it in late, that is waited for."""
        state = d.settled()
        if state["state"] != "running":
            raise Harm(f"the agent is {state['state']}: {state.get('detail')}")
        return state

    def end(self):
        """The row: it must end well."""
        self.failures += self.w.leftovers(self.log) if self.w.alive() else []
        self.figures |= self.w.leaving()
        if self.dead is None:
            self.do(lambda s: s.failures.extend(s.w.harmed(s.check)))
        self.w.ended = self.w.ended or {}  # asked once
        for when, p in zip(
            [s for s, n in (("windows", self.check.windows), ("attachments", self.check.cycles)) if n], self.paces[1:]
        ):
            self.figures[f"added after {when}"] = percent(p["period"] / self.paces[0]["period"] - 1)
        self.check.table.add(
            f"{self.w.name} together", self.figures, self.failures + ([self.dead] if self.dead else [])
        )


def together(check):
    begin, limit = time.monotonic(), check.left()
    with contextlib.ExitStack() as stack, concurrent.futures.ThreadPoolExecutor(len(check.names)) as pool:
        counted = [gpu_memory.Allocations(check.out, name) for name in check.names]
        started = pool.map(
            lambda name, a: check.workload(name, env=dict(os.environ, **a.environment())), check.names, counted
        )
        soaked = [Soaked(check, stack.enter_context(w), a) for w, a in zip(started, counted)]

        def all_at_once(step, *arguments):
            list(pool.map(lambda s: s.do(step, *arguments), soaked))

        time.sleep(1)
        all_at_once(Soaked.alone)
        if check.windows:
            all_at_once(Soaked.windows, begin + WINDOWS_SHARE * limit)
            all_at_once(Soaked.alone)
        if check.cycles:
            all_at_once(Soaked.attachments, begin + limit - ENDING)
            all_at_once(Soaked.alone)
        for s in soaked:
            s.end()
