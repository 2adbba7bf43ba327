"""An item of a batch: sampling it, storing it, and its new or stored result."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypeAlias

from typing_extensions import TypeVar

from mellea_like.batch.journal.identity import differing_part, label_of, row_of
from mellea_like.batch.journal.records import record_of
from mellea_like.core.backend import PATIENT
from mellea_like.core.conversation import as_action
from mellea_like.core.display import add_note
from mellea_like.core.generation import Usage
from mellea_like.core.result import SamplingResult, StopReason
from mellea_like.core.serialization import check_readable
from mellea_like.errors import JournalError, LimitExceeded, MelleaError
from mellea_like.runtime.event_loops import foreign

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from mellea_like.batch.journal.journal import OpenJournal
    from mellea_like.batch.journal.reader import StoredItem
    from mellea_like.batch.unique import UniqueReplies
    from mellea_like.core.backend import Backend
    from mellea_like.core.conversation import Action
    from mellea_like.core.requirement import Requirement
    from mellea_like.core.slice import Slice
    from mellea_like.sampling import CallInRounds
    from mellea_like.sampling.base import BaseSamplingStrategy

T = TypeVar("T")
I = TypeVar("I", default=Any)  # noqa: E741 (an item)

ItemStatus = Literal["passed", "failed", "errored"]

BLOCK = 128
"""The number of items to look up in the journal at a time."""


class IdSet:
    """A set of item ids that takes only one byte per item."""

    def __init__(self) -> None:
        self._flags = bytearray()

    def add(self, item_id: int) -> None:
        """Add an id."""
        self._flags.extend(bytes(max(0, item_id + 1 - len(self._flags))))
        self._flags[item_id] = True

    def __contains__(self, item_id: int) -> bool:
        return item_id < len(self._flags) and bool(self._flags[item_id])


@dataclass(frozen=True, slots=True)
class ItemResult(Generic[T, I]):
    """The result of one item. Its truth value is `success`.

    Generic in the type of the winner's parsed value and in the type of the item.

    Args:
        id: the item's position in the source, from 0.
        item: the item, as the source gave it.
        result: the record of the item's call; None if the call raised an error without a record.
        error: the exception of the call or of ``action=``; None if the call returned.
        attempt: the number of the attempt that gave the result, from 1. A number above 1 means
            that an earlier run began the item, and left no result that counts.
        replayed: whether the result comes from the journal, without any draws in this run.
        usage: the cost of the item's requests, as far as it is known. If the call raised, the cost
            comes from the journal or the error's record, and is zero if there is neither. A
            `Budget` counts the call's cost in any case. If an earlier run was killed while it
            sampled the item, the cost of the draws that were lost is included only once the result
            is ``replayed``.
    """

    id: int
    item: I
    result: SamplingResult[T] | None
    error: Exception | None = None
    attempt: int = 1
    replayed: bool = False
    usage: Usage = Usage()

    @property
    def status(self) -> ItemStatus:
        """``"passed"``, ``"failed"`` or ``"errored"``.

        ``"failed"`` means that no draw passed, or fewer than the selection needs; ``"errored"``
        means that the call raised.
        """
        if self.error is not None:
            return "errored"
        return "passed" if self.success else "failed"

    @property
    def success(self) -> bool:
        """Whether the item passed; see `status`."""
        return self.error is None and self.result is not None and self.result.success

    def __bool__(self) -> bool:
        return self.success

    @property
    def value(self) -> T | None:
        """The winner's parsed value; None if the item didn't pass."""
        return self.result.value if self.success and self.result is not None else None

    @property
    def values(self) -> tuple[T, ...]:
        """The values of all winners; see `SamplingResult.values`. Empty if there are none."""
        return () if self.error is not None or self.result is None else self.result.values

    def unwrap(self) -> T:
        """Return the winner's parsed value.

        Returns:
            The value.

        Raises:
            SamplingFailed: no draw passed, or the winner calls tools (`UnansweredToolCalls`).
            Exception: the error that the call raised.
        """
        if self.error is not None:
            raise self.error
        assert self.result is not None  # noqa: S101 (there is one or the other)
        return self.result.unwrap()


class Job(NamedTuple):
    """An item in the workers' queue. ``action`` is None if making it raised ``error``."""

    id: int
    item: Any
    action: Action[Any] | None
    error: Exception | None = None
    digest: str = ""
    attempt: int = 1
    earlier: tuple[Slice, ...] = ()  # The draws that the item continues from.
    call: CallInRounds[Any] | None = None  # The call to continue, if it is still in memory.
    marks: dict[int, Any] | None = None  # The selection's marks of draws, if they are kept.
    wrap: Callable[[Backend, Backend], Backend] | None = None  # See `BaseSamplingStrategy.begin`.
    waited: bool = False  # Whether the item has waited for this turn, after an earlier one.
    trial: bool = False  # Whether the batch ends if this item ends with an error.

    @property
    def spent(self) -> Usage:
        """The cost of the item's earlier draws."""
        return sum((s.usage for s in self.earlier), Usage())


