"""The outcome of a row as columns of plain data, for other processes and for tables."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from mellea_like.batch.journal.identity import row_of
from mellea_like.batch.rows.formats import whole
from mellea_like.core.display import error_text

if TYPE_CHECKING:
    from mellea_like.batch.item import ItemResult


class RowOutcome(NamedTuple):
    """The outcome of a row: the columns that are added to the columns of the input.

    Attributes:
        output: the winner's text or, if the row didn't pass, the best failure's; None if no draw
            has a text.
        value: the winner's parsed value as JSON, if replies are parsed; else None.
        success: whether the row passed.
        status: ``passed``; ``failed`` if no draw passed, or fewer than the selection needs;
            ``errored`` if the call raised; or, on Ray, ``unfinished`` if a budget was spent before
            the row was done, or the actor of the `ClusterLimit` died.
        reasons: the requirements that the best failure did not meet.
        error: the class and the message of the call's error, or None.
        iterations: the number of draws of the call.
        elapsed: the duration of the call, in seconds.
        requests: the number of requests of the call.
        input_tokens: the tokens of the requests' prompts.
        output_tokens: the tokens of the replies to these requests.
        unknown: the number of requests whose cost is unknown.
        replayed: whether the result comes from a journal, without any draws in this run.
    """

    output: str | None = None
    value: str | None = None
    success: bool = False
    status: str = "unfinished"
    reasons: tuple[str, ...] = ()
    error: str | None = None
    iterations: int = 0
    elapsed: float = 0.0
    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    unknown: int = 0
    replayed: bool = False


def outcome_of(item: ItemResult[Any], *, parsed: bool) -> RowOutcome:
    """Convert the result of a row to columns. ``parsed`` is whether the run has a ``format``."""
    result, usage = item.result, item.usage
    best = None if result is None or result.best_index is None else result.best
    generation = None if best is None else best.generation
    return RowOutcome(
        output=None if generation is None else whole(generation.text),
        value=whole(as_json(item.value)) if parsed and item.success else None,
        success=item.success,
        status=item.status,
        reasons=() if best is None or item.success else tuple(map(whole, best.problems)),
        error=None if item.error is None else describe(item.error),
        iterations=0 if result is None else len(result.slices),
        elapsed=0.0 if result is None else result.elapsed,
        requests=usage.requests,
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        unknown=usage.unknown,
        replayed=item.replayed,
    )


def describe(error: BaseException | None) -> str:
    """Return the name of an error's class and its message, as one text."""
    return str(whole(f"{type(error).__name__}: {error_text(error)}"))


def as_json(value: Any) -> str:
    """Return a value as JSON, converted to plain data first if JSON can't express it."""
    dump = getattr(value, "model_dump_json", None)
    if dump is not None:
        return str(dump())
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        return json.dumps(row_of(value), ensure_ascii=False)
