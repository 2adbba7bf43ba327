"""Merge concurrent requests that fit together into one request, with one approval and one price."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from itertools import count
from secrets import token_hex
from typing import TYPE_CHECKING, NamedTuple, NoReturn, Self, TypeAlias

import anyio

from mellea_like.coalescing.background_service import BackgroundService
from mellea_like.coalescing.coordinator.audit import AuditRecord, RequestStatus, status_of
from mellea_like.coalescing.coordinator.joint_prompt import BATCH_OVERHEAD, share_key, tokens_of
from mellea_like.coalescing.coordinator.request_batch import (
    LATE,
    PendingRequest,
    RequestBatch,
    own_copy,
)
from mellea_like.coalescing.coordinator.request_queue import RequestQueue
from mellea_like.coalescing.gathering_window import GatheringWindow
from mellea_like.core.argument_checks import check_plain, real_number, whole_number
from mellea_like.core.backend import BackendWrapper
from mellea_like.core.generation import Usage, cost_of
from mellea_like.errors import CoalescingError, Expired, ShutdownError
from mellea_like.runtime.logs import warn
from mellea_like.telemetry.spans import caller_span

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from mellea_like.coalescing.coordinator.audit import AuditCallback
    from mellea_like.core.backend import Backend, Request
    from mellea_like.core.generation import Generation

__all__ = [
    "DEFAULT_COALESCE_MAX_BATCH",
    "DEFAULT_COALESCE_WINDOW",
    "CoordinatorStatistics",
    "RequestKey",
    "SamplingCoordinator",
]

DEFAULT_COALESCE_WINDOW = 5.0
"""By default, a batch is sent this many seconds after its first request."""

DEFAULT_COALESCE_MAX_BATCH = 10
"""By default, the largest number of requests in a batch. A full batch is sent immediately."""

DEFAULT_CONCURRENCY = 4
"""By default, the largest number of batches in progress at one time."""

DEFAULT_MAX_JOINT_TOKENS = 16_384
"""By default, the longest joint reply to ask for, in tokens: enough for ten answers of 1,000."""

RequestKey: TypeAlias = "Callable[[Request], Hashable]"
"""A plain function from a request to a key; requests with equal keys are a group."""


class CoordinatorStatistics(NamedTuple):
    """A snapshot of a coordinator.

    ``asked`` is the sum of ``answered``, ``failed``, ``refused``, ``cancelled``, ``expired``,
    ``missing``, ``waiting`` and the number of requests in progress.

    Attributes:
        waiting: the number of requests that wait to be sent.
        in_flight: the number of batches in progress.
        asked: the number of requests that came.
        answered: the number of requests that were answered.
        failed: the number of requests that failed, with an error of the backend or the library.
        refused: the number of requests whose reply was a refusal.
        cancelled: the number of requests whose caller left, or that were open when the coordinator
            was closed.
        expired: the number of requests whose deadline passed before they were sent.
        missing: the number of requests for which the joint reply had no answer.
        calls: the number of requests sent to the backend inside.
    """

    waiting: int
    in_flight: int
    asked: int
    answered: int
    failed: int
    refused: int
    cancelled: int
    expired: int
    missing: int
    calls: int


class SamplingCoordinator(BackendWrapper, BackgroundService):
    """A backend that merges concurrent requests that fit together.

    Use it only if a person approves requests, or if requests are priced by number: a coordinator
    makes each request wait a little, and puts several tasks into one prompt. Enter it with
    ``async with``. In the block, it is a backend like any other, for any number of calls at a time.

    ```python
    async with SamplingCoordinator(backend, idle=0.01) as coordinator:
        strategy = RejectionSamplingStrategy(coordinator, concurrency_budget=4)
        result = await strategy.sample("Write a haiku.", [three_lines])
    ```

    Requests share a batch if they ask for the same kind of reply and the backend's
    ``can_coalesce`` is true; otherwise each is sent separately. A request that is alone at the end
    of its window is passed on unchanged, as the same object. If a batch fails, all its requests
    fail without a retry; to retry, put a `RetryBackend` inside. Replies are not streamed.

    Args:
        inner: the backend that answers.
        window: the seconds from the first request of a batch until the batch is sent.
        idle: the seconds without a new request after which a batch is sent earlier; None for
            never. With 0.01, a burst of requests hardly waits at all.
        max_batch: the largest number of requests in a batch. A full batch is sent immediately.
        max_joint_tokens: the longest reply that a batch may ask for, in tokens. It limits the sum
            of the requests' ``max_tokens``. For a request that sets none, the backend's default
            counts. Further requests go to another batch, and a request that exceeds the limit by
            itself is sent alone.
        concurrency: the number of batches in progress at one time. While requests wait for a batch
            to end, more requests may join them.
        scope: a function that returns a request's connection, principal or trust domain, for
            example. Requests with different results never share a batch. It is called in the
            caller's task, so it may read context variables. With None, all requests may share.
        caller: a function that takes a request and returns a key of its caller; callers are served
            in rotation. With None, each call of ``sample`` is a caller.
        retry_missing: whether requests whose answers are missing from a joint reply are sent once
            more, together.
        audit: a plain function that is called twice for each request: when it arrives, and when it
            has ended. Its exceptions are logged.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: a number is out of range.
    """

    retries = True
    """Tells strategies to leave retries to this backend, which never repeats a refused request."""

    def __init__(
        self,
        inner: Backend,
        *,
        window: float = DEFAULT_COALESCE_WINDOW,
        idle: float | None = None,
        max_batch: int = DEFAULT_COALESCE_MAX_BATCH,
        max_joint_tokens: int = DEFAULT_MAX_JOINT_TOKENS,
        concurrency: int = DEFAULT_CONCURRENCY,
        scope: RequestKey | None = None,
        caller: RequestKey | None = None,
        retry_missing: bool = True,
        audit: AuditCallback | None = None,
    ) -> None:
        BackendWrapper.__init__(self, inner)
        BackgroundService.__init__(self)
        for name, function in (("scope", scope), ("caller", caller), ("audit", audit)):
            check_plain(f"SamplingCoordinator: {name}", function)
        quiet = math.inf if idle is None else _seconds("idle", idle)
        gather = GatheringWindow(quiet, _seconds("window", window), _count("max_batch", max_batch))
        tokens = max(_count("max_joint_tokens", max_joint_tokens) - BATCH_OVERHEAD, 0)
        self._queue: RequestQueue[PendingRequest] = RequestQueue(gather, tokens)
        self._concurrency = _count("concurrency", concurrency)
        self._scope = scope
        self._caller = caller
        self._running: set[RequestBatch] = set()
        self._retry_missing = retry_missing
        self._asked = self._calls = 0
        self._statuses: Counter[RequestStatus] = Counter()
        self._audit = audit
        self._name = token_hex(4)
        self._request_numbers = count(1)
        self._batch_numbers = count(1)
        self._changed = anyio.Event()

    @property
    def stream(self) -> NoReturn:
        """Not supported, because a joint reply can't be split before it has ended.

        Raises:
            AttributeError: always.
        """
        msg = "a SamplingCoordinator does not stream"
        raise AttributeError(msg)

    @property
    def isolated(self) -> BackendWrapper:
        """The same coordinator as a backend whose requests are never merged.

        Use it for texts from other people, because in a joint request, one task's text might
        influence another task's answer. These requests don't wait for others to join, but still
        wait if too many batches are in progress.
        """
        return _Isolated(self)

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        self._start(self._keep, name="coordinator: batches")
        return self

    async def generate(self, request: Request) -> Generation:
        """Answer one request, alone or together with others.

        Args:
            request: the request. Its ``meta.deadline`` applies to the wait, too.

        Returns:
            The reply to this request.

        Raises:
            MissingAnswer: the joint reply had no answer for this request.
            Expired: the request's deadline passed before it could be sent.
            ShutdownError: the coordinator isn't open, or is closing.
            RuntimeError: the coordinator was entered in another event loop.
            Exception: the error of the backend inside, usually a `BackendError`.
        """
        return await self._ask(request, alone=False)

    def statistics(self) -> CoordinatorStatistics:
        """Return a snapshot of the coordinator.

        Returns:
            The snapshot.
        """
        ended = self._statuses
        return CoordinatorStatistics(
            waiting=len(self._queue),
            in_flight=len(self._running),
            asked=self._asked,
            answered=ended[RequestStatus.OK],
            failed=ended[RequestStatus.ERROR],
            refused=ended[RequestStatus.REFUSED],
            cancelled=ended[RequestStatus.CANCELLED],
            expired=ended[RequestStatus.EXPIRED],
            missing=ended[RequestStatus.MISSING],
            calls=self._calls,
        )

    async def _ask(self, request: Request, *, alone: bool) -> Generation:
        self._check_loop()
        pending = self._accept(request, alone=alone)
        try:
            return await pending.wait()
        except anyio.get_cancelled_exc_class():
            batch = pending.batch
            if batch is not None and batch.deserted:
                # A cancelled request is closed before the cancellation is passed on.
                with anyio.CancelScope(shield=True):
                    await batch.closed.wait()
            raise
        finally:
            del pending  # Break the cycle between frame and exception.

    def _accept(self, request: Request, *, alone: bool) -> PendingRequest:
        caller = self._caller(request) if self._caller else request.meta.sampling_id
        scope = self._scope(request) if self._scope else None
        hash((scope, caller))  # Fail before the request is on record.
        task = replace(request, options=request.options.over(self.defaults))
        pending = PendingRequest(
            request,
            task,
            request_id=f"{self._name}-{next(self._request_numbers)}",
            asked_at=anyio.current_time(),
            span=caller_span(),
            left=self._left,
            ended=self._ended,
        )
        self._asked += 1
        self._tell(pending, RequestStatus.ASKED)
        try:
            self._check_open()
            # A joint request would lose stop texts that the backend adds.
            alone = alone or not self.can_coalesce or bool(self.defaults.stop)
            key = None if alone else share_key(task, scope)
            self._queue.add(pending, key, caller, pending.asked_at, tokens=tokens_of(task))
        except CoalescingError as exc:
            pending.fail(exc)
        self._changed.set()
        return pending

    # --- one task decides what goes when ----------------------------------------------------------

    async def _keep(self) -> None:
        while True:
            self._changed = anyio.Event()
            with anyio.CancelScope(deadline=self._send_what_is_due()):
                await self._changed.wait()

    def _send_what_is_due(self) -> float:
        """Send due batches while fewer than ``concurrency`` run; return when to check again."""
        now = anyio.current_time()
        while len(self._running) < self._concurrency:
            taken = self._queue.take(now, at_once=self._closing)
            if not taken:
                break
            for pending in taken:
                if pending.deadline <= now:
                    pending.fail(Expired(LATE))
            if members := [pending for pending in taken if not pending.done]:
                self._send(members)
        self._progressed()
        return self._queue.due_at() if len(self._running) < self._concurrency else math.inf

    def _send(self, members: list[PendingRequest]) -> None:
        name = f"{self._name}-b{next(self._batch_numbers)}"
        batch = RequestBatch(name, members, self.inner, self._retry_missing, self._called)
        self._running.add(batch)
        self._start(self._run, batch, name=f"coordinator: batch {name}")

    async def _run(self, batch: RequestBatch) -> None:
        try:
            await batch.run()
        finally:
            self._running.discard(batch)
            self._changed.set()

    def _called(self) -> None:
        self._calls += 1

    # --- how a request ends -----------------------------------------------------------------------

    def _left(self, pending: PendingRequest, error: CoalescingError) -> None:
        if pending.batch is not None:
            pending.batch.leave(pending, error)
            return
        self._queue.remove(pending)
        pending.fail(error)
        self._changed.set()

    def _ended(self, pending: PendingRequest, result: Generation | BaseException) -> None:
        status = status_of(result)
        self._statuses[status] += 1
        reply, error = (None, result) if isinstance(result, BaseException) else (result, None)
        self._tell(pending, status, error, cost_of(pending.request.meter, reply))

    def _tell(
        self,
        pending: PendingRequest,
        status: RequestStatus,
        error: BaseException | None = None,
        usage: Usage = Usage(),
    ) -> None:
        if self._audit is None:
            return
        batch = pending.batch
        record = AuditRecord(
            pending.request_id,
            status,
            pending.request.meta,
            None if batch is None else batch.batch_id,
            0 if batch is None else batch.size,
            error,
            usage,
            anyio.current_time() - pending.asked_at,
        )
        try:
            self._audit(record)
        except Exception as exc:  # noqa: BLE001 (the user's)
            message = "the audit callback failed at request %s: %s: %s"
            warn(message, record.request_id, type(exc).__name__, exc)

    # --- closing ----------------------------------------------------------------------------------

    def _hurry(self) -> None:
        self._changed.set()

    def _idle(self) -> bool:
        return not self._running and not self._queue

    def _settle_all(self, error: ShutdownError) -> None:
        for pending in list(self._queue):
            self._queue.remove(pending)
            pending.fail(own_copy(error))
        for batch in self._running:
            batch.fail(error)
            batch.scope.cancel()
        self._changed.set()


class _Isolated(BackendWrapper):
    """A coordinator whose requests are sent separately."""

    def __init__(self, inner: SamplingCoordinator) -> None:
        super().__init__(inner)
        self._coordinator = inner

    async def generate(self, request: Request) -> Generation:
        return await self._coordinator._ask(request, alone=True)  # pyright: ignore[reportPrivateUsage]


def _seconds(name: str, value: float) -> float:
    return real_number(f"SamplingCoordinator: {name}", value, least=0, unit="seconds")


def _count(name: str, value: int) -> int:
    return whole_number(f"SamplingCoordinator: {name}", value)
