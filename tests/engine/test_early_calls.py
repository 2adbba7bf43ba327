"""Arguments of tools' calls are looked at while they arrive, down to the server's connection."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import anyio
import pytest
from gateway_kit import config_for, running
from http_server import Answer, OpenAIServer
from hypothesis import given
from hypothesis import strategies as st

from mellea_like.core.backend import CallPiece
from mellea_like.core.tools import Tool, ToolCall
from mellea_like.requirements.early_rejection import ArrivingCalls
from mellea_like.sampling.tools import toolbox_of
from mellea_like.telemetry import Telemetry

pytestmark = [pytest.mark.anyio, pytest.mark.allow_blocking]

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "nights": {"type": "integer"}},
    "required": ["city"],
}
WRONG, RIGHT = ['{"city"', ": 7", ', "ni'], ['{"city":', ' "Rome", "nights"', ": 2}"]


def book(city: str, nights: int = 1) -> str:
    """Book a room."""
    return f"{nights} in {city}"


BOOK = Tool("book", "Book a room.", SCHEMA)


def events(pieces: list[str], api: str, *, name: str = "book") -> list[str]:
    """The events of a call whose arguments come in pieces."""
    if api == "responses":
        item = {"type": "function_call", "call_id": "c1", "name": name, "arguments": ""}
        made: list[dict[str, Any]] = [
            {"type": "response.output_item.added", "output_index": 0, "item": item},
            *(
                {"type": "response.function_call_arguments.delta", "output_index": 0, "delta": p}
                for p in pieces
            ),
        ]
    else:
        calls: list[dict[str, Any]] = [{"id": "c1", "function": {"name": name, "arguments": ""}}]
        calls += [{"function": {"arguments": piece}} for piece in pieces]
        made = [
            {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, **call}]}}]}
            for call in calls
        ]
    return [json.dumps(event) for event in made]


def without_end(pieces: list[str], api: str = "chat") -> Answer:
    """An answer that begins with events and has no end."""

    async def write(send: Any) -> None:
        send.head(200, "text/event-stream", {})
        for event in pieces:
            send.event(event)
        await asyncio.sleep(3600)

    return Answer(write=write)


def whole(pieces: list[str]) -> Answer:
    return Answer(events=tuple(events(pieces, "chat")), finish_reason="tool_calls")


def fields(kind: str) -> dict[str, Any]:
    if kind == "tools":
        function = {"name": "book", "parameters": SCHEMA}
        return {"tools": [{"type": "function", "function": function}]}
    described = {"name": "stay", "schema": SCHEMA}
    return {"response_format": {"type": "json_schema", "json_schema": described}}


def says(pieces: list[str]) -> list[str]:
    return [json.dumps({"choices": [{"index": 0, "delta": {"content": p}}]}) for p in pieces]


@pytest.mark.parametrize("kind", ["tools", "response_format"])
@pytest.mark.parametrize("strategy", ["rejection", "multi-turn"])
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_so_it_is_for_requests_of_a_gateway_with_early(kind, strategy):
    wrong = events(WRONG, "chat") if kind == "tools" else says(WRONG)
    right = whole(RIGHT) if kind == "tools" else Answer("".join(RIGHT))
    with OpenAIServer(without_end(wrong), right) as upstream:
        config = config_for(upstream.url, early=True, attempts=2, strategy=strategy)

        def ask() -> dict[str, Any]:
            with running(config) as gateway, gateway.http() as http:
                body = {"model": "mine", "messages": [{"role": "user", "content": "A room."}]}
                answer = http.post("/v1/chat/completions", json=body | fields(kind))
                assert answer.status_code == 200, answer.text
                return answer.json()

        with anyio.fail_after(30):
            body = await anyio.to_thread.run_sync(ask)
        assert upstream.disconnected == 1
    message = body["choices"][0]["message"]
    if kind == "tools":
        assert json.loads(message["tool_calls"][0]["function"]["arguments"])["city"] == "Rome"
    else:
        assert json.loads(message["content"])["nights"] == 2


def refused(*pieces: tuple[int, str, str], every: bool = False) -> str | None:
    """What is said of calls of three tools whose pieces are (number, name, arguments)."""
    other = Tool("book_all", "Book rooms.", {"type": "object", "maxProperties": 1})
    box = toolbox_of([BOOK, other, look_up], None, 1, Telemetry())
    calls = ArrivingCalls(box.watches(every=every))
    return next(filter(None, (calls.feed(CallPiece(*piece)) for piece in pieces)), None)


def look_up(city: str) -> str:
    """Look a city up."""
    return city


@pytest.mark.parametrize(
    ("pieces", "says"),
    [
        ([(0, "book", '{"city": "Ro'), (1, "look_up", '{"city": 7, ')], "the call of look_up"),
        ([(0, "book", '{"city": "Ro'), (0, "book", 'me"} and'), (1, "x", "[")], None),
        ([(0, "book", ""), (0, "book_all", '{"city"'), (0, "book_all", ": 7}")], None),
        ([(0, "book", '{"city": "a"}'), (1, "book", '{"nights": ""')], r"at \$.nights: a string"),
        ([(0, "look_up", '{"town": "')], "town: Extra inputs|town: Unexpected"),
        ([(0, "look_up", '["Rome"')], None),  # The whole will tell.
        ([(0, "book", '["Rome"')], "an array can't be"),
    ],
)
def test_each_call_is_looked_at_by_its_own_tool(pieces, says):
    told = refused(*pieces)
    assert told is None if says is None else re.search(says, told or ""), told
    assert refused(*pieces, every=True) is None  # One wrong argument would hide the others.


@given(st.dictionaries(st.sampled_from(["city", "nights", "x"]), st.text() | st.integers()))
def test_no_arguments_that_can_be_read_are_refused(arguments):
    text = json.dumps(arguments)
    for tool in (BOOK, Tool.of(look_up)):
        said = refused(*((0, tool.name, character) for character in text))
        if said is not None:
            with pytest.raises(ValueError, match=tool.name):
                toolbox_of([tool], None, 1, Telemetry())._read(ToolCall("1", tool.name, text))
