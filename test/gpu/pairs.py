"""What a program pays for being watched, from pairs of slices next to each other in time, where others disturb it.

Of each pair the seed decides which slice is the watched one. A neighbour that slows one of the two is then as likely to
slow the other, whatever its rhythm: the differences lie evenly around the cost, which is all that signed ranks ask for.
A plain module without a GPU or numpy, so that pairs_test.py needs neither.
"""

import math
import random
import statistics

NOTHING = math.nan, -math.inf, math.inf  # a figure of which nothing is known
DISTURBED = 0.01  # a slice is disturbed where others took more than this of the CPU time that its CPUs wanted


def order(pairs, seed):
    """Which slices are watched: for each pair (False, True) or (True, False), as many of each in every eight."""
    chance, found = random.Random(seed), []
    while len(found) < pairs:
        found += chance.sample([(False, True), (True, False)] * 4, 8)
    return found[:pairs]


def usual(values):
    """Hodges-Lehmann estimate of the middle of values, and its 95% interval by Wilcoxon's signed ranks (normal
    approximation; infinite below six values)."""
    n = len(values)
    if not n:
        return NOTHING
    walsh = sorted((values[i] + values[j]) / 2 for i in range(n) for j in range(i, n))
    if n < 6:
        return statistics.median(walsh), -math.inf, math.inf
    cut = max(0, int(n * (n + 1) / 4 - 1.96 * math.sqrt(n * (n + 1) * (2 * n + 1) / 24)))
    return statistics.median(walsh), walsh[cut], walsh[-1 - cut]


def added(ratios):
    """What is added on the usual: the middle of ratios, less 1, and its interval. By logarithms, which lie evenly where
    a disturbance meets the one slice or the other."""
    return tuple(math.expm1(v) if v > -math.inf else v for v in usual([math.log(r) for r in ratios]))


def mean(values):
    """The mean, in which a few large values count, and its 95% interval by resampling (infinite below six values)."""
    if not values:
        return NOTHING
    middle, chance = statistics.fmean(values), random.Random(1)
    if len(values) < 6:
        return middle, -math.inf, math.inf
    means = sorted(statistics.fmean(chance.choices(values, k=len(values))) for _ in range(2000))
    return middle, means[49], means[-50]


def together(*parts):
    """The sum of independent (middle, low, high)."""
    middle = sum(m for m, _, _ in parts)
    if math.isnan(middle):
        return NOTHING
    low = math.sqrt(sum((m - low) ** 2 for m, low, _ in parts))
    high = math.sqrt(sum((high - m) ** 2 for m, _, high in parts))
    return middle, middle - low, middle + high


def scatter(values):
    """The standard deviation of values, by their median distance from their median: a few bursts do not count."""
    middle = statistics.median(values)
    return 1.4826 * statistics.median(abs(v - middle) for v in values)


def verdict(low, middle, high, most):
    """Whether a figure is at most a limit, as far as its interval tells."""
    if math.isnan(middle):
        return "unclear"
    return "yes" if high <= most else "NO" if low > most else f"unclear, {'yes' if middle <= most else 'NO'}"
