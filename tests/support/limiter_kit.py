"""Helpers for tests of shared limiters: requests, ways to end, a slow backend."""

from __future__ import annotations

from contextlib import asynccontextmanager

import anyio

from mellea_like.core.backend import Options, Request, RequestMeta
from mellea_like.core.conversation import Message
from mellea_like.core.generation import Generation, Usage
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


async def hold(limiter, seconds):
    """Send one request through a limiter and keep it in flight."""
    await LimitedBackend(Slow(seconds), limiter).generate(ask())
