"""A report that compares two runs: an HTML page, or a few lines of text."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from heapq import merge
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeAlias

from mellea_like.core.display import plural
from mellea_like.report.markup import clip
from mellea_like.report.numbers import amount, count, money, percent, seconds, three_digits
from mellea_like.report.page import environment, page
from mellea_like.report.run_figures import UNREADABLE, RunFigures
from mellea_like.report.run_summary import about_run
from mellea_like.report.views import ItemView, damage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

__all__ = ["Comparison", "compare", "comparison_report", "comparison_text"]

Record: TypeAlias = "Mapping[str, Any]"
Recorded: TypeAlias = "tuple[Record, Iterable[Record]]"
"""A run's record, and the records of its items in the order of the input."""

MOST_ROWS = 25
"""The most requirements to show in a table."""

EXACT = 1000
"""The p-value is exact if at most this many items differ between the runs, else approximate."""

_NAME = 200


@dataclass(frozen=True, slots=True)
class Comparison:
    """The figures of two runs, and the results of the items that both have finished.

    Args:
        first: the figures of the first run.
        second: the figures of the second run.
        both: the numbers of items that both runs have finished, by whether they passed in the first
            run and whether they passed in the second. For example, ``both[True, False]`` counts
            items that passed only in the first. Two items are the same if they have the same
            position in the input, the same label and the same row.
    """

    first: RunFigures
    second: RunFigures
    both: Counter[tuple[bool, bool]] = field(default_factory=Counter[tuple[bool, bool]])

    @property
    def gain(self) -> tuple[float, float, float]:
        """The second run's pass rate minus the first run's, and the ends of the 95 % interval.

        All three numbers are from -1 to 1; the first is NaN if a run has no finished items. The
        runs are treated as independent samples. If their items are the same, the true interval is
        narrower. Equal items of a run count as one. An item that was begun but isn't finished may
        pass or fail, and the interval allows for both. Source: R. G. Newcombe, "Interval estimation
        for the difference between independent proportions: comparison of eleven methods",
        Statistics in Medicine 17, 1998 (method 10).
        """
        one, other = self.first, self.second
        if not (one.done and other.done):
            return math.nan, -1.0, 1.0
        p, q = one.passed / one.done, other.passed / other.done
        (p_low, p_high), (q_low, q_high) = (run.rate_interval for run in (one, other))
        below = math.hypot(q - q_low, p_high - p)
        above = math.hypot(q_high - q, p - p_low)
        return q - p, q - p - below, q - p + above

    @property
    def chance(self) -> float:
        """The p-value of the difference on the items that both runs share (McNemar's test).

        The p-value is from 0 to 1. If at most 1,000 items passed in only one of the runs, the test
        is exact. Otherwise, the p-value is the normal approximation with a continuity correction.
        The p-value is too small if the runs repeat items. It can also be too small before both runs
        are finished, because items that pass finish first.
        Source: Q. McNemar, "Note on the sampling error of the difference between correlated
        proportions or percentages", Psychometrika 12, 1947; for the correction, A. L. Edwards,
        Psychometrika 13, 1948.
        """
        only = sorted((self.both[True, False], self.both[False, True]))
        differ = sum(only)
        if differ > EXACT:
            return math.erfc(max(only[1] - only[0] - 1, 0) / math.sqrt(2 * differ))
        ways = sum(math.comb(differ, k) for k in range(only[0] + 1))
        return min(1.0, ways / (1 << (differ - 1))) if differ else 1.0


def compare(first: Recorded, second: Recorded) -> Comparison:
    """Read two runs and compare them.

    Args:
        first: the record of a run, as `read_run` returns it, and the records of its items, as
            `read_items` yields them.
        second: the same records of another run.

    Returns:
        The figures of both runs, and the results of the items that they share.
    """
    made = Comparison(RunFigures(first[0]), RunFigures(second[0]))
    for one, other in _side_by_side(map(ItemView, first[1]), map(ItemView, second[1])):
        if one is not None:
            made.first.count(one)
        if other is not None:
            made.second.count(other)
        if one is None or other is None or "unfinished" in (one.status, other.status):
            continue
        if (one.label, one.data) == (other.label, other.data):
            made.both[one.status == "passed", other.status == "passed"] += 1
    return made


