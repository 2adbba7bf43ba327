"""What is said about a result: as JSON, and in sentences."""

from __future__ import annotations

import json
import re
import sys
from typing import TYPE_CHECKING, Any

from mellea_like.cli.errors import in_options, problems_of, rejected_early
from mellea_like.cli.terminal import is_terminal, one_line, printable, write_output
from mellea_like.core.trace import slice_to_dict, usage_to_dict
from mellea_like.report.format import money, plural, seconds

if TYPE_CHECKING:
    from mellea_like.core.ledger import Ledger
    from mellea_like.core.result import SamplingResult
    from mellea_like.core.slice import Slice

__all__ = ["as_record", "summary", "why", "write_record", "write_text"]

_NOT_ESCAPED_BY_JSON = re.compile(r"[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def write_text(text: str) -> None:
    """Write the result to standard output: as it is, but fit for a terminal on a terminal."""
    if is_terminal(sys.stdout):
        text = printable(text)
    write_output(text if text.endswith("\n") else f"{text}\n")


def write_record(record: dict[str, Any]) -> None:
    """Write a record to standard output as one JSON object, fit for a terminal."""
    indent = 2 if is_terminal(sys.stdout) else None
    only_ascii = (sys.stdout.encoding or "").lower().replace("-", "") != "utf8"
    text = json.dumps(record, ensure_ascii=only_ascii, indent=indent, default=str)
    escaped = _NOT_ESCAPED_BY_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
    write_output(f"{escaped}\n")


def as_record(
    result: SamplingResult[Any], ledger: Ledger, *, strategy: str, backend: str
) -> dict[str, Any]:
    """Write a result as plain data."""
    best = None if result.best_index is None else result.best
    return {
        "success": result.success,
        "text": None if best is None else best.text,
        "value": result.value,
        "stop_reason": str(result.stop_reason),
        "stop_detail": in_options(result.stop_detail),
        "strategy": strategy,
        "backend": backend,
        "sampling_id": result.sampling_id,
        "started": result.started.isoformat(),
        "undelivered": result.undelivered,
        "best_index": result.best_index,
        "iteration": None if best is None else best.iteration,
        "elapsed": round(result.elapsed, 6),
        "usage": usage_to_dict(result.usage),
        "ledger": {
            "rows": [row._asdict() for row in ledger.rows],
            "total": ledger.total._asdict(),
            "currency": ledger.currency,
        },
        "slices": [_slice(s) for s in result.slices],
    }


def summary(result: SamplingResult[Any], ledger: Ledger) -> str:
    """Say in a line how a call that passed went."""
    return f"Passed: iteration {result.best.iteration}, {_cost(result, ledger)}."


def why(result: SamplingResult[Any], ledger: Ledger) -> list[str]:
    """Say why nothing passed."""
    reason = {"timeout": "the time was up", "exhausted": "all turns are spent"}.get(
        result.stop_reason, f"stopped: {result.stop_reason}"
    )
    if result.stop_detail:
        reason = one_line(in_options(result.stop_detail))
    lines = [f"Nothing passed: {reason}; {_cost(result, ledger)}."]
    if result.best_index is None:
        return [*lines, "No reply was judged, so there is none to show."]
    best = result.best
    part = " (rejected before its end)" if rejected_early(best) else ""
    lines.append(f"The best failure, iteration {best.iteration}{part}, lacks:")
    lines.extend(f"  - {one_line(problem)}" for problem in problems_of(best))
    errors = list(result.errors)
    if errors:
        some = plural(len(errors), "iteration")
        lines.append(f"{some} ended in an error, the first with: {one_line(str(errors[0]))}")
    return lines


def _cost(result: SamplingResult[Any], ledger: Ledger) -> str:
    total = ledger.total.cost
    cost = "" if total is None else f", cost {money(total, ledger.currency)}"
    ran = plural(len(result.slices), "iteration")
    return f"{ran} run, {result.usage}{cost}, {seconds(result.elapsed)}"


def _slice(s: Slice) -> dict[str, Any]:
    written = slice_to_dict(s)
    return {
        **written,
        "reasons": list(s.problems),
        "validations": [{"requirement": v["name"], **v} for v in written["validations"]],
        "error": None if s.error is None else f"{type(s.error).__name__}: {s.error}",
        "started_at": round(s.started_at, 6),
        "ended_at": round(s.ended_at, 6),
    }
