"""A backend around a backend: what all wrappers forward."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mellea_like.core.backend import Backend, can_coalesce, can_judge, is_backend
from mellea_like.core.options import Options

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager

    from mellea_like.core.backend import Request
    from mellea_like.core.generation import Generation

__all__ = ["BackendWrapper", "innermost"]


_NONE = Options()


class BackendWrapper:
    """A backend that passes what the backend inside says of itself on, and its requests too.

    Subclasses override ``generate`` and ``_stream``. A wrapper streams if its inner backend does.

    Args:
        inner: the backend inside.

    Raises:
        TypeError: ``inner`` isn't a backend.
    """

    def __init__(self, inner: Backend) -> None:
        if not is_backend(inner):
            kind = type(self).__name__
            msg = f"{kind} takes a backend first, with generate(request), not {inner!r}"
            raise TypeError(msg)
        self.inner = inner
        self.can_judge = can_judge(inner)

    @property
    def model(self) -> str | None:
        """The inner backend's model, for records."""
        return getattr(self.inner, "model", None)

    @property
    def provider(self) -> str:
        """The inner backend's provider, for records."""
        return str(getattr(self.inner, "provider", type(self.inner).__name__))

    @property
    def can_coalesce(self) -> bool:
        """Whether the inner backend's requests may be put together."""
        return can_coalesce(self.inner)

    @property
    def defaults(self) -> Options:
        """What the inner backend takes where a request's options leave something open."""
        defaults: Options = getattr(self.inner, "defaults", _NONE)
        return defaults

    async def generate(self, request: Request) -> Generation:
        """Answer one request.

        Args:
            request: what is wanted.

        Returns:
            The inner backend's reply.
        """
        return await self.inner.generate(request)

    @property
    def stream(
        self,
    ) -> Callable[[Request], AbstractAsyncContextManager[AsyncIterator[str | Generation]]]:
        """Answer one request piece by piece; see `StreamingBackend.stream`.

        Raises:
            AttributeError: the inner backend does not stream.
        """
        if not hasattr(self.inner, "stream"):
            msg = f"{type(self.inner).__name__} does not stream"
            raise AttributeError(msg)
        return self._stream

    def _stream(
        self, request: Request
    ) -> AbstractAsyncContextManager[AsyncIterator[str | Generation]]:
        inner: Any = self.inner
        stream: AbstractAsyncContextManager[AsyncIterator[str | Generation]] = inner.stream(request)
        return stream

    async def aclose(self) -> None:
        """Close the inner backend's idle connections."""
        close = getattr(self.inner, "aclose", None)
        if close is not None:
            await close()


def innermost(backend: Backend) -> Backend:
    """Return the backend that sends the requests.

    Args:
        backend: a backend, wrapped or not.

    Returns:
        What is inside all wrappers.
    """
    while isinstance(backend, BackendWrapper):
        backend = backend.inner
    return backend
