"""A report about one call: a page, or a few lines."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from mellea_like.core.display import plural
from mellea_like.core.prompts import prompt_at
from mellea_like.core.slice import Outcome
from mellea_like.report.charts import breakdown
from mellea_like.report.draw_details import FULL, conversation, decided, panels, tool_calls
from mellea_like.report.icons import swatch
from mellea_like.report.markup import Html, clip, joined, text_block
from mellea_like.report.model_shares import Shares, add_shares, share_rows
from mellea_like.report.numbers import amount, count, moment, percent, seconds
from mellea_like.report.page import SCOPE, environment, page
from mellea_like.report.trace_figures import (
    FATES,
    cut,
    damage,
    fates_in,
    has_too_few,
    names_of,
    problems_of,
    usage_of,
    winners_of,
)
from mellea_like.report.waterfall import waterfall

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["call_report", "call_text", "headline", "stopped"]

_STOPPED = {
    "passed": "Passed",
    "exhausted": "Nothing passed: all attempts are spent",
    "timeout": "Nothing passed: the time was up",
    "budget": "Nothing passed: a budget is spent",
    "hopeless": "Nothing passed: more draws would not help",
    "error": "Ended by an error",
    "hook": "Stopped by a plugin",
    "cancelled": "Cancelled",
}


def stopped(trace: Mapping[str, Any]) -> str:
    """Say how a call ended."""
    if won := winners_of(trace):
        names = names_of(trace)
        return f"Passed: {'; '.join(names[s['iteration']] for s in won)}"
    words = _STOPPED.get(trace["stop_reason"], f"Stopped: {trace['stop_reason']}")
    if has_too_few(trace):
        words = words.replace("Nothing passed", _short(trace))
    return f"{words} ({trace['stop_detail']})" if trace["stop_detail"] else words


def _short(trace: Mapping[str, Any]) -> str:
    return "Too few passed" if trace["decision"]["winners"] else "No answer won"


def headline(trace: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Choose the figures that come first."""
    usage = usage_of(trace["usage"])
    facts = {
        "draw": len(trace["slices"]),
        "lane": len({s["chain"] for s in trace["slices"]}),
        "request": usage.requests,
    }
    return [
        *((name if n == 1 else f"{name}s", count(n)) for name, n in facts.items()),
        ("tokens", ("≥ " if usage.unknown else "") + amount(usage.total_tokens)),
        ("elapsed", seconds(trace["elapsed"])),
    ]


def outcomes_of(trace: Mapping[str, Any]) -> list[tuple[str, int]]:
    """Count a call's draws by their outcome."""
    counts = Counter(str(s["outcome"]) for s in trace["slices"])
    return [(str(outcome), counts[outcome]) for outcome in Outcome if counts[outcome]]


def fates_of(trace: Mapping[str, Any]) -> dict[str, int]:
    """Say where the tokens of a call went."""
    went: dict[str, int] = dict.fromkeys(FATES, 0)
    for fate, usage in fates_in(trace):
        went[fate] += usage.total_tokens
    return went


def call_text(trace: Mapping[str, Any]) -> str:
    """Sum up a call in a few lines of plain text.

    Args:
        trace: the call's record.

    Returns:
        The lines. What prints them has to make them fit for a terminal.
    """
    lines = [f"{stopped(trace)}."]
    if (decision := trace.get("decision")) is not None:
        lines.append(f"Decided by {decision['kind']}: {decision['reason']}")
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
    best = trace["best_index"]
    if not trace["success"] and best is not None and not has_too_few(trace):
        slice_ = trace["slices"][best]
        lines.append(f"The best failure, {names_of(trace)[slice_['iteration']]}, lacks:")
        lines += [f"  - {' '.join(problem.split())}" for problem in problems_of(slice_)]
    errors = Counter(s["error"]["type"] for s in trace["slices"] if s["error"] is not None)
    lines += [f"{plural(number, 'draw')} with {kind}" for kind, number in errors.items()]
    return "\n".join(line for line in lines if line)


_MESSAGE, _RESULTS = 20_000, 100


def call_report(trace: Mapping[str, Any], title: str | None = None) -> str:
    """Make a page about a call: a waterfall of its draws, and all that is known of each.

    Args:
        trace: the call's record, as ``result.to_dict()`` gives it.
        title: the page's title; by default it names the call.

    Returns:
        An HTML page that asks for nothing but itself.

    Raises:
        ValueError: it isn't such a record.
    """
    environment()
    with damage("trace of a call"):
        return _call_report(trace, title)


def _call_report(trace: Mapping[str, Any], title: str | None) -> str:
    winners = winners_of(trace)
    lost = any(s["outcome"] == "passed" and s not in winners for s in trace["slices"])
    went = [(fate, FATES[fate], number) for fate, number in fates_of(trace).items()]
    drawn, _ = cut(trace, FULL.panels)
    slices: list[Mapping[str, Any]] = trace["slices"]
    asked = prompt_at(trace["prompts"], slices[0]["prompt"]) if slices else []
    return page(
        "call",
        title=title or _title(trace),
        sign=swatch("won" if winners else "failed"),
        stopped=clip(stopped(trace), 300),
        about=f"{moment(trace['started'])} · sampling {clip(trace['sampling_id'], 64)}",
        tiles=[{"name": name, "value": value, "more": ""} for name, value in headline(trace)],
        waterfall=waterfall(drawn, SCOPE, links=True),
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


def _won(s: Mapping[str, Any]) -> Html:
    called, text = tool_calls(s, _MESSAGE), s["text"] or ""
    return joined(text_block(text, _MESSAGE) if text or called is None else None, called)


def _models(trace: Mapping[str, Any]) -> list[tuple[str, ...]]:
    shares: Shares = {}
    add_shares(trace, shares)
    return share_rows(shares)


def _title(trace: Mapping[str, Any]) -> str:
    """Return what was asked for, in a line; the call's id where that says nothing."""
    slices = trace["slices"]
    text: str = slices[0]["action"]["text"] if slices else ""
    return clip(" ".join(text[:1000].split()), 120) or f"Sampling {trace['sampling_id']}"


def _note(trace: Mapping[str, Any], winners: Sequence[Mapping[str, Any]]) -> str:
    if not winners:
        took = seconds(trace["elapsed"])
        if not has_too_few(trace):
            return f"No draw passed in {took}."
        return f"{_short(trace)} in {took}."
    cancelled = any(s["outcome"] == "cancelled" for s in trace["slices"])
    rest = ", and what still ran was cancelled" if cancelled else ""
    if trace.get("decision") is not None:
        return f"Decided after {seconds(trace['elapsed'])}{rest}."
    return f"Passed after {seconds(winners[0]['ended_at'])}{rest}."
