"""How much memory the bodies of all requests under way may take together."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from mellea_like.gateway.refusal import Refusal, retry_after

if TYPE_CHECKING:
    from collections.abc import Generator

__all__ = ["BodyMemory", "BodyShare"]

COME_BACK = 1.0
"""Seconds: how soon others have ended isn't known."""


class BodyMemory:
    """Bytes that bodies take, from when they arrive until their requests are answered."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.used = 0

    @contextmanager
    def share(self) -> Generator[BodyShare]:
        """Give a request its share, which it has until the block ends."""
        share = BodyShare(self)
        try:
            yield share
        finally:
            self.used -= share.taken


class BodyShare:
    """What one request's body takes."""

    def __init__(self, memory: BodyMemory) -> None:
        self._memory = memory
        self.taken = 0

    def check_room(self, size: int) -> None:
        """Refuse a body for which there is no room now."""
        memory = self._memory
        if memory.used + size > memory.most:
            message = "the bodies of requests under way take all the memory that they may"
            raise Refusal(
                503,
                f"{message}: try again later",
                kind="server_error",
                code="server_busy",
                headers=retry_after(COME_BACK),
            )

    def take(self, size: int) -> None:
        """Count bytes that have arrived, or refuse them."""
        self.check_room(size)
        self._memory.used += size
        self.taken += size
