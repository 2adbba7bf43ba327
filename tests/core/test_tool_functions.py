"""Functions and schemas become tools, and the arguments of calls are read by them."""

from __future__ import annotations

import json
import re
import threading
from datetime import date
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from examples import examples
from mellea_like.core.tool_functions import function_tool
from mellea_like.core.tools import Tool, ToolCall, canonical


class Room(BaseModel):
    beds: int
    view: Literal["sea", "street"] = "street"


def book(
    city: str,
    room: Room,
    nights: Annotated[int, Field(gt=0, description="how many, in a row")] = 1,
    *,
    arrival: date | None = None,
    tags: list[str] = [],  # noqa: B006 (what a user may write)
) -> str:
    """Book a room.

    It can be cancelled.

    Args:
        city (str): which one,
            with its country.
        nights: what the hint says better.
        room: of what kind: see below.

    Returns:
        Its number.
    """
    return f"{city} {room.beds} {nights} {arrival} {tags}"


def test_a_function_becomes_a_tool_by_its_hints_and_its_docstring():
    tool = Tool.of(book)
    assert (tool.name, tool.description) == ("book", "Book a room.\n\nIt can be cancelled.")
    assert tool.function is book
    assert not tool.read_only
    schema = tool.as_dict()["function"]["parameters"]
    room = schema.pop("$defs")["Room"]
    assert room["properties"]["view"]["enum"] == ["sea", "street"]
    assert schema == {
        "type": "object",
        "additionalProperties": False,
        "required": ["city", "room"],
        "properties": {
            "city": {"type": "string", "description": "which one, with its country."},
            "room": {"$ref": "#/$defs/Room", "description": "of what kind: see below."},
            "nights": {
                "type": "integer",
                "exclusiveMinimum": 0,
                "default": 1,
                "description": "how many, in a row",
            },
            "arrival": {
                "anyOf": [{"type": "string", "format": "date"}, {"type": "null"}],
                "default": None,
            },
            "tags": {"type": "array", "items": {"type": "string"}},
        },
    }


def test_arguments_are_read_as_the_function_takes_them():
    read = function_tool(book).read
    assert read('{"city": "Oslo", "room": {"beds": 2}, "arrival": "2026-05-01"}') == {
        "city": "Oslo",
        "room": Room(beds=2),
        "nights": 1,
        "arrival": date(2026, 5, 1),
        "tags": [],
    }
    assert function_tool(nothing).read("") == {}


def nothing() -> None: ...


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ("{}", "city is missing; room is missing"),
        (
            '{"city": "Oslo", "room": {"beds": 2, "view": "yard"}, "nights": 0}',
            "room.view is 'yard': Input should be 'sea' or 'street'; nights is 0: Input should be ",
        ),
        (
            '{"town": "Oslo", "city": "Oslo", "room": {"beds": 1}}',
            "there is no argument town: it takes city, room, nights, arrival, tags",
        ),
        ('{"city": ', "the arguments aren't a JSON object of its schema: Invalid JSON: EOF"),
        ("[1]", "the arguments aren't a JSON object"),
    ],
)
def test_a_reason_says_the_argument_its_value_and_the_rule(arguments, why):
    with pytest.raises(ValueError, match=re.escape(why)):
        function_tool(book).read(arguments)


def unhinted(x): ...
def starred(*numbers: int) -> None: ...
def unknown(x: Missing) -> None: ...  # type: ignore[name-defined]  # noqa: F821
def no_json(lock: threading.Lock) -> None: ...
def generating(x: int) -> Any:
    yield x


@pytest.mark.parametrize(
    ("source", "error", "why"),
    [
        (unhinted, TypeError, "its parameter 'x' has no type hint"),
        (starred, TypeError, r"\*numbers: int can't be passed by name"),
        (unknown, TypeError, "can't be read: name 'Missing' is not defined"),
        (no_json, TypeError, "a model can't pass its arguments"),
        (generating, TypeError, "generator function"),
        (Room, TypeError, "a tool must be a function with type hints"),
        (3, TypeError, "a tool must be a function with type hints"),
        (lambda: None, ValueError, "name must be 1 to 64 letters"),
        ({"type": "object"}, ValueError, "neither 'name' nor 'title'"),
        ({"name": "required"}, ValueError, "tool_choice"),
    ],
)
def test_what_can_be_no_tool_is_refused_in_a_sentence(source, error, why):
    with pytest.raises(error, match=why):
        Tool.of(source)


SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}


@pytest.mark.parametrize(
    "source",
    [
        {
            "type": "function",
            "function": {"name": "look", "description": "It looks.", "parameters": SCHEMA},
        },
        {"type": "function", "name": "look", "description": "It looks.", "parameters": SCHEMA},
        {**SCHEMA, "title": "look", "description": "It looks."},
    ],
    ids=["chat completions", "responses", "schema"],
)
def test_schemas_become_tools(source):
    tool = Tool.of(source)
    assert (tool.name, tool.description, tool.function) == ("look", "It looks.", None)
    assert tool.parameters["properties"] == SCHEMA["properties"]
    with pytest.raises(ValueError, match="read_only but has no function"):
        Tool.of(source, read_only=True)


def test_a_text_makes_no_tool_read_only():
    def buy(item: str) -> str:
        return item

    with pytest.raises(TypeError, match="read_only must be a bool, not 'no'"):
        Tool.of(buy, read_only="no")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(st.text(max_size=3), inside),
    max_leaves=5,
)


@examples(20, 500)
@given(st.dictionaries(st.text(max_size=3), json_values, max_size=4), st.randoms())
def test_equal_calls_are_canonically_equal_in_whatever_order(arguments, random):
    shuffled = list(arguments.items())
    random.shuffle(shuffled)
    one, other = json.dumps(arguments), json.dumps(dict(shuffled), indent=2)
    assert canonical(ToolCall("1", "f", one)) == canonical(ToolCall("2", "f", other))
    assert canonical(ToolCall("1", "f", one)) != canonical(ToolCall("1", "g", one))
    assert canonical(ToolCall("1", "f", one)) == canonical(ToolCall("1", "f", "", arguments))


def shout(text: str) -> str:
    return text.upper()


def test_a_tool_is_of_the_class_that_makes_it_or_of_its_sources_class():
    class Logged(Tool):
        pass

    assert type(Logged.of({"name": "find", "parameters": {"type": "object"}})) is Logged
    assert type(Logged.of(shout)) is Logged

    made = Tool.of(Logged("look_up", "old"), name="find", description="")
    assert type(made) is Logged
    assert (made.name, made.description) == ("find", "")
