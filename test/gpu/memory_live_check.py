"""Checks what InferScope says of a framework's GPU memory against PyTorch itself.

Usage: memory_live_check.py BIN_DIR OUT_DIR [--quick]     (root; a GPU, PyTorch)

A process of memory_live.py is watched after it has loaded its weights. Checked are: bytes in blocks and in segments and
counts of allocations against torch.cuda.memory_stats; live bytes by line against torch's own memory history; three
planted leaks; an allocation that fails; the exports; and what watching costs at 30,000 allocations a second, watched
and not in turn. Each attachment asks whether the process lives. Prints a table; exits 1 if a check failed.
"""

import json
import os
import statistics
import subprocess
import sys
import time

from common import SOCKET, Daemon, print_checks

ROUNDS = 6      # of watched and not, in turn
RATE = 30_000   # allocations a second
CHURN = 120_000  # allocations of one round
FLAGS = ("--gpu", "off", "--overhead-budget", "0", "--scheduling=false")


class Victim:
    """memory_live.py, driven over its stdin."""

    def __init__(self):
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "memory_live.py")
        self.process = subprocess.Popen(
            [sys.executable, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.pid = self.process.pid
        self.ready = self._answer()

    def _answer(self):
        line = self.process.stdout.readline()
        if not line:
            print(f"DEATH: the watched process ended with code {self.process.wait()}", flush=True)
            raise SystemExit(1)
        return json.loads(line)

    def ask(self, command):
        print(command, file=self.process.stdin, flush=True)
        return self._answer()

    def lives(self, when):
        """Says a death at once."""
        code = self.process.poll()
        if code is not None:
            print(f"DEATH {when}: code {code}", flush=True)
            raise SystemExit(1)

    def quit(self):
        print("quit", file=self.process.stdin, flush=True)
        return self.process.wait(timeout=60)


def client(bin_dir, *args):
    return subprocess.run(
        [f"{bin_dir}/inferscope", *args],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "INFERSCOPE_SOCKET": SOCKET},
    ).stdout


def memory(bin_dir, pid, *flags):
    """The first GPU of `inferscope memory`."""
    text = client(bin_dir, "memory", "--pid", str(pid), "--json", *flags)
    devices = [d for d in json.loads(text)["memory"]["devices"] if d["type"] == "cuda"]
    return devices[0]


def totals(bin_dir, victim, checks):
    start = victim.ask("state")
    worst = 0
    for n in (10, 100, 400):
        victim.ask(f"steps {n}")
        torch_says = victim.ask("state")
        seen = memory(bin_dir, victim.pid)
        worst = max(
            worst,
            abs(seen["allocated_bytes"] - torch_says["allocated"]),
            abs(seen["reserved_bytes"] - torch_says["reserved"]),
        )
        checks.append(
            (
                f"after {n} steps: allocated, torch / seen",
                f"{torch_says['allocated']} / {seen['allocated_bytes']}",
                seen["allocated_bytes"] == torch_says["allocated"],
            )
        )
        checks.append(
            (
                f"after {n} steps: reserved, torch / seen",
                f"{torch_says['reserved']} / {seen['reserved_bytes']}",
                seen["reserved_bytes"] == torch_says["reserved"],
            )
        )
    counted = torch_says["allocations"] - start["allocations"]
    checks.append(
        (
            "allocations since the attach, torch / seen",
            f"{counted} / {seen['allocations']}",
            counted == seen["allocations"],
        )
    )
    checks.append(
        (
            "frees since the attach, torch / seen",
            f"{torch_says['frees'] - start['frees']} / {seen['frees']}",
            torch_says["frees"] - start["frees"] == seen["frees"],
        )
    )
    checks.append(("peak, torch / seen", f"{torch_says['peak']} / {seen['peak_bytes']}", None))
    checks.append(("before the attach", seen["before_bytes"], seen["before_bytes"] == start["allocated"]))


def places(bin_dir, victim, checks):
    history = victim.ask("keep")
    sites = memory(bin_dir, victim.pid)["sites"]
    # torch's innermost line is that of block(), InferScope's as well: the caller tells the keepers apart.
    by_stack, ranges = {}, {}
    for s in sites:
        keeper = next((f["name"] for f in s["stack"] if f["name"].startswith("keeper_")), None)
        if keeper:
            by_stack[keeper] = by_stack.get(keeper, 0) + s["live_bytes"]
            low, high = ranges.get(keeper, (0, 0))
            ranges[keeper] = (low + s["live_low_bytes"], high + s["live_high_bytes"])
    for i in range(12):
        # Blocks are larger than what the keeper asks for where the allocator leaves a remainder with them.
        want = history["places"].get(f"keeper_{i}", 0)
        got, (low, high) = by_stack.get(f"keeper_{i}", 0), ranges.get(f"keeper_{i}", (0, 0))
        good = low <= want <= high and (i < 2 or abs(got - want) <= 0.05 * want)
        checks.append((f"keeper_{i}: live bytes, torch's history / seen, range", f"{want} / {got}, {low}-{high}", good))
    in_history = sum(b for p, b in history["places"].items() if "block" in p)
    checks.append(
        (
            "bytes at the line of block(), torch's history / seen",
            f"{in_history} / {sum(by_stack.values())}",
            abs(in_history - sum(by_stack.values())) <= 0.05 * in_history,
        )
    )


def leaks(bin_dir, victim, checks):
    victim.ask("leak 1500")
    d = memory(bin_dir, victim.pid, "--last", "6s")
    found = {}
    for leak in d["leaks"]:
        s = d["sites"][leak["site"]]
        for f in s["stack"][:3]:
            if f["name"].endswith("_leak"):
                found[f["name"]] = (leak["bytes_per_s"], f"{os.path.basename(f.get('file', ''))}:{f.get('line')}")
    for name in ("first_leak", "second_leak", "third_leak"):
        checks.append((f"planted {name}", found.get(name, "not found"), name in found))
    others = [
        d["sites"][l["site"]]["name"]
        for l in d["leaks"]
        if not any(f["name"].endswith("_leak") for f in d["sites"][l["site"]]["stack"][:3])
    ]
    checks.append(("leaks that were not planted", others, not others))


def exhausted(bin_dir, victim, checks):
    answer = victim.ask("oom")
    d = memory(bin_dir, victim.pid)
    failed = d["out_of_memory"]
    checks.append(
        ("an allocation failed in torch / seen", f"{answer['caught'] is not None} / {len(failed)}", len(failed) >= 1)
    )
    if failed:
        held = sum(h["bytes"] for h in failed[-1]["live"])
        checks.append(
            (
                "it asked for, torch / seen",
                f"{answer['asked']} / {failed[-1]['asked_bytes']}",
                failed[-1]["asked_bytes"] >= answer["asked"],
            )
        )
        checks.append(
            (
                "held then, in blocks / explained",
                f"{failed[-1]['allocated_bytes']} / {held}",
                abs(held - failed[-1]["allocated_bytes"]) <= 0.05 * failed[-1]["allocated_bytes"],
            )
        )
        checks.append(
            (
                "where",
                [f["name"] for f in failed[-1]["stack"]][:3],
                any(f["name"] == "oom" for f in failed[-1]["stack"]),
            )
        )


def exports(bin_dir, out_dir, victim, checks):
    import pickle

    snapshot = f"{out_dir}/snapshot.pickle"
    client(bin_dir, "export", "--pid", str(victim.pid), "--to", "memory_viz", "-o", snapshot)
    with open(snapshot, "rb") as f:
        data = pickle.load(f)
    checks.append(
        (
            "memory_viz: segments, trace entries",
            f"{len(data['segments'])}, {[len(t) for t in data['device_traces']]}",
            len(data["segments"]) > 0,
        )
    )
    try:
        from torch.cuda import _memory_viz

        page = _memory_viz.trace_plot(data)
        checks.append(("torch's own _memory_viz draws it", f"{len(page)} bytes", len(page) > 1000))
    except Exception as e:  # noqa: BLE001 - whatever it is, it is the answer
        checks.append(("torch's own _memory_viz draws it", repr(e), False))
    heap = f"{out_dir}/heap.pb.gz"
    client(bin_dir, "export", "--pid", str(victim.pid), "--to", "heap", "-o", heap)
    checks.append(("pprof heap, bytes", os.path.getsize(heap), os.path.getsize(heap) > 100))


def cost(bin_dir, out_dir, victim, checks, rounds):
    rate = victim.ask(f"calibrate {RATE}")["rate"]
    alone, watched, stacks = [], [], []
    churn = lambda: victim.ask(f"churn {CHURN}")["seconds"]
    churn()
    for i in range(rounds):
        order = ("alone", "watched", "stacks") if i % 2 == 0 else ("stacks", "watched", "alone")  # ABBA
        for what in order:
            if what == "alone":
                alone.append(churn())
                continue
            hz = "0" if what == "watched" else "99"
            daemon = Daemon(
                f"{bin_dir}/inferscoped", victim.pid, f"{out_dir}/cost.log", "--cpu-sampling-frequency-hz", hz, *FLAGS
            )
            time.sleep(0.5)
            (watched if what == "watched" else stacks).append(churn())
            victim.lives("while it is watched")
            daemon.stop()
            victim.lives("after the daemon left")
    base = statistics.median(alone)
    for name, values, limit in (
        ("without stacks", watched, 0.02),
        ("with stacks, CPU samples at 99 Hz as well", stacks, None),
    ):
        added = statistics.median(values) / base - 1
        ns = (statistics.median(values) - base) / CHURN / 2 * 1e9
        checks.append(
            (
                f"cost at {rate:.0f} allocations/s, {name}",
                f"{100 * added:+.2f}% ({ns:.0f} ns a call), alone {base:.3f} s ± {statistics.pstdev(alone):.3f}",
                None if limit is None else added <= limit,
            )
        )


def main():
    bin_dir, out_dir = sys.argv[1:3]
    quick = "--quick" in sys.argv
    os.makedirs(out_dir, exist_ok=True)
    victim = Victim()
    checks = []
    daemon = Daemon(f"{bin_dir}/inferscoped", victim.pid, f"{out_dir}/memory.log", *FLAGS)
    time.sleep(2)  # the unwinder and the interpreter's layout
    for check in (totals, places, leaks, exhausted):
        check(bin_dir, victim, checks)
        victim.lives(f"after {check.__name__}")
    exports(bin_dir, out_dir, victim, checks)
    open(f"{out_dir}/memory.txt", "w").write(client(bin_dir, "memory", "--pid", str(victim.pid)))
    daemon.stop()
    victim.lives("after the daemon left")
    cost(bin_dir, out_dir, victim, checks, 2 if quick else ROUNDS)
    checks.append(("the process's exit code", victim.quit(), None))
    good = print_checks(checks)
    sys.exit(0 if good and checks[-1][1] == 0 else 1)


main()
