"""Let draws that start together share a request for several choices, to pay for its prompt once."""

from __future__ import annotations

import math
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio

from mellea_like.coalescing.background_service import BackgroundService
from mellea_like.coalescing.coordinator.request_batch import SharedCost, own_copy
from mellea_like.core.argument_checks import real_number, whole_number
from mellea_like.core.backend import BackendWrapper
from mellea_like.core.generation import Generation, Meter
from mellea_like.errors import (
    BackendError,
    BackendUnavailable,
    InvalidRequest,
    ShutdownError,
)
from mellea_like.runtime.event_loops import foreign, split_cancellation
from mellea_like.runtime.logs import warn

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Hashable, Sequence

    from mellea_like.coalescing.coordinator.request_batch import CostPart
    from mellea_like.core.backend import Backend, Request

__all__ = ["ChoicesBackend", "ChoicesStatistics"]


class ChoicesStatistics(NamedTuple):
    """A snapshot of a `ChoicesBackend`.

    Attributes:
        asked: the number of requests that came.
        shared: the number of requests that were answered by a choice of a joint request.
        joint: the number of joint requests sent.
        alone: the number of requests that were passed on separately.
    """

    asked: int = 0
    shared: int = 0
    joint: int = 0
    alone: int = 0


class ChoicesBackend(BackendWrapper, BackgroundService):
    """A backend that merges equal requests into one request for several choices (``n``).

    If the first requests of a call's lanes arrive together, they become one request, whose prompt
    the server reads and bills once. With the schedule `Eager`, they do arrive together, unless a
    limiter around this backend delays some of them. Each choice is the reply of one draw: it
    streams, is checked early, and ends independently of the others. When one draw wins, or no draw
    is needed any more, the joint request is closed. A draw that loses earlier doesn't affect the
    others. The server still finishes the losing choice, because a single choice can't be closed.

    The prompt's tokens are split evenly between the draws that share a request. The usage of a draw
    is its share of the prompt, and the tokens of its reply that had arrived when it ended. The draw
    that ends last also gets the remaining tokens, and the joint request counts as its request,
    because the exact cost isn't known earlier. Since the split is an estimate, the request is
    counted in `Usage.unknown`, even if the total is known.

    The joint request has the seed of the first draw. The other seeds are not used, so draws are
    only as repeatable as their timing.

    Some servers (Ollama, Anthropic) ignore ``n`` and send one choice. This backend notices that,
    and sends the other requests and all later ones separately. It does the same if the server
    refuses ``n``.

    ```python
    async with ChoicesBackend(OpenAIBackend("m", base_url=url), 4) as backend:
        strategy = RejectionSamplingStrategy(backend, concurrency_budget=4)
    ```

    Args:
        inner: the backend inside, which must have ``stream_choices`` like `OpenAIBackend`. Put
            limiters and a `CachedBackend` around this backend, not inside it.
        most: the largest number of choices of a request, at least 2. Servers also have limits;
            llama.cpp's is the number of its slots.
        window: the seconds from the first request until the joint request is sent. It is sent
            earlier if ``most`` requests have come.

    Raises:
        TypeError: an argument is of the wrong type, or ``inner`` has no ``stream_choices``.
        ValueError: a number is out of range.
    """

    def __init__(self, inner: Backend, most: int = 4, *, window: float = 0.005) -> None:
        BackendWrapper.__init__(self, inner)
        BackgroundService.__init__(self)
        if not callable(getattr(inner, "stream_choices", None)):
            msg = (
                f"ChoicesBackend takes a backend with stream_choices, such as OpenAIBackend, not"
                f" {type(inner).__name__}: put limits and caches around the ChoicesBackend"
            )
            raise TypeError(msg)
        self.most = whole_number("ChoicesBackend: most", most, least=2)
        self.window = real_number("ChoicesBackend: window", window, least=0, unit="seconds")
        self._gathering: dict[Hashable, _Wave] = {}
        self._waves: set[_Wave] = set()
        self._one_by_one = False
        self._asked = self._shared = self._joint = self._alone = 0

    def statistics(self) -> ChoicesStatistics:
        """Return how many requests came, how many were shared, and how many were sent."""
        return ChoicesStatistics(self._asked, self._shared, self._joint, self._alone)

    async def generate(self, request: Request) -> Generation:
        """Answer one request, together with equal requests if there are any.

        Raises:
            BackendError: there is no reply.
            ShutdownError: this backend isn't open, or was closed.
        """
        return await self._whole(request)

    @asynccontextmanager
    async def _stream(self, request: Request) -> AsyncGenerator[AsyncIterator[str | Generation]]:
        self._check_open()
        self._asked += 1
        # Pieces of a choice's tool calls are only for this caller.
        alone = self._one_by_one or bool(request.tools)
        member = None if alone else self._join(request)
        if member is not None:
            try:
                if await member.is_shared():
                    self._shared += 1
                    yield member
                    return
            except BaseException:
                request.meter.sent_nothing()  # Has no effect once it has a part.
                raise
            finally:
                await member.leave()
            if member.part is not None:
                await request.meter.readmit(request, member.wave.unanswered())
        self._alone += 1
        async with super()._stream(request) as pieces:
            yield pieces
        if member is not None and member.wave.refusal:
            self._ask_one_by_one("refuses")  # The server takes single requests.

    def _join(self, request: Request) -> _Member:
        """Join the group that is gathering equal requests, or begin a new one."""
        key = _key(request)
        wave = self._gathering.get(key)
        if wave is None or wave.scope.cancel_called:  # Everyone has left that wave.
            wave = self._gathering[key] = _Wave()
            self._waves.add(wave)
            self._start(self._serve, key, wave, name="mellea_like choices")
        member = _Member(wave, request)
        wave.members.append(member)
        if len(wave.members) == self.most:
            del self._gathering[key]  # The next one begins a new wave.
            wave.full.set()
        return member

    async def _serve(self, key: Hashable, wave: _Wave) -> None:
        try:
            with wave.scope:
                with anyio.move_on_after(self.window):
                    await wave.full.wait()
                self._close_gathering(key, wave)
                with foreign(type(self.inner).__name__, BackendUnavailable):
                    await self._ask(wave)
        except Exception as exc:  # noqa: BLE001 (the backend's; its callers get it)
            wave.settle(exc)
        except BaseException as exc:
            stopped = split_cancellation(exc)[0] is not None
            closed = ShutdownError("this ChoicesBackend was closed before it answered")
            wave.settle(closed if stopped else exc)
            raise
        finally:
            self._close_gathering(key, wave)
            self._waves.discard(wave)
            wave.closed.set()
            self._progressed()

    def _close_gathering(self, key: Hashable, wave: _Wave) -> None:
        if self._gathering.get(key) is wave:
            del self._gathering[key]

    async def _ask(self, wave: _Wave) -> None:
        members = [member for member in wave.members if not member.done]
        # Which choice goes to whom, and whose seed counts, must not depend on the order of tasks.
        members.sort(key=lambda member: member.request.meta.iteration or 0)
        wave.members = members
        if len(members) < 2 or self._one_by_one:  # noqa: PLR2004 (a lone one shares with nobody)
            wave.settle(None)
            return
        first = members[0].request
        request = replace(first, meter=Meter(), meta=replace(first.meta, iteration=None))
        cost = SharedCost(request.meter, [1] * len(members), estimated=True)
        for member, part in zip(members, cost.parts(), strict=True):
            member.part = part
            member.request.meter.add(part)
        self._joint += 1
        inner: Any = self.inner
        cost.output_weights = arrived = [0] * len(members)
        index: int
        piece: str | Generation
        try:
            async with inner.stream_choices(request, len(members)) as choices:
                async for index, piece in choices:
                    arrived[index] += 1
                    missing = arrived.count(0)
                    if isinstance(piece, Generation) and missing == len(members) - 1:
                        # A single reply is handed over when the stream has ended.
                        self._charge_one(cost, members, arrived)
                    if piece:
                        members[index].take(piece)
                    if wave.over:
                        break  # Only abandoned choices are left.
                else:
                    if not all(arrived):
                        self._ask_one_by_one("ignores")
        except InvalidRequest as exc:
            if any(arrived):
                raise
            wave.refusal = str(exc)
        wave.settle(None)

    def _charge_one(self, cost: SharedCost, members: list[_Member], arrived: Sequence[int]) -> None:
        """Charge the whole cost to the only request that got a reply."""
        cost.input_weights = [min(1, pieces) for pieces in arrived]
        for member, pieces in zip(members, arrived, strict=True):
            if not pieces and member.part is not None:
                member.part.leave()

    def _ask_one_by_one(self, does: str) -> None:
        if not self._one_by_one:
            self._one_by_one = True
            warn("the server of %r %s n=: choices are requested one by one", self.inner, does)

    # The hooks of `BackgroundService`

    def _idle(self) -> bool:
        return not self._waves

    def _settle_all(self, error: ShutdownError) -> None:
        for wave in self._waves:
            wave.settle(error)
            wave.scope.cancel()


