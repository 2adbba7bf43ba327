"""Refusals: the gateway's errors in OpenAI's format."""

from __future__ import annotations

import json
import math
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from mellea_like.core.extra import NO_EXTRA

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mellea_like.errors import Shortage

NO_RETRY = {"x-should-retry": "false"}
"""The header that asks OpenAI's clients not to retry, because a retry wouldn't help."""

BUDGET_SPENT = "insufficient_quota"

NO_BUDGET_SOON = 3600.0
"""The Retry-After, in seconds, if nobody knows when a budget or quota starts again."""

LONGEST_PARAM = 200
"""The maximum length of a field's name in an error, because a caller may have chosen it."""


@dataclass(eq=False)
class Refusal(Exception):
    """An error that answers a request. It may be raised anywhere before the answer has begun."""

    status: int
    message: str
    _: KW_ONLY
    kind: str = "invalid_request_error"
    code: str | None = None
    param: str | None = None
    headers: Mapping[str, str] = NO_EXTRA
    more: Mapping[str, Any] = NO_EXTRA
    """Further members of the error object. Neither they nor the message contain a key."""
    until_reset: bool = False
    """Whether to retry when the key's budget starts again. The guard adds the time to wait."""

    def __str__(self) -> str:
        return self.message

    @property
    def error(self) -> dict[str, Any]:
        """The error object in OpenAI's format."""
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}
        return {**error, **self.more}

    def rename(self, named: Callable[[str], str]) -> None:
        """Replace the wrong field's name by ``named(param)``, also at the start of the message."""
        if self.param is not None:
            name = named(self.param)
            if self.message.startswith(self.param):
                self.message = name + self.message.removeprefix(self.param)
            self.param = name

    def body(self) -> bytes:
        """Return the answer's body: JSON in ASCII without line breaks."""
        return json.dumps({"error": self.error}).encode("ascii")

    def raw_headers(self) -> list[tuple[bytes, bytes]]:
        """Return the answer's headers (ASGI)."""
        fields = {
            "content-type": "application/json",
            "content-length": str(len(self.body())),
            **{name.lower(): value for name, value in self.headers.items()},
        }
        return encoded(fields)


def encoded(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    """Encode headers for ASGI."""
    return [(name.encode("ascii"), value.encode("ascii")) for name, value in headers.items()]


def refuse(param: str, message: str, code: str | None = None) -> NoReturn:
    """Raise the `Refusal` (400) of a request whose field ``param`` is wrong."""
    param = param[:LONGEST_PARAM]
    raise Refusal(400, f"{param}: {message}", param=param, code=code)


def too_many(message: str, wait: float, code: str = "rate_limit_exceeded") -> Refusal:
    """Return the refusal (429) for a caller over a limit, who may retry in ``wait`` seconds."""
    kind = BUDGET_SPENT if code == BUDGET_SPENT else "rate_limit_error"
    return Refusal(429, message, kind=kind, code=code, headers=retry_after(wait))


def retry_after(wait: float) -> dict[str, str]:
    """Return the header ``retry-after`` for a wait in seconds."""
    return {"retry-after": str(max(1, math.ceil(wait)))}


def budget_spent(shortage: Shortage | None = None) -> Refusal:
    """Return the refusal for a key whose budget has no room for a request."""
    message = "this key's budget is spent"
    fits = True
    if shortage is not None and shortage.spent < shortage.allowed:
        what = shortage.what.replace("_", " ")
        less = "a shorter prompt" if what == "input tokens" else "a lower max_tokens"
        if shortage.wanted > shortage.allowed:
            most = f"but this key's whole budget is {shortage.allowed:,.12g}"
            fits = False
        else:
            left = shortage.allowed - shortage.spent
            most = f"but only {left:,.12g} of this key's budget are left"
        message = f"this request may take {shortage.wanted:,.12g} {what}, {most}: send {less}"
    return Refusal(
        429, message, kind=BUDGET_SPENT, code=BUDGET_SPENT, headers=NO_RETRY, until_reset=fits
    )
