"""Threads that fight for the interpreter: "main" and "rival" compute, "gc" collects."""
import gc
import sys
import threading


known = threading.Event()


def introduce(name):
    print("thread", name, threading.get_native_id(), flush=True)
    known.set()


def compute(name):
    introduce(name)
    n = 0
    while True:
        n = (n * 31 + 7) % 1000003


def collect():
    introduce("gc")
    garbage = [[] for _ in range(200000)]
    while garbage:
        gc.collect()


if sys.argv[1:] == ["gc"]:
    threading.Thread(target=collect, daemon=True).start()
else:
    threading.Thread(target=compute, args=("rival",), daemon=True).start()
known.wait()
print("ready", flush=True)
compute("main")
