"""Errors for the statuses and broken connections of any provider's server."""

from __future__ import annotations

import re

from mellea_like.errors import (
    AuthenticationFailed,
    BackendError,
    BackendTimeout,
    BackendUnavailable,
    InvalidRequest,
    RateLimited,
)

__all__ = ["REFUSALS", "failed_in_transport", "kind_of_status", "refuses_temperature"]

TRANSPORTS = ("httpx2", "httpcore2", "httpx", "httpcore", "h11", "h2", "anyio", "trio", "botocore")
"""Packages whose exceptions mean that the connection failed."""

STATUSES: dict[int, tuple[type[BackendError], bool | None]] = {
    401: (AuthenticationFailed, None),
    403: (AuthenticationFailed, None),
    408: (BackendTimeout, None),
    409: (InvalidRequest, True),  # A conflict that passes.
    429: (RateLimited, None),
}


def kind_of_status(status: int) -> tuple[type[BackendError], bool | None]:
    """Return the error that a status means, and whether to try again if that isn't as usual."""
    failed = BackendUnavailable if status >= 500 else InvalidRequest  # noqa: PLR2004
    return STATUSES.get(status, (failed, None))


REFUSALS = (400, 422)
"""Statuses that say that the request is at fault."""


def refuses_temperature(error: BackendError) -> bool:
    """Tell whether a server refused a request for its temperature.

    OpenAI says "Unsupported value: 'temperature' does not support 0 with this model" or
    "Unsupported parameter: 'temperature'", Moonshot "invalid temperature: only 1 is allowed for
    this model"; others word it otherwise, and all of them name it.
    """
    named = re.search(r"\btemperature\b", error.said, re.IGNORECASE)
    return error.status in REFUSALS and named is not None


def failed_in_transport(exc: BaseException) -> bool:
    """Tell whether an exception means that the connection failed."""
    package = type(exc).__module__.partition(".")[0]
    return isinstance(exc, OSError | EOFError) or package in TRANSPORTS
