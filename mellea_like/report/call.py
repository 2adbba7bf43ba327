"""A report about one call: an HTML page, a notebook cell, or a few lines of text."""

from __future__ import annotations

from collections import Counter
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from mellea_like.core.display import plural
from mellea_like.core.slice import Outcome
from mellea_like.report.charts import breakdown
from mellea_like.report.draw_details import (
    FULL,
    Capacity,
    conversation,
    decided,
    panels,
    tool_calls,
)
from mellea_like.report.markup import Html, clip, html, joined, patterns, swatch, text_block
from mellea_like.report.model_shares import Shares, add_shares, share_rows
from mellea_like.report.numbers import amount, count, moment, percent, seconds
from mellea_like.report.page import SCOPE, environment, page, style
from mellea_like.report.views import FATES, TraceView, damage
from mellea_like.report.waterfall import waterfall

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mellea_like.report.views import SliceView

__all__ = ["call_report", "call_text"]

_STOPPED = {
    "passed": "Passed",
    "exhausted": "Nothing passed: all attempts were used",
    "timeout": "Nothing passed: the time was up",
    "budget": "Nothing passed: a budget is spent",
    "hopeless": "Nothing passed: more draws would not help",
    "error": "Ended by an error",
    "hook": "Stopped by a plugin",
    "cancelled": "Cancelled",
}


def stopped(trace: TraceView) -> str:
    """Describe how a call ended."""
    if won := trace.winners:
        names = trace.names
        return f"Passed: {'; '.join(names[s.iteration] for s in won)}"
    words = _STOPPED.get(trace.stop_reason, f"Stopped: {trace.stop_reason}")
    if trace.has_too_few:
        words = words.replace("Nothing passed", _short(trace))
    return f"{words} ({trace.stop_detail})" if trace.stop_detail else words


def _short(trace: TraceView) -> str:
    return "Too few passed" if (d := trace.decision) is not None and d.winners else "No answer won"


def headline(trace: TraceView) -> list[tuple[str, str]]:
    """Return the names and values of a call's main figures."""
    usage = trace.usage
    facts = {
        "draw": len(trace.slices),
        "lane": len({s.chain for s in trace.slices}),
        "request": usage.requests,
    }
    return [
        *((name if n == 1 else f"{name}s", count(n)) for name, n in facts.items()),
        ("tokens", ("≥ " if usage.unknown else "") + amount(usage.total_tokens)),
        ("elapsed", seconds(trace.elapsed)),
    ]


def outcomes_of(trace: TraceView) -> list[tuple[str, int]]:
    """Return each outcome and the number of the call's draws that ended in it."""
    counts = Counter(str(s.outcome) for s in trace.slices)
    return [(str(outcome), counts[outcome]) for outcome in Outcome if counts[outcome]]


def fates_of(trace: TraceView) -> dict[str, int]:
    """Count a call's tokens by their use. The uses are the keys of `FATES`."""
    went: dict[str, int] = dict.fromkeys(FATES, 0)
    for fate, usage in trace.fates:
        went[fate] += usage.total_tokens
    return went


def call_text(trace: Mapping[str, Any]) -> str:
    """Sum up a call in a few lines of plain text.

    Args:
        trace: the call's record, as ``result.to_dict()`` returns it.

    Returns:
        The lines. They may contain control characters, so escape them before printing them to a
        terminal.

    Raises:
        ValueError: ``trace`` isn't the record of a call.
    """
    with damage("trace of a call"):
        return "\n".join(line for line in _lines(TraceView(trace)) if line)


def _lines(trace: TraceView) -> list[str]:
    lines = [f"{stopped(trace)}."]
    if (decision := trace.decision) is not None:
        lines.append(f"Decided by {decision.kind}: {decision.reason}")
    lines.append(", ".join(f"{value} {name}" for name, value in headline(trace)))
    lines.append(", ".join(f"{number} {outcome}" for outcome, number in outcomes_of(trace)))
    went = fates_of(trace)
    total = sum(went.values())
    lines += [
        f"  {percent(number, total):>8}  of the tokens {FATES[fate]}"
        for fate, number in went.items()
        if number
    ]
    lines += [
        f"{name}: {draws} draws, {passed} passed, {tokens} tokens"
        for name, draws, passed, tokens in _models(trace)
    ]
    best = trace.best
    if not trace.success and best is not None and not trace.has_too_few:
        lines.append(f"The best failure, {trace.names[best.iteration]}, did not meet:")
        lines += [f"  - {' '.join(problem.split())}" for problem in best.problems]
    errors = Counter(error.type for s in trace.slices if (error := s.error) is not None)
    return lines + [f"{plural(number, 'draw')} with {kind}" for kind, number in errors.items()]


