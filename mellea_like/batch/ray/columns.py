"""Rows of a Ray dataset: what is asked for each, what they are called, and what came of them.

Nothing here needs Ray. A block of rows is a `pyarrow.Table`.
"""

from __future__ import annotations

import hashlib
import importlib
import json
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from mellea_like.batch.identity import row_of
from mellea_like.core.shown import error_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from mellea_like.batch.item import ItemResult
    from mellea_like.batch.rows.template import RowTemplate

__all__ = ["POSITION", "RowOutcome", "outcome_of", "prompt_maker", "shard_name", "with_results"]

POSITION = "__mellea_like_position"
"""The column that tells equal rows apart; it is not in the output."""


class RowOutcome(NamedTuple):
    """What came of a row: the columns that the output has besides those of the input.

    Attributes:
        output: the winner's text, else that of the best failure; None where there is none.
        value: the winner's parsed value as JSON, where replies are parsed; else None.
        success: whether a slice passed.
        status: ``passed``; ``failed``, no slice passed; ``errored``, the call raised; or
            ``unfinished``, the cluster's budget was spent before.
        reasons: what the best failure lacked.
        error: the class and the message of what the call raised, or None.
        iterations: iterations of the call.
        elapsed: seconds of the call.
        requests: requests of the call.
        input_tokens: tokens of their prompts.
        output_tokens: tokens of their replies.
        unknown: how many of the requests did not say what they cost.
        replayed: whether the result comes from the shard's journal.
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
    """Turn what came of a row into columns."""
    result, usage = item.result, item.usage
    best = None if result is None or result.best_index is None else result.best
    generation = None if best is None else best.generation
    return RowOutcome(
        output=None if generation is None else _storable(generation.text),
        value=_storable(_as_json(item.value)) if parsed and item.success else None,
        success=item.success,
        status=item.status,
        reasons=() if best is None or item.success else tuple(map(_storable, best.problems)),
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
    """Return an error's class and message."""
    return _storable(f"{type(error).__name__}: {error_text(error)}")


def with_results(table: Any, outcomes: Sequence[RowOutcome]) -> Any:
    """Put results beside the rows of a `pyarrow.Table`, whose columns keep their names."""
    pa: Any = importlib.import_module("pyarrow")
    types = {"success": pa.bool_(), "replayed": pa.bool_(), "elapsed": pa.float64()}
    types |= dict.fromkeys(("output", "value", "status", "error"), pa.string())
    types["reasons"] = pa.list_(pa.string())
    if POSITION in table.column_names:
        table = table.drop_columns([POSITION])
    taken = set(table.column_names)
    for index, field in enumerate(RowOutcome._fields):
        name = field
        while name in taken:
            name = f"result_{name}"
        taken.add(name)
        values = [outcome[index] for outcome in outcomes]
        column = pa.array(values, type=types.get(field, pa.int64()))
        table = table.append_column(name, column)
    return table


def prompt_maker(template: str) -> Callable[[Mapping[str, Any]], str]:
    """Make the function that fills a template in; it can be sent to another process."""
    from mellea_like.batch.rows.template import (  # noqa: PLC0415 (an extra)
        RowTemplate,
        TemplateSyntaxError,
    )

    try:
        made = RowTemplate(template)
    except TemplateSyntaxError as exc:
        msg = f"prompt {template!r} isn't a Jinja template: line {exc.lineno}: {exc.message}"
        raise ValueError(msg) from exc
    if not made.names:
        msg = (
            f"prompt {template!r} would be the same for every row: name columns in double braces,"
            " as in {{ question }}"
        )
        raise ValueError(msg)
    return partial(_filled, made)


def _filled(template: RowTemplate, row: Mapping[str, Any]) -> str:
    from jinja2 import UndefinedError  # noqa: PLC0415 (an extra)

    try:
        return template.fill(row)
    except UndefinedError as exc:
        msg = f"the prompt: {exc}; the row has: {', '.join(row)}"
        raise KeyError(msg) from exc


def shard_name(rows: Iterable[Mapping[str, Any]], keys: Iterable[object]) -> str:
    """Name a shard's file: the same rows in the same order have the same name anywhere."""
    digest = hashlib.sha256()
    for row, key in zip(rows, keys, strict=True):
        digest.update(_as_json([key, row_of(row)]).encode("utf-8", "surrogatepass"))
        digest.update(b"\n")
    return digest.hexdigest()[:32]


def _as_json(value: Any) -> str:
    dump = getattr(value, "model_dump_json", None)
    if dump is not None:
        return str(dump())
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        return json.dumps(row_of(value), ensure_ascii=False)


def _storable(text: str) -> str:
    """Return what UTF-8 can write: a text may hold half of a character."""
    return text.encode("utf-8", "replace").decode("utf-8")
