"""The rows of each format: TRL's formats, OpenAI's for fine-tuning, and plain rows of all draws.

Sources: https://huggingface.co/docs/trl/dataset_formats (conversational; preferences with an
explicit prompt, and an implicit one for reward models; tool calling),
https://platform.openai.com/docs/guides/supervised-fine-tuning and
https://platform.openai.com/docs/guides/direct-preference-optimization.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from mellea_like.export.example_selection import ItemExamples, prompt_of, scores_of, sent_for

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Iterator, Mapping
    from collections.abc import Set as AbstractSet

    from mellea_like.export.example_selection import (
        Draw,
        ExampleRules,
        LeftOut,
        Messages,
        Pair,
        Reasoning,
    )
    from mellea_like.report.views import ItemView

Format: TypeAlias = Literal[
    "sft",
    "prompt-completion",
    "dpo",
    "kto",
    "reward",
    "openai",
    "openai-dpo",
    "jsonl",
    "csv",
    "parquet",
]

COLUMNS = {
    "journal": "text",
    "item": "integer",
    "label": "text",
    "data": "json",
    "status": "text",
    "iteration": "integer",
    "subsample": "integer",
    "depth": "integer",
    "outcome": "text",
    "winner": "boolean",
    "prompt": "transcript",
    "repair_prompt": "transcript",
    "text": "text",
    "reasoning": "text",
    "value": "json",
    "tool_calls": "json",
    "model": "text",
    "finish_reason": "text",
    "score": "number",
    "met": "number",
    "reasons": "texts",
    "requests": "integer",
    "input_tokens": "integer",
    "output_tokens": "integer",
    "seconds": "number",
}
"""The columns of the plain formats, with the types of their values."""

_OF_ONE: Mapping[str, tuple[str, Callable[[ItemView, Draw], Any]]] = {
    "item": ("integer", lambda item, _: item.id),
    "journal": ("text", lambda item, _: item.journal),
    "iteration": ("integer", lambda _, draw: draw.record.iteration),
    "depth": ("integer", lambda _, draw: draw.record.depth),
    "model": ("text", lambda _, draw: draw.record.model),
    "score": ("number", lambda _, draw: draw.score),
    "reasons": ("texts", lambda _, draw: draw.record.problems),
}
_OF_TWO: Mapping[str, tuple[str, Callable[[ItemView, Pair], Any]]] = {
    "item": ("integer", lambda item, _: item.id),
    "journal": ("text", lambda item, _: item.journal),
    "chosen_iteration": ("integer", lambda _, pair: pair.chosen.record.iteration),
    "rejected_iteration": ("integer", lambda _, pair: pair.rejected.record.iteration),
    "chosen_model": ("text", lambda _, pair: pair.chosen.record.model),
    "rejected_model": ("text", lambda _, pair: pair.rejected.record.model),
    "margin": ("number", lambda _, pair: pair.margin),
    "reasons": ("texts", lambda _, pair: pair.rejected.record.problems),
}
"""The columns for human readers: their types, and functions that return their values."""


THOUGHTS = "replies whose thoughts were left out, as the format has no field for them"


class Kind(NamedTuple):
    """A format's rows: all draws, replies that passed, with a label, or in pairs; and its columns.

    The columns are those with conversations, except in OpenAI's formats, which are always JSONL.
    """

    replies: Literal["all", "kept", "labelled", "paired"]
    conversations: tuple[str, ...] = ()
    openai: bool = False


KINDS: Mapping[Format, Kind] = {
    "sft": Kind("kept", ("messages",)),
    "prompt-completion": Kind("kept", ("prompt", "completion")),
    "dpo": Kind("paired", ("prompt", "chosen", "rejected")),
    "kto": Kind("labelled", ("prompt", "completion")),
    "reward": Kind("paired", ("chosen", "rejected")),
    "openai": Kind("kept", openai=True),
    "openai-dpo": Kind("paired", openai=True),
    "jsonl": Kind("all"),
    "csv": Kind("all"),
    "parquet": Kind("all"),
}


WORDS = {"all": ("all", "best", "none"), "kept": ("all", "best")}
"""The values of a journal's ``text`` that suffice for a kind of replies; other kinds need "all"."""


def columns_of(format: Format, how: ExampleRules, *, details: bool) -> dict[str, str]:
    """Return the columns of a format, with the types of their values."""
    if KINDS[format].replies == "all":
        return COLUMNS
    kind = "thoughts" if _reasoning(format, how) == "field" else "messages"
    columns = dict.fromkeys(KINDS[format].conversations, kind)
    if format == "kto":
        columns["label"] = "boolean"
    if details:
        columns |= {name: kind for name, (kind, _) in _details(format).items()}
    return columns


def _details(format: Format) -> Mapping[str, tuple[str, Callable[[ItemView, Any], Any]]]:
    """Return the columns for human readers, with functions of an item and its draw or pair."""
    if KINDS[format].replies == "paired":
        return _OF_TWO
    return _OF_ONE if format == "kto" else {n: c for n, c in _OF_ONE.items() if n != "reasons"}


def _reasoning(format: Format, how: ExampleRules) -> Reasoning:
    """Return where to write reasoning: by default in the format's field for it, if there is one."""
    return how.reasoning or ("drop" if KINDS[format].openai else "field")


