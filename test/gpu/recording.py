"""Reads a recording from the daemon: the stream of internal/recording/stream.go.

Only the standard library is used, so that it runs on any machine with a GPU.
"""

import collections
import http.client
import json
import socket
import struct

MAGIC = b"ISCOPE\r\n"
META, EVENTS, END = 1, 2, 3  # types of frames

# struct event of bpf/event.h: ts, dur, pid, tid, func, kind, flags, ret, args[4]
EVENT = struct.Struct("<QQIIHBBi4Q")
CALL, SAMPLE = 1, 5          # enum event_kind
CLOCK = 0                    # enum sample_cause: the thread was running
WHOLE, SPLICED = 0, 1        # enum stack_origin

# ts in ns, CLOCK_MONOTONIC; stack: a node of meta["stacks"], -1 for none
Sample = collections.namedtuple(
    "Sample", "ts pid tid origin python stack"
)


class _Connection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path, timeout):
        super().__init__("inferscoped", timeout=timeout)
        self._path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def request(path, what, method="GET", timeout=60):
    """Returns what the daemon at socket path answers; any other status than 200 is a RuntimeError."""
    connection = _Connection(path, timeout)
    try:
        connection.request(method, what)
        answer = connection.getresponse()
        body = answer.read()
    finally:
        connection.close()
    if answer.status != 200:
        raise RuntimeError(f"the daemon refused {what}: {answer.status} {body[:500]!r}")
    return body


def recorder(path):
    """Returns the state of the recorder of the daemon at socket path: internal/daemon/api, Recorder."""
    return json.loads(request(path, "/v1/status"))["recorder"]


def fetch(path, pid, last=None):
    """Returns (meta, event bytes) of all that the daemon at socket path holds of pid, or of the last so many
    seconds."""
    window = "" if last is None else f"&last={int(last * 1000)}ms"
    return parse(request(path, f"/v1/recording?pid={pid}{window}"))


def parse(body):
    """Returns (meta, event bytes) of a recording."""
    if body[:8] != MAGIC:
        raise ValueError(f"no recording: {body[:200]!r}")
    meta, events, at = None, bytearray(), 12
    while at + 8 <= len(body):
        kind, length = struct.unpack_from("<II", body, at)
        payload = body[at + 8:at + 8 + length]
        at += 8 + length
        if kind == META:
            meta = json.loads(payload)
        elif kind == EVENTS:
            events += payload
        elif kind == END:
            return meta, events
    raise ValueError("the recording breaks off")


def samples(meta, events):
    """Returns the samples of running threads, by time."""
    python = _python_stacks(meta)
    out = [
        Sample(e[0], e[2], e[3], e[9], e[8] > 0 and python[e[8] - 1], e[8] - 1)
        for e in EVENT.iter_unpack(events) if e[5] == SAMPLE and e[4] == CLOCK
    ]
    return sorted(out)


def _python_stacks(meta):
    """Says of each node of the stack tree whether it or a caller is a Python frame. Callers may stand anywhere."""
    frames, nodes = meta.get("frames") or [], meta.get("stacks") or []
    known = [None] * len(nodes)
    for i in range(len(nodes)):
        path, at = [], i
        while at >= 0 and known[at] is None:
            path.append(at)
            at = nodes[at]["p"]
        found = at >= 0 and known[at]
        for node in reversed(path):
            found = found or frames[nodes[node]["f"]]["kind"] == "python"
            known[node] = found
    return known


def cut(meta, sample):
    """Says in code of which file the native stack of a sample ends early, and why where the recording says so."""
    frames, nodes = meta.get("frames") or [], meta.get("stacks") or []
    at, file = sample.stack, "no native code"
    while at >= 0:
        frame = frames[nodes[at]["f"]]
        if frame["kind"] == "error":
            return f"ends in {file}: {frame['name']}"
        if frame["kind"] == "native":
            file = frame.get("file") or frame["name"]
        at = nodes[at]["p"]
    return f"ends in {file}"


def ends(meta, sample, depth=3):
    """Names the outermost native frames of a sample's stack, the last first: where walking it ended."""
    frames, nodes = meta.get("frames") or [], meta.get("stacks") or []
    at, path = sample.stack, []
    while at >= 0:
        frame = frames[nodes[at]["f"]]
        if frame["kind"] == "native":
            path.append(frame["name"])
        at = nodes[at]["p"]
    return " < ".join(reversed(path[-depth:]))


def count_calls(meta, events, names, spans):
    """Counts in each (from, to) of spans, ns, the calls of functions whose name without suffix is in names."""
    wanted = {i for i, f in enumerate(meta["functions"]) if f["name"].split("_")[0] in names}
    times = sorted(e[0] for e in EVENT.iter_unpack(events) if e[5] == CALL and e[4] in wanted)
    return [sum(1 for t in times if low <= t <= high) for low, high in spans]
