"""Two threads that talk as vLLM's API server and its engine do: ZMTP 3.1 frames (ZeroMQ RFC 23) over a unix socket,
and msgpack in the positional layout of vLLM 0.24 (vllm/v1/engine/__init__.py). The standard library alone.

Usage: server.py REQUESTS TOKENS STEP_MS [strange|SLOTS]
The engine has two slots, and every other prompt is long; or so many, and begins when so many requests wait. What does
not fit waits. Up to 256 begin in a step. It prints its own pid, then waits for a line on its standard input.
"""

import os
import socket
import struct
import sys
import threading
import time


def pack(v):
    """Encodes like msgspec: the shortest form of each value."""
    if v is None:
        return b"\xc0"
    if isinstance(v, bool):
        return b"\xc3" if v else b"\xc2"
    if isinstance(v, float):
        return b"\xcb" + struct.pack(">d", v)
    if isinstance(v, int):
        for size, mark, form in (
            (1 << 7, None, "B"),
            (1 << 8, 0xCC, "B"),
            (1 << 16, 0xCD, ">H"),
            (1 << 32, 0xCE, ">I"),
        ):
            if v < size:
                return (bytes([mark]) if mark else b"") + struct.pack(form, v)
    if isinstance(v, str):
        b = v.encode()
        return (bytes([0xA0 | len(b)]) if len(b) < 32 else b"\xd9" + bytes([len(b)])) + b
    if isinstance(v, dict):
        return bytes([0x80 | len(v)]) + b"".join(pack(k) + pack(x) for k, x in v.items())
    head = bytes([0x90 | len(v)]) if len(v) < 16 else b"\xdc" + struct.pack(">H", len(v))
    return head + b"".join(map(pack, v))


def frame(body, more=False):
    """One frame of ZMTP."""
    if len(body) < 256:
        return bytes([more, len(body)]) + body
    return bytes([more | 2]) + struct.pack(">Q", len(body)) + body


def send(s, data):
    """Sends as libzmq does: 8 KiB at first."""
    s.send(data[:8192])
    if data[8192:]:
        s.sendall(data[8192:])


def request(name, prompt):
    """EngineCoreRequest, 20 fields."""
    return [
        name, prompt, None, {"temperature": 1.0}, None, time.time(), None, None, None, None, None, 0, 0, 0, None, False,
        name, None, None, False,
    ]


def output(name, tokens, finish, events, stats):
    """EngineCoreOutput, 13 fields."""
    return [name, tokens, None, None, None, finish, None, events, None, None, stats, None, 0]


def engine(s, requests, tokens, gap, slots, begin, strange):
    waiting, running, done = [], [], 0
    lock = threading.Condition()

    def read():
        stream, f = s.makefile("rb"), None
        for _ in range(requests):
            while True:
                flags = stream.read(1)[0]
                size = struct.unpack(">Q", stream.read(8))[0] if flags & 2 else stream.read(1)[0]
                f = stream.read(size)
                if not flags & 1:
                    break
            at = 3 if f[0] == 0xDC else 1
            length = f[at + 1] if f[at] == 0xD9 else f[at] & 31
            at += 2 if f[at] == 0xD9 else 1
            with lock:
                waiting.append([f[at:at + length].decode(), 0, time.monotonic()])
                lock.notify()

    threading.Thread(target=read, daemon=True).start()
    with lock:
        while len(waiting) < begin:
            lock.wait()
    while done < requests:
        outputs = []
        with lock:
            while not waiting and not running:
                lock.wait()
            new = waiting[:max(0, min(slots - len(running), 256))]
            del waiting[:len(new)]
            for r in new:
                r.append(time.monotonic())
            running += new
            left = len(waiting)
        batch = len(running)
        time.sleep(gap)
        for r in list(running):
            r[1] += 1
            first = r[1] == 1
            events = [{"type": 1, "timestamp": r[2]}, {"type": 2, "timestamp": r[3]}] if first else None
            stats = {"num_prompt_tokens": 7, "num_computed_tokens": 3, "num_cached_tokens": 4} if first else None
            finish = 1 if r[1] == tokens else None
            outputs.append(output(r[0], [1234], finish, events, stats))
            if finish is not None:
                running.remove(r)
                done += 1
        stats = {
            "num_running_reqs": batch,
            "num_waiting_reqs": left,
            "num_skipped_waiting_reqs": 0,
            "kv_cache_usage": 0.5,
            "prefix_cache_stats": {"requests": 0, "queries": 0, "hits": 0},
        }
        message = [0, outputs, stats, time.monotonic(), None, None, None, None]
        if strange:
            message = [outputs, 0, "another shape", stats, None, None, None, None]
        send(s, frame(pack(message)))


def main():
    requests, tokens, gap = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]) / 1e3
    way = sys.argv[4] if len(sys.argv) > 4 else ""
    slots, begin = (int(way), int(way)) if way.isdigit() else (2, 1)
    api, core = socket.socketpair()
    print(os.getpid(), flush=True)
    sys.stdin.readline()
    t = threading.Thread(target=engine, args=(core, requests, tokens, gap, slots, begin, way == "strange"))
    t.start()
    threading.Thread(target=lambda: [None for _ in iter(lambda: api.recv(65536), b"")], daemon=True).start()
    for i in range(requests):
        prompt = [31337] * (4000 if i % 2 and slots == 2 else 7)
        send(api, frame(b"\x00", True) + frame(pack(request(f"cmpl-{i}-0-deadbeef", prompt))))
    t.join()
    print("done", flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main()
