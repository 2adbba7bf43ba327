"""Providers' batch APIs: a job of many requests that is answered within a day, at half the price.

A `BatchAPI` writes requests for one provider, reads its answers, and manages its jobs. It keeps no
state: whoever uses it, such as `BatchJobs`, remembers which jobs there are.
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
        requests: the most requests in a job.
        bytes: the most bytes of a job's requests, as they are written.
    """

    requests: int
    bytes: int


class JobError(NamedTuple):
    """Why a job failed as a whole, or one of its lines was refused.

    Attributes:
        code: the provider's code, such as ``"token_limit_exceeded"``; empty if it gave none.
        message: the provider's sentence.
        line: the line of the input that it is about, from 1; None for the whole job.
    """

    code: str
    message: str
    line: int | None = None


class JobState(NamedTuple):
    """The state of a job, as its provider tells it.

    Attributes:
        id: the provider's id.
        status: the provider's word for its state, for people.
        ended: whether nothing about it will change any more.
        total: the number of requests in it, or 0 before that is known.
        succeeded: how many were answered so far.
        failed: how many were refused, or failed, so far.
        created: when it was created, in seconds since the epoch.
        expires: when it will end by itself, in the same way; None if it doesn't, or nobody knows.
        full: whether it was refused because too many tokens or requests are queued: nothing is
            wrong with it, and it can be submitted again when other jobs have ended.
        errors: why it failed as a whole.
        outputs: where its results are, for `BatchAPI.results`; plain data.
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
    """A job that is to be created, as noted before: what is needed to find it again.

    Attributes:
        key: the job's own key, unique among all jobs of all runs; letters, digits and hyphens, at
            most 40.
        prefix: the beginning of the custom id of each of its requests, which nobody else's has.
        count: the number of its requests.
        before: the ids of jobs that existed before, from `BatchAPI.known`.
    """

    key: str
    prefix: str
    count: int  # type: ignore[assignment]  # pyright: ignore[reportIncompatibleMethodOverride]
    before: Sequence[str] = ()


class JobOutcome(NamedTuple):
    """The outcome of one request of a job; plain data, which a file can keep.

    Attributes:
        reply: the provider's reply as it sent it; None if there is none.
        error: the provider's sentence about what went wrong; empty if nothing did.
        status: the HTTP status of the error; None if there is none.
        retryable: whether the same request may succeed in another job: a server's fault, a rate.
        unrun: why nobody worked on it, which costs nothing: ``"expired"`` or ``"cancelled"``.
    """

    reply: dict[str, Any] | None = None
    error: str = ""
    status: int | None = None
    retryable: bool = False
    unrun: Literal["expired", "cancelled", ""] = ""


class JobResult(NamedTuple):
    """The outcome of the request with a custom id."""

    custom_id: str
    outcome: JobOutcome


class BatchAPI(Protocol):
    """One model behind one provider's batch API.

    Attributes:
        name: the provider's name, as in ``--batch-api``.
        model: the model's name.
        where: the server's URL, without credentials. With ``name`` and ``model`` it says whose a
            stored job is.
        limits: how large a job may be.
        defaults: the options that fill in what a request's options leave open.
        can_judge: whether its verdicts on requirements are wanted.
    """

    name: str
    model: str
    limits: JobLimits
    defaults: Options
    can_judge: bool

    @property
    def where(self) -> str:
        """See above."""
        ...

    # Requests and replies: pure

    def body(self, request: Request) -> dict[str, Any]:
        """Write a request as this provider's jobs have it.

        Args:
            request: the request; its options are completed by ``defaults``.

        Returns:
            The body, as plain data.

        Raises:
            InvalidRequest: the provider's batch format has no place for something that is asked
                for, or would refuse it. Nothing was sent.
        """
        ...

    def line(self, custom_id: str, body: Mapping[str, Any]) -> str:
        """Write one request of a job: a line of JSON, without the newline.

        Args:
            custom_id: its id in the job: letters, digits, ``_`` and ``-``, at most 64.
            body: a body from `body`.

        Returns:
            The line.
        """
        ...

    def reply(self, request: Request, outcome: JobOutcome, meter: RequestMeter) -> Generation:
        """Read the reply to a request.

        Args:
            request: the request, with the same ``format`` and tools as the one that was sent.
            outcome: its outcome.
            meter: is settled at what it cost.

        Returns:
            The reply.

        Raises:
            BackendError: there is none, or it can't be read.
        """
        ...

    def usage(self, outcome: JobOutcome) -> Usage:
        """Return what a request cost: itself and its tokens; nothing if nobody worked on it."""
        ...

    # Jobs

    async def known(self) -> Sequence[str]:
        """Return the ids of the newest jobs, to be noted before another one is created.

        They tell `find` where it may stop, without trusting anybody's clock.

        Raises:
            BackendError: the provider can't be asked.
        """
        ...

    async def upload(self, intention: Intention, lines: Path) -> str:
        """Send the requests of a job, which costs nothing yet, and may be done again.

        Args:
            intention: the job.
            lines: a file of what `line` wrote, a line each.

        Returns:
            The argument of `create`: the id of the provider's file, or the path if requests are
            sent when the job is created.

        Raises:
            BackendError: they were refused, or could not be sent.
        """
        ...

    async def create(self, intention: Intention, uploaded: str) -> JobState | None:
        """Submit a job. The request that creates it is sent once and never retried.

        Args:
            intention: the job, which has been noted.
            uploaded: the answer of `upload`, for this one time: a file whose job is refused is
                deleted.

        Returns:
            The job; None if the answer was lost, so that nobody knows whether there is a job.

        Raises:
            BackendError: there is no job: it was refused, or the request was never sent.
        """
        ...

    async def find(self, intention: Intention) -> JobState | Literal["perhaps"] | None:
        """Look for a job whose creation was noted, and of which nothing is known.

        Args:
            intention: the job.

        Returns:
            The job; None if the provider lists none, which may be some seconds late;
            ``"perhaps"`` if a job that is still at work may be it:
            ask again later. A job of somebody else is never returned.

        Raises:
            BackendError: the provider can't be asked.
        """
        ...

    async def look(self, job: str) -> JobState:
        """Return the present state of a job, by its id.

        Raises:
            BackendError: the provider can't be asked.
            InvalidRequest: it knows no such job.
        """
        ...

    def results(self, state: JobState) -> AbstractAsyncContextManager[AsyncIterator[JobResult]]:
        """Go through the results of a job that has ended, in any order, each request at most once.

        Nobody worked on a request that has no result: not every provider lists what expired.

        Args:
            state: the job.

        Returns:
            A context manager around the iteration. Nothing is kept in memory but a line. If the
            download is cut, the iteration raises after what has arrived, and another one begins
            again.

        Raises:
            BackendError: the provider can't be asked, or a download was cut or can't be read.
            InvalidRequest: the results are gone: the provider has deleted them.
        """
        ...

    async def cancel(self, job: str) -> JobState:
        """Ask for a job to be cancelled, and return its state; that takes time.

        Raises:
            BackendError: the provider can't be asked.
        """
        ...

    async def aclose(self) -> None:
        """Close the running event loop's connections."""
        ...
