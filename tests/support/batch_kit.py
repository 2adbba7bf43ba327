"""Helpers for tests of batches: a journal in memory, and backends with a plan."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import anyio

from mellea_like import Generation, RejectionSamplingStrategy, Request, Requirement
from mellea_like.batch import BatchRun, ItemResult, sample_many
from mellea_like.batch.journal.reader import StoredItem
from mellea_like.batch.journal.records import record_of
from mellea_like.core import Usage
from mellea_like.core.recorded import error_to_dict
from mellea_like.core.serialization import to_dict, usage_to_dict
from mellea_like.errors import JournalError
from mellea_like.runtime.task_scope import task_scope


class Plan:
    """A backend that answers each prompt as planned, and counts its requests.

    A value of the plan is a text, an exception to raise, or seconds to wait before ``"yes"``.
    """

    model = "planned"
    seconds = 1

    def __init__(self, plan: Mapping[str, Any] | Callable[[str], Any] | None = None) -> None:
        self.plan = plan.get if isinstance(plan, Mapping) else plan or (lambda prompt: "yes")
        self.asked: list[str] = []
        self.cancelled: list[str] = []
        self.in_flight = self.most = 0

    async def generate(self, request: Request) -> Generation:
        prompt = request.messages[-1].content.partition("\n")[0]
        self.asked.append(prompt)
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        try:
            due = self.plan(prompt)
            if isinstance(due, BaseException):
                await anyio.lowlevel.checkpoint()
                raise due
            await anyio.sleep(due if isinstance(due, int | float) else self.seconds)
            return Generation(due if isinstance(due, str) else "yes", usage=Usage(1, 2, 3))
        except anyio.get_cancelled_exc_class():
            self.cancelled.append(prompt)
            raise
        finally:
            self.in_flight -= 1


def _agrees(candidate: Any) -> tuple[bool, str]:
    return candidate.text == "yes", f"it says {candidate.text}"


agrees = Requirement("say yes", _agrees, inline=True, check_only=True)


def strategy(backend: Any = None, **arguments: Any) -> RejectionSamplingStrategy:
    """Return a strategy with one draw per item, which must say yes."""
    settings = {"loop_budget": 1, "requirements": [agrees], "retry": None} | arguments
    return RejectionSamplingStrategy(Plan() if backend is None else backend, **settings)


async def results_of(*args: Any, **arguments: Any) -> list[ItemResult[Any]]:
    """Return all results of a batch."""
    async with sample_many(*args, **arguments) as results:
        return [item async for item in results]


async def into(seen: list[Any], batch: BatchRun[Any]) -> None:
    """Append results to a list as they come, so that those before an error are kept."""
    async with batch as results:
        async for item in results:
            seen.append(item)  # noqa: PERF401 (an error must not lose what came before)


def ids(items: Iterable[ItemResult[Any]]) -> list[int]:
    """Return the ids of items."""
    return [item.id for item in items]


class Counted:
    """A source that counts the items taken from it."""

    def __init__(self, items: Iterable[Any], gap: float = 0) -> None:
        self.items = iter(items)
        self.gap = gap
        self.taken = 0

    def __iter__(self) -> Counted:
        return self

    def __next__(self) -> Any:
        item = next(self.items)
        self.taken += 1
        return item


class Slow(Counted):
    """An async source like `Counted`, with a pause before each item."""

    __iter__ = None  # type: ignore[assignment]

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        await anyio.sleep(self.gap)
        try:
            return next(self)
        except StopIteration:
            raise StopAsyncIteration from None


class MemoryJournal:
    """A journal in memory, from which the next run can be resumed.

    Args:
        commit: the seconds that each commit takes.
        broken: the number of results after which writing fails.
    """

    def __init__(self, commit: float = 0, broken: float = float("inf")) -> None:
        self.commit = commit
        self.broken = broken
        self.identity: Mapping[str, Any] | None = None
        self.items: dict[int, SimpleNamespace] = {}
        self.slices: list[tuple[int, int, Any]] = []
        self.finished: list[int] = []
        self.lookups: list[tuple[int, int]] = []
        self.opened = self.closed = self.committing = 0

    @asynccontextmanager
    async def open(self, identity: Mapping[str, Any]) -> AsyncGenerator[MemoryJournal]:
        if self.identity is not None and self.identity != identity:
            msg = f"another run: {self.identity} and {identity}"
            raise JournalError(msg)
        self.identity = identity
        self.opened += 1
        self.committing = 0
        async with task_scope() as self.tasks:
            try:
                yield self
            finally:
                self.closed += 1

    async def lookup(self, item_id: int, count: int, *, now: bool = False) -> list[Any]:
        await anyio.lowlevel.checkpoint()
        self.lookups.append((item_id, count))
        return [self._stored(n) for n in range(item_id, item_id + count) if n in self.items]

    def _stored(self, item_id: int) -> StoredItem:
        item = self.items[item_id]
        record: dict[str, Any] = {
            "id": item_id,
            "digest": item.digest,
            "label": item.label,
            "data": item.data,
            "attempts": item.attempts,
            "started": None,
            "elapsed": 0.0,
            "usage": usage_to_dict(Usage()),
            "trace": None,
            "error": None,
            "status": "unfinished",
        }
        return StoredItem(record | (item.result or {}), ())

    def begin(
        self, item_id: int, attempt: int, digest: str, label: str, data: Any, known: Any = ()
    ) -> None:
        self._check()
        item = self.items.setdefault(
            item_id, SimpleNamespace(digest=digest, attempts=0, result=None)
        )
        assert attempt == item.attempts + 1
        assert item.result is None
        item.attempts, item.label, item.data = attempt, label, data

    def slice(self, item_id: int, attempt: int, slice_: Any) -> None:
        self._check()
        self.slices.append((item_id, attempt, slice_))

    def pause(self, item_id: int, attempt: int, slices: Any, then: Callable[..., Any]) -> None:
        assert not slices, "only what is not kept is paused here"
        self.finish(item_id, attempt, None, then)

    def finish(self, item_id: int, attempt: int, outcome: Any, then: Callable[..., Any]) -> None:
        self._check()
        if self.commit:
            self.committing += 1
            self.all_done = anyio.Event()
            self.tasks.start_soon(self._commit_later, item_id, attempt, outcome, then)
        else:
            self._commit(item_id, attempt, outcome, then)

    async def flush(self) -> None:
        if self.committing:
            await self.all_done.wait()

    async def _commit_later(self, *what: Any) -> None:
        await anyio.sleep(self.commit)
        self._commit(*what)
        self.committing -= 1
        if not self.committing:
            self.all_done.set()

    def _commit(self, item_id: int, attempt: int, outcome: Any, then: Callable[..., Any]) -> None:
        try:
            self._check()
        except JournalError as exc:
            then(exc)
            return
        if outcome is None:
            then(None)
            return
        error = outcome if isinstance(outcome, Exception) else None
        result = record_of(outcome)
        costs = [s.usage for n, a, s in self.slices if (n, a) == (item_id, attempt)]
        self.items[item_id].result = {
            "status": "errored" if error else "passed" if outcome.success else "failed",
            "trace": None if result is None else to_dict(result),
            "error": None if error is None else error_to_dict(error),
            "usage": usage_to_dict(sum(costs, Usage())),
        }
        self.finished.append(item_id)
        then(None)

    def _check(self) -> None:
        if len(self.finished) >= self.broken:
            raise JournalError("the disk is full")
