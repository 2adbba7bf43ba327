"""Rejection sampling over anything: a function that draws values is a backend, too.

No language model here. Six guests sit around a table. The function draws a seating at random; the
requirements say what a good one is. The strategy draws until one is good, and the best failure says
what was the matter if none is.

With a seed in the options, each iteration gets its own seed, so the run can be repeated.

Run it: ``python examples/any_function.py``
"""

from __future__ import annotations

import random
import sys

from mellea_like import (
    MelleaError,
    RejectionSamplingStrategy,
    Request,
    ValidationResult,
    requirement,
)
from mellea_like.backends import FunctionBackend

GUESTS = ["Ada", "Ben", "Cleo", "Dan", "Eve", "Finn"]
COUPLES = [("Ada", "Ben"), ("Cleo", "Dan")]
QUARRELS = [("Eve", "Finn"), ("Ada", "Cleo"), ("Ben", "Eve")]


def draw_seating(request: Request) -> list[str]:
    """Put the guests around the table in a random order."""
    return random.Random(request.options.seed).sample(GUESTS, k=len(GUESTS))


def neighbours(seating: list[str]) -> set[frozenset[str]]:
    return {frozenset(pair) for pair in zip(seating, seating[1:] + seating[:1], strict=True)}


@requirement("couples sit together", inline=True)
def couples_together(candidate):
    apart = [pair for pair in COUPLES if frozenset(pair) not in neighbours(candidate.value)]
    # The score, from 0 to 1, says how near a failure came: it chooses the best one.
    return ValidationResult(not apart, f"apart: {apart}", 1 - len(apart) / len(COUPLES))


@requirement("those who quarrel do not", inline=True)
def quarrels_apart(candidate):
    together = [pair for pair in QUARRELS if frozenset(pair) in neighbours(candidate.value)]
    return ValidationResult(
        not together, f"together: {together}", 1 - len(together) / len(QUARRELS)
    )


def main() -> int:
    strategy = RejectionSamplingStrategy(
        FunctionBackend(draw_seating, inline=True), loop_budget=500, options={"seed": 3}
    )
    try:
        result = strategy.sample_sync(
            "Seat the guests.", [couples_together, quarrels_apart], format=list[str]
        )
        seating = result.unwrap()
    except MelleaError as exc:
        print(f"No seating: {exc}", file=sys.stderr)
        return 1

    for slice_ in result.slices[:3]:
        print(", ".join(slice_.value), *slice_.problems, sep="\n    ")
    print(f"... and after {len(result.slices)} draws in all:")
    print(", ".join(seating))
    return 0


if __name__ == "__main__":
    sys.exit(main())

# expect: ... and after ... draws in all:
# expect: ...
