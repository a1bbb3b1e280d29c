"""A thread that collects garbage, and one beside it that works without the GIL: collect.py MODE."""
import gc
import hashlib
import sys
import threading


def hashes():
    data = b"x" * 4000000
    while True:
        hashlib.sha256(data).digest()  # without the GIL


def collects(keep):
    while True:
        gc.collect()


def counts(keep):
    x = 0
    while True:
        x += len(keep)


class Finalised(object):
    def __del__(self):
        lets_go()


def lets_go():
    hashlib.sha256(b"x" * 4000000).digest()  # the collector calls this, and others have the GIL meanwhile


def cycle():
    a = Finalised()
    a.itself = a


def finalises():
    while True:
        for _ in range(10):
            cycle()
        gc.collect()


def main():
    mode = sys.argv[1]
    gc.disable()
    if mode == "collect":
        other, args = hashes, ()
        this = collects
        keep = [[i] for i in range(200000)]
    else:
        other, args = counts, ([],)
        this = finalises
        keep = None
    t = threading.Thread(target=other, args=args)
    t.daemon = True
    t.start()
    print("ready")
    sys.stdout.flush()
    this(keep) if keep else this()


main()
