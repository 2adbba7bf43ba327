"""A page about a run of many items. Needs the extra ``report``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mellea_like.report.attempts import FATES, cut, damage, problems_of, winner_of
from mellea_like.report.charts import (
    binned,
    columns,
    distribution,
    rate_bar,
    stacked,
    told_columns,
    told_parts,
    whole_of,
)
from mellea_like.report.figures import figures_of, iterations_until, why
from mellea_like.report.format import count, money, percent, plural, seconds
from mellea_like.report.icons import swatch
from mellea_like.report.markup import Html, clip, joined, tag, text_block
from mellea_like.report.page import SCOPE, page
from mellea_like.report.panels import Room, block, conversation, panels
from mellea_like.report.run_summary import (
    STATUSES,
    about_run,
    headline,
    identity_of,
    latency_words,
    statuses_of,
    until_words,
)
from mellea_like.report.waterfall import waterfall

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from mellea_like.report.figures import RunFigures

__all__ = ["run_report"]

MOST_RATES = 25
"""Requirements that are drawn: those that failed most often."""

MOST_ERRORS = 15

ROOM = Room(panels=20, texts=5_000, text=1_000)
"""How much of an item's call is shown."""

MOST_DETAIL = 180_000
"""Bytes of markup for all items' calls together; beyond that, items that failed have their gist."""

_LABEL, _WHY = 120, 240
_GIST, _MESSAGES = 400, 2
"""Characters of a text, and messages of what was sent, that each item that failed shows."""


def run_report(
    run: Mapping[str, Any], items: Iterable[Mapping[str, Any]], title: str | None = None
) -> str:
    """Make a page about a run: how its items ended, what failed, how long it took, what it cost.

    The items are read once, one by one, and the page stays as small for a million of them as for a
    thousand.

    Args:
        run: the run's record, as `read_run` gives it.
        items: the records of its items, as `read_items` gives them.
        title: the page's title; by default it says how many items there are.

    Returns:
        An HTML page that asks for nothing but itself.

    Raises:
        ValueError: these are no such records.
    """
    with damage("record of a run"):
        figures = figures_of(run, items)
        return page("run", **_content(figures, title))


def _content(figures: RunFigures, title: str | None) -> dict[str, Any]:
    room = _Detail()
    statuses = statuses_of(figures)
    failed = [room.item(item, "f", gist=True) for item in figures.failed]
    slowest = [room.item(item, "s") for item in figures.slowest]
    failures = figures.done - figures.passed
    return {
        "title": title or f"Run of {plural(figures.items, 'item')}",
        "about": about_run(figures),
        "tiles": [{"name": n, "value": v, "more": more} for n, v, more in headline(figures)],
        "items_note": f"{count(figures.done)} of {plural(figures.items, 'item')} finished.",
        "items_bar": stacked(statuses, SCOPE, told_parts(statuses, "item")),
        "item_parts": whole_of([(s, STATUSES[s], number) for s, number in statuses]),
        **_tokens(figures),
        **_rates(figures),
        **_until(figures),
        **_latency(figures),
        **_cost(figures),
        "errors": [
            (clip(kind, 200), count(n)) for kind, n in figures.errors.most_common(MOST_ERRORS)
        ],
        "errors_note": f"{plural(figures.errors.total(), 'error')} in iterations and items.",
        "failed": failed,
        "failed_note": _some("item", len(failed), failures, "the first")
        + " Open one to see what was asked, what came, and what was wrong with it.",
        "slowest": slowest,
        "slowest_note": f"The {plural(len(slowest), 'item')} that took longest."
        if len(slowest) > 1
        else "",
        "identity": identity_of(figures),
    }


def _tokens(figures: RunFigures) -> dict[str, Any]:
    went = [(fate, u.total_tokens) for fate, u in figures.fates.items() if u.total_tokens]
    usage = figures.usage
    won = figures.fates["won"].total_tokens
    note = "No tokens were counted."
    if usage.total_tokens:
        note = (
            f"{percent(won, usage.total_tokens)} of {count(usage.total_tokens)} tokens are in"
            " replies that won."
        )
    if usage.unknown:
        note += (
            f" {count(usage.unknown)} of {plural(usage.requests, 'request')} did not say what they"
            " took, so there may be more."
        )
    return {
        "tokens_note": note,
        "tokens_bar": stacked(went, SCOPE, told_parts(went, "token")),
        "token_parts": whole_of([(fate, FATES[fate], number) for fate, number in went]),
    }


def _rates(figures: RunFigures) -> dict[str, Any]:
    by_requirement = figures.by_requirement
    rates: list[dict[str, Any]] = []
    for name, tally in by_requirement[:MOST_RATES]:
        passed, judged = tally.counts["passed"], tally.judged
        besides = [
            f", {count(tally.counts[status])} {status}"
            for status in ("errored", "skipped")
            if tally.counts[status]
        ]
        rates.append({
            "name": clip(name, 200),
            "share": percent(passed, judged),
            "judged": count(judged),
            "besides": "".join(besides),
            "bar": rate_bar(passed / judged),
        })  # fmt: skip
    note = "How often a reply met it, over all iterations that were judged."
    if not rates:
        note = "No requirement was judged."
    elif len(by_requirement) > MOST_RATES:
        note += f" The {MOST_RATES} of {len(by_requirement)} that failed most often."
    return {"rates": rates, "rates_note": note}


