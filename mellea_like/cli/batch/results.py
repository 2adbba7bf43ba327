"""Sample the rows of a batch in one process, and report progress and outages."""

from __future__ import annotations

import json
from contextlib import aclosing, asynccontextmanager
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from mellea_like.batch.api import sample_many
from mellea_like.batch.journal.differences import Difference
from mellea_like.batch.journal.journal import Journal
from mellea_like.cli.errors import problems_of, sentence
from mellea_like.cli.option_fields import option_names
from mellea_like.cli.outages import watched_servers
from mellea_like.core.format import strip_fence
from mellea_like.core.generation import Usage
from mellea_like.core.serialization import usage_to_dict
from mellea_like.errors import AuthenticationFailed, JournalError
from mellea_like.export.formats import with_thoughts

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping

    from _typeshed import DataclassInstance

    from mellea_like.batch.item import ItemResult
    from mellea_like.batch.progress import Progress
    from mellea_like.batch.rows.formats import Row
    from mellea_like.cli.backends import Backends
    from mellea_like.cli.batch.options import BatchOptions
    from mellea_like.cli.batch.prompt import PromptTemplate
    from mellea_like.cli.batch.source import RowSource
    from mellea_like.core.slice import Slice


class RowResult(NamedTuple):
    """The results of a row as plain data, which can be sent to another process.

    ``records`` pairs each record with whether its reply passes the filters for the output.
    ``place`` is the row's position in the input, from 0, if several processes share the rows.
    Otherwise it is 0.
    """

    line: int
    records: list[tuple[dict[str, Any], bool]]
    replayed: bool
    error: str | None
    key_refused: bool
    place: int


def row_result(item: ItemResult[Any], options: BatchOptions) -> RowResult:
    """Convert the result of a row to plain data."""
    row: Row = item.item
    error = None if item.error is None else sentence(item.error, debug=options.debug)
    refused = isinstance(item.error, AuthenticationFailed)
    records = list(_filtered(item, options))
    return RowResult(row.number, records, item.replayed, error, refused, row.place or 0)


def _filtered(
    item: ItemResult[Any], options: BatchOptions
) -> Iterator[tuple[dict[str, Any], bool]]:
    """Yield a row's records, and whether each passes the filters (True if it has no reply)."""
    result, filters = item.result, options.filters
    records = _records_of(item, as_value=options.json_schema is not None)
    replies: list[Slice | None] = []
    if result is not None:
        best = () if result.best_index is None else (result.best,)
        collected = result.decision is not None and result.decision.kind == "collect"
        replies = list(result.winners if collected else best)
    for record, reply in zip_longest(records, replies):
        generation = None if reply is None else reply.generation
        if generation is None:
            yield record, True
            continue
        thoughts = generation.reasoning
        if thoughts and options.reasoning == "inline":
            record["output"] = with_thoughts(record["output"], thoughts)
        elif thoughts and options.reasoning != "drop":
            record["reasoning"] = thoughts  # Tables leave it out.
        text, ended, calls = generation.text, generation.finish_reason, generation.tool_calls
        yield record, filters.allow(text, ended, calls=bool(calls))


def _records_of(item: ItemResult[Any], *, as_value: bool = False) -> list[dict[str, Any]]:
    """Return a row's result as one record or, with ``--select collect``, one for each reply."""
    whole = _record_of(item, as_value=as_value)
    result = item.result
    decision = None if result is None else result.decision
    if result is None or decision is None or decision.kind != "collect" or not decision.winners:
        return [whole]
    passed: dict[str, Any] = {"success": True, "status": "passed", "reasons": [], "error": None}
    outputs = (_output(winner.text, as_value=as_value) for winner in result.winners)
    records = [whole | passed | {"output": output} for output in outputs]
    if not item.success:
        too_few = f"only {len(records)} passed"
        records.append(whole | {"output": None, "reasons": [too_few]})
    nothing: dict[str, Any] = {"iterations": 0, "elapsed": 0.0, "usage": usage_to_dict(Usage())}
    return [records[0], *(record | nothing for record in records[1:])]


def _record_of(item: ItemResult[Any], *, as_value: bool) -> dict[str, Any]:
    row: Row = item.item
    result = item.result
    best = None if result is None or result.best_index is None else result.best
    reasons = [] if item.success or best is None else problems_of(best)
    output = None if best is None else _output(best.text, as_value=as_value)
    return {
        "id": next(number for number in (row.id, row.place, item.id) if number is not None),
        "line": row.number,
        "input": dict(row),
        "output": output,
        "success": item.success,
        "status": item.status,
        "reasons": reasons,
        "error": None if item.error is None else _error(item.error),
        "iterations": 0 if result is None else len(result.slices),
        "elapsed": 0.0 if result is None else round(result.elapsed, 6),
        "usage": usage_to_dict(item.usage),
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


OPTIONS = {
    "loop_budget": "--attempts",
    "concurrency_budget": "--lanes",
    "provider": "--backend",
    "requirements": "--check, --require, --unique",
    "judge": "--judge-model",
    "judge_options": "--judge-option",
    "format": "--schema",
    "checks": "--check",
    "input": "INPUT",
}
"""Maps the library's names for settings to the options that set them, if the names differ."""


@asynccontextmanager
async def row_results(
    options: BatchOptions,
    backends: Backends,
    source: RowSource,
    template: PromptTemplate,
    settings: Mapping[str, Any],
    *,
    update: Callable[[Progress], object],
    tell: Callable[[str], object],
) -> AsyncGenerator[AsyncIterator[RowResult]]:
    """Sample all rows of a source with open backends, and yield an iterator of the results."""
    async with (
        watched_servers(backends.gates, tell),
        sample_many(
            backends.make_strategy(),
            source.rows(),
            concurrency=options.workers,
            action=cast("Callable[[Row], str]", template.fill),
            requirements=options.make_requirements(),
            format=backends.reply_type,
            options=options.request_options,
            budget=backends.make_budget("this run"),
            in_order=options.in_order,
            breadth_first=options.breadth_first,
            journal=_journal(options, backends),
            unique=options.similarity,
            keep_errors=False,  # A backend's error isn't about the row.
            on_progress=update,
            settings=settings,
        ) as results,
        aclosing(row_result(item, options) async for item in results) as rows,
    ):
        yield rows


def _journal(options: BatchOptions, backends: Backends) -> Journal | None:
    if options.journal is None:
        return None
    prices = backends.prices(backends.models)
    text, resume = options.journal_text, options.resume
    return Journal(options.journal, resume=resume, text=text, prices=prices)


def with_options(
    error: Exception, options: DataclassInstance, others: Mapping[str, str] = OPTIONS
) -> Exception:
    """Return the error; one that lists changed settings names options in their place.

    ``others`` maps the settings to options whose fields are named differently.
    """
    if not isinstance(error, JournalError) or not error.differences:
        return error
    message = str(error)
    names = {**option_names(type(options)), **others}
    for told in (Difference(*one) for one in error.differences):
        name = told.name.removeprefix("options.")
        if name.startswith("judge_options."):
            name = "judge_options"
        worded = str(told._replace(name=names.get(name, told.name)))
        if name.startswith("selection"):
            worded = "--select or --n has changed"
        message = message.replace(str(told), worded)
    in_options = JournalError(message, error.differences)
    in_options.__cause__ = error
    return in_options
