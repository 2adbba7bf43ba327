"""The pure half of OpenAIBackend: schemas, events, and how they are read."""

from __future__ import annotations

import json
from enum import Enum
from itertools import pairwise
from typing import Annotated, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from mellea_like.backends.openai_chat import response_format
from mellea_like.backends.openai_events import EventDecoder
from mellea_like.backends.openai_reply import Reply
from mellea_like.backends.output_mode import demand
from mellea_like.core.backend import Request
from mellea_like.core.display import excerpt
from mellea_like.core.format import json_schema
from mellea_like.core.generation import Meter, TokenLogprob, Usage

# --- schemas -----------------------------------------------------------------------------------


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int = 9


class Dog(BaseModel):
    kind: Literal["dog"]
    name: Annotated[str, Field(min_length=1, description="what it answers to")]


class Home(BaseModel):
    pet: Annotated[Cat | Dog, Field(discriminator="kind")]
    colour: Colour = Colour.RED
    rooms: list[Cat] = []
    note: str | None = None


def described(format_, *, official):
    asked = demand(Request((), format=format_), "json_schema")
    return response_format(asked, official=official)["json_schema"]


def every_part(schema):
    if isinstance(schema, dict):
        yield schema
        for value in schema.values():
            yield from every_part(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from every_part(value)


class Score(BaseModel):
    reason: str
    score: Annotated[float, Field(ge=1, le=10)]


class Scores(BaseModel):
    all: list[Score]
    best: Score | None


def test_other_servers_get_the_whole_schema_closed_where_it_is_strict():
    sent = described(Scores, official=False)
    assert sent["strict"] is True
    whole = json_schema(Scores)
    objects = [whole, *whole["$defs"].values()]
    closed = json.loads(json.dumps(whole))
    for part in (closed, *closed["$defs"].values()):
        part["additionalProperties"] = False
    assert len(objects) == 2
    assert sent["schema"] == closed
    assert sent["schema"]["$defs"]["Score"]["properties"]["score"]["maximum"] == 10


def test_openai_gets_a_schema_of_its_strict_subset():
    sent = described(Home, official=True)
    assert sent["strict"] is True
    objects = [p for p in every_part(sent["schema"]) if p.get("type") == "object"]
    assert len(objects) == 3
    for part in objects:
        assert part["additionalProperties"] is False
        assert part["required"] == list(part["properties"])
    for part in every_part(sent["schema"]):
        assert not {"oneOf", "allOf", "default", "discriminator", "minLength"} & set(part)
        assert "$ref" not in part or set(part) == {"$ref"}
    pet = sent["schema"]["properties"]["pet"]
    assert pet["anyOf"] == [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}]
    name = sent["schema"]["$defs"]["Dog"]["properties"]["name"]
    assert name == {"type": "string", "description": "what it answers to"}


@pytest.mark.parametrize("official", [True, False])
def test_narrowing_leaves_the_shared_schema_alone(official):
    before = json.dumps(json_schema(Scores))
    described(Scores, official=official)
    assert json.dumps(json_schema(Scores)) == before


class Free(BaseModel):
    counts: dict[str, int]


class Pair(BaseModel):
    both: tuple[int, str]


@pytest.mark.parametrize(
    ("format_", "official"),
    [
        *((format_, True) for format_ in (Free, Pair, dict[str, int])),
        *((format_, False) for format_ in (Home, dict[str, int], tuple[int, str])),
    ],
)
def test_what_does_not_fit_the_subset_goes_as_it_is_and_without_strict(format_, official):
    sent = described(format_, official=official)
    assert (sent["schema"], sent["strict"]) == (json_schema(format_), False)


# --- events ------------------------------------------------------------------------------------


