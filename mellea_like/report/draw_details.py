"""Markup for the details of a call's draws, and for the conversations that were sent."""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from mellea_like.core.display import plural
from mellea_like.core.parts import Text, part_from_dict, shown_size
from mellea_like.core.prompts import prompt_since
from mellea_like.report.charts import rate_bar
from mellea_like.report.markup import Html, clip, html, joined, swatch, text_block
from mellea_like.report.numbers import capital, count, percent, seconds, tokens_of
from mellea_like.report.waterfall import anchor

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mellea_like.report.views import SliceView, TraceView, Verdict


class Capacity(NamedTuple):
    """Limits on the details shown: draws, characters in total, and characters of one text."""

    panels: int
    texts: int
    text: int


FULL = Capacity(panels=1000, texts=1_000_000, text=50_000)
"""The capacity of a page about a single call: as much as a person would read."""

_REASON = 1000


def panels(trace: TraceView, scope: str, room: Capacity) -> Html:
    """Return a collapsed panel of details for each draw, in the order in which the draws ended."""
    drawn = trace.cut(room.panels)
    shown = drawn.slices
    left_out = len(trace.slices) - len(shown)
    winners, names = drawn.winners, trace.names
    common = shown[0].prompt if shown else None
    first = {s.prompt: s for s in reversed(shown)}
    # All draws get the same share of the characters, even if some of them need less.
    limit = min(room.text, max(room.texts // max(len(shown), 1), 200))
    made = [
        _panel(
            s,
            names[s.iteration],
            scope,
            limit,
            won=s in winners,
            sent=None if s.prompt == common else _sent(s, trace, first, names, scope, limit),
        )
        for s in shown
    ]
    more = html('<p class="note">{} not shown.</p>', plural(left_out, "more draw"))
    return html('<div class="panels">{}{}</div>', joined(*made), more if left_out else None)


_BY = {
    "best-of": "Chosen by score",
    "vote": "Chosen by vote",
    "collect": "Collected",
    "consensus": "Chosen by similarity to the others",
    "tournament": "Chosen by a judge in pairwise comparisons",
}
MOST_BARS = 20


def decided(trace: TraceView) -> Html | None:
    """Return a selection's decision as bars of scores or votes; None without a decision."""
    if (decision := trace.decision) is None:
        return None
    won, answers, scores = decision.winners, decision.answers, decision.scores
    pairs, tokens = len(decision.comparisons), count(decision.usage.total_tokens)
    facts = [
        _BY.get(decision.kind, clip(decision.kind, _REASON)),
        clip(decision.reason, _REASON),
        answers and f"{percent(decision.share or 0.0, 1.0)} of the votes",
        decision.tied and f"{plural(len(decision.tied), 'answer')} tied for first place",
        decision.abstentions and f"{plural(decision.abstentions, 'draw')} did not pass",
        pairs and f"{plural(pairs, 'pair')} compared in both orders, {tokens} tokens",
        decision.errors and f"{plural(len(decision.errors), 'error')}: {decision.errors[0][:200]}",
    ]
    names = trace.names
    bars = [(a.label, a.votes, "", a.iteration in won) for a in answers] or [
        (capital(names[i]), scores[i], decision.notes.get(i, ""), i in won)
        for i in sorted(scores, key=lambda i: (-scores[i], i not in won))
    ]
    finite = [0.0, *(value for _, value, _, _ in bars if math.isfinite(value))]
    low, high = min(finite), max(finite)
    reach = high - low or 1.0
    rows: list[Html] = []
    for name, value, note, wins in bars[:MOST_BARS]:
        drawn = min(max(value, low), high)
        row = html(
            '<li class="{}"><span>{}</span><span class="name" dir="auto">{}</span>'
            '<span><strong>{}</strong>{}</span>{}<span class="note" dir="auto">{}</span></li>',
            "won" if wins else "lost",
            swatch("won") if wins else None,
            clip(name, _REASON),
            f"{value:.3g}",
            " won" if wins else None,
            rate_bar(abs(drawn) / reach, (min(drawn, 0.0) - low) / reach),
            clip(note, _REASON),
        )
        rows.append(row)
    more = html('<p class="note">{} more not shown.</p>', count(len(bars) - MOST_BARS))
    return html(
        '<p class="note" dir="auto">{}</p>{}{}',
        " · ".join(str(fact) for fact in facts if fact),
        html('<ul class="decided">{}</ul>', joined(*rows)) if rows else None,
        more if len(bars) > MOST_BARS else None,
    )


def conversation(
    messages: Sequence[Mapping[str, Any]], limit: int, *, pictures: bool = False
) -> Html:
    """Return markup for messages; with ``pictures``, small images are shown."""
    said = [
        html(
            '<div class="message"><div class="role">{}</div>{}{}</div>',
            m["role"],
            _content(m["content"], limit, pictures=pictures),
            tool_calls(m.get("tool_calls"), limit),
        )
        for m in messages
    ]
    return html('<div class="conversation">{}</div>', joined(*said))


def tool_calls(calls: Sequence[Mapping[str, Any]] | None, limit: int) -> Html | None:
    """Return markup for tool calls, one per line; None if there are none."""
    if not calls:
        return None
    of = (call["function"] for call in calls)
    return text_block("\n".join(f"calls {f['name']}({f['arguments']})" for f in of), limit)


PICTURE = 65_536
"""The maximum length of an image's ``data:`` URL, in characters, for the image to be shown."""

_SHOWN = re.compile(r"data:image/(?:png|jpeg|gif|webp);base64,[A-Za-z0-9+/=]*")


def _content(content: object, limit: int, *, pictures: bool) -> Html:
    """Return markup for a message's text or parts. No URL is ever fetched."""
    if not isinstance(content, list):
        return text_block(cast("str", content), limit)
    shown: list[Html] = []
    for part in cast("list[Mapping[str, Any]]", content):
        if isinstance(text := part.get("text"), str):
            shown.append(text_block(text, limit))
            continue
        named = _placeholder(part)
        image: Any = part.get("image_url") or {}
        url: Any = image.get("url")
        if pictures and isinstance(url, str) and len(url) <= PICTURE and _SHOWN.fullmatch(url):
            shown.append(html('<img class="part" src="{}" alt="{}" title="{}">', url, named, named))
        else:
            shown.append(html('<p class="note">{}</p>', clip(named, limit)))
    return joined(*shown)


def _placeholder(part: Mapping[str, Any]) -> str:
    """Describe an image, sound or file; a journal may have only a hash of its data."""
    kind = part.get("type")
    inside: Any = part.get(kind) if isinstance(kind, str) else None
    values = cast("dict[str, Any]", inside).values() if isinstance(inside, dict) else ()
    for referred in values:
        if isinstance(referred, dict):
            told: str = cast("dict[str, Any]", referred)["before"]
            what = told[5:].partition(";")[0] if told.startswith("data:") else f"{kind}"
            return f"[{what}, {shown_size(cast('dict[str, Any]', referred)['bytes'])}]"
    try:
        known = part_from_dict(part)
    except ValueError:
        return f"[{kind}]"
    return known.text if isinstance(known, Text) else known.placeholder


def _panel(
    slice_: SliceView,
    name: str,
    scope: str,
    limit: int,
    *,
    won: bool,
    sent: Html | None,
) -> Html:
    outcome = "won" if won else slice_.outcome
    # Browsers open a closed panel if a link leads into it.
    return html(
        '<details class="panel {}"><summary>{}<span class="which">{}</span>'
        '<span class="how">{}</span><span class="took">{}</span>'
        '<span class="why" dir="auto">{}</span></summary>'
        '<div class="inside" id="{}">{}</div></details>',
        outcome,
        swatch(outcome),
        capital(name),
        "passed, won" if won else slice_.outcome,
        seconds(slice_.seconds),
        clip("; ".join(slice_.problems), 200),
        anchor(scope, slice_),
        _body(slice_, limit, sent),
    )


def _body(slice_: SliceView, limit: int, sent: Html | None) -> Html:
    parts: list[Html | None] = []
    error = slice_.error
    if error is not None:
        parts.append(block("Error", text_block(str(error), limit)))
    if slice_.text is not None:
        nothing = html('<p class="note">Empty, or its text was not kept.</p>')
        called = tool_calls(slice_.tool_calls, limit)
        reply = text_block(slice_.text, limit) if slice_.text else called or nothing
        parts.append(block("Reply", joined(reply, called if slice_.text else None)))
    parts.extend(
        block(name, text_block(text, limit))
        for name, text in (("Refusal", slice_.refusal), ("Reasoning", slice_.reasoning))
        if text
    )
    if slice_.value is not None:
        written = json.dumps(slice_.value, indent=2, ensure_ascii=False)
        parts.append(block("Value", text_block(written, limit)))
    if slice_.reason:
        parts.append(block("Why it was not an answer", text_block(slice_.reason, limit)))
    if slice_.verdicts:
        parts.append(block("Validations", _validations(slice_.verdicts)))
    if sent is not None:
        parts.append(block("What was sent", sent))
    parts.append(_facts(slice_))
    return joined(*parts)


def _sent(
    s: SliceView,
    trace: TraceView,
    first: Mapping[int, SliceView],
    names: Mapping[int, str],
    scope: str,
    limit: int,
) -> Html:
    """Return the messages sent for a draw; a link replaces those that an earlier panel shows."""
    place, messages = prompt_since(trace.prompts, s.prompt, first)
    since = conversation(messages, limit)
    if place is None:
        return since
    before = first[place]
    link = anchor(scope, before), names[before.iteration]
    note = html(
        '<p class="note">Everything that <a href="#{}">{}</a> was sent, and then:</p>', *link
    )
    return joined(note, since)


def block(title: str, inside: Html) -> Html:
    """Return a section with a heading."""
    return html("<section><h4>{}</h4>{}</section>", title, inside)


def _validations(verdicts: Sequence[Verdict]) -> Html:
    rows: list[Html] = []
    for v in verdicts:
        score, reason = v.score, v.reason
        rows.append(
            html(
                '<li>{}<div><strong dir="auto">{}</strong><span class="status"> {}</span>{}{}'
                "</div></li>",
                swatch(v.status),
                clip(v.description or v.name, _REASON),
                v.status,
                None if score is None else html("<span>, score {}</span>", f"{score:.3g}"),
                html('<div class="reason" dir="auto">{}</div>', clip(reason, _REASON))
                if reason
                else None,
            )
        )
    return html('<ul class="validations">{}</ul>', joined(*rows))


def _facts(slice_: SliceView) -> Html:
    usage = slice_.usage
    borrowed = slice_.chain != slice_.subsample
    unknown = f", {count(usage.unknown)} of unknown cost" if usage.unknown else ""
    facts = [
        f"in row {slice_.chain + 1} of the chart" if borrowed else "",
        "" if slice_.stage is None else f"stage {slice_.stage}",
        f"{seconds(slice_.started_at)} to {seconds(slice_.ended_at)}",
        ", ".join(tokens_of(usage, count)),
        f"{plural(usage.requests, 'request')}{unknown}",
        f"{count(usage.cache_hits)} from the cache" if usage.cache_hits else "",
        slice_.model or slice_.asked,
        slice_.finish_reason and f"ended by {slice_.finish_reason}",
    ]
    return html('<p class="note">{}</p>', " · ".join(fact for fact in facts if fact))
