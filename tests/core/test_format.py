"""Reading replies as JSON of a given type."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import pytest
from annotated_types import Gt
from pydantic import BaseModel, Field

from mellea_like.core.format import (
    _adapter_of,
    check_format,
    json_schema,
    parse_json,
    parse_value,
    strip_fence,
)


class Line(BaseModel):
    amount: int = Field(gt=0)


class Invoice(BaseModel):
    number: str
    lines: list[Line]


@dataclass
class Point:
    x: int


@pytest.mark.parametrize("format_", [Invoice, Point, int, list[int], Literal["a"], dict[str, int]])
def test_types_that_pydantic_knows_are_formats(format_):
    check_format(format_)


class Strange:
    pass


@pytest.mark.parametrize(
    "format_", [Invoice(number="1", lines=[]), object(), "Invoice", 3, Strange]
)
def test_anything_else_is_no_format(format_):
    with pytest.raises(TypeError, match="format takes a pydantic model"):
        check_format(format_)


@pytest.mark.parametrize(
    ("text", "inside"),
    [
        ("plain", "plain"),
        ("  plain \n", "plain"),
        ("```\nx\n```", "x"),
        ("```json\nx\ny\n```", "x\ny"),
        ("\n```json\r\nx\r\n```\n", "x"),
        ("```json\n```", ""),
        ("before ```json\nx\n```", "before ```json\nx\n```"),
        ("```json\nx\n``` after", "```json\nx\n``` after"),
    ],
)
def test_one_fence_round_the_whole_text_is_taken_away(text, inside):
    assert strip_fence(text) == inside


def test_a_reply_is_read_as_its_type():
    invoice = parse_json(Invoice, '```json\n{"number": "7", "lines": [{"amount": 3}]}\n```')
    assert invoice == Invoice(number="7", lines=[Line(amount=3)])
    assert parse_json(list[int], "[1, 2]") == [1, 2]
    assert parse_json(Point, '{"x": 1}') == Point(1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("not json", "Invalid JSON"),
        ("", "Invalid JSON"),
        ('{"number": "7"}', "lines: Field required"),
        ('{"number": "7", "lines": [{"amount": 0}]}', r"lines\.0\.amount: .* greater than 0"),
        ('{"number": 7, "lines": 3}', "number: .*string; lines: .*array"),
    ],
)
def test_a_reply_of_another_type_is_a_value_error_that_names_the_fields(text, message):
    with pytest.raises(ValueError, match=message) as caught:
        parse_json(Invoice, text)
    assert "https://" not in str(caught.value)


def test_a_value_is_read_as_its_type():
    assert parse_value(Invoice, {"number": "7", "lines": []}) == Invoice(number="7", lines=[])
    assert parse_value(int, "3") == 3
    with pytest.raises(ValueError, match="integer"):
        parse_value(int, "three")


# --- formats that are equal, and not the same ---------------------------------------------------


class Cat(BaseModel):
    age: int = 1


class Dog(BaseModel):
    age: int = 1


@pytest.mark.parametrize(
    ("first", "second", "text", "read", "also"),
    [
        (Cat | Dog, Dog | Cat, "{}", Cat(), Dog()),
        (list[Cat | Dog], list[Dog | Cat], "[{}]", [Cat()], [Dog()]),
        (Literal[1], Literal[True], "1", 1, True),
        (Annotated[int, Gt(0)], Annotated[int, Gt(False)], "1", 1, 1),
    ],
)
def test_formats_that_are_equal_read_as_each_is_written(first, second, text, read, also):
    for format_, value in ((first, read), (second, also), (first, read)):
        assert repr(parse_json(format_, text)) == repr(value)


def test_the_schema_of_a_union_keeps_its_order():
    def names(format_):
        return [branch["$ref"] for branch in json_schema(format_)["anyOf"]]

    assert names(Cat | Dog) == names(Dog | Cat)[::-1]


def test_a_format_that_is_written_again_is_not_made_again():
    before = _adapter_of.cache_info().misses
    for _ in range(3):
        parse_json(list[Cat | None], "[null]")
    assert _adapter_of.cache_info().misses <= before + 1
