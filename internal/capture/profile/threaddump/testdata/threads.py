"""Threads that each wait in a way of their own, until standard input ends."""
import os
import queue
import select
import sys
import threading
import time

lock = threading.Lock()
empty = queue.Queue()
reader, writer = os.pipe()


def locked():
    with lock:
        pass


def starved():
    empty.get()


def piped():
    os.read(reader, 1)


def sleeper():
    time.sleep(1000)


def polled():
    select.select([reader], [], [])


def inner(x):
    time.sleep(1000)
    return x


def through_c():
    # C code (list.sort) between two Python functions.
    sorted([1, 2], key=inner)


def recursive(n):
    if n == 0:
        time.sleep(1000)
    recursive(n - 1)


def deep():
    recursive(50)


def gone_by():
    pass


lock.acquire()
for function in (locked, starved, piped, sleeper, polled, through_c, deep):
    threading.Thread(target=function, name=function.__name__, daemon=True).start()
if "busy" in sys.argv:

    def busy():
        while True:
            pass

    threading.Thread(target=busy, name="busy", daemon=True).start()
time.sleep(0.1)
print("ready", flush=True)
sys.stdin.read()
