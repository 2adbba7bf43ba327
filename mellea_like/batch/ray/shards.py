"""An actor's work on a shard of rows: its journal, its calls, and the outcome of each row.

Nothing here needs Ray. A shard is a block of rows, which is a `pyarrow.Table`.
"""

from __future__ import annotations

import hashlib
import importlib
from contextlib import AsyncExitStack, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio

from mellea_like.batch import sample_many
from mellea_like.batch.journal.identity import row_of
from mellea_like.batch.ray.cluster import RayKeeper
from mellea_like.batch.ray.cluster_limit import RemoteLimit
from mellea_like.batch.row_outcome import RowOutcome, as_json, describe, outcome_of
from mellea_like.batch.rows.formats import free_names
from mellea_like.errors import JournalError, LimitExceeded, MelleaError
from mellea_like.runtime.logs import warn
from mellea_like.sampling.base import BaseSamplingStrategy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from mellea_like.batch.rows.template import RowTemplate

POSITION = "__mellea_like_position"
"""The name of a column that numbers the rows, to distinguish equal rows. Results lack it."""

JOURNAL_POLL = 0.25
"""The seconds between two attempts to open a journal that is in use."""


@dataclass(repr=False)
class ShardWork:
    """The description of the work on each row, as it is sent to the actors."""

    make_strategy: Callable[..., BaseSamplingStrategy]
    arguments: Mapping[str, Any]  # The arguments of `sample_many` that each shard has.
    calls: int = 16  # Calls at a time per actor.
    key: str | None = None  # The column that identifies a row, or None.
    journal_dir: str | None = None
    limit_actor: Any = None  # This handle keeps the actor alive.
    # The seconds that a shard waits for its journal if another process has it open. That process
    # is dead or about to die, because Ray gave the shard to this one. A file server may take 90
    # seconds to notice that a machine is gone (NFS 4).
    journal_wait: float = 120.0

    def __repr__(self) -> str:  # Ray distinguishes actor classes by their repr.
        return f"<ShardWork of {self.calls} calls, {id(self):#x}>"


class ShardSampler:
    """Samples shards of rows. Each actor has one sampler; Ray Data calls it on one event loop."""

    def __init__(self, work: ShardWork) -> None:
        self._work = work
        # All shards of the actor share its calls, and the oldest shard comes first. So when a shard
        # has only a few rows left, the next shard uses the calls that become free.
        self._free = anyio.Semaphore(work.calls)
        self._turn = anyio.Semaphore(1)
        self._limit: RemoteLimit | None = None
        self._failure: Exception | None = None
        self._strategy: BaseSamplingStrategy | None = None
        # If this raised here, Ray would mistake it for a bug in Ray, and ask the user to report it.
        try:
            self._strategy = self._make_strategy()
        except Exception as exc:  # noqa: BLE001 (raised with the first shard)
            self._failure = exc

    def _make_strategy(self) -> BaseSamplingStrategy:
        work = self._work
        if work.limit_actor is None:
            made = work.make_strategy()
        else:
            self._limit = RemoteLimit(RayKeeper(work.limit_actor))
            made = work.make_strategy(self._limit)
        if not isinstance(made, BaseSamplingStrategy):
            msg = f"make_strategy returned {made!r}, which isn't a strategy"
            raise TypeError(msg)
        return made

    async def __call__(self, table: Any) -> Any:
        """Sample a `pyarrow.Table` of rows; return it with the columns of `RowOutcome` added."""
        if self._strategy is None:
            msg = f"make_strategy failed in a Ray actor: {describe(self._failure)}"
            raise MelleaError(msg) from self._failure
        rows: list[dict[str, Any]] = table.to_pylist()
        positions = [row.pop(POSITION, None) for row in rows]
        key = self._work.key
        keys = positions if key is None else [row[key] for row in rows]
        outcomes: dict[int, RowOutcome] = {}
        async with nullcontext() if self._limit is None else self._limit.in_use():
            await self._sample(self._strategy, rows, keys, outcomes)
        return with_results(table, [outcomes.get(at, RowOutcome()) for at in range(len(rows))])

    async def _sample(
        self,
        strategy: BaseSamplingStrategy,
        rows: list[dict[str, Any]],
        keys: list[Any],
        outcomes: dict[int, RowOutcome],
    ) -> None:
        under_way = 0
        parsed = self._work.arguments["format"] is not None

        async def admitted() -> Any:
            nonlocal under_way
            async with self._turn:
                for row in rows:
                    await self._free.acquire()
                    under_way += 1
                    yield row

        try:
            async with AsyncExitStack() as stack:
                results = await self._opened(stack, strategy, admitted(), rows, keys)
                try:
                    async for item in results:
                        self._free.release()
                        under_way -= 1
                        outcomes[item.id] = outcome_of(item, parsed=parsed)
                except LimitExceeded as exc:
                    unfinished = RowOutcome(error=describe(exc))
                    for at in range(len(rows)):
                        outcomes.setdefault(at, unfinished)
        finally:
            # The run has ended, so nobody takes more rows.
            for _ in range(under_way):
                self._free.release()

    async def _opened(
        self,
        stack: AsyncExitStack,
        strategy: BaseSamplingStrategy,
        source: Any,
        rows: list[dict[str, Any]],
        keys: list[Any],
    ) -> Any:
        work = self._work
        journal = None
        if work.journal_dir is not None:
            directory = anyio.Path(work.journal_dir)
            try:
                await directory.mkdir(parents=True, exist_ok=True)
            except OSError as exc:
                msg = f"the journals' directory {directory} can't be created: {exc.strerror}"
                raise JournalError(msg) from exc
            journal = f"{directory / shard_name(rows, keys)}.db"
        began = anyio.current_time()
        told = False
        while True:
            run = sample_many(
                strategy, source, concurrency=work.calls, journal=journal, **work.arguments
            )
            try:
                return await stack.enter_async_context(run)
            except JournalError as exc:
                waited = anyio.current_time() - began
                if "is in use by" not in str(exc) or waited > work.journal_wait:
                    raise
                if not told:
                    warn("a shard is waiting for its journal: %s", exc)
                told = True
                await anyio.sleep(JOURNAL_POLL)


