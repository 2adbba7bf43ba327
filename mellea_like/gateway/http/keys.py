"""Who may ask, and how much: bearer tokens, the ``Host`` header, and what each key may have."""

from __future__ import annotations

import hmac
import os
import re
import time
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import anyio

from mellea_like.core.display import plural
from mellea_like.gateway.config.gateway_config import ANONYMOUS
from mellea_like.gateway.config.periods import end_of_period
from mellea_like.gateway.config.tokens import METRICS_KEY, Tokens, digest
from mellea_like.gateway.refusal import NO_BUDGET_SOON, Refusal, budget_spent, too_many
from mellea_like.web import while_here

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable, Mapping

    from mellea_like.core.prices import Price
    from mellea_like.gateway.config.gateway_config import (
        KeyConfig,
        KeyLimits,
        ServerConfig,
        TokenSource,
    )
    from mellea_like.limits.budget import Budget

__all__ = ["IN_SCOPE", "METRICS_KEY", "Admitted", "KeyState", "Keys", "admitted", "check_host"]

IN_SCOPE = "mellea_like.gateway"
"""Where the guard leaves what it found out about a request, in its ASGI scope."""

HOST_AND_PORT = re.compile(r"(?:\[([^\[\]]+)\]|([^:\[\]]+))(?::[0-9]*)?")

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")

LONGEST_WAIT = 60.0
"""Upper bound of Retry-After, in seconds."""

WEIGHT = 0.2
"""Weight of the newest duration in the moving average."""


class Keys:
    """The tokens that open the gateway, known by their digests only."""

    def __init__(
        self,
        keys: Mapping[str, KeyConfig],
        environ: Mapping[str, str] | None = None,
        metrics_key: TokenSource | None = None,
    ) -> None:
        environ = os.environ if environ is None else environ
        tokens = Tokens(keys, metrics_key, environ)
        if tokens.problems:
            raise ValueError(tokens.problems[0].what)
        self._owners = tokens.owners
        self._metrics = tokens.metrics

    def __bool__(self) -> bool:
        return bool(self._owners)

    def owner(self, headers: Iterable[tuple[bytes, bytes]]) -> str:
        """Find whose token a request carries; `ANONYMOUS` where no keys are configured."""
        # Compare equal-length digests, always with every key: constant time.
        if not self._owners:
            return ANONYMOUS
        given, presented = _presented(headers)
        found = [self._owners[d] for d in self._owners if hmac.compare_digest(presented, d)]
        if found:
            return found[0]
        raise _unauthorized(len(given))

    def require_metrics_key(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Refuse a request that does not carry the token for metrics alone."""
        given, presented = _presented(headers)
        if self._metrics is None or not hmac.compare_digest(presented, self._metrics):
            raise _unauthorized(len(given))


def _presented(headers: Iterable[tuple[bytes, bytes]]) -> tuple[list[bytes], bytes]:
    """Return the headers that carry tokens, and the token's digest if there is one of them."""
    given = [value for name, value in headers if name == b"authorization"]
    scheme, _, token = given[0].partition(b" ") if len(given) == 1 else (b"", b"", b"")
    return given, digest(token.strip()) if scheme.lower() == b"bearer" else b""


def _unauthorized(given: int) -> Refusal:
    if given > 1:
        message = "there is more than one Authorization header: send one"
    elif not given:
        message = "no API key: send it in the header Authorization: Bearer <key>"
    else:
        message = "the API key is not one of this gateway's"
    return Refusal(
        401,
        message,
        kind="authentication_error",
        code="invalid_api_key",
        headers={"www-authenticate": "Bearer"},
    )


# --- DNS rebinding -------------------------------------------------------------------------------


def check_host(headers: Iterable[tuple[bytes, bytes]], server: ServerConfig) -> None:
    """Refuse a request that was meant for another host."""
    # Where no key is needed, a page in a browser on this machine could ask under its own site's
    # name, having it resolve to 127.0.0.1 (DNS rebinding). Its requests carry that name.
    hosts = [value for name, value in headers if name == b"host"]
    name = _without_port(hosts[0].decode("latin-1")) if len(hosts) == 1 else ""
    ours = {*LOOPBACK_NAMES, server.host, *server.allowed_hosts}
    if not name or name not in {_without_port(host) for host in ours}:
        raise Refusal(
            403,
            "the Host header names no host of this gateway: where no keys are configured, only the"
            " loopback's names and server.allowed_hosts are answered",
            kind="permission_error",
            code="host_not_allowed",
        )


def _without_port(host: str) -> str:
    host = host.strip().lower()
    if host.count(":") > 1 and not host.startswith("["):
        return host  # A bare IPv6 address, as in the configuration.
    parts = HOST_AND_PORT.fullmatch(host)
    return (parts[1] or parts[2]).rstrip(".") if parts is not None else ""


# --- how much ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Admitted:
    """A request that got through: whose it is, what it may have, its parsed body (of a POST)."""

    key: str
    limits: KeyLimits
    budget: Budget | None = None
    body: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False)

    def may_use(self, model: str) -> bool:
        """Tell whether it may ask for a model."""
        return self.limits.allows(model)