def _until(figures: RunFigures) -> dict[str, Any]:
    bins = binned(figures.until_passed)
    return {
        "until_note": until_words(figures),
        "until_chart": columns(bins, told_columns(bins, "item"), "iterations until one passed")
        if figures.until_passed
        else None,
    }


def _latency(figures: RunFigures) -> dict[str, Any]:
    times = figures.latency
    words = latency_words(figures)
    return {
        "latency_note": words,
        "latency_chart": distribution(times, seconds, words, "time per item, logarithmic")
        if times.most > 0
        else None,
    }


def _cost(figures: RunFigures) -> dict[str, Any]:
    costs = figures.costs
    if figures.prices is None:
        return {"cost_note": "No prices were given to the run.", "cost_chart": None}
    currency = figures.prices.currency
    known, complete = figures.money

    def written(cost: float) -> str:
        return money(cost, currency)

    words = f"Half the items cost at most {written(costs.quantile(0.5))}, 95 % at most"
    words += f" {written(costs.quantile(0.95))}."
    if figures.passed:
        each = money(known / figures.passed, currency, at_least=not complete)
        words += f" An item that passed cost {each}, failures included."
    if not complete:
        words += " Requests of unknown cost are missing from that."
    return {
        "cost_note": words,
        "cost_chart": distribution(costs, written, words, "cost per item, logarithmic")
        if costs.most > 0
        else None,
    }


def _some(thing: str, shown: int, whole: int, which: str) -> str:
    if shown == whole:
        return f"{plural(whole, thing)}."
    return f"{which.capitalize()} {shown} of {plural(whole, thing)}."


class _Detail:
    """Shows items, and the calls of as many of them as there is room for."""

    def __init__(self) -> None:
        self._left = MOST_DETAIL
        self.opened: set[int] = set()

    def item(self, item: Mapping[str, Any], scope: str, *, gist: bool = False) -> dict[str, Any]:
        trace = item["trace"]
        slices: Sequence[Any] = [] if trace is None else trace["slices"]
        return {
            "sign": swatch(item["status"]),
            "id": count(item["id"]),
            "label": clip(item["label"], _LABEL),
            "why": f"see above: {_how(item)}" if item["id"] in self.opened else _how(item),
            "took": seconds(item["elapsed"]),
            "iterations": plural(len(slices), "iteration"),
            "inside": joined(
                _gist(item) if gist else None,
                self._call(item, f"{scope}{item['id']}") if slices else None,
            ),
        }

    def _call(self, item: Mapping[str, Any], scope: str) -> Html | None:
        if item["id"] in self.opened:
            return None
        trace = item["trace"]
        drawn, _ = cut(trace, ROOM.panels)
        # The patterns are the page's, the panels the item's own.
        picture = joined(
            waterfall(drawn, scope, links=True, patterns=SCOPE), panels(trace, scope, ROOM)
        )
        size = len(picture.encode())
        if size > self._left:
            return None
        self._left -= size
        self.opened.add(item["id"])
        return picture


def _gist(item: Mapping[str, Any]) -> Html:
    """Say what was asked, what came of it, and what was wrong, of the best failure or the last."""
    trace: Mapping[str, Any] | None = item["trace"]
    asked: Sequence[Mapping[str, str]] = []
    label: str = item["label"]
    problems, reply = [why(item)], None
    if trace is not None and trace["slices"]:
        best = trace["best_index"]
        slice_ = trace["slices"][-1 if best is None else best]
        asked = trace["prompts"][slice_["prompt"]]
        problems, reply = problems_of(slice_) or problems, slice_["text"]
        label = slice_["action"]["text"] or label
    sent = conversation(asked[-_MESSAGES:], _GIST) if asked else text_block(label, _GIST)
    return tag(
        "div",
        block("What was asked", sent),
        block("The reply", text_block(reply, _GIST)) if reply else None,
        block("What was wrong with it", text_block("\n".join(problems), _GIST)),
        class_="gist",
    )


def _how(item: Mapping[str, Any]) -> str:
    if item["status"] != "passed":
        return clip(why(item), _WHY)
    trace: Mapping[str, Any] | None = item["trace"]
    if trace is None or (winner := winner_of(trace)) is None:
        return "passed"
    number = iterations_until(winner, trace["slices"])
    return "passed at once" if number == 1 else f"the {_ordinal(number)} iteration to end passed"


def _ordinal(number: int) -> str:
    if number % 100 in {11, 12, 13}:
        return f"{number}th"
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th') }"
