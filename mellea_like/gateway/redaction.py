"""Redaction: no prompt, reply or key appears in a log or in another caller's error.

The gateway's own log lines consist of names from its configuration, numbers and names of classes.
This module handles the errors of upstreams, and the log records of other code in the same process.
"""

from __future__ import annotations

import builtins
import logging
import re
import threading
import traceback
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from mellea_like import errors
from mellea_like.core.backend import BackendWrapper
from mellea_like.errors import BackendError, MelleaError
from mellea_like.gateway.current_request import CURRENT
from mellea_like.gateway.upstream_codes import keep_known
from mellea_like.runtime.logs import logger as engine

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Sequence

    from mellea_like.core.backend import Backend, Request
    from mellea_like.core.generation import Generation

logger = logging.getLogger("mellea_like.gateway")

HIDDEN = "***"

LONGEST_SAID = 2000
"""The most characters of an upstream's error that the log shows."""

# --- upstreams' errors ---------------------------------------------------------------------------


class Disclosure(NamedTuple):
    """The words, status and code with which an upstream's error is reported to callers."""

    words: str
    status: int
    code: str


DISCLOSURES: dict[type[BackendError], Disclosure] = {
    BackendError: Disclosure("failed", 502, "upstream_failed"),
    errors.RateLimited: Disclosure("is rate-limiting requests", 429, "upstream_rate_limit"),
    errors.BackendTimeout: Disclosure("did not answer in time", 504, "upstream_timeout"),
    errors.CircuitOpen: Disclosure(
        "has failed repeatedly, and gets no requests for a while", 503, "upstream_unavailable"
    ),
    errors.BackendUnavailable: Disclosure(
        "can't be reached, broke off, or answered with a server error", 502, "upstream_failed"
    ),
    errors.AuthenticationFailed: Disclosure(
        "does not accept the gateway's key", 502, "upstream_authentication"
    ),
    errors.InvalidRequest: Disclosure("rejected the gateway's request", 502, "upstream_refused"),
    errors.MalformedResponse: Disclosure(
        "sent an answer that can't be read", 502, "upstream_failed"
    ),
}


def _kind(error: BackendError) -> type[BackendError]:
    return next(kind for kind in type(error).__mro__ if kind in DISCLOSURES)


def disclosure_of(error: BackendError) -> Disclosure:
    """Look up how an upstream's error is reported to callers."""
    return DISCLOSURES[_kind(error)]


def without_text(error: BaseException) -> str:
    """Return an error's class and place. Its text may contain anyone's data."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} at {last.filename}:{last.lineno}"


def redacted(error: Exception, name: str) -> Exception:
    """Copy an upstream's error with its class and numbers, but without its text."""
    # Errors of this library itself, such as a spent budget, are left unchanged.
    if not isinstance(error, BackendError):
        if isinstance(error, MelleaError):
            return error
        return BackendError(f"the upstream {name!r} failed with {type(error).__name__}")
    status = "" if error.status is None else f" (status {error.status})"
    made = _kind(error)(
        f"the upstream {name!r} {disclosure_of(error).words}{status}",
        status=error.status,
        retryable=error.retryable,
        retry_after=error.retry_after,
    )
    keep_known(made, error)
    return made


