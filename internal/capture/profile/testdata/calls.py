"""Python that C code calls, that Python has called: spin < ask < sorted() < through < map() < main."""
import sys


def spin(x):
    for _ in range(20000):
        x += 1
    return x


def ask(x):
    return spin(x)


def through(x):
    return sorted([x], key=ask)


def main():
    print("ready")
    sys.stdout.flush()
    while True:
        list(map(through, [1]))


main()
