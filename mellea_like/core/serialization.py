"""Write a call's record as plain data, for files, databases and reports, and read it again.

The conversations are in ``prompts`` (see ``mellea_like.core.prompts``). Each slice refers to two
of them by index: the messages that were sent for it (``prompt``) and the conversation before
(``context``). Actions, requirements and errors are described only by the name of their type and
their text. A parsed value that JSON can't express is written as a text.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from mellea_like.core.conversation import Context, Message
from mellea_like.core.decision import Answer, Comparison, Decision
from mellea_like.core.display import safe_repr
from mellea_like.core.format import parse_reply
from mellea_like.core.generation import USAGE, USAGE_DETAILS, Generation, Usage
from mellea_like.core.prompts import Prompts, read_prompts
from mellea_like.core.recorded import (
    RecordedAction,
    RecordedError,
    error_from_dict,
    error_to_dict,
    recorded_requirement,
)
from mellea_like.core.slice import Outcome, Slice
from mellea_like.core.tools import recorded_call
from mellea_like.core.validation import ValidationResult, ValidationStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mellea_like.core.requirement import Requirement
    from mellea_like.core.result import SamplingResult

__all__ = [
    "FORMAT",
    "VERSION",
    "RecordedAction",
    "RecordedError",
    "from_dict",
    "slice_to_dict",
    "to_dict",
]

FORMAT = "mellea_like.trace"
"""The value of the field ``format`` in a record."""

VERSION = 2
"""The version of the records that are written. Version 1 had each conversation in full."""

READ_VERSIONS = (1, VERSION)

Json: TypeAlias = "dict[str, Json] | list[Json] | str | float | bool | None"
"""Any value that JSON can express."""

T = TypeVar("T")

_AS_WRITTEN = ("stop_reason", "sampling_id", "elapsed", "undelivered", "stop_detail")

_WHERE_KNOWN = ("stage", "asked")

_SAID_BESIDES = ("refusal", "reasoning")
"""Fields of a reply to write in addition to its text. Tool calls are written separately."""


def to_dict(result: SamplingResult[Any]) -> dict[str, Any]:
    """Write a call's record as plain data."""
    written, places = outline(result)
    written["usage"] = usage_to_dict(result.usage)
    written["slices"] = [
        {**slice_to_dict(s), "context": context, "prompt": prompt}
        for s, (_, context, prompt) in zip(result.slices, places, strict=True)
    ]
    return written


def outline(
    result: SamplingResult[Any], write: Callable[[Message], dict[str, Any]] = Message.as_dict
) -> tuple[dict[str, Any], list[list[int]]]:
    """Return a call's record as plain data without its slices, and the places of their messages.

    The record lacks the cost of the slices, too. The places are, for each slice, its iteration and
    the indices of its context and its prompt in ``prompts``. ``write`` converts a message to plain
    data.
    """
    prompts = Prompts()
    place = prompts.place
    places = [[s.iteration, place(s.context.messages), place(s.messages)] for s in result.slices]
    written = {
        "format": FORMAT,
        "version": VERSION,
        "sampling_id": result.sampling_id,
        "success": result.success,
        "stop_reason": str(result.stop_reason),
        "stop_detail": result.stop_detail,
        "started": result.started.isoformat(),
        "elapsed": result.elapsed,
        "undelivered": result.undelivered,
        "best_index": result.best_index,
        "prompts": prompts.written(write),
        "decision": None if result.decision is None else decision_to_dict(result.decision),
    }
    return written, places


def from_dict(data: Mapping[str, Any], format: Any, make: Callable[..., T]) -> T:
    """Read a call's record from plain data; ``make`` is called with a `SamplingResult`'s fields."""
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        msg = f"not a trace of a call: its format isn't {FORMAT!r}"
        raise ValueError(msg)
    if data.get("version") not in READ_VERSIONS:
        known = " or ".join(map(str, READ_VERSIONS))
        msg = f"unsupported trace version {data.get('version')!r}: this release reads {known}"
        raise ValueError(msg)
    try:
        return make(**_fields(data, format), **{name: data[name] for name in _AS_WRITTEN})
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as exc:
        what = f"it lacks {exc}" if isinstance(exc, KeyError) else str(exc)
        msg = f"this trace of a call is damaged: {what}"
        raise ValueError(msg) from exc


