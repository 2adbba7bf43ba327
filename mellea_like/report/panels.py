"""What is known of each iteration of a call, and what was asked: for reading."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from mellea_like.report.attempts import cut, problems_of, usage_of, winner_of
from mellea_like.report.format import count, plural, seconds
from mellea_like.report.icons import swatch
from mellea_like.report.markup import Html, clip, joined, tag, text_block
from mellea_like.report.waterfall import anchor

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["FULL", "Capacity", "block", "conversation", "panels"]


class Capacity(NamedTuple):
    """How much of a call a page has room for."""

    panels: int
    texts: int
    text: int


FULL = Capacity(panels=1000, texts=1_000_000, text=50_000)
"""For a page about a single call: all of any call that a person would read."""

_REASON = 1000


def panels(trace: Mapping[str, Any], scope: str, room: Capacity) -> Html:
    """Write what is known of each iteration, in the order they ended; each opens by itself."""
    drawn, left_out = cut(trace, room.panels)
    shown: Sequence[Mapping[str, Any]] = drawn["slices"]
    winner = winner_of(drawn)
    common = shown[0]["prompt"] if shown else None
    # A text of average length has room; what the short ones leave is not handed on.
    limit = min(room.text, max(room.texts // max(len(shown), 1), 200))
    made = [
        _panel(s, trace, scope, limit, won=s is winner, same=s["prompt"] == common) for s in shown
    ]
    more = tag("p", f"{plural(left_out, 'more iteration')} not shown.", class_="note")
    return tag("div", *made, more if left_out else None, class_="panels")


def conversation(messages: Sequence[Mapping[str, str]], limit: int) -> Html:
    """Write what was sent."""
    said = [
        tag(
            "div",
            tag("div", m["role"], class_="role"),
            text_block(m["content"], limit),
            class_="message",
        )
        for m in messages
    ]
    return tag("div", *said, class_="conversation")


def _panel(
    slice_: Mapping[str, Any],
    trace: Mapping[str, Any],
    scope: str,
    limit: int,
    *,
    won: bool,
    same: bool,
) -> Html:
    outcome = "won" if won else slice_["outcome"]
    problems = problems_of(slice_)
    summary = tag(
        "summary",
        swatch(outcome),
        tag("span", f"Iteration {slice_['iteration']}", class_="which"),
        tag("span", "passed, won" if won else slice_["outcome"], class_="how"),
        tag("span", seconds(slice_["ended_at"] - slice_["started_at"]), class_="took"),
        tag("span", clip("; ".join(problems), 200), class_="why", dir="auto"),
    )
    return tag(
        "details",
        summary,
        # A link that leads into what is closed opens it.
        tag(
            "div", _body(slice_, trace, limit, same=same), class_="inside", id=anchor(scope, slice_)
        ),
        class_=f"panel {outcome}",
    )


def _body(slice_: Mapping[str, Any], trace: Mapping[str, Any], limit: int, *, same: bool) -> Html:
    parts: list[Html | None] = []
    error = slice_["error"]
    if error is not None:
        words = f"{error['type']}: {error['message']}"
        parts.append(block("Error", text_block(words, limit)))
    if slice_["text"] is not None:
        nothing = tag("p", "Empty, or its text was not kept.", class_="note")
        parts.append(
            block("Reply", text_block(slice_["text"], limit) if slice_["text"] else nothing)
        )
    if slice_.get("value") is not None:
        written = json.dumps(slice_["value"], indent=2, ensure_ascii=False)
        parts.append(block("Value", text_block(written, limit)))
    if slice_["reason"]:
        parts.append(block("Why it was no answer", text_block(slice_["reason"], limit)))
    if slice_["validations"]:
        parts.append(block("Validations", _validations(slice_["validations"])))
    if not same:
        parts.append(
            block("What was sent", conversation(trace["prompts"][slice_["prompt"]], limit))
        )
    parts.append(_facts(slice_))
    return joined(*parts)


def block(title: str, inside: Html) -> Html:
    """Put a heading above something."""
    return tag("section", tag("h4", title), inside)


def _validations(validations: Sequence[Mapping[str, Any]]) -> Html:
    rows = [
        tag(
            "li",
            swatch(v["status"]),
            tag(
                "div",
                tag("strong", clip(v["description"] or v["name"], _REASON), dir="auto"),
                tag("span", f" {v['status']}", class_="status"),
                tag("span", f", score {v['score']:.3g}") if v["score"] is not None else None,
                tag("div", clip(v["reason"], _REASON), class_="reason", dir="auto")
                if v["reason"]
                else None,
            ),
        )
        for v in validations
    ]
    return tag("ul", *rows, class_="validations")


def _facts(slice_: Mapping[str, Any]) -> Html:
    usage = usage_of(slice_["usage"])
    chain = "" if slice_["chain"] == slice_["subsample"] else f" (run by {slice_['chain']})"
    unknown = f", {count(usage.unknown)} of unknown cost" if usage.unknown else ""
    facts = [
        f"subsample {slice_['subsample']}{chain}, depth {slice_['depth']}",
        f"{seconds(slice_['started_at'])} to {seconds(slice_['ended_at'])}",
        f"{count(usage.input_tokens)} tokens in, {count(usage.output_tokens)} out",
        f"{plural(usage.requests, 'request')}{unknown}",
        slice_["model"],
        slice_["finish_reason"] and f"ended by {slice_['finish_reason']}",
    ]
    return tag("p", " · ".join(fact for fact in facts if fact), class_="note")
