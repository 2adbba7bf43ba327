"""Parquet files, read and written a row group at a time."""

from __future__ import annotations

import datetime as dt
import io
import json
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rows_kit import result

from mellea_like.batch.rows.files import read_rows, result_writer
from mellea_like.batch.rows.formats import RESULT_FIELDS, RowFormat
from mellea_like.batch.rows.parquet import parquet_columns

PARQUET = RowFormat.PARQUET


def file_of(columns, **settings):
    file = io.BytesIO()
    pq.write_table(pa.table(columns), file, **settings)
    file.seek(0)
    return file


MOMENT = dt.datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("values", "plain"),
    [
        ([1], 1),
        ([1.5], 1.5),
        ([float("nan")], None),
        ([None], None),
        ([True], True),
        (["é"], "é"),
        ([b"\x00\xff"], "AP8="),
        ([Decimal("1.50")], "1.50"),
        ([MOMENT], "2026-01-02T03:04:05.000006+00:00"),
        ([dt.date(2026, 1, 2)], "2026-01-02"),
        ([dt.time(3, 4)], "03:04:00"),
        ([dt.timedelta(seconds=90)], "0:01:30"),
        ([["a", {"b": MOMENT.date()}][:1]], ["a"]),
        ([{"a": [1, 2], "b": {"c": b"x"}}], {"a": [1, 2], "b": {"c": "eA=="}}),
        (pa.array([1_000_000_001], pa.timestamp("ns")), "1970-01-01T00:00:01"),
        (pa.array([1_000_000_001], pa.duration("ns")), "0:00:01"),
        (pa.array([1_000_000_001], pa.time64("ns")), "00:00:01"),
        (pa.array(["x"]).dictionary_encode(), "x"),
        (pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())), [["k", 1]]),
    ],
)
def test_a_value_becomes_what_json_knows(values, plain):
    [row] = read_rows(file_of({"a": values}), PARQUET)
    assert row == {"a": plain}
    assert json.loads(json.dumps(row)) == {"a": plain}


def test_an_infinite_number_is_a_bad_row():
    bad = []
    file = file_of({"a": [1.0, float("inf"), 3.0]})
    assert [row["a"] for row in read_rows(file, PARQUET, bad.append)] == [1.0, 3.0]
    assert [(b.number, str(b)) for b in bad] == [(2, "row 2 holds an infinite number")]


def test_columns_have_types():
    file = file_of({
        "i": pa.array([1], pa.int8()), "f": [1.5], "b": [True], "s": ["x"],
        "big": pa.array([1], pa.uint64()), "when": [MOMENT], "many": [[1]],
    })  # fmt: skip
    assert parquet_columns(file) == {
        "i": "integer", "f": "number", "b": "boolean", "s": "text",
        "big": "text", "when": "text", "many": "text",
    }  # fmt: skip
    assert len(list(read_rows(file, PARQUET))) == 1


@pytest.mark.parametrize("data", [b"", b"a,b\n1,2\n", b"PAR1" + b"\x00" * 40])
def test_what_is_no_parquet_file_is_named(data):
    with pytest.raises(ValueError, match="it isn't a Parquet file: "):
        list(read_rows(io.BytesIO(data), PARQUET))


def test_a_damaged_file_says_where_it_ends():
    data = bytearray(
        file_of({"a": [f"{n} text" for n in range(5000)]}, row_group_size=1000, compression="gzip")
        .getvalue()
    )  # fmt: skip
    half = len(data) // 2
    data[half : half + 200] = b"\x55" * 200
    rows = []
    with pytest.raises(ValueError, match=r"the Parquet file can't be read beyond row \d+: "):
        rows.extend(read_rows(io.BytesIO(data), PARQUET))


def test_a_date_that_python_lacks_is_told():
    with pytest.raises(ValueError, match="can't be read beyond row 0: date value out of range"):
        list(read_rows(file_of({"a": pa.array([10**18], pa.timestamp("us"))}), PARQUET))


def test_two_columns_of_one_name_are_refused():
    file = io.BytesIO()
    pq.write_table(pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"]), file)
    with pytest.raises(ValueError, match="two columns are named 'a'"):
        list(read_rows(file, PARQUET))


def record(number):
    return result(
        number,
        input={"a": number, "s": "x", "when": {"deep": 1}},
        output="text" if number else None,
        success=bool(number),
        reasons=["one", "two"],
        error=None if number else {"type": "E", "message": "m"},
    )


@pytest.mark.parametrize("columns", [{"a": "integer", "s": "text", "when": "text"}, None])
def test_results_are_written_in_row_groups(columns):
    file = io.BytesIO()
    writer = result_writer(file, PARQUET, columns)
    for number in range(2500):
        writer.write(record(number))
    writer.close()
    opened = pq.ParquetFile(file)
    assert opened.num_row_groups == 3
    table = opened.read()
    names = list(columns or ["input"])
    assert table.column_names == [*names, *RESULT_FIELDS]
    first, second = table.slice(0, 2).to_pylist()
    assert (first["output"], first["error"], first["success"]) == (None, "E: m", False)
    assert (second["output"], second["error"], second["success"]) == ("text", None, True)
    assert (second["reasons"], second["elapsed"], second["output_tokens"]) == ("one; two", 0.5, 20)
    if columns is None:
        assert json.loads(second["input"])["a"] == 1
    else:
        assert (second["a"], second["when"]) == (1, '{"deep": 1}')


def test_no_results_are_a_file_too():
    file = io.BytesIO()
    result_writer(file, PARQUET, {"a": "integer"}).close()
    assert pq.ParquetFile(file).read().num_rows == 0
