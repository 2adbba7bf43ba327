"""Who may ask: bearer tokens, the address to listen on, and the ``Host`` header."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import re
import socket
from typing import TYPE_CHECKING, NamedTuple, cast

from mellea_like.gateway.config.gateway_config import ANONYMOUS
from mellea_like.gateway.refusal import Refusal

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from mellea_like.gateway.config.gateway_config import KeyConfig, ServerConfig

__all__ = ["Address", "Keys", "check_host", "listening_address"]

SHORTEST_TOKEN = 16
"""Characters; a shorter token can be guessed."""

HOST_AND_PORT = re.compile(r"(?:\[([^\[\]]+)\]|([^:\[\]]+))(?::[0-9]*)?")

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")


class Keys:
    """The tokens that open the gateway, known by their digests only."""

    def __init__(
        self, keys: Mapping[str, KeyConfig], environ: Mapping[str, str] | None = None
    ) -> None:
        environ = os.environ if environ is None else environ
        self._digests = {name: _configured(name, key, environ) for name, key in keys.items()}
        names: dict[bytes, str] = {}
        for name, digest in self._digests.items():
            if digest in names:
                msg = f"the keys {names[digest]!r} and {name!r} have the same token"
                raise ValueError(msg)
            names[digest] = name

    def __bool__(self) -> bool:
        return bool(self._digests)

    def owner(self, headers: Iterable[tuple[bytes, bytes]]) -> str:
        """Find whose token a request carries; `ANONYMOUS` where no keys are configured."""
        # Compare equal-length digests, always with every key: constant time.
        if not self._digests:
            return ANONYMOUS
        given = [value for name, value in headers if name == b"authorization"]
        scheme, _, token = given[0].partition(b" ") if len(given) == 1 else (b"", b"", b"")
        presented = _digest(token.strip())
        found = [
            name for name, digest in self._digests.items() if hmac.compare_digest(presented, digest)
        ]
        if scheme.lower() == b"bearer" and found:
            return found[0]
        if len(given) > 1:
            message = "there is more than one Authorization header: send one"
        elif not given:
            message = "no API key: send it in the header Authorization: Bearer <key>"
        else:
            message = "the API key is not one of this gateway's"
        raise Refusal(
            401,
            message,
            kind="authentication_error",
            code="invalid_api_key",
            headers={"www-authenticate": "Bearer"},
        )


def _configured(name: str, key: KeyConfig, environ: Mapping[str, str]) -> bytes:
    if key.sha256 is not None:
        return bytes.fromhex(key.sha256)
    token = environ.get(key.env or "", "").strip()
    if not token:
        msg = f"the key {name!r} takes its token from {key.env}, which is not set"
        raise ValueError(msg)
    if len(token) < SHORTEST_TOKEN:
        msg = (
            f"the token of the key {name!r} (in {key.env}) is shorter than {SHORTEST_TOKEN}"
            " characters: make a random one, with: openssl rand -hex 32"
        )
        raise ValueError(msg)
    if not all("!" <= c <= "~" for c in token):
        msg = f"the token of the key {name!r} (in {key.env}) can't be sent in an HTTP header"
        raise ValueError(msg)
    return _digest(token.encode("ascii"))


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()


# --- where to listen -----------------------------------------------------------------------------


class Address(NamedTuple):
    """An address to listen on, as it was checked: not looked up a second time."""

    family: int
    sockaddr: tuple[str | int, ...]


def listening_address(server: ServerConfig, *, has_keys: bool) -> Address:
    """Find the address to listen on, IPv4 first; refuse one open to others without a key."""
    # A name is judged by all that it resolves to, not by how it looks.
    try:
        found = _resolve(server.host, server.port)
    except (OSError, UnicodeError):
        found = []
    if not found:
        msg = f"server.host {server.host!r} isn't an address of this machine: it doesn't resolve"
        raise ValueError(msg)
    open_to_others = [str(a.sockaddr[0]) for a in found if not is_loopback(str(a.sockaddr[0]))]
    if open_to_others and not has_keys:
        msg = (
            f"server.host {server.host!r} ({open_to_others[0]}) can be reached from other machines,"
            " and no keys are configured: anyone could use the upstream's. Configure a key under"
            " keys, or listen on 127.0.0.1"
        )
        raise ValueError(msg)
    return min(found, key=lambda address: address.family != socket.AF_INET)


def is_loopback(host: str) -> bool:
    """Tell whether an IP address can be reached from this machine only."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


def _resolve(host: str, port: int) -> list[Address]:
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    found = socket.getaddrinfo(bare, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return [
        Address(family, cast("tuple[str | int, ...]", sockaddr))
        for family, _, _, _, sockaddr in found
        if family in (socket.AF_INET, socket.AF_INET6)
    ]


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
