"""Reading replies as JSON of a given type."""

from __future__ import annotations

import json
from contextlib import nullcontext
from datetime import date
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from annotated_types import Gt
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, RootModel, Strict, WithJsonSchema

from mellea_like.core.format import (
    _known,
    check_format,
    parse_json,
    parse_reply,
    refuse_repeated_keys,
    strip_fence,
    why_unread,
)


class Line(BaseModel):
    amount: int = Field(gt=0)


class Invoice(BaseModel):
    number: str
    lines: list[Line]


class Strange:
    pass


@pytest.mark.parametrize(
    "format_", [Invoice(number="1", lines=[]), object(), "Invoice", 3, Strange]
)
def test_anything_else_is_no_format(format_):
    with pytest.raises(TypeError, match="format must be a pydantic model"):
        check_format(format_)


def test_a_dict_is_told_that_it_is_no_type():
    with pytest.raises(TypeError, match=r"not \{'a': 1\}: it is a dict$"):
        check_format({"a": 1})


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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("not json", "Invalid JSON"),
        ("", "Invalid JSON"),
        ('{"number": "7"}', "lines: Field required"),
        (
            '{"number": "7", "lines": [{"amount": 0}]}',
            r"lines\.0\.amount: Input should be greater than 0 \(it is 0\)",
        ),
        ('{"number": 7, "lines": 3}', r"number: .*string \(it is 7\); lines: .*array \(it is 3\)"),
    ],
)
def test_a_reply_of_another_type_is_a_value_error_that_names_the_fields(text, message):
    with pytest.raises(ValueError, match=message) as caught:
        parse_json(Invoice, text)
    assert "https://" not in str(caught.value)


READ = [
    "{it}",
    "Sure, here it is: {it} Anything else?",
    "```json\n{it}\n```",
    "Here it is:\n\n```json\n{it}\n```\nIt has no lines, see [1].",
    '<think>Perhaps {{"number": "8", "lines": []}}?</think>\n\n{it}',
    'they want {{"number"}} ...</think>```\n{it}\n```',
    "{it}\n\nOnce more:\n\n```json\n{it}\n```",
]


@pytest.mark.parametrize("reply", READ)
def test_a_value_is_read_where_there_is_no_doubt_which_one_it_is(reply):
    text = reply.format(it='{"number": "} 7 \\" [", "lines": []}')
    assert parse_reply(Invoice, text) == Invoice(number='} 7 " [', lines=[])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"number": "7", "lines": []} or {"number": "8", "lines": []}', "they differ"),
        ('{"number": "7", "lines": []}}', "trailing characters"),
        ('So: {"number": "7", "lines": []}]', "brackets don't match"),
        ('Two: [{"number": "7", "lines": []}, and then', "brackets don't match"),
        ('Two: [{"number": "7", "lines": []}]', "Invalid JSON"),
        ('Here: {"number": "7", "lines": []', "brackets don't match"),
        ('Here: {"number": "7", "lines": [],}', "trailing comma"),
        ('{"number": "7", "lines": [], "number": "8"}', 'says "number" twice'),
        ('<think>{"number": "7", "lines": []} may do', "thinks aloud"),
        ("I can't.", "the reply does not parse: there is no JSON in it"),
        ("", "there is no JSON in it"),
        ("I can 1.", "Invalid JSON"),
    ],
)
def test_what_is_in_doubt_is_not_read(text, why):
    with pytest.raises(ValueError, match=r"[a-z]") as caught:
        parse_reply(Invoice, text)
    assert why in why_unread(caught.value)


TEXTS = st.sampled_from([json.dumps(t) for t in ("a", "b:", ':"', "\u00e9", "")]) | st.sampled_from(
    [r'"\u0061"', r'"\u003a"', r'"\ud800"', r'"\\u003A"']
)


def objects(parts: st.SearchStrategy[tuple[str, bool]]) -> st.SearchStrategy[tuple[str, bool]]:
    """Generate JSON of objects and arrays, and whether any object has a key twice."""

    def joined(members: list[tuple[str, tuple[str, bool]]]) -> tuple[str, bool]:
        keys = [json.loads(key) for key, _ in members]
        text = "{" + ", ".join(f"{key} : {value}" for key, (value, _) in members) + "}"
        return text, len(set(keys)) < len(keys) or any(twice for _, (_, twice) in members)

    def listed(items: list[tuple[str, bool]]) -> tuple[str, bool]:
        return "[" + ",".join(text for text, _ in items) + "]", any(twice for _, twice in items)

    members = st.lists(st.tuples(TEXTS, parts), max_size=4).map(joined)
    return members | st.lists(parts, max_size=3).map(listed)


@given(
    st.recursive((TEXTS | st.sampled_from(["1", "NaN", "null"])).map(lambda t: (t, False)), objects)
)
@example((r'{"\u003a": 1, "\u003A": 2}', True))  # Written again, it has as many colons.
def test_a_key_that_is_twice_in_an_object_is_always_found(made):
    text, twice = made
    finds = pytest.raises(ValueError, match="twice in one object") if twice else nullcontext()
    with finds:
        refuse_repeated_keys(text)


OWN_SCHEMA = Annotated[Any, WithJsonSchema({"type": ["object", "null"]})]


