"""What selections save: recorded draws of real models, replayed through the real engine.

    python benchmarks/selections.py                print the tables
    python benchmarks/selections.py --check        and exit 1 where a number misses its target
    python benchmarks/selections.py --only votes   or another

The draws are those of `benchmarks/data`, each task's in another order in each round, seeded. Time
is virtual, but for the overhead: CPU time of calls whose backend answers at once.

A figure of recorded tasks is printed as its mean over random halves of the tasks and, in brackets,
the smallest and the largest of these halves: "32 % (24 to 40)". `--check` compares a target
with the worse end of that range: what it claims holds on each half, not only on all tasks.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import math
import random
import statistics
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import anyio
from _vote_rows import print_votes
from anyio.lowlevel import checkpoint

from mellea_like import (
    BestOf,
    Collect,
    Escalate,
    Generation,
    Outcome,
    Price,
    RejectionSamplingStrategy,
    Request,
    Requirement,
    SamplingResult,
    Stage,
    Vote,
)
from mellea_like.core import Usage
from mellea_like.estimate import coverage_curve
from mellea_like.sampling.escalate import ExpectedCost
from mellea_like.selections import Consensus, Tournament
from mellea_like.testing import run_virtual

DATA = Path(__file__).parent / "data"
TURNS = 16
ROUNDS = 10

SPLITS = 10
"""How often the tasks are cut in two at random; each split gives two halves."""

missed: list[str] = []


class Figure(NamedTuple):
    """A figure's mean over halves of the tasks, and the smallest and the largest of them."""

    mean: float
    low: float
    high: float

    def shown(self, digits: int, unit: str = "") -> str:
        """Return the mean and its range as text."""
        scale = 100 if unit else 1
        # A zero is added for the sign of a small negative number.
        mean, low, high = (f"{round(scale * value, digits) + 0.0:.{digits}f}" for value in self)
        return f"{mean}{unit} ({low} to {high})"


def figure(values: Iterable[float]) -> Figure:
    """Return the figure of what each half came to."""
    found = list(values)
    return Figure(statistics.fmean(found), min(found), max(found))


