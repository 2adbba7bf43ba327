"""Records of when each request came and how it ended, whichever batch it was in."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias

from mellea_like.core.generation import Generation, Usage
from mellea_like.errors import Expired, MissingAnswer, ShutdownError, Stopped

if TYPE_CHECKING:
    from collections.abc import Callable

    from mellea_like.core.backend import RequestMeta

__all__ = ["AuditCallback", "AuditRecord", "RequestStatus"]

REFUSALS = frozenset({"refusal", "content_filter"})
"""The finish reasons that mean that a reply is a refusal."""


class RequestStatus(StrEnum):
    """The state of a request to a coordinator."""

    ASKED = "asked"
    """The request arrived. Each request has two records: for its arrival, and for its end."""
    OK = "ok"
    """The request was answered."""
    ERROR = "error"
    """The request failed with an error of the backend or the library."""
    REFUSED = "refused"
    """The reply is a refusal."""
    CANCELLED = "cancelled"
    """The request's caller left, or the coordinator was closed."""
    EXPIRED = "expired"
    """The request's deadline passed before the request was sent."""
    MISSING = "missing"
    """The joint reply had no answer for the request."""


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """The state of one request, when it arrives or when it has ended.

    Args:
        request_id: the id of the request, which is the same in both of its records.
        status: the request's state.
        meta: the call and the draw that the request comes from.
        batch_id: the id of the request's batch; None if the request was not sent.
        batch_size: the number of requests in that batch; 0 if the request was not sent.
        error: the exception that the caller got instead of a reply, or None.
        usage: the request's share of the cost, as far as it is known.
        waited: the seconds since the request arrived.
    """

    request_id: str
    status: RequestStatus
    meta: RequestMeta
    batch_id: str | None = None
    batch_size: int = 0
    error: BaseException | None = None
    usage: Usage = Usage()
    waited: float = 0.0


AuditCallback: TypeAlias = "Callable[[AuditRecord], object]"
"""A plain function that is called twice for each request. Its exceptions are logged."""


def status_of(result: Generation | BaseException) -> RequestStatus:
    """Return the state of a request that has ended."""
    match result:
        case Generation():
            refused = result.finish_reason in REFUSALS
            return RequestStatus.REFUSED if refused else RequestStatus.OK
        case MissingAnswer():
            return RequestStatus.MISSING
        case Expired():
            return RequestStatus.EXPIRED
        case ShutdownError() | Stopped():
            return RequestStatus.CANCELLED
        case _:
            return RequestStatus.ERROR
