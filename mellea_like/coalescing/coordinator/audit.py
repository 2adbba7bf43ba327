"""Telling what became of each request: one record for each, whatever batch it went with."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias

import anyio

from mellea_like.core.display import error_text
from mellea_like.core.generation import Generation, Usage
from mellea_like.errors import Expired, MissingAnswer, QueueFull, Refused, ShutdownError, Stopped
from mellea_like.hooks.dispatch import HookRun
from mellea_like.runtime.logs import warn

if TYPE_CHECKING:
    from collections.abc import Callable

    from anyio.abc import TaskGroup

    from mellea_like.core.backend import RequestMeta
    from mellea_like.hooks.payloads import CoalescedRequestPayload
    from mellea_like.hooks.plugins import Handler

__all__ = ["AuditCallback", "AuditRecord", "Auditor", "RequestStatus", "status_of"]

MAX_RUNS = 32
"""Sets of plugins that are kept ready; of older ones, what runs in the background is ended."""

REFUSALS = frozenset({"refusal", "content_filter"})
"""The finish reasons of a reply that is a refusal."""


class RequestStatus(StrEnum):
    """What became of a request to a coordinator."""

    ASKED = "asked"
    """It arrived. Each request is told of twice: when it is asked, and when it has ended."""
    OK = "ok"
    """It was answered."""
    ERROR = "error"
    """It failed: the backend's error, or the library's."""
    REFUSED = "refused"
    """The coordinator had no room for it, or the reply is a refusal."""
    CANCELLED = "cancelled"
    """Its caller left, or the coordinator was closed."""
    EXPIRED = "expired"
    """Its deadline passed before it was sent."""
    MISSING = "missing"
    """The joint reply lacked its answer."""


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """What became of one request.

    Args:
        request_id: unique to the request; the same when it is asked and when it has ended.
        status: what became of it.
        meta: the call, iteration and subsample that it comes from.
        batch_id: the batch that it went with; None where it was not sent.
        batch_size: how many requests that batch had; 0 where it was not sent.
        error: what its caller got instead of a reply, or None.
        usage: its share of the cost, as known by now.
        waited: seconds since it was asked.
    """

    request_id: str
    status: RequestStatus
    meta: RequestMeta
    batch_id: str | None = None
    batch_size: int = 0
    error: BaseException | None = None
    usage: Usage = Usage()
    waited: float = 0.0


AuditCallback: TypeAlias = "Callable[[AuditRecord], object]"
"""A plain function that is told of each request twice; what it raises is logged."""


def status_of(result: Generation | BaseException) -> RequestStatus:
    """Say what became of a request."""
    match result:
        case Generation():
            refused = result.finish_reason in REFUSALS
            return RequestStatus.REFUSED if refused else RequestStatus.OK
        case MissingAnswer():
            return RequestStatus.MISSING
        case Expired():
            return RequestStatus.EXPIRED
        case Refused() | QueueFull():
            return RequestStatus.REFUSED
        case ShutdownError() | Stopped():
            return RequestStatus.CANCELLED
        case _:
            return RequestStatus.ERROR


class Auditor:
    """Hands records to a callback at once, and to hooks in a task beside the work."""

    def __init__(self, callback: AuditCallback | None) -> None:
        self._callback = callback
        self._queue: deque[tuple[tuple[Handler, ...], AuditRecord]] = deque()
        # By the handlers' ids: plugins need not be hashable. The handlers are kept alive beside.
        self._runs: dict[tuple[int, ...], tuple[HookRun, tuple[Handler, ...]]] = {}
        self._tasks: TaskGroup | None = None
        self._more = anyio.Event()
        self._idle = anyio.Event()
        self._busy = False
        self.interrupt: BaseException | None = None

    def tell(self, record: AuditRecord, handlers: tuple[Handler, ...]) -> None:
        """Tell of a request; this does not wait."""
        if self._callback is not None:
            try:
                self._callback(record)
            except Exception as exc:  # noqa: BLE001 (the user's)
                what = f"{type(exc).__name__}: {error_text(exc)}"
                warn("the audit callback failed at request %s: %s", record.request_id, what)
        if handlers and self._tasks is not None:
            self._queue.append((handlers, record))
            self._more.set()

    def open(self, tasks: TaskGroup) -> None:
        """Get ready for records."""
        self._tasks, self.interrupt = tasks, None
        self._more = anyio.Event()
        self._busy = False

    async def work(self) -> None:
        """Hand records to hooks, one after the other, until cancelled."""
        while True:
            while self._queue:
                self._busy = True
                handlers, record = self._queue.popleft()
                await self._run_of(handlers).announce(_payload(record))
            self._busy = False
            self._idle.set()
            self._more = anyio.Event()
            await self._more.wait()

    async def close(self, seconds: float) -> None:
        """Wait until hooks were told all, and end those that take too long."""
        runs = self._runs
        with anyio.move_on_after(seconds, shield=True):
            while self._queue or self._busy:
                self._idle = anyio.Event()
                await self._idle.wait()
            for hooks, _ in list(runs.values()):
                await hooks.drain()
        unfinished = sum(hooks.stop() for hooks, _ in runs.values())
        if self._queue or self._busy or unfinished:
            warn(
                "a coordinator was closed with %d records not delivered and %d background hooks cut"
                " short",
                len(self._queue) + self._busy,
                unfinished,
            )
        for hooks, _ in runs.values():
            self.interrupt = self.interrupt or hooks.interrupt
        self._tasks = None
        self._queue.clear()
        runs.clear()

    def _run_of(self, handlers: tuple[Handler, ...]) -> HookRun:
        key = tuple(map(id, handlers))
        run = self._runs.pop(key, None)
        if run is None:
            run = HookRun(handlers, ""), handlers
            if self._tasks is not None:
                run[0].open(self._tasks)
        self._runs[key] = run
        if len(self._runs) > MAX_RUNS:
            oldest, _ = self._runs.pop(next(iter(self._runs)))
            oldest.stop()
            self.interrupt = self.interrupt or oldest.interrupt
        return run[0]


def _payload(record: AuditRecord) -> CoalescedRequestPayload:
    from mellea_like.hooks.payloads import CoalescedRequestPayload  # noqa: PLC0415

    return CoalescedRequestPayload(
        sampling_id=record.meta.sampling_id,
        strategy="",
        iteration=record.meta.iteration,
        subsample=record.meta.subsample,
        request_id=record.request_id,
        status=record.status,
        purpose=record.meta.purpose,
        batch_id=record.batch_id,
        batch_size=record.batch_size,
        error=record.error,
        usage=record.usage,
        waited=record.waited,
    )
