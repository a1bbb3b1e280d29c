"""What is planted in vLLM's API server (--middleware planted_vllm.Plants): each request names it in its header."""

import asyncio
import time

MOST = 2  # requests that "admit" lets through at a time

planted = ""  # what the last request named


def slow(cls, name, what, work):
    """Has a method of a class work before what it does, while that is planted."""
    method = getattr(cls, name)

    def slowed(self, *args, **more):
        if planted == what:
            work()
        return method(self, *args, **more)

    setattr(cls, name, slowed)


# Each computes for itself: reports name the innermost function.


def slow_tokenizer():
    until = time.thread_time() + 0.06
    while time.thread_time() < until:
        pass


def slow_detokenizer():
    until = time.thread_time() + 0.003
    while time.thread_time() < until:
        pass


def audit():
    until = time.thread_time() + 0.13
    while time.thread_time() < until:
        pass


async def audits():
    while True:
        await asyncio.sleep(0.2)
        if planted == "audit":
            audit()


class Plants:
    """ASGI middleware."""

    def __init__(self, app):
        from transformers import PreTrainedTokenizerFast
        from vllm.v1.engine.detokenizer import BaseIncrementalDetokenizer

        self.app, self.audits = app, None
        self.admitted = asyncio.Semaphore(MOST)
        slow(PreTrainedTokenizerFast, "_encode_plus", "tokenizer", slow_tokenizer)
        slow(BaseIncrementalDetokenizer, "update", "detokenizer", slow_detokenizer)

    async def __call__(self, scope, receive, send):
        global planted
        if scope["type"] != "http" or scope["method"] != "POST":
            return await self.app(scope, receive, send)
        self.audits = self.audits or asyncio.ensure_future(audits())
        planted = dict(scope["headers"]).get(b"x-planted", b"").decode()
        if planted == "call":
            time.sleep(0.04)  # not asynchronous
        if planted != "admit":
            return await self.app(scope, receive, send)
        async with self.admitted:
            await self.app(scope, receive, send)
