"""Errors of connections that are not this library's own: Python's, and those of HTTP libraries."""

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
"""Classes by their package and name: the packages need not be installed."""


def connection_failed(error: BaseException | None) -> bool:
    """Tell whether an exception is a connection error or a timeout, so that it may pass.

    That is Python's ``ConnectionError`` and ``TimeoutError``, trio's timeout, and those of httpx,
    httpx2 and aiohttp. An error in a request or in a reply is
    not one of them.
    """
    if isinstance(error, ConnectionError | TimeoutError):
        return True
    return any(
        f"{kind.__module__.partition('.')[0]}.{kind.__name__}" in _NAMES
        for kind in type(error).__mro__
    )


def is_of_backend(error: BaseException) -> TypeIs[Exception]:
    """Tell whether an exception is a backend's or a connection's, rather than a bug."""
    return isinstance(error, BackendError) or connection_failed(error)