# --- rows ----------------------------------------------------------------------------------------


def with_results(table: Any, outcomes: Sequence[RowOutcome]) -> Any:
    """Return a `pyarrow.Table` with the columns of results added, and its own columns unchanged."""
    pa: Any = importlib.import_module("pyarrow")
    types = {"success": pa.bool_(), "replayed": pa.bool_(), "elapsed": pa.float64()}
    types |= dict.fromkeys(("output", "value", "status", "error"), pa.string())
    types["reasons"] = pa.list_(pa.string())
    if POSITION in table.column_names:
        table = table.drop_columns([POSITION])
    names = free_names(table.column_names, RowOutcome._fields)
    for index, (name, field) in enumerate(zip(names, RowOutcome._fields, strict=True)):
        values = [outcome[index] for outcome in outcomes]
        column = pa.array(values, type=types.get(field, pa.int64()))
        table = table.append_column(name, column)
    return table


def prompt_maker(template: str) -> Callable[[Mapping[str, Any]], str]:
    """Return a picklable function that makes a row's prompt by filling in a template."""
    from mellea_like.batch.rows.template import RowTemplate  # noqa: PLC0415 (an extra)

    try:
        return partial(_filled, RowTemplate(template))
    except ValueError as exc:
        msg = f"prompt {template!r} {exc}"
        raise ValueError(msg) from exc


def _filled(template: RowTemplate, row: Mapping[str, Any]) -> str:
    from jinja2 import UndefinedError  # noqa: PLC0415 (an extra)

    try:
        return template.fill(row)
    except UndefinedError as exc:
        msg = f"the prompt: {exc}; the row has: {', '.join(row)}"
        raise KeyError(msg) from exc


def shard_name(rows: Iterable[Mapping[str, Any]], keys: Iterable[object]) -> str:
    """Return a name for a shard's journal; the same rows in the same order give the same name."""
    digest = hashlib.sha256()
    for row, key in zip(rows, keys, strict=True):
        digest.update(as_json([key, row_of(row)]).encode("utf-8", "surrogatepass"))
        digest.update(b"\n")
    return digest.hexdigest()[:32]
