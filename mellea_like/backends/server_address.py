"""A server's URL and key: parse the URL, and keep the key out of sight."""

from __future__ import annotations

import hashlib
import os
from urllib.parse import SplitResult, urlsplit, urlunsplit

from mellea_like.errors import AuthenticationFailed

__all__ = [
    "OFFICIAL_URL",
    "Secret",
    "digest",
    "is_here",
    "split_url",
    "usable_key",
    "without_credentials",
]

OFFICIAL_URL = "https://api.openai.com/v1"
"""The address of OpenAI's own API."""

_SALT = os.urandom(16)


class Secret:
    """Holds an API key that a ``repr`` doesn't show."""

    __slots__ = ("value",)

    def __init__(self, value: str) -> None:
        self.value = value

    def __repr__(self) -> str:
        return "'***'"


def digest(key: str) -> bytes:
    """Return a digest that distinguishes keys, and that is meaningless outside this process."""
    return hashlib.blake2b(key.encode(), key=_SALT, digest_size=16).digest()


def split_url(url: str, source: str) -> SplitResult:
    """Split a server's URL into its parts.

    Args:
        url: the URL.
        source: the name of the setting that it comes from, for errors.

    Returns:
        The parts; the host is never empty.

    Raises:
        ValueError: ``url`` isn't a valid HTTP or HTTPS URL with a host.
    """
    # Errors don't show the URL, because it may contain a key.
    msg = f"{source} must be a URL that starts with http:// or https:// and names a host"
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        raise ValueError(msg) from None
    if not usable:
        raise ValueError(msg)
    return parts


def is_here(url: SplitResult) -> bool:
    """Return whether a server is on this machine."""
    host = url.hostname or ""
    return host in ("localhost", "::1") or host.startswith("127.")


def without_credentials(url: SplitResult) -> str:
    """Return a URL without its user and password."""
    return urlunsplit(url._replace(netloc=url.netloc.rpartition("@")[2]))


def usable_key(key: str) -> str:
    """Return a key if it can be sent in a header; otherwise raise `AuthenticationFailed`."""
    if not (key.isascii() and key.isprintable() and " " not in key):
        msg = "the API key has a character that can't be sent in an HTTP header: check it"
        raise AuthenticationFailed(msg)
    return key
