"""An HTML page about a run of many items."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mellea_like.core.display import plural
from mellea_like.report.charts import breakdown, columns, coverage_chart, numbers, rate_bar, sizes
from mellea_like.report.draw_details import (
    Capacity,
    block,
    conversation,
    decided,
    panels,
    tool_calls,
)
from mellea_like.report.markup import Html, clip, html, joined, swatch, text_block
from mellea_like.report.numbers import bounds, count, money, percent, seconds
from mellea_like.report.page import SCOPE, environment, page
from mellea_like.report.run_figures import LISTED, figures_of, why
from mellea_like.report.run_summary import (
    about_run,
    depth_name,
    headline,
    identity_of,
    latency_words,
    models_of,
    statuses_of,
    until_words,
)
from mellea_like.report.views import FATES, ItemView, damage
from mellea_like.report.waterfall import waterfall

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from mellea_like.pass_rates import Coverage
    from mellea_like.report.run_figures import RunFigures
    from mellea_like.report.views import TraceView

__all__ = ["run_report"]

MOST_RATES = 25
"""The most requirements to show, those that failed most often first."""

MOST_ERRORS = 15

ROOM = Capacity(panels=20, texts=5_000, text=1_000)
"""The amount of detail to show of an item's call."""

MOST_DETAIL = 180_000
"""The most bytes of markup for all items' calls. Any further items are shown only briefly."""

_LABEL, _WHY = 120, 240
_GIST, _MESSAGES = 400, 2
"""The most characters of a text, and the most messages, in the gist of an item."""


def run_report(
    run: Mapping[str, Any],
    items: Iterable[Mapping[str, Any]],
    title: str | None = None,
    *,
    seed: int = 0,
) -> str:
    """Make an HTML page about a run: its results, its failures, its duration and its cost.

    The items are read once, one by one. The page for a million items is as small as the page for a
    thousand.

    Args:
        run: the run's record, as `read_run` returns it.
        items: the records of its items, as `read_items` yields them.
        title: the page's title. The default is the number of items.
        seed: the seed for the random choice of failed items to list.

    Returns:
        An HTML page that loads no other files.

    Raises:
        ImportError: jinja2 is missing; install the extra ``report``.
        ValueError: a record is malformed.
    """
    environment()  # Fail early, before all items are read.
    with damage("record of a run"):
        figures = figures_of(run, items, seed=seed)
        return page("run", **_content(figures, title))


def _content(figures: RunFigures, title: str | None) -> dict[str, Any]:
    room = _Detail()
    failed = [room.item(ItemView(item), "f", gist=True) for item in figures.failed]
    slowest = [room.item(ItemView(item), "s") for item in figures.slowest]
    failures = figures.done - figures.passed
    which = "" if failures <= LISTED else f", {LISTED} of them at random (seed {figures.seed})"
    return {
        "title": title or f"Run of {plural(figures.items, 'item')}",
        "about": about_run(figures),
        "tiles": [{"name": n, "value": v, "more": more} for n, v, more in headline(figures)],
        "items_note": f"{count(figures.done)} of {plural(figures.items, 'item')} finished.",
        "items_parts": breakdown(statuses_of(figures), SCOPE),
        **_tokens(figures),
        **_rates(figures),
        **_causes(figures),
        **_depths(figures),
        "until_note": until_words(figures),
        "until_chart": columns(numbers(figures.until_passed), "draws started until one passed"),
        **_coverage(figures),
        "latency_note": latency_words(figures),
        "latency_chart": columns(sizes(figures.latency, seconds), "time per item, up to"),
        **_cost(figures),
        "errors": [
            (clip(kind, 200), count(n)) for kind, n in figures.errors.most_common(MOST_ERRORS)
        ],
        "models": models_of(figures),
        "errors_note": f"{plural(figures.errors.total(), 'error')} in draws and items.",
        "failed": failed,
        "failed_note": f"{plural(failures, 'item')}{which}."
        " Open one to see the prompt, the reply, and what was wrong with it.",
        "slowest": slowest,
        "slowest_note": f"The {plural(len(slowest), 'item')} that took longest."
        if len(slowest) > 1
        else "",
        "identity": identity_of(figures),
    }


def _tokens(figures: RunFigures) -> dict[str, Any]:
    went = [(fate, FATES[fate], u.total_tokens) for fate, u in figures.fates.items()]
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
            f" {count(usage.unknown)} of {plural(usage.requests, 'request')} did not report their"
            " usage, so there may be more."
        )
    return {
        "tokens_note": note,
        "tokens_parts": breakdown(went, SCOPE),
    }


def _coverage(figures: RunFigures) -> dict[str, Any]:
    curve = figures.coverage
    if curve is None:
        return {"coverage_note": "No draw was judged.", "coverage_chart": None}
    reach = curve.furthest
    points = [curve.at(draws) for draws in _steps(1, curve.reach)[:-1] + _steps(curve.reach, reach)]
    last, far = next(p for p in points if p.draws == curve.reach), points[-1]
    cut = (
        f" {plural(curve.cut, 'draw')} {'was' if curve.cut == 1 else 'were'} cancelled or had not"
        " ended (a race, a time limit or an interruption): each may have passed or failed."
        if curve.cut
        else ""
    )
    if figures.facts.ended is None and (n := figures.statuses["unfinished"]):
        cut += (
            f" Of {plural(n, 'unfinished item')}, draws under way are missing: if there are many,"
            " the intervals are mostly of quick draws."
        )
    further = f" Extrapolated to {count(reach)} (dashed): {_between(far)}." if far != last else ""
    note = (
        f"Measured up to {plural(last.draws, 'draw')}: {_between(last)} of the items pass.{further}"
        f" At most {percent(curve.hopeless, 1)} never pass. These are 95 % intervals.{cut}"
        " Equal items count as one, and repairs don't count as draws."
    )
    return {"coverage_note": note, "coverage_chart": coverage_chart(points)}