@pytest.mark.parametrize(
    ("format_", "text", "value"),
    [
        (int, "The answer is 42.", None),
        (int, "The answer:\n```\n42\n```\nYes.", 42),
        (int, "```\n41\n```\nor\n```\n42\n```", None),
        (int, "<think>41?</think> 42", 42),
        (list[int], "As [they] said: [1, 2]", None),
        (list[int], "As {they} said: [1, 2]", [1, 2]),
        (list[int], '{"numbers": [1, 2]}', None),
        (Invoice | list[int], "These: [1, 2]", [1, 2]),
        (OWN_SCHEMA, 'This: {"a": 1}', {"a": 1}),
    ],
)
def test_what_may_stand_beside_a_value_depends_on_what_it_is(format_, text, value):
    if value is None:
        with pytest.raises(ValueError, match=r"[a-z]"):
            parse_reply(format_, text)
    else:
        assert parse_reply(format_, text) == value


class Colour(Enum):
    RED = "red"
    NONE = 0


class Name(RootModel[str]):
    pass


LABEL = Literal["spam", "ham"]
LABELS = "the reply isn't a valid literal['spam','ham']: Input should be 'spam' or 'ham'"


@pytest.mark.parametrize(
    ("format_", "text", "value"),
    [
        # JSON.
        (str, '"spam"', "spam"),
        (str, '"She said \\"yes\\"."', 'She said "yes".'),
        (str, '""', ""),
        (str, '```json\n"spam"\n```', "spam"),
        (LABEL, '"spam"', "spam"),
        (Colour, "0", Colour.NONE),
        (LABEL | None, "null", None),
        # The bare text.
        (str, "spam", "spam"),
        (str, " two words\nand a line \n", "two words\nand a line"),
        (str, "```\nspam\n```", "spam"),
        (str, "See:\n```\nspam\n```", "See:\n```\nspam\n```"),
        (str, "<think>ham?</think>\nspam", "spam"),
        (str, '"Yes," she said.', '"Yes," she said.'),
        (str, "{x} and [1]", "{x} and [1]"),
        (str, "42", "42"),
        (str, "true", "true"),
        (Name, "spam", Name("spam")),
        (Annotated[str, Field(max_length=4)], "spam\n", "spam"),
        (LABEL, "spam", "spam"),
        (LABEL, "\n spam", "spam"),
        (LABEL, "It is:\n```\nspam\n```", "spam"),
        (LABEL | None, "ham", "ham"),
        (Literal["1", "2"], "2", "2"),
        (Literal[1, 2], "2", 2),
        (Colour, "red", Colour.RED),
        (bool, "True", True),
        (Decimal, "9.90", Decimal("9.90")),
        (date, "2026-03-01", date(2026, 3, 1)),
        (UUID, "00000000-0000-0000-0000-000000000007", UUID(int=7)),
        (int, "042", 42),
        # JSON comes before the bare text, even if the type is any text.
        (int | str, "5", 5),
        (int | str, '"5"', "5"),
        (int | str, "five", "five"),
        (str | None, "null", None),
    ],
)
def test_a_scalar_is_read_as_json_or_as_its_bare_text(format_, text, value):
    read = parse_reply(format_, text)
    assert (type(read), read) == (type(value), value)


@pytest.mark.parametrize(
    ("format_", "text", "why"),
    [
        (LABEL, "spam or ham", LABELS),
        (LABEL, "Spam", LABELS),
        (LABEL, "spam.", LABELS),
        (LABEL, "'spam'", LABELS),
        (LABEL, '"spam" "ham"', "trailing characters"),
        (LABEL, '["spam"]', LABELS),
        (LABEL, "```\nspam\n```\nor\n```\nham\n```", LABELS),
        (Literal["1", 1], "1", "it may be 1 or '1': put a text into double quotes"),
        (Literal["null"] | None, "null", "it may be None or 'null'"),
        (str | None, "None", "there is no JSON in it"),
        (str, "", "the reply does not parse: it is empty"),
        (str, " \n", "it is empty"),
        (str, "```\n```", "it is empty"),
        (str, "<think>ham?</think> ", "it is empty"),
        (str, "<think>spam", "thinks aloud"),
        (str, '"spam', "EOF while parsing a string"),
        (str, '"C:\\path"', "invalid escape"),
        (str, '{"value": "spam"}', "isn't a valid str: Input should be a valid string"),
        (str, "null", "Input should be a valid string"),
        (str, "[" * 50_000, "Invalid JSON"),
        (Annotated[str, Field(max_length=3)], "spam", "at most 3 characters"),
        (int, "The answer is 42.", "isn't a valid int: Input should be a valid integer"),
        (int, "42 or 43", "valid integer"),
        (int, "forty-two", "valid integer"),
        (date, "tomorrow", "isn't a valid date: Input should be a valid date"),
        (Annotated[int, Strict()], "042", "valid integer"),
        # A broken object isn't read as a text.
        (str | Invoice, "spam", "there is no JSON in it"),
        (str | Invoice, '{"number": "7", "lines": [}', "Invalid JSON"),
        (Any, "spam", "there is no JSON in it"),
    ],
)
def test_a_doubtful_scalar_is_refused_with_what_would_do(format_, text, why):
    with pytest.raises(ValueError, match=r"[a-z]") as caught:
        parse_reply(format_, text)
    assert why in why_unread(caught.value)


def test_a_long_reply_of_brackets_is_refused_in_a_moment():
    for text in ("[" * 50_000, "{}" * 50_000, '{"' * 50_000, "</think>" * 50_000):
        with pytest.raises(ValueError, match=r"[a-z]"):
            parse_reply(Invoice, text)


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


def test_a_format_that_is_written_again_is_not_made_again():
    before = _known.cache_info().misses
    for _ in range(3):
        parse_json(list[Cat | None], "[null]")
    assert _known.cache_info().misses <= before + 1
