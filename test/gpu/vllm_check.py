#!/usr/bin/env python3
"""Compares what a recording says of vLLM's requests and steps with a client's own clock and with vLLM's /metrics.

    sudo python3 test/gpu/vllm_check.py --bin bin [--archive FILE.tar.xz ... | --packages DIR] [--eager] [--rounds 3]

vLLM 0.24 is taken from --archive files, which are unpacked into a folder of its own, from a folder of packages, or is
the installed one. Its model is a small llama with random weights and a tokenizer of words, both made on the spot;
nothing is downloaded. Requests are streamed by 1 and by 16 clients. After each attachment the server is asked whether
it lives; attachments and deaths are printed at the end, with the address and the module of the fault. Exit code 1: a
check failed, or the server died.
"""
import argparse
import http.client
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import traceback

import common
import engines
import requests_check

HERE = os.path.dirname(os.path.abspath(__file__))
LOADS = ((1, 4), (16, 2))  # streams and rounds of each attachment


def unpack(archives):
    folder = tempfile.mkdtemp(prefix="vllm-")
    for a in archives:
        subprocess.run(["tar", "xf", a, "-C", folder], check=True)
    return folder


def metrics(port):
    """Sums of vLLM's counters and histograms by name."""
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    c.request("GET", "/metrics")
    out = {}
    for line in c.getresponse().read().decode().splitlines():
        m = re.match(r"(vllm:\w+)(?:\{.*\})? (\S+)$", line)
        if m and not m[1].endswith("_bucket"):
            out[m[1]] = out.get(m[1], 0) + float(m[2])
    c.close()
    return out


class Server:
    """vLLM, with what requests_check.Daemon asks of a target."""

    def __init__(self, args, port, model):
        self.port, self.log = port, open(os.path.join(tempfile.mkdtemp(), "vllm.log"), "w+")
        names = ["m", *(tag for load in LOADS for tag in requests_check.tags(*load))]
        env = engines.environment(unpack(args.archive) if args.archive else args.packages)
        env["LD_PRELOAD"] = common.fault_library(os.path.dirname(self.log.name))
        self.process = common.start(
            engines.vllm(model, port, names, args.seqs, args.eager),
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=self.log,
            env=env,
        )
        self.pid = self.process.pid

    def await_ready(self):
        try:
            requests_check.await_answer(self.process, self.log.name, self.port, "m")
        except requests_check.NoAnswer as e:
            sys.exit(f"vLLM does not answer: {e}")

    def aftermath(self):
        return common.aftermath(self.process, self.log.name)

    def alive(self):
        """Whether the server and its engine answer."""
        try:
            return self.process.poll() is None and bool(requests_check.ask(self.port, 2, "m")["own"])
        except (OSError, http.client.HTTPException, ValueError):
            return False


def delta(after, before, name):
    return after.get(name, 0) - before.get(name, 0)


def keep(args, daemon, pid, name, text):
    """Leaves a report in --out, as JSON and as people read it."""
    if not args.out:
        return
    os.makedirs(args.out, exist_ok=True)
    with open(os.path.join(args.out, f"{name}.json"), "w") as f:
        f.write(text)
    for form in (
        ["-o", os.path.join(args.out, f"{name}.html")],
        ["--full", "--no-pager", "-f", "text", "-o", os.path.join(args.out, f"{name}.txt")],
    ):
        subprocess.run(
            [f"{args.bin}/inferscope", "--socket", daemon.socket, "report", str(pid), *form],
            check=True,
            stdout=subprocess.DEVNULL,
        )


