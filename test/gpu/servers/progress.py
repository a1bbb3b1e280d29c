"""Times of a program's steps, shared with the process that measures it: a file of int64, the count first, then a ring
of CLOCK_MONOTONIC ns."""

import time

import numpy

SLOTS = 1 << 20


class Writer:
    """Used by the measured program: step() after each step."""

    def __init__(self, path):
        self.ring = numpy.memmap(path, dtype="<i8", mode="w+", shape=(SLOTS + 1,))

    def step(self):
        count = int(self.ring[0])
        self.ring[1 + count % SLOTS] = time.monotonic_ns()
        self.ring[0] = count + 1


class Reader:
    """Used by the process that measures."""

    def __init__(self, path):
        self.ring = numpy.memmap(path, dtype="<i8", mode="r")

    def count(self):
        return int(self.ring[0])

    def between(self, begin, end):
        """Sorted times of the steps that ended in [begin, end), ns."""
        times = numpy.array(self.ring[1 : 1 + min(self.count(), SLOTS)])
        return numpy.sort(times[(times >= begin) & (times < end)])
