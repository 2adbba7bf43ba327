"""What a limit is, and the backend that keeps to limits."""

from __future__ import annotations

from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

from mellea_like.core.backend import BackendWrapper
from mellea_like.core.generation import Generation, Usage, cost_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Sequence

    from mellea_like.core.backend import Backend, Request
    from mellea_like.core.generation import Meter

__all__ = ["Limit", "LimitedBackend", "Permit", "RequestEnd", "noting"]


class RequestEnd(NamedTuple):
    """How a request ended, for the limits that had admitted it.

    Attributes:
        usage: what it cost, as far as it is known; ``usage.requests`` is 0 where none was sent.
        generation: the reply, or None.
        error: what was raised instead of a reply, cancellations included; None with a reply, and
            where a stream was left early.
        model: the model that was asked, the last one where a backend asked several; None where the
            backend has one only.
    """

    usage: Usage
    generation: Generation | None
    error: BaseException | None
    model: str | None = None


class Permit(Protocol):
    """The right to send one request; it is given back when the request has ended."""

    def release(self, end: RequestEnd) -> None:
        """Give the permit back: one synchronous step, which no cancellation can interrupt.

        Args:
            end: how the request ended.
        """
        ...


@runtime_checkable
class Limit(Protocol):
    """Decides when a request may be sent; one object may be shared by any number of backends."""

    async def acquire(self, request: Request, backend: Backend) -> Permit:
        """Wait until a request may be sent.

        Args:
            request: the request.
            backend: what will answer it.

        Returns:
            The permit. A caller that is cancelled while it waits holds none.

        Raises:
            LimitExceeded: it may never be sent: a budget is spent.
            RateLimited: it would have to wait longer than it is allowed to.
        """
        ...


class LimitedBackend(BackendWrapper):
    """A backend that keeps to limits: each request waits until all of them have admitted it.

    Limits are asked in the order given. A useful order is budgets first, then rates, then numbers
    of requests in flight, so that a request that waits for one holds nothing that others need.

    Args:
        inner: the backend inside.
        *limits: the limits, at least one.

    Raises:
        TypeError: something isn't a backend or a limit, or there is no limit.
    """

    def __init__(self, inner: Backend, *limits: Limit) -> None:
        super().__init__(inner)
        if not limits:
            msg = "LimitedBackend takes limits after the backend, such as ConcurrencyLimiter(8)"
            raise TypeError(msg)
        for limit in limits:
            if isinstance(limit, type) or not callable(getattr(limit, "acquire", None)):
                msg = f"LimitedBackend takes limits, such as ConcurrencyLimiter(8), not {limit!r}"
                raise TypeError(msg)
        self.limits = limits

    async def generate(self, request: Request) -> Generation:
        """Answer one request when the limits allow it.

        Raises:
            LimitExceeded: a budget is spent.
            BackendError: there is no reply.
        """
        permits = await _admit(self.limits, request, self.inner)
        generation: Generation | None = None
        error: BaseException | None = None
        try:
            generation = await self.inner.generate(request)
            return generation  # noqa: TRY300
        except BaseException as exc:
            error = exc
            raise
        finally:
            end = _end_of(request.meter, generation, error)
            _release(permits, end)
            del error, end  # Break the cycle between frame and exception.

    @asynccontextmanager
    async def _stream(self, request: Request) -> AsyncGenerator[AsyncIterator[str | Generation]]:
        permits = await _admit(self.limits, request, self.inner)
        seen: list[Generation] = []
        error: BaseException | None = None
        try:
            async with (
                super()._stream(request) as pieces,
                aclosing(noting(pieces, seen)) as noted,
            ):
                yield noted
        except BaseException as exc:
            error = exc
            raise
        finally:
            generation = seen[-1] if seen else None
            end = _end_of(request.meter, generation, error)
            _release(permits, end)
            del error, end


async def noting(
    pieces: AsyncIterator[str | Generation], seen: list[Generation]
) -> AsyncGenerator[str | Generation]:
    """Hand on a stream's pieces, and note the whole generation among them."""
    async for piece in pieces:
        if isinstance(piece, Generation):
            seen.append(piece)
        yield piece


async def _admit(limits: Sequence[Limit], request: Request, backend: Backend) -> list[Permit]:
    permits: list[Permit] = []
    try:
        for limit in limits:
            permits.append(await limit.acquire(request, backend))  # noqa: PERF401
    except BaseException as exc:
        request.meter.sent_nothing()
        _release(permits, RequestEnd(Usage(), None, exc))
        raise
    return permits


def _end_of(meter: Meter, generation: Generation | None, error: BaseException | None) -> RequestEnd:
    return RequestEnd(cost_of(meter, generation), generation, error, meter.asked)


def _release(permits: Sequence[Permit], end: RequestEnd) -> None:
    for permit in reversed(permits):
        permit.release(end)
