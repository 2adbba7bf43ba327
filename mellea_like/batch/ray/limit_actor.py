"""The actor that keeps a cluster's limit: it holds the limits themselves, and answers all workers.

It does so once for each request. Two cores answered 700 requests a second, 40,000 a minute, which
is more than the quotas are that are kept in this way.
"""

from __future__ import annotations

import importlib
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio

from mellea_like.batch.ray.cluster import ray_module
from mellea_like.batch.ray.limit import limits_of
from mellea_like.core.backend import Request
from mellea_like.core.estimate import BYTES_PER_TOKEN, TOKENS_PER_MESSAGE
from mellea_like.core.generation import Usage
from mellea_like.core.message import Message
from mellea_like.core.options import Options
from mellea_like.errors import LimitExceeded
from mellea_like.limits.base import RequestEnd

if TYPE_CHECKING:
    from collections.abc import Collection

    from mellea_like.batch.ray.limit import ClusterLimit
    from mellea_like.core.backend import RequestMeta
    from mellea_like.limits.base import Permit

__all__ = ["FORGOTTEN", "Ask", "LimitKeeper", "open_limit_actor"]

SILENCE = 60.0
"""Seconds after which a worker that says nothing is taken for dead."""

MOST_WAITING = 100_000
"""Requests that may wait in the actor at a time; Ray would let 1,000, and then hear nobody."""

FORGOTTEN = "the worker was taken for dead while the request waited"
"""The answer to a request whose worker lives after all: it is to ask again."""

NOT_SENT = RequestEnd(Usage(), None, None)


class Ask(NamedTuple):
    """A request that wants to be sent, by its size: the prompt itself needn't be sent around."""

    number: int  # Grows with each of a worker's requests.
    input_tokens: int
    max_tokens: int | None
    model: str | None
    meta: RequestMeta
    age: float  # Seconds since its call started: the clocks of two machines can't be compared.

    def request(self) -> Request:
        """Return a request of this size."""
        size = BYTES_PER_TOKEN * (self.input_tokens - TOKENS_PER_MESSAGE)
        started = anyio.current_time() - self.age
        return Request(
            (Message("user", " " * size),),
            Options(max_tokens=self.max_tokens, model=self.model),
            meta=replace(self.meta, call_started=started, deadline=None),
        )


class _Asked:
    """A request that waits or is under way."""

    def __init__(self, ask: Ask) -> None:
        self.ask = ask
        self.waiting = anyio.CancelScope()
        self.permits: list[Permit] = []
        self.granted = False

    def end(self, end: RequestEnd) -> None:
        for permit in reversed(self.permits):
            permit.release(end)
        self.permits.clear()
        self.waiting.cancel()


class _Worker:
    def __init__(self) -> None:
        self.heard = 0.0
        self.asked: dict[int, _Asked] = {}


class LimitKeeper:
    """Holds a cluster's limits, and reserves in them what each worker's requests may cost."""

    def __init__(self, limit: ClusterLimit) -> None:
        self._limits = limits_of(limit)
        self._assumed = limit.assume_output_tokens or 0
        self._workers: defaultdict[str, _Worker] = defaultdict(_Worker)

    async def acquire(self, name: str, ask: Ask) -> str | Exception | None:
        """Wait until a worker's request may be sent: None, else why not."""
        worker = self._heard(name)
        asked = worker.asked[ask.number] = _Asked(ask)
        request = ask.request()
        nobody: Any = None  # The request names its model.
        try:
            with asked.waiting:
                for limit in self._limits:
                    asked.permits.append(await limit.acquire(request, nobody))
        except (LimitExceeded, ValueError) as exc:
            worker.asked.pop(ask.number, None)
            asked.end(NOT_SENT)
            return exc.with_traceback(None)
        if asked.waiting.cancel_called:
            asked.end(NOT_SENT)
            return FORGOTTEN
        asked.granted = True
        return None

    async def settle(self, name: str, number: int, end: RequestEnd) -> None:
        """Take note of how a request ended, whether it waited or was under way."""
        asked = self._heard(name).asked.pop(number, None)
        if asked is not None:
            asked.end(end)

    async def alive(self, name: str, latest: int, under_way: Collection[int]) -> None:
        """Take note that a worker lives, and what it has under way."""
        worker = self._heard(name)
        for number in [n for n in worker.asked if n <= latest and n not in under_way]:
            self._count(worker.asked.pop(number))  # The message that it had ended was lost.

    def _heard(self, name: str) -> _Worker:
        now = anyio.current_time()
        for other in [o for o, known in self._workers.items() if now - known.heard > SILENCE]:
            for asked in self._workers.pop(other).asked.values():
                self._count(asked)
        worker = self._workers[name]
        worker.heard = now
        return worker

    def _count(self, asked: _Asked) -> None:
        """Count all that is reserved for a request as spent, unless it hasn't been sent."""
        ask = asked.ask
        output = self._assumed if ask.max_tokens is None else ask.max_tokens
        spent = RequestEnd(Usage(1, ask.input_tokens, output, 1), None, None)
        asked.end(spent if asked.granted else NOT_SENT)


def open_limit_actor(limit: ClusterLimit) -> Any:
    """Make the limit's actor, or find the one that another dataset has made.

    It lives for as long as someone has its handle, on the driver's node: it dies with the driver.
    """
    ray = ray_module()
    strategies: Any = importlib.import_module("ray.util.scheduling_strategies")
    here = ray.get_runtime_context().get_node_id()
    return (
        ray.remote(num_cpus=0, max_restarts=0, max_concurrency=MOST_WAITING)(LimitKeeper)
        .options(
            name=f"mellea-like-limit-{limit.name}",
            get_if_exists=True,
            scheduling_strategy=strategies.NodeAffinitySchedulingStrategy(here, soft=True),
        )
        .remote(limit)
    )
