"""Checks InferScope's view of CUDA calls against a real GPU and real PyTorch.

Usage: calls_check.py BIN_DIR OUT_DIR      (root; PyTorch and transformers installed)

One process decodes with GPT-2, eager, random weights. It is watched and left
alone in turn, so that the added time compares the process with itself. Then:
launches seen against the launches that torch itself counts, the report, and
that nothing stays attached. Prints a table; exits 1 if a check failed.
"""

import json
import os
import signal
import statistics
import subprocess
import sys
import time

ROUNDS = 7          # watched and unwatched, alternating
TOKENS = 256        # per round
LAUNCHES = ("cuLaunchKernel", "cuLaunchKernelEx", "cuLaunchCooperativeKernel")
TORCH_LAUNCHES = ("cudaLaunchKernel", "cudaLaunchKernelExC", "cudaLaunchCooperativeKernel") + LAUNCHES
SOCKET = "/tmp/inferscope-gpu-test.sock"


class Workload:
    """The decode process, driven over its stdin."""

    def __init__(self):
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "decode.py")
        self.process = subprocess.Popen(
            [sys.executable, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.pid = self._answer()["ready"]

    def _answer(self):
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the workload ended with code {self.process.wait()}")
        return json.loads(line)

    def ask(self, command):
        print(command, file=self.process.stdin, flush=True)
        return self._answer()

    def quit(self):
        print("quit", file=self.process.stdin, flush=True)
        return self.process.wait(timeout=60)


class Daemon:
    """inferscoped on one process, from ready to stopped."""

    def __init__(self, binary, pid, log, *flags):
        self.log = open(log, "w+")
        began = time.monotonic()
        self.process = subprocess.Popen(
            [binary, "--pid", str(pid), "--socket", SOCKET, *flags], stderr=self.log, stdout=self.log
        )
        while "ready" not in open(log).read():
            if self.process.poll() is not None:
                raise SystemExit(f"inferscoped ended: {open(log).read()}")
            time.sleep(0.01)
        self.ready_s = time.monotonic() - began

    def stats(self):
        """CPU seconds and resident MB of the daemon."""
        stat = open(f"/proc/{self.process.pid}/stat").read().rsplit(")", 1)[1].split()
        rss = next(l for l in open(f"/proc/{self.process.pid}/status") if l.startswith("VmRSS"))
        return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK"), int(rss.split()[1]) / 1024

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(timeout=30)
        if code != 0:
            raise SystemExit(f"inferscoped ended with {code}: {open(self.log.name).read()}")


def text_differences(pid):
    """Bytes in which the mapped text of libcuda and libcudart differs from its files.

    A uprobe is an int3 or a jump in the text: with every probe gone there is no difference.
    """
    differences = 0
    with open(f"/proc/{pid}/mem", "rb") as memory:
        for line in open(f"/proc/{pid}/maps"):
            fields = line.split(maxsplit=5)
            if len(fields) < 6 or "x" not in fields[1]:
                continue
            path = fields[5].strip()
            if not os.path.basename(path).startswith(("libcuda.so", "libcudart")):
                continue
            start, end = (int(x, 16) for x in fields[0].split("-"))
            memory.seek(start)
            mapped = memory.read(end - start)
            with open(f"/proc/{pid}/root{path}", "rb") as file:
                file.seek(int(fields[2], 16))
                stored = file.read(end - start)
            differences += sum(a != b for a, b in zip(mapped, stored)) if mapped != stored else 0
    return differences


def report(bin_dir, pid, form):
    """The report of everything that the daemon holds about pid."""
    return subprocess.run(
        [f"{bin_dir}/inferscope", "report", "--pid", str(pid), "--socket", SOCKET, "--format", form],
        check=True, capture_output=True, text=True,
    ).stdout


def alternate(bin_dir, out_dir, workload):
    """Runs watched and unwatched rounds; returns their ms per token and the last watched round's evidence."""
    watched, alone, evidence = [], [], {}
    for round_ in range(ROUNDS):
        alone.append(1e3 * workload.ask(f"tokens {TOKENS}")["seconds"] / TOKENS)
        daemon = Daemon(f"{bin_dir}/inferscoped", workload.pid, f"{out_dir}/daemon.log")
        cpu0, _ = daemon.stats()
        answer = workload.ask(f"tokens {TOKENS}")
        watched.append(1e3 * answer["seconds"] / TOKENS)
        time.sleep(0.2)  # the reader's timer
        cpu1, rss = daemon.stats()
        evidence = {
            "ready_s": daemon.ready_s,
            "cpu_share": (cpu1 - cpu0) / answer["seconds"],
            "rss_mb": rss,
            "json": json.loads(report(bin_dir, workload.pid, "json")),
            "text": report(bin_dir, workload.pid, "markdown"),
            "while": text_differences(workload.pid),
        }
        daemon.stop()
    return watched, alone, evidence


def main():
    bin_dir, out_dir = sys.argv[1:3]
    workload = Workload()
    watched, alone, evidence = alternate(bin_dir, out_dir, workload)
    after = text_differences(workload.pid)
    torch_calls = workload.ask(f"count {TOKENS}")["calls"]
    code = workload.quit()

    open(f"{out_dir}/report.md", "w").write(evidence["text"])
    json.dump(evidence["json"], open(f"{out_dir}/report.json", "w"), indent=1)
    functions = evidence["json"]["summary"]["functions"] + evidence["json"]["summary"]["inside"]
    seen = sum(f["count"] for f in functions if f["name"].split("_")[0] in LAUNCHES)
    made = sum(n for name, n in torch_calls.items() if name.split("_")[0] in TORCH_LAUNCHES)
    base, with_us = statistics.median(alone), statistics.median(watched)
    pairs = [w / a - 1 for w, a in zip(watched, alone)]
    losses = [d for d in evidence["json"]["doubts"] if d["severity"] != "info"]

    checks = [
        ("launches: seen / made by torch", f"{seen:,} / {made:,}", seen == made),
        ("events lost", str(losses or 0), not losses),
        ("text bytes changed: watched / after", f"{evidence['while']} / {after}", evidence["while"] > 0 and after == 0),
        ("workload's exit code", str(code), code == 0),
    ]
    figures = [
        ("ms per token, unwatched (median)", f"{base:.3f}"),
        ("ms per token, watched (median)", f"{with_us:.3f}"),
        ("added, median of the pairs", f"{100 * statistics.median(pairs):+.1f}%"),
        ("daemon: ready after", f"{evidence['ready_s']:.2f} s"),
        ("daemon: CPU while watching", f"{100 * evidence['cpu_share']:.2f}% of a core"),
        ("daemon: resident", f"{evidence['rss_mb']:.0f} MB"),
    ]
    print(evidence["text"])
    print(f"calls that torch counted: {torch_calls}")
    for name, value, good in checks:
        print(f"{'ok  ' if good else 'FAIL'}  {name:40} {value}")
    for name, value in figures:
        print(f"      {name:40} {value}")
    sys.exit(0 if all(good for _, _, good in checks) else 1)


if __name__ == "__main__":
    main()
