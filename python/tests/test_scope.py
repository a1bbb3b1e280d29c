"""Tests of the package as a program uses it: what it writes is read back as the daemon reads it, out of
/proc/PID/maps."""

import asyncio
import json
import os
import struct
import subprocess
import sys
import threading
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

from inferscope import _ring, _scope, scope


def lease(seconds):
    """Does what the daemon does: says until when somebody records."""
    _scope._state.open()
    _scope._state.words[4] = time.monotonic_ns() + int(seconds * 1e9) if seconds else 0


def records():
    """All records in the ring, as dicts, in their order."""
    data = bytes(_scope._state.ring._map)
    names = data[_ring.HEADER + _ring.SLOTS * _ring.RECORD:]

    def name(at):
        if at == _ring.NO_NAME:
            return None
        size, = struct.unpack_from("<H", names, at)
        return names[at + 2:at + 2 + size].decode()

    out = []
    for i in range(_ring.SLOTS):
        seq, start, end, tid, at, number, parent, task, attributes, _ = struct.unpack_from(
            "<QQQIIQQQII", data, _ring.HEADER + i * _ring.RECORD
        )
        if seq:
            out.append(
                {
                    "seq": seq, "start": start, "end": end, "tid": tid, "name": name(at), "id": number,
                    "parent": parent, "task": task,
                    "attributes": attributes != _ring.NO_NAME and json.loads(name(attributes)) or {},
                }
            )
    return sorted(out, key=lambda r: r["seq"])


