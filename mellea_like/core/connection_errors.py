"""Recognize connection errors raised by Python or an HTTP library, rather than by this library."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mellea_like.errors import BackendError

if TYPE_CHECKING:
    from typing_extensions import TypeIs

_NAMES = frozenset(
    {
        *(
            f"{library}.{name}"
            for library in ("httpx", "httpx2")
            for name in ("TimeoutException", "NetworkError", "ProxyError", "RemoteProtocolError")
        ),
        "aiohttp.ClientConnectionError",
        "trio.TooSlowError",
    }
)
"""The connection errors of other libraries, by name because these may not be installed."""


def connection_failed(error: BaseException | None) -> bool:
    """Return whether an exception is a connection error or a timeout, so a retry may help."""
    if isinstance(error, ConnectionError | TimeoutError):
        return True
    return any(
        f"{kind.__module__.partition('.')[0]}.{kind.__name__}" in _NAMES
        for kind in type(error).__mro__
    )


def is_of_backend(error: BaseException) -> TypeIs[Exception]:
    """Return whether an exception comes from a backend or a connection, and isn't a bug."""
    return isinstance(error, BackendError) or connection_failed(error)
