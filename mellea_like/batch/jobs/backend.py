"""`BatchJobs`: a backend whose requests are answered by jobs of a provider's batch API."""

from __future__ import annotations

import math
from contextvars import ContextVar
from typing import TYPE_CHECKING

from mellea_like.core.argument_checks import real_number, whole_number
from mellea_like.core.backend import Options, is_backend
from mellea_like.core.prices import IN_A_JOB
from mellea_like.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mellea_like.backends import BatchAPI
    from mellea_like.batch.jobs.parking import Parking
    from mellea_like.core.backend import Backend, Request
    from mellea_like.core.generation import Generation
    from mellea_like.limits import Budgets

DAY = 24 * 3600.0

OWN = ("api", "direct", "can_judge", "defaults")
"""The attributes that may differ between two `BatchJobs` of the same model."""


class BatchJobs:
    """A model behind a provider's batch API: half the price, and an answer within a day.

    It answers the requests of ``sample_many(..., breadth_first=True, journal=...)``, round after
    round. The requests of a round are collected and submitted as jobs. Once a job has ended, its
    replies are checked. The run may be stopped or killed at any time. A resumed run finds its jobs
    again, and submits nothing twice. All requests to the same model at the same server share jobs,
    so several `BatchJobs` for it, such as one for the draws and one for a judge, must have the same
    settings.

    Args:
        api: the model and its provider, such as `OpenAIBatches`.
        direct: the same model through the ordinary API, for rounds that are too small for a job
            (``direct_below``) and for trying out the first item (``canary``).
        direct_below: if fewer requests than this are waiting and no job is under way, ``direct``
            answers them. 0 for never.
        canary: whether ``direct`` answers the requests of the first item before anything is
            submitted. If that item ends with an error, so does the run.
        requests_per_job: the most requests in a job; None for the provider's limit.
        bytes_per_job: the most bytes of a job's requests; None for the provider's limit.
        jobs_at_once: the most jobs at a time; further ones are submitted as others end.
        enqueued_tokens: the most tokens of prompts in all jobs at a time, as providers limit them
            for each model; None for no limit.
        poll: the seconds between two polls of a job's state.
        deadline: the seconds after which a job that hasn't ended is cancelled. The requests that
            it hasn't answered go into another job. If the provider itself limits how long a job
            takes, the deadline must be longer. None for never.
        tries: the most jobs that a request goes into before it is given up.
        settled: the seconds within which the provider lists every job that it has created. If
            the response to the creation of a job is lost, and the job isn't listed after this
            time, it counts as never created.

    Attributes:
        model: the model's name in records and prices, with ``:batch`` at its end. Without an
            entry for this name in a price table, the price is half of the model's price.
        provider: the provider's name, for telemetry.
        can_judge: whether the model may judge requirements.
        defaults: the options that apply if a request doesn't set them.

    Raises:
        TypeError: ``direct`` isn't a backend, or an argument isn't a number.
        ValueError: a number is out of range, or ``direct`` is missing although ``direct_below`` or
            ``canary`` needs it.
    """

    def __init__(
        self,
        api: BatchAPI,
        *,
        direct: Backend | None = None,
        direct_below: int = 0,
        canary: bool = False,
        requests_per_job: int | None = None,
        bytes_per_job: int | None = None,
        jobs_at_once: int = 8,
        enqueued_tokens: int | None = None,
        poll: float = 30.0,
        deadline: float | None = 2 * DAY,
        tries: int = 5,
        settled: float = 30.0,
    ) -> None:
        if direct is not None and not is_backend(direct):
            msg = f"direct must be a backend, such as OpenAIBackend(model), not {direct!r}"
            raise TypeError(msg)
        if direct is None and (direct_below or canary):
            which = "canary" if canary else "direct_below"
            msg = f"{which} needs direct=..., a backend that answers at once"
            raise ValueError(msg)
        whole_number("direct_below", direct_below, least=0)
        whole_number("jobs_at_once", jobs_at_once)
        whole_number("tries", tries)
        for name, number in (
            ("requests_per_job", requests_per_job),
            ("bytes_per_job", bytes_per_job),
            ("enqueued_tokens", enqueued_tokens),
        ):
            if number is not None:
                whole_number(name, number)
        real_number("poll", poll, over=0, unit="seconds")
        real_number("settled", settled, least=0, unit="seconds")
        if deadline is not None:
            real_number("deadline", deadline, over=0, unit="seconds")
        self.api = api
        self.direct = direct
        self.direct_below = direct_below
        self.canary = canary
        self.requests_per_job = min(requests_per_job or math.inf, api.limits.requests)
        self.bytes_per_job = min(bytes_per_job or math.inf, api.limits.bytes)
        self.jobs_at_once = jobs_at_once
        self.enqueued_tokens = enqueued_tokens
        self.poll = poll
        self.deadline = deadline
        self.tries = tries
        self.settled = settled
        self.model = f"{api.model}{IN_A_JOB}"
        self.provider = api.name
        self.can_judge = api.can_judge
        self.defaults: Options = api.defaults

    @property
    def place(self) -> str:
        """The provider, the model and the server, as one text that identifies where jobs run."""
        return f"{self.api.name} {self.api.model} {self.api.where}"

    @property
    def limits(self) -> Sequence[Budgets]:
        """The budgets of the current run; empty if there are none.

        The cost of each job is reserved in these budgets before the job is submitted.
        """
        parking = PARKING.get()
        return () if parking is None else parking.limits

    async def generate(self, request: Request) -> Generation:
        """Return the reply to a request if its job has ended; else let the request wait for a job.

        Raises:
            InvalidRequest: the backend is used outside of ``sample_many(..., breadth_first=True)``,
                or the provider's batch format can't express the request.
        """
        parking = PARKING.get()
        if parking is None:
            msg = (
                "BatchJobs only answers requests of sample_many(..., breadth_first=True,"
                " journal=...): for a single call, use the model's ordinary backend"
            )
            raise InvalidRequest(msg)
        return await parking.generate(self, request)

    async def aclose(self) -> None:
        """Close the connections that belong to the running event loop."""
        await self.api.aclose()
        close = getattr(self.direct, "aclose", None)
        if close is not None:
            await close()

    def __repr__(self) -> str:
        return f"<BatchJobs {self.place}>"


def check_alike(one: BatchJobs, other: BatchJobs) -> None:
    """Make sure that two backends whose requests share jobs have the same settings."""
    theirs = vars(other)
    differ = [
        name for name, mine in vars(one).items() if name not in OWN and mine != theirs.get(name)
    ]
    if differ and one.place == other.place:
        msg = (
            f"two BatchJobs of {one.api.model!r} at {one.api.where} have different settings"
            f" ({', '.join(differ)}), but their requests share jobs: pass the same settings to both"
        )
        raise ValueError(msg)


PARKING: ContextVar[Parking | None] = ContextVar("mellea_like_parking", default=None)
"""The `Parking` of the call in the current task; None if the run doesn't use `BatchJobs`."""
