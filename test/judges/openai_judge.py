"""Asks a server at a URL by OpenAI's own client, and prints what that saw as JSON: for each question its model, when it
was sent and when each token came (CLOCK_MONOTONIC ns), tokens by the answer's account, and how it ended."""

import asyncio
import json
import sys
import time

import openai

STREAMS = 16


def plain(client):
    seen = {"model": "plain", "sent": time.monotonic_ns()}
    answer = client.completions.create(model="plain", prompt="canary", max_tokens=7)
    usage = answer.usage
    return {**seen, "input": usage.prompt_tokens, "output": usage.completion_tokens, "end": "complete"}


def streamed(client, model, leave=0, **more):
    seen = {"model": model, "sent": time.monotonic_ns(), "tokens": [], "end": "complete"}
    stream = client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": "canary"}], max_tokens=more.pop("max_tokens", 9), stream=True,
        stream_options={"include_usage": True}, extra_body={"gap_ms": 4, "prefill_ms": 30, **more},
    )
    for part in stream:
        if part.choices and part.choices[0].delta.content:
            seen["tokens"].append(time.monotonic_ns())
        if part.usage:
            seen["input"], seen["output"] = part.usage.prompt_tokens, part.usage.completion_tokens
            seen["counted"] = time.monotonic_ns()
        if leave and len(seen["tokens"]) == leave:
            stream.close()
            seen["end"] = "aborted"
            break
    return seen


async def together(url):
    async def one(client, i):
        seen = {"model": f"async {i}", "sent": time.monotonic_ns(), "tokens": [], "end": "complete"}
        stream = await client.chat.completions.create(
            model=seen["model"], messages=[{"role": "user", "content": "canary"}], max_tokens=20, stream=True,
            stream_options={"include_usage": True}, extra_body={"gap_ms": 4},
        )
        async for part in stream:
            if part.choices and part.choices[0].delta.content:
                seen["tokens"].append(time.monotonic_ns())
            if part.usage:
                seen["input"], seen["output"] = part.usage.prompt_tokens, part.usage.completion_tokens
                seen["counted"] = time.monotonic_ns()
        return seen

    async with openai.AsyncOpenAI(base_url=url + "/v1", api_key="canary") as client:
        return await asyncio.gather(*(one(client, i) for i in range(STREAMS)))


def main():
    url = sys.argv[1]
    client = openai.OpenAI(base_url=url + "/v1", api_key="canary", max_retries=3)
    seen = [plain(client), streamed(client, "streamed"), streamed(client, "retried", failures=2)]
    seen.append(streamed(client, "left", leave=3, max_tokens=10_000))
    client.close()
    print(json.dumps(seen + asyncio.run(together(url))))


main()
