"""Log records know which iteration they belong to."""

from __future__ import annotations

import contextvars
import logging

import pytest

from mellea_like.core.backend import CURRENT, RequestMeta
from mellea_like.runtime.logs import IterationFilter, logger, warn


@pytest.fixture
def records():
    """Return the records that reach a handler with the filter."""
    seen: list[logging.LogRecord] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append(record)

    handler = Keep()
    handler.addFilter(IterationFilter())
    logger.addHandler(handler)
    yield seen
    logger.removeHandler(handler)


def ids(record: logging.LogRecord) -> tuple[object, object, object]:
    return record.sampling_id, record.iteration, record.subsample


def inside(function, *args, **kwargs) -> None:
    def run() -> None:
        CURRENT.set((RequestMeta("call", 5, 2), None))
        function(*args, **kwargs)

    contextvars.copy_context().run(run)


def test_a_record_carries_the_running_iterations_ids_unless_it_has_some(records):
    logger.warning("from elsewhere")
    inside(logger.warning, "from a validator")
    inside(logger.warning, "x", extra={"sampling_id": "own", "iteration": 1, "subsample": 0})
    assert [ids(record) for record in records] == [(None,) * 3, ("call", 5, 2), ("own", 1, 0)]


def test_a_warning_carries_the_running_iterations_ids(records):
    inside(warn, "lost %s", "it")
    assert records[0].getMessage() == "lost it"
    assert records[0].levelno == logging.WARNING
    assert ids(records[0]) == ("call", 5, 2)


def test_a_warning_carries_the_ids_and_fields_it_is_given(records):
    inside(warn, "lost", sampling_id="other", iteration=9, plugin="audit")
    assert ids(records[0]) == ("other", 9, None)
    assert records[0].plugin == "audit"
