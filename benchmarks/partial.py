"""Whether dropping draws by a partial score saves tokens: speculative rejection, replayed.

    python benchmarks/partial.py

Speculative rejection (Sun et al., "Fast Best-of-N Decoding via Speculative Rejection", arXiv
2410.20290) scores the replies that are being made at given lengths, and drops the lower share of
them. The draws are those of `benchmarks/data`: 16 of each of 100 tasks, with their tokens and their
mean log-probabilities. Partial ones were not recorded: the score at a length is taken to be the
final one and noise, whose spread is given in standard deviations of a task's scores. Without noise
the score is known beforehand, which no real one is.
"""

from __future__ import annotations

import csv
import random
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

ROUNDS = 100
DRAWS = 16


class Draw(NamedTuple):
    """One recorded draw."""

    answer: str
    right: bool
    score: float
    tokens: int


Pick = Callable[[Sequence[Draw]], float]
"""Returns the chance to be right."""


def vote(draws: Sequence[Draw]) -> float:
    """Take the most frequent answer; of equal ones any."""
    counts = Counter(draw.answer for draw in draws if draw.answer)
    most = max(counts.values(), default=0)
    right = {draw.answer for draw in draws if draw.right}
    tied = [answer for answer, count in counts.items() if count == most]
    return sum(answer in right for answer in tied) / len(tied) if tied else 0.0


def best(draws: Sequence[Draw]) -> float:
    """Take the answer with the highest score."""
    return float(max(draws, key=lambda draw: draw.score).right)


def kept(
    draws: Sequence[Draw], lengths: Sequence[int], share: float, noise: float, chance: random.Random
) -> tuple[list[Draw], int]:
    """Drop the lower share of what is in flight at each length; return the rest, and all tokens."""
    scored = [(draw.score + noise * chance.gauss(0, 1), draw) for draw in draws]
    dropped = 0
    for length in lengths:
        flying = sorted((pair for pair in scored if pair[1].tokens > length), key=lambda p: p[0])
        lower = flying[: int(len(flying) * share)]
        dropped += length * len(lower)
        scored = [pair for pair in scored if pair not in lower]
    rest = [draw for _, draw in scored]
    return rest, dropped + sum(draw.tokens for draw in rest)


def replay(
    tasks: Sequence[Sequence[Draw]], pick: Pick, draws: int, *rule: object
) -> tuple[float, float]:
    """Return the share of right answers, and the tokens of a task."""
    chance = random.Random(1)
    right = tokens = 0.0
    for _ in range(ROUNDS):
        for task in tasks:
            some: list[Draw] = chance.sample(list(task), draws)
            spent = sum(draw.tokens for draw in some)
            if rule:
                some, spent = kept(some, *rule, chance)  # type: ignore[arg-type]
            right += pick(some)
            tokens += spent
    return right / ROUNDS / len(tasks), tokens / ROUNDS / len(tasks)


def main() -> None:
    """Replay and print."""
    recorded = defaultdict[str, list[Draw]](list)
    path = Path(__file__).parent / "data" / "gsm8k_qwen05b.csv"
    with path.open(encoding="ascii") as file:
        for row in csv.DictReader(file):
            right = bool(row["answer"]) and row["answer"] == row["gold"]
            draw = Draw(row["answer"], right, float(row["mean_logprob"]), int(row["tokens"]))
            recorded[row["task"]].append(draw)
    tasks = list(recorded.values())
    spread = statistics.mean(statistics.pstdev(draw.score for draw in task) for task in tasks)
    rows: list[tuple[str, int, tuple[object, ...]]] = [
        (f"{draws} draws", draws, ()) for draws in (4, 6, 8, 10, 12, DRAWS)
    ]
    for lengths in ((64,), (128,), (64, 128)):
        for noise in (0, 1, 2):
            at = " and ".join(map(str, lengths))
            name = f"{DRAWS}, half dropped at {at} tokens, noise {noise}"
            rows.append((name, DRAWS, (lengths, 0.5, noise * spread)))
    print("| draws | tokens | right by a vote | right by the best score |")
    print("|---|--:|--:|--:|")
    for name, draws, rule in rows:
        voted, tokens = replay(tasks, vote, draws, *rule)
        scored, _ = replay(tasks, best, draws, *rule)
        print(f"| {name} | {tokens:,.0f} | {voted:.1%} | {scored:.1%} |")


if __name__ == "__main__":
    main()
