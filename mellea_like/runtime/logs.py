"""Logging with the ids of the draw that a log record belongs to."""

from __future__ import annotations

import logging
from typing import Any

from mellea_like.core.backend import CURRENT
from mellea_like.core.display import bounded, error_text

__all__ = ["IterationFilter", "inform", "logger", "warn"]

logger = logging.getLogger("mellea_like")


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
        ids, _ = CURRENT.get()
        for name in ("sampling_id", "iteration", "subsample"):
            if not hasattr(record, name):
                setattr(record, name, None if ids is None else getattr(ids, name))
        return True


def warn(
    message: str,
    *args: object,
    sampling_id: str | None = None,
    iteration: int | None = None,
    subsample: int | None = None,
    **more: Any,
) -> None:
    """Log a warning with the given ids, or else those of the running draw."""
    ids, _ = CURRENT.get()
    if ids is not None and sampling_id is None:
        sampling_id, iteration, subsample = ids.sampling_id, ids.iteration, ids.subsample
    extra = {"sampling_id": sampling_id, "iteration": iteration, "subsample": subsample, **more}
    logger.warning(message, *map(_short, args), extra=extra, stacklevel=2)


def _short(arg: object) -> object:
    """Return an argument of a log record, with a long text or error message shortened."""
    if isinstance(arg, BaseException):
        text = bounded(error_text(arg))
        return arg if arg.args == (text,) else text  # A filter may check its class.
    return bounded(arg) if isinstance(arg, str) else arg


def inform(message: str, *args: object) -> None:
    """Log, at level INFO, a problem that was overcome, with the ids of the running draw."""
    ids, _ = CURRENT.get()
    extra = {
        name: None if ids is None else getattr(ids, name)
        for name in ("sampling_id", "iteration", "subsample")
    }
    logger.info(message, *map(_short, args), extra=extra, stacklevel=2)
