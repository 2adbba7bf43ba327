"""A worker's side of the cluster's limit."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import anyio

from mellea_like.batch.ray.cluster import ray_module
from mellea_like.batch.ray.limit_actor import FORGOTTEN, Ask
from mellea_like.batch.task_scope import TaskScope
from mellea_like.core.estimate import estimate_input_tokens
from mellea_like.core.generation import Generation, Usage
from mellea_like.errors import (
    BackendError,
    BackendTimeout,
    LimitExceeded,
    MalformedResponse,
    RateLimited,
)
from mellea_like.limits.base import RequestEnd
from mellea_like.runtime.logs import warn

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Collection

    from mellea_like.core.backend import Backend, Request

__all__ = ["KeeperGone", "RayKeeper", "RemoteLimit"]

HEARTBEAT = 5.0
"""Seconds between two signs of life."""

PATIENCE = 30.0
"""Seconds after which an actor that doesn't answer is given up."""


class KeeperGone(Exception):
    """The limit's actor is dead, or can't be reached."""


class RayKeeper:
    """The limit's actor, as the `LimitKeeper` that runs in it."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    async def acquire(self, name: str, ask: Ask) -> str | Exception | None:
        """Wait until a request may be sent: None, else why not."""
        answer: str | Exception | None = await self._answer(self._actor.acquire.remote(name, ask))
        return answer

    async def alive(self, name: str, latest: int, under_way: Collection[int]) -> None:
        """Show that the worker lives."""
        await self._answer(self._actor.alive.remote(name, latest, tuple(under_way)))

    def settle(self, name: str, number: int, end: RequestEnd) -> None:
        """Say how a request ended, without waiting for an answer."""
        self._actor.settle.remote(name, number, end)

    async def _answer(self, answer: Any) -> Any:
        try:
            return await answer
        except ray_module().exceptions.RayError as exc:
            raise KeeperGone(str(exc).strip().partition("\n")[0]) from exc


class RemoteLimit:
    """The cluster's limit as a worker's backends see it; a `Limit`."""

    def __init__(self, keeper: RayKeeper) -> None:
        self._keeper = keeper
        self._name = uuid4().hex
        self._latest = 0
        self._under_way: set[int] = set()
        self._waiting: set[anyio.CancelScope] = set()
        self._gone: str | None = None

    async def acquire(self, request: Request, backend: Backend) -> _Permit:
        """Wait until a request may be sent."""
        self._latest = number = self._latest + 1
        meta, options = request.meta, request.options
        began = anyio.current_time()
        ask = Ask(
            number,
            estimate_input_tokens(request),
            options.max_tokens,
            options.model or getattr(backend, "model", None),
            meta,
            0.0 if meta.call_started is None else began - meta.call_started,
        )
        self._under_way.add(number)
        try:
            answer = await self._asked(ask)
            while answer == FORGOTTEN:
                answer = await self._asked(ask)
        except BaseException as exc:
            self._end(number, RequestEnd(Usage(), None, exc))
            raise
        if isinstance(answer, Exception):
            self._under_way.discard(number)
            raise answer
        return _Permit(self, number)

    @asynccontextmanager
    async def in_use(self) -> AsyncGenerator[None]:
        """Show the limit's actor for a block that this worker lives."""
        self._gone = None  # Each block tries again.
        async with TaskScope() as tasks:
            tasks.start_soon(self._stay_in_touch)
            yield

    async def _asked(self, ask: Ask) -> str | Exception | None:
        with anyio.CancelScope() as scope:
            self._waiting.add(scope)
            try:
                if self._gone is None:
                    return await self._keeper.acquire(self._name, ask)
            except KeeperGone as exc:
                self._give_up(str(exc))
            finally:
                self._waiting.discard(scope)
        return LimitExceeded(str(self._gone))

    async def _stay_in_touch(self) -> None:
        while self._gone is None:
            try:
                with anyio.fail_after(PATIENCE):
                    await self._keeper.alive(self._name, self._latest, self._under_way)
            except KeeperGone as exc:
                self._give_up(str(exc))
            except TimeoutError:
                self._give_up(f"no answer for {PATIENCE:g} seconds")
            await anyio.sleep(HEARTBEAT)

    def _give_up(self, why: str) -> None:
        if self._gone is None:
            self._gone = (
                "the actor that keeps the cluster's limit is gone, so nothing more is sent"
                f" ({why}); run it again: with a journal_dir, only the rows that are left are"
                " sampled"
            )
            warn("%s", self._gone)
        for scope in self._waiting:
            scope.cancel()

    def _end(self, number: int, end: RequestEnd) -> None:
        self._under_way.discard(number)
        self._keeper.settle(self._name, number, _sendable(end))


class _Permit:
    __slots__ = ("_limit", "_number")

    def __init__(self, limit: RemoteLimit, number: int) -> None:
        self._limit = limit
        self._number = number

    def release(self, end: RequestEnd) -> None:
        self._limit._end(self._number, end)


def _sendable(end: RequestEnd) -> RequestEnd:
    """Return what limits go by, without what might not go from one process to another."""
    error: BackendError | None = None
    if isinstance(end.error, RateLimited):
        error = RateLimited("refused", retry_after=end.error.retry_after)
    elif isinstance(end.error, BackendError):
        charged = BackendTimeout, MalformedResponse
        error = next(
            (kind("") for kind in charged if isinstance(end.error, kind)), BackendError("")
        )
    reply = end.generation if end.usage.unknown else None  # Its length is charged.
    return RequestEnd(end.usage, None if reply is None else Generation(reply.text), error)
