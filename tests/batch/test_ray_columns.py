"""Rows of a Ray dataset, without Ray: prompts, names of shards, columns of results."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from mellea_like.batch.item import ItemResult
from mellea_like.batch.ray.shards import prompt_maker, shard_name, with_results
from mellea_like.batch.row_outcome import outcome_of
from mellea_like.batch.rows.formats import Row
from mellea_like.cli.batch.prompt import PromptTemplate


@pytest.mark.parametrize(
    ("template", "row", "prompt"),
    [
        ("Say {{ a }}.", {"a": "x"}, "Say x."),
        ("{{ a }}{{ b }} {c}", {"a": "1", "b": 2}, "12 {c}"),
        ("{{ a }}", {"a": [1, "é", None]}, '[1, "é", null]'),
        ("{{ a }}", {"a": "{{ b }} {%"}, "{{ b }} {%"),
        ("{{ row['a b'] }}", {"a b": None}, "null"),
        ("{{ a }}", {"a": datetime(2026, 1, 2, tzinfo=UTC)}, "2026-01-02 00:00:00+00:00"),
    ],
)
def test_a_template_is_filled_in_with_the_columns_as_on_the_command_line(template, row, prompt):
    maker = pickle.loads(pickle.dumps(prompt_maker(template)))
    assert maker(row) == prompt
    assert PromptTemplate(template).fill(Row(row, 1)) == prompt


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("{{ a", "isn't a valid Jinja template: line 1: "),
        ("Say {text}.", "would be the same for every row: name their fields in"),
    ],
)
def test_a_template_that_is_none_or_has_no_columns_is_refused(template, why):
    with pytest.raises(ValueError, match=why):
        prompt_maker(template)


def test_a_column_that_is_not_there_is_named_beside_those_that_are():
    with pytest.raises(KeyError, match="the prompt: 'c' is undefined; the row has: a, b"):
        prompt_maker("{{ c }}")({"a": 1, "b": 2})


def test_a_shard_has_the_same_name_for_the_same_rows_and_keys_only():
    rows = [{"a": 1}, {"a": 2}]
    name = shard_name(rows, [0, 1])
    assert name == shard_name([dict(row) for row in rows], [0, 1])
    assert len({name, shard_name(rows, [0, 2]), shard_name(rows[::-1], [0, 1])}) == 3
    assert name != shard_name([{"a": 1}, {"a": "2"}], [0, 1])
    assert shard_name([{"a": "\ud800"}, {"a": b"\xff"}], ["x", None])
    with pytest.raises(ValueError, match="zip"):
        shard_name(rows, [0])


def test_an_item_without_a_result_has_its_error():
    outcome = outcome_of(ItemResult(0, {}, None, ValueError("no \ud800 \ud83d\ude00")), parsed=True)
    # As in files of rows: half a character becomes U+FFFD, and two halves one character.
    assert (outcome.status, outcome.error) == ("errored", "ValueError: no \ufffd \U0001f600")
    assert outcome.output is outcome.value is None
    with_results(pa.table({"id": [1]}), [outcome])
