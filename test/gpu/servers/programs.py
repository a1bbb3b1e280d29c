"""Programs whose cost of being watched is measured: servers and loops with random weights, nothing downloaded.

Usage: programs.py NAME STEPS_FILE [PORT]     (PORT: of the server; it prints "ready" when it is warm)
"""

import asyncio
import faulthandler
import os
import sys
import time

from progress import Writer


def gpt2(layers=12):
    """An eager GPT-2 with random weights: a function that decodes one token and waits for it."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(n_layer=layers)).cuda().half().eval()
    state = {"past": None, "token": torch.zeros((1, 1), dtype=torch.long, device="cuda"), "length": 0}

    def token():
        with torch.no_grad():
            if state["length"] >= 256:
                state.update(past=None, length=0)
            out = model(state["token"], past_key_values=state["past"], use_cache=True)
            state["token"] = out.logits[:, -1:].argmax(-1)
            state.update(past=out.past_key_values, length=state["length"] + 1)
            return int(state["token"])

    return token


def warm(step, times=64):
    for _ in range(times):
        step()


def repeat(steps, step):
    """Makes steps for ever, once it has said that it is ready."""
    print("ready", flush=True)
    while True:
        step()
        steps.step()


def eager(steps, _):
    """A decode loop in one thread."""
    token = gpt2()
    warm(token)
    repeat(steps, token)


def aio(steps, port):
    """An asyncio HTTP server that decodes in a thread and streams each token."""
    from concurrent.futures import ThreadPoolExecutor

    from aiohttp import web

    token, pool = gpt2(), ThreadPoolExecutor(1)
    warm(token)

    async def generate(request):
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(int(request.query.get("n", "64"))):
            t = await asyncio.get_running_loop().run_in_executor(pool, token)
            steps.step()
            await response.write(b"data: %d\n\n" % t)
        await response.write_eof()
        return response

    app = web.Application()
    app.router.add_get("/generate", generate)

    async def started(_):
        print("ready", flush=True)

    app.on_startup.append(started)
    web.run_app(app, host="127.0.0.1", port=port, print=None)


def allocations(steps, _):
    """Operations each of which calls cudaMalloc and cudaFree: PyTorch without its caching allocator."""
    os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
    import torch

    x = torch.randn(64, 64, device="cuda")

    def iteration():
        y = x
        for _ in range(32):
            y = torch.tanh(y @ x)
        torch.cuda.synchronize()

    warm(iteration)
    repeat(steps, iteration)


def jax_loop(steps, _):
    """A jitted function of some 30 launches, then block_until_ready: no synchronizing call of CUDA's is made."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import jax
    import jax.numpy as jnp

    @jax.jit
    def f(x, w):
        for _ in range(30):
            x = jnp.tanh(x @ w)
        return x

    x, w = jnp.ones((64, 4096), jnp.bfloat16), jnp.ones((4096, 4096), jnp.bfloat16)

    def iteration():
        f(x, w).block_until_ready()

    warm(iteration)
    repeat(steps, iteration)


def ranks(steps, port):
    """Two NCCL ranks, one process per GPU, each step 16 matrix products and all-reduces. This process is their
    parent."""
    import torch.multiprocessing as mp

    mp.spawn(_rank, args=(steps.ring.filename, port), nprocs=2, join=True)


def _rank(rank, path, port):
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    x, w = torch.randn(1024, 4096, device="cuda").half(), torch.randn(4096, 4096, device="cuda").half()

    def step():
        y = x
        for _ in range(16):
            y = y @ w
            dist.all_reduce(y)
        torch.cuda.synchronize()

    warm(step, 32)
    if rank == 0:
        repeat(Writer(path), step)
    while True:
        step()


def dummy(steps, _):
    """No GPU: to try the measurement itself."""
    repeat(steps, lambda: time.sleep(0.001))


PROGRAMS = {"eager": eager, "aio": aio, "allocations": allocations, "jax": jax_loop, "ranks": ranks, "dummy": dummy}

if __name__ == "__main__":
    faulthandler.enable()  # a death prints the stack of the thread that died
    name, path, port = sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 0
    PROGRAMS[name](Writer(path), port)
