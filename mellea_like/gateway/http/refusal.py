"""What the gateway says when it does not do what was asked, in OpenAI's shape of an error."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from mellea_like.gateway.http.safe_text import header_value

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Refusal", "too_many"]


class Refusal(Exception):
    """A request that is answered with an error; raised anywhere before the answer has begun.

    Args:
        status: the HTTP status.
        message: what is wrong and what to do; nothing of the request's texts, and no key.
        kind: OpenAI's ``type`` of error.
        code: OpenAI's ``code``, for programs.
        param: which part of the request it is about.
        headers: further headers.
        more: further members of the error object.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
        more: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.code = code
        self.param = param
        self.headers = dict(headers or {})
        self.more = dict(more or {})

    def body(self) -> bytes:
        """Return the answer's body."""
        error = {
            "message": self.message,
            "type": self.kind,
            "param": self.param,
            "code": self.code,
            **self.more,
        }
        return json.dumps({"error": error}, ensure_ascii=True).encode("ascii")

    def raw_headers(self) -> list[tuple[bytes, bytes]]:
        """Return the answer's headers, as ASGI wants them."""
        body = self.body()
        fields = {
            "content-type": "application/json",
            "content-length": str(len(body)),
            **{name.lower(): header_value(value) for name, value in self.headers.items()},
        }
        return [(name.encode("ascii"), value.encode("ascii")) for name, value in fields.items()]


def too_many(message: str, wait: float, code: str = "rate_limit_exceeded") -> Refusal:
    """Make the answer to a caller that asks for too much at a time.

    Args:
        message: what there is too much of.
        wait: seconds after which to try again.
        code: OpenAI's code.

    Returns:
        The refusal, with ``Retry-After``.
    """
    seconds = max(1, math.ceil(wait))
    return Refusal(
        429,
        message,
        kind="insufficient_quota" if code == "insufficient_quota" else "rate_limit_error",
        code=code,
        headers={"retry-after": str(seconds)},
    )
