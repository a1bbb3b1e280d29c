#!/usr/bin/env python3
"""Plants problems in vLLM, real and with random weights, and checks that reports name each of them first.

    sudo python3 test/gpu/vllm_delays.py --bin bin [--packages DIR] [--layers 16] [--size 2048] [--only NAME;...]

Some are vLLM's own settings (few slots, a small KV cache), some are in its API server (servers/planted_vllm.py), some
in its clients. Three servers are started, one after the other. Without a GPU (vllm_check.py): --layers 2 --size 256
"--flags=--gpu off". Right: the first cause that the report names of what holds requests up is the planted one, in its
code where it has some; where nothing is planted, none. api-server-starved does not count: it is true of any server on a
machine where others work. Exit code 1: less than 9 in 10 of the planted ones are right, a server did not start, or one
died.
"""
import argparse
import dataclasses
import json
import os
import socket
import sys
import tempfile
import threading
import time

import common
import engines
import requests_check

HERE = os.path.dirname(os.path.abspath(__file__))


@dataclasses.dataclass
class Client:
    """Asks again and again."""

    requests: int
    tokens: int
    words: int
    pause: float = 0  # s between requests
    slow: float = 0  # s between reads of 4 KiB; 0: as fast as it can

    def ask(self, port, plant):
        for i in range(self.requests):
            body = json.dumps({
                "model": "m", "stream": True, "max_tokens": self.tokens, "ignore_eos": True,
                "messages": [{"role": "user", "content": f"t{i + 3:04d} " * self.words}],
                **({"logprobs": True, "top_logprobs": 20} if self.slow else {}),
            }).encode()
            with socket.socket() as s:
                s.settimeout(300)
                if self.slow:  # what it has not read may not wait in kernels; these hold 2.6 MB of loopback's segments
                    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 13)
                    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 1448)
                s.connect(("127.0.0.1", port))
                s.sendall(
                    b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nConnection: close\r\nX-Planted: %s\r\n"
                    b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (plant.encode(), len(body)) + body
                )
                head = part = s.recv(4096)
                while part:
                    time.sleep(self.slow)
                    part = s.recv(4096)
            if b" 200 " not in head[:20]:
                print(f"  the server answers {head[:600]!r}")
                return
            time.sleep(self.pause)


@dataclasses.dataclass
class Plant:
    name: str
    wanted: str  # cause; "": none
    clients: list
    place: str = ""  # part of the name of the code
    code: str = ""  # what servers/planted_vllm.py does


USUAL = Client(6, 60, 50)
SMALL_CACHE = ["--num-gpu-blocks-override", "32", "--block-size", "32", "--max-model-len", "960"]

# Servers: flags, and what is planted in them.
SERVERS = (
    (["--max-num-batched-tokens", "16384"], (
        Plant("nothing planted: one client", "", [USUAL]),
        Plant("nothing planted: four clients", "", [USUAL] * 4),
        Plant("slow tokenizer", "api-server", [USUAL] * 4, "slow_tokenizer", "tokenizer"),
        Plant("slow detokenizer", "api-server", [USUAL] * 4, "slow_detokenizer", "detokenizer"),
        Plant("blocked event loop", "api-server", [USUAL] * 4, "audit", "audit"),
        Plant("a call in the event loop that blocks", "api-server", [USUAL] * 6, "", "call"),
        Plant("few let through to the engine", "low-batch", [USUAL] * 8, "", "admit"),
        Plant(
            # One prompt alone takes an H200 no longer than a step.
            "long prefills", "prefill-blocks-decode", [Client(4, 150, 20)] * 4 + [Client(12, 2, 3300, 0.06)] * 6,
        ),
        Plant("slow reader", "slow-client", [Client(3, 100, 50)] * 2 + [Client(1, 400, 50, slow=0.2)]),
    )),
    (["--max-num-seqs", "2"], (Plant("few slots", "queueing", [USUAL] * 8),)),
    (SMALL_CACHE, (
        Plant("small KV cache", "kv-cache", [Client(6, 30, 300)] * 8),
        Plant("KV cache too small for long answers", "preemption", [Client(1, 400, 10)] * 8),
    )),
)


def run(args, port, pid, plant):
    """Records what a plant's clients ask. Returns the causes with their places and shares, the first one first."""
    daemon = requests_check.Daemon(args, pid, "--pin-level", "requests=all", *args.flags)
    threads = [threading.Thread(target=c.ask, args=(port, plant.code)) for c in plant.clients]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    time.sleep(0.5)
    report = json.loads(daemon.client("report", str(pid), "--json"))
    daemon.stop()
    requests = report["requests"]
    wanted = sum(c.requests for c in plant.clients)
    if requests["ended"] != wanted or not requests.get("engine"):
        print(f"  {requests['ended']} of {wanted} requests are recorded; the engine's messages were "
              f"{'read' if requests.get('engine') else 'not read'}")
    found = [(d["cause"], d.get("place", ""), d["share"]) for d in requests["delays"]]
    return [f for f in found if f[0] != "api-server-starved"] or [("", "", 0)]


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--bin", default="bin", help="folder with inferscope and inferscoped")
    a.add_argument("--packages", default="", help="folder of packages in which vLLM is")
    a.add_argument("--layers", type=int, default=16)
    a.add_argument("--size", type=int, default=2048)
    a.add_argument("--only", default="", help="names of plants, with semicolons")
    a.add_argument("--flags", default=[], type=str.split, help="more of the daemon")
    args = a.parse_args()
    model = tempfile.mkdtemp(prefix="model-")
    engines.write_model(model, args.layers, args.size)
    right, planted, healthy, wrong = 0, 0, 0, 0
    for flags, plants in SERVERS:
        plants = [p for p in plants if not args.only or p.name in args.only.split(";")]
        if not plants:
            continue
        port = requests_check.free_port()
        env = engines.environment(args.packages)
        env["PYTHONPATH"] = os.pathsep.join(filter(None, (os.path.join(HERE, "servers"), env.get("PYTHONPATH"))))
        command = engines.vllm(model, port, ["m"], 64, True) + ["--no-enable-prefix-caching", *flags]
        command += ["--middleware", "planted_vllm.Plants"]
        log = os.path.join(tempfile.mkdtemp(), "log")
        with open(log, "w") as out:
            server = requests_check.Daemon.target = common.start(command, stdout=out, stderr=out, env=env)
        try:
            requests_check.await_answer(server, log, port, "m")
            for p in plants:
                found = run(args, port, server.pid, p)
                good = found[0][0] == p.wanted and p.place in found[0][1]
                told = "; ".join(f"{cause or 'nothing'} {place} {100 * share:.0f}%" for cause, place, share in found)
                verdict = "right" if good else "WRONG"
                print(f"{verdict}  {p.name} ({p.wanted or 'nothing'} {p.place}): {told}", flush=True)
                planted += bool(p.wanted)
                right += bool(p.wanted) and good
                healthy += not p.wanted
                wrong += not p.wanted and not good
        except requests_check.NoAnswer as e:
            sys.exit(f"vLLM does not answer: {e}")
        finally:
            common.end_group(server)
    print(f"{right} of {planted} planted are named first; {healthy - wrong} of {healthy} without are left alone; "
          f"attachments {requests_check.Daemon.attachments}, deaths 0")
    return 1 if right < 0.9 * planted else 0


if __name__ == "__main__":
    sys.exit(main())