def admitted(scope: Mapping[str, Any]) -> Admitted:
    """Return what the guard found out about a request."""
    found: Admitted = scope[IN_SCOPE]
    return found


class KeyState:
    """What is kept of a key while the gateway runs: its budget, and its requests."""

    def __init__(
        self,
        name: str,
        limits: KeyLimits,
        *,
        now: Callable[[], float] = time.time,
        changed: Callable[[KeyState], object] | None = None,
    ) -> None:
        self.name = name
        self._changed: Callable[[KeyState], object] = changed or bool
        self.limits = limits
        self.prices: Mapping[str, Price] | None = None
        self._now = now  # The time of day, in seconds since 1970.
        self._budget: Budget | None = None
        self._ends = 0.0
        self._here = 0
        self._turns = anyio.CapacityLimiter(limits.concurrency)
        self._average = 0.0
        self._changed(self)

    def change(self, to: KeyState) -> None:
        """Take the limits of another state of the key; what is under way stays counted."""
        self.limits, self.prices = to.limits, to.prices
        self._turns.total_tokens = to.limits.concurrency
        self._budget = None

    def may_use(self, model: str) -> bool:
        """Tell whether it may ask for a model."""
        return self.limits.allows(model)

    @property
    def budget(self) -> Budget | None:
        """What it may spend in this period; a request is charged to the one that it began in."""
        spec = self.limits.budget
        if spec is None:
            return None
        now = self._now()
        if self._budget is None or (spec.per is not None and now >= self._ends):
            self._budget = spec.make(name=f"key {self.name}", prices=self.prices)
            if spec.per is not None:
                self._ends = end_of_period(now, spec.per)
        return self._budget

    def seconds_to_reset(self) -> float:
        """Return when the budget is a new one, in seconds from now."""
        spec = self.limits.budget
        return NO_BUDGET_SOON if spec is None or spec.per is None else self._ends - self._now()

    @property
    def in_flight(self) -> int:
        """How many requests are being worked on."""
        return self._turns.borrowed_tokens

    @property
    def waiting(self) -> int:
        """How many wait for their turn."""
        return self._here - self.in_flight

    def check_budget(self) -> None:
        """Refuse a request of a key that has spent all it may."""
        budget = self.budget
        if budget is not None and any(
            limit is not None and spent >= limit
            for spent, limit in zip(budget.spent, budget.limits, strict=False)
        ):
            raise budget_spent()

    @contextmanager
    def queued(self) -> Generator[None]:
        """Count a request, from before its body is read: the memory of bodies has a bound."""
        limits = self.limits
        if self._here >= limits.concurrency + limits.queue:
            requests = plural(limits.concurrency, "request")
            message = (
                f"the key {self.name!r} has {requests} under way and"
                f" {limits.queue} waiting, which is all that it may: try again later"
            )
            raise too_many(message, self.retry_after())
        self._here += 1
        self._changed(self)
        try:
            yield
        finally:
            self._here -= 1
            self._changed(self)

    @asynccontextmanager
    async def turn(
        self, receive: Callable[[], Awaitable[Mapping[str, Any]]]
    ) -> AsyncGenerator[None]:
        """Wait for a request's turn, first come, first served, while its caller is there."""
        slot, began = object(), None
        try:
            try:
                self._turns.acquire_on_behalf_of_nowait(slot)
            except anyio.WouldBlock:
                await while_here(receive, lambda: self._wait(slot))
            began = anyio.current_time()
            self._changed(self)
            yield
        finally:
            with suppress(RuntimeError):  # It may be gone before its turn came, or just then.
                self._turns.release_on_behalf_of(slot)
                self._changed(self)
            if began is not None:
                took = anyio.current_time() - began
                self._average += (took - self._average) * (WEIGHT if self._average else 1.0)

    async def _wait(self, slot: object) -> None:
        seconds = self.limits.queue_seconds
        with anyio.move_on_after(seconds):
            await self._turns.acquire_on_behalf_of(slot)
            return
        message = f"the key {self.name!r}: no place became free within {seconds:g} s"
        raise too_many(message, self.retry_after())

    def retry_after(self) -> float:
        """Return about when those who are here now will have had their turn, in seconds."""
        turns = (self.waiting + 1) / self.limits.concurrency
        return min(max(self._average * turns, 1.0), LONGEST_WAIT)
