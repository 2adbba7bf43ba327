"""Descriptions of a run of many items: a few lines of text, and parts of its HTML page."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

from mellea_like.core.display import plural, with_reason
from mellea_like.core.prices import with_currency
from mellea_like.report.markup import clip
from mellea_like.report.model_shares import share_rows
from mellea_like.report.numbers import (
    amount,
    bounds,
    count,
    moment,
    money,
    percent,
    seconds,
    three_digits,
    tokens_of,
)
from mellea_like.report.run_figures import DEEPEST, LISTED, figures_of, why
from mellea_like.report.views import FATES, ItemView, damage

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from mellea_like.core.prices import Price
    from mellea_like.report.run_figures import RepairDepth, RunFigures

__all__ = ["run_text"]

STATUSES = {
    "passed": "passed",
    "failed": "failed: {} passed",
    "errored": "errored: an exception ended them",
    "unfinished": "not finished: stopped before, or to be tried again after an error",
}
"""Descriptions of the items' statuses."""

_NAME, _IDENTITY, _COST = 100, 4000, 120
_LINES = 5


def statuses_of(figures: RunFigures) -> list[tuple[str, str, int]]:
    """Return each status that occurs in a run, with its description and number of items."""
    none, few = "no draw", "too few draws"
    passed = f"{none}, or {few},"
    if figures.too_few in (0, figures.statuses["failed"]):
        passed = few if figures.too_few else none
    found = [(s, words.format(passed), figures.statuses[s]) for s, words in STATUSES.items()]
    return [status for status in found if status[-1]]


def about_run(figures: RunFigures) -> str:
    """Describe a run on one line: its model, its strategy and its times."""
    run, parts = figures.facts, list[str]()
    for name, key in (("model", "model"), ("strategy", "class")):
        value = run.identity.get(name)
        if isinstance(value, dict):
            value = cast("dict[str, object]", value).get(key)
        if value:
            parts.append(clip(_short(key, value), 120))
    ended = run.ended
    until = f"ended {moment(ended)}" if ended else "not finished"
    parts.append(f"started {moment(run.started)}, {until}")
    return " · ".join(parts)


def headline(figures: RunFigures, *, advise: bool = True) -> list[tuple[str, str, str]]:
    """Return the main figures of a run; with ``advise``, explain how to get missing figures."""
    usage, done, passed = figures.usage, figures.done, figures.passed
    known, complete = figures.money
    elapsed = figures.elapsed
    bound = "≥ " if usage.unknown else ""
    rate = (
        f"{three_digits(done / elapsed)} items/s"
        if elapsed and done and not figures.open_end
        else ""
    )
    time = "–" if elapsed is None else "≥ " * figures.open_end + seconds(elapsed)
    where = ": add --price IN,OUT, or Journal(prices=...)" if advise else ""
    cost = ("cost", "–", f"no prices given{where}")
    if figures.prices is not None:

        def written(cost: float) -> str:
            return money(cost, currency, at_least=not complete)

        currency = figures.prices.currency
        about = [f"{written(known / passed)} per passed item"] if passed else []
        if unpriced := figures.unpriced:
            about.append(clip(f"no price for {', '.join(unpriced)}", _COST))
        cost = ("cost", written(known), "; ".join(about))
    begun = figures.begun
    per_item = f"{three_digits(usage.requests / begun)} per item" if begun else ""
    sure = f"95 % interval {bounds(*figures.rate_interval)}" if done else ""
    if done and figures.repeats > 1:
        times = f"{three_digits(figures.repeats)} times each on average"
        sure += f", as equal items count as one ({times})"
    if begun > done:  # Items that pass finish earlier than items that keep failing.
        whose = "of those finished; " if done else ""
        sure = f"{whose}{percent(passed, begun)} of the {count(begun)} that were begun"
    return [
        ("items", count(figures.items), f"{count(done)} finished" if done < figures.items else ""),
        ("pass rate", percent(passed, done), sure),
        ("requests", count(usage.requests), per_item),
        *(("from the cache", count(hits), "no requests") for hits in [usage.cache_hits] if hits),
        (
            "tokens",
            bound + amount(usage.total_tokens),
            ", ".join(tokens_of(usage, amount)).replace(" tokens", "", 1),
        ),
        cost,
        ("time", time, rate),
    ]


def until_words(figures: RunFigures) -> str:
    """Describe how many draws of an item had started when a draw passed."""
    until = figures.until_passed
    if not until.values:
        return "No item passed."
    first = percent(until.values.count(1), len(until.values))
    late = plural(round(until.quantile(0.95)), "draw")
    return (
        f"{first} of the items that passed had started one draw when one passed, 95 % at most"
        f" {late}."
    )


def latency_words(figures: RunFigures) -> str:
    """Describe the durations of items."""
    times = figures.latency
    if not times.values:
        return "No item is finished."
    only = "Of the items that are finished, half" if figures.begun > figures.done else "Half"
    return (
        f"{only} took at most {seconds(times.quantile(0.5))} (p50), 95 % at most"
        f" {seconds(times.quantile(0.95))} (p95), the longest {seconds(times.most)}."
    )


def identity_of(figures: RunFigures) -> list[tuple[str, str]]:
    """Return the settings that identify a run, and its prices, as names and values."""
    lines = [
        (clip(name, _NAME), clip(_plain(value), _IDENTITY))
        for name, value in figures.facts.identity.items()
        if value not in (None, "", [], {})
    ]
    if figures.prices is not None:
        lines += [
            (f"price of {clip(model, _NAME)}", _written(price))
            for model, price in figures.prices.of.items()
        ]
    if figures.repeated:
        lines.append(("interrupted and restarted", plural(figures.repeated, "item")))
    return lines