def rows_of(
    item: ItemView,
    format: Format,
    how: ExampleRules,
    *,
    details: bool,
    disputed: AbstractSet[int],
    notes: Counter[str],
) -> list[dict[str, Any]] | LeftOut:
    """Return an item's rows, or why it has none; count changed or omitted replies in ``notes``."""
    kind = KINDS[format]
    if kind.replies == "all":
        return list(draw_rows(item))
    examples = ItemExamples(item, how, disputed, notes)
    reasoning = _reasoning(format, how)

    def thoughtful(draw: Draw) -> Messages:
        """Return the messages of a draw, with their reasoning placed as ``reasoning`` says."""
        if how.reasoning is None and reasoning == "drop":
            notes[THOUGHTS] += any("reasoning_content" in message for message in draw.reply)
        return [_with_thoughts(message, reasoning) for message in draw.reply]

    columns = list(_details(format).items()) if details else []

    def about(found: Draw | Pair) -> dict[str, Any]:
        return {name: value_of(item, found) for name, (_, value_of) in columns}

    if kind.replies == "paired":
        pairs = examples.paired()
        if isinstance(pairs, str):
            return pairs
        return [
            _pair(
                _prompt(pair.prompt, reasoning),
                thoughtful(pair.chosen),
                thoughtful(pair.rejected),
                format,
            )
            | about(pair)
            for pair in pairs
        ]
    found = examples.kept() if kind.replies == "kept" else examples.labelled()
    if isinstance(found, str):
        return found
    return [
        _single(_prompt(prompt, reasoning), thoughtful(draw), draw.record.passed, format)
        | about(draw)
        for draw, prompt in found
    ]


def draw_rows(item: ItemView) -> Iterator[dict[str, Any]]:
    """Yield a row for each draw of an item, or a single row if it has no draws."""
    about = {
        "journal": item.journal,
        "item": item.id,
        "label": item.label,
        "data": item.data,
        "status": item.status,
    }
    trace = item.so_far()
    if trace is None or not trace.slices:
        told = [] if item.error is None else [str(item.error)]
        yield {**dict.fromkeys(COLUMNS), **about, "reasons": told}
        return
    prompt = prompt_of(trace)
    won = {s.iteration for s in trace.winners}
    scores = scores_of(trace)
    for s in trace.slices:
        own: Messages = sent_for(trace, s) if s.depth else []
        yield {
            **about,
            "iteration": s.iteration,
            "subsample": s.subsample,
            "depth": s.depth,
            "outcome": s.outcome,
            "winner": s.iteration in won,
            "prompt": prompt,
            "repair_prompt": own if own and own != prompt else None,
            "text": s.text,
            "reasoning": s.reasoning,
            "value": s.value,
            "tool_calls": s.tool_calls,
            "model": s.model,
            "finish_reason": s.finish_reason,
            "score": scores.get(s.iteration),
            "met": s.share_met if s.judged else None,
            "reasons": s.problems,
            "requests": s.usage.requests,
            "input_tokens": s.usage.input_tokens,
            "output_tokens": s.usage.output_tokens,
            "seconds": s.seconds,
        }


def _prompt(messages: Messages, reasoning: Reasoning) -> Messages:
    """Return a prompt with reasoning in its field if ``reasoning`` is "field", else without it."""
    own: Reasoning = "field" if reasoning == "field" else "drop"
    return [_with_thoughts(message, own) for message in messages]


def with_thoughts(text: str, thoughts: str) -> str:
    """Return a text with its reasoning before it, in the tags that most reasoning models write."""
    return f"<think>\n{thoughts}\n</think>\n\n{text}"


def _with_thoughts(message: dict[str, Any], reasoning: Reasoning) -> dict[str, Any]:
    thoughts = message.get("reasoning_content")
    if reasoning == "field" or "reasoning_content" not in message:
        return message
    plain = {name: value for name, value in message.items() if name != "reasoning_content"}
    if reasoning == "inline" and thoughts:
        plain["content"] = with_thoughts(plain["content"], thoughts)
    return plain


def _single(
    prompt: Messages,
    reply: Messages,
    passed: bool,  # noqa: FBT001 (the label)
    format: Format,
) -> dict[str, Any]:
    if format == "openai":
        return {"messages": [*prompt, *reply]}
    whole = _for_templates([*prompt, *reply])
    if format == "sft":
        return {"messages": whole}
    row: dict[str, Any] = {"prompt": whole[: len(prompt)], "completion": whole[len(prompt) :]}
    return row if format == "prompt-completion" else {**row, "label": passed}


def _pair(prompt: Messages, chosen: Messages, rejected: Messages, format: Format) -> dict[str, Any]:
    if format == "openai-dpo":
        return {
            "input": {"messages": prompt},
            "preferred_output": chosen,
            "non_preferred_output": rejected,
        }
    size = len(prompt)
    prompt, chosen, rejected = (
        _for_templates(messages) for messages in (prompt, [*prompt, *chosen], [*prompt, *rejected])
    )
    chosen, rejected = chosen[size:], rejected[size:]
    if format == "reward":
        return {"chosen": prompt + chosen, "rejected": prompt + rejected}
    return {"prompt": prompt, "chosen": chosen, "rejected": rejected}


def _for_templates(messages: Messages) -> Messages:
    """Convert messages for chat templates: parse tool calls' arguments, replace ids by names."""
    names: dict[object, str] = {}
    made: Messages = []
    for message in messages:
        plain: dict[str, Any] = {"role": message["role"], "content": message["content"]}
        if thoughts := message.get("reasoning_content"):
            plain["reasoning_content"] = thoughts
        if message["role"] == "tool":
            plain["name"] = names.get(message.get("tool_call_id"), message.get("name") or "")
        if calls := message.get("tool_calls"):
            names |= {call["id"]: call["function"]["name"] for call in calls}
            plain["tool_calls"] = [_call(call["function"]) for call in calls]
        made.append(plain)
    return made


def _call(function: Mapping[str, Any]) -> dict[str, Any]:
    arguments: Any = function["arguments"]
    with suppress(ValueError):  # Arguments that aren't JSON stay as the model wrote them.
        arguments = json.loads(arguments)
    return {"type": "function", "function": {"name": function["name"], "arguments": arguments}}
