"""What leaves the gateway: no prompt, reply or key in a log or in someone else's error.

What the gateway itself logs is made of names from its configuration, numbers and classes. Here is
what upstreams say when they fail, and what others log in its process.
"""

from __future__ import annotations

import builtins
import logging
import re
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, NamedTuple, Self

from mellea_like import errors
from mellea_like.core.backend import BackendWrapper
from mellea_like.errors import BackendError, MelleaError
from mellea_like.runtime.logs import logger as engine

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator

    from mellea_like.core.backend import Backend, Request
    from mellea_like.core.generation import Generation

__all__ = ["RedactedBackend", "redacted", "redacted_logs", "told"]

# --- what upstreams say --------------------------------------------------------------------------


class Told(NamedTuple):
    """What is told of an upstream's error: in words, and to the caller by status and code."""

    words: str
    status: int
    code: str


TOLD: dict[type[BackendError], Told] = {
    BackendError: Told("failed", 502, "upstream_failed"),
    errors.RateLimited: Told("asks for fewer requests", 429, "upstream_rate_limit"),
    errors.BackendTimeout: Told("did not answer in time", 504, "upstream_timeout"),
    errors.CircuitOpen: Told(
        "has failed again and again, and is left alone for a while", 503, "upstream_unavailable"
    ),
    errors.BackendUnavailable: Told("can't be reached, or broke off", 502, "upstream_failed"),
    errors.AuthenticationFailed: Told(
        "does not accept the gateway's key", 502, "upstream_authentication"
    ),
    errors.InvalidRequest: Told("refuses the gateway's request", 502, "upstream_refused"),
    errors.MalformedResponse: Told("sent an answer that can't be read", 502, "upstream_failed"),
}


def _kind(error: BackendError) -> type[BackendError]:
    return next(kind for kind in type(error).__mro__ if kind in TOLD)


def told(error: BackendError) -> Told:
    """Look up what may be told of an upstream's error."""
    return TOLD[_kind(error)]


def redacted(error: Exception, name: str) -> Exception:
    """Make an error of the same class and numbers as an upstream's, without its text."""
    # What this library raised on its own account, such as a spent budget, stays as it is.
    if not isinstance(error, BackendError):
        if isinstance(error, MelleaError):
            return error
        return BackendError(f"the upstream {name!r} failed with {type(error).__name__}")
    status = "" if error.status is None else f" (status {error.status})"
    return _kind(error)(
        f"the upstream {name!r} {told(error).words}{status}",
        status=error.status,
        retryable=error.retryable,
        retry_after=error.retry_after,
    )


class RedactedBackend(BackendWrapper):
    """An upstream whose errors lose their texts before the engine logs them or hands them on."""

    def __init__(self, inner: Backend, name: str) -> None:
        super().__init__(inner)
        self._name = name

    async def generate(self, request: Request) -> Generation:
        """Answer one request."""
        try:
            return await self.inner.generate(request)
        except Exception as exc:  # noqa: BLE001 (whatever it is, its text may be the upstream's)
            error = exc
        # Outside the handler: the first error must not hang on as the context.
        raise redacted(error, self._name)

    @asynccontextmanager
    async def _stream(
        self, request: Request
    ) -> AsyncGenerator[AsyncIterator[str | Generation], None]:
        reader: BaseException | None = None
        error: Exception
        try:
            async with super()._stream(request) as inside:
                try:
                    yield _RedactedPieces(inside, self._name)
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
        raise redacted(error, self._name) from None


class _RedactedPieces:
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
        except Exception as exc:  # noqa: BLE001 (as in generate)
            error = exc
        raise redacted(error, self._name)


# --- what others log -----------------------------------------------------------------------------

HIDDEN = "***"

CHATTY = ("openai", "httpx2", "httpcore2", "httpx", "httpcore", "uvicorn")
"""Below a warning these show requests: the SDK its options, client and server the URLs."""

CHILDREN = {
    "openai": ("_base_client", "_legacy_response", "_response", "_streaming"),
    "httpcore": ("connection", "http11", "http2", "proxy", "socks"),
    "httpcore2": ("connection", "http11", "http2", "proxy", "socks"),
    "uvicorn": ("access", "asgi"),
}
"""Loggers may be made after the filters, and a filter doesn't see what a child logs."""

CLASSES = frozenset(errors.__all__) | {
    name for name, thing in vars(builtins).items() if isinstance(thing, type)
}
ID = re.compile(r"[0-9a-f-]{8,36}(/\d+)?")


class _Shown(str):
    """A text that may be shown; another gateway's filter in the same process lets it pass, too."""

    __slots__ = ()


def _warnings_only(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.WARNING


def _without_traceback(record: logging.LogRecord) -> bool:
    # Of uvicorn: it logs what an app raises with its traceback, in which the errors' texts stand.
    error = record.exc_info[1] if record.exc_info else None
    record.exc_info = record.exc_text = record.stack_info = None
    # That requests are cut off when the server stops isn't an error.
    cut_off = error is not None and not isinstance(error, Exception)
    expected = cut_off or str(record.msg).startswith("Cancel %s running task(s)")
    return record.levelno >= logging.WARNING and not expected


def _first_words(record: logging.LogRecord) -> bool:
    # Of asyncio: it logs what nobody caught, with the callback and what it was called with.
    first = record.getMessage().partition("\n")[0]
    record.msg, record.args = first.partition("<")[0].rstrip(), ()
    record.exc_info = record.exc_text = record.stack_info = None
    return True


def _without_texts(record: logging.LogRecord) -> bool:
    # Of the engine: it logs errors, and those of a check may quote what it checked. Those of
    # upstreams are in the gateway's own words, so they stay, as do numbers, ids and classes.
    if isinstance(record.args, tuple):
        record.args = tuple(_harmless(argument) for argument in record.args)
    elif record.args:
        record.msg, record.args = HIDDEN, ()
    record.exc_info = record.exc_text = record.stack_info = None
    return True


def _harmless(argument: object) -> object:
    if argument is None or isinstance(argument, int | float | _Shown):
        return argument
    if isinstance(argument, str) and (argument in CLASSES or ID.fullmatch(argument)):
        return argument
    return _Shown(argument if isinstance(argument, BackendError) else HIDDEN)


@contextmanager
def redacted_logs() -> Generator[None]:
    """Keep texts out of the logs of the whole process while the block runs."""
    # Loggers keep their levels and handlers. Gateways in several threads may do this at once.
    existing = list(logging.root.manager.loggerDict)
    kinds: dict[str, Callable[[logging.LogRecord], bool]] = {}
    for top in CHATTY:
        names = [top, *(f"{top}.{child}" for child in CHILDREN.get(top, ()))]
        names += [name for name in existing if name.startswith(f"{top}.")]
        kinds |= dict.fromkeys(names, _warnings_only)
    kinds |= {"uvicorn.error": _without_traceback, "asyncio": _first_words}
    kinds[engine.name] = _without_texts
    # A filter of its own for each block: what one block takes away, another may still need.
    filters = {name: _Filter(kind) for name, kind in kinds.items()}
    for name, filter_ in filters.items():
        logging.getLogger(name).addFilter(filter_)
    try:
        yield
    finally:
        for name, filter_ in filters.items():
            logging.getLogger(name).removeFilter(filter_)


class _Filter(logging.Filter):
    def __init__(self, kind: Callable[[logging.LogRecord], bool]) -> None:
        super().__init__()
        self._kind = kind

    def filter(self, record: logging.LogRecord) -> bool:
        return self._kind(record)