def events(*chunks: bytes) -> list[bytes]:
    decoder = EventDecoder()
    found = [event for chunk in chunks for event in decoder.feed(chunk)]
    return [*found, *decoder.finish()]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"", []),
        (b"data: a\n\ndata: b\n\n", ["a", "b"]),
        (b"data:a\r\n\r\ndata:  b\r\r", ["a", " b"]),
        (b": ping\n\nevent: x\nid: 1\nretry: 5\ndata: a\n\n", ["a"]),
        (b"data: a\ndata: b\n\n", ["a\nb"]),
        (b"data: a", ["a"]),
        (b"\xef\xbb\xbfdata: a\n\ndata: b\n\n", ["a", "b"]),
        (b"data\n\n", [""]),
        (b"\n\n\n", []),
        (b'error: {"code": 400}\n\ndata: a\n\n', ['{"error": {"code": 400}}', "a"]),
        (b'event: error\ndata: {"code": 400}\n\n', ['{"error": {"code": 400}}']),
        ("data: grün 眠\n\n".encode(), ["grün 眠"]),
        ("data: a\u2028b\x85c\n\n".encode(), ["a\u2028b\x85c"]),
    ],
)
def test_events_are_found_in_a_body(body, expected):
    assert [event.decode() for event in events(body)] == expected


LINES = st.text(st.characters(exclude_characters="\r\n", codec="utf-8"), max_size=8)
ENDS = st.sampled_from(["\n", "\r\n", "\r"])
BESIDE = st.sampled_from(["", ": a comment", ":", "id: 7", "event: message", "retry: 1", "date: x"])


@given(
    st.lists(st.tuples(st.lists(LINES, min_size=1, max_size=3), BESIDE), max_size=4),
    st.data(),
    st.booleans(),
)
def test_it_does_not_matter_where_a_body_is_cut_nor_what_stands_beside_the_data(
    written, data, ended
):
    """Several lines of data, comments, other fields, any line ends, and cuts within characters."""
    end = data.draw(ENDS)
    parts = (
        [*filter(None, [beside]), *(f"data: {one}" for one in one_event), ""]
        for one_event, beside in written
    )
    text = "".join(line + end for lines in parts for line in lines)
    body = (text if ended else text.rstrip("\r\n")).encode()
    cuts = data.draw(st.lists(st.integers(0, len(body)), max_size=8))
    places = [0, *sorted(cuts), len(body)]
    chunks = [body[a:b] for a, b in pairwise(places)]
    assert events(*chunks) == ["\n".join(lines).encode() for lines, _ in written]


@given(st.lists(st.binary(max_size=50), max_size=8))
def test_any_bytes_are_events_or_a_value_error(chunks):
    try:
        found = events(*chunks)
    except ValueError:
        return
    assert all(isinstance(event, bytes) for event in found)


