"""From what happens in a run to the rows of its journal, and from rows to records: pure."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from mellea_like.batch.item import record_of
from mellea_like.core.generation import USAGE, USAGE_DETAILS
from mellea_like.core.trace import (
    decision_to_dict,
    error_to_dict,
    usage_from_dict,
    usage_to_dict,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from mellea_like.core.result import SamplingResult

__all__ = ["KeptText", "Row", "item_record", "result_rows", "slice_row", "to_json"]

KeptText: TypeAlias = Literal["all", "best", "none"]
Row: TypeAlias = "tuple[Any, ...]"

MOST_TOKENS = 2**48
"""What is counted of a slice's tokens at most: a server may say anything, and sums must fit."""

_SLICE_TEXTS = ("text", "value", "action")
"""The parts of a slice that are words: those of the model, and those it was asked with."""


def to_json(plain: object) -> str:
    """Write plain data as JSON; characters that UTF-8 lacks (lone surrogates) are escaped."""
    text = json.dumps(plain, ensure_ascii=False, separators=(",", ":"))
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(plain, separators=(",", ":"))
    return text


def slice_row(item: int, attempt: int, body: Mapping[str, Any], text: KeptText) -> Row:
    """Make the row of a slice; the words of the best slice are kept with the result."""
    body = {name: part for name, part in body.items() if name not in {"context", "prompt"}}
    if text != "all":
        body.pop("value", None)
        body |= {"text": None, "action": {**body["action"], "text": ""}}
    usage = (min(body["usage"][name], MOST_TOKENS) for name in USAGE)
    return item, attempt, body["iteration"], *usage, to_json(body)


def result_rows(
    item: int,
    attempt: int,
    outcome: SamplingResult[Any] | Exception,
    elapsed: float,
    known: AbstractSet[int],
    text: KeptText,
) -> tuple[list[Row], Row]:
    """Make the rows of a finished item: of the slices not yet written, and of its result.

    The result's row has the call's record without its slices, and each conversation only once.
    """
    error = outcome if isinstance(outcome, Exception) else None
    raised = None if error is None else to_json(error_to_dict(error))
    result = record_of(outcome)
    if result is None:
        return [], (item, attempt, "errored", elapsed, raised, None)
    trace = result.to_dict()
    slices: list[dict[str, Any]] = trace.pop("slices")
    places = [[s["iteration"], s["context"], s["prompt"]] for s in slices]
    if text != "all":
        # The winners' words are kept in any case: they are the result.
        best = () if text == "none" or result.best_index is None else (result.best,)
        kept = {s.iteration for s in result.winners or best}
        trace["words"] = [
            {"index": at, **{name: s[name] for name in _SLICE_TEXTS if name in s}}
            for at, s in enumerate(slices)
            if s["iteration"] in kept
        ]
        prompts = {at for n, *both in places if n in kept and text == "best" for at in both}
        if result.decision is not None:
            trace["decision"] = decision_to_dict(result.decision, words=False)
        trace["prompts"] = [
            prompt if place in prompts else [] for place, prompt in enumerate(trace["prompts"])
        ]
    trace["places"] = places
    status = "errored" if error is not None else "passed" if result.success else "failed"
    missing = [slice_row(item, attempt, s, text) for s in slices if s["iteration"] not in known]
    return missing, (item, attempt, status, elapsed, raised, to_json(trace))


def item_record(
    item: Sequence[Any],
    result: Sequence[Any] | None,
    attempts: Sequence[Row],
    slices: Sequence[Row],
) -> dict[str, Any]:
    """Put together what a journal knows of an item.

    A part that is missing is a `KeyError`, and one that isn't what it should be a `ValueError`.
    """
    position, _, label, data = item
    record: dict[str, Any] = {
        "id": position,
        "label": label,
        "data": None if data is None else json.loads(data),
        "status": "unfinished",
        "attempts": attempts[-1][1] if attempts else 0,
        "error": None,
        "started": attempts[-1][2] if attempts else None,
        "elapsed": 0.0,
        "usage": _usage(slices),
        "trace": None,
    }
    if result is not None:
        _, attempt, status, elapsed, error, trace = result
        record |= {"status": status, "elapsed": elapsed}
        record["error"] = None if error is None else json.loads(error)
        if trace is not None:
            # An attempt may go on where one before it stood; the same iteration's later row counts.
            bodies = {row[2]: row[-1] for row in slices if row[1] <= attempt}
            record["trace"] = _trace(json.loads(trace), bodies)
            if decision := record["trace"].get("decision"):  # No slice has what it cost.
                compared = usage_from_dict(decision["usage"])
                record["usage"] = usage_to_dict(usage_from_dict(record["usage"]) + compared)
    return record


def _usage(slices: Sequence[Row]) -> dict[str, int]:
    """Sum what an item's slices have cost; few have details, which stand in their bodies alone."""
    usage = {name: sum(row[3 + at] for row in slices) for at, name in enumerate(USAGE)}
    for *_, body in slices:
        if any(f'"{name}":' in body for name in USAGE_DETAILS):
            written = json.loads(body)["usage"]
            for name in USAGE_DETAILS:
                if n := written.get(name):
                    usage[name] = usage.get(name, 0) + n
    return usage


def _trace(trace: dict[str, Any], bodies: Mapping[int, str]) -> dict[str, Any]:
    places: list[list[int]] = trace.pop("places")
    words: Any = trace.pop("words", [])  # Until there was Collect, a single one.
    slices: list[dict[str, Any]] = [
        {**json.loads(bodies[iteration]), "context": context, "prompt": prompt}
        for iteration, context, prompt in places
    ]
    said: dict[str, Any]
    for said in [words] if "index" in words else words:
        slices[said.pop("index")] |= said
    return {**trace, "slices": slices}