def _written(price: Price) -> str:
    sent, received = (
        with_currency(f"{amount:g}", price.currency) for amount in (price.input, price.output)
    )
    cached = ""
    if price.cached_input is not None:
        cached = f" ({with_currency(f'{price.cached_input:g}', price.currency)} cached)"
    return f"{sent} in{cached}, {received} out, per million tokens"


def run_text(run: Mapping[str, Any], items: Iterable[Mapping[str, Any]], *, seed: int = 0) -> str:
    """Sum up a run in a few lines of plain text.

    Args:
        run: the run's record, as `read_run` returns it.
        items: the records of its items, as `read_items` yields them; they are read once, one by
            one.
        seed: the seed for the random choice of failed items to list.

    Returns:
        The lines. They may contain control characters, so escape them before printing them to a
        terminal.

    Raises:
        ValueError: a record is malformed.
    """
    with damage("record of a run"):
        return "\n".join(_lines(figures_of(run, items, seed=seed)))


def _lines(figures: RunFigures) -> list[str]:
    lines = [f"Run of {plural(figures.items, 'item')}: {about_run(figures)}", ""]
    for name, value, more in headline(figures):
        lines.append(f"  {name:<10} {value:>12}" + (f"   {more}" if more else ""))
    lines.append("")
    lines += [f"  {count(n):>10} {words}" for _, words, n in statuses_of(figures)]
    lines += ["", f"Attempts: {until_words(figures)}", f"Time per item: {latency_words(figures)}"]
    total = figures.usage.total_tokens
    if total:
        lines += ["", "Tokens"]
        lines += [
            f"  {percent(usage.total_tokens, total):>10} {FATES[fate]}"
            for fate, usage in figures.fates.items()
            if usage.total_tokens
        ]
    if models := models_of(figures):
        lines += ["", "Models"]
        lines += [_model_line(*row) for row in models]
    if figures.by_requirement:
        lines += ["", "Pass rate by requirement"]
        lines += [
            f"  {percent(t.counts['passed'], t.judged):>10} of {count(t.judged)}: {_line(name)}"
            for name, t in figures.by_requirement[:_LINES]
        ]
    if causes := figures.by_final_failure:
        lines += ["", "Unmet requirements of failed items"]
        lines += [
            f"  {count(c.items):>10} {_line(name)} ({count(c.alone)} of them failed only this)"
            for name, c in causes[:_LINES]
        ]
    if figures.by_depth:
        lines += ["", "Repairs"]
        lines += [
            f"  {percent(d.passed, d.judged):>10} of {count(d.judged)} {depth_name(depth)} passed"
            + (f"; {words}" if (words := _gains(d)) else "")
            for depth, d in figures.by_depth
        ]
    if figures.errors:
        lines += ["", "Errors"]
        lines += [
            f"  {count(n):>10} {_line(kind)}" for kind, n in figures.errors.most_common(_LINES)
        ]
    if figures.failed:
        few = figures.done - figures.passed <= LISTED
        sample = f"{LISTED} of the items that failed, at random (seed {figures.seed})"
        lines += ["", "The items that failed" if few else sample]
        lines += [
            f"  #{item.id} {with_reason(_line(item.label), _line(why(item)))}"
            for item in map(ItemView, figures.failed)
        ]
    return lines


def depth_name(depth: int) -> str:
    """Return a plural name for the replies at a repair depth, such as "second repairs"."""
    ordinals = {1: "first", 2: "second", 3: "third"}
    more = " or later" if depth == DEEPEST else ""
    return f"{ordinals.get(depth, f'{depth}th')}{more} repairs" if depth else "first draws"


def _gains(depth: RepairDepth) -> str:
    """Compare the replies at a depth with the replies that they repaired."""
    compared = depth.more + depth.same + depth.less
    parts = ("met more", depth.more), ("as much", depth.same), ("less", depth.less)
    told = [f"{percent(n, compared)} {words}" for words, n in parts] if compared else []
    return ", ".join(told)


def models_of(figures: RunFigures) -> list[tuple[str, ...]]:
    """Return a row of texts for each model; no rows if there is only one model."""
    prices = figures.prices
    return share_rows(figures.models, None if prices is None else prices.currency)


def _model_line(name: str, draws: str, passed: str, tokens: str, cost: str = "") -> str:
    spent = f", {cost}" if cost else ""
    drawn = "draw" if draws == "1" else "draws"
    return f"  {draws:>10} {drawn}, {passed} passed, {tokens} tokens{spent}: {_line(name)}"


def _line(text: str) -> str:
    return clip(" ".join(text[:1000].split()), 160)


def _plain(value: object) -> str:
    """Return a setting's value as text: lists as lines, objects as ``name: value``."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "\n".join(map(_plain, cast("list[object]", value)))
    if isinstance(value, dict):
        pairs = cast("dict[str, object]", value)
        if "description" in pairs:  # A requirement's validator doesn't matter to a reader.
            return _plain(pairs["description"])
        return ", ".join(f"{name}: {_short(name, part)}" for name, part in pairs.items())
    return json.dumps(value)


def _short(name: str, value: object) -> str:
    text = _plain(value)
    return text.rpartition(".")[2] if name == "class" else text
