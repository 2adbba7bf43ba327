"""What a key may have: how many requests at a time, how much in each, and what all may spend."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import anyio

from mellea_like.gateway.refusal import Refusal, budget_spent, too_many

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from mellea_like.gateway.config.gateway_config import KeyLimits
    from mellea_like.limits.budget import Budget

__all__ = ["IN_SCOPE", "IS_KNOWN", "AdmissionQueue", "Admitted", "KeyState", "Slot", "admitted"]

IN_SCOPE = "mellea_like.gateway"
"""Where the guard leaves what it found out about a request, in its ASGI scope."""

IS_KNOWN = "mellea_like.gateway.is_known"
"""In a scope, too: what the guard calls once it knows whose the request is."""

LONGEST_WAIT = 60.0
"""Upper bound of Retry-After, in seconds."""

WEIGHT = 0.2
"""Weight of the newest duration in the moving average."""

TOKENS = ("max_tokens", "max_completion_tokens")
"""The old name and the new one; a request may have both."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """A request that got through: whose it is, its parsed body (of a POST), what it may have."""

    key: str
    limits: KeyLimits
    body: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False)
    budget: Budget | None = None


def admitted(scope: Mapping[str, Any]) -> Admitted:
    """Return what the guard found out about a request."""
    found: Admitted = scope[IN_SCOPE]
    return found


class KeyState:
    """What is kept of a key while the gateway runs."""

    def __init__(self, name: str, limits: KeyLimits) -> None:
        self.name = name
        self.limits = limits
        self.queue = AdmissionQueue(name, limits)
        self.budget = None if limits.budget is None else limits.budget.make(name=f"key {name}")

    def check_budget(self) -> None:
        """Refuse a request of a key that has spent all it may."""
        if self.budget is not None and any(
            limit is not None and spent >= limit
            for spent, limit in zip(
                self.budget.spent, self.budget.statistics().limits, strict=False
            )
        ):
            raise budget_spent()

    def admit(self, body: Mapping[str, Any]) -> Admitted:
        """Refuse a request that asks for more than the key may ever have."""
        for name, most in (
            ("n", self.limits.max_n),
            *((t, self.limits.max_tokens) for t in TOKENS),
        ):
            given = body.get(name)
            if given is None:
                continue
            if isinstance(given, bool) or not isinstance(given, int) or given < 1:
                raise Refusal(400, f"{name} is a whole number, 1 or more", param=name)
            if given > most:
                message = f"{name} is {given}, and this key may ask for {most} at most"
                raise Refusal(400, message, param=name)
        return Admitted(self.name, self.limits, body, self.budget)


class Slot:
    """One request's place in a queue: it waits, or has been admitted since ``begun``."""

    __slots__ = ("begun",)

    def __init__(self) -> None:
        self.begun: float | None = None

    @property
    def admitted(self) -> bool:
        """Whether the request is being worked on."""
        return self.begun is not None


class AdmissionQueue:
    """Admits the requests of one key, so many at a time, first come, first served."""

    def __init__(self, name: str, limits: KeyLimits) -> None:
        self._name = name
        self._limits = limits
        self._capacity = anyio.CapacityLimiter(limits.concurrency)
        self._slots: set[Slot] = set()
        self._reading = 0
        self._average = 0.0

    @property
    def admitted(self) -> int:
        """How many are being worked on."""
        return self._capacity.borrowed_tokens

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._slots) - self.admitted

    def _check(self, count: int) -> None:
        limits = self._limits
        if count >= limits.concurrency + limits.queue:
            requests = "1 request" if limits.concurrency == 1 else f"{limits.concurrency} requests"
            message = (
                f"the key {self._name!r} has {requests} under way and"
                f" {limits.queue} waiting, which is all that it may: try again later"
            )
            raise too_many(message, self.retry_after())

    @contextmanager
    def reading(self) -> Generator[None]:
        """Count a request whose body is being read: the memory that bodies take has a bound."""
        self._check(max(self._reading, len(self._slots)))
        self._reading += 1
        try:
            yield
        finally:
            self._reading -= 1

    @contextmanager
    def slot(self) -> Generator[Slot]:
        """Give a request a slot, which is admitted at once if there is capacity."""
        self._check(len(self._slots))
        slot = Slot()
        self._slots.add(slot)
        try:
            try:
                self._capacity.acquire_on_behalf_of_nowait(slot)
                slot.begun = anyio.current_time()
            except anyio.WouldBlock:
                pass
            yield slot
        finally:
            self._slots.remove(slot)
            if slot.begun is not None:
                self._capacity.release_on_behalf_of(slot)
                took = anyio.current_time() - slot.begun
                self._average += (took - self._average) * (WEIGHT if self._average else 1.0)

    async def wait(self, slot: Slot) -> None:
        """Wait until a slot is admitted, for as long as the key's requests may."""
        seconds = self._limits.queue_seconds
        with anyio.move_on_after(seconds):
            await self._capacity.acquire_on_behalf_of(slot)
            slot.begun = anyio.current_time()
        if not slot.admitted:
            message = f"the key {self._name!r}: no place became free within {seconds:g} s"
            raise too_many(message, self.retry_after())

    def retry_after(self) -> float:
        """Return about when those who are here now will have been admitted, in seconds."""
        turns = (self.waiting + 1) / self._limits.concurrency
        return min(max(self._average * turns, 1.0), LONGEST_WAIT)
