"""What a program pays for being watched, from pairs of slices next to each other in time, where others disturb it.

Of each pair the seed decides which slice is the watched one. A neighbour that slows one of the two is then as likely to
slow the other, whatever its rhythm: the differences lie evenly around the cost, which is all that signed ranks ask for.
A plain module without a GPU or numpy, so that pairs_test.py needs neither.
"""

import math
import random
import statistics

BIN = 50_000_000  # ns over which progress is counted
DISTURBED = 0.01  # a slice is disturbed where others took more than this of the CPU time that its CPUs wanted


def order(pairs, seed):
    """Which slices are watched: for each pair (False, True) or (True, False), as many of each in every eight."""
    chance, found = random.Random(seed), []
    while len(found) < pairs:
        found += chance.sample([(False, True), (True, False)] * 4, 8)
    return found[:pairs]


def bins(times, begin, end):
    """How many of the times lie in each whole bin of [begin, end)."""
    counts = [0] * int((end - begin) // BIN)
    for t in times:
        at = int((t - begin) // BIN)
        if 0 <= at < len(counts):
            counts[at] += 1
    return counts


def pace(counts):
    """Steps a second: the mean of the middle nine tenths of the bins."""
    cut = len(counts) // 20
    return statistics.fmean(sorted(counts)[cut : len(counts) - cut]) * 1e9 / BIN


def usual(values):
    """Hodges-Lehmann estimate of the middle of values, and its 95% interval by Wilcoxon's signed ranks (normal
    approximation; infinite below six values)."""
    n = len(values)
    if not n:
        return math.nan, -math.inf, math.inf
    walsh = sorted((values[i] + values[j]) / 2 for i in range(n) for j in range(i, n))
    if n < 6:
        return statistics.median(walsh), -math.inf, math.inf
    cut = max(0, int(n * (n + 1) / 4 - 1.96 * math.sqrt(n * (n + 1) * (2 * n + 1) / 24)))
    return statistics.median(walsh), walsh[cut], walsh[-1 - cut]


def added(ratios):
    """What is added on the usual: the middle of ratios, less 1, and its interval. By logarithms, which lie evenly where
    a disturbance meets the one slice or the other."""
    return tuple(math.expm1(v) for v in usual([math.log(r) for r in ratios]))


def together(*parts):
    """The sum of independent (middle, low, high)."""
    middle = sum(m for m, _, _ in parts)
    low = math.sqrt(sum((m - low) ** 2 for m, low, _ in parts))
    high = math.sqrt(sum((high - m) ** 2 for m, _, high in parts))
    return middle, middle - low, middle + high


def scatter(values):
    """The standard deviation of values, by their median distance from their median: a few bursts do not count."""
    middle = statistics.median(values)
    return 1.4826 * statistics.median(abs(v - middle) for v in values)


def verdict(low, middle, high, most):
    """Whether a figure is at most a limit, as far as its interval tells."""
    return "yes" if high <= most else "NO" if low > most else f"unclear, {'yes' if middle <= most else 'NO'}"