class Paused(NamedTuple):
    """An item that waits for a later round: its draws so far, and its call if that is kept."""

    slices: tuple[Slice, ...]
    call: CallInRounds[Any] | None = None


TurnOutcome: TypeAlias = "SamplingResult[Any] | Paused | Exception"
"""The outcome of an item's turn: its result, its paused state, or the error that ended it."""

Call: TypeAlias = "Callable[[Job, Callable[[Slice], None] | None], Awaitable[TurnOutcome]]"
"""A function that samples an item for one turn, and passes each draw to its second argument."""


class Work(NamedTuple):
    """The arguments of `sample_many` that are needed to sample one item."""

    strategy: BaseSamplingStrategy
    requirements: Sequence[Requirement | str]
    action: Callable[[Any], Any] | None
    given: Mapping[str, Any]
    example: CallInRounds[Any]
    unique: UniqueReplies | None = None

    @property
    def format(self) -> Any:
        """The type that replies are parsed to; None for texts."""
        return self.given["format"]

    def job(self, position: int, item: Any) -> Job:
        """Make the job of an item."""
        try:
            made = item if self.action is None else self.action(item)
            return Job(position, item, as_action(made))
        except Exception as exc:  # noqa: BLE001 (it is the item's result)
            return Job(position, item, None, exc)

    async def sample(
        self, job: Job, on_slice: Callable[[Slice], None] | None, call: Call
    ) -> TurnOutcome:
        """Sample or continue an item with ``call``, and return the outcome of this turn."""
        if job.error is not None:
            return job.error
        if self.unique is None:
            return await call(job, on_slice)
        return await self.unique.sample(job, on_slice, call)

    async def call(
        self, job: Job, on_slice: Callable[[Slice], None] | None, *, draws: int | None = None
    ) -> TurnOutcome:
        """Make all remaining draws of an item, or only ``draws`` of them; return the outcome."""
        PATIENT.set(True)  # Otherwise, an outage would fail all items at once.
        try:
            with foreign(f"item {job.id}", MelleaError):
                call = job.call
                if call is None:
                    assert job.action is not None  # noqa: S101 (else there is an error)
                    call = self.strategy.begin(
                        job.action,
                        self.requirements,
                        earlier=job.earlier,
                        marks=job.marks,
                        wrap=job.wrap,
                        **self.given,
                    )
                result = await call.run(draws, heard=on_slice)
            if call.paused:
                return Paused(result.slices, call)
            if draws is not None and result.stop_reason is StopReason.BUDGET:
                # A vote would be decided by the votes so far, but in breadth it continues later.
                return LimitExceeded(result.stop_detail, result)
            return result  # noqa: TRY300 (the hot path)
        except Exception as exc:  # noqa: BLE001 (the item's)
            return exc


def budget_spent(outcome: SamplingResult[Any] | Exception) -> LimitExceeded | None:
    """Return the error of a spent budget if that is why an item has no winner; else None."""
    if isinstance(outcome, LimitExceeded):
        return LimitExceeded(str(outcome), outcome.result)
    if not isinstance(outcome, SamplingResult) or outcome.success:
        return None
    spent = outcome.stop_reason is StopReason.BUDGET
    return LimitExceeded(outcome.stop_detail, outcome) if spent else None


def result_of(
    job: Job, outcome: SamplingResult[Any] | Exception, usage: Usage
) -> ItemResult[Any, Any]:
    """Return an item's result. ``usage`` is the cost of the call if the call left no record."""
    result = record_of(outcome)
    error = outcome if isinstance(outcome, Exception) else None
    usage = usage if result is None else result.usage
    return ItemResult(job.id, job.item, result, error, job.attempt, usage=usage)


def fatal_error(job: Job, item: ItemResult[Any], *, fail_fast: bool) -> BaseException | None:
    """Return the error by which an item ends the whole batch; None if the batch continues."""
    if fail_fast and not item.success:
        try:
            item.unwrap()
        except Exception as exc:  # noqa: BLE001 (what the iteration raises)
            add_note(exc, f"this is the error of item {item.id}; fail_fast=True ended the batch")
            return exc
    if job.trial and ended_by_error(item):
        if item.error is not None or item.result is None:
            return item.error
        return item.result.errors[0]
    return None


