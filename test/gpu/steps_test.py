"""Which step a pause falls on, without a GPU: python3 test/gpu/steps_test.py"""

import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import steps

try:
    import numpy
except ImportError:
    numpy = None

MS = 1_000_000
WINDOW = {
    "began_ns": 100 * MS, "opened_ns": 110 * MS, "off_ns": 160 * MS, "subscribe": 2 * MS, "set_up": 1 * MS,
    "callbacks": 1 * MS, "kinds": 6 * MS, "ending": MS // 10, "disable": 1 * MS, "flush": 2 * MS, "leave": 1 * MS,
    "finalize": 12 * MS, "longest_flush": 3 * MS, "longest_flush_from": 20 * MS,
}


class Daemon:
    def status(self):
        return {"agents": [{"window_steps": [WINDOW]}]}


class StepsTest(unittest.TestCase):
    def setUp(self):
        self.steps = steps.Steps(Daemon())
        self.steps.look()
        self.steps.look()  # the same window again

    def on(self, begin, end):
        return self.steps._of(begin * MS, end * MS)

    def test_blame(self):
        self.assertEqual(len(self.steps.windows), 1)
        self.assertEqual(self.on(158, 178), "finalize 12.0")
        self.assertEqual(self.on(103, 111), "kinds 6.0")
        self.assertEqual(self.on(129, 135), "flush while open 3.0")
        self.assertEqual(self.on(140, 150), "in an open window")
        self.assertEqual(self.on(10, 90), "in no window")
        self.assertEqual(self.on(200, 290), "in no window")

    @unittest.skipUnless(numpy, "no numpy here")
    def test_largest(self):
        times = numpy.array([[0, 5], [5, 6], [16, 17], [17, 20]], "<u8") * MS
        self.assertEqual(steps.largest([times], 2), [(10.0, 6 * MS, 16 * MS), (5.0, 0, 5 * MS)])

    def test_figures(self):
        self.assertIn("finalize:12.00/12.0", self.steps.figures()["steps ms p50/max"])


if __name__ == "__main__":
    unittest.main()
