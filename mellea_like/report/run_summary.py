"""What there is to say about a run as a whole."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

from mellea_like.core.prices import with_currency
from mellea_like.report.attempts import FATES, damage
from mellea_like.report.figures import figures_of, why, wilson
from mellea_like.report.format import amount, count, moment, money, percent, plural, seconds
from mellea_like.report.markup import clip

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from mellea_like.core.prices import Price
    from mellea_like.report.figures import RunFigures

__all__ = [
    "STATUSES",
    "about_run",
    "headline",
    "identity_of",
    "latency_words",
    "run_text",
    "statuses_of",
    "until_words",
]

STATUSES = {
    "passed": "passed",
    "failed": "failed: no iteration passed",
    "errored": "errored: an exception ended them",
    "unfinished": "not finished yet",
}
"""How items end, in words."""

_NAME, _IDENTITY = 100, 4000
_LINES = 5


def statuses_of(figures: RunFigures) -> list[tuple[str, int]]:
    """Count a run's items by how they ended."""
    return [(s, figures.statuses[s]) for s in STATUSES if figures.statuses[s]]


def about_run(figures: RunFigures) -> str:
    """Say in a line what was run, and when."""
    run, parts = figures.run, list[str]()
    for name, key in (("model", "model"), ("strategy", "class")):
        value = run["identity"].get(name)
        if isinstance(value, dict):
            value = cast("dict[str, object]", value).get(key)
        if value:
            parts.append(clip(_short(key, value), 120))
    ended = run["ended"]
    until = f"until {moment(ended)}" if ended else "not finished"
    parts.append(f"begun {moment(run['started'])}, {until}")
    return " · ".join(parts)


def headline(figures: RunFigures) -> list[tuple[str, str, str]]:
    """Choose the figures that come first."""
    usage, done, passed = figures.usage, figures.done, figures.passed
    low, high = wilson(passed, done) if done else (0.0, 1.0)
    known, complete = figures.money
    elapsed = figures.elapsed
    bound = "≥ " if usage.unknown else ""
    rate = f"{done / elapsed:.3g} items/s" if elapsed and done else ""
    cost = ("cost", "–", "no prices given")
    if figures.prices is not None:

        def written(cost: float) -> str:
            return money(cost, currency, at_least=not complete)

        currency = figures.prices.currency
        each = f"{written(known / passed)} per passed item" if passed else ""
        cost = ("cost", written(known), each)
    per_item = f"{usage.requests / done:.3g} per item" if done else ""
    return [
        ("items", count(figures.items), f"{count(done)} finished" if done < figures.items else ""),
        (
            "pass rate",
            percent(passed, done),
            f"95 % interval {100 * low:.1f} to {100 * high:.1f}" if done else "",
        ),
        ("requests", count(usage.requests), per_item),
        (
            "tokens",
            bound + amount(usage.total_tokens),
            f"{amount(usage.input_tokens)} in, {amount(usage.output_tokens)} out",
        ),
        cost,
        ("time", "–" if elapsed is None else seconds(elapsed), rate),
    ]


def until_words(figures: RunFigures) -> str:
    """Say how many iterations it took until one passed."""
    until = figures.until_passed
    if not until:
        return "No item passed."
    first = percent(until[1], until.total())
    late = plural(figures.until_passed_at(0.95), "iteration")
    return f"{first} of those that passed did so at once, 95 % within {late}."


def latency_words(figures: RunFigures) -> str:
    """Say how long items took."""
    times = figures.latency
    if not times.values:
        return "No item is finished."
    return (
        f"Half took at most {seconds(times.quantile(0.5))} (p50), 95 % at most"
        f" {seconds(times.quantile(0.95))} (p95), the longest {seconds(times.most)}."
    )


def identity_of(figures: RunFigures) -> list[tuple[str, str]]:
    """Say what was run."""
    run = figures.run
    lines = [
        (clip(name, _NAME), clip(_plain(value), _IDENTITY))
        for name, value in run["identity"].items()
        if value not in (None, "", [], {})
    ]
    if figures.prices is not None:
        lines += [
            (f"price of {clip(model, _NAME)}", _written(price))
            for model, price in figures.prices.of.items()
        ]
    if figures.repeated:
        lines.append(("begun again", plural(figures.repeated, "item")))
    return lines


def _written(price: Price) -> str:
    sent, received = (
        with_currency(f"{amount:g}", price.currency) for amount in (price.input, price.output)
    )
    return f"{sent} in, {received} out, per million tokens"


def run_text(run: Mapping[str, Any], items: Iterable[Mapping[str, Any]]) -> str:
    """Sum up a run in a few lines of plain text.

    Args:
        run: the run's record.
        items: the records of its items; they are read once, one by one.

    Returns:
        The lines. Whoever prints them makes them fit for a terminal.

    Raises:
        ValueError: these are no such records.
    """
    with damage("record of a run"):
        return "\n".join(_lines(figures_of(run, items)))


def _lines(figures: RunFigures) -> list[str]:
    lines = [f"Run of {plural(figures.items, 'item')}: {about_run(figures)}", ""]
    for name, value, more in headline(figures):
        lines.append(f"  {name:<10} {value:>12}" + (f"   {more}" if more else ""))
    lines.append("")
    lines += [f"  {count(n):>10} {STATUSES[s]}" for s, n in statuses_of(figures)]
    lines += ["", f"Attempts: {until_words(figures)}", f"Time per item: {latency_words(figures)}"]
    total = figures.usage.total_tokens
    if total:
        lines += ["", "Tokens"]
        lines += [
            f"  {percent(usage.total_tokens, total):>10} {FATES[fate]}"
            for fate, usage in figures.fates.items()
            if usage.total_tokens
        ]
    if figures.by_requirement:
        lines += ["", "Pass rate by requirement"]
        lines += [
            f"  {percent(t.counts['passed'], t.judged):>10} of {count(t.judged)}: {_line(name)}"
            for name, t in figures.by_requirement[:_LINES]
        ]
    if figures.errors:
        lines += ["", "Errors"]
        lines += [
            f"  {count(n):>10} {_line(kind)}" for kind, n in figures.errors.most_common(_LINES)
        ]
    if figures.failed:
        lines += ["", "The first items that failed"]
        lines += [
            f"  #{item['id']} {_line(item['label'])}: {_line(why(item))}"
            for item in figures.failed[:_LINES]
        ]
    return lines


def _line(text: str) -> str:
    return clip(" ".join(text[:1000].split()), 160)


def _plain(value: object) -> str:
    """Write a part of a run's identity: lists in lines, and names with their values."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "\n".join(map(_plain, cast("list[object]", value)))
    if isinstance(value, dict):
        pairs = cast("dict[str, object]", value)
        if "description" in pairs:  # A requirement: what checks it says little to a reader.
            return _plain(pairs["description"])
        return ", ".join(f"{name}: {_short(name, part)}" for name, part in pairs.items())
    return json.dumps(value)


def _short(name: str, value: object) -> str:
    text = _plain(value)
    return text.rpartition(".")[2] if name == "class" else text
