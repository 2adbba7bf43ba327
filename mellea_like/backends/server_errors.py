"""Errors for HTTP statuses and broken connections, whatever the provider."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, cast

from mellea_like.core.backend import Preferred
from mellea_like.errors import (
    AuthenticationFailed,
    BackendError,
    BackendTimeout,
    BackendUnavailable,
    InvalidRequest,
    MelleaError,
    RateLimited,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mellea_like.core.backend import Options

TRANSPORTS = ("httpx2", "httpcore2", "httpx", "httpcore", "h11", "h2", "anyio", "trio", "botocore")
"""Packages whose exceptions mean that the connection failed."""

UNSENT = (
    "ConnectError",
    "ConnectTimeout",
    "ConnectionRefusedError",
    "EndpointConnectionError",
    "InvalidURL",
    "NotImplementedError",
    "PoolTimeout",
    "UnsupportedProtocol",
    "UserError",
)
"""The names of exceptions that Python, the HTTP libraries and Pydantic AI raise before a request is
sent."""

STATUSES: dict[int, tuple[type[BackendError], bool | None]] = {
    401: (AuthenticationFailed, None),
    403: (AuthenticationFailed, None),
    408: (BackendTimeout, None),
    409: (InvalidRequest, True),  # A temporary conflict.
    429: (RateLimited, None),
}


def kind_of_status(status: int) -> tuple[type[BackendError], bool | None]:
    """Return an HTTP status's error class, and whether to retry (None for the class's default)."""
    failed = BackendUnavailable if status >= 500 else InvalidRequest  # noqa: PLR2004
    return STATUSES.get(status, (failed, None))


REFUSALS = (400, 422)
"""The HTTP statuses with which a server says that something in the request is wrong."""


def refuses_preferred(error: BackendError, options: Options) -> bool:
    """Return whether a server refused a request because of the `Preferred` temperature in it.

    OpenAI says "Unsupported value: 'temperature' does not support 0 with this model" or
    "Unsupported parameter: 'temperature'", and Moonshot says "invalid temperature: only 1 is
    allowed for this model". Other servers use other words, but all of them contain "temperature".
    """
    if error.status not in REFUSALS or not isinstance(options.temperature, Preferred):
        return False
    return re.search(r"\btemperature\b", error.said, re.IGNORECASE) is not None


def failed_in_transport(exc: BaseException) -> bool:
    """Return whether an exception means that the connection failed."""
    package = type(exc).__module__.partition(".")[0]
    return isinstance(exc, OSError | EOFError) or package in TRANSPORTS


def is_a(exc: BaseException, *names: str) -> bool:
    """Return whether an exception's class, or one of its base classes, has one of the names."""
    return any(kind.__name__ in names for kind in type(exc).__mro__)


def causes_of(exc: BaseException) -> Iterator[BaseException]:
    """Yield an exception, its causes and group members, but none of this library's errors."""
    seen: set[int] = set()
    pending: list[BaseException | None] = [exc]
    while pending:
        found = pending.pop(0)
        # Our errors are about other requests, such as an earlier try.
        if found is None or id(found) in seen or isinstance(found, MelleaError):
            continue
        seen.add(id(found))
        yield found
        pending.append(found.__cause__ or found.__context__)
        if isinstance(found, BaseExceptionGroup):
            pending.extend(cast("BaseExceptionGroup[BaseException]", found).exceptions)


def never_sent(exc: BaseException) -> bool:
    """Return whether a request failed before any of it could be sent, so that it costs nothing."""
    return any(is_a(cause, *UNSENT) for cause in causes_of(exc))
