"""Limit a request's retries to a model's ``retries``. A 429 after the last retry ends the lane."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from mellea_like.core.backend import BackendWrapper
from mellea_like.errors import BackendError, RateLimited

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from mellea_like.core.backend import Backend, Request
    from mellea_like.core.generation import Generation


class LastTry(BackendWrapper):
    """Wraps an upstream to limit a request to ``retries`` retries, because clients retry, too."""

    def __init__(self, inner: Backend, retries: int) -> None:
        super().__init__(inner)
        self._retries = retries

    async def generate(self, request: Request) -> Generation:
        """Generate a reply; mark an error as already retried if no retries are left."""
        try:
            return await self.inner.generate(request)
        except BackendError as exc:
            self._settle(request, exc)
            raise

    @asynccontextmanager
    async def _stream(self, request: Request) -> AsyncGenerator[AsyncIterator[str | Generation]]:
        try:
            async with super()._stream(request) as pieces:
                yield pieces
        except BackendError as exc:
            self._settle(request, exc)
            raise

    def _settle(self, request: Request, error: BackendError) -> None:
        if request.meta.retry < self._retries:
            return
        error.retried = True
        if isinstance(error, RateLimited):
            error.retryable = False
