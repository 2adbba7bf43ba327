"""Wrap each backend that a call uses in a wrapper that the caller supplies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mellea_like.kernel.ports import Option

if TYPE_CHECKING:
    from collections.abc import Callable

    from mellea_like.core.backend import Backend
    from mellea_like.kernel.ports import Sent


class Wrapped(Option):
    """Puts the caller's wrapper around each backend, outside of retries, hooks and budgets."""

    def __init__(self, wrap: Callable[[Backend, Backend], Backend]) -> None:
        self._wrap = wrap

    def request(self, inner: Backend, sent: Sent) -> Backend:
        """Return the caller's wrapper around a backend, which may generate or judge."""
        return self._wrap(inner, sent.backend)