def _between(at: Coverage) -> str:
    return f"{bounds(at.low, at.high)} %"


def _steps(first: int, last: int) -> list[int]:
    """Return numbers from ``first`` to ``last``, each about 20 % greater than the one before."""
    steps = [first]
    while steps[-1] < last:
        steps.append(min(last, max(steps[-1] + 1, round(steps[-1] * 1.2))))
    return steps


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
    note = "How often replies met each requirement, over all judged draws."
    if not rates:
        note = "No requirement was judged."
    elif len(by_requirement) > MOST_RATES:
        note += f" Shown are the {MOST_RATES} of {len(by_requirement)} that failed most often."
    return {"rates": rates, "rates_note": note}


def _causes(figures: RunFigures) -> dict[str, Any]:
    """List the requirements that the best replies to failed items did not meet."""
    causes, failed = figures.by_final_failure, figures.statuses["failed"] - figures.too_few
    note = f"Requirements that the best replies to {plural(failed, 'failed item')} did not meet."
    if len(causes) > MOST_RATES:
        note += f" Shown are the {MOST_RATES} of {len(causes)} that most of them did not meet."
    rows = [
        (clip(name, 200), count(c.items), percent(c.items, failed), count(c.alone))
        for name, c in causes[:MOST_RATES]
    ]
    return {"causes": rows, "causes_note": note}


def _depths(figures: RunFigures) -> dict[str, Any]:
    """Compare repairs with the replies that they repaired, by depth."""
    rows = [
        (
            depth_name(depth),
            count(d.judged),
            percent(d.passed, d.judged),
            *(map(count, (d.more, d.same, d.less)) if depth else ("", "", "")),
        )
        for depth, d in figures.by_depth
    ]
    note = (
        "How many passed, and how many met more of the requirements, by weight, than the reply that"
        " they repaired. A reply that is repaired often is hard to get right, so later repairs pass"
        " more rarely even if they help; `mellea-like plan` compares them with fresh draws."
    )
    return {"depths": rows, "depths_note": note}


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
        words += f" Each item that passed cost {each}, including failures."
    if not complete:
        words += " Requests of unknown cost are not included."
    return {
        "cost_note": words,
        "cost_chart": columns(sizes(costs, written), "cost per item, up to"),
    }


class _Detail:
    """Prepares items for the page, with details of their calls up to `MOST_DETAIL` bytes in all."""

    def __init__(self) -> None:
        self._left = MOST_DETAIL
        self.opened: set[int] = set()

    def item(self, item: ItemView, scope: str, *, gist: bool = False) -> dict[str, Any]:
        trace = item.trace
        return {
            "sign": swatch(item.status),
            "id": count(item.id),
            "label": clip(item.label, _LABEL),
            "why": f"see above: {_how(item)}" if item.id in self.opened else _how(item),
            "took": seconds(item.elapsed),
            "draws": plural(0 if trace is None else len(trace.slices), "draw"),
            "inside": joined(
                _gist(item) if gist else None,
                self._call(item, trace, f"{scope}{item.id}") if trace and trace.slices else None,
            ),
        }

    def _call(self, item: ItemView, trace: TraceView, scope: str) -> Html | None:
        if item.id in self.opened:
            return None
        # Patterns are shared by the whole page, but the ids of panels are the item's own.
        over_time = waterfall(trace.cut(ROOM.panels), scope, links=True, patterns=SCOPE)
        picture = joined(over_time, decided(trace), panels(trace, scope, ROOM))
        size = len(picture.encode())
        if size > self._left:
            return None
        self._left -= size
        self.opened.add(item.id)
        return picture


def _gist(item: ItemView) -> Html:
    """Return the prompt, reply and problems of an item's best draw, or else of its last draw."""
    trace = item.trace
    asked: Sequence[Mapping[str, Any]] = []
    called = None
    label = item.label
    problems, reply = [why(item)], None
    if trace is not None and trace.slices:
        slice_ = trace.best or trace.slices[-1]
        asked = trace.sent(slice_.prompt)
        problems, reply = slice_.problems or problems, slice_.text
        called = tool_calls(slice_.tool_calls, _GIST)
        label = slice_.action or label
    sent = conversation(asked[-_MESSAGES:], _GIST) if asked else text_block(label, _GIST)
    return html(
        '<div class="gist">{}{}{}{}</div>',
        block("What was asked", sent),
        block("The reply", text_block(reply, _GIST)) if reply else None,
        block("Tool calls", called) if called else None,
        block("What was wrong with it", text_block("\n".join(problems), _GIST)),
    )


def _how(item: ItemView) -> str:
    if item.status != "passed":
        return clip(why(item), _WHY)
    if (trace := item.trace) is None or trace.winner is None:
        return "passed"
    number = trace.until_passed()
    return "passed with the first draw" if number == 1 else f"passed with {number} draws"
