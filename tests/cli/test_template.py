"""A prompt for each row."""

from __future__ import annotations

import pytest

from mellea_like.batch.rows.formats import BadRow, Row
from mellea_like.cli.batch.prompt import PromptTemplate
from mellea_like.cli.exits import Problem

ROW = Row(
    {
        "text": "a <b> & {{ n }}",
        "n": 3,
        "first name": "Ada",
        "tags": ["x", {"y": 1}],
        "absent": None,
        "yes": True,
    },
    7,
)


@pytest.mark.parametrize(
    ("template", "prompt"),
    [
        ("Say {{ text }}!", "Say a <b> & {{ n }}!"),
        ("{{ n + 1 }} {{ row['first name'] }}\n", "4 Ada"),
        ("{{ tags[1].y }} {{ tags | length }}", "1 2"),
        ("{{ tags | tojson }} {{ text | tojson }}", '["x", {"y": 1}] "a <b> & {{ n }}"'),
        ("{% for tag in tags[:1] %}{{ tag }}{% endfor %}", "x"),
        ("{% if missing is defined %}no{% else %}{{ n }}{% endif %}", "3"),
        ("{{ missing | default('none') }}", "none"),
        ("{{ absent }} {{ yes }} {{ tags }}", 'null true ["x", {"y": 1}]'),
    ],
)
def test_a_prompt_is_made_of_a_rows_fields(template, prompt):
    assert PromptTemplate(template).fill(ROW) == prompt


def test_a_field_named_row_is_that_field():
    assert PromptTemplate("{{ row }}").fill(Row({"row": "mine"}, 1)) == "mine"


@pytest.mark.parametrize(
    ("template", "sentence"),
    [
        (
            "{{ txt }}",
            "line 7: the prompt names 'txt', which the row does not have (did you mean text?); its",
        ),
        ("{{ zebra }}", "'zebra', which the row does not have; its fields: text, n, first name"),
        ("{{ row.nothing }}", "line 7: the prompt can't be made: 'dict object' has no attribute"),
        ("{{ tags[1].z }}", "line 7: the prompt can't be made: 'dict object' has no attribute 'z'"),
        ("{{ n.upper() }}", "line 7: the prompt can't be made: 'int object' has no attribute 'up"),
        ("{{ n / 0 }}", "the prompt can't be made of this row: ZeroDivisionError"),
        ("{{ n + text }}", "the prompt can't be made of this row: TypeError"),
        ("{{ text.__class__.mro() }}", "the prompt does what templates may not: access to attr"),
        ("{% if n > 5 %}{{ text }}{% endif %} ", "line 7: the prompt is empty"),
    ],
)
def test_a_row_that_does_not_go_with_it_is_a_bad_row(template, sentence):
    with pytest.raises(BadRow) as caught:
        PromptTemplate(template).fill(ROW)
    assert sentence in str(caught.value)
    assert caught.value.number == 7


@pytest.mark.parametrize(
    ("row", "fields"),
    [
        ({}, "it has no fields"),
        ({"a\x1b": 1}, "its fields: a\\x1b"),
        ({f"f{n}": n for n in range(30)}, ", f19, ..."),
    ],
)
def test_the_fields_that_are_there_are_named(row, fields):
    with pytest.raises(BadRow) as caught:
        PromptTemplate("{{ zebra }}").fill(Row(row, 1), "row")
    assert str(caught.value).startswith("row 1: the prompt names 'zebra'")
    assert str(caught.value).endswith(fields)


@pytest.mark.parametrize(
    ("template", "sentence"),
    [
        (" ", "--prompt is empty: say what to ask for each row, with its fields: {{ text }}"),
        ("{{ text", "--prompt isn't a Jinja template: line 1: unexpected end of template"),
        ("a\n{% for %}", "--prompt isn't a Jinja template: line 2: "),
        ("{{ text | nonsense }}", "--prompt isn't a Jinja template: line 1: No filter named"),
        ("Say {text}", "--prompt would be the same for every row: name their fields in double br"),
    ],
)
def test_what_is_no_template_is_bad_usage(template, sentence):
    with pytest.raises(Problem) as caught:
        PromptTemplate(template)
    assert str(caught.value).startswith(sentence)
    assert caught.value.code == 2


def test_a_template_may_stand_in_a_file(tmp_path):
    file = tmp_path / "p.txt"
    file.write_text("\ufeffSay {{ text }}\n", encoding="utf-8")
    assert PromptTemplate.given(f"@{file}").fill(ROW) == "Say a <b> & {{ n }}"
    assert PromptTemplate.given("{{ n }}").fill(ROW) == "3"


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "--prompt: can't read "),
        (b"\xff{{ n }}", "isn't UTF-8 text"),
        (b"{{ n }}" * 200_000, "is longer than 1048576 characters"),
    ],
)
def test_a_file_that_holds_none_is_named(tmp_path, content, sentence):
    file = tmp_path / "p.txt"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(Problem, match=sentence) as caught:
        PromptTemplate.given(f"@{file}")
    assert str(file) in str(caught.value)
    assert caught.value.code == 3
