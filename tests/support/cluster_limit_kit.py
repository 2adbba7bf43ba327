"""Workers of a cluster on one event loop, and the limit's actor without Ray, which can die."""

from __future__ import annotations

import anyio

from mellea_like.batch.ray.cluster import KeeperGone
from mellea_like.batch.ray.cluster_limit import LimitKeeper, RemoteLimit
from mellea_like.core.backend import Options, Request
from mellea_like.core.conversation import Message
from mellea_like.core.generation import Generation, Usage
from mellea_like.errors import LimitExceeded
from mellea_like.limits.base import LimitedBackend


class FakeActor:
    """A stand-in for a handle of the limit's actor."""

    def __init__(self, limit, tasks):
        self.keeper = LimitKeeper(limit)
        self.tasks = tasks
        self.loses = False
        self._died = None

    def die(self):
        self._died = "killed"

    async def _to_it(self):
        await anyio.sleep(0.01)
        if self._died:
            raise KeeperGone(self._died)

    async def acquire(self, name, ask):
        await self._to_it()
        answers = []

        async def acquire():  # Goes on when whoever asked has left.
            answers.append(await self.keeper.acquire(name, ask))
            answered.set()

        answered = anyio.Event()
        self.tasks.start_soon(acquire)
        while not answered.is_set():
            with anyio.move_on_after(0.5):
                await answered.wait()
            if self._died:
                raise KeeperGone(self._died)
        return answers[0]

    async def alive(self, name):
        await self._to_it()
        await self.keeper.alive(name)

    def settle(self, name, number, end):
        if not self.loses:
            self.tasks.start_soon(self.keeper.settle, name, number, end)

    def spent(self):
        return self.keeper._limits[0].spent

    def reserved(self):
        return self.keeper._limits[0].statistics().reserved


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

    def __init__(self, actor, server, *, calls=4):
        self.limit = RemoteLimit(actor)
        self.backend = LimitedBackend(server, self.limit)
        self.calls = calls
        self.options = Options(max_tokens=10)
        self.denied = None

    async def send(self):
        await self.backend.generate(Request((Message("user", "hi"),), self.options))

    async def run(self, most=10**9):
        """Send requests until there are so many, or no budget is left."""
        left = most

        async def caller():
            nonlocal left
            while left > 0 and self.denied is None:
                left -= 1
                try:
                    await self.send()
                except LimitExceeded as exc:
                    self.denied = exc

        async with self.limit.in_use(), anyio.create_task_group() as tasks:
            for _ in range(self.calls):
                tasks.start_soon(caller)
