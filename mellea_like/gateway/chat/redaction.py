"""What an upstream says when it fails stays here: it may repeat the prompt, or the key."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Self

from mellea_like import errors
from mellea_like.core.wrapping import BackendWrapper
from mellea_like.errors import BackendError, MelleaError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from mellea_like.core.backend import Backend, Request
    from mellea_like.core.generation import Generation

__all__ = ["Discreet", "retold"]

HAPPENED: dict[type[BackendError], str] = {
    BackendError: "failed",
    errors.RateLimited: "asks for fewer requests",
    errors.BackendTimeout: "did not answer in time",
    errors.CircuitOpen: "is left alone for a while",
    errors.BackendUnavailable: "can't be reached, or broke off",
    errors.AuthenticationFailed: "does not accept the key that the configuration gives it",
    errors.InvalidRequest: "refuses the request",
    errors.MalformedResponse: "sent an answer that can't be read",
}


class Discreet(BackendWrapper):
    """An upstream whose errors keep their class and their numbers, but not their texts.

    The engine logs errors and hands them on, so their words are replaced before it sees them.

    Args:
        inner: the backend of the upstream.
        name: the upstream's name in the configuration, for the new texts.
    """

    def __init__(self, inner: Backend, name: str) -> None:
        super().__init__(inner)
        self._name = name

    async def generate(self, request: Request) -> Generation:
        """Answer one request.

        Args:
            request: what is wanted.

        Returns:
            The upstream's reply.

        Raises:
            BackendError: there is no reply; what the upstream said of it is left out.
        """
        try:
            return await self.inner.generate(request)
        except Exception as exc:  # noqa: BLE001 (whatever it is, its text may be the upstream's)
            error = exc
        # Outside the handler: the first error must not hang on as the context.
        raise retold(error, self._name)

    @asynccontextmanager
    async def _stream(
        self, request: Request
    ) -> AsyncGenerator[AsyncIterator[str | Generation], None]:
        reader: BaseException | None = None
        error: Exception
        try:
            async with super()._stream(request) as inside:
                try:
                    yield _Pieces(inside, self._name)
                except BaseException as exc:
                    reader = exc  # Also what the pieces raised: in our words by then.
                    raise
                return
        except Exception as exc:
            if exc is reader:
                raise
            error = exc
        finally:
            del reader
        raise retold(error, self._name) from None


class _Pieces:
    """The pieces of a reply, whose iteration may fail."""

    def __init__(self, inside: AsyncIterator[str | Generation], name: str) -> None:
        self._inside = inside
        self._name = name

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> str | Generation:
        try:
            return await anext(self._inside)
        except StopAsyncIteration:
            raise
        except Exception as exc:  # noqa: BLE001 (see above)
            error = exc
        raise retold(error, self._name)


def retold(error: Exception, name: str) -> Exception:
    """Tell an error in words of our own.

    Args:
        error: what an upstream's backend raised.
        name: the upstream's name.

    Returns:
        An error of the same class with the same numbers, and none of its text. What this library
        raised on its own account, a spent budget say, is returned as it is.
    """
    if isinstance(error, MelleaError) and not isinstance(error, BackendError):
        return error
    if not isinstance(error, BackendError):
        return BackendError(f"the upstream {name!r} failed with {type(error).__name__}")
    kind = next(kind for kind in type(error).__mro__ if kind in HAPPENED)
    status = "" if error.status is None else f" (status {error.status})"
    return kind(
        f"the upstream {name!r} {HAPPENED[kind]}{status}",
        status=error.status,
        retryable=error.retryable,
        retry_after=error.retry_after,
    )
