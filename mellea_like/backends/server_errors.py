"""Errors for HTTP statuses and broken connections, whatever the provider."""

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
    409: (InvalidRequest, True),  # A temporary conflict.
    429: (RateLimited, None),
}


def kind_of_status(status: int) -> tuple[type[BackendError], bool | None]:
    """Return an HTTP status's error class, and whether to retry (None for the class's default)."""
    failed = BackendUnavailable if status >= 500 else InvalidRequest  # noqa: PLR2004
    return STATUSES.get(status, (failed, None))


REFUSALS = (400, 422)
"""The HTTP statuses with which a server says that something in the request is wrong."""


def refuses_temperature(error: BackendError) -> bool:
    """Return whether a server refused a request because of its temperature.

    OpenAI says "Unsupported value: 'temperature' does not support 0 with this model" or
    "Unsupported parameter: 'temperature'", and Moonshot says "invalid temperature: only 1 is
    allowed for this model". Other servers use other words, but all of them contain "temperature".
    """
    named = re.search(r"\btemperature\b", error.said, re.IGNORECASE)
    return error.status in REFUSALS and named is not None


def failed_in_transport(exc: BaseException) -> bool:
    """Return whether an exception means that the connection failed."""
    package = type(exc).__module__.partition(".")[0]
    return isinstance(exc, OSError | EOFError) or package in TRANSPORTS
