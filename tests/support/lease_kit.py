"""Workers of a cluster on one event loop, and an office that can die and be made again."""

from __future__ import annotations

import anyio

from mellea_like.batch.ray.leases import LeaseBook
from mellea_like.batch.ray.lessee import Lessee, OfficeGone
from mellea_like.core.backend import Request
from mellea_like.core.generation import Generation, Usage
from mellea_like.core.message import Message
from mellea_like.core.options import Options
from mellea_like.errors import LimitExceeded
from mellea_like.limits.base import LimitedBackend


class FakeOffice:
    """The office without Ray; ``delay`` is the way there and back."""

    def __init__(self, limit, workers, delay=0.01):
        self.limit = limit
        self.workers = workers
        self.delay = delay
        self.book = None
        self.alive = True
        self.asked = 0

    def die(self):
        self.alive = False
        self.book = None

    def make(self):
        self.alive = True
        self.book = self._new(first=False)

    def _new(self, *, first):
        lease = self.limit.lease_seconds
        now = anyio.current_time()
        return LeaseBook(self.limit.total, lease, self.workers, now, first=first)

    async def exchange(self, ask):
        self.asked += 1
        await anyio.sleep(self.delay)
        if not self.alive:
            raise OfficeGone("dead")
        if self.book is None:
            self.book = self._new(first=True)
        return self.book.answer(anyio.current_time(), ask)


class Server:
    """Answers at once, or after a while; remembers when requests came."""

    model = "some-model"

    def __init__(self, seconds=0.0, usage=Usage(1, 10, 10)):
        self.seconds = seconds
        self.usage = usage
        self.came = []

    async def generate(self, request):
        self.came.append(anyio.current_time())
        await anyio.sleep(self.seconds)
        return Generation("yes", usage=self.usage)

    def between(self, start, end):
        return sum(start <= time < end for time in self.came)

    def most_in(self, seconds):
        return max((self.between(time, time + seconds) for time in self.came), default=0)


class Worker:
    """A process that sends requests, ``calls`` at a time, until there is no more budget."""

    def __init__(self, office, name, server, *, calls=4, holder=None, max_tokens=10):
        self.lessee = Lessee(
            office.limit,
            office,
            worker=name,
            holder=holder or f"{name}-1",
            workers=office.workers,
        )
        self.backend = LimitedBackend(server, self.lessee)
        self.calls = calls
        self.options = Options(max_tokens=max_tokens)
        self.sent = 0
        self.denied = None

    async def run(self, most=10**9, pause=0.0):
        """Send requests until there are so many, or no budget is left."""
        left = most

        async def caller():
            nonlocal left
            while left > 0 and self.denied is None:
                left -= 1
                request = Request((Message("user", "hi"),), self.options)
                try:
                    await self.backend.generate(request)
                except LimitExceeded as exc:
                    self.denied = exc
                    return
                self.sent += 1
                if pause:
                    await anyio.sleep(pause)

        async with self.lessee.in_use(), anyio.create_task_group() as tasks:
            for _ in range(self.calls):
                tasks.start_soon(caller)
