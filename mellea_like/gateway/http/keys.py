"""Who may ask, and how much: bearer tokens, the ``Host`` header, and what each key may have."""

from __future__ import annotations

import hmac
import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mellea_like.gateway.config.gateway_config import ANONYMOUS
from mellea_like.gateway.config.tokens import METRICS_KEY, Tokens, digest
from mellea_like.gateway.refusal import Refusal

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from mellea_like.gateway.config.gateway_config import (
        KeyConfig,
        KeyLimits,
        ServerConfig,
        TokenSource,
    )
    from mellea_like.limits.budget import Budget

__all__ = ["IN_SCOPE", "METRICS_KEY", "Admitted", "Keys", "admitted", "check_host"]

IN_SCOPE = "mellea_like.gateway"
"""Where the guard leaves what it found out about a request, in its ASGI scope."""

HOST_AND_PORT = re.compile(r"(?:\[([^\[\]]+)\]|([^:\[\]]+))(?::[0-9]*)?")

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")


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
