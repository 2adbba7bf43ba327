"""A request that takes unusually long is replaced by another one for the same draw."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import anyio

from mellea_like.core.backend import BackendWrapper, checked_reply
from mellea_like.core.seeds import derive_seed
from mellea_like.kernel.ports import Option
from mellea_like.limits.several_budgets import room_to_restart

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from mellea_like.core.backend import Backend, Request
    from mellea_like.core.generation import Generation
    from mellea_like.kernel.ports import Sent
    from mellea_like.schedules.base import SchedulePlan


class Restarts(Option):
    """Replaces a request that takes longer than the schedule allows.

    ``began`` maps the chain of each running draw to the time when the draw began. This option
    enters the time of each restart.
    """

    def __init__(self, schedule: SchedulePlan, began: MutableMapping[int, float]) -> None:
        self.schedule = schedule
        self.began = began
        self.waiting: set[anyio.CancelScope] = set()

    def stops(self) -> None:
        """Lift the time limit of requests under way, because no draw may start any more."""
        for scope in self.waiting:
            scope.deadline = math.inf

    def request(self, inner: Backend, sent: Sent) -> Backend:
        """Wrap a backend that generates, so that its slow requests are replaced."""
        return inner if sent.purpose != "generate" else _Impatient(inner, self, sent)


class _Impatient(BackendWrapper):
    def __init__(self, inner: Backend, option: Restarts, sent: Sent) -> None:
        super().__init__(inner)
        self._option = option
        self._model = sent.spec.model
        self._seed = sent.spec.options.seed
        self._backend = sent.backend

    async def generate(self, request: Request) -> Generation:
        """Send a request, and replace it if it takes too long."""
        option, call = self._option, self._option.call
        iteration = request.meta.iteration or 0
        meter, seed, restarts = request.meter, self._seed, 0
        while True:
            seconds = option.schedule.patience(restarts, self._model)
            if call.race.stopped:
                seconds = None
            if seconds is not None and not room_to_restart(self.inner, request):
                seconds = None  # Another request would be refused, and this one would be lost.
            began = anyio.current_time()
            scope = anyio.CancelScope(deadline=math.inf if seconds is None else began + seconds)
            request, reply = replace(request, meter=meter.attempt()), None
            option.waiting.add(scope)
            try:
                with scope:
                    reply = checked_reply(self._backend, await self.inner.generate(request))
            except anyio.get_cancelled_exc_class():
                # A backend may raise a cancellation other than its own, which no scope absorbs. The
                # time was up all the same.
                if call.race.asked_to_stop() or not scope.cancel_called:
                    raise
            finally:
                option.waiting.discard(scope)
                request.meter.finish(reply)
            if reply is not None:
                return reply
            restarts += 1
            chain = call.draw_of(request).ask.chain
            option.schedule.restarted(chain, anyio.current_time() - began, self._model)
            option.began[chain] = call.now
            options = request.options
            if seed is not None:
                # The same seed would be the same draw, which takes as long.
                options = options.with_seed(derive_seed(seed, iteration, f"restart {restarts}"))
            request = replace(request, meta=replace(request.meta, retry=restarts), options=options)
