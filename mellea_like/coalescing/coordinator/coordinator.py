"""Concurrent requests that fit together become one: one approval, one price."""

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
from mellea_like.core.display import error_text
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
"""Seconds from the first request of a batch until it is sent."""

DEFAULT_COALESCE_MAX_BATCH = 10
"""Requests of a batch at most; when they are there it is sent at once."""

DEFAULT_CONCURRENCY = 4
"""Batches that are under way at one time."""

DEFAULT_MAX_JOINT_TOKENS = 16_384
"""The longest joint reply that is asked for, in tokens; ten of 1,000 go together."""

RequestKey: TypeAlias = "Callable[[Request], Hashable]"
"""Takes a request and says what it has in common with others; a plain function."""


class CoordinatorStatistics(NamedTuple):
    """A snapshot of a coordinator.

    ``asked = answered + failed + refused + cancelled + expired + missing + waiting``, and
    those that are under way.

    Attributes:
        waiting: requests that wait to be sent.
        in_flight: batches that are under way.
        asked: requests that came.
        answered: requests that were answered.
        failed: requests that failed: with the backend's error, or the library's.
        refused: requests whose reply was a refusal.
        cancelled: requests whose caller left, or that were there when the coordinator was closed.
        expired: requests whose deadline passed before they were sent.
        missing: requests whose answers the joint reply lacked.
        calls: requests sent to the backend inside.
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
    """A backend that turns concurrent requests which fit together into one.

    Use it only if requests are approved by a person or priced by number: it costs each one a
    wait, and lets one prompt hold several tasks. Enter it with ``async with``; then it is a backend
    like any other, for any number of concurrent calls.

    ```python
    async with SamplingCoordinator(backend, idle=0.01) as coordinator:
        strategy = RejectionSamplingStrategy(coordinator, concurrency_budget=4)
        result = await strategy.sample("Write a haiku.", [three_lines])
    ```

    Requests share a batch if they want the same kind of reply, and the backend's ``can_coalesce``:
    if nobody approves them, each goes by itself. A request that is alone when its time has come
    is passed on as it is, the same object. A failure of a batch
    is a failure for all that share it, without another try: for
    that, put a `RetryBackend` inside. Replies are not
    streamed.

    Args:
        inner: the backend that answers.
        window: seconds from the first request of a batch until it is sent.
        idle: seconds without a newcomer after which it is sent before that; None for never. 0.01
            takes nearly all of the wait from a burst of requests.
        max_batch: requests of a batch at most; when they are there it is sent at once.
        max_joint_tokens: the longest reply that a batch may ask for, in tokens: the sum of
            its requests' ``max_tokens``, or else the backend's; the rest go in another one. A
            request that is longer by itself goes alone.
        concurrency: batches that are under way at one time. While requests wait for one to
            end, more may join them.
        scope: says which requests may meet at all: connection, principal, trust domain. It is
            called where the request is made, so it may read context variables. None: all may.
        caller: says whose a request is; callers take turns. None: the call's of ``sample``.
        retry_missing: whether requests whose answers are missing in a joint reply are asked once
            more, together.
        audit: a plain function that is told of each request twice: when it is asked, and when it
            has ended. Its exceptions are logged.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: a number is out of its range.
    """

    retries = True
    """A strategy leaves retries to it: what failed or was refused is not asked for again."""

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
        """Not supported: a joint reply can't be split before it has ended.

        Raises:
            AttributeError: always.
        """
        msg = "a SamplingCoordinator does not stream"
        raise AttributeError(msg)

    @property
    def isolated(self) -> BackendWrapper:
        """The same coordinator as a backend whose requests share with nobody.

        For texts that others wrote: in a joint request, one task's text might sway another's
        answer. Its requests do not wait for others, but take their turn.
        """
        return _Isolated(self)

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        self._start(self._keep, name="coordinator: batches")
        return self

    async def generate(self, request: Request) -> Generation:
        """Answer one request, alone or together with others.

        Args:
            request: the request. The time until its ``meta.deadline`` includes the wait.

        Returns:
            Its own reply.

        Raises:
            MissingAnswer: the joint reply lacked its answer.
            Expired: its deadline passed before it could be sent.
            ShutdownError: the coordinator is closing or closed.
            BackendError: there is no reply for anyone that shared the batch.
        """
        return await self._ask(request, alone=False)

    def statistics(self) -> CoordinatorStatistics:
        """Return a snapshot of the coordinator.

        Returns:
            The numbers of this moment.
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
            # A joint request can't do without stop texts that the backend adds.
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
        """Send batches for as long as there is room; return when to look again."""
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
        batch = RequestBatch(
            name,
            members,
            self.inner,
            retry_missing=self._retry_missing,
            on_call=self._called,
        )
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
            what = f"{type(exc).__name__}: {error_text(exc)}"
            warn("the audit callback failed at request %s: %s", record.request_id, what)

    # --- closing ----------------------------------------------------------------------------------

    async def _serve_the_rest(self) -> None:
        await self._until_idle()

    async def _until_idle(self) -> None:
        self._changed.set()  # Requests that gather are sent now.
        await self._until(lambda: not self._running and not self._queue)

    def _settle_all(self, error: ShutdownError) -> None:
        for pending in list(self._queue):
            self._queue.remove(pending)
            pending.fail(own_copy(error))
        for batch in self._running:
            batch.fail(error)
            batch.scope.cancel()
        self._changed.set()


class _Isolated(BackendWrapper):
    """A coordinator whose requests go alone."""

    def __init__(self, inner: SamplingCoordinator) -> None:
        super().__init__(inner)
        self._coordinator = inner

    async def generate(self, request: Request) -> Generation:
        return await self._coordinator._ask(request, alone=True)  # pyright: ignore[reportPrivateUsage]


def _seconds(name: str, value: float) -> float:
    return real_number(f"SamplingCoordinator: {name}", value, least=0, unit="seconds")


def _count(name: str, value: int) -> int:
    return whole_number(f"SamplingCoordinator: {name}", value)
