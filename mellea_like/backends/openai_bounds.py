"""How long and how big a server's answer may be."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

import anyio

from mellea_like.core.numbers import real_number, whole_number

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

__all__ = ["Bounds", "bound_body"]

MAX_BODY = 128 * 2**20
"""Bytes of an answer, most of which is packaging: a token comes in about 200 to 300."""

PACKAGING = 64
"""... and where longer replies are allowed, bytes for each of their characters."""

MAX_OTHER_BODY = 2**20
"""Bytes that are read of an answer that is no reply: an error, or a list of models."""

OK = 200


@dataclass(frozen=True, slots=True)
class Bounds:
    """The bounds of an answer, checked.

    Args:
        timeout: the longest silence, in seconds; None for no limit.
        total_timeout: the longest time for the whole request, in seconds; None for no limit.
        max_characters: the longest reply.

    Raises:
        ValueError: one is not above 0.
        TypeError: a time is no number, or ``max_characters`` no whole number.
    """

    timeout: float | None
    total_timeout: float | None
    max_characters: int

    def __post_init__(self) -> None:
        for name in ("timeout", "total_timeout"):
            seconds = getattr(self, name)
            if seconds is not None:
                real_number(name, seconds, over=0, most=math.inf, unit="seconds")
        whole_number("max_characters", self.max_characters)

    @property
    def silence(self) -> float:
        """The longest silence, in seconds."""
        return math.inf if self.timeout is None else self.timeout

    @property
    def max_bytes(self) -> int:
        """Bytes of the longest answer, packaging included."""
        return max(MAX_BODY, PACKAGING * self.max_characters)

    def end(self) -> float:
        """Return when the time of a request that begins now is up.

        Returns:
            The time on the running event loop's clock; infinity without a limit.
        """
        return math.inf if self.total_timeout is None else anyio.current_time() + self.total_timeout


async def bound_body(response: Any) -> None:  # noqa: RUF029 (the HTTP library awaits it)
    """Have no more than a part read of an answer that is no reply; a hook of the HTTP library's.

    The SDK reads the whole of them into memory.

    Args:
        response: the response, its body not yet read.
    """
    if response.status_code == OK and response.request.method == "POST":
        return
    library = import_module(type(response).__module__.partition(".")[0])
    inner = response.stream

    class Bounded(library.AsyncByteStream):  # type: ignore[misc,name-defined]
        async def __aiter__(self) -> AsyncGenerator[bytes, None]:
            left = MAX_OTHER_BODY
            pieces = aiter(inner)
            try:
                while left > 0 and (chunk := await anext(pieces, None)) is not None:
                    yield chunk[:left]
                    left -= len(chunk)
            finally:
                # Closed, and read until it fails for that: this takes the library's nested
                # generators to their ends, of which closing the outermost would forget some.
                with suppress(Exception):
                    await inner.aclose()
                    async for _ in pieces:
                        pass

        async def aclose(self) -> None:
            await inner.aclose()

    response.stream = Bounded()
