"""An item of a batch: what is asked for it, how it is sampled, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypeVar

from mellea_like.core.conversation import as_action
from mellea_like.core.display import add_note
from mellea_like.core.generation import Usage
from mellea_like.core.result import SamplingResult, StopReason
from mellea_like.errors import LimitExceeded, MelleaError, SamplingFailed
from mellea_like.limits.backoff_gate import PATIENT
from mellea_like.runtime.event_loops import cancel_requested, split_cancellation

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mellea_like.core.backend import Options
    from mellea_like.core.conversation import Action
    from mellea_like.core.requirement import Requirement
    from mellea_like.core.slice import Slice
    from mellea_like.limits.budget import Budget
    from mellea_like.sampling.base import BaseSamplingStrategy

__all__ = ["ItemResult", "ItemStatus", "Job", "Work", "budget_spent", "first_failure", "record_of"]

T = TypeVar("T")

ItemStatus = Literal["passed", "failed", "errored"]


@dataclass(frozen=True, slots=True)
class ItemResult(Generic[T]):
    """What came of one item; true if it is a `success`. Generic in the parsed value.

    Args:
        id: the item's position in the source, from 0.
        item: the item, as the source gave it.
        result: the record of its call; None where the call raised an error that carries none.
        error: what the call raised, or what ``action=`` raised; None where the call returned.
        attempt: which attempt this is, from 1; more than 1 where a run before was broken off while
            the item was under way.
        replayed: whether it comes from the journal, and nothing was sampled for it now.
        usage: what its requests cost, as far as that is known. Of a call that raised, that is what
            the journal or the error knows: nothing where there is no journal, and the error carries
            no record. A `Budget` counts what such calls cost, too.
    """

    id: int
    item: Any
    result: SamplingResult[T] | None
    error: Exception | None = None
    attempt: int = 1
    replayed: bool = False
    usage: Usage = Usage()

    @property
    def status(self) -> ItemStatus:
        """``"passed"``; ``"failed"``, no slice passed; or ``"errored"``, the call raised."""
        if self.error is not None:
            return "errored"
        return "passed" if self.success else "failed"

    @property
    def success(self) -> bool:
        """Whether a slice passed."""
        return self.error is None and self.result is not None and self.result.success

    def __bool__(self) -> bool:
        return self.success

    @property
    def value(self) -> T | None:
        """The winner's parsed value; None unless a slice passed."""
        return self.result.value if self.success and self.result is not None else None

    def unwrap(self) -> T:
        """Return the winner's parsed value.

        Returns:
            The value.

        Raises:
            SamplingFailed: no slice passed.
            Exception: the call raised; this is what it raised.
        """
        if self.error is not None:
            raise self.error
        assert self.result is not None  # noqa: S101 (there is one or the other)
        return self.result.unwrap()


class Job(NamedTuple):
    """An item to sample: its position, and its action, or the error in place of one."""

    id: int
    item: Any
    action: Action[Any] | None
    error: Exception | None = None
    digest: str = ""
    attempt: int = 1


class Work(NamedTuple):
    """What a batch does with each item; the fields are arguments of `sample_many`."""

    strategy: BaseSamplingStrategy
    requirements: Sequence[Requirement | str]
    action: Callable[[Any], Any] | None
    format: Any
    options: Options | Mapping[str, Any] | None
    budget: Budget | None

    def job(self, position: int, item: Any) -> Job:
        """Make the job of an item."""
        try:
            made = item if self.action is None else self.action(item)
            return Job(position, item, as_action(made))
        except Exception as exc:  # noqa: BLE001 (it is what came of the item)
            return Job(position, item, None, exc)

    async def sample(
        self, job: Job, on_slice: Callable[[Slice], None] | None
    ) -> SamplingResult[Any] | Exception:
        """Sample an item; return what its call returned or raised."""
        if job.action is None:
            assert job.error is not None  # noqa: S101 (there is one or the other)
            return job.error
        PATIENT.set(True)  # An outage shall not fail all items at once.
        try:
            return await self.strategy.sample(
                job.action,
                self.requirements,
                format=self.format,
                options=self.options,
                budget=self.budget,
                on_slice=on_slice,
            )
        except BaseException as exc:
            cancellation, rest = split_cancellation(exc)
            if cancellation is not None and cancel_requested():
                raise
            if isinstance(rest, Exception):
                return rest
            if rest is not None:
                raise
            msg = f"item {job.id} was cancelled, though no one asked for that"
            stray = MelleaError(msg)
            stray.__cause__ = exc
            return stray


def record_of(outcome: SamplingResult[Any] | Exception) -> SamplingResult[Any] | None:
    """Return the record of a call; None where it raised an error that carries none."""
    record: Any = getattr(outcome, "result", None) if isinstance(outcome, Exception) else outcome
    return record if isinstance(record, SamplingResult) else None


def budget_spent(outcome: SamplingResult[Any] | Exception) -> LimitExceeded | None:
    """Return the error that says which budget is spent, if that stopped a call: items share it."""
    if isinstance(outcome, LimitExceeded):
        return LimitExceeded(str(outcome), outcome.result)
    if isinstance(outcome, SamplingResult) and outcome.stop_reason is StopReason.BUDGET:
        return LimitExceeded(outcome.stop_detail, outcome)
    return None


def first_failure(outcome: ItemResult[Any]) -> Exception:
    """Return what the first item that failed ends the batch with."""
    error = outcome.error
    if error is None:
        try:
            outcome.unwrap()
        except SamplingFailed as exc:
            error = exc
    assert error is not None  # noqa: S101 (it failed)
    add_note(error, f"this is item {outcome.id} of the batch, which fail_fast=True ended")
    return error