_MESSAGE, _RESULTS = 20_000, 100


def call_report(trace: Mapping[str, Any], title: str | None = None) -> str:
    """Make an HTML page about a call: a chart of its draws over time, and each draw's details.

    Args:
        trace: the call's record, as ``result.to_dict()`` returns it.
        title: the page's title. The default is the beginning of the call's action, or its id.

    Returns:
        An HTML page that loads no other files.

    Raises:
        ImportError: jinja2 is missing; install the extra ``report``.
        ValueError: ``trace`` isn't the record of a call.
    """
    environment()
    with damage("trace of a call"):
        return _call_report(TraceView(trace), title)


def _call_report(trace: TraceView, title: str | None) -> str:
    winners = trace.winners
    lost = any(s.passed and s not in winners for s in trace.slices)
    went = [(fate, FATES[fate], number) for fate, number in fates_of(trace).items()]
    slices = trace.slices
    asked = trace.sent(slices[0].prompt) if slices else []
    return page(
        "call",
        title=title or _title(trace),
        sign=swatch("won" if winners else "failed"),
        stopped=clip(stopped(trace), 300),
        about=f"{moment(trace.started)} · sampling {clip(trace.sampling_id, 64)}",
        tiles=[{"name": name, "value": value, "more": ""} for name, value in headline(trace)],
        waterfall=waterfall(trace.cut(FULL.panels), SCOPE, links=True),
        waterfall_note=_note(trace, winners),
        legend=[
            (swatch("won"), "passed, won"),
            *([(swatch("heard"), "passed")] if lost else []),
            *((swatch(outcome), outcome) for outcome in ("failed", "errored", "cancelled")),
        ],
        decided=decided(trace),
        winner=joined(*map(_won, winners[:_RESULTS])),
        models=_models(trace),
        outcomes=breakdown([(name, name, n) for name, n in outcomes_of(trace)], SCOPE),
        tokens=breakdown(went, SCOPE),
        panels=panels(trace, SCOPE, FULL),
        asked=conversation(asked, _MESSAGE, pictures=True),
    )


def _won(s: SliceView) -> Html:
    called, text = tool_calls(s.tool_calls, _MESSAGE), s.text or ""
    return joined(text_block(text, _MESSAGE) if text or called is None else None, called)


def _models(trace: TraceView) -> list[tuple[str, ...]]:
    shares: Shares = {}
    add_shares(trace, shares)
    return share_rows(shares)


def _title(trace: TraceView) -> str:
    """Return the action's text on one line, shortened, or the call's id if it has no text."""
    slices = trace.slices
    text = slices[0].action if slices else ""
    return clip(" ".join(text[:1000].split()), 120) or f"Sampling {trace.sampling_id}"


def _note(trace: TraceView, winners: Sequence[SliceView]) -> str:
    if not winners:
        took = seconds(trace.elapsed)
        if not trace.has_too_few:
            return f"No draw passed in {took}."
        return f"{_short(trace)} in {took}."
    cancelled = any(s.outcome == "cancelled" for s in trace.slices)
    rest = ", and the draws still running were cancelled" if cancelled else ""
    if trace.decides:
        return f"Decided after {seconds(trace.elapsed)}{rest}."
    return f"Passed after {seconds(winners[0].ended_at)}{rest}."


ROOM = Capacity(panels=200, texts=200_000, text=10_000)
"""The amount of detail in a notebook's cell. It is small, because notebooks store outputs."""


def cell(record: Mapping[str, Any]) -> Html:
    """Return the markup that shows a call in a notebook's cell."""
    trace = TraceView(record)
    # A notebook can show several results, so their ids must differ.
    scope = f"mlr-{sha256(trace.sampling_id.encode('utf-8', 'replace')).hexdigest()[:12]}"
    facts = " · ".join(f"{value} {name}" for name, value in headline(trace))
    return html(
        '<div class="mlr mlr-cell"><style>{}</style>{}'
        "<header>{}<strong>{}</strong><span>{}</span></header>{}{}{}</div>",
        Html(style("trace")),
        patterns(scope),
        swatch("won" if trace.success else "failed"),
        stopped(trace),
        facts,
        waterfall(trace.cut(ROOM.panels), scope, links=False),
        decided(trace),
        panels(trace, scope, ROOM),
    )
