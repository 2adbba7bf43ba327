"""Templates of rows' prompts."""

from __future__ import annotations

import pytest

from mellea_like.batch.rows.formats import BadRow, Row
from mellea_like.cli.batch.prompt import PromptTemplate, read_text
from mellea_like.cli.exit_codes import Problem

ROW = Row(
    {
        "text": "a <b> & {{ n }}",
        "n": 3,
        "first name": "Ada",
        "tags": ["x", {"y": 1}],
        "absent": None,
        "yes": True,
        "order": {"items": ["ham"], "n": 2},
        "self": {"title": "I"},
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
        ("{{ order.items }} {{ order.items | first }}", '["ham"] ham'),
        ("{% for name, value in order.items() %}{{ name }}{% endfor %}", "itemsn"),
        ("{% for tag in tags %}{{ loop.index }}{% endfor %} {{ text.upper()[0] }}", "12 A"),
        ("{{ self.title }}", "I"),
        ("{% set all = namespace(n=n) %}{% set all.n = all.n + 1 %}{{ all.n }}", "4"),
    ],
)
def test_a_prompt_is_made_of_a_rows_fields(template, prompt):
    assert PromptTemplate(template).fill(ROW) == prompt


@pytest.mark.parametrize(
    ("template", "sentence"),
    [
        ("{{ txt }}", "'txt' is undefined; the row's fields: text, n, first name, tags, absent"),
        ("{{ row.nothing }}", "'dict object' has no attribute 'nothing'; the row's fields: text"),
        ("{{ n / 0 }}", "ZeroDivisionError: "),
        ("{{ text.title }}", "'title' is a function, not a field; the row's fields: text, n"),
        ("{{ n + text }}", "TypeError: "),
        ("{{ text.__class__.mro() }}", "SecurityError: access to attribute '__class__'"),
    ],
)
def test_a_row_that_does_not_go_with_it_is_a_bad_row(template, sentence):
    with pytest.raises(BadRow) as caught:
        PromptTemplate(template).fill(ROW)
    assert str(caught.value).startswith(f"line 7: the prompt can't be filled in: {sentence}")
    assert caught.value.number == 7


def test_an_empty_prompt_is_a_bad_row():
    row = Row({"text": "x", "n": 3}, 7, word="row")
    with pytest.raises(BadRow, match=r"^row 7: the prompt is empty$"):
        PromptTemplate("{% if n > 5 %}{{ text }}{% endif %} ").fill(row)


@pytest.mark.parametrize(
    ("template", "sentence"),
    [
        (" ", "--prompt would be the same for every row: "),
        ("{{ text", "--prompt isn't a valid Jinja template: line 1: unexpected end of template"),
        ("a\n{% for %}", "--prompt isn't a valid Jinja template: line 2: "),
        ("{{ text | nonsense }}", "--prompt isn't a valid Jinja template: line 1: No filter named"),
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
    assert PromptTemplate(read_text("--prompt", f"@{file}")).fill(ROW) == "Say a <b> & {{ n }}"
    assert PromptTemplate(read_text("--prompt", "{{ n }}")).fill(ROW) == "3"


@pytest.mark.parametrize("content", [None, b"\xff{{ n }}"])
def test_a_file_that_holds_none_is_named(tmp_path, content):
    file = tmp_path / "p.txt"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(Problem, match=r"^--prompt: can't read ") as caught:
        PromptTemplate(read_text("--prompt", f"@{file}"))
    assert str(file) in str(caught.value)
    assert caught.value.code == 3
