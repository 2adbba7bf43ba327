"""What is known of each iteration of a call, and what was asked: for reading."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from mellea_like.report.format import count, plural, seconds
from mellea_like.report.icons import swatch
from mellea_like.report.iterations import cut, problems_of, usage_of, winner_of
from mellea_like.report.markup import Html, clip, html, joined, text_block
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
    more = html('<p class="note">{} not shown.</p>', plural(left_out, "more iteration"))
    return html('<div class="panels">{}{}</div>', joined(*made), more if left_out else None)


def conversation(messages: Sequence[Mapping[str, str]], limit: int) -> Html:
    """Write what was sent."""
    said = [
        html(
            '<div class="message"><div class="role">{}</div>{}</div>',
            m["role"],
            text_block(m["content"], limit),
        )
        for m in messages
    ]
    return html('<div class="conversation">{}</div>', joined(*said))


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
    # A link that leads into what is closed opens it.
    return html(
        '<details class="panel {}"><summary>{}<span class="which">Iteration {}</span>'
        '<span class="how">{}</span><span class="took">{}</span>'
        '<span class="why" dir="auto">{}</span></summary>'
        '<div class="inside" id="{}">{}</div></details>',
        outcome,
        swatch(outcome),
        slice_["iteration"],
        "passed, won" if won else slice_["outcome"],
        seconds(slice_["ended_at"] - slice_["started_at"]),
        clip("; ".join(problems_of(slice_)), 200),
        anchor(scope, slice_),
        _body(slice_, trace, limit, same=same),
    )


def _body(slice_: Mapping[str, Any], trace: Mapping[str, Any], limit: int, *, same: bool) -> Html:
    parts: list[Html | None] = []
    error = slice_["error"]
    if error is not None:
        words = f"{error['type']}: {error['message']}"
        parts.append(block("Error", text_block(words, limit)))
    if slice_["text"] is not None:
        nothing = html('<p class="note">Empty, or its text was not kept.</p>')
        reply = text_block(slice_["text"], limit) if slice_["text"] else nothing
        parts.append(block("Reply", reply))
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
    return html("<section><h4>{}</h4>{}</section>", title, inside)


def _validations(validations: Sequence[Mapping[str, Any]]) -> Html:
    rows: list[Html] = []
    for v in validations:
        score, reason = v["score"], v["reason"]
        rows.append(
            html(
                '<li>{}<div><strong dir="auto">{}</strong><span class="status"> {}</span>{}{}'
                "</div></li>",
                swatch(v["status"]),
                clip(v["description"] or v["name"], _REASON),
                v["status"],
                None if score is None else html("<span>, score {}</span>", f"{score:.3g}"),
                html('<div class="reason" dir="auto">{}</div>', clip(reason, _REASON))
                if reason
                else None,
            )
        )
    return html('<ul class="validations">{}</ul>', joined(*rows))


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
    return html('<p class="note">{}</p>', " · ".join(fact for fact in facts if fact))