def compare(args, server, streams, rounds):
    """One attachment: what the client, vLLM and the report say. Returns what failed."""
    daemon = requests_check.Daemon(args, server.pid, "--pin-level", "requests=all")
    try:
        before = metrics(server.port)
        seen, rate = requests_check.load(server.port, streams, rounds, args.tokens)
        if len(seen) != streams * rounds:
            print(f"requests without an answer: {server.aftermath()}")
            return [f"{streams * rounds - len(seen)} of {streams * rounds} requests had no answer"]
        time.sleep(1)
        after = metrics(server.port)
        text = daemon.client("report", str(server.pid), "--json")
        keep(args, daemon, server.pid, f"vllm-{streams}", text)
    finally:
        daemon.p.send_signal(signal.SIGTERM)
        daemon.p.wait(60)
    r = json.loads(text).get("requests") or {}
    wanted = sum(x["usage"] for x in seen)
    ttft = statistics.median(x["own"][0] - x["sent"] for x in seen) / 1e6
    first = [delta(after, before, f"vllm:time_to_first_token_seconds_{k}") for k in ("sum", "count")]
    steps = delta(after, before, "vllm:iteration_tokens_total_count")
    print(
        f"{streams} streams, {rate:.0f} tokens/s: HTTP {r.get('ended', 0)} of {len(seen)} requests, "
        f"{r.get('output_tokens', 0)} of {wanted} tokens (vLLM "
        f"{delta(after, before, 'vllm:generation_tokens_total'):.0f}); "
        f"TTFT p50 {(r.get('ttft') or {}).get('p50_ns', 0) / 1e6:.2f} ms (client {ttft:.2f}, vLLM's mean "
        f"{1e3 * first[0] / max(1, first[1]):.2f}); vLLM counts {steps:.0f} steps"
    )
    failed = []
    if r.get("ended") != len(seen) or r.get("output_tokens") != wanted:
        failed.append("requests and tokens are not exact")
    engine = r.get("engine")
    if not engine:
        failed.append("the engine's messages were not read")
    else:
        queue = delta(after, before, "vllm:request_queue_time_seconds_sum")
        print(
            f"  engine tap: {engine['steps']} steps, {engine['output_tokens']} tokens, {engine['requests']} requests, "
            f"batch {engine['mean_batch']:.2f} on average, {engine['matched']} joined with HTTP; queue p50 "
            f"{(engine.get('queue') or {}).get('p50_ns', 0) / 1e6:.3f} ms (vLLM's mean {1e3 * queue / len(seen):.3f}); "
            "preempted "
            f"{engine['preemptions']} (vLLM {delta(after, before, 'vllm:num_preemptions_total'):.0f})"
        )
        if engine["output_tokens"] != wanted or engine["requests"] != len(seen):
            failed.append("tokens or requests of the engine tap are not exact")
    if "requests-check-canary" in json.dumps(r):
        failed.append("the prompt is in the report")
    return failed


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--bin", default="bin", help="folder with inferscope and inferscoped")
    a.add_argument("--archive", action="append", default=[], help="a .tar.xz with packages; may be repeated")
    a.add_argument("--packages", default="", help="folder of packages in which vLLM is")
    a.add_argument("--out", default="", help="folder for the report of each attachment")
    a.add_argument("--eager", action="store_true", help="without CUDA graphs")
    a.add_argument("--tokens", type=int, default=64)
    a.add_argument("--rounds", type=int, default=3, help="attachments for each number of streams")
    a.add_argument("--seqs", type=int, default=16, help="slots of vLLM's batch")
    args = a.parse_args()
    model = tempfile.mkdtemp(prefix="model-")
    engines.write_model(model, 8, 1024)
    server = Server(args, requests_check.free_port(), model)
    attachments, deaths, failed = 0, 0, []
    try:
        server.await_ready()
        for streams, rounds in LOADS * args.rounds:
            attachments += 1
            try:
                failed += compare(args, server, streams, rounds)
            except Exception as e:
                traceback.print_exc()
                print(f"in attachment {attachments}: {server.aftermath()}")
                failed.append(f"attachment {attachments}: {e!r} {getattr(e, 'stderr', None) or ''}")
            if not server.alive():
                deaths += 1
                print(f"DEAD in attachment {attachments}: {server.aftermath()}")
                break
    finally:
        common.end_group(server.process)
    print(f"attachments {attachments}, deaths {deaths}")
    for f in sorted(set(failed)):
        print(f"FAILED ({failed.count(f)}): {f}")
    return 1 if failed or deaths else 0


if __name__ == "__main__":
    sys.exit(main())
