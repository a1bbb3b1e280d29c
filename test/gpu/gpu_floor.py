"""What CUPTI itself costs a program, whoever asks it: test/gpu/floor.c in the program from its start, told by fifos to
turn records and callbacks on and off, and the stage floor, which takes that apart.
"""

import glob
import os
import select
import subprocess
import sys

import numpy

from gpu_cost import measure_pace, percent
from gpu_daemon import TIMEOUT, Harm
from gpu_workload import CPP

HERE = os.path.dirname(os.path.abspath(__file__))
CALLBACKS, RECORDS, SUBSCRIBED, SYSTEM_IDS, PINNED, ZEROED = 1, 2, 4, 8, 16, 32  # enum what of floor.c
BOTH = RECORDS | CALLBACKS  # what any tool must ask for that tells of kernels and their launches
WAYS = {
    "subscribed": SUBSCRIBED, "callbacks": CALLBACKS, "records": RECORDS, "records and callbacks": BOTH,
    "both, ids by gettid": BOTH | SYSTEM_IDS, "both, pinned": BOTH | PINNED, "both, zeroed": BOTH | ZEROED,
}
INTERVAL = 0.7  # s


class Floor:
    """A workload's floor. Use as a context around the workload's, which is started with env. One that stays subscribed
    lets nobody else in."""

    def __init__(self, check, name, stays=False):
        self.library, base = (
            os.path.abspath(f"{check.out}/floor.so"),
            os.path.abspath(f"{check.out}/floor-{name}-{os.getpid()}"),
        )
        self.paths = [f"{base}.in", f"{base}.out"]
        subprocess.run(
            ["cc", "-O2", "-shared", "-fPIC", "-pthread", "-o", self.library, f"{HERE}/floor.c", "-ldl"], check=True
        )
        self.env = dict(
            os.environ,
            CUDA_INJECTION64_PATH=self.library,
            FLOOR_CUPTI=libcupti(),
            FLOOR_IN=self.paths[0],
            FLOOR_OUT=self.paths[1],
        )
        if stays:
            self.env["FLOOR_STAYS"] = "1"

    def __enter__(self):
        for path in self.paths:
            os.mkfifo(path)
        # For reading and writing, so that neither waits for the other side.
        self.into, self.answers = (os.open(path, os.O_RDWR) for path in self.paths)
        return self

    def __exit__(self, *_):
        for fd, path in zip((self.into, self.answers), self.paths):
            os.close(fd)
            os.unlink(path)

    def _ask(self, command):
        os.write(self.into, f"{command}\n".encode())
        if not select.select([self.answers], [], [], TIMEOUT)[0]:
            raise Harm(f"the floor said nothing to {command!r}: was it loaded?")
        return os.read(self.answers, 100).decode().split()

    def on(self, what):
        """Whether CUPTI does that now; where it does less, it is turned off again."""
        said = self._ask(f"on {what}")[0]
        if said == "no":
            raise Harm(f"{self.env['FLOOR_CUPTI']} lets nobody in")
        if said == "less":
            self.off()
        return said == "on"

    def off(self):
        """Buffers that came back."""
        said = self._ask("off")
        if said[0] != "off":
            raise Harm("no call came to finalize CUPTI at")
        return int(said[1])


def ended(w):
    """The figure of a workload that had to be killed at its end: nothing of what was measured in it."""
    return {"its end": "killed, it did not exit with the floor in it"} if w.hung else {}


def libcupti():
    """A libcupti of this machine: what the environment names, that of this Python's packages, or the toolkit's."""
    patterns = [f"{p}/nvidia/*/lib/libcupti.so.1*" for p in sys.path] + [
        "/usr/local/cuda/extras/CUPTI/lib64/libcupti.so.1?"
    ]
    found = [os.environ["CUPTI"]] if os.environ.get("CUPTI") else [f for p in patterns for f in sorted(glob.glob(p))]
    if not found:
        raise Harm("no libcupti is found: name one in the environment variable CUPTI")
    return found[0]


def floor(check):
    for name in check.names:
        check.row(
            f"{name}, by what CUPTI does",
            check.rounds * (len(WAYS) + 1) * 3 * INTERVAL + 10,
            lambda name=name: _floor(check, name),
        )


def _floor(check, name):
    """Each way beside the intervals alone before and after it."""
    added, alone, failures = {way: [] for way in WAYS}, [], []
    with Floor(check, name) as f, check.workload(name, env=f.env) as w:
        measure_pace(w, 1)
        alone.append(measure_pace(w, INTERVAL)["period"])
        for _ in range(check.rounds):
            for way, what in WAYS.items():
                if not f.on(what):
                    continue
                during = measure_pace(w, INTERVAL)["period"]
                if not f.off() and what & RECORDS:
                    failures.append(f"no records came with {way}")
                alone.append(measure_pace(w, INTERVAL)["period"])
                added[way].append(during - (alone[-1] + alone[-2]) / 2)
        failures += w.harmed(check, must_exit=False)
    base, kernels = numpy.median(alone), CPP.get(name)
    figures = {
        **ended(w),
        "us an iteration alone": f"{1000 * base:.1f}",
        **({"kernels in it": kernels} if kernels else {}),
        "rounds": check.rounds,
    }
    for way, ms in added.items():
        each = f"{1e6 * numpy.median(ms) / kernels:+.0f} ns a kernel " if kernels and ms else ""
        figures[way] = f"{each}{percent(numpy.median(ms) / base)}" if ms else "cannot be asked for"
    return figures, failures