def ended_by_error(item: ItemResult[Any]) -> bool:
    """Return whether an error ended an item: its call raised, or a lane couldn't make draws."""
    if item.error is not None or item.result is None:
        return item.error is not None
    return not item.success and item.result.stop_reason is StopReason.ERROR


# --- an item in a journal ----------------------------------------------------------------------


class EarlierRun:
    """Looks up an earlier run's items, in the order of their ids; with ``now``, this run's too."""

    def __init__(self, journal: OpenJournal, *, now: bool = False) -> None:
        self._journal = journal
        self._now = now
        self._known: dict[int, StoredItem] = {}
        self._looked_up = 0
        self._over = False

    async def find(self, item_id: int, digest: str) -> StoredItem | None:
        """Return an item's state in the journal, or None; raise if a different item has this id."""
        if item_id >= self._looked_up and not self._over:
            found = await self._journal.lookup(item_id, BLOCK, now=self._now)
            self._known = {stored.id: stored for stored in found}
            self._looked_up = item_id + BLOCK
            self._over = not found  # Items are begun in order, so there are no more.
        stored = self._known.pop(item_id, None)
        if stored is not None and stored.digest != digest:
            prompt = differing_part(stored.digest, digest) == "prompt"
            where = " in its prompt or its requirements" if prompt else ""
            msg = (
                f"item {item_id} differs from the one in the journal{where}: resume a run with the"
                " same items in the same order, or use another journal for other items"
            )
            raise JournalError(msg)
        return stored

    async def check_end(self, count: int) -> None:
        """Raise if the journal has more items than the ``count`` that the source gave."""
        if self._over:
            return
        if self._known or await self._journal.lookup(count, 1):
            msg = (
                f"the source ended after {count} items, but the journal has more: resume a run with"
                " the same items, or use another journal for other items"
            )
            raise JournalError(msg)


def replayed(stored: StoredItem, job: Job, work: Work) -> ItemResult[Any]:
    """Return a finished item's result, as read from the item's record in the journal."""
    format = work.format
    try:
        trace, error = stored.trace, stored.exception
        result = None if trace is None else SamplingResult[Any].from_dict(trace.plain, format)
    except (KeyError, TypeError, ValueError) as exc:
        msg = f"the journal's record of item {stored.id} can't be read: {exc}"
        raise JournalError(msg) from exc
    if result is not None and format is None and job.action is not None:
        result = _parsed(result, job.action)
    if result is not None:
        result = work.example.restored(result)
    return ItemResult(
        job.id, job.item, result, error, stored.attempts, replayed=True, usage=stored.usage
    )


def _parsed(result: SamplingResult[Any], action: Action[Any]) -> SamplingResult[Any]:
    """Parse the winners' texts again, because their values may have changed when stored as JSON."""
    slices = {s.iteration: s for s in result.slices}
    for winner in result.winners:
        if (reply := winner.generation) is None or not reply.parsed:
            continue
        if reply.value is None and reply.tool_calls:
            continue  # It isn't an answer yet.
        with suppress(Exception):  # The action parsed this reply once, so the text has changed.
            again = replace(reply, value=action.parse(reply.text))
            slices[winner.iteration] = replace(winner, generation=again)
    return replace(result, slices=tuple(slices.values()))


class ItemRecorder:
    """Writes the draws of an item into the journal as they end."""

    def __init__(
        self, journal: OpenJournal, job: Job, format: Any, abort: Callable[[JournalError], None]
    ) -> None:
        self._journal = journal
        self._job = job
        self._format = format
        self._abort = abort
        self.usage = Usage()
        row = row_of(job.item)
        label = label_of(job.item) if row is None else ""
        known = [slice_.iteration for slice_ in job.earlier]
        journal.begin(job.id, job.attempt, job.digest, label, row, known)

    def __call__(self, slice_: Slice) -> None:
        """Record a draw; raise if its parsed value couldn't be read back from the journal."""
        self.usage += slice_.usage
        try:
            self._check(slice_)
            self._journal.slice(self._job.id, self._job.attempt, slice_)
        except JournalError as exc:
            self._abort(exc)  # A call that already has its winner would only log the error.
            raise

    def _check(self, slice_: Slice) -> None:
        if self._format is None or slice_.generation is None:
            return
        try:
            check_readable(slice_.generation, self._format)
        except ValueError as exc:
            msg = (
                f"item {self._job.id} can't be kept in a journal: {exc}; make the backend return"
                " the reply as text that the format can read, or run without a journal"
            )
            raise JournalError(msg) from exc
