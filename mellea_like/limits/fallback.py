"""Several backends in a row: if one has an outage, the next is asked."""

from __future__ import annotations

from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from mellea_like.core.backend import (
    PATIENT,
    BackendWrapper,
    Options,
    can_coalesce,
    can_judge,
    checked_reply,
    is_backend,
)
from mellea_like.core.connection_errors import is_of_backend
from mellea_like.core.display import add_note, error_text
from mellea_like.core.generation import Generation
from mellea_like.limits.backoff_gate import gate_before
from mellea_like.limits.retry import Retry, RetryBackend
from mellea_like.runtime.event_loops import cancellation_lost
from mellea_like.runtime.logs import inform

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
    from contextlib import AbstractAsyncContextManager

    from mellea_like.core.backend import Backend, Request
    from mellea_like.core.generation import Meter
    from mellea_like.limits.backoff_gate import BackoffGate

__all__ = ["FallbackBackend", "models_of"]

T = TypeVar("T")


class _Member(NamedTuple):
    """One of the backends: as it was given, what retries around it, and the gate before it."""

    backend: Backend
    retrying: Any
    gate: BackoffGate | None

    def asked(self, request: Request) -> Request:
        """Return the request as this backend gets it, with a separate meter."""
        model = request.options.model or getattr(self.backend, "model", None)
        return replace(request, meter=request.meter.attempt(model))

    def signed(self, reply: Generation, whole: Meter) -> Generation:
        """Return a reply with what it cost in all, and the model that it is from, if known."""
        model = reply.model or getattr(self.backend, "model", None)
        return replace(reply, model=model, usage=whole.usage)


