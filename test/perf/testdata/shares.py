"""A Python thread whose time is divided in a known way, in a random order of short turns.

It prints "ready". For each line it reads it writes {function: ns of CPU time so
far}, as CLOCK_THREAD_CPUTIME_ID of the thread that runs them counted them.
"""

import hashlib
import json
import os
import random
import sys
import threading
import time
import zlib

DATA = os.urandom(1 << 16)
NUMBERS = [random.random() for _ in range(2000)]
spent = {}


def hashing():
    hashlib.sha256(DATA).digest()


def checking():
    zlib.crc32(DATA)
    zlib.adler32(DATA)


def sorting():
    sorted(NUMBERS)


def looping():
    total = 0
    for i in range(4000):
        total += i * i % 7


def work():
    turns = [hashing, checking, sorting, looping]
    spent.update({f.__name__: 0 for f in turns})
    while True:
        turn = random.choice(turns)
        began = time.thread_time_ns()
        turn()
        spent[turn.__name__] += time.thread_time_ns() - began


def main():
    threading.Thread(target=answer, daemon=True).start()
    print("ready", flush=True)
    work()


def answer():
    for _ in sys.stdin:
        print(json.dumps(spent), flush=True)


main()
