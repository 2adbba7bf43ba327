"""Convert the events of a run to rows of a journal, and rows to records; all functions are pure."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

import pydantic_core

from mellea_like.batch.journal.identity import label_of
from mellea_like.batch.journal.large_data import LARGE, LargeParts, restored
from mellea_like.core.generation import USAGE, Usage
from mellea_like.core.prompts import messages_in, rewritten, with_earlier
from mellea_like.core.recorded import error_to_dict
from mellea_like.core.result import SamplingResult
from mellea_like.core.serialization import (
    FORMAT,
    VERSION,
    decision_from_dict,
    decision_to_dict,
    outline,
    slice_to_dict,
    usage_to_dict,
)
from mellea_like.report.views import SliceView

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from mellea_like.core.slice import Slice

KeptText: TypeAlias = Literal["all", "best", "none"]
Row: TypeAlias = "tuple[Any, ...]"
Drawn: TypeAlias = tuple[int, SliceView]
"""A draw in a journal, and before it the number of the item's attempt that made it."""

MOST_TOKENS = 2**48
"""The most tokens to write into a column: servers can report anything, but SQLite has 64 bits."""

_SLICE_TEXTS = ("text", "value", "action", "tool_calls", "refusal", "reasoning")
"""The fields of a draw's record that contain text of the model or of the prompt."""

# The usual values, which are left out of the JSON and put back when it is read.
_USUAL_SLICE: dict[str, Any] = {
    "subsample": 0,
    "depth": 0,
    "chain": 0,
    "outcome": "passed",
    "text": None,
    "model": None,
    "finish_reason": "stop",
    "validations": [],
    "reason": "",
    "error": None,
}
_USUAL_VERDICT: dict[str, Any] = {"weight": 1.0, "status": "passed", "reason": "", "score": None}
_USUAL_TRACE: dict[str, Any] = {
    "format": FORMAT,
    "version": VERSION,
    "stop_reason": "passed",
    "stop_detail": "",
    "undelivered": 0,
    "best_index": 0,
    "decision": None,
}


def to_json(plain: object) -> str:
    """Return plain data as JSON, with lone surrogates escaped, because UTF-8 can't express them."""
    try:
        return pydantic_core.to_json(plain, inf_nan_mode="constants").decode()
    except ValueError:  # The data has lone surrogates, or is nested very deeply.
        return json.dumps(plain, separators=(",", ":"))


def _unusual(plain: Mapping[str, Any], usual: Mapping[str, Any]) -> dict[str, Any]:
    nothing = object()
    return {name: part for name, part in plain.items() if usual.get(name, nothing) != part}


def input_row(data: object) -> tuple[str | None, dict[str, bytes]]:
    """Return an item's data as JSON (None if it isn't data), and its large parts by hash."""
    if data is None:
        return None, {}
    written = to_json(data)
    if isinstance(data, str) or len(written) < LARGE:
        return written, {}
    parts = LargeParts()
    lifted = parts.row(data)
    return (to_json(lifted) if parts.data else written), parts.data


def slice_row(
    item: int, attempt: int, slice_: Slice, text: KeptText, own: str | None = None
) -> Row:
    """Return the row of a draw. It doesn't repeat ``own``, the item's own text."""
    body = slice_to_dict(slice_)
    iteration, usage = body.pop("iteration"), body["usage"]
    if text != "all":
        action = {**body["action"], "text": ""}
        body = {name: part for name, part in body.items() if name not in _SLICE_TEXTS}
        body |= {"text": None, "action": action}
    elif rounds := slice_.rounds:
        # The item's result has all conversations, but the item may be resumed before it has one.
        body["rounds"] = [message.as_dict() for message in rounds]
    if body["generation_usage"] == usage:
        del body["generation_usage"]
    columns = {name: min(usage[name], MOST_TOKENS) for name in USAGE}
    if columns == usage:
        del body["usage"]
    _leave_out(body, own)
    body = _unusual(body, _USUAL_SLICE)
    if "validations" in body:
        body["validations"] = [_unusual(v, _USUAL_VERDICT) for v in body["validations"]]
    return item, attempt, iteration, *columns.values(), to_json(body)


def slice_record(row: Row, own: str | None) -> dict[str, Any]:
    """Return a row's draw in the form of `slice_to_dict`, with the fields that the row omits."""
    _, _, iteration, *columns, written = row
    body: dict[str, Any] = {"iteration": iteration, **_USUAL_SLICE, **json.loads(written)}
    body.setdefault("usage", dict(zip(USAGE, columns, strict=True)))
    body.setdefault("generation_usage", body["usage"])
    _put_back(body, own)
    body["validations"] = [{**_USUAL_VERDICT, **verdict} for verdict in body["validations"]]
    return body


def _words_of(body: dict[str, Any], own: str | None) -> dict[str, Any]:
    _leave_out(body, own)
    return {name: body[name] for name in _SLICE_TEXTS if name in body}


def _leave_out(body: dict[str, Any], own: str | None) -> None:
    """Remove the action's text from a draw's record if it equals the item's own text."""
    if body["action"]["text"] == own:
        body["action"] = body["action"]["type"]


def _put_back(body: dict[str, Any], own: str | None) -> None:
    if isinstance(body["action"], str):
        body["action"] = {"type": body["action"], "text": own}


def record_of(outcome: SamplingResult[Any] | Exception) -> SamplingResult[Any] | None:
    """Return the record of a call; None if the call raised an error without a record."""
    if not isinstance(outcome, Exception):
        return outcome
    record: Any = getattr(outcome, "result", None)
    return cast("Any", record) if isinstance(record, SamplingResult) else None


