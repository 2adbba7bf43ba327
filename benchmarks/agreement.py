"""How often the intervals of a judge's agreement contain the truth.

    python benchmarks/agreement.py           print the table
    python benchmarks/agreement.py --check   and exit 1 where they miss it too often

Each row is 500 sets of labels and verdicts of a judge whose errors are known, at a confidence of
0.95. Sets that tell nothing of a number are left out of its share.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys

from mellea_like.agreement import Decisions
from mellea_like.agreement.statistics import decisions_of

SETS = 500
SIZES = (50, 200)
PASSING = (0.5, 0.8, 0.95)
"""The shares of rows that people pass."""
ERRORS = ((0.01, 0.01), (0.05, 0.05), (0.4, 0.1), (0.6, 0.4))
"""The shares of the rows that people fail which the judge passes, and the other way round."""
LEAST = {"accuracy": 0.88, "kappa": 0.88, "wrong passes": 0.88, "wrong failures": 0.88}
"""Intervals of shares near 0 and 1 of few rows can't be exact: Brown, Cai and DasGupta (Statistical
Science 16, 2001) show dips of Wilson's to 0.88 at 0.95."""


def truth(passing: float, wrong_passes: float, wrong_failures: float) -> dict[str, float]:
    """Return the true numbers."""
    both = passing * (1 - wrong_failures)
    judged = both + (1 - passing) * wrong_passes
    accuracy = both + (1 - passing) * (1 - wrong_passes)
    chance = judged * passing + (1 - judged) * (1 - passing)
    return {
        "accuracy": accuracy,
        "kappa": (accuracy - chance) / (1 - chance),
        "wrong passes": wrong_passes,
        "wrong failures": wrong_failures,
    }


def measured(decisions: Decisions) -> dict[str, object]:
    """Return the estimates of the same numbers."""
    return {
        "accuracy": decisions.accuracy,
        "kappa": decisions.kappa,
        "wrong passes": decisions.wrong_passes,
        "wrong failures": decisions.wrong_failures,
    }


def covered(
    size: int, passing: float, errors: tuple[float, float], chance: random.Random
) -> dict[str, float]:
    """Return how often each interval contains the truth."""
    true = truth(passing, *errors)
    inside = dict.fromkeys(true, 0)
    known = dict.fromkeys(true, 0)
    for _ in range(SETS):
        pairs = []
        for _ in range(size):
            label = chance.random() < passing
            wrong = chance.random() < errors[label]
            pairs.append((label != wrong, label))
        for name, estimate in measured(decisions_of(pairs, 0.95)).items():
            if estimate is not None:
                known[name] += 1
                inside[name] += estimate.low <= true[name] <= estimate.high
    return {name: inside[name] / known[name] for name in true}


def main() -> int:
    """Simulate, print, and judge if asked."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--check", action="store_true", help="exit 1 if they miss too often")
    arguments = parser.parse_args()
    chance = random.Random(0)
    missed = []
    names = ("rows", "people pass", "wrong passes, failures", "true kappa", *LEAST)
    print(f"| {' | '.join(names)} |")
    print("|--:" * len(names) + "|")
    for size, passing, errors in itertools.product(SIZES, PASSING, ERRORS):
        found = covered(size, passing, errors, chance)
        kappa = truth(passing, *errors)["kappa"]
        shares = " | ".join(f"{found[name]:.3f}" for name in LEAST)
        line = f"{size} | {passing} | {errors[0]}, {errors[1]} | {kappa:.2f} | {shares}"
        print(f"| {line} |", flush=True)
        missed += [line for name in LEAST if found[name] < LEAST[name]]
    for line in missed:
        print(f"missed: {line}", file=sys.stderr)
    return 1 if missed and arguments.check else 0


if __name__ == "__main__":
    sys.exit(main())
