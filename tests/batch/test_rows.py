"""Rows are read from files one at a time, and errors name the line of a bad row."""

from __future__ import annotations

import io
import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rows_kit import result

from mellea_like.batch.rows.files import LONGEST_LINE, read_rows, result_writer
from mellea_like.batch.rows.formats import (
    BadRow,
    Row,
    RowFormat,
    as_json,
    format_of,
    result_columns,
)

JSONL, CSV, TSV = RowFormat.JSONL, RowFormat.CSV, RowFormat.TSV


def read(data, format=JSONL):
    """Return the rows with their numbers, and the errors of bad rows."""
    bad = []
    rows = [(row.number, dict(row)) for row in read_rows(io.BytesIO(data), format, bad.append)]
    return rows, [(row.number, str(row)) for row in bad]


@pytest.mark.parametrize(
    ("format", "data"),
    [
        (JSONL, b"{%s}" % b",".join(b'"%d":0' % n for n in (*range(50_000), 49_999))),
        (CSV, b",".join(b"%d" % n for n in (*range(50_000), 49_999)) + b"\n"),
    ],
    ids=["jsonl", "csv"],
)
def test_a_name_that_stands_twice_among_very_many_is_found_at_once(format, data):
    begun = time.process_time()
    try:
        said = str(read(data, format)[1])
    except ValueError as exc:
        said = str(exc)
    assert "49999" in said
    assert time.process_time() - begun < 3  # About 0.1 s; pair by pair, nobody waits for it.


@pytest.mark.parametrize(
    ("name", "format"),
    [
        ("a.jsonl", "jsonl"),
        ("b/a.NDJSON", "jsonl"),
        ("a.csv", "csv"),
        ("a.x.tsv", "tsv"),
        ("a.parquet", "parquet"),
    ],
)
def test_a_files_name_says_how_its_rows_stand_in_it(name, format):
    assert format_of(name) == format


@pytest.mark.parametrize("name", ["a", "a.json", "a.txt", ".csv"])
def test_another_name_does_not_tell(name):
    with pytest.raises(ValueError, match=r"does not end in one of \.jsonl, \.ndjson, \.csv"):
        format_of(name)


@pytest.mark.parametrize(
    ("data", "rows"),
    [
        (b"", []),
        (b"\n \r\n\t\n", []),
        (b'{"a": 1}', [(1, {"a": 1})]),
        (b'\n{"a": 1}\r\n\n{"a": 2}\n', [(2, {"a": 1}), (4, {"a": 2})]),
        (b'\xef\xbb\xbf{"a": "\xc3\xa9"}\n', [(1, {"a": "é"})]),
        (b'{"a": "\\u00e9\\ud83d\\ude00", "b": [1.5, -2e3, null, true]}', [
            (1, {"a": "é😀", "b": [1.5, -2000.0, None, True]})
        ]),
        (b"{}", [(1, {})]),
        (b'{"a": ' + b"[" * 99 + b"]" * 99 + b"}", None),
        (b'{"a": "' + b"[{" * 500 + b'"}', None),
    ],
)  # fmt: skip
def test_a_json_object_a_line(data, rows):
    found, bad = read(data)
    assert bad == []
    assert len(found) == 1 if rows is None else found == rows


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (b"{", "line 2 isn't JSON: Expecting property name"),
        (b"{'a': 1}", "line 2 isn't JSON: Expecting property name enclosed in double quotes at"),
        (b'{"a": 1} {"a": 2}', "line 2 isn't JSON: Extra data at position 9"),
        (b'{"a": 1}\r{"a": 2}', "line 2 isn't JSON: Extra data at position 9"),
        (b'{"a": "\xff"}', "line 2 isn't JSON: the byte at position 7 isn't UTF-8"),
        (b"[1]", "line 2 isn't an object such as"),
        (b"null", "line 2 isn't an object such as"),
        (b'{"a": 1, "b": 2, "a": 1}', "line 2 isn't JSON: an object has the name 'a' twice"),
        (b'{"b": [{"a": 1, "a": 2}]}', "line 2 isn't JSON: an object has the name 'a' twice"),
        (b'{"a": 1e999}', "line 2 isn't JSON: a number is too large"),
        (b'{"a": NaN}', "line 2 isn't JSON: a number is too large"),
        (b'{"a": -Infinity}', "line 2 isn't JSON: a number is too large"),
        (b'{"a": ' + b"7" * 5000 + b"}", "line 2 isn't JSON: a number is too large"),
        (b'{"a": "\\ud800"}', "line 2 isn't JSON: a string has half"),
        (b'{"\\udfff": 1}', "line 2 isn't JSON: a string has half"),
        (b'{"a": ' + b"[" * 100_000, "line 2 isn't JSON: it is nested too"),
        (b'{"a": "' + b"x" * LONGEST_LINE + b'"}', "line 2 is longer than 16 MB"),
    ],
)
def test_a_bad_line_is_told_with_its_number_and_the_others_are_read(line, sentence):
    rows, [(number, said)] = read(b'{"a": 1}\n' + line + b'\n{"a": 3}\n')
    assert rows == [(1, {"a": 1}), (3, {"a": 3})]
    assert number == 2
    assert said.startswith(sentence)
    assert len(said) < 200


