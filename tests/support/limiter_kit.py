"""What the tests of shared limiters have in common: requests, ways to end, a server with a rate."""

from __future__ import annotations

import math
import random
from contextlib import asynccontextmanager

import anyio

from mellea_like.core.backend import Options, Request, RequestMeta
from mellea_like.core.conversation import Message
from mellea_like.core.generation import Generation, Usage
from mellea_like.errors import RateLimited
from mellea_like.limits.base import LimitedBackend, RequestEnd

GOOD = RequestEnd(Usage(1, 10, 10), Generation("good"), None)


def failed(error: BaseException) -> RequestEnd:
    return RequestEnd(Usage(1, 0, 0, 1), None, error)


def meta(call="", subsample=None, started=None, purpose="generate", deadline=None) -> RequestMeta:
    return RequestMeta(
        call, subsample=subsample, call_started=started, deadline=deadline, purpose=purpose
    )


def ask(*about, text="hi", deadline=None, **options) -> Request:
    """Make a request; ``about`` goes to `meta`."""
    message = Message("user", text)
    return Request((message,), Options(**options), meta=meta(*about, deadline=deadline))


class Slow:
    """Answers after so many seconds; keeps the requests in the order in which they came."""

    def __init__(self, seconds=1.0, error=None):
        self.seconds = seconds
        self.error = error
        self.came = []
        self.in_flight = 0
        self.max_in_flight = 0

    async def generate(self, request):
        self.came.append(request)
        self.in_flight += 1
        self.max_in_flight = max(self.max_in_flight, self.in_flight)
        try:
            await anyio.sleep(self.seconds)
        finally:
            self.in_flight -= 1
        if self.error is not None:
            raise self.error
        return Generation("good", usage=Usage(1, 10, 10))

    @asynccontextmanager
    async def stream(self, request):
        async def pieces():
            reply = await self.generate(request)
            yield "good"
            yield reply

        pieces = pieces()
        try:
            yield pieces
        finally:
            await pieces.aclose()


class RateServer:
    """Admits ``rate`` requests a second from a bucket, and refuses others after 10 ms."""

    def __init__(self, seed, *, rate=50.0, bucket=50.0, pass_rate=0.5):
        self._chance = random.Random(seed)
        self._rate, self._bucket, self._level = rate, bucket, bucket
        self._at = anyio.current_time()
        self._pass_rate = pass_rate
        self.admitted = 0
        self.refused = 0

    async def generate(self, request):
        now = anyio.current_time()
        self._level = min(self._bucket, self._level + (now - self._at) * self._rate)
        self._at = now
        if self._level < 1 - 1e-4:
            self.refused += 1
            wait = math.ceil((1 - self._level) / self._rate)
            await anyio.sleep(0.01)
            raise RateLimited("too many requests", status=429, retry_after=float(wait))
        self._level -= 1
        self.admitted += 1
        good = self._chance.random() < self._pass_rate
        await anyio.sleep(0.2 * math.exp(0.6 * self._chance.gauss(0.0, 1.0)))
        return Generation("good" if good else "bad", usage=Usage(1, 5, 5))


async def sample_burst(backend, *, calls, subsamples):
    """Draw replies for many calls at once, each with so many siblings, until each has a good one.

    A sibling that is refused tries again when it was told to. Returns the seconds that it took.
    """
    began = anyio.current_time()

    async def sibling(call, subsample, scope):
        while True:
            try:
                reply = await backend.generate(ask(f"call {call}", subsample, began))
            except RateLimited as error:
                await anyio.sleep(error.retry_after)
                continue
            if reply.text == "good":
                scope.cancel()
                return

    async def one(call):
        async with anyio.create_task_group() as siblings:
            for subsample in range(subsamples):
                siblings.start_soon(sibling, call, subsample, siblings.cancel_scope)

    async with anyio.create_task_group() as all_calls:
        for call in range(calls):
            all_calls.start_soon(one, call)
    return anyio.current_time() - began


async def hold(limiter, seconds):
    """Send one request through a limiter and keep it in flight."""
    await LimitedBackend(Slow(seconds), limiter).generate(ask())
