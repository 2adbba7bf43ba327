"""What the statuses and the broken connections of any provider's server become."""

from __future__ import annotations

from mellea_like.errors import (
    AuthenticationFailed,
    BackendError,
    BackendTimeout,
    BackendUnavailable,
    InvalidRequest,
    RateLimited,
)

__all__ = ["failed_in_transport", "kind_of_status"]

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


def failed_in_transport(exc: BaseException) -> bool:
    """Tell whether an exception means that the connection failed."""
    package = type(exc).__module__.partition(".")[0]
    return isinstance(exc, OSError | EOFError) or package in TRANSPORTS
