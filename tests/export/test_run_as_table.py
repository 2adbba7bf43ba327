"""A run as a table, for tools that read Arrow."""

from __future__ import annotations

import pytest
from export_kit import RunOf, item_of
from report_kit import item

from mellea_like.export import export
from mellea_like.export.formats import COLUMNS

ITEMS = [
    item_of({"text": "no", "met": 0.5}, {"text": "yes"}, position=0, won=(2,), scores={2: 3.5}),
    item(1, None, {"type": "KeyError", "message": "review"}),
]


@pytest.fixture
def run():
    return RunOf(ITEMS)


def test_each_draw_is_a_row_and_an_item_without_draws_is_one(run):
    table = run.to_arrow()
    assert table.column_names == list(COLUMNS)
    names = ["item", "status", "iteration", "seconds", "winner", "score", "reasons"]
    assert [tuple(row.values()) for row in table.select(names).to_pylist()] == [
        (0, "passed", 1, 1.0, False, None, ["better: it is missing"]),
        (0, "passed", 2, 1.0, True, 3.5, []),
        (1, "errored", None, None, None, None, ["KeyError: review"]),
    ]


def test_halves_of_characters_are_replaced_and_their_rows_counted(caplog):
    run = RunOf([item_of({"text": "\ud83d yes", "reasoning": "\udc00"}, {"text": "no"})])
    table = run.to_arrow()
    assert table["text"].to_pylist() == ["\ufffd yes", "no"]
    assert table["reasoning"].to_pylist()[0] == "\ufffd"
    assert "to_arrow: rows with halves of characters, replaced by U+FFFD (1)" in caplog.text


def test_a_run_larger_than_a_batch_comes_batch_by_batch():
    many = RunOf([{**ITEMS[0], "id": n} for n in range(1_100)])
    assert many.to_arrow().num_rows == 2_200
    assert len(many.to_arrow().to_batches()) == 3


def test_polars_reads_it(run):
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame(run)
    assert frame["text"].to_list() == ["no", "yes", None]
    assert polars.DataFrame(run).equals(frame)  # Each time from the beginning.


def test_duckdb_reads_it(run):
    duckdb = pytest.importorskip("duckdb")
    with duckdb.connect() as connection:
        found = connection.sql("SELECT outcome, count(*) FROM run GROUP BY 1 ORDER BY 1")
        assert found.fetchall() == [("failed", 1), ("passed", 1), (None, 1)]


def test_datasets_loads_every_format_of_trl(run, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    datasets = pytest.importorskip("datasets")
    for format, names in {
        "sft": ["messages"],
        "prompt-completion": ["prompt", "completion"],
        "dpo": ["prompt", "chosen", "rejected"],
        "kto": ["prompt", "completion", "label"],
        "reward": ["chosen", "rejected"],
    }.items():
        for kind, output in ("json", f"{format}.jsonl"), ("parquet", f"{format}.parquet"):
            path = tmp_path / output
            export(run, path, format=format, details=kind == "json")
            files = {"data_files": str(path), "cache_dir": str(tmp_path / "cache")}
            [loaded] = datasets.load_dataset(kind, **files).values()
            assert loaded.column_names[: len(names)] == names
            # A Parquet column has each field in each row, also the thoughts that no prompt has.
            thoughts = {"reasoning_content": None} if kind == "parquet" else {}
            asked = {"role": "user", "content": "Say a word.", **thoughts}
            assert loaded[0][names[0]][0] == asked
