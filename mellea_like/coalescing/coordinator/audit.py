"""Records of how each request ended, whichever batch it was in."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias

from mellea_like.core.generation import Generation, Usage
from mellea_like.errors import Expired, MissingAnswer, ShutdownError, Stopped

if TYPE_CHECKING:
    from collections.abc import Callable

    from mellea_like.core.backend import RequestMeta

__all__ = ["REFUSALS", "AuditCallback", "AuditRecord", "RequestStatus", "status_of"]

REFUSALS = frozenset({"refusal", "content_filter"})
"""The finish reasons of a reply that is a refusal."""


class RequestStatus(StrEnum):
    """The state of a request to a coordinator."""

    ASKED = "asked"
    """It arrived. There are two records for each request: one for this, and one for its end."""
    OK = "ok"
    """It was answered."""
    ERROR = "error"
    """It failed with an error of the backend or the library."""
    REFUSED = "refused"
    """The reply is a refusal."""
    CANCELLED = "cancelled"
    """Its caller left, or the coordinator was closed."""
    EXPIRED = "expired"
    """Its deadline passed before it was sent."""
    MISSING = "missing"
    """The joint reply lacked its answer."""


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """An entry about one request.

    Args:
        request_id: unique to the request; the same when it is asked and when it has ended.
        status: its state.
        meta: the call and the draw that it comes from.
        batch_id: the id of its batch; None if it was not sent.
        batch_size: the number of requests in that batch; 0 if it was not sent.
        error: the exception that its caller got instead of a reply, or None.
        usage: its share of the cost, as far as it is known.
        waited: the seconds since it arrived.
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