def test_without_anybody_to_tell_a_bad_row_is_an_error():
    rows = read_rows(io.BytesIO(b'{"a": 1}\nnonsense\n'), JSONL)
    row = next(rows)
    assert isinstance(row, Row)
    assert json.dumps(row) == '{"a": 1}'
    with pytest.raises(BadRow, match="line 2 isn't JSON") as caught:
        next(rows)
    assert caught.value.number == 2


def test_a_line_without_end_is_read_in_pieces_and_not_kept():
    class Endless(io.RawIOBase):
        asked = 0
        most = 0

        def readline(self, size=-1):
            Endless.asked += 1
            Endless.most = max(Endless.most, size)
            return b"x" * size if Endless.asked < 20 else b""

    assert list(read_rows(Endless(), JSONL, lambda bad: None)) == []
    assert 0 < Endless.most <= LONGEST_LINE + 1
    assert Endless.asked > 20


@pytest.mark.parametrize("format", [JSONL, CSV])
@pytest.mark.parametrize("codec", ["utf-16", "utf-16-be"])
def test_utf_16_is_named(format, codec):
    data = '{"a": 1}\n'.encode(codec)
    data = data if codec == "utf-16" else b"\xfe\xff" + data
    with pytest.raises(
        ValueError, match="the text is UTF-16: convert it to UTF-8, for example with"
    ):
        read(data, format)


@pytest.mark.parametrize(
    ("data", "rows"),
    [
        (b"", []),
        (b"a,b\n", []),
        (b"a,b\n1,2\n", [(2, {"a": "1", "b": "2"})]),
        (b'\xef\xbb\xbfa,b\r\n"x\r\ny",2\r\n\r\n3,"4""5"', [
            (2, {"a": "x\r\ny", "b": "2"}), (5, {"a": "3", "b": '4"5'})
        ]),
        (b"first name,\xc3\xa9\n ,\n", [(2, {"first name": " ", "é": ""})]),
    ],
)  # fmt: skip
def test_comma_separated_values_under_their_names(data, rows):
    assert read(data, CSV) == (rows, [])


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (b"1", "line 3 has 1 field, but the first line names 2"),
        (b"1,2,3", "line 3 has 3 fields, but the first line names 2"),
        (b"1,\xff", "line 3 isn't UTF-8 text"),
        (b'"1"x,2', "line 3 isn't CSV: ',' expected after '\"'"),
        (b"x" * LONGEST_LINE + b",2", "line 3 is longer than 16 MB"),
    ],
)
def test_a_bad_row_is_told_with_its_line_and_the_others_are_read(line, sentence):
    rows, [(number, said)] = read(b"a,b\n1,2\n" + line + b"\n4,5\n", CSV)
    assert [row["a"] for _, row in rows] == ["1", "4"]
    assert number == 3
    assert said.startswith(sentence)


def test_a_field_may_be_long_and_not_longer_than_a_line():
    long = b"x" * 200_000
    rows, bad = read(b"a\n" + long + b"\n", CSV)
    assert (rows, bad) == ([(2, {"a": long.decode()})], [])
    rows, bad = read(b'a\n"' + (b"x" * 2**20 + b"\n") * 17 + b'1"\n', CSV)
    assert bad[0] == (2, "line 2 isn't CSV: field larger than field limit (16777216)")


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"a,a\n1,2\n", "has 'a' twice"),
        (b"a, \n1,2\n", "has an empty one"),
        (b"a,\xff\n1,2\n", "isn't UTF-8 text"),
        (b'"a\n1,2\n', "has a quote that is never closed"),
    ],
)
def test_without_names_there_are_no_rows(data, sentence):
    with pytest.raises(
        ValueError, match=f"the first line, which must hold the column names, {sentence}"
    ):
        read(data, CSV)


# Writing


def written(format, records, columns=None):
    file = io.BytesIO()
    writer = result_writer(file, format, columns)
    for one in records:
        writer.write(one)
    writer.close()
    return file.getvalue().decode("utf-8")


NASTY = 'a\u2028b\x85c\x1b[31m\u202e"\r\n\ud800é😀'


def test_a_result_is_a_json_object_in_one_line_whatever_reads_it():
    text = written(JSONL, [result(output=NASTY), result()])
    assert len(text.splitlines()) == 2
    assert not set(text) & set("\u2028\x85\x1b\u202e")
    assert "é😀" in text
    assert json.loads(text.splitlines()[0]) == result(output=NASTY)


def test_a_column_of_the_input_keeps_its_name_and_the_results_gives_way():
    names = list(result_columns(dict.fromkeys(["id", "output", "result_output"], "text")))
    assert names[:5] == ["id", "output", "result_output", "result_id", "line"]
    assert names[5] == "result_result_output"
    assert len(set(names)) == len(names)


@given(st.text())
def test_any_text_comes_back_from_json(text):
    line = as_json({"a": text})
    assert len(line.splitlines()) == 1
    assert json.loads(line.encode("utf-8")) == {"a": text}


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_comes_back_from_csv(text):
    data = written(CSV, [result(output=text)], {"a": "text"}).encode("utf-8")
    [(_, row)] = read(data, CSV)[0]
    assert row["output"] == text
