"""Several backends in order of preference: during an outage of one, the next one is asked."""

from __future__ import annotations

from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from mellea_like.core.backend import (
    PATIENT,
    RESTATED,
    Options,
    can_coalesce,
    can_judge,
    checked_reply,
    innermost,
    is_backend,
)
from mellea_like.core.connection_errors import is_of_backend
from mellea_like.core.display import add_note, error_text
from mellea_like.core.generation import Generation
from mellea_like.errors import InvalidRequest
from mellea_like.limits.backoff_gate import gate_before
from mellea_like.limits.retry import Retry, RetryBackend
from mellea_like.runtime.event_loops import cancellation_lost, native_cancel_requests
from mellea_like.runtime.logs import inform

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
    from contextlib import AbstractAsyncContextManager

    from mellea_like.core.backend import Backend, Request
    from mellea_like.core.generation import Meter
    from mellea_like.limits.backoff_gate import BackoffGate
    from mellea_like.limits.budget import Budget

__all__ = ["FallbackBackend"]

T = TypeVar("T")


class _Member(NamedTuple):
    """One of the backends, both as it was given and with retries around it."""

    backend: Backend
    retrying: Any
    gate: BackoffGate | None  # None if no circuit breaker is used.

    def asked(self, request: Request) -> Request:
        model = request.options.model or getattr(self.backend, "model", None)
        return replace(request, meter=request.meter.attempt(model))

    def signed(self, reply: Generation, whole: Meter) -> Generation:
        """Return a reply with the cost of all tries, and with the name of its model if known."""
        model = reply.model or getattr(self.backend, "model", None)
        return replace(reply, model=model, usage=whole.usage)