def _side_by_side(
    first: Iterator[ItemView], second: Iterator[ItemView]
) -> Iterator[tuple[ItemView | None, ItemView | None]]:
    """Pair the items of two runs by id, with None for a missing item; ids must ascend."""
    one = ((item.id, 0, item) for item in first)
    other = ((item.id, 1, item) for item in second)
    for _, same in groupby(merge(one, other, key=itemgetter(0)), key=itemgetter(0)):
        found = {which: item for _, which, item in same}
        yield found.get(0), found.get(1)


def comparison_text(
    first: Recorded,
    second: Recorded,
    *,
    names: tuple[str, str] = ("the first run", "the second run"),
    differences: Sequence[str] = (),
) -> str:
    """Compare two runs in a few lines of plain text.

    Args:
        first: the record of a run, and the records of its items, which are read once, one by one.
        second: the same records of another run.
        names: the names of the two runs.
        differences: descriptions of how the second run's settings differ.

    Returns:
        The lines. They may contain control characters, so escape them before printing them to a
        terminal.

    Raises:
        ValueError: a record is malformed.
    """
    with damage("record of a run"):
        made = compare(first, second)
        lines = [f"{letter}: {words}" for letter, words in _who(made, names)]
        lines += ["", f"{'':<24}{'A':>14}{'B':>14}   B compared with A"]
        for name, a, b, more in _figures(made):
            lines.append(f"  {name:<22}{a:>14}{b:>14}   {more}".rstrip())
        lines += ["", both_words(made)]
        for title, rows in (
            ("Pass rate by requirement", _rates(made)),
            ("Unmet requirements of failed items", _causes(made)),
        ):
            if rows:
                lines += ["", f"{title:<44}{'A':>10}{'B':>10}"]
                lines += [f"  {_short(name):<42}{a:>10}{b:>10}" for name, a, b, *_ in rows[:10]]
        if differences:
            lines += ["", "How the settings of B differ", *(f"  {words}" for words in differences)]
        return "\n".join(lines)


def comparison_report(
    first: Recorded,
    second: Recorded,
    *,
    names: tuple[str, str] = ("the first run", "the second run"),
    differences: Sequence[str] = (),
) -> str:
    """Make an HTML page that compares two runs.

    Args:
        first: the record of a run, and the records of its items, which are read once, one by one.
        second: the same records of another run.
        names: the names of the two runs.
        differences: descriptions of how the second run's settings differ.

    Returns:
        An HTML page that loads no other files.

    Raises:
        ImportError: jinja2 is missing; install the extra ``report``.
        ValueError: a record is malformed.
    """
    environment()  # Fail early, before all items are read.
    with damage("record of a run"):
        made = compare(first, second)
        return page(
            "comparison",
            title="Two runs compared",
            who=_who(made, names),
            figures=_figures(made),
            both=both_words(made),
            rates=_rates(made),
            causes=_causes(made),
            differences=[clip(words, 1000) for words in differences],
        )


def _who(made: Comparison, names: tuple[str, str]) -> list[tuple[str, str]]:
    """Return a letter and a description for each of the runs."""
    runs = (made.first, made.second)
    return [
        (letter, f"{clip(name, _NAME)} · {plural(run.items, 'item')} · {about_run(run)}")
        for letter, name, run in zip("AB", names, runs, strict=True)
    ]


