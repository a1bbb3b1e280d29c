"""Tests of twins.py, and that its changes are ones that inferscope knows: python3 test/gpu/twins_test.py"""

import ast
import glob
import os
import re
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import twins

HERE = os.path.dirname(os.path.abspath(__file__))


def row(name="gc", speedup=2.0, low=1.8, high=2.2, measured=2.1, **more):
    p = {"plan": f"without {name}", "speedup": speedup, "low": low, "high": high}
    return {
        "name": name, "planted": name, "found": name, "place": 1, "gain": p, "fix": p, "share": 0.5,
        "basis": {"error": 0.0}, "measured": {"speedup": measured, "low": measured - 0.1, "high": measured + 0.1},
        "watched": 0.97,
    } | more


class Twin:
    def __init__(self, paces):
        self.paces, self.sent = list(paces), []

    def send(self, seconds, warm):
        self.sent.append((seconds, warm))

    def answer(self):
        return {"steps": self.paces.pop(0) * 2, "seconds": 2.0}


class Measured(unittest.TestCase):
    def test_programs_take_turns_and_are_warmed(self):
        a, b = Twin([10, 20, 10, 20]), Twin([30, 50, 40, 40])
        pairs = twins.alternate(a, b)
        self.assertEqual(pairs, [(10, 30), (20, 50), (10, 40), (20, 40)])
        self.assertEqual(a.sent, [(twins.MEASURED, twins.WARM)] * 2 * twins.ROUNDS)
        self.assertEqual(twins.measured(pairs), {"speedup": 2.75, "low": 2.0, "high": 4.0})

    def test_an_interval_that_reports_do_not_print_holds_nothing(self):
        of = row(speedup=7.0, low=2.9, high=450.0, measured=6.9)
        self.assertFalse(twins.near(of["fix"], of) or twins.inside(of["fix"], of))
        self.assertIn("| at least 2.90 |", twins.line(of))
        self.assertNotIn("450", twins.line(of))

    def test_lengthened(self):
        before = [
            {"full_name": "a", "count": 2, "ns": 200},
            {"full_name": "b", "count": 1, "ns": 100},
            {"full_name": "gone", "count": 9, "ns": 900},
        ]
        after = [
            {"full_name": "a", "mean_ns": 110},
            {"full_name": "b", "mean_ns": 140},
            {"full_name": "new", "mean_ns": 1},
        ]
        self.assertAlmostEqual(twins.lengthened(before, after), 360 / 300)
        self.assertIsNone(twins.lengthened(before, []))
        self.assertIsNone(twins.lengthened(None, None))


class Predicted(unittest.TestCase):
    ANSWER = {
        "asked": {"plan": "without gc", "speedup": 3.0, "low": 2.5, "high": 3.5, "touched_ns": 4},
        "replay": {"error": 0.01, "varies": 0.1, "nodes": 5},
    }

    def test_the_finding_with_the_planted_cause_counts(self):
        gain = {"plan": "without gc", "speedup": 3.0, "low": 2.5, "high": 3.5}
        d = {"findings": [{"cause": "sleep", "share": 0.6}, {"cause": "gc", "share": 0.3, "gain": gain}]}
        f = twins.predicted(d, self.ANSWER, ("gc",))
        self.assertEqual((f["found"], f["place"], f["gain"], f["share"]), ("sleep", 2, gain, 0.3))
        self.assertEqual(f["fix"], {"plan": "without gc", "speedup": 3.0, "low": 2.5, "high": 3.5})
        self.assertEqual(f["basis"], {"error": 0.01, "varies": 0.1})

    def test_nothing_found(self):
        f = twins.predicted({"findings": None}, self.ANSWER, ("gc",))
        self.assertEqual((f["found"], f["place"], f["gain"]), ("-", 0, None))
        self.assertIn("not found", twins.line(row() | f))


