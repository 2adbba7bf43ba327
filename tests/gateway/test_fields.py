"""The tables of fields are complete according to the official SDK, and the guide shows them."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest
from openai.types.chat import completion_create_params
from openai.types.responses import response_create_params

from mellea_like.gateway.chat.request import ChatRequest
from mellea_like.gateway.chat.responses_request import ResponsesRequest
from mellea_like.gateway.fields import CHAT_FIELDS, RESPONSES_FIELDS, Fate

OPEN = {"presence_penalty", "frequency_penalty"}
"""Fields that are in the open specification of the Responses API, but not in the SDK."""

GUIDE = Path(__file__).parents[2] / "docs" / "howto" / "gateway.md"

TABLES = {
    "chat": (CHAT_FIELDS, completion_create_params.CompletionCreateParams, ChatRequest),
    "responses": (RESPONSES_FIELDS, response_create_params.ResponseCreateParams, ResponsesRequest),
}

each_table = pytest.mark.parametrize(("table", "params", "read"), TABLES.values(), ids=TABLES)


@each_table
def test_every_field_of_the_sdk_stands_in_the_table_and_no_other(table, params, read):
    known = {name for kind in get_args(params) for name in kind.__annotations__}
    if table is RESPONSES_FIELDS:
        known |= OPEN
    assert table.keys() - {"mellea_like"} == known


@each_table
def test_what_the_table_calls_honoured_is_read(table, params, read):
    honoured = {name for name, field in table.items() if field.fate == "honoured"}
    assert honoured <= {field.alias or name for name, field in read.model_fields.items()}
    fates = {field.fate for field in table.values()}
    assert fates == set(get_args(Fate))


@each_table
def test_the_guide_shows_the_table(table, params, read):
    rows = [
        f"| `{name}` | {field.fate}{f': {field.note}' if field.note else ''} |"
        for name, field in table.items()
    ]
    missing = [row for row in rows if row not in GUIDE.read_text(encoding="utf-8")]
    assert missing == [], "the guide lacks these rows:\n" + "\n".join(missing)
