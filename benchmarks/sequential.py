"""How many draws a sequential test of a pass rate takes, and how often it is wrong.

    python benchmarks/sequential.py           print the table
    python benchmarks/sequential.py --check   and exit 1 where it is wrong too often

Each row is 20,000 tests on simulated draws of a known pass rate, of at most 3,000 draws each, with
a threshold of 0.9 and a confidence of 0.95. Beside it is the size of a fixed test that is as sure:
the draws that one has to decide on beforehand for the same errors of 5 % at this rate (the normal
approximation; Fleiss, Levin and Paik 2003, section 2.3).
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from statistics import NormalDist

from mellea_like.sequential import PassRateTest

THRESHOLD, CONFIDENCE = 0.9, 0.95
MOST, TESTS = 3000, 20_000
RATES = (0.5, 0.7, 0.8, 0.85, 0.88, 0.899, 0.9, 0.92, 0.94, 0.96, 0.98, 0.99)


def verdict(passes: int, draws: int) -> str | None:
    """Return the verdict on so many passes among so many draws, if there was none before."""
    test = PassRateTest(THRESHOLD, CONFIDENCE)
    last = passes > 0
    test.started = test.draws = draws - 1
    test.passes = passes - last
    test.add(last)
    return test.verdict


def boundaries() -> list[tuple[int, int]]:
    """Return for each number of draws up to how many passes fail, and from how many pass."""
    found = [(-1, 1)]
    for draws in range(1, MOST + 1):
        fails, passes = found[-1]
        while verdict(fails + 1, draws) == "failed":
            fails += 1
        while passes <= draws and verdict(passes, draws) != "passed":
            passes += 1
        found.append((fails, passes))
    return found


def simulate(rate: float, limits: list[tuple[int, int]], seed: int) -> tuple[int, int, float]:
    """Return how many tests passed and failed, and the mean number of draws."""
    chance = random.Random(seed).random
    passed = failed = total = 0
    for _ in range(TESTS):
        passes = 0
        for draws in range(1, MOST + 1):
            passes += chance() < rate
            low, high = limits[draws]
            if passes >= high:
                passed += 1
                break
            if passes <= low:
                failed += 1
                break
        total += draws
    return passed, failed, total / TESTS


def fixed(rate: float) -> float:
    """Return the size of a test of one fixed size with both errors at 5 %."""
    if rate == THRESHOLD:
        return math.inf
    z = NormalDist().inv_cdf(CONFIDENCE)
    spread = math.sqrt(THRESHOLD * (1 - THRESHOLD)) + math.sqrt(rate * (1 - rate))
    return (z * spread / (rate - THRESHOLD)) ** 2


def main() -> int:
    """Simulate, print, and judge if asked."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--check", action="store_true", help="exit 1 if wrong too often")
    arguments = parser.parse_args()
    limits = boundaries()
    wrong_too_often = []
    print("| rate | passed | failed | undecided | wrong | draws, mean | a fixed test takes |")
    print("|--:|--:|--:|--:|--:|--:|--:|")
    for seed, rate in enumerate(RATES):
        passed, failed, draws = simulate(rate, limits, seed)
        wrong = (failed if rate >= THRESHOLD else passed) / TESTS
        if wrong > 1 - CONFIDENCE:
            wrong_too_often.append(rate)
        undecided = TESTS - passed - failed
        size = fixed(rate)
        beside = "no size" if math.isinf(size) else f"{math.ceil(size):,}"
        shares = " | ".join(f"{n / TESTS:.1%}" for n in (passed, failed, undecided))
        print(f"| {rate} | {shares} | {wrong:.2%} | {draws:,.1f} | {beside} |", flush=True)
    for rate in wrong_too_often:
        print(f"missed: wrong more often than 5 % at {rate}", file=sys.stderr)
    return 1 if wrong_too_often and arguments.check else 0


if __name__ == "__main__":
    sys.exit(main())
