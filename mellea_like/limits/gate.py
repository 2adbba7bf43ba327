"""One gate for each backend and key: when one request is told to wait, all others wait too."""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakValueDictionary, ref

import anyio

from mellea_like.core.wrapping import innermost
from mellea_like.errors import RateLimited
from mellea_like.runtime.timeline import Timeline

if TYPE_CHECKING:
    from collections.abc import Hashable

    from mellea_like.core.backend import Backend, Request
    from mellea_like.limits.retry import Retry

__all__ = [
    "Gate",
    "GateStatistics",
    "come_back_in",
    "draw",
    "gate_of",
    "spread_after",
    "why_not_wait",
]

SPREAD = 0.1
"""Those who waited arrive spread over this share of the time that the gate was closed."""

MAX_SPREAD = 1.0
"""... and over this many seconds at most."""

TOO_MANY_REQUESTS = 429

EXACT = 100.0
"""Seconds; of longer times, nobody reads a fraction of a second."""


class GateStatistics(NamedTuple):
    """A look at a gate.

    Attributes:
        closings: how often it was closed or kept closed for longer.
        waiting: requests that wait for it now.
        waited: requests that ever waited for it.
        refused: requests that would have had to wait for too long, and failed unsent.
    """

    closings: int
    waiting: int
    waited: int
    refused: int


class Gate:
    """Stands before a backend, and is closed while its server wants to be left alone.

    A gate outlives event loops. Requests that waited for it do not arrive all at once: each adds a
    random part of a tenth of the time that the gate was closed, at most of a second.
    """

    __slots__ = (
        "__weakref__",
        "_back",
        "_closings",
        "_opens",
        "_refused",
        "_spread",
        "_timeline",
        "_waited",
        "_waiting",
    )

    def __init__(self) -> None:
        self._timeline = Timeline()
        self._opens: float | None = None
        self._back = 0.0
        self._spread = 0.0
        self._closings = 0
        self._waiting = 0
        self._waited = 0
        self._refused = 0

    @property
    def closed(self) -> bool:
        """Whether a request has to wait now. Cheap while it is open: ask before each request."""
        opens = self._opens  # Another thread's event loop may open it meanwhile.
        return opens is not None and self._still_closed(opens)

    def close(self, seconds: float, *, told: float | None = None) -> None:
        """Close the gate, or keep it closed for longer; never for less than it is already.

        Args:
            seconds: for how long from now.
            told: how long the server wants to be left alone, where that is longer: requests that
                come meanwhile obey it, or fail if they may not wait so long. When the gate opens,
                the server is asked again.
        """
        now = self._timeline.now()
        opens, back = now + seconds, now + (seconds if told is None else max(told, seconds))
        before = self._opens
        if before is not None and now < before:
            opens, back = max(opens, before), max(back, self._back)
        self._opens, self._back = opens, back
        self._spread = spread_after(back - now)
        self._closings += 1

    async def wait(self, request: Request, policy: Retry) -> None:
        """Wait until the gate is open, if a request may wait so long; else fail now.

        Args:
            request: the request that is to be sent. If it is not, its meter says so.
            policy: how long it may wait at most, besides its deadline.

        Raises:
            RateLimited: the wait would end too late; ``retry_after`` says when to come back.
        """
        self._waiting += 1
        self._waited += 1
        try:
            turn = 0
            while self.closed:
                await self._wait_once(request, policy, turn)
                turn += 1
        except BaseException:
            request.meter.sent_nothing()
            raise
        finally:
            self._waiting -= 1

    def statistics(self) -> GateStatistics:
        """Return a look at the gate.

        Returns:
            The numbers of this moment.
        """
        return GateStatistics(self._closings, self._waiting, self._waited, self._refused)

    async def _wait_once(self, request: Request, policy: Retry, turn: int) -> None:
        left = self._back - self._timeline.now()
        until = self._back + self._spread * draw(request, f"gate {turn}")
        deadline = request.meta.deadline
        time_left = math.inf if deadline is None else deadline - anyio.current_time()
        late = until - self._timeline.now()
        why = why_not_wait(left, late, time_left, policy.max_retry_after)
        if why:
            self._refused += 1
            msg = f"this backend's server asked to be left alone: {come_back_in(left)}; {why}"
            raise RateLimited(
                msg, status=TOO_MANY_REQUESTS, retryable=False, retry_after=max(left, 0.0)
            )
        await anyio.sleep_until(self._timeline.on_loop(until))

    def _still_closed(self, opens: float) -> bool:
        if self._timeline.now() < opens:
            return True
        if self._opens == opens:
            self._opens = None
        return False


def spread_after(seconds: float) -> float:
    """Return over how long those who waited are spread when a gate opens.

    Args:
        seconds: how long it was closed.

    Returns:
        Seconds.
    """
    return min(SPREAD * seconds, MAX_SPREAD)


def why_not_wait(wait: float, ends: float, time_left: float, cap: float) -> str:
    """Decide whether a request may wait.

    Args:
        wait: how long the server wants it to wait, in seconds.
        ends: in how many seconds it would be sent.
        time_left: in how many seconds its call's time is up.
        cap: how long it may wait.

    Returns:
        Why it may not; empty where it may.
    """
    if wait > cap:
        return f"that is longer than this request may wait (max_retry_after={cap:g})"
    if ends > time_left:
        return f"the call's time is up in {max(time_left, 0.0):.3g} s"
    return ""


def come_back_in(seconds: float) -> str:
    """Say when to come back.

    Args:
        seconds: how long from now.

    Returns:
        Words for a message.
    """
    return f"come back in {seconds:.0f} s" if seconds >= EXACT else f"come back in {seconds:.3g} s"


def draw(request: Request, purpose: str) -> float:
    """Draw a random number for a request.

    Args:
        request: the request; with a seed in its options the number is the same each time.
        purpose: what the number is for; other purposes, other numbers.

    Returns:
        A number from 0 to below 1.
    """
    seed = request.options.seed
    if seed is None:
        return random.random()
    meta = request.meta
    return random.Random(f"{seed} {meta.iteration} {meta.purpose} {purpose}").random()


_by_key: WeakValueDictionary[Hashable, Gate] = WeakValueDictionary()
_by_backend: dict[int, tuple[ref[Any], Gate]] = {}
"""By the backend's ``id``: backends need not be hashable, and two that are equal stay two."""


def gate_of(backend: Backend) -> Gate:
    """Return the gate before a backend.

    Backends whose ``limit_key`` is equal share one: an `OpenAIBackend`'s is its server and key. A
    backend without it has a gate of its own.

    Args:
        backend: the backend, wrapped or not.

    Returns:
        The gate of what is inside all wrappers; the same as long as that lives. A backend that
        can't be weakly referenced and has no key gets a new one each time.
    """
    backend = innermost(backend)
    found = _by_backend.get(id(backend))
    if found is not None and found[0]() is backend:
        return found[1]
    gate = _shared(getattr(backend, "limit_key", None))
    number = id(backend)

    def forget(dead: ref[Any], gates: dict[int, tuple[ref[Any], Gate]] = _by_backend) -> None:
        entry = gates.get(number)
        if entry is not None and entry[0] is dead:
            del gates[number]

    try:
        _by_backend[number] = ref(backend, forget), gate
    except TypeError:
        return gate
    return gate


def _shared(key: object) -> Gate:
    if key is None:
        return Gate()
    try:
        return _by_key.setdefault(key, Gate())
    except TypeError:  # It can't be hashed.
        return Gate()
