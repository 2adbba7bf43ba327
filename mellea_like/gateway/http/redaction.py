"""While ``mellea-like serve`` runs, no log has a prompt, a reply or a key in it, at any level.

What the gateway itself logs is made of names from its configuration, numbers and classes. Here is
what others log in its process, and would log texts with.
"""

from __future__ import annotations

import builtins
import logging
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING

from mellea_like import errors
from mellea_like.errors import BackendError
from mellea_like.runtime.logs import logger as engine

if TYPE_CHECKING:
    from collections.abc import Generator

__all__ = ["quiet_logs"]

TALKATIVE = ("openai", "httpx2", "httpcore2", "httpx", "httpcore")
"""Below a warning these show requests: the SDK its options, the client its URLs."""

BRANCHES = {
    "openai": ("_base_client", "_legacy_response", "_response", "_streaming"),
    "httpcore": ("connection", "http11", "http2", "proxy", "socks"),
    "httpcore2": ("connection", "http11", "http2", "proxy", "socks"),
}

CLASSES = frozenset(errors.__all__) | {
    name for name, thing in vars(builtins).items() if isinstance(thing, type)
}
ID = re.compile(r"[0-9a-f-]{8,36}(/\d+)?")

HIDDEN = "***"


class _WarningsOnly(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno >= logging.WARNING


class _WithoutTraceback(logging.Filter):
    """Uvicorn logs what an app raises with its traceback: the errors' texts stand in it.

    That requests are cut off when the server stops is no error.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and not isinstance(error, Exception):
            return False
        record.exc_info = record.exc_text = record.stack_info = None
        return not str(record.msg).startswith("Cancel %s running task(s)")


class _FirstWords(logging.Filter):
    """Asyncio logs what nobody caught, with the callback and what it was called with."""

    def filter(self, record: logging.LogRecord) -> bool:
        first = record.getMessage().partition("\n")[0]
        record.msg, record.args = first.partition("<")[0].rstrip(), ()
        record.exc_info = record.exc_text = record.stack_info = None
        return True


class _WithoutTexts(logging.Filter):
    """Keeps numbers, ids and the names of exceptions' classes, and hides all other texts.

    The engine logs errors, and those of a check may quote what it checked. Errors of backends are
    in the gateway's own words (`Discreet`), so they stay.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        arguments = record.args
        if isinstance(arguments, tuple):
            record.args = tuple(_harmless(argument) for argument in arguments)
        elif arguments:
            record.msg, record.args = HIDDEN, ()
        record.exc_info = record.exc_text = record.stack_info = None
        return True


class _InOurWords(str):
    """A text that may be shown; another gateway's filter in the same process lets it pass, too."""

    __slots__ = ()


def _harmless(argument: object) -> object:
    if argument is None or isinstance(argument, int | float | _InOurWords):
        return argument
    if isinstance(argument, str):
        known = argument in CLASSES or ID.fullmatch(argument) is not None
        return argument if known else _InOurWords(HIDDEN)
    if isinstance(argument, BackendError):
        return _InOurWords(argument)
    return _InOurWords(HIDDEN)


@contextmanager
def quiet_logs() -> Generator[None]:
    """Keep texts out of the logs of the process; enter with ``with``.

    Loggers keep their levels and handlers. Gateways in several threads may do this at once.

    Yields:
        Nothing.
    """
    names = [name for top in TALKATIVE for name in (top, *_branches(top))]
    filters: list[tuple[logging.Logger, logging.Filter]] = [
        (logging.getLogger(name), _WarningsOnly()) for name in names
    ]
    filters.append((logging.getLogger("uvicorn.error"), _WithoutTraceback()))
    filters.append((logging.getLogger("asyncio"), _FirstWords()))
    filters.append((engine, _WithoutTexts()))
    for logger, filter_ in filters:
        logger.addFilter(filter_)
    try:
        yield
    finally:
        for logger, filter_ in filters:
            logger.removeFilter(filter_)


def _branches(top: str) -> list[str]:
    existing = [n for n in list(logging.root.manager.loggerDict) if n.startswith(f"{top}.")]
    return sorted({*existing, *(f"{top}.{branch}" for branch in BRANCHES.get(top, ()))})
