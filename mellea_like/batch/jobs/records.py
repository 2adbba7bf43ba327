"""The records in the file of a run's jobs: requests, answers, jobs and their stages."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mellea_like.backends import JobOutcome


class JobStage(StrEnum):
    """The stage of a job, as far as the run knows."""

    NOTED = "noted"
    """The job's requests are being uploaded."""
    CREATING = "creating"
    """The request to create the job was sent, or is about to be sent."""
    AT_WORK = "at work"
    COLLECTED = "collected"
    """The job has ended, and the outcomes of its requests are in the file."""
    VOID = "void"
    """The job was never created, was refused, or can no longer be looked up."""


UNDER_WAY = (JobStage.NOTED, JobStage.CREATING, JobStage.AT_WORK)


class Ask(NamedTuple):
    """A request that has no answer yet, and the item that made it."""

    item: int
    key: str
    api: str
    purpose: str
    body: str
    input_tokens: int
    max_tokens: int | None


class Answer(NamedTuple):
    """The outcome of a request, and the number of the run's session in which it arrived."""

    outcome: JobOutcome
    sitting: int
    kept: dict[str, Any] | None = None
    """An ordinary backend's reply and its costs as plain data; None if a job answered."""


class Waiting(NamedTuple):
    """A request that waits for a job, with its size and the numbers that its cost depends on."""

    item: int
    id: int
    bytes: int
    input_tokens: int
    max_tokens: int | None


class StoredJob(NamedTuple):
    """A job of a provider's batch API, as recorded in the file of the run's jobs."""

    id: int
    key: str
    api: str
    stage: JobStage
    noted: float
    before: Sequence[str]
    requests: int
    tokens: int
    provider_id: str | None
    state: dict[str, Any]
    cancelled: bool