def test_an_event_without_an_end_is_given_up():
    decoder = EventDecoder()
    with pytest.raises(ValueError, match="longer than"):
        for _ in range(200):
            list(decoder.feed(b"data: " + b"x" * 50_000 + b"\n"))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["choices", "delta", "content", "index", "usage", "finish_reason"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(JSON)
def test_any_json_is_a_piece_or_a_value_error(value):
    meter = Meter()
    reply = Reply(meter.start())
    try:
        piece = reply.read(json.dumps(value))
    except ValueError:
        return
    assert isinstance(piece, str)
    assert reply.generation().text == piece
    assert meter.usage.unknown in {0, 1}


def chunk(**fields) -> str:
    return json.dumps({"choices": [{"index": 0, "delta": {}, **fields}]})


def test_log_probabilities_are_read_where_they_are_those_of_the_protocol():
    known = {"token": "a", "logprob": -0.5, "top_logprobs": [{"token": "b", "logprob": -1}]}
    reply = Reply(Meter().start())
    reply.read(chunk(delta={"content": "a"}, logprobs={"content": [known]}))
    reply.read(chunk(delta={"content": "b"}, logprobs={"content": [{"token": "b", "prob": 0.1}]}))
    reply.read(chunk(delta={"content": "c"}, logprobs={"content": None}))
    unknown = {"token": "d", "logprob": None, "top_logprobs": [{"token": "d", "logprob": None}]}
    reply.read(chunk(delta={"content": "d"}, logprobs={"content": [unknown]}))
    assert reply.generation().logprobs == (TokenLogprob("a", -0.5, (("b", -1.0),)),)
    with pytest.raises(ValueError, match="isn't a chunk"):
        reply.read(chunk(logprobs={"content": [{"logprob": -1}]}))


def test_text_and_reasoning_in_parts_are_read_as_mistral_sends_them():
    reply = Reply(Meter().start())
    thinking = {"type": "thinking", "thinking": [{"type": "text", "text": "Hm, "}], "closed": False}
    assert reply.read(chunk(delta={"role": "assistant", "content": ""})) == ""
    assert reply.read(chunk(delta={"content": [thinking]})) == ""
    thought = {**thinking, "thinking": [{"type": "text", "text": "seven."}], "closed": True}
    said = {"type": "text", "text": "It is"}
    reference = {"type": "reference", "reference_ids": [1]}
    assert reply.read(chunk(delta={"content": [thought, said, reference]})) == "It is"
    assert reply.read(chunk(delta={"content": " 7."}, finish_reason="stop")) == " 7."
    made = reply.generation()
    assert (made.text, made.reasoning) == ("It is 7.", "Hm, seven.")
    with pytest.raises(ValueError, match="isn't a chunk"):
        reply.read(chunk(delta={"content": [{"type": "text", "text": 7}]}))


@pytest.mark.parametrize(
    ("cached", "thought", "usage"),
    [
        (4, 2, Usage(1, 5, 3, 0, 4, 2)),
        (None, None, Usage(1, 5, 3)),
        (6, 4, Usage(1, 5, 3)),  # More than there are of all.
        (True, -1, Usage(1, 5, 3)),
    ],
)
def test_cached_and_reasoning_tokens_are_read_where_they_make_sense(cached, thought, usage):
    meter = Meter()
    reply = Reply(meter.start())
    reply.read(chunk(finish_reason="stop"))
    counted = {
        "prompt_tokens": 5,
        "completion_tokens": 3,
        "prompt_tokens_details": None if cached is None else {"cached_tokens": cached},
        "completion_tokens_details": {"reasoning_tokens": thought, "audio_tokens": 0},
    }
    reply.read(json.dumps({"choices": [], "usage": counted}))
    assert meter.usage == usage


def test_a_usage_in_the_choice_is_read_as_moonshot_sends_it():
    meter = Meter()
    reply = Reply(meter.start())
    reply.read(chunk(delta={"content": "a"}))
    counted = {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8, "cached_tokens": 4}
    reply.read(chunk(delta={}, finish_reason="stop", usage=counted))
    assert meter.usage == Usage(1, 5, 3, cached_input_tokens=4)


@pytest.mark.parametrize(
    ("total", "thought", "usage"),
    [
        (331, 317, Usage(1, 12, 319, reasoning_tokens=317)),  # As xAI counts.
        (331, None, Usage(1, 12, 319)),  # As Google counts.
        (14, 1, Usage(1, 12, 2, reasoning_tokens=1)),
        (3, None, Usage(1, 12, 2)),
        ("many", None, Usage(1, 12, 2)),
    ],
)
def test_thoughts_that_are_counted_in_the_total_only_are_output(total, thought, usage):
    meter = Meter()
    reply = Reply(meter.start())
    reply.read(chunk(finish_reason="stop"))
    counted = {
        "prompt_tokens": 12,
        "completion_tokens": 2,
        "total_tokens": total,
        "completion_tokens_details": {"reasoning_tokens": thought},
    }
    reply.read(json.dumps({"choices": [], "usage": counted}))
    assert meter.usage == usage


@pytest.mark.parametrize(
    "usage", [{"prompt_tokens": -1, "completion_tokens": 2}, {"prompt_tokens": True}, [], "x", 5]
)
def test_a_usage_that_makes_no_sense_is_left_out(usage):
    meter = Meter()
    reply = Reply(meter.start())
    reply.read(chunk(finish_reason="stop"))
    reply.read(json.dumps({"choices": [], "usage": usage}))
    assert meter.usage == Usage(1, 0, 0, 1)


@given(st.text())
def test_an_excerpt_is_short_and_printable(text):
    shown = excerpt(text)
    assert len(shown) <= 200
    assert shown.isprintable()
