"""`BatchJobs`: a backend whose requests are answered by jobs of a provider's batch API."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import anyio
from anyio.lowlevel import checkpoint

from mellea_like.batch.jobs.records import Ask
from mellea_like.batch.journal.records import to_json
from mellea_like.core.argument_checks import real_number, whole_number
from mellea_like.core.backend import (
    BackendWrapper,
    Options,
    checked_reply,
    innermost,
    is_backend,
)
from mellea_like.core.generation import Meter, Usage
from mellea_like.core.kept_replies import (
    described_backend,
    described_request,
    read_reply,
    written_reply,
)
from mellea_like.core.prices import IN_A_JOB
from mellea_like.core.serialization import usage_from_dict, usage_to_dict
from mellea_like.core.slice import Outcome
from mellea_like.core.token_estimate import estimate_input_tokens
from mellea_like.errors import BackendError, InvalidRequest
from mellea_like.limits import Budgets, within_budgets

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mellea_like.backends import BatchAPI
    from mellea_like.batch.item import Job
    from mellea_like.batch.jobs.records import Answer
    from mellea_like.batch.jobs.rounds import JobRounds
    from mellea_like.core.backend import Backend, Request
    from mellea_like.core.generation import Generation
    from mellea_like.core.slice import Slice
    from mellea_like.limits import Budget

__all__ = ["PARKING", "BatchJobs", "Parking"]

QUIET = 20
"""How many passes of the event loop to wait before setting a call aside. Meanwhile, the call's
other tasks can make their own requests."""

DAY = 24 * 3600.0


class BatchJobs:
    """A model behind a provider's batch API: half the price, and an answer within a day.

    It answers the requests of ``sample_many(..., order="breadth", journal=...)``, round after
    round. The requests of a round are collected and submitted as jobs. Once a job has ended, its
    replies are checked. The run may be stopped or killed at any time. A resumed run finds its jobs
    again, and submits nothing twice.

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

    by_jobs = True
    """`sample_many` looks for this attribute, so that other runs needn't import this module."""

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
        for name, number in (
            ("requests_per_job", requests_per_job),
            ("bytes_per_job", bytes_per_job),
            ("jobs_at_once", jobs_at_once),
            ("enqueued_tokens", enqueued_tokens),
            ("tries", tries),
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
        return () if parking is None or not parking.budgets else (Budgets(*parking.budgets),)

    async def generate(self, request: Request) -> Generation:
        """Return the reply to a request if its job has ended; else let the request wait for a job.

        Raises:
            InvalidRequest: the backend is used outside of ``sample_many(..., order="breadth")``,
                or the provider's batch format can't express the request.
        """
        parking = PARKING.get()
        if parking is None:
            msg = (
                "BatchJobs only answers requests of sample_many(..., order='breadth',"
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


class Parking:
    """Answers the requests of one item's call, and sets the call aside if they wait for jobs.

    ``charged`` are the iterations whose draws are repeated, and whose cost an earlier session of
    the run has recorded.
    """

    def __init__(
        self,
        rounds: JobRounds,
        job: Job,
        answers: Mapping[str, Answer],
        *,
        budgets: Sequence[Budget],
        charged: frozenset[int],
        listener: Callable[[Slice], None] | None,
    ) -> None:
        self.scope = anyio.CancelScope()
        self.slices: list[Slice] = list(job.earlier)
        self.budgets = budgets
        self._rounds = rounds
        self._item = job.id
        self._answers = answers
        self._charged = charged
        self._listener = listener
        self._asked: Counter[str] = Counter()
        self._parked = self._busy = 0
        self._cancelled: list[Slice] = []
        self._idle = anyio.Event()

    def hear(self, slice_: Slice) -> None:
        """Record a draw of the item; hold back a cancelled one until `ended` is called."""
        if slice_.outcome is Outcome.CANCELLED:
            self._cancelled.append(slice_)
        else:
            self._record(slice_)

    def _record(self, slice_: Slice) -> None:
        self.slices.append(slice_)
        if self._listener is not None:
            self._listener(slice_)

    def ended(self) -> None:
        """Record the cancelled draws, once the call has ended on its own."""
        # If it is set aside or the run is stopped, they continue later, and their cost counts then.
        for slice_ in self._cancelled:
            self._record(slice_)

    async def generate(self, backend: BatchJobs, request: Request) -> Generation:
        """Return the answer to a request, or set the call aside."""
        if request.options.model not in (None, backend.api.model, backend.model):
            msg = (
                f"{backend!r} can't ask another model than its own: create another BatchJobs for"
                f" {request.options.model!r}"
            )
            raise InvalidRequest(msg)
        request.meter.sent_nothing()
        body = backend.api.body(request)
        key = self._key(request, backend.place, body)
        answer = self._answers.get(key)
        if answer is not None:
            charged = self._is_charged(answer)
            if answer.kept is not None:
                return _read_kept(request, answer.kept, charged=charged)
            return _read(backend, request, answer, charged=charged)
        if backend.direct is not None and backend.place in self._rounds.direct:
            direct = within_budgets(backend.direct, self.budgets)
            return await self._ask_now(direct, request, key, backend.place)
        asked = request.options.over(backend.defaults)
        tokens = estimate_input_tokens(request)
        purpose = request.meta.purpose
        await self._rounds.ask(
            backend,
            Ask(self._item, key, backend.place, purpose, to_json(body), tokens, asked.max_tokens),
        )
        await self._park()
        raise AssertionError  # `_park` never returns: it is cancelled.

    def around(self, inner: Backend, backend: Backend) -> Backend:
        """Wrap an ordinary backend so that its replies are recorded; return a `BatchJobs` as is."""
        if isinstance(innermost(backend), BatchJobs):
            return inner
        return _Kept(inner, self, described_backend(backend))

    async def answer(self, inner: Backend, request: Request, place: str) -> Generation:
        """Return an ordinary backend's recorded reply; if there is none, ask the backend."""
        defaults = getattr(inner, "defaults", Options())
        key = self._key(request, place, described_request(request, defaults))
        answer = self._answers.get(key)
        if answer is not None and answer.kept is not None:
            return _read_kept(request, answer.kept, charged=self._is_charged(answer))
        return await self._ask_now(inner, request, key, place)

    async def _ask_now(
        self, backend: Backend, request: Request, key: str, place: str
    ) -> Generation:
        """Ask an ordinary backend, and record its reply in case the draw is repeated."""
        if not self._busy:
            self._idle = anyio.Event()
        self._busy += 1
        try:
            reply = await _asked(backend, request, meter := request.meter.attempt())
            written = written_reply(reply)
            if written is not None:  # JSON may not be able to express its parsed value.
                kept = [[model, usage_to_dict(its)] for model, its in meter.usage_by_model]
                told = {"reply": written, "costs": kept}
                with anyio.CancelScope(shield=True):  # It has been paid for.
                    await self._rounds.keep(self._item, key, place, request.meta.purpose, told)
            return reply
        finally:
            self._busy -= 1
            if not self._busy:
                self._idle.set()

    def _key(self, request: Request, place: str, asked: Mapping[str, Any]) -> str:
        """Return a request's key, which is the same whenever the call is repeated."""
        plain = json.dumps([place, asked], sort_keys=True, default=repr)
        what = hashlib.blake2b(plain.encode(), digest_size=12).hexdigest()
        key = f"{len(self.slices)}/{request.meta.purpose}/{what}"
        self._asked[key] += 1
        return f"{key}/{self._asked[key]}"

    def _is_charged(self, answer: Answer) -> bool:
        """Return whether an answer's cost is already in the records of an earlier session."""
        return answer.sitting != self._rounds.sitting and len(self.slices) + 1 in self._charged

    async def _park(self) -> None:
        """Wait until no other task of the call makes requests; then cancel the call."""
        self._parked += 1
        mine = self._parked
        quiet = 0
        while mine == self._parked and quiet < QUIET:
            quiet += 1
            await checkpoint()
            if self._busy:  # Its reply may lead to further questions.
                await self._idle.wait()
                quiet = 0
        if mine == self._parked:
            self.scope.cancel("the requests wait for a job")
        await anyio.sleep_forever()


class _Kept(BackendWrapper):
    """An ordinary backend whose replies are recorded, in case a draw is repeated after a job."""

    def __init__(self, inner: Backend, parking: Parking, place: str) -> None:
        super().__init__(inner)
        self._parking = parking
        self._place = place

    async def generate(self, request: Request) -> Generation:
        """Return the recorded reply to a request; if there is none, ask the wrapped backend."""
        return await self._parking.answer(self.inner, request, self._place)


async def _asked(backend: Backend, request: Request, meter: Meter) -> Generation:
    reply = None
    try:
        answered = await backend.generate(replace(request, meter=meter))
        reply = checked_reply(backend, answered)
        return reply
    finally:
        meter.finish(reply)


def _read_kept(request: Request, kept: dict[str, Any], *, charged: bool) -> Generation:
    costs = [(model, usage_from_dict(usage)) for model, usage in kept["costs"]]
    request.meter.sent_nothing()
    if charged:
        return read_reply(kept["reply"], Usage())
    for model, usage in costs:
        request.meter.assume(usage, model)
    return read_reply(kept["reply"], sum((usage for _, usage in costs), Usage()))


def _read(backend: BatchJobs, request: Request, answer: Answer, *, charged: bool) -> Generation:
    # What was charged already is counted nowhere, not even as a request without tokens.
    meter = (Meter() if charged else request.meter).start()
    try:
        reply = backend.api.reply(request, answer.outcome, meter)
    except BackendError:
        if not meter.settled:
            meter.settle(input_tokens=0, output_tokens=0)
        raise
    name = f"{reply.model or backend.api.model}{IN_A_JOB}"
    return replace(reply, model=name, usage=Usage() if charged else meter.usage)


PARKING: ContextVar[Parking | None] = ContextVar("mellea_like_parking", default=None)
"""The `Parking` of the call in the current task; None if the run doesn't use `BatchJobs`."""