class FallbackBackend:
    """Asks the first backend and, during its outages, the next.

    A request goes to the next backend if the current one can't give it a reply, because its
    circuit breaker is open, its error is permanent (a wrong key, an unknown model, a quota that is
    spent), or its retries are used up. While the breaker is open, requests go straight to the next
    backend, except for an occasional probe; once a probe is answered, requests go to the first
    backend again. Nothing else causes a switch. A reply that fails a requirement or was cut off is
    still a reply. If a limit around one of the backends refuses a request, `LimitExceeded` is
    raised, and no other backend is asked.

    A `FallbackBackend` retries by itself, separately for each backend, so strategies don't retry
    it. Each generation names in ``model`` the model that answered. A request costs the sum of all
    backends that were asked, and ledgers show each model's cost.

    A `FallbackBackend` streams if all its backends do; a stream may switch to the next backend
    until its first piece has arrived. It can judge if all its backends can. Telemetry names the
    first backend's model. A `RetryBackend` can't wrap it.

    Budgets and limiters around it admit each try. A budget charges each try at the price of the
    model that was asked, so a budget of money needs the prices of all models. If a limit refuses a
    further try, no other backend is asked, and the error has a note about the limit. Put budgets
    and limiters for a single backend around that backend, inside the `FallbackBackend`.

    Args:
        primary: the backend that is asked first.
        *others: the backends to ask if the first one can't reply, in order, at least one.
        retry: how often and how long each backend is tried before the next one. ``Retry(1)``
            switches after the first failure. A small ``max_retry_after`` avoids long waits that a
            server asks for.

    Attributes:
        backends: the backends, in order.
        retries: True.

    Raises:
        TypeError: an argument isn't a backend, ``retry`` isn't a `Retry`, or there is only one
            backend.
    """

    retries = True

    def __init__(self, primary: Backend, *others: Backend, retry: Retry | None = None) -> None:
        self.backends = (primary, *others)
        policy = Retry() if retry is None else retry
        for backend in self.backends:
            if not is_backend(backend):
                msg = f"FallbackBackend needs backends, with generate(request), not {backend!r}"
                raise TypeError(msg)
        if not others:
            msg = "FallbackBackend needs at least two backends: the first one and its replacement"
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
        """Whether requests may be combined into one; all of the backends must allow it."""
        return all(map(can_coalesce, self.backends))

    @property
    def defaults(self) -> Options:
        """The first backend's defaults, for options that a request leaves open."""
        defaults: Options = getattr(self.backends[0], "defaults", Options())
        return defaults

    async def generate(self, request: Request) -> Generation:
        """Return the reply of the first backend that has one.

        Raises:
            LimitExceeded: a limit around one of the backends refused the request.
            Exception: no backend had a reply. This is the first transient error, or the last error
                if none was transient.
        """
        whole = request.meter.attempt()

        async def ask(member: _Member, asked: Request) -> Generation:
            reply = checked_reply(member.backend, await member.retrying.generate(asked))
            asked.meter.finish(reply)
            return member.signed(reply, whole)

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
        async with AsyncExitStack() as stack:

            async def begin(member: _Member, asked: Request) -> AsyncIterator[str | Generation]:
                stack.callback(asked.meter.finish, None)
                pieces = await stack.enter_async_context(member.retrying.stream(asked))
                return await stack.enter_async_context(
                    aclosing(_signed(member, pieces, asked.meter, whole))
                )

            yield await self._first_that_answers(begin, replace(request, meter=whole))

    async def _first_that_answers(
        self, ask: Callable[[_Member, Request], Awaitable[T]], request: Request
    ) -> T:
        last, cancels = self._members[-1], native_cancel_requests()
        failed: list[Exception] = []
        try:
            for member in self._members:
                # The breaker's probe is under way or not yet due, so there is no reason to wait
                # here.
                if member is not last and member.gate is not None and member.gate.down:
                    continue
                if failed:
                    try:
                        await request.meter.readmit(request, failed[-1], member.backend)
                    except Exception as exc:
                        if exc is not failed[-1]:
                            raise
                        break  # The error has a note about the limit.
                    inform("%s; trying the next backend", error_text(failed[-1]))
                # A batch's requests wait only for the last backend.
                patient = PATIENT.set(PATIENT.get() if member is last else False)
                asked = member.asked(request)
                try:
                    return await ask(member, asked)
                except BaseException as exc:
                    asked.meter.finish(None)
                    restated = isinstance(exc, InvalidRequest) and RESTATED.get()
                    if restated or not is_of_backend(exc):
                        raise
                    failed.append(exc)
                finally:
                    PATIENT.reset(patient)
                if cancellation_lost(cancels):
                    raise failed[-1]
            raise _worst(failed)
        finally:
            failed.clear()  # Break the cycle between frame and exceptions.

    async def aclose(self) -> None:
        """Close the idle connections of all backends."""
        for backend in self.backends:
            close = getattr(backend, "aclose", None)
            if close is not None:
                await close()


def models_of(backend: Backend) -> tuple[str | None, ...]:
    """Return the models that may answer a backend's requests; a `FallbackBackend` has several."""
    inner = innermost(backend)
    if not isinstance(inner, FallbackBackend):
        return (getattr(backend, "model", None),)
    return tuple(dict.fromkeys(model for one in inner.backends for model in models_of(one)))


def check_judge_budget(budget: Budget, judge: Backend, options: Options, whose: str) -> None:
    """Make sure that a budget can tell what a judge's requests may cost; see `Budget.check`."""
    try:
        for model in models_of(judge):
            budget.check(options, model)
    except ValueError as exc:
        exc.add_note(
            f"this concerns the judge of {whose}: its options are the strategy's judge_options"
        )
        raise


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
    """Return the first transient error, or else the last error, with notes about the others."""
    error = next((exc for exc in failed if getattr(exc, "retryable", True)), failed[-1])
    for other in failed:
        if other is not error:
            what = "; ".join((error_text(other), *getattr(other, "__notes__", ())))
            add_note(error, f"another backend: {type(other).__name__}: {what}")
    return error
