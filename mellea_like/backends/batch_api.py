"""Providers' batch APIs: a job of many requests that is answered within a day, at half the price.

A `BatchAPI` writes requests for one provider, reads the provider's answers, and manages jobs. It
keeps no state: its caller, such as `BatchJobs`, remembers which jobs exist.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from mellea_like.core.backend import Options, Request
    from mellea_like.core.generation import Generation, RequestMeter, Usage

__all__ = [
    "BatchAPI",
    "Intention",
    "JobError",
    "JobLimits",
    "JobOutcome",
    "JobResult",
    "JobState",
]


class JobLimits(NamedTuple):
    """How large a job may be.

    Attributes:
        requests: the largest number of requests in a job.
        bytes: the largest size of a job's requests as `BatchAPI.line` writes them, in bytes.
    """

    requests: int
    bytes: int


class JobError(NamedTuple):
    """The reason why a job failed as a whole, or why one line of its input was refused.

    Attributes:
        code: the provider's code, such as ``"token_limit_exceeded"``; empty if it gave none.
        message: the provider's error message.
        line: the number of the refused line of the input, from 1; None if the whole job failed.
    """

    code: str
    message: str
    line: int | None = None


class JobState(NamedTuple):
    """The state of a job, as its provider reports it.

    Attributes:
        id: the provider's id of the job.
        status: the provider's word for the job's state, for people to read.
        ended: whether the job has ended, so that its state won't change any more.
        total: the number of requests in the job, or 0 until this number is known.
        succeeded: how many requests have been answered so far.
        failed: how many requests have been refused or have failed so far.
        created: when the job was created, in seconds since the epoch.
        expires: when the job will expire, in seconds since the epoch; None if it never expires or
            this time is unknown.
        full: whether the job was refused because too many tokens or requests are queued. Such a
            job can be submitted again, unchanged, when other jobs have ended.
        errors: the reasons why the job failed, or why lines of its input were refused.
        outputs: the ids or URLs of the job's results, for `BatchAPI.results`.
    """

    id: str
    status: str
    ended: bool
    total: int = 0
    succeeded: int = 0
    failed: int = 0
    created: float = 0.0
    expires: float | None = None
    full: bool = False
    errors: tuple[JobError, ...] = ()
    outputs: Sequence[str] = ()


class Intention(NamedTuple):
    """A record of a job that is about to be created, with all that is needed to find it again.

    Attributes:
        key: the job's own key, unique among all jobs of all runs: at most 40 letters, digits and
            hyphens.
        prefix: the beginning of the custom ids of the job's requests. No other job uses it.
        count: the number of the job's requests.
        before: the ids of jobs that existed before this one, from `BatchAPI.known`.
    """

    key: str
    prefix: str
    count: int  # type: ignore[assignment]  # pyright: ignore[reportIncompatibleMethodOverride]
    before: Sequence[str] = ()


class JobOutcome(NamedTuple):
    """The outcome of one request of a job, as plain data that can be stored in a file.

    Attributes:
        reply: the reply exactly as the provider sent it; None if there is none.
        error: the provider's error message; empty if nothing went wrong.
        status: the HTTP status of the error; None if there is none.
        retryable: whether the same request may succeed in another job, for example after a server
            error or a rate limit.
        unrun: ``"expired"`` or ``"cancelled"`` if the request was never run, so that it costs
            nothing; empty if it was run.
    """

    reply: dict[str, Any] | None = None
    error: str = ""
    status: int | None = None
    retryable: bool = False
    unrun: Literal["expired", "cancelled", ""] = ""


class JobResult(NamedTuple):
    """The custom id of one request, and the request's outcome."""

    custom_id: str
    outcome: JobOutcome