class RedactedBackend(BackendWrapper):
    """An upstream whose errors lose their texts before the engine logs them or passes them on."""

    # With ``tell``, the gateway logs the texts, without the secret.
    def __init__(self, inner: Backend, name: str, *, tell: bool = False, secret: str = "") -> None:
        super().__init__(inner)
        self._name = name
        self._tell = tell
        self._secret = secret

    async def generate(self, request: Request) -> Generation:
        """Generate a reply; if that fails, raise the redacted error."""
        with self.in_our_words():
            return await self.inner.generate(request)

    @contextmanager
    def in_our_words(self, others: Sequence[Exception] = ()) -> Generator[None]:
        """Redact the errors that the block raises, except for those in ``others``."""
        try:
            yield
        except StopAsyncIteration:
            raise
        except Exception as exc:
            error = redacted(exc, self._name)
            if error is exc or any(exc is other for other in others):
                raise
            if self._tell:
                self._log(exc)
            raise error from None

    def _log(self, error: Exception) -> None:
        said = str(error)
        if self._secret:
            said = said.replace(self._secret, HIDDEN)
        # As a literal, it is always one line.
        said = ascii(said[:LONGEST_SAID])
        shown = (self._name, type(error).__name__, CURRENT.get().id, said)
        logger.warning("the upstream %r failed with %s (request %s): %s", *shown)

    @asynccontextmanager
    async def _stream(
        self, request: Request
    ) -> AsyncGenerator[AsyncIterator[str | Generation], None]:
        reader: list[Exception] = []
        try:
            with self.in_our_words(reader):
                async with super()._stream(request) as inside:
                    try:
                        yield _RedactedPieces(inside, self)
                    except Exception as exc:
                        # This includes errors of the pieces, which are already redacted.
                        reader.append(exc)
                        raise
        finally:
            reader.clear()  # Errors refer to this frame.


class _RedactedPieces:
    """Iterates over a reply's pieces. An error that is raised instead of a piece is redacted."""

    def __init__(self, inside: AsyncIterator[str | Generation], backend: RedactedBackend) -> None:
        self._inside = inside
        self._backend = backend

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> str | Generation:
        with self._backend.in_our_words():
            return await anext(self._inside)


# --- log records of other code -------------------------------------------------------------------

LIBRARIES = {"asyncio", "httpcore", "httpcore2", "httpx", "httpx2", "openai", "uvicorn"}
"""Libraries whose log records may contain parts of requests, URLs, options or errors' texts."""

CLASSES = frozenset(errors.__all__) | {
    name for name, thing in vars(builtins).items() if isinstance(thing, type)
}
ID = re.compile(r"[0-9a-f-]{8,36}(/\d+)?")

_lock = threading.Lock()
_blocks = 0
_plain: Callable[..., logging.LogRecord] = logging.LogRecord
"""The original factory of log records."""


@contextmanager
def redacted_logs() -> Generator[None]:
    """Keep prompts, replies and keys out of the process's logs while the block runs."""
    # Loggers keep their levels and handlers. Gateways in several threads may do this at the same
    # time.
    global _blocks, _plain  # noqa: PLW0603
    with _lock:
        if not _blocks:
            _plain = logging.getLogRecordFactory()
            logging.setLogRecordFactory(_make_record)
        _blocks += 1
    try:
        yield
    finally:
        with _lock:
            _blocks -= 1
            if not _blocks:
                logging.setLogRecordFactory(_plain)


def _make_record(*given: Any, **more: Any) -> logging.LogRecord:
    record = _plain(*given, **more)
    library = record.name.partition(".")[0] in LIBRARIES
    if not library and record.name != engine.name:
        return record
    if library and (record.levelno < logging.WARNING or _is_expected(record)):
        record.levelno, record.levelname = logging.DEBUG, "DEBUG"
        record.msg, record.args = HIDDEN, ()
    elif library:
        # asyncio logs uncaught exceptions with the callback and its arguments.
        first = str(record.msg).partition("\n")[0].partition("<")[0].rstrip()
        if first != record.msg:
            record.msg, record.args = first, ()
    if record.args and not isinstance(record.args, tuple):
        record.msg, record.args = HIDDEN, ()
    # The engine logs errors, and a check's error may quote what it checked. Upstreams' errors are
    # already in the gateway's own words, so they are kept, as are numbers, ids and classes.
    record.args = tuple(a if _is_harmless(a) else HIDDEN for a in record.args or ())
    record.exc_info = record.exc_text = record.stack_info = None  # These have errors' texts.
    return record


def _is_expected(record: logging.LogRecord) -> bool:
    # Cutting off requests when the server stops isn't an error.
    error = record.exc_info[1] if record.exc_info else None
    cut_off = error is not None and not isinstance(error, Exception)
    return cut_off or str(record.msg).startswith("Cancel %s running task(s)")


def _is_harmless(argument: object) -> bool:
    if isinstance(argument, str):
        return argument in CLASSES or ID.fullmatch(argument) is not None
    return argument is None or isinstance(argument, int | float | BackendError)