@dataclass(slots=True, eq=False)
class _Wave:
    """A group of equal requests that are sent together."""

    members: list[_Member] = field(default_factory=list["_Member"])
    full: anyio.Event = field(default_factory=anyio.Event)
    refusal: str = ""
    """The server's words if it refused to send several choices."""
    closed: anyio.Event = field(default_factory=anyio.Event)
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)

    @property
    def over(self) -> bool:
        """Whether each member has received its whole reply, failed or left."""
        return all(member.done for member in self.members)

    def unanswered(self) -> BackendError:
        """Return the reason why a member has no choice. Budgets charge no reply for it."""
        why = self.refusal or "the server returned fewer choices than requested"
        return BackendError(why, retryable=True)  # A lone request may succeed.

    def settle(self, error: BaseException | None) -> None:
        """End unfinished members with ``error``; with None, their requests are sent separately."""
        for number, member in enumerate(m for m in self.members if not m.done):
            member.fail(error if error is None or not number else own_copy(error))


class _Member:
    """One caller that shares a request, as an iterator over the pieces of its reply."""

    def __init__(self, wave: _Wave, request: Request) -> None:
        self.wave = wave
        self.request = request
        self.part: CostPart | None = None
        self.done = False
        self._put, self._get = anyio.create_memory_object_stream[Any](math.inf)
        self._next: Any = None
        self._over = False

    def take(self, piece: str | Generation) -> None:
        if self.done:
            return  # Nobody wants it any more.
        if isinstance(piece, Generation) and self.part is not None:
            self.part.leave()
            piece = replace(piece, usage=self.part.usage)
            self.done = True
        self._put.send_nowait(piece)

    def fail(self, error: BaseException | None) -> None:
        """End without a reply. If ``error`` is None, the request is sent separately instead."""
        self.done = True
        self._put.send_nowait(error)

    async def is_shared(self) -> bool:
        """Wait for the first piece; return False if the request must be sent separately instead."""
        self._next = await self._get.receive()
        if isinstance(self._next, BaseException):
            raise self._next
        return self._next is not None

    def __aiter__(self) -> _Member:
        return self

    async def __anext__(self) -> str | Generation:
        if self._over:
            raise StopAsyncIteration
        if self._next is None:
            self._next = await self._get.receive()
        if isinstance(self._next, BaseException):
            raise self._next
        piece: str | Generation = self._next
        self._next, self._over = None, isinstance(piece, Generation)
        return piece

    async def leave(self) -> None:
        """Leave the joint request; the last member to leave waits until the request is closed."""
        self._put.close()
        self._get.close()
        if not self.done:
            self.done = True
            if self.part is not None:
                self.part.leave()
            if self.wave.over:
                self.wave.scope.cancel()
        if self.wave.over:
            with anyio.CancelScope(shield=True):
                await self.wave.closed.wait()


def _key(request: Request) -> Hashable:
    """Return a key that is equal for requests that may become choices of one joint request."""
    o, meta = request.options, request.meta
    warmth = (o.model, o.temperature, o.top_p, o.max_tokens, o.stop, repr(dict(o.extra)))
    return (meta.sampling_id, meta.purpose, request.messages, *warmth, id(request.format))