class FallbackBackend:
    """Asks the first backend, and in its outages the next.

    A request goes to the next backend when this one has no reply to it: its circuit breaker is
    open, its error is permanent (a wrong key, an unknown model, a quota that is spent), or its
    retries are spent. While the breaker is open, requests go to the next backend at once, but for a
    probe now and then, whose answer brings them back. Nothing else decides: a reply that fails a
    requirement, or was cut off, is a reply. Nor do limits: what `LimitExceeded` says is raised.

    It retries by itself, each backend on its own, and strategies leave that to it. Each generation
    says in its ``model`` who answered; a request costs what all that were asked for it cost, and
    ledgers have what each model cost.

    It streams if all its backends do; a stream may go to the next one until its first piece is
    there. It judges if all do. Telemetry names the model of the first. Budgets and
    limiters around it admit each try, and a budget charges each at the price of the model that was
    asked; one of money needs the prices of all its models. If a limit refuses a further try, the
    error of the last one is raised, with a note. Budgets and limiters of one backend go inside,
    around that one; a `RetryBackend` around it is refused.

    Args:
        primary: the backend that is asked first.
        *others: those that are asked in its place, in order, at least one.
        retry: how often and how long each is tried before the next; ``Retry(1)`` asks the next one
            after the first failure, and a small ``max_retry_after`` avoids
            a long wait that a server asks for.

    Attributes:
        backends: the backends, in order.
        retries: True.

    Raises:
        TypeError: something isn't a backend or a `Retry`, or there is one backend only.
    """

    retries = True

    def __init__(self, primary: Backend, *others: Backend, retry: Retry | None = None) -> None:
        self.backends = (primary, *others)
        policy = Retry() if retry is None else retry
        for backend in self.backends:
            if not is_backend(backend):
                msg = f"FallbackBackend takes backends, with generate(request), not {backend!r}"
                raise TypeError(msg)
        if not others:
            msg = "FallbackBackend takes two backends at least: the first, and what replaces it"
            raise TypeError(msg)
        self.can_judge = all(map(can_judge, self.backends))
        self._members: list[_Member] = []
        for backend in self.backends:
            gate = gate_before(backend)
            retrying = backend if gate is None else RetryBackend(backend, policy)
            breaks = gate is not None and policy.trip_after is not None
            self._members.append(_Member(backend, retrying, gate if breaks else None))

    @property
    def model(self) -> str | None:
        """The first backend's model, for records."""
        return getattr(self.backends[0], "model", None)

    @property
    def provider(self) -> str:
        """The first backend's provider, for records."""
        primary = self.backends[0]
        return str(getattr(primary, "provider", type(primary).__name__))

    @property
    def can_coalesce(self) -> bool:
        """Whether requests may be put together, with all of the backends."""
        return all(map(can_coalesce, self.backends))

    @property
    def defaults(self) -> Options:
        """The first backend's defaults, for options that a request leaves open."""
        defaults: Options = getattr(self.backends[0], "defaults", Options())
        return defaults

    async def generate(self, request: Request) -> Generation:
        """Answer one request by the first backend that has a reply.

        Raises:
            BackendError: none has: the first error that may pass by itself, or else the last.
        """
        whole = request.meter.attempt()

        async def ask(member: _Member, asked: Request) -> Generation:
            try:
                reply = checked_reply(member.backend, await member.retrying.generate(asked))
                asked.meter.finish(reply)
                return member.signed(reply, whole)
            finally:
                asked.meter.finish(None)

        return await self._first_that_answers(ask, replace(request, meter=whole))

    @property
    def stream(
        self,
    ) -> Callable[[Request], AbstractAsyncContextManager[AsyncIterator[str | Generation]]]:
        """Answer one request piece by piece; see `StreamingBackend.stream`.

        Raises:
            AttributeError: one of the backends does not stream.
        """
        for backend in self.backends:
            if not hasattr(backend, "stream"):
                msg = f"{type(backend).__name__} does not stream"
                raise AttributeError(msg)
        return self._stream

    @asynccontextmanager
    async def _stream(self, request: Request) -> AsyncGenerator[AsyncIterator[str | Generation]]:
        whole = request.meter.attempt()
        meters: list[Meter] = []
        async with AsyncExitStack() as stack:
            stack.callback(lambda: [meter.finish(None) for meter in meters])

            async def begin(member: _Member, asked: Request) -> AsyncIterator[str | Generation]:
                meters.append(asked.meter)
                pieces = await stack.enter_async_context(member.retrying.stream(asked))
                return await stack.enter_async_context(
                    aclosing(_signed(member, pieces, asked.meter, whole))
                )

            yield await self._first_that_answers(begin, replace(request, meter=whole))

    async def _first_that_answers(
        self, ask: Callable[[_Member, Request], Awaitable[T]], request: Request
    ) -> T:
        last = self._members[-1]
        failed: list[Exception] = []
        try:
            for member in self._members:
                # An open breaker's probe is under way, or not yet due: no reason to wait here.
                if member is not last and member.gate is not None and member.gate.down:
                    continue
                if failed:
                    try:
                        await request.meter.readmit(request, failed[-1], member.backend)
                    except Exception as exc:
                        if exc is not failed[-1]:
                            raise
                        break  # It has a note that says which limit refused.
                    inform("%s; the next backend is asked", error_text(failed[-1]))
                # Those of a batch wait for the last backend only.
                patient = PATIENT.set(PATIENT.get() if member is last else False)
                asked = member.asked(request)
                try:
                    return await ask(member, asked)
                except Exception as exc:
                    if not is_of_backend(exc):
                        raise
                    asked.meter.finish(None)
                    failed.append(exc)
                finally:
                    PATIENT.reset(patient)
                if cancellation_lost():
                    raise failed[-1]
            raise _worst(failed)
        finally:
            failed.clear()  # Break the cycle between frame and exceptions.

    async def aclose(self) -> None:
        """Close the idle connections of all the backends."""
        for backend in self.backends:
            close = getattr(backend, "aclose", None)
            if close is not None:
                await close()


def models_of(backend: Backend) -> tuple[str | None, ...]:
    """Return the models that may answer a request: several behind a `FallbackBackend`."""
    inner: Any = backend
    while isinstance(inner, BackendWrapper):
        inner = inner.inner
    if not isinstance(inner, FallbackBackend):
        return (getattr(backend, "model", None),)
    return tuple(dict.fromkeys(model for one in inner.backends for model in models_of(one)))


async def _signed(
    member: _Member, pieces: AsyncIterator[str | Generation], meter: Meter, whole: Meter
) -> AsyncGenerator[str | Generation]:
    async for piece in pieces:
        if isinstance(piece, Generation):
            meter.finish(piece)
            yield member.signed(piece, whole)
        else:
            yield piece


def _worst(failed: list[Exception]) -> Exception:
    """Choose the error to raise, and note the others on it."""
    error = next((exc for exc in failed if getattr(exc, "retryable", True)), failed[-1])
    for other in failed:
        if other is not error:
            what = "; ".join((error_text(other), *getattr(other, "__notes__", ())))
            add_note(error, f"another backend: {type(other).__name__}: {what}")
    return error
