"""Records that are cheap to make, and are nevertheless values."""

from __future__ import annotations

import pickle
from copy import deepcopy
from dataclasses import replace

import pytest

from mellea_like import Candidate, Context, Generation, Message, Outcome, Request, Slice
from mellea_like.core import Usage
from mellea_like.core.backend import RequestMeta

REPLY = Generation("two", usage=Usage(1, 4, 2), model="m")
MESSAGES = (Message("user", "one"),)
RECORDS = [
    (REPLY, {"text": "three"}),
    (REPLY.usage, {"requests": 7}),
    (RequestMeta("id", 3, 1), {"retry": 2}),
    (Request(MESSAGES), {"tool_choice": "none"}),
    (Candidate("two", "two", REPLY, Context(), "one"), {"text": "three"}),
    (
        Slice(1, 0, 0, 0, "one", Context(), MESSAGES, REPLY, (), (), Outcome.PASSED),
        {"reason": "late"},
    ),
]


@pytest.mark.parametrize(("record", "changes"), RECORDS, ids=lambda case: type(case).__name__)
def test_a_record_is_a_value_that_can_be_copied_pickled_and_replaced(
    record: Slice, changes: dict[str, object]
) -> None:
    changed = replace(record, **changes)  # type: ignore[arg-type]  # (of several classes)
    assert changed != record
    assert all(getattr(changed, name) == value for name, value in changes.items())
    assert not hasattr(record, "__dict__")
    for twin in (replace(record), pickle.loads(pickle.dumps(record)), deepcopy(record)):
        assert twin == record
