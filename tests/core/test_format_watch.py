"""Typed replies that are rejected while they arrive."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    RootModel,
    ValidationInfo,
    field_validator,
    model_validator,
)
from typing_extensions import TypedDict

from mellea_like.core.format import parse_reply
from mellea_like.core.format_watch import format_watch


def given_up(format_: Any, text: str) -> tuple[str, str] | None:
    """Return the part of a reply that had arrived when it was rejected, and the reason."""
    watch = format_watch(format_)
    for end in range(1, len(text) + 1):
        why = watch.feed(text[:end])
        if why:
            return text[:end], why
    return None


class Line(BaseModel):
    model_config = ConfigDict(extra="forbid")
    amount: int = Field(gt=0)


class Invoice(BaseModel):
    number: str = Field(max_length=3)
    lines: list[Line] = Field(default=[], max_length=2)
    replaces: Invoice | None = None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"number": 7,', "number: Input should be a valid string (it is 7)"),
        (
            '{"number": "7", "lines": [{"amount": 1}, {"amount": 0}',
            "lines.1.amount: Input should be greater than 0 (it is 0)",
        ),
        ('{"lines": [{}', "lines.0.amount: Field required"),
        ('{"lines": [{"price":', "lines.0.price: Extra inputs are not permitted"),
        ('{"lines": [{"amount": 1}, {"amount": 2}, ', "lines: List should have at most 2 items"),
        ('{"replaces": {"number": "1234"', "replaces.number: String should have at most 3"),
        ('{"replaces": {"lines": []}', "replaces.number: Field required"),
        ('```json\n{"number": 7,', "number: Input should be a valid string"),
        ('<think>{"number": 7,</think>\n{"number": 7,', "number: Input should be a valid string"),
        ('{"number": "7",,', "expected a key in double quotes at character 16"),
        ('{"number": nil,', "number: Invalid JSON"),
    ],
)
def test_a_reply_is_given_up_at_the_first_field_that_cant_be_right(text, why):
    arrived, said = given_up(Invoice, f"{text} and so on")
    assert why in said
    assert len(arrived) <= len(text) + 1  # A number ends only when something follows it.


@pytest.mark.parametrize(
    "text",
    [
        'Look: {"number": 7,',  # It may turn out not to be part of the reply's value.
        '["7"] {"number":',
        '"{"',
        "I won't.",
        '<thinks>{"number": 7,',
        "``` {x}\n",
        '{"number": "12',
    ],
)
def test_of_others_the_end_decides(text):
    assert given_up(Invoice, text) is None


@pytest.mark.parametrize(
    "text",
    ['{"number": 7, "number": "7"}', '{"number": 7} {"number": "7"}', '{"number": 7}</think>{}'],
)
def test_what_is_given_up_is_not_read_by_what_follows_either(text):
    assert given_up(Invoice, text)
    with pytest.raises(ValueError, match=r"[a-z]"):
        parse_reply(Invoice, text)


# --- nothing is given up that would have been read ----------------------------------------------


def even(value: int) -> int:
    if value % 2:
        msg = "it is odd"
        raise ValueError(msg)
    return value


def half(value: Any) -> Any:
    return value // 2 if isinstance(value, int) else value


class Aliased(BaseModel):
    model_config = ConfigDict(validate_by_name=True, validate_by_alias=True, extra="forbid")
    a: int = Field(0, alias="b")
    c: int = Field(0, validation_alias=AliasChoices("a", "d"))


class Short(TypedDict, total=False):
    a: Annotated[str, Field(max_length=1)]


@dataclass
class Data:
    a: int
    b: list[int] | None = None


class Other(BaseModel):
    a: int
    b: int = 0

    @field_validator("b")
    @classmethod
    def _not_below(cls, b: int, info: ValidationInfo) -> int:
        if b < info.data.get("a", 100):
            msg = "it is below a"
            raise ValueError(msg)
        return b


def test_a_rule_across_fields_waits_for_its_object():
    assert given_up(Other, '{"b": 1, "a": 1}') is None
    arrived, why = given_up(list[Other], '[{"b": 1, "a": 2}, {"b": 3, "a": "x"}]')
    assert arrived == '[{"b": 1, "a": 2}'
    assert "0.b: it is below a (it is 1)" in why


class Renamed(BaseModel):
    a: int

    @model_validator(mode="before")
    @classmethod
    def _rename(cls, value: Any) -> Any:
        return {"a": value.get("c", 1)} if isinstance(value, dict) else {"a": 1}


class Strict(BaseModel):
    model_config = ConfigDict(strict=True, str_strip_whitespace=True)
    a: int | None = None
    b: Annotated[str, Field(min_length=1)] = "b"
    c: Short | None = None


class Tree(BaseModel):
    a: int = 0
    b: list[Tree] = []


class Numbers(RootModel[list[Annotated[int, AfterValidator(even)]]]):
    pass


PARTS: list[Any] = [
    int,
    str,
    bool,
    float | None,
    Literal["a", 1],
    Annotated[int, Field(gt=1)],
    Annotated[int, AfterValidator(even)],
    Annotated[int, BeforeValidator(half), Field(lt=2)],
    Aliased,
    Short,
    Data,
    Other,
    Renamed,
    Strict,
    Tree,
    Numbers,
    Invoice | Other,
    Any,
]
formats = st.recursive(
    st.sampled_from(PARTS),
    lambda inner: st.one_of(
        inner.map(lambda t: list[t]),
        inner.map(lambda t: Annotated[list[t], Field(max_length=1)]),
        inner.map(lambda t: dict[str, t]),
        inner.map(lambda t: t | None if t is not Any else t),
        inner.map(lambda t: tuple[t, int]),
    ),
    max_leaves=3,
)
scalars = st.sampled_from([0, 1, 2, 3, -1, 1.0, 2.5, True, None, "", "a", "ab", " a ", "1", '"\\{'])
keys = st.sampled_from(["a", "b", "c", "d", "number", "lines"])
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=8,
)
replies = st.sampled_from(
    [
        "{}",
        " {} ",
        "```json\n{}\n```",
        "<think>{{[</think>{}",
        "{} {}",
        "{}}}",
        "So: {}",
        "{}\n</think>{}",
    ]
)


@given(formats, values, replies, st.sampled_from([(", ", ": "), (" ,\n", ":")]), st.data())
@example(Other, {"b": 1, "a": 1}, "{}", (",", ":"), None)
@example(Aliased, {"a": "x", "b": 1}, "{}", (",", ":"), None)
@example(Renamed, {"a": "x"}, "{}", (",", ":"), None)
@example(Annotated[Any, BeforeValidator(half)], {"a": "x"}, "{}", (",", ":"), None)
def test_what_is_given_up_would_not_have_been_read(format_, value, reply, separators, data):
    written = json.dumps(value, separators=separators)
    text = reply.replace("{{", "\0").replace("}}", "\1").replace("{}", written)
    text = text.replace("\0", "{").replace("\1", "}")
    if data is not None and data.draw(st.integers(0, 3)) == 0 and text:
        at = data.draw(st.integers(0, len(text) - 1))
        text = (
            text[:at]
            + data.draw(st.sampled_from(["", '"', ",", "}", "1", '"a":1,']))
            + text[at + 1 :]
        )
    try:
        parse_reply(format_, text)
    except ValueError:
        return
    assert given_up(format_, text) is None
