"""From what happens in a run to the rows of its journal, and from rows to records: pure."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from mellea_like.batch.journal.schema import with_checksum
from mellea_like.core.recorded import error_to_dict
from mellea_like.core.result import SamplingResult

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

__all__ = ["KeptText", "ResultRows", "Row", "item_record", "result_rows", "slice_row", "written"]

KeptText: TypeAlias = Literal["all", "best", "none"]
Row: TypeAlias = "tuple[Any, ...]"

USAGE = ("requests", "input_tokens", "output_tokens", "unknown")

MOST_TOKENS = 2**48
"""What is counted of a slice's tokens at most: a server may say anything, and sums must fit."""

_SLICE_WORDS = ("text", "value", "action")
"""What of a slice is words: those of the model, and those it was asked with."""


class ResultRows(NamedTuple):
    """What is written when an item is finished.

    Attributes:
        slices: the rows of slices that were not written before.
        result: the row of the result.
    """

    slices: tuple[Row, ...]
    result: Row


def written(plain: object) -> str:
    """Write plain data as JSON that a database takes.

    Args:
        plain: the data.

    Returns:
        The text; characters that UTF-8 lacks (lone surrogates) are escaped.
    """
    text = json.dumps(plain, ensure_ascii=False, separators=(",", ":"))
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(plain, separators=(",", ":"))
    return text


def slice_row(item: int, attempt: int, body: Mapping[str, Any], text: KeptText) -> Row:
    """Make the row of a slice.

    Args:
        item: its item.
        attempt: which attempt at that.
        body: the slice as plain data, without its conversation.
        text: whose words are kept; those of the best are kept with the result.

    Returns:
        The row.
    """
    body = {name: body[name] for name in body if name not in {"context", "prompt"}}
    if text != "all":
        body = _without_words(body)
    usage = (min(body["usage"][name], MOST_TOKENS) for name in USAGE)
    return with_checksum(item, attempt, body["iteration"], *usage, written(body))


def result_rows(
    item: int,
    attempt: int,
    outcome: SamplingResult[Any] | Exception,
    elapsed: float,
    known: AbstractSet[int],
    text: KeptText,
) -> ResultRows:
    """Make the rows of a finished item.

    The result's row has the call's record without its slices, which have rows of their own, and
    conversations only once.

    Args:
        item: the item.
        attempt: which attempt at it.
        outcome: its result, or the error that it ended with.
        elapsed: how long the attempt took, in seconds.
        known: the iterations whose slices have rows already.
        text: whose words are kept. The winner's are always kept: they are the result.

    Returns:
        The rows.
    """
    error = outcome if isinstance(outcome, Exception) else None
    result = getattr(error, "result", None) if error is not None else outcome
    if not isinstance(result, SamplingResult):
        row = with_checksum(item, attempt, "errored", elapsed, _error(error), None)
        return ResultRows((), row)
    trace = result.to_dict()
    slices: list[dict[str, Any]] = trace.pop("slices")
    places = [[s["iteration"], s["context"], s["prompt"]] for s in slices]
    best = result.best_index
    if text != "all":
        kept = best if best is not None and (text == "best" or result.success) else None
        if kept is not None:
            words = {name: slices[kept][name] for name in _SLICE_WORDS if name in slices[kept]}
            trace["words"] = {"index": kept, **words}
        keep = set(places[kept][1:]) if kept is not None and text == "best" else set[int]()
        trace["prompts"] = [
            prompt if place in keep else [] for place, prompt in enumerate(trace["prompts"])
        ]
    trace["places"] = places
    status = "errored" if error is not None else "passed" if result.success else "failed"
    row = with_checksum(item, attempt, status, elapsed, _error(error), written(trace))
    missing = (s for s in slices if s["iteration"] not in known)
    return ResultRows(tuple(slice_row(item, attempt, s, text) for s in missing), row)


def _error(error: Exception | None) -> str | None:
    return None if error is None else written(error_to_dict(error))


def _without_words(body: Mapping[str, Any]) -> dict[str, Any]:
    bare = {name: part for name, part in body.items() if name != "value"}
    return {**bare, "text": None, "action": {**body["action"], "text": ""}}


def item_record(
    item: Sequence[Any],
    result: Sequence[Any] | None,
    attempts: Sequence[Row],
    usage: Sequence[int],
    slices: Iterable[Row] | None,
) -> dict[str, Any]:
    """Put together what a journal knows of an item.

    Args:
        item: its row: id, digest, label, data.
        result: its result's row, or None as long as it is not finished.
        attempts: the rows of the attempts at it, in order.
        usage: what all attempts have cost: requests, input tokens, output tokens, unknown.
        slices: the rows of its slices; None leaves its trace out.

    Returns:
        The item as plain data.

    Raises:
        KeyError: a slice's row is missing.
        ValueError: a row does not hold what it should.
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
        "usage": dict(zip(USAGE, usage, strict=True)),
        "trace": None,
    }
    if result is not None:
        _, attempt, status, elapsed, error, trace = result
        record |= {"status": status, "elapsed": elapsed}
        record["error"] = None if error is None else json.loads(error)
        if trace is not None and slices is not None:
            bodies = {row[2]: row[-1] for row in slices if row[1] == attempt}
            record["trace"] = _trace(json.loads(trace), bodies)
    return record


def _trace(trace: dict[str, Any], bodies: Mapping[int, str]) -> dict[str, Any]:
    places: list[list[int]] = trace.pop("places")
    words: dict[str, Any] = trace.pop("words", {})
    slices: list[dict[str, Any]] = [
        {**json.loads(bodies[iteration]), "context": context, "prompt": prompt}
        for iteration, context, prompt in places
    ]
    if words:
        slices[words.pop("index")] |= words
    return {**trace, "slices": slices}
