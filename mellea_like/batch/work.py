"""What a batch does with one item."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from mellea_like.batch.identity import identity_of
from mellea_like.core.action import as_action
from mellea_like.core.result import SamplingResult, StopReason
from mellea_like.core.shown import add_note
from mellea_like.errors import LimitExceeded, MelleaError, SamplingFailed
from mellea_like.limits.backoff_gate import PATIENT
from mellea_like.runtime.native import cancel_requested, split_cancellation

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mellea_like.batch.item import ItemResult
    from mellea_like.core.action import Action
    from mellea_like.core.options import Options
    from mellea_like.core.requirement import Requirement
    from mellea_like.core.slice import Slice
    from mellea_like.limits.budget import Budget
    from mellea_like.sampling.base import BaseSamplingStrategy

__all__ = ["Job", "Work", "budget_spent", "first_failure", "record_of"]


class Job(NamedTuple):
    """An item to sample.

    Attributes:
        id: its position in the source, from 0.
        item: the item, as the source gave it.
        action: what to ask for it; None where there is none.
        error: why there is none.
        digest: what tells the item from others, where there is a journal.
        attempt: which attempt this is, from 1.
    """

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

    def identity(self, settings: Mapping[str, Any] | None) -> dict[str, Any]:
        """Say what tells this run from others.

        Args:
            settings: what the user says besides.

        Returns:
            What `identity_of` says.
        """
        strategy, requirements, action, format_, options, _ = self
        return identity_of(strategy, requirements, action, format_, options, settings)

    def job(self, position: int, item: Any) -> Job:
        """Make the job of an item.

        Args:
            position: the item's.
            item: the item.

        Returns:
            The job, with the error if the item has no action.
        """
        try:
            made = item if self.action is None else self.action(item)
            return Job(position, item, as_action(made))
        except Exception as exc:  # noqa: BLE001 (it is what came of the item)
            return Job(position, item, None, exc)

    async def sample(
        self, job: Job, on_slice: Callable[[Slice], None] | None
    ) -> tuple[SamplingResult[Any] | None, Exception | None]:
        """Sample an item.

        Args:
            job: the item.
            on_slice: is given each slice as it ends, or None.

        Returns:
            The record of the call, where there is one, and what it raised, or None.

        Raises:
            BaseException: the run was cancelled, or interrupted.
        """
        if job.action is None:
            return None, job.error
        PATIENT.set(True)  # An outage shall not fail all items at once.
        try:
            result = await self.strategy.sample(
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
                return record_of(rest), rest
            if rest is not None:
                raise
            msg = f"item {job.id} was cancelled, though nobody asked for that"
            stray = MelleaError(msg)
            stray.__cause__ = exc
            return None, stray
        return result, None


def record_of(error: Exception) -> SamplingResult[Any] | None:
    """Return the record that an error carries.

    Args:
        error: what a call raised.

    Returns:
        The record of that call, or None.
    """
    result: Any = getattr(error, "result", None)
    return result if isinstance(result, SamplingResult) else None  # pyright: ignore[reportUnknownVariableType]


def budget_spent(
    result: SamplingResult[Any] | None, error: Exception | None
) -> LimitExceeded | None:
    """Tell whether a call was stopped since a budget is spent, which the items share.

    Args:
        result: the call's record, or None.
        error: what it raised, or None.

    Returns:
        The error that says which budget; None where none is spent.
    """
    if isinstance(error, LimitExceeded):
        return LimitExceeded(str(error), error.result)
    if error is None and result is not None and result.stop_reason is StopReason.BUDGET:
        return LimitExceeded(result.stop_detail, result)
    return None


def first_failure(outcome: ItemResult[Any]) -> Exception:
    """Return what the first item that failed ends the batch with.

    Args:
        outcome: what came of the item.

    Returns:
        What the item's call raised, or would raise if it were unwrapped.
    """
    error = outcome.error
    if error is None:
        try:
            outcome.unwrap()
        except SamplingFailed as exc:
            error = exc
    assert error is not None  # noqa: S101 (it failed)
    add_note(error, f"this is item {outcome.id} of the batch, which fail_fast=True ended")
    return error
