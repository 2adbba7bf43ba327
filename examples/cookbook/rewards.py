"""Rewards of 1,600 recorded draws: what a checker's error would teach, if it counted as a zero.

Shown: `reward`, with requirements that depend on the row, and draws that it can't decide.
For your case: change `requirements_of`, and pass `REWARD` to a trainer: `reward_funcs=[REWARD]`.
"""

from __future__ import annotations

import csv
import itertools
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from mellea_like import Candidate, Requirement
from mellea_like.rewards import reward

DRAWS = Path(__file__).parents[2] / "benchmarks" / "data" / "gsm8k_qwen05b.csv"
"""Answers of Qwen2.5-0.5B to 100 questions of GSM8K, 16 draws each; empty if it gave none."""


def requirements_of(row: Mapping[str, Any]) -> list[Requirement]:
    """Return the requirements of a row; its column ``gold`` has the right answer."""

    def is_right(candidate: Candidate) -> bool:
        return float(candidate.text) == float(row["gold"])  # A bug: "23/3" isn't read.

    return [Requirement("is the right number", is_right, inline=True)]


REWARD = reward(requirements_of, name="is_right")


def main() -> None:
    with DRAWS.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    rewards = REWARD.sync(
        completions=[row["answer"] for row in rows], gold=[row["gold"] for row in rows]
    )

    decided = [score for score in rewards if score is not None]
    print(f"{len(rewards)} draws, {len(decided)} decided, mean reward {fmean(decided):.3f}")
    print("undecided:", *(row["answer"] for row, r in zip(rows, rewards, strict=True) if r is None))

    print("\nof the questions with undecided draws, the mean that each draw is compared with:")
    print("question  without them  with zeros")
    drawn = zip((row["task"] for row in rows), rewards, strict=True)
    for task, group in itertools.groupby(drawn, key=lambda pair: pair[0]):
        scores = [score for _, score in group]
        if None in scores and any(scores):
            without = fmean(score for score in scores if score is not None)
            print(f"{task:>8}  {without:12.3f}  {fmean(score or 0.0 for score in scores):10.3f}")


if __name__ == "__main__":
    main()
