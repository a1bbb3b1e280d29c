"""The stage mps of the GPU check: programs that share a GPU through NVIDIA's Multi-Process Service, one and two at a
time.

The control daemon is started here, with pipes and logs in a folder of its own: nothing else on the machine uses it, and
no setting of the card is changed (MPS needs no exclusive mode). It is ended with the stage.
"""

import concurrent.futures
import contextlib
import os
import shutil
import subprocess
import tempfile

from gpu_daemon import TIMEOUT, Daemon, Harm

CONTROL = "nvidia-cuda-mps-control"
NAME = "plain"


class Server:
    """MPS of our own. Use as a context; environment is what its clients need."""

    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="inferscope-mps-")
        self.environment = dict(
            os.environ, CUDA_MPS_PIPE_DIRECTORY=f"{self.folder}/pipe", CUDA_MPS_LOG_DIRECTORY=f"{self.folder}/log"
        )
        for sub in ("pipe", "log"):
            os.mkdir(f"{self.folder}/{sub}", 0o700)

    def _run(self, *arguments, said=None):
        return subprocess.run(
            [CONTROL, *arguments], env=self.environment, input=said, capture_output=True, text=True, timeout=TIMEOUT
        )

    def __enter__(self):
        r = self._run("-d")
        if r.returncode:
            raise Harm(f"{CONTROL} -d ended with {r.returncode}: {r.stdout}{r.stderr}")
        return self

    def servers(self):
        """Process ids of the servers that have clients: without one, nothing runs under MPS."""
        return self._run(said="get_server_list\n").stdout.split()

    def __exit__(self, *_):
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._run(said="quit\n")
        shutil.rmtree(self.folder, ignore_errors=True)


def mps(check):
    if not shutil.which(CONTROL):
        check.table.add("mps", {"detail": "", "skipped": f"{CONTROL} is not installed"})
        return
    try:
        with Server() as server:
            for n in (1, 2):
                check.row(f"{n} of {NAME} under MPS", 25, lambda n=n: _clients(check, server, n))
    except Harm as e:
        check.table.add("mps", {"detail": "", "skipped": " ".join(str(e).split())})


def _clients(check, server, n):
    """Kernels seen = made, of n programs at a time, recorded all the time; and nothing stays."""
    figures, failures = {}, []
    with contextlib.ExitStack() as stack:
        workloads = [
            stack.enter_context(check.workload(NAME, env=server.environment, suffix=f"-{i}")) for i in range(n)
        ]
        if not server.servers():
            raise Harm("no server of MPS has started: the program does not run under it")
        daemons = [
            stack.enter_context(Daemon(check.bin, w.pid, check.log(f"mps {n} {i}"), "--gpu", "continuous"))
            for i, w in enumerate(workloads)
        ]
        for d in daemons:
            state = d.settled()
            if state["state"] != "running":
                raise Harm(f"the agent is {state['state']}: {state.get('detail')}")
            d.records()
        with concurrent.futures.ThreadPoolExecutor(n) as pool:
            made = list(pool.map(lambda w: w.ask("count 300 400", 120), workloads))
        recordings = [d.recording() for d in daemons]
        figures["servers"] = len(server.servers())
        figures["kernels seen / made"] = " ".join(
            f"{len(r.named('counted_'))}/{m['kernels']}" for r, m in zip(recordings, made)
        )
        figures["correlated"] = " ".join(f"{100 * r.correlated(r.named('counted_')):.2f}%" for r in recordings)
        failures += [
            f"{len(r.named('counted_'))} kernels seen, {m['kernels']} made"
            for r, m in zip(recordings, made)
            if len(r.named("counted_")) != m["kernels"]
        ]
        for d in daemons:
            d.stop()
        for w in workloads:
            failures += w.leftovers() + w.harmed(check)
    return figures, failures