class ScopeTest(unittest.TestCase):
    def setUp(self):
        _scope._state = _scope._State()
        lease(60)

    def test_nesting_and_times(self):
        before = time.monotonic_ns()
        with scope("outer"):
            with scope("inner", batch=32, model="m"):
                pass
        inner, outer = records()
        self.assertEqual((inner["name"], outer["name"]), ("inner", "outer"))
        self.assertEqual((inner["parent"], outer["parent"]), (outer["id"], 0))
        self.assertEqual(inner["attributes"], {"batch": 32, "model": "m"})
        self.assertEqual(inner["tid"], threading.get_native_id())
        self.assertTrue(
            before <= outer["start"] <= inner["start"] <= inner["end"] <= outer["end"] <= time.monotonic_ns()
        )

    def test_nothing_is_written_while_nobody_records(self):
        lease(0)
        with scope("quiet"):
            pass
        _scope._state.words[4] = time.monotonic_ns() - 1  # the daemon died
        with scope("quiet"):
            pass
        self.assertEqual(records(), [])

    def test_exceptions_pass_and_end_the_scope(self):
        with self.assertRaises(KeyError):
            with scope("failing"):
                raise KeyError("x")
        with scope("after"):
            pass
        self.assertEqual([(r["name"], r["parent"]) for r in records()], [("failing", 0), ("after", 0)])

    def test_decorator(self):
        @scope("work", kind="a")
        def double(x):
            "doc"
            return 2 * x

        self.assertEqual((double(2), double.__name__, double.__doc__), (4, "double", "doc"))
        self.assertEqual([r["name"] for r in records()], ["work"])

    def test_threads_that_share_a_scope(self):
        shared, rounds = scope("shared"), 200

        def run():
            for _ in range(rounds):
                with shared:
                    with scope("inside"):
                        pass

        threads = [threading.Thread(target=run) for _ in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        got = records()
        self.assertEqual(len(got), 4 * rounds * 2)
        around = {r["id"]: r for r in got if r["name"] == "shared"}
        for r in got:
            if r["name"] == "inside":
                self.assertEqual(r["tid"], around[r["parent"]]["tid"])

    def test_asyncio_tasks_do_not_mix(self):
        @scope("embed")
        async def embed(n):
            await asyncio.sleep(0.01)
            with scope("inside"):
                await asyncio.sleep(0.01)
            return n

        async def main():
            return await asyncio.gather(*(embed(i) for i in range(5)))

        loop = asyncio.new_event_loop()
        self.assertEqual(loop.run_until_complete(main()), [0, 1, 2, 3, 4])
        loop.close()
        got = records()
        outer = {r["id"]: r for r in got if r["name"] == "embed"}
        inside = [r for r in got if r["name"] == "inside"]
        self.assertEqual(len({r["task"] for r in outer.values()} - {0}), 5)
        self.assertEqual({r["task"] for r in inside}, {r["task"] for r in outer.values()})
        for r in inside:
            self.assertEqual(outer[r["parent"]]["task"], r["task"])

    def test_old_records_make_room(self):
        for i in range(_ring.SLOTS + 10):
            with scope("many"):
                pass
        got = records()
        self.assertEqual((len(got), got[0]["seq"], got[-1]["seq"]), (_ring.SLOTS, 11, _ring.SLOTS + 10))

    def test_a_child_of_a_parent_that_nobody_records(self):
        lease(0)
        pid = os.fork()
        if pid == 0:
            os._exit(0 if _scope._state.words is None else 1)
        self.assertEqual(os.waitpid(pid, 0)[1], 0)

    def test_attributes_leave_room_for_names(self):
        for i in range(12_000):
            with scope("request", number=i, padding="x" * 40):
                pass
        with scope("new"):
            pass
        got = records()
        self.assertEqual((got[-1]["name"], got[-2]["name"], got[-2]["attributes"]), ("new", "request", {}))

    def test_names_without_end_are_bounded(self):
        for i in range(12_000):
            with scope("name-%d-%s" % (i, "x" * 40)):
                pass
        self.assertIsNone(records()[-1]["name"])

    def test_records_are_written_where_stores_need_a_fence(self):
        # As on arm64. That the fence keeps stores in their order cannot be seen on x86-64; where it stands can.
        seen = []

        class Order(type(_scope._state.ring)):
            """Notes at each fence the record's number and when its scope began."""

            def _fence(self):
                super()._fence()
                word = _ring.HEADER // 8
                seen.append((self.words[word], self.words[word + 1] != 0))

        before, _ring._STORES_KEEP_ORDER = _ring._STORES_KEEP_ORDER, False
        _scope._state.ring.__class__ = Order
        try:
            with scope("fenced"):
                pass
        finally:
            _ring._STORES_KEEP_ORDER = before
        self.assertEqual([r["name"] for r in records()], ["fenced"])
        # 0 stands before the first and the body after it; the number comes after the second.
        self.assertEqual(seen, [(0, False), (0, True)])

    def test_a_child_has_a_ring_of_its_own(self):
        with scope("parent"):
            pass
        pid = os.fork()
        if pid == 0:
            ok = _scope._state.words[4] > time.monotonic_ns()  # the daemon that records the parent will find it
            with scope("child"):
                pass
            got = records()
            os._exit(0 if ok and [r["name"] for r in got] == ["child"] else 1)
        self.assertEqual(os.waitpid(pid, 0)[1], 0)
        self.assertEqual([r["name"] for r in records()], ["parent"])

    def test_the_daemon_can_find_it(self):
        with open("/proc/self/maps") as maps:
            self.assertIn("/memfd:inferscope-scopes", maps.read())


class WithoutTest(unittest.TestCase):
    """Where it cannot work, it does nothing."""

    def run_python(self, code, **env):
        path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
        return subprocess.run(
            [sys.executable, "-c", code],
            env=dict(os.environ, PYTHONPATH=path, **env),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            universal_newlines=True,
        )

    def test_switched_off(self):
        done = self.run_python(
            "import inferscope\nwith inferscope.scope('a'): pass\n"
            "print(open('/proc/self/maps').read().count('inferscope-scopes'), inferscope.save_report())",
            INFERSCOPE_ENABLED="0",
        )
        self.assertEqual((done.stdout.split(), done.stderr), (["0", "None"], ""))

    def test_the_ring_is_there_after_the_import(self):
        code = "import inferscope\nprint(open('/proc/self/maps').read().count('inferscope-scopes'), inferscope._scope._state.words[4] > 0)"
        self.assertEqual(self.run_python(code).stdout.split(), ["1", "False"])
        self.assertEqual(self.run_python(code, INFERSCOPE_RUN="1").stdout.split(), ["1", "True"])

    def test_a_system_without_memfd(self):
        done = self.run_python(
            "import os\ndel os.memfd_create\nimport inferscope\nwith inferscope.scope('a'): print('in')"
        )
        self.assertEqual((done.stdout.strip(), done.stderr), ("in", ""))

    def test_save_report_without_the_program(self):
        done = self.run_python(
            "import inferscope\ntry:\n    inferscope.save_report()\nexcept inferscope.ReportError as e:\n    print(e)",
            PATH="/nonexistent",
        )
        self.assertIn("INFERSCOPE_BIN", done.stdout)


if __name__ == "__main__":
    unittest.main()
