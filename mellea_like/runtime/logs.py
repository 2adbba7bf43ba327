"""Logging with the ids of the draw that a log record belongs to."""

from __future__ import annotations

import logging

from mellea_like.core.backend import CURRENT
from mellea_like.core.display import bounded, error_text

__all__ = ["IterationFilter", "logger"]

logger = logging.getLogger("mellea_like")

IDS: tuple[str, ...] = ("sampling_id", "iteration", "subsample")


class IterationFilter(logging.Filter):
    """Adds ``sampling_id``, ``iteration`` and ``subsample`` to every log record.

    Add it to a handler with ``handler.addFilter(IterationFilter())``. Log records of validators
    and backends then have the ids of their draw. Outside a draw, all three are None.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the ids, unless the record already has them.

        Args:
            record: the log record.

        Returns:
            True, so that no record is dropped.
        """
        for name, value in _ids_of_draw().items():
            if not hasattr(record, name):
                setattr(record, name, value)
        return True


def warn(message: str, *args: object, **extra: object) -> None:
    """Log a warning with the ids of the running draw, unless ``extra`` has a ``sampling_id``."""
    ids = dict.fromkeys(IDS) if "sampling_id" in extra else _ids_of_draw()
    logger.warning(message, *map(_short, args), extra={**ids, **extra}, stacklevel=2)


def _short(arg: object) -> object:
    """Return an argument of a log record, with a long text or error message shortened."""
    if isinstance(arg, BaseException):
        text = bounded(error_text(arg))
        return arg if arg.args == (text,) else text  # A filter may check its class.
    return bounded(arg) if isinstance(arg, str) else arg


def inform(message: str, *args: object) -> None:
    """Log, at level INFO, a problem that was overcome, with the ids of the running draw."""
    logger.info(message, *map(_short, args), extra=_ids_of_draw(), stacklevel=2)


def _ids_of_draw() -> dict[str, object]:
    """Return the ids of the running draw; outside a draw, all are None."""
    ids, _ = CURRENT.get()
    return {name: getattr(ids, name, None) for name in IDS}
