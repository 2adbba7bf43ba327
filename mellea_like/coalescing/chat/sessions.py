"""All sessions of a dispatcher: whose turn it is, when to look at which, and what is forgotten."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Generic, TypeVar

from mellea_like.coalescing.alarms import Alarms
from mellea_like.coalescing.chat.session import ChatPhase, Rules, Session

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

__all__ = ["Sessions"]

M = TypeVar("M")
R = TypeVar("R")


class Sessions(Generic[M, R]):
    """Sessions by their keys. Nothing here waits; the time is passed in."""

    def __init__(self, rules: Rules, most: int, idle_ttl: float) -> None:
        self._rules = rules
        self._most = most
        self._idle_ttl = idle_ttl
        self._by_key: dict[Hashable, Session[M, R]] = {}
        self._idle: dict[Hashable, float] = {}  # Since when, the longest first.
        self._ready: dict[Hashable, Session[M, R]] = {}  # In the order they became so.
        self._alarms: Alarms[Session[M, R]] = Alarms()

    def __len__(self) -> int:
        return len(self._by_key)

    def __iter__(self) -> Iterator[Session[M, R]]:
        return iter(tuple(self._by_key.values()))

    @property
    def ready(self) -> int:
        """How many wait for their turn to run."""
        return len(self._ready)

    @property
    def idle(self) -> int:
        """How many have nothing to do."""
        return len(self._idle)

    def get(self, key: Hashable) -> Session[M, R] | None:
        """Return a session, or None where it is not known."""
        return self._by_key.get(key)

    def open(self, key: Hashable) -> Session[M, R] | None:
        """Return a session, a new one where it is not known."""
        session = self._by_key.get(key)
        if session is not None:
            return session
        if len(self._by_key) >= self._most:
            if not self._idle:
                return None
            self._forget(next(iter(self._idle)))
        session = self._by_key[key] = Session(key, self._rules)
        return session

    def file(self, session: Session[M, R], now: float) -> None:
        """Put a session where it belongs after anything happened to it."""
        key = session.key
        if session.due() <= now:
            session.ripen()
            self._ready[key] = session
        else:
            self._ready.pop(key, None)
        if session.phase is not ChatPhase.IDLE:
            self._idle.pop(key, None)
            self._alarms.set(session, session.alarm())
        elif key not in self._idle:
            self._alarms.clear(session)
            self._idle[key] = now

    def take_ready(self) -> Session[M, R] | None:
        """Take the session whose turn to run it is out of the line."""
        if not self._ready:
            return None
        return self._ready.pop(next(iter(self._ready)))

    def forget(self, now: float) -> None:
        """Forget those that have had nothing to do for long enough."""
        while self._idle:
            key, since = next(iter(self._idle.items()))
            if since + self._idle_ttl > now:
                break
            self._forget(key)

    def due(self, now: float) -> list[Session[M, R]]:
        """Find those that are to be looked at now."""
        return self._alarms.due(now)

    def next_look(self) -> float:
        """Return when `forget` or `due` will have something to do; ``math.inf`` for never."""
        forget = next(iter(self._idle.values()), math.inf) + self._idle_ttl
        return min(self._alarms.next(), forget)

    def _forget(self, key: Hashable) -> None:
        del self._idle[key], self._by_key[key]
