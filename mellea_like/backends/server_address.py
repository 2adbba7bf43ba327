"""A provider's server: the URL and the key that requests are sent with."""

from __future__ import annotations

import hashlib
import os
from typing import Any, Generic, TypeVar
from urllib.parse import SplitResult, urlsplit, urlunsplit

from mellea_like.errors import AuthenticationFailed, InvalidRequest

__all__ = ["OFFICIAL_URL", "Server", "digest", "is_here", "split_url", "without_credentials"]

OFFICIAL_URL = "https://api.openai.com/v1"
"""The address of OpenAI's own API."""

C = TypeVar("C")
"""The type of a provider's SDK client."""

_SALT = os.urandom(16)


class Server(Generic[C]):
    """A server, as a backend's arguments describe it. A base class for each provider's own class.

    A URL or key that isn't given is read from an environment variable, and the URL is otherwise
    ``official_url``. ``given`` is the client of the provider's SDK that the user passed instead of
    a URL and a key, or None.
    """

    client_type: type[C]
    client_name: str
    """The client's type for error messages, with an article."""
    official_url: str
    url_variable: str = ""
    """The environment variable with the URL, if the provider has one."""
    key_variable: str
    """The environment variable with the key."""

    def __init__(self, base_url: str | None, api_key: str | None, client: C | None) -> None:
        if client is not None:
            if not isinstance(client, self.client_type):
                msg = f"client must be {self.client_name}, not {type(client).__name__}"
                raise TypeError(msg)
            if base_url is not None or api_key is not None:
                msg = (
                    "client can't be combined with base_url or api_key: the client already has both"
                )
                raise ValueError(msg)
        if base_url is not None:
            split_url(base_url, "base_url")
        self._base_url = base_url
        self._key = api_key
        self.given: C | None = client

    @property
    def url(self) -> str:
        """The URL, which may contain credentials."""
        if self.given is not None:
            return self._client_url(self.given)
        return self._base_url or os.environ.get(self.url_variable) or self.official_url

    def _client_url(self, client: C) -> str:
        """Return the URL that a ready client sends requests to."""
        sdk: Any = client
        return str(sdk.base_url)

    @property
    def shown_url(self) -> str:
        """The URL without credentials and query; an invalid one raises ``ValueError``."""
        return without_credentials(urlsplit(self.url)._replace(query=""))

    def parts(self) -> SplitResult:
        """Return the parts of the URL; raise `InvalidRequest` if it isn't an HTTP URL."""
        try:
            return split_url(self.url, self.url_variable)
        except ValueError as exc:
            raise InvalidRequest(str(exc)) from None

    @property
    def _placeholder(self) -> str:
        """The text to send in place of a missing key; empty if the server requires a real key."""
        return ""

    @property
    def api_key(self) -> str:
        """The key to send; raises `AuthenticationFailed` if there is none, or it can't be sent."""
        key = os.environ.get(self.key_variable, "") if self._key is None else self._key
        key = key.strip() or self._placeholder
        if not key:
            msg = f"no API key for {self.shown_url}: set {self.key_variable} or pass api_key="
            raise AuthenticationFailed(msg)
        if not (key.isascii() and key.isprintable() and " " not in key):
            msg = "the API key has a character that can't be sent in an HTTP header: check it"
            raise AuthenticationFailed(msg)
        return key


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