class Table(unittest.TestCase):
    def test_bounds(self):
        self.assertTrue(twins.near(row()["fix"], row(speedup=2.0, measured=2.2)))
        self.assertFalse(twins.near(row()["fix"], row(speedup=2.0, measured=2.25)))
        self.assertFalse(twins.near(None, row()))
        self.assertTrue(twins.inside(row()["fix"], row(measured=2.2)))
        self.assertFalse(twins.inside(row()["fix"], row(measured=2.21)))
        self.assertFalse(twins.inside(None, row()))

    def test_failed_programs_count_as_misses(self):
        text = twins.table(
            [
                row(),
                row("sleep", measured=4.0),
                {"name": "lock", "planted": "lock", "problem": "Harm('x')"},
                {"name": "healthy-graph"},
            ]
        )
        self.assertIn(
            "| gc | gc | gc | 2.00 (1.80 to 2.20) | without gc | 2.00 (1.80 to 2.20) | 2.10 (2.00 to 2.20) | -4.8% | "
            "yes | yes | 97% |  |  |",
            text,
        )
        self.assertIn("| -50.0% | **no** | **no** |", text)
        self.assertIn("| lock | lock | failed: Harm('x') |", text)
        self.assertIn("1 of 3 (33%) are predicted to within 10%, 1 of 3 (33%) of the measured lie inside", text)
        self.assertNotIn("healthy", text)
        widths = {line.count("|") for line in text.splitlines() if line.startswith("|")}
        self.assertEqual(widths, {twins.HEADER.splitlines()[0].count("|")})

    def test_calls_add_up(self):
        with tempfile.TemporaryDirectory() as folder:
            order = list(twins.FIXES)
            twins.keep(folder, [row("sleep"), row("gc", measured=9.0)], order)
            text = twins.keep(folder, [row("gc"), {"name": "healthy-graph"}], order)
            self.assertIn("2 of 2 (100%) are predicted", text)
            self.assertLess(text.index("| gc "), text.index("| sleep "))
            with open(f"{folder}/twins.md") as f:
                self.assertEqual(f.read(), text)


class Goals(unittest.TestCase):
    @staticmethod
    def rows(**of_one):
        return [
            row("gc", ok=True, **of_one),
            row("sleep", ok=True),
            {"name": "healthy-graph", "planted": "-", "ok": True},
        ]

    def test_all_met(self):
        text, met = twins.goals(self.rows())
        self.assertTrue(met)
        self.assertEqual(
            text,
            "2 of 2 named first (goal 95%); 2 within 10% (goal 75%); 2 inside the interval (goal 90%); "
            "median width +-10.0% (goal 15%); 1 of 1 healthy acquitted",
        )

    def test_each_miss_shows(self):
        text, met = twins.goals(
            self.rows(measured=9.0)
            + [
                {"name": "gil", "planted": "gil", "ok": False, "problem": "died"},
                {"name": "healthy-products", "planted": "-", "ok": False},
            ]
        )
        self.assertFalse(met)
        for part in ("MISSED 2 of 3 named first", "MISSED 1 within", "MISSED 1 inside", "MISSED 1 of 2 healthy"):
            self.assertIn(part, text)

    def test_what_shows_nothing_does_not_count(self):
        text, met = twins.goals(
            self.rows()
            + [row("lock", measured=1.01, ok=False), {"name": "gil", "planted": "gil", "ok": True, "skipped": "no GPU"}]
        )
        self.assertTrue(met)
        self.assertTrue(text.endswith("void: lock"), text)

    def test_nothing_is_no_success(self):
        self.assertFalse(twins.goals([])[1])


class Fixes(unittest.TestCase):
    def test_every_program_that_can_be_fixed_has_a_change(self):
        programs = {}
        for name, variable in (("causes", "PROGRAMS"), ("planted", "PLANTED"), ("heldout", "HELD_OUT"),
                               ("blind", "BLIND"), ("blind2", "BLIND2"), ("blind3", "BLIND3"),
                               ("blind4", "BLIND4"), ("blind5", "BLIND5"), ("blind6", "BLIND6")):
            with open(f"{HERE}/programs/{name}.py") as f:
                for node in ast.walk(ast.parse(f.read())):
                    if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == variable:
                        programs |= {
                            k.value: [c.value for c in v.elts[1].elts]
                            for k, v in zip(node.value.keys, node.value.values)
                        }
        self.assertGreaterEqual(len(programs), 40)
        self.assertEqual(
            set(twins.FIXES), {name for name, causes in programs.items() if causes and causes != ["no-work"]}
        )
        known = set()
        for path in glob.glob(f"{HERE}/../../internal/analysis/cause/table*.go"):
            with open(path) as f:
                known.update(re.findall(r'Key:\s+"([a-z-]+)"', f.read()))
        for name, words in twins.FIXES.items():
            self.assertIn(words[0], ("--without", "--overlap", "--faster", "--kernel", "--merge"), name)
            of = words[1].partition("=")[0]
            self.assertTrue(words[0] == "--kernel" or of.startswith("*.") or of in known, f"{name}: {of} is no cause")


if __name__ == "__main__":
    unittest.main()