def result_rows(
    item: int,
    attempt: int,
    outcome: SamplingResult[Any] | Exception,
    elapsed: float,
    known: AbstractSet[int],
    text: KeptText,
    *,
    own: str | None = None,
) -> tuple[list[Row], Row, dict[str, bytes]]:
    """Return a finished item's rows: draws not in ``known``, the result, and large data by hash."""
    error = outcome if isinstance(outcome, Exception) else None
    raised = None if error is None else to_json(error_to_dict(error))
    result = record_of(outcome)
    if result is None:
        return [], (item, attempt, "errored", elapsed, raised, None), {}
    parts = LargeParts()
    trace, places = outline(result, parts.message)
    prompts: list[Any] = trace["prompts"]
    if text != "all":
        # The winners' texts are always kept, because they are the result.
        best = () if text == "none" or result.best_index is None else (result.best,)
        kept = {s.iteration for s in result.winners or best}
        trace["words"] = [
            {"index": at, **_words_of(slice_to_dict(s), own)}
            for at, s in enumerate(result.slices)
            if s.iteration in kept
        ]
        # Keep the first prompt of each chain, because repaired conversations continue it.
        first = {s.chain: s.iteration for s in reversed(result.slices) if s.messages}
        told = kept | {first[s.chain] for s in result.slices if s.iteration in kept and s.messages}
        said = with_earlier(
            prompts, (at for n, *both in places if n in told and text == "best" for at in both)
        )
        if result.decision is not None:
            trace["decision"] = decision_to_dict(result.decision, words=False)
        prompts = [prompt if place in said else [] for place, prompt in enumerate(prompts)]
    status = "errored" if error is not None else "passed" if result.success else "failed"
    usual = {**_USUAL_TRACE, "success": status == "passed", "elapsed": elapsed}
    trace = _unusual(trace, usual)
    trace["prompts"] = rewritten(prompts, lambda message: _unusual(message, {"content": own}))
    trace["places"] = places
    missing = [
        slice_row(item, attempt, s, text, own) for s in result.slices if s.iteration not in known
    ]
    row = item, attempt, status, elapsed, raised, to_json(trace)
    return missing, row, parts.used(prompts) if parts.data else {}


def item_record(
    item: Sequence[Any],
    result: Sequence[Any] | None,
    attempts: Sequence[Row],
    slices: Sequence[Row],
    data_of: Callable[[str], str] | None,
) -> tuple[dict[str, Any], tuple[Drawn, ...]]:
    """Make an item's record from its rows; return it, and also an unfinished item's draws."""
    position, digest, label, written = item
    data = None if written is None else _read(written, data_of)
    own = own_text(data)
    drawn = tuple((row[1], SliceView(slice_record(row, own), prompt=0)) for row in slices)
    usage = sum((s.usage for _, s in drawn), Usage())
    record: dict[str, Any] = {
        "id": position,
        "digest": digest,
        "label": label or label_of(data),
        "data": data,
        "status": "unfinished",
        "attempts": attempts[-1][1] if attempts else 0,
        "error": None,
        "started": attempts[-1][2] if attempts else None,
        "elapsed": 0.0,
        "usage": usage_to_dict(usage),
        "trace": None,
        "drawn": [],
    }
    if result is None:
        record["drawn"] = [s.plain for _, s in standing(drawn)]
        return record, drawn
    _, attempt, status, elapsed, error, trace = result
    record |= {"status": status, "elapsed": elapsed}
    record["error"] = None if error is None else json.loads(error)
    if trace is not None:
        # An attempt may continue an earlier one, so the last row of an iteration counts.
        draws = {s.iteration: s for n, s in drawn if n <= attempt}
        usual = {"success": status == "passed", "elapsed": elapsed}
        told = {**_USUAL_TRACE, **usual, **_read(trace, data_of)}
        decision = decision_from_dict(told["decision"])
        decided = Usage() if decision is None else decision.usage  # It isn't in any slice.
        record["usage"] = usage_to_dict(usage + decided)
        record["trace"] = _trace(told, draws, own, decided)
    return record, ()


def _read(written: str, data_of: Callable[[str], str] | None) -> Any:
    plain = json.loads(written)
    return plain if data_of is None or '"sha256":' not in written else restored(plain, data_of)


def standing(rows: Iterable[Drawn]) -> list[Drawn]:
    """Return the rows of draws, skipping rows that a later attempt has replaced."""
    kept: list[Drawn] = []
    for attempt, drawn in rows:
        while kept and kept[-1][1].iteration >= drawn.iteration:
            kept.pop()
        kept.append((attempt, drawn))
    return kept


def own_text(data: object) -> str | None:
    """Return an item's data if it is a text, else None."""
    return data if isinstance(data, str) else None


def _trace(
    trace: dict[str, Any], draws: Mapping[int, SliceView], own: str | None, decided: Usage
) -> dict[str, Any]:
    places: list[list[int]] = trace.pop("places")
    words: Any = trace.pop("words", [])  # Before `Collect` existed, it was a single dict.
    slices: list[dict[str, Any]] = [
        {**draws[iteration].plain, "context": context, "prompt": prompt}
        for iteration, context, prompt in places
    ]
    for slice_ in slices:
        slice_.pop("rounds", None)  # They are in the prompt.
    said: dict[str, Any]
    for said in [words] if "index" in words else words:
        at: int = said.pop("index")
        slices[at] |= said
        _put_back(slices[at], own)
    for message in (message for prompt in trace["prompts"] for message in messages_in(prompt)):
        message.setdefault("content", own)
    usage = sum((draws[iteration].usage for iteration, *_ in places), decided)
    return {**trace, "usage": usage_to_dict(usage), "slices": slices}
