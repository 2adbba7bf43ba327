"""What is written about a row of a batch."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from mellea_like.cli.reporting import sentence
from mellea_like.cli.sample.progress import problems_of
from mellea_like.core.format import strip_fence

if TYPE_CHECKING:
    from mellea_like.batch.item import ItemResult
    from mellea_like.batch.rows.formats import Row

__all__ = ["record_of"]


def record_of(item: ItemResult[Any], *, as_value: bool = False) -> dict[str, Any]:
    """Write what came of a row as plain data."""
    row: Row = item.item
    result = item.result
    best = None if result is None or result.best_index is None else result.best
    reasons = [] if item.success or best is None else problems_of(best)
    return {
        "id": item.id,
        "line": row.number,
        "input": dict(row),
        "output": None if best is None else _output(best.text, as_value=as_value),
        "success": item.success,
        "status": item.status,
        "reasons": reasons,
        "error": None if item.error is None else _error(item.error),
        "iterations": 0 if result is None else len(result.slices),
        "elapsed": 0.0 if result is None else round(result.elapsed, 6),
        "usage": {
            "requests": item.usage.requests,
            "input_tokens": item.usage.input_tokens,
            "output_tokens": item.usage.output_tokens,
            "unknown": item.usage.unknown,
        },
    }


def _error(error: Exception) -> dict[str, str]:
    return {"type": type(error).__name__, "message": sentence(error, debug=True)}


def _output(text: str, *, as_value: bool) -> Any:
    if as_value:
        try:
            return json.loads(strip_fence(text), parse_constant=_no_number)
        except (ValueError, RecursionError):
            return text
    return text


def _no_number(text: str) -> Any:
    raise ValueError(text)
