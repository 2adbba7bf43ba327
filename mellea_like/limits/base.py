"""The protocol of limits, and a wrapper that makes a backend obey them."""

from __future__ import annotations

from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

from mellea_like.core.backend import BackendWrapper, checked_reply
from mellea_like.core.display import add_note
from mellea_like.core.generation import Generation, Usage
from mellea_like.errors import BackendError, LimitExceeded

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable

    from mellea_like.core.backend import Backend, Request

__all__ = ["Limit", "LimitedBackend", "Permit", "RequestEnd"]


class RequestEnd(NamedTuple):
    """How a request ended, as reported to the limits that admitted it.

    Attributes:
        usage: the request's cost as far as it is known; ``usage.requests`` is 0 if nothing was
            sent.
        generation: the reply, or None.
        error: the exception raised instead of a reply, which may be a cancellation. None if there
            is a reply, or if a stream was closed early.
        model: the model that was asked last, if the backend has several; None if it has only one.
    """

    usage: Usage
    generation: Generation | None
    error: BaseException | None
    model: str | None = None


class Permit(Protocol):
    """Permission to send one request, to be given back when the request has ended."""

    def release(self, end: RequestEnd) -> Usage | None:
        """Give the permit back, in one synchronous step that a cancellation can't interrupt.

        Args:
            end: how the request ended.

        Returns:
            The usage that was charged, if it may differ from ``end.usage``; otherwise None.
        """
        ...


@runtime_checkable
class Limit(Protocol):
    """Decides when requests may be sent. Any number of backends may share a limit."""

    async def acquire(self, request: Request, backend: Backend) -> Permit:
        """Wait until a request may be sent.

        Args:
            request: the request.
            backend: the backend that will answer it.

        Returns:
            The permit. A caller that is cancelled while it waits doesn't hold one.

        Raises:
            LimitExceeded: the request will never be admitted, because it costs more than what is
                left of a budget.
            RateLimited: the request would have to wait longer than it is allowed to.
            StoreError: the store of a budget or a rate can't be used.
        """
        ...


class LimitedBackend(BackendWrapper):
    """A backend that obeys limits: each request waits until all limits have admitted it.

    If a backend inside retries a request (`RetryBackend`, `FallbackBackend`), the limits admit
    each try separately; see `Meter.readmit`.

    Limits are asked in the given order. A good order is budgets, rates, concurrency. Then a request
    that waits for a budget or a rate doesn't count as one in flight.

    Args:
        inner: the backend inside.
        *limits: the limits, at least one.

    Raises:
        TypeError: ``inner`` isn't a backend, one of ``limits`` isn't a limit, or no limit is
            given.
    """

    def __init__(self, inner: Backend, *limits: Limit) -> None:
        super().__init__(inner)
        if not limits:
            msg = (
                "LimitedBackend needs at least one limit after the backend, such as"
                " ConcurrencyLimiter(8)"
            )
            raise TypeError(msg)
        for limit in limits:
            if isinstance(limit, type) or not callable(getattr(limit, "acquire", None)):
                msg = f"LimitedBackend needs limits, such as ConcurrencyLimiter(8), not {limit!r}"
                raise TypeError(msg)
        self.limits = limits

    async def generate(self, request: Request) -> Generation:
        """Answer one request as soon as the limits allow it.

        Raises:
            LimitExceeded: a budget is spent.
            StoreError: the store of a budget or a rate can't be used.
            BackendError: there is no reply.
        """
        admission = _Admission(self, request)
        await admission.admit(request)
        with admission:
            reply = await self.inner.generate(replace(request, meter=admission.meter))
            admission.seen.append(checked_reply(self.inner, reply))
            return reply

    @asynccontextmanager
    async def _stream(self, request: Request) -> AsyncGenerator[AsyncIterator[str | Generation]]:
        admission = _Admission(self, request)
        await admission.admit(request)
        with admission:
            async with (
                super()._stream(replace(request, meter=admission.meter)) as pieces,
                aclosing(noting(pieces, admission.seen.append)) as noted,
            ):
                yield noted


async def noting(
    pieces: AsyncIterator[str | Generation], note: Callable[[Generation], object]
) -> AsyncGenerator[str | Generation]:
    """Yield a stream's pieces. Also pass its last piece, the whole generation, to ``note``."""
    async for piece in pieces:
        if isinstance(piece, Generation):
            note(piece)
        yield piece


class _Admission:
    """The permits of one request, which are given back and acquired again before each retry."""

    __slots__ = ("_around", "_backend", "_limits", "_over", "_permits", "_settled", "meter", "seen")

    def __init__(self, limited: LimitedBackend, request: Request) -> None:
        self._limits = limited.limits
        self._backend = limited.inner
        self._around = request.meter.admission
        self._permits: list[Permit] = []
        self._settled = Usage()
        self._over = False
        self.seen: list[Generation] = []
        self.meter = request.meter.attempt()
        self.meter.admission = self

    def __enter__(self) -> None:
        pass  # The request was admitted.

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._over = True
        reply = self.seen.pop() if self.seen else None
        self.meter.finish(reply)
        self._release(reply, error)

    async def admit(self, request: Request) -> None:
        try:
            for limit in self._limits:
                self._permits.append(await limit.acquire(request, self._backend))
        except BaseException as exc:
            self.meter.sent_nothing()
            self._release(None, exc)
            raise
        if self._over:  # The caller has left while another task was retrying.
            self._release(None, None)

    async def readmit(self, request: Request, error: Exception, backend: Backend | None) -> None:
        try:
            self._release(None, error)  # Waiting requests hold nothing.
            if self._around is not None:
                await self._around.readmit(request, error, backend)
            self._backend = backend or self._backend
            try:
                return await self.admit(request)
            except (LimitExceeded, BackendError) as exc:
                note = f"not retried: {exc}"
                if note not in getattr(error, "__notes__", ()):
                    add_note(error, note)
            raise error
        finally:
            del error  # Break the cycle between frame and exception.

    def _release(self, generation: Generation | None, error: BaseException | None) -> None:
        usage = self.meter.usage - self._settled
        end = RequestEnd(usage, generation, error, self.meter.asked)
        charged = [permit.release(end) or usage for permit in reversed(self._permits)]
        self._permits.clear()
        # The usage includes the cost that a budget assumed, so that ledgers agree with the budget.
        sent = max((one.input_tokens for one in charged), default=0)
        received = max((one.output_tokens for one in charged), default=0)
        assumed = Usage(0, sent, received) - Usage(0, usage.input_tokens, usage.output_tokens)
        if assumed.total_tokens:
            self.meter.assume(assumed, end.model)
        self._settled = self.meter.usage
