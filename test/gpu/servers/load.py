"""Clients of a server that streams tokens: a process for each stream, which notes when each token came."""

import contextlib
import http.client
import json
import multiprocessing
import re
import time

import numpy

MOST = 1 << 20  # tokens that a stream remembers
ANSWER = 128  # tokens
FORK = multiprocessing.get_context("fork")


class Stream:
    """One client process: it asks again and again, and notes the time (ns) of each token; 0 stands before an answer."""

    def __init__(self, server, port, number, first=1.0):
        """first: how much of an answer the first one is, so that streams end one after the other."""
        self.times, self.used = FORK.RawArray("q", MOST), FORK.RawValue("Q", 0)
        self.server, self.port, self.number, self.part = server, port, number, first
        self.process = FORK.Process(target=self._ask_always, daemon=True)
        self.process.start()

    def count(self):
        return self.used.value

    def gaps(self, begin, end):
        """Times between tokens of one answer in [begin, end), ns."""
        times = self._noted()
        inside = (times >= begin) & (times < end)
        return numpy.diff(times)[inside[1:] & inside[:-1]].tolist()

    def between(self, begin, end):
        """Times of the tokens in [begin, end), ns."""
        times = self._noted()
        return times[(times >= max(1, begin)) & (times < end)].tolist()

    def _noted(self):
        return numpy.frombuffer(self.times, dtype=numpy.int64)[: self.used.value]

    def stop(self):
        self.process.terminate()
        self.process.join()

    def _ask_always(self):
        ask = {"aio": self._aio, "vllm": self._vllm}.get(self.server, self._llama)
        while True:
            with contextlib.suppress(OSError, http.client.HTTPException):
                ask()
            time.sleep(0.001)

    def _note(self, tokens, at):
        n = self.used.value
        for i in range(n, min(n + tokens, MOST)):
            self.times[i] = at
        self.used.value = min(n + tokens, MOST)

    def _stream(self, method, path, body, tokens_of):
        self._note(1, 0)
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        c.request(method, path, body and json.dumps(body), {"Content-Type": "application/json"})
        response = c.getresponse()
        while line := response.readline():
            if line.startswith(b"data: "):
                self._note(tokens_of(line), time.monotonic_ns())
        c.close()

    def _llama(self):
        body = {
            "prompt": f"stream {self.number} ", "n_predict": self._length(), "stream": True, "ignore_eos": True,
            "cache_prompt": False, "temperature": 1.0,
        }
        self._stream("POST", "/completion", body, lambda _: 1)

    def _vllm(self):
        body = {
            "model": "m", "prompt": f"t{self.number + 10:04d} t0020 t0030", "max_tokens": self._length(),
            "stream": True, "ignore_eos": True, "temperature": 1.0,
        }
        # A part carries several tokens, which are words, where this client is slow: their mean time stays right.
        self._stream("POST", "/v1/completions", body, lambda line: len(re.findall(rb"\bt\d{4}", line)))

    def _aio(self):
        self._stream("GET", f"/generate?n={self._length()}", None, lambda _: 1)

    def _length(self):
        n, self.part = max(1, round(ANSWER * self.part)), 1.0
        return n