def slice_to_dict(s: Slice) -> dict[str, Any]:
    """Write the record of an iteration as plain data, without its conversation."""
    reply = s.generation
    written: dict[str, Any] = {
        "iteration": s.iteration,
        "subsample": s.subsample,
        "depth": s.depth,
        "chain": s.chain,
        "outcome": str(s.outcome),
        "started_at": s.started_at,
        "ended_at": s.ended_at,
        "usage": usage_to_dict(s.usage),
        "action": asdict(RecordedAction.of(s.action)),
        "text": None if reply is None else reply.text,
        "model": None if reply is None else reply.model,
        "finish_reason": None if reply is None else reply.finish_reason,
        "generation_usage": None if reply is None else usage_to_dict(reply.usage),
        "validations": [_validation(*pair) for pair in s.validations],
        "reason": s.reason,
        "error": None if s.error is None else error_to_dict(s.error),
    }
    written |= {n: v for n in _WHERE_KNOWN if (v := getattr(s, n)) is not None}
    # A draw whose usage is that of its reply had no checks that cost something.
    checks = s.check_usage
    if checks is not None and (checks or (reply is not None and reply.usage != s.usage)):
        written["check_usage"] = [[model, usage_to_dict(spent)] for model, spent in checks]
    if reply is not None and reply.has_value:
        written["value"] = _plain(reply.value)
        written["parsed"] = reply.parsed
    if reply is not None:
        if reply.tool_calls:
            written["tool_calls"] = [call.as_dict() for call in reply.tool_calls]
        written |= {n: v for n in _SAID_BESIDES if (v := getattr(reply, n)) is not None}
    return written


def check_readable(reply: Generation, format: Any) -> None:
    """Raise ``ValueError`` if a parsed value would change by being written and read back."""
    if not reply.has_value or (reply.value is None and reply.tool_calls):
        return  # A reply that calls tools isn't an answer yet.
    written = _plain(reply.value)
    again = _value(format, reply.text, written)
    # A value with a NaN differs from itself, so it can't be compared.
    if again != reply.value and again == _value(format, reply.text, written):
        msg = (
            f"a {type(reply.value).__name__} would be read back as a different value: its JSON"
            " hides something (a secret, an excluded field) that isn't in the reply's text either"
        )
        raise ValueError(msg)


def decision_to_dict(decision: Decision, *, words: bool = True) -> dict[str, Any]:
    """Write a selection's decision; without ``words``, answers that didn't win are numbered."""
    return {
        "kind": decision.kind,
        "winners": list(decision.winners),
        "reason": decision.reason,
        "complete": decision.complete,
        "scores": [[iteration, _in_json(score)] for iteration, score in decision.scores.items()],
        "notes": [list(pair) for pair in decision.notes.items()],
        "answers": [
            {
                "label": a.label if words or a.iteration in decision.winners else f"answer {n}",
                "votes": a.votes,
                "draws": list(a.draws),
            }
            for n, a in enumerate(decision.answers, 1)
        ],
        "share": decision.share,
        "abstentions": decision.abstentions,
        "comparisons": [[c.first, c.second, c.points] for c in decision.comparisons],
        "usage": usage_to_dict(decision.usage),
        "errors": list(decision.errors),
        "model": decision.model,
    }


def decision_from_dict(plain: Mapping[str, Any] | None) -> Decision | None:
    """Read the decision of a selection; None if there was none."""
    if plain is None:
        return None
    return Decision(
        plain["kind"],
        tuple(plain["winners"]),
        plain["reason"],
        plain["complete"],
        {iteration: float(score) for iteration, score in plain["scores"]},
        dict(plain["notes"]),
        _answers(plain),
        plain["share"],
        plain["abstentions"],
        tuple(Comparison(*pair) for pair in plain["comparisons"]),
        usage_from_dict(plain["usage"]),
        tuple(plain["errors"]),
        plain.get("model"),
    )


def _answers(plain: Mapping[str, Any]) -> tuple[Answer, ...]:
    """Read the answers of a vote. Earlier versions identified them by their labels."""
    if "answers" in plain:
        return tuple(Answer(a["label"], a["votes"], tuple(a["draws"])) for a in plain["answers"])
    draws: dict[str, list[int]] = {label: [] for label, _ in plain["votes"]}
    for iteration, label in plain.get("ballots", ()):
        draws.setdefault(label, []).append(iteration)
    won = plain["winners"][:1]
    for n, (label, its) in enumerate(draws.items()):
        # The winner is the first draw of the leading answer.
        draws[label] = its if n or not won else [*won, *(i for i in its if i not in won)]
    return tuple(Answer(label, votes, tuple(draws[label])) for label, votes in plain["votes"])


def usage_to_dict(usage: Usage) -> dict[str, int]:
    """Write a usage as plain data; details that are 0 are left out."""
    written = {name: int(getattr(usage, name)) for name in USAGE}  # numpy's ints occur.
    for name in USAGE_DETAILS:
        if n := int(getattr(usage, name)):
            written[name] = n
    return written


def usage_from_dict(written: Mapping[str, int]) -> Usage:
    """Read a usage. A detail that is missing is 0; earlier versions wrote no details."""
    details = (written.get(name, 0) for name in USAGE_DETAILS)
    return Usage(*(written[name] for name in USAGE), *details)


def _validation(requirement: Requirement, verdict: ValidationResult) -> dict[str, Any]:
    written: dict[str, Any] = {
        "name": requirement.name,
        "description": requirement.description,
        "weight": requirement.weight,
        "status": str(verdict.status),
        "reason": verdict.reason,
        "score": verdict.score,
    }
    if verdict.error is not None:
        written["error"] = error_to_dict(verdict.error)
    return written


