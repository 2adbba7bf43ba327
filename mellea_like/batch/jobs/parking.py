"""Answers of one item's requests: from jobs that have ended, or from an ordinary backend."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import anyio
from anyio.lowlevel import checkpoint

from mellea_like.batch.jobs.backend import BatchJobs
from mellea_like.batch.jobs.records import Ask
from mellea_like.batch.journal.records import to_json
from mellea_like.core.backend import BackendWrapper, Options, checked_reply, innermost
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

    from mellea_like.batch.item import Job
    from mellea_like.batch.jobs.records import Answer
    from mellea_like.batch.jobs.rounds import JobRounds
    from mellea_like.core.backend import Backend, Request
    from mellea_like.core.generation import Generation
    from mellea_like.core.slice import Slice
    from mellea_like.limits import Budget

QUIET = 20
"""How many passes of the event loop to wait before setting a call aside. Meanwhile, the call's
other tasks can make their own requests."""


class Parking:
    """Answers the requests of one item's call, and sets the call aside if they wait for jobs."""

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
        self.limits = (Budgets(*budgets),) if budgets else ()
        self._budgets = budgets
        self._rounds = rounds
        self._item = job.id
        self._answers = answers
        self._charged = charged  # Iterations to repeat, whose cost is already recorded.
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
            direct = within_budgets(backend.direct, self._budgets)
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
                    store, purpose = self._rounds.store, request.meta.purpose
                    await self._rounds.do(store.keep, self._item, key, place, purpose, told)
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
        return (
            answer.sitting != self._rounds.store.sitting and len(self.slices) + 1 in self._charged
        )

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
