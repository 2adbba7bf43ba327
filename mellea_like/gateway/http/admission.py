"""Who is worked on now, who waits, and who is sent away: one line for each key."""

from __future__ import annotations

from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

import anyio

from mellea_like.gateway.http.refusal import Refusal, too_many

if TYPE_CHECKING:
    from collections.abc import Generator

    from mellea_like.gateway.config.server import KeyLimits

__all__ = ["Door", "Line", "Seat", "budget_spent", "check_amounts"]

LONGEST_WAIT = 60.0
"""Seconds: what a caller is told at most, in ``Retry-After``."""

BUDGET_WAIT = 3600.0
"""Seconds: a budget does not come back while the gateway runs, but `Retry-After` needs a number."""

WEIGHT = 0.2
"""Of the newest duration in the average of all."""


class Seat:
    """One request's place in a line."""

    __slots__ = ("begun", "state")

    def __init__(self) -> None:
        self.state: Literal["new", "waiting", "inside", "gone"] = "new"
        self.begun = 0.0

    @property
    def inside(self) -> bool:
        """Whether it is being worked on."""
        return self.state == "inside"


class Line:
    """The line of one key: first come, first served. It waits for nothing and knows no clock.

    Args:
        concurrency: how many are inside at a time.
        queue: how many may wait.
    """

    __slots__ = ("_average", "_concurrency", "_queue", "_waiting", "inside")

    def __init__(self, concurrency: int, queue: int) -> None:
        self._concurrency = concurrency
        self._queue = queue
        self._waiting: deque[Seat] = deque()
        self._average = 0.0
        self.inside = 0

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._waiting)

    @property
    def full(self) -> bool:
        """Whether there is no room for one more, not even to wait."""
        return self.inside >= self._concurrency and self.waiting >= self._queue

    def enter(self, seat: Seat, now: float) -> bool:
        """Let a new request in, or have it wait.

        Args:
            seat: its place, which is in no line yet.
            now: the time in seconds.

        Returns:
            False if there is no room; the seat is in no line then.
        """
        if self.full:
            return False
        seat.state = "waiting"
        self._waiting.append(seat)
        self._admit(now)
        return True

    def leave(self, seat: Seat, now: float) -> list[Seat]:
        """Take a request out of the line, whether it waits or is inside; else do nothing.

        Args:
            seat: its place.
            now: the time in seconds.

        Returns:
            Those who are inside because of that.
        """
        if seat.state == "waiting":
            self._waiting.remove(seat)
        elif seat.state == "inside":
            self.inside -= 1
            took = max(0.0, now - seat.begun)
            self._average += (took - self._average) * (WEIGHT if self._average else 1.0)
        seat.state = "gone"
        return self._admit(now)

    def retry_after(self) -> float:
        """Return how long one who is sent away should wait, in seconds, from 1 to a minute.

        That is about when those who are in the line now will have been let in.
        """
        turns = (self.waiting + 1) / self._concurrency
        return min(max(self._average * turns, 1.0), LONGEST_WAIT)

    def _admit(self, now: float) -> list[Seat]:
        admitted: list[Seat] = []
        while self._waiting and self.inside < self._concurrency:
            seat = self._waiting.popleft()
            seat.state = "inside"
            seat.begun = now
            self.inside += 1
            admitted.append(seat)
        return admitted


class Door:
    """Lets the requests of one key in, as its `Line` says.

    Args:
        name: the key's name.
        limits: its limits.
    """

    def __init__(self, name: str, limits: KeyLimits) -> None:
        self._name = name
        self._limits = limits
        self._bells: dict[Seat, anyio.Event] = {}
        self._reading = 0
        self.line = Line(limits.concurrency, limits.queue)

    @contextmanager
    def reading(self) -> Generator[None]:
        """Count a request whose body is being read; enter with ``with``.

        There are no more such bodies at a time than requests under way or waiting: so what they
        take of memory has a bound.

        Yields:
            Nothing.

        Raises:
            Refusal: there is no room for the request, not even to wait.
        """
        self._check(full=self._reading >= self._limits.concurrency + self._limits.queue)
        self._reading += 1
        try:
            yield
        finally:
            self._reading -= 1

    def _check(self, *, full: bool = False) -> None:
        if full or self.line.full:
            limits = self._limits
            requests = "1 request" if limits.concurrency == 1 else f"{limits.concurrency} requests"
            message = (
                f"the key {self._name!r} has {requests} under way and"
                f" {limits.queue} waiting, which is all that it may: try again later"
            )
            raise too_many(message, self.line.retry_after())

    def join(self) -> Seat:
        """Put a request into the line; it is to `leave`, whatever happens.

        Returns:
            Its seat.

        Raises:
            Refusal: there is no room for it, not even to wait.
        """
        self._check()
        seat = Seat()
        self._bells[seat] = anyio.Event()
        self.line.enter(seat, anyio.current_time())
        return seat

    async def turn(self, seat: Seat) -> bool:
        """Wait until it is a request's turn, for as long as the key may.

        Args:
            seat: its seat.

        Returns:
            Whether it is.
        """
        with anyio.move_on_after(self._limits.queue_seconds):
            if not seat.inside:
                await self._bells[seat].wait()
        return seat.inside

    def leave(self, seat: Seat) -> None:
        """Take a request out of the line, and call the next one.

        Args:
            seat: its seat.
        """
        del self._bells[seat]
        for admitted in self.line.leave(seat, anyio.current_time()):
            self._bells[admitted].set()

    def too_late(self) -> Refusal:
        """Return what is answered to a request that has waited too long."""
        seconds = self._limits.queue_seconds
        message = f"the key {self._name!r}: no place became free within {seconds:g} s"
        return too_many(message, self.line.retry_after())


def check_amounts(n: object, max_tokens: object, limits: KeyLimits) -> None:
    """Refuse a request that asks for more than its key may.

    Args:
        n: the request's ``n``, or None.
        max_tokens: its ``max_tokens`` or ``max_completion_tokens``, or None.
        limits: the key's limits.

    Raises:
        Refusal: a number is too high, or is none.
    """
    for name, given, most in (
        ("n", n, limits.max_n),
        ("max_tokens", max_tokens, limits.max_tokens),
    ):
        if given is None:
            continue
        if isinstance(given, bool) or not isinstance(given, int) or given < 1:
            raise Refusal(400, f"{name} is a whole number, 1 or more", param=name)
        if given > most:
            message = f"{name} is {given}, and this key may ask for {most} at most"
            raise Refusal(400, message, param=name)


def budget_spent() -> Refusal:
    """Make the answer to a key whose budget is spent.

    Returns:
        The refusal.
    """
    refusal = too_many("this key's budget is spent", BUDGET_WAIT, "insufficient_quota")
    # The same request will be refused again: OpenAI's clients need not try it.
    refusal.headers["x-should-retry"] = "false"
    return refusal