def _plain(value: object) -> Json:
    from pydantic_core import to_jsonable_python  # noqa: PLC0415 (few programs need it)

    try:
        return _in_json(to_jsonable_python(value, fallback=safe_repr))
    except ValueError:  # The value contains itself, or bytes that aren't text.
        return safe_repr(value)


def _value(format: Any, text: str, written: Json) -> Any:
    """Read a value from a reply's text or from the written JSON, whichever reproduces the JSON."""
    read: list[Any] = []
    problem = None
    for source in (text, json.dumps(written)):
        try:
            value = parse_reply(format, source)
        except ValueError as exc:
            problem = exc
        else:
            if _plain(value) == written:
                return value
            read.append(value)
    if problem is not None and not read:
        raise problem
    return read[0]


def _in_json(plain: Json) -> Json:
    """Replace NaN and infinity, which JSON lacks, by words that pydantic reads as these numbers."""
    if isinstance(plain, dict):
        return {key: _in_json(part) for key, part in plain.items()}
    if isinstance(plain, list):
        return [_in_json(part) for part in plain]
    if isinstance(plain, float) and not math.isfinite(plain):
        return "NaN" if math.isnan(plain) else "Infinity" if plain > 0 else "-Infinity"
    return plain


def _fields(data: Mapping[str, Any], format: Any) -> dict[str, Any]:
    """Read the fields of a result that must be converted from plain data."""
    prompts = read_prompts(data["prompts"])
    contexts = [Context(messages) for messages in prompts]
    requirement = cache(recorded_requirement)
    slices = tuple(
        slice_from_dict(
            s,
            format,
            contexts[_place(s["context"], prompts)],
            prompts[_place(s["prompt"], prompts)],
            requirement,
        )
        for s in data["slices"]
    )
    best = data["best_index"]
    return {
        "slices": slices,
        "best_index": None if best is None else _place(best, slices),
        "started": datetime.fromisoformat(data["started"]),
        "decision": decision_from_dict(data.get("decision")),
    }


def slice_from_dict(
    s: Mapping[str, Any],
    format: Any,
    context: Context,
    messages: tuple[Message, ...],
    requirement: Callable[[str, str, float], Requirement],
) -> Slice:
    """Read the record of an iteration, and give it its conversation."""
    of = ("name", "description", "weight")
    return Slice(
        iteration=s["iteration"],
        subsample=s["subsample"],
        depth=s["depth"],
        chain=s["chain"],
        action=RecordedAction(s["action"]["type"], s["action"]["text"]),
        context=context,
        messages=messages,
        generation=_generation(s, format),
        requirements=tuple(requirement(*(v[name] for name in of)) for v in s["validations"]),
        verdicts=tuple(map(_verdict, s["validations"])),
        outcome=Outcome(s["outcome"]),
        error=_error(s["error"]),
        reason=s["reason"],
        started_at=s["started_at"],
        ended_at=s["ended_at"],
        usage=usage_from_dict(s["usage"]),
        check_usage=check_usage_of(s),
        **{name: s.get(name) for name in _WHERE_KNOWN},
    )


def check_usage_of(s: Mapping[str, Any]) -> tuple[tuple[str | None, Usage], ...] | None:
    """Read the usage of an iteration's checks by model; None if the record doesn't contain it."""
    written: Sequence[Sequence[Any]] | None = s.get("check_usage")
    if written is not None:
        return tuple((model, usage_from_dict(spent)) for model, spent in written)
    drawn = s["generation_usage"]
    return () if drawn is None or drawn == s["usage"] else None


def _generation(s: Mapping[str, Any], format: Any) -> Generation | None:
    if s["text"] is None:
        return None
    value = s.get("value")
    # If the value is None, a reply that calls tools isn't an answer yet.
    if "value" in s and format is not None and not (value is None and "tool_calls" in s):
        value = _value(format, s["text"], value)
    usage = usage_from_dict(s["generation_usage"])
    parsed = s.get("parsed", "value" in s)
    return Generation(
        s["text"],
        value,
        usage,
        s["model"],
        s["finish_reason"],
        parsed=parsed,
        tool_calls=tuple(map(recorded_call, s.get("tool_calls", ()))),
        refusal=s.get("refusal"),
        reasoning=s.get("reasoning"),
    )


def _verdict(v: Mapping[str, Any]) -> ValidationResult:
    status = ValidationStatus(v["status"])
    return ValidationResult.recorded(status, v["reason"], v["score"], _error(v.get("error")))


def _error(written: Mapping[str, Any] | None) -> Exception | None:
    return None if written is None else error_from_dict(written)


def _place(index: Any, among: Sequence[object]) -> int:
    if not (isinstance(index, int) and 0 <= index < len(among)):
        msg = f"{index!r} isn't an index of a list of {len(among)}"
        raise ValueError(msg)
    return index
