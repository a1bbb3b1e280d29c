"""Python stacks of known functions and lines: victim.py MODE."""
import sys
import threading
import time


def inner():
    x = 0
    for i in range(20000):
        x += i  # line 10
    return x


def outer():
    return inner()  # line 15


def hashes():
    import hashlib
    data = b"x" * 4000000
    while True:
        hashlib.sha256(data).digest()  # line 22: without the GIL


def loop():
    while True:
        outer()  # line 27


def waits():
    while True:
        time.sleep(0.002)  # line 32


def main():
    mode = sys.argv[1]
    if mode == "thread":
        t = threading.Thread(target=loop)
        t.daemon = True
        t.start()
        print("ready")
        sys.stdout.flush()
        time.sleep(1000)
    print("ready")
    sys.stdout.flush()
    {"busy": loop, "hash": hashes, "wait": waits}[mode]()  # line 46


main()  # line 49
