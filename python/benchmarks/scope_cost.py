"""Prints what a scope costs, in ns: while nobody records, while somebody does, and an empty `with` for comparison.

Usage: PYTHONPATH=python python3 python/benchmarks/scope_cost.py
"""

import contextlib
import sys
import time
import timeit

from inferscope import _scope, scope

N, ROUNDS = 200_000, 7


def cost(run):
    """The median of the rounds, ns a scope."""
    return sorted(timeit.repeat(run, number=1, repeat=ROUNDS))[ROUNDS // 2] / N * 1e9


def loop(make):
    for _ in range(N):
        with make():
            pass


def main():
    kept = scope("kept")
    empty = cost(lambda: loop(contextlib.nullcontext))
    off, off_kept = cost(lambda: loop(lambda: scope("decode"))), cost(lambda: loop(lambda: kept))
    _scope._state.words[4] = time.monotonic_ns() + 3600 * 10**9  # as the daemon does
    on = cost(lambda: loop(lambda: scope("decode")))
    with_attributes = cost(lambda: loop(lambda: scope("decode", batch=32)))
    print(
        f"Python {sys.version.split()[0]}, ns each: nullcontext {empty:.0f}; nobody records: {off:.0f}, one scope used "
        f"again {off_kept:.0f}; "
        f"recorded: {on:.0f}, with an attribute {with_attributes:.0f}"
    )


main()