class BatchAPI(Protocol):
    """One model behind one provider's batch API.

    Attributes:
        name: the provider's name, as in ``--batch-api``.
        model: the model's name.
        where: the server's URL, without credentials. Together with ``name`` and ``model``, it
            identifies the `BatchAPI` that a stored job belongs to.
        limits: how large a job may be.
        defaults: defaults for the options that a request leaves open.
        can_judge: whether the model may judge requirements.
    """

    name: str
    model: str
    limits: JobLimits
    defaults: Options
    can_judge: bool

    @property
    def where(self) -> str:
        """The server's URL, without credentials."""
        ...

    # Requests and replies: pure

    def body(self, request: Request) -> dict[str, Any]:
        """Return the body of a request, in this provider's batch format.

        Args:
            request: the request; its options are completed by ``defaults``.

        Returns:
            The body, as plain data.

        Raises:
            InvalidRequest: the provider's batch format can't express the request, or the provider
                would refuse it. Nothing was sent.
        """
        ...

    def line(self, custom_id: str, body: Mapping[str, Any]) -> str:
        """Return one request of a job as a line of JSON, without the newline.

        Args:
            custom_id: the request's id in the job: at most 64 letters, digits, ``_`` and ``-``.
            body: what `body` returned for the request.

        Returns:
            The line.
        """
        ...

    def reply(self, request: Request, outcome: JobOutcome, meter: RequestMeter) -> Generation:
        """Read the reply to a request.

        Args:
            request: the request, with the same ``format`` and tools as the one that was sent.
            outcome: the request's outcome.
            meter: the meter to settle with the reply's cost.

        Returns:
            The reply.

        Raises:
            BackendError: the outcome has no reply, or the reply can't be read.
        """
        ...

    def usage(self, outcome: JobOutcome) -> Usage:
        """Return a request's cost: one request and its tokens; an empty usage if it never ran."""
        ...

    # Jobs

    async def known(self) -> Sequence[str]:
        """Return the ids of the newest jobs, to be stored as ``before`` in the next `Intention`.

        The ids tell `find` where to stop in the provider's list. So `find` need not compare the
        jobs' times with this computer's clock.

        Raises:
            BackendError: the provider can't be asked.
        """
        ...

    async def upload(self, intention: Intention, lines: Path) -> str:
        """Upload the requests of a job. Uploading costs nothing, and can be repeated.

        Args:
            intention: the job.
            lines: the path of a file with the lines that `line` returned.

        Returns:
            The value for the argument ``uploaded`` of `create`: the id of the provider's file, or
            the path ``lines`` if the provider takes the requests when the job is created.

        Raises:
            BackendError: the requests were refused, or couldn't be sent.
        """
        ...

    async def create(self, intention: Intention, uploaded: str) -> JobState | None:
        """Submit a job. The request that creates it is sent once and never retried.

        Args:
            intention: the job. Store it before this call, so that the job can be found again.
            uploaded: what `upload` returned. It can be used only once: if the job is refused, the
                provider's file is deleted.

        Returns:
            The job's state; None if the answer was lost, so that it is unknown whether there is a
            job.

        Raises:
            BackendError: there is no job, because it was refused or the request was never sent.
        """
        ...

    async def find(self, intention: Intention) -> JobState | Literal["perhaps"] | None:
        """Search the provider's list for a job that may or may not have been created.

        Args:
            intention: the job, as noted before its creation.

        Returns:
            The job's state, if the provider lists the job; ``"perhaps"`` if a running job may be
            the right one, so that you should ask again later; or None if the provider doesn't list
            the job. A new job may appear in the list some seconds late. Somebody else's job is
            never returned.

        Raises:
            BackendError: the provider can't be asked.
        """
        ...

    async def look(self, job: str) -> JobState:
        """Return the present state of a job, by its id.

        Raises:
            BackendError: the provider can't be asked.
            InvalidRequest: the provider knows no such job.
        """
        ...

    def results(self, state: JobState) -> AbstractAsyncContextManager[AsyncIterator[JobResult]]:
        """Iterate over the results of an ended job, in any order and at most one for each request.

        If a request has no result, it was never run: some providers don't list expired requests.

        Args:
            state: the job's state.

        Returns:
            A context manager whose value is the iterator. Only one line at a time is in memory. If
            the download breaks off, the iterator yields what has arrived and then raises; call
            this method again to start over.

        Raises:
            BackendError: the provider can't be asked, or the download broke off or can't be read.
            InvalidRequest: the provider has deleted the results.
        """
        ...

    async def cancel(self, job: str) -> JobState:
        """Ask the provider to cancel a job, and return the job's state.

        Cancelling takes time, so the job may not have ended yet. A job that has just ended is no
        error.

        Raises:
            BackendError: the provider can't be asked.
        """
        ...

    async def aclose(self) -> None:
        """Close the running event loop's connections."""
        ...
