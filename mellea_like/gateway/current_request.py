"""The request being answered: its id, its caller's key and limits, and the calls made for it."""

from __future__ import annotations

import re
import secrets
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from mellea_like.gateway.config.gateway_config import KeyLimits
    from mellea_like.limits import Budget

REQUEST_ID = b"x-request-id"

SANE_ID = re.compile(rb"[A-Za-z0-9][A-Za-z0-9._-]{7,63}")
"""The pattern of ids that callers may choose for requests: ids appear in logs and headers."""


@dataclass(slots=True)
class CurrentRequest:
    """One request. The guard fills in its parts as soon as they are known."""

    id: str
    key: str = ""
    limits: KeyLimits = field(init=False, repr=False)
    budget: Budget | None = None
    body: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False)
    """The parsed body of a POST."""
    model: object = None
    tokens: int = 0
    """The tokens that upstreams have counted for this request so far."""
    sampling_ids: list[str] = field(default_factory=list[str])


CURRENT: ContextVar[CurrentRequest] = ContextVar("mellea_like_gateway_request")
"""The current request, seen by its own task and by all tasks started from it."""


def request_id_of(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """Return the caller's ``x-request-id`` if it matches `SANE_ID`, or else a new id."""
    given = [value for name, value in headers if name == REQUEST_ID]
    if len(given) == 1 and SANE_ID.fullmatch(given[0]):
        return given[0].decode("ascii")
    return secrets.token_hex(16)