def halves(tasks: int) -> list[list[int]]:
    """Return random halves of the tasks by their numbers; each is followed by its complement."""
    found: list[list[int]] = []
    for split in range(SPLITS):
        order = random.Random(f"halves/{split}").sample(range(tasks), tasks)
        found += [order[: tasks // 2], order[tasks // 2 :]]
    return found


def mean_of(values: Sequence[float], tasks: int) -> Figure:
    """Return the mean's figure; the values are those of all tasks, round after round."""
    each = [statistics.fmean(values[task::tasks]) for task in range(tasks)]
    return figure(statistics.fmean(each[task] for task in half) for half in halves(tasks))


def expect(what: str, *, holds: bool) -> None:
    """Note a target that is missed."""
    if not holds:
        missed.append(what)


def answers() -> dict[str, list[tuple[str, int]]]:
    """Return the answers of each task of GSM8K, with their tokens."""
    tasks = defaultdict[str, list[tuple[str, int]]](list)
    with (DATA / "gsm8k_qwen05b.csv").open(encoding="ascii") as file:
        for row in csv.DictReader(file):
            tasks[row["task"]].append((row["answer"], int(row["tokens"])))
    return tasks


def graded() -> list[tuple[list[bool], list[int]]]:
    """Return which draws of each task of GSM8K were right, and their tokens."""
    tasks = defaultdict[str, tuple[list[bool], list[int]]](lambda: ([], []))
    with (DATA / "gsm8k_qwen05b.csv").open(encoding="ascii") as file:
        for row in csv.DictReader(file):
            rights, lengths = tasks[row["task"]]
            rights.append(row["answer"] == row["gold"])
            lengths.append(int(row["tokens"]))
    return list(tasks.values())


def passes() -> list[list[bool]]:
    """Return which draws of each task of HumanEval passed."""
    with (DATA / "humaneval_codegen16b.csv").open(encoding="ascii") as file:
        return [[draw == "1" for draw in row["passed"]] for row in csv.DictReader(file)]


class Recorded:
    """Answers with the draws of a task in a given order, a token in 20 ms."""

    def __init__(self, draws: Sequence[tuple[str, int]]) -> None:
        self._draws = draws

    async def generate(self, request: Request) -> Generation:
        answer, tokens = self._draws[(request.meta.iteration or 1) - 1]
        await anyio.sleep(tokens * 0.02)
        return Generation(answer)


ANSWERED = Requirement("has an answer", lambda c: bool(c.text), inline=True)


def calls(
    tasks: Iterable[Sequence[tuple[str, int]]],
    selection: Any,
    concurrency: int,
    turns: int = TURNS,
) -> list[SamplingResult[Any]]:
    """Replay a call for each task."""

    async def run() -> list[SamplingResult[Any]]:
        results: list[SamplingResult[Any]] = []
        for draws in tasks:
            strategy = RejectionSamplingStrategy(
                Recorded(draws),
                loop_budget=turns // concurrency,
                concurrency_budget=concurrency,
                selection=selection,
            )
            results.append(await strategy.sample("Solve it.", [ANSWERED]))
        return results

    return run_virtual(run)


def shuffled(rounds: int) -> list[list[tuple[str, int]]]:
    """Return each task's draws in another order in each round."""
    return [
        random.Random(f"{round_}/{task}").sample(draws, len(draws))
        for round_ in range(rounds)
        for task, draws in answers().items()
    ]


def majority(drawn: Sequence[str]) -> str | None:
    """Return the most frequent answer, of equally frequent ones the first."""
    counts = Counter(answer for answer in drawn if answer)
    return max(counts, key=lambda a: (counts[a], -drawn.index(a))) if counts else None


def doubling(drawn: Sequence[str]) -> int:
    """Return how many draws 1, 2, 4, 8, 16 take until three quarters agree (its_hub's rule)."""
    n = 2
    while n < len(drawn):
        counts = Counter(a for a in drawn[:n] if a)
        if counts and max(counts.values()) >= 0.75 * n:
            break
        n *= 2
    return n


def windows(drawn: Sequence[str], size: int = 2) -> int:
    """Return how many draws it takes until those of a window agree (ESC, arXiv 2401.10480)."""
    for n in range(size, len(drawn) + 1, size):
        window = drawn[n - size : n]
        if window[0] and len(set(window)) == 1:
            return n
    return len(drawn)


def votes(rounds: int) -> None:
    """Votes: how many draws give the answer that all 16 give."""
    tasks = shuffled(rounds)
    number = len(tasks) // rounds
    texts = [[answer for answer, _ in draws] for draws in tasks]
    print(f"\n## Votes: GSM8K, 100 tasks, 16 draws each, {rounds} orders\n")
    print("| rule | at a time | draws | cancelled in flight | same answer as all 16 | seconds |")
    print("|---|--:|--:|--:|--:|--:|")

    def row(name: str, width: Any, used: list[int], cut: Any, found: list[Any], took: Any) -> None:
        # Of equally frequent answers the one of lowest rank wins: the one at the least depth.
        loops = 1 if width == "-" else TURNS // width
        by_rank = sorted(range(TURNS), key=lambda turn: (turn % loops, turn // loops))
        if width in ("-", 1):
            by_rank.sort()
        full = [majority([drawn[turn] for turn in by_rank]) for drawn in texts]
        same = mean_of([a == b for a, b in zip(found, full, strict=True)], number)
        mean = mean_of(used, number)
        print(f"| {name} | {width} | {mean.shown(2)} | {cut} | {same.shown(1, ' %')} | {took} |")
        if width == 1 and name.startswith("Vote, 95 %"):
            expect("votes at 95 %", holds=same.low >= 0.995 and mean.high <= 13.5)
        if width == 1 and name.startswith("Vote, certain"):
            expect("certain votes", holds=same.low == 1 and mean.high <= 14)

    for name, rule in (("fixed 16", len), ("doubling, 75 %", doubling), ("window of 2", windows)):
        used = [rule(drawn) for drawn in texts]
        found = [majority(drawn[:n]) for drawn, n in zip(texts, used, strict=True)]
        row(name, "-", used, "-", found, "-")
    for name, confidence in (("Vote, 95 % sure", 0.95), ("Vote, certain", None)):
        for width in (1, 4, 16):
            results = calls(tasks, Vote(n=TURNS, confidence=confidence), width)
            used = [len(r.slices) for r in results]
            cut = mean_of([r.count(Outcome.CANCELLED) for r in results], number).shown(2)
            took = mean_of([r.elapsed for r in results], number).shown(1)
            row(name, width, used, cut, [r.value for r in results], took)


def quick_votes(rounds: int) -> None:
    """Votes on answers whose wrong replies are quicker."""
    missed.extend(print_votes(200 * rounds))


def first(rounds: int) -> None:
    """The first pass beside best of N fixed draws."""
    tasks = passes()
    print(f"\n## First pass: HumanEval, {len(tasks)} tasks, {rounds} orders\n")
    print("| N | coverage of both | draws of N fixed | draws until the first pass | saved |")
    print("|--:|--:|--:|--:|--:|")
    for n, least in ((4, 0.13), (8, 0.23), (16, 0.32)):
        orders = [
            random.Random(f"{round_}/{i}").sample(drawn, n)
            for round_ in range(rounds)
            for i, drawn in enumerate(tasks)
        ]
        draws = [[("pass" if passed else "", 1) for passed in order] for order in orders]
        results = calls(draws, "first", 1, n)
        assert [r.success for r in results] == [any(order) for order in orders]
        won = mean_of([r.success for r in results], len(tasks))
        used = mean_of([len(r.slices) for r in results], len(tasks))
        saved = mean_of([1 - len(r.slices) / n for r in results], len(tasks))
        print(f"| {n} | {won.shown(1, ' %')} | {n} | {used.shown(2)} | {saved.shown(0, ' %')} |")
        expect(f"first pass at {n}", holds=saved.low >= least)


def coverage(rounds: int) -> None:
    """What 8 draws of each task say of the coverage with 100."""
    tasks = passes()
    fitted, plugged = [], []
    for half in halves(len(tasks)):
        kept = [tasks[task] for task in half]
        truth = statistics.fmean(any(drawn) for drawn in kept)
        seen = [
            [(8, sum(random.Random(f"{round_}/{task}").sample(tasks[task], 8))) for task in half]
            for round_ in range(rounds)
        ]
        shares = [coverage_curve(pairs).at(100).share for pairs in seen]
        naive = [statistics.fmean(1 - (1 - c / n) ** 100 for n, c in pairs) for pairs in seen]
        fitted.append(statistics.fmean(abs(share - truth) for share in shares))
        plugged.append(statistics.fmean(abs(share - truth) for share in naive))
    error = figure(fitted)
    print(f"\n## Coverage with 100 draws, predicted from 8 ({rounds} choices of 8)\n")
    print("| estimate | mean absolute error |\n|---|--:|")
    print(f"| `coverage_curve(...).at(100).share` | {error.shown(3)} |")
    print(f"| 1 - (1 - c / n)^100 of each task | {figure(plugged).shown(3)} |")
    expect("pass@100 from 8 draws", holds=error.high <= 0.1)


class Model:
    """Answers with the draws of one call, one after the other: whether each passes, its tokens."""

    def __init__(self, model: str, draws: Iterable[tuple[bool, int]]) -> None:
        self.model = model
        self._draws = iter(draws)

    async def generate(self, request: Request) -> Generation:
        await checkpoint()
        passed, tokens = next(self._draws)
        return Generation("pass" if passed else "", usage=Usage(1, 0, tokens), model=self.model)


class EscalationRun(NamedTuple):
    """The draws of the small model and of the big one in a call, and the number of its task."""

    small: Sequence[tuple[bool, int]]
    big: Sequence[tuple[bool, int]]
    task: int = 0


PRICES = {"small": Price(1, 1), "big": Price(10, 10)}
SMALL_TURNS, BIG_TURNS = 8, 4
FIXED = (1, 2, 4, 8)
STRONG = (0.5, 0.7, 0.9)
"""How often a draw of the big model passes, on whatever task."""


def escalated(
    runs: Iterable[EscalationRun], small: int, big: int, after: ExpectedCost | None = None
) -> list[tuple[float, bool]]:
    """Replay calls; return what each cost, and whether it succeeded."""

    async def run() -> list[tuple[float, bool]]:
        rows: list[tuple[float, bool]] = []
        for its in runs:
            stages = [
                Stage(Model(name, draws), turns)
                for name, draws, turns in (("small", its.small, small), ("big", its.big, big))
                if turns
            ]
            strategy = Escalate(stages, after=after)
            result = await strategy.sample("Solve it.", [ANSWERED])
            cost = result.ledger(PRICES).total.cost
            assert cost is not None
            rows.append((cost, result.success))
        return rows

    return run_virtual(run)


def escalation_runs(
    tasks: Sequence[Sequence[tuple[bool, int]]], strong: float, seed: str, rounds: int
) -> list[EscalationRun]:
    """Return the draws of calls: the tasks in another order in each round."""
    runs: list[EscalationRun] = []
    for round_ in range(rounds):
        chance = random.Random(f"{seed}/{strong}/{round_}")
        for task in chance.sample(range(len(tasks)), len(tasks)):
            order = chance.sample(tasks[task], SMALL_TURNS + BIG_TURNS)
            big = [(chance.random() < strong, tokens) for _, tokens in order[SMALL_TURNS:]]
            runs.append(EscalationRun(order[:SMALL_TURNS], big, task))
    return runs


def escalation(rounds: int) -> None:
    """A small model's recorded draws, and a simulated bigger one at ten times the price."""
    solved = [
        [(right, tokens) for right, tokens in zip(rights, lengths, strict=True)]
        for rights, lengths in graded()
    ]
    sources = {
        "GSM8K": solved,
        "HumanEval": [[(passed, 100) for passed in drawn] for drawn in passes()],
    }
    orders = max(1, rounds // 2)
    print(f"\n## Escalation: cost and coverage beside the big model alone ({orders} orders)\n")
    print("A draw of the big model passes at the same rate on all tasks, is as long as one of the")
    print(f"small one, and costs 10 times as much. It has {BIG_TURNS} turns, the small one at most")
    print(f"{SMALL_TURNS}. Costs are shares of what the big one alone costs. Turns are chosen on")
    print("each half of the tasks, the cheapest with no less coverage than the big one alone, and")
    print("measured on the other half. The learnt rule learns from all tasks.")
    for name, tasks in sources.items():
        rates = mean_of([statistics.fmean(ok for ok, _ in drawn) for drawn in tasks], len(tasks))
        print(f"{name}: the small model passes {rates.shown(1, ' %')} of its draws.")
    print()
    heads = [f"after {turns}" for turns in FIXED]
    print(f"| draws | big passes | small alone | big alone | {' | '.join(heads)}", end="")
    print(" | learnt | beside the best | coverage | turns chosen | cost | coverage |")
    print(f"|---|--:|--:|--:|{'--:|' * len(heads)}--:|--:|--:|---|--:|--:|")
    combinations = [*itertools.product(FIXED, range(1, BIG_TURNS + 1))]
    alone, weak, learns = (0, BIG_TURNS), (SMALL_TURNS, 0), (SMALL_TURNS, -1)
    for (name, tasks), strong in itertools.product(sources.items(), STRONG):
        runs = escalation_runs(tasks, strong, name, orders)
        cost: dict[tuple[int, int], list[float]] = {}
        covered: dict[tuple[int, int], list[float]] = {}
        for one in (alone, weak, learns, *combinations):
            after = ExpectedCost(PRICES) if one is learns else None
            found = escalated(runs, one[0], BIG_TURNS if one is learns else one[1], after)
            each: list[list[tuple[float, bool]]] = [[] for _ in tasks]
            for its, row in zip(runs, found, strict=True):
                each[its.task].append(row)
            cost[one] = [statistics.fmean(c for c, _ in rows) for rows in each]
            covered[one] = [statistics.fmean(ok for _, ok in rows) for rows in each]

        def share(one: tuple[int, int], half: list[int], costs: Any = cost) -> float:
            return sum(costs[one][task] for task in half) / sum(costs[alone][task] for task in half)

        def solved_by(one: tuple[int, int], half: list[int], solved: Any = covered) -> float:
            return statistics.fmean(solved[one][task] for task in half)

        cut = halves(len(tasks))
        fixed = [figure(share((turns, BIG_TURNS), half) for half in cut) for turns in FIXED]
        learnt = figure(share(learns, half) for half in cut)
        chosen = [
            min(
                (one for one in combinations if solved_by(one, half) >= solved_by(alone, half)),
                key=lambda one: share(one, half),
            )
            for half in cut
        ]
        # A half's complement is its neighbour.
        others = [cut[i ^ 1] for i in range(len(cut))]
        aside = figure(share(one, half) for one, half in zip(chosen, others, strict=True))
        kept = figure(solved_by(one, half) for one, half in zip(chosen, others, strict=True))
        beside = figure(
            share(learns, half) - min(share((turns, BIG_TURNS), half) for turns in FIXED)
            for half in cut
        )
        cells = [name, str(strong)]
        cells += [figure(solved_by(o, half) for half in cut).shown(1, " %") for o in (weak, alone)]
        cells += [one.shown(2) for one in (*fixed, learnt, beside)]
        cells.append(figure(solved_by(learns, half) for half in cut).shown(1, " %"))
        cells.append(", ".join(f"{a} + {b}" for (a, b), _ in Counter(chosen).most_common()))
        cells += [aside.shown(2), kept.shown(1, " %")]
        print(f"| {' | '.join(cells)} |")
        more = figure(solved_by(learns, half) - solved_by(alone, half) for half in cut)
        expect(
            f"escalation, {name}, {strong}: the learnt rule",
            holds=beside.high <= 0.06 and more.low >= 0,
        )
        if strong == 0.5 and tasks is solved:
            expect(f"escalation, {name}, {strong}", holds=aside.high <= 0.7 and kept.low >= 0.85)


class Instant:
    """Answers at once, each draw with its number; as a judge, that neither is better."""

    async def generate(self, request: Request) -> Generation:
        await checkpoint()
        if request.meta.purpose == "judge":
            return Generation('{"better": "neither"}')
        return Generation(str(request.meta.iteration))


K, DEPTH = 10, 8
"""Subsamples and the turns of each, as in `overhead.py`."""
LAST = Requirement("is the last", lambda c: c.text == str(K * DEPTH), inline=True)
ANY = Requirement("is a reply", lambda c: bool(c.text), inline=True)


class Measured(NamedTuple):
    """A row of the overhead.

    Attributes:
        selection: what is measured.
        requirement: what its draws must meet.
        compared: how many pairs it compares when all have passed, which is its own work.
    """

    selection: Any
    requirement: Requirement = ANY
    compared: int = 0


def overhead(rounds: int) -> None:
    """What a selection adds to an iteration of a call with 80 draws, beside `First`."""
    draws = K * DEPTH
    selections = {
        "First()": Measured("first", LAST),
        "BestOf(score, inline=True)": Measured(BestOf(lambda c: len(c.text), inline=True)),
        "Vote(confidence=None)": Measured(Vote(n=draws, confidence=None)),
        "Collect(80)": Measured(Collect(draws)),
        "Consensus(lambda a, b: 0.0)": Measured(
            Consensus(lambda _a, _b: 0.0, n=draws), compared=draws * (draws - 1) // 2
        ),
        "Tournament()": Measured(Tournament(n=draws), compared=draws - 1),
    }
    took = dict.fromkeys(selections, math.inf)

    async def measure() -> None:
        for _ in range(10 * rounds):
            for name, (selection, requirement, _) in selections.items():
                strategy = RejectionSamplingStrategy(
                    Instant(), loop_budget=DEPTH, concurrency_budget=K, selection=selection
                )
                begun = time.process_time()
                for _ in range(5):
                    result = await strategy.sample("Say a number.", [requirement])
                    assert len(result.slices) == draws
                took[name] = min(took[name], (time.process_time() - begun) / 5 / draws * 1e6)

    anyio.run(measure)
    print(f"\n## Overhead: {K} draws at a time, {draws} in all, CPU time\n")
    print("| selection | µs an iteration | beside First() | pairs compared | µs a pair |")
    print("|---|--:|--:|--:|--:|")
    for name, micros in took.items():
        beside, pairs = micros - took["First()"], selections[name].compared
        each = f"{beside * draws / pairs:.2f}" if pairs else ""
        print(f"| {name} | {micros:.1f} | {beside:+.1f} | {pairs or ''} | {each} |")
        # A vote tells answers apart by ``==`` and keeps which draws gave each.
        most = 5 if name.startswith("Vote") else 3
        expect(f"overhead of {name}", holds=bool(pairs) or beside <= most)


TABLES = {
    "votes": votes,
    "quick-votes": quick_votes,
    "first": first,
    "coverage": coverage,
    "escalation": escalation,
    "overhead": overhead,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--check", action="store_true", help="exit 1 where a number misses")
    parser.add_argument("--only", choices=TABLES, help="one table alone")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="orders (default 10)")
    arguments = parser.parse_args()
    for name, table in TABLES.items():
        if arguments.only in (None, name):
            table(arguments.rounds)
    for miss in missed:
        print("missed:", miss)
    return 1 if missed and arguments.check else 0


if __name__ == "__main__":
    sys.exit(main())
