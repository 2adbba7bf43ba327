"""A page about one call. Needs the extra ``report``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mellea_like.report.attempts import FATES, cut, damage, winner_of
from mellea_like.report.call_summary import fates_of, headline, outcomes_of, stopped
from mellea_like.report.charts import stacked, told_parts, whole_of
from mellea_like.report.format import moment, seconds
from mellea_like.report.icons import swatch
from mellea_like.report.markup import Html, clip, text_block
from mellea_like.report.page import SCOPE, page
from mellea_like.report.panels import FULL, conversation, panels
from mellea_like.report.waterfall import waterfall

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["call_report"]

_MESSAGE = 20_000


def call_report(trace: Mapping[str, Any], title: str | None = None) -> str:
    """Make a page about a call: a waterfall of its iterations, and all that is known of each.

    Args:
        trace: the call's record, as ``result.to_dict()`` gives it.
        title: the page's title; by default it names the call.

    Returns:
        An HTML page that asks for nothing but itself.

    Raises:
        ValueError: it is no such record.
    """
    with damage("trace of a call"):
        return _call_report(trace, title)


def _call_report(trace: Mapping[str, Any], title: str | None) -> str:
    winner = winner_of(trace)
    outcomes = outcomes_of(trace)
    went = {fate: number for fate, number in fates_of(trace).items() if number}
    drawn, _ = cut(trace, FULL.panels)
    slices: list[Mapping[str, Any]] = trace["slices"]
    asked: list[Mapping[str, str]] = trace["prompts"][slices[0]["prompt"]] if slices else []
    return page(
        "call",
        title=title or _title(trace),
        sign=swatch("won" if winner is not None else "failed"),
        stopped=clip(stopped(trace), 300),
        about=f"{moment(trace['started'])} · sampling {clip(trace['sampling_id'], 64)}",
        tiles=[{"name": name, "value": value, "more": ""} for name, value in headline(trace)],
        waterfall=waterfall(drawn, SCOPE, links=True),
        waterfall_note=_note(trace, winner),
        legend=[
            (swatch("won"), "passed, won"),
            *((swatch(outcome), outcome) for outcome in ("failed", "errored", "cancelled")),
        ],
        winner=None if winner is None else _result(winner),
        outcomes_bar=stacked(outcomes, SCOPE, told_parts(outcomes, "iteration")),
        outcome_parts=whole_of([(name, name, number) for name, number in outcomes]),
        tokens_bar=stacked(list(went.items()), SCOPE, told_parts(list(went.items()), "token")),
        token_parts=whole_of([(fate, FATES[fate], number) for fate, number in went.items()]),
        panels=panels(trace, SCOPE, FULL),
        asked=conversation(asked, _MESSAGE),
    )


def _result(winner: Mapping[str, Any]) -> Html:
    return text_block(winner["text"] or "", _MESSAGE)


def _title(trace: Mapping[str, Any]) -> str:
    """Return what was asked for, in a line; the call's id where that says nothing."""
    slices = trace["slices"]
    text: str = slices[0]["action"]["text"] if slices else ""
    return clip(" ".join(text[:1000].split()), 120) or f"Sampling {trace['sampling_id']}"


def _note(trace: Mapping[str, Any], winner: Mapping[str, Any] | None) -> str:
    if winner is None:
        return f"No iteration passed in {seconds(trace['elapsed'])}."
    siblings = sum(s["outcome"] == "cancelled" for s in trace["slices"])
    rest = (
        f", and {siblings} that still ran were cancelled"
        if siblings > 1
        else (", and one that still ran was cancelled" if siblings else "")
    )
    return f"Iteration {winner['iteration']} passed after {seconds(winner['ended_at'])}{rest}."
