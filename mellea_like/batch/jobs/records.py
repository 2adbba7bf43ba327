"""What the file of a run's jobs holds: requests, answers, jobs and their stages."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mellea_like.backends import JobOutcome

__all__ = ["UNDER_WAY", "Answer", "Ask", "JobStage", "Known", "StoredJob", "Waiting"]


class JobStage(StrEnum):
    """How far a job is, as the run knows it."""

    NOTED = "noted"
    """Its requests are being uploaded."""
    CREATING = "creating"
    """The request that creates it was sent, or is about to be."""
    AT_WORK = "at work"
    COLLECTED = "collected"
    """It has ended, and what came of its requests is in the file."""
    VOID = "void"
    """It was never created, or its results were deleted."""


UNDER_WAY = (JobStage.NOTED, JobStage.CREATING, JobStage.AT_WORK)


class Ask(NamedTuple):
    """A request of an item that no one has answered yet."""

    item: int
    key: str
    api: str
    purpose: str
    body: str
    input_tokens: int
    max_tokens: int | None


class Answer(NamedTuple):
    """The outcome of a request, and the sitting of the run in which it arrived."""

    outcome: JobOutcome
    sitting: int
    kept: dict[str, Any] | None = None
    """The reply of an ordinary backend, which no job has answered."""


class Known(NamedTuple):
    """The answers to an item's requests, by their keys, and the marks of its draws."""

    answers: dict[str, Answer]
    marks: dict[int, Any]


class Waiting(NamedTuple):
    """A request that waits for a job: its size, and what is known of its cost."""

    item: int
    id: int
    bytes: int
    input_tokens: int
    max_tokens: int | None
    purpose: str


class StoredJob(NamedTuple):
    """A job as the file has it."""

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
