"""The request that the running code works for: its id, whose it is, and the calls made for it."""

from __future__ import annotations

import re
import secrets
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["CURRENT", "REQUEST_ID", "CurrentRequest", "request_id_of"]

REQUEST_ID = b"x-request-id"

SANE_ID = re.compile(rb"[A-Za-z0-9][A-Za-z0-9._-]{7,63}")
"""What a caller's id may be: it gets into logs and headers, so it has no room for much else."""


@dataclass(slots=True)
class CurrentRequest:
    """One request. Its key and its model are filled in once they are known."""

    id: str
    key: str | None = None
    model: object = None
    tokens: int = 0
    """What it has cost so far, in tokens of upstreams."""
    sampling_ids: list[str] = field(default_factory=list[str])


CURRENT: ContextVar[CurrentRequest | None] = ContextVar("mellea_like_gateway_request", default=None)
"""What a request's own task and all that it starts see."""


def request_id_of(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """Return the caller's ``x-request-id`` where it is a plain one, else a new id."""
    given = [value for name, value in headers if name == REQUEST_ID]
    if len(given) == 1 and SANE_ID.fullmatch(given[0]):
        return given[0].decode("ascii")
    return secrets.token_hex(16)