def _figures(made: Comparison) -> list[tuple[str, str, str, str]]:
    """Return the name of each figure, its values in both runs, and their comparison."""
    one, other = made.first, made.second
    rows = [("items finished", count(one.done), count(other.done), "")]
    gain, low, high = made.gain
    rate = ""
    if one.done and other.done:
        rate = f"{_points(gain)} (95 % interval {100 * low:+.1f} to {100 * high:+.1f})"
    shares = [percent(run.passed, run.done) for run in (one, other)]
    rows.append(("pass rate", shares[0], shares[1], rate))

    def row(
        name: str,
        values: Sequence[float | None],
        written: Callable[[float], str],
        least: Sequence[bool] = (False, False),
    ) -> None:
        a, b = values
        ratio = f"{three_digits(b / a)} times" if a and b is not None else ""
        shown = [
            "–" if value is None else "≥ " * bound + written(value)
            for value, bound in zip((a, b), least, strict=True)
        ]
        rows.append((name, shown[0], shown[1], ratio))

    def per_pass(run: RunFigures, whole: float) -> float | None:
        return whole / run.passed if run.passed else None

    both = (one, other)
    per_item = [run.usage.requests / run.begun if run.begun else None for run in both]
    row("requests per item", per_item, three_digits)
    tokens = [per_pass(run, run.usage.total_tokens) for run in both]
    row("tokens per passed item", tokens, amount, [bool(run.usage.unknown) for run in both])
    currencies = {None if run.prices is None else run.prices.currency for run in both}
    currency = currencies.pop()
    if currency is not None and not currencies:
        costs = [per_pass(run, run.money.known) for run in both]
        least = [not run.money.complete for run in both]
        row("cost per passed item", costs, lambda value: money(value, currency), least)
    for share, name in ((0.5, "half took at most"), (0.95, "95 % took at most")):
        times = [run.latency.quantile(share) if run.latency.values else None for run in both]
        row(name, times, seconds)
    return rows


def both_words(made: Comparison) -> str:
    """Describe the results of the items that both runs share."""
    both = made.both
    if not both.total():
        return "The runs have no finished item in common at the same place in the input."
    words = (
        f"Of {plural(both.total(), 'item')} that both have finished, {count(both[True, True])}"
        f" passed in both, {count(both[False, False])} in neither, {count(both[True, False])} in A"
        f" only and {count(both[False, True])} in B only"
    )
    differ = both[True, False] + both[False, True]
    if not differ:
        return f"{words}."
    p = made.chance
    shown = f"{p:.2g}" if p >= 0.001 else "< 0.001"  # noqa: PLR2004 (as it is written)
    test = "McNemar's test" if differ > EXACT else "McNemar's exact test"
    words = f"{words} (p = {shown}, {test}).".replace("= <", "<")
    runs = made.first, made.second
    if any(run.repeats > 1 for run in runs):
        words += " As the runs repeat items, p is too small."
    if any(run.begun > run.done for run in runs):
        words += " Items that pass finish first: compare p and times when both runs are finished."
    return words


def _rates(made: Comparison) -> list[tuple[str, str, str, str]]:
    """Return the pass rates of each requirement in both runs, greatest difference first."""
    found: list[tuple[float, tuple[str, str, str, str]]] = []
    tallies = made.first.requirements, made.second.requirements
    for name in dict.fromkeys((*tallies[0], *tallies[1])):
        pair = [tally.get(name) for tally in tallies]
        shares = [t.counts["passed"] / t.judged if t and t.judged else None for t in pair]
        if shares == [None, None]:
            continue
        a, b = ("–" if t is None else percent(t.counts["passed"], t.judged) for t in pair)
        gap = 0.0 if None in shares else (shares[1] or 0.0) - (shares[0] or 0.0)
        points = "" if None in shares else _points(gap)
        found.append((-abs(gap), (clip(name, _NAME), a, b, points)))
    return [row for _, row in sorted(found)[:MOST_ROWS]]


def _causes(made: Comparison) -> list[tuple[str, str, str]]:
    """Count each run's failed items by the requirements that their best replies missed."""
    causes = made.first.final_failures, made.second.final_failures
    runs = made.first, made.second
    found: list[tuple[int, str, str, str]] = []
    for name in dict.fromkeys((*causes[0], *causes[1])):
        a, b = (cause[name].items if name in cause else 0 for cause in causes)
        # If a run doesn't have the requirement, there is no number to show.
        asked = [name in run.requirements or name == UNREADABLE for run in runs]
        shown = [count(n) if n or known else "–" for n, known in zip((a, b), asked, strict=True)]
        found.append((-max(a, b), clip(name, _NAME), shown[0], shown[1]))
    return [row[1:] for row in sorted(found)[:MOST_ROWS]]


def _points(gain: float) -> str:
    return f"{100 * gain:+.1f} points"


def _short(name: str) -> str:
    return clip(" ".join(name.split()), 40)
