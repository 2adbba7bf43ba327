"""Rows of data, and results as columns, independent of the file format."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import BinaryIO

RESULT_FIELDS = {
    "id": "integer",
    "line": "integer",
    "output": "text",
    "success": "boolean",
    "status": "text",
    "reasons": "text",
    "error": "text",
    "iterations": "integer",
    "elapsed": "number",
    "requests": "integer",
    "input_tokens": "integer",
    "output_tokens": "integer",
    "unknown": "integer",
}
"""The columns of a result in a file with columns, and their types; they follow the input's."""

_NOT_ESCAPED_BY_JSON = re.compile(
    r"[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


class RowFormat(StrEnum):
    """How rows are stored in a file."""

    JSONL = "jsonl"
    """One JSON object per line."""
    CSV = "csv"
    """Comma-separated values below a line of names (RFC 4180)."""
    TSV = "tsv"
    """Tab-separated values below a line of names."""
    PARQUET = "parquet"
    """Apache Parquet; needs the extra ``arrow``."""


_SUFFIXES = {
    ".jsonl": RowFormat.JSONL,
    ".ndjson": RowFormat.JSONL,
    ".csv": RowFormat.CSV,
    ".tsv": RowFormat.TSV,
    ".parquet": RowFormat.PARQUET,
}


class Row(dict[str, Any]):
    """A row of an input file: its values by name, all of which JSON can express.

    ``number`` is that of its line or, in Parquet, of the row, from 1. ``id`` is its position in the
    earlier run whose results are read, ``place`` its position in a file that processes share.
    """

    __slots__ = ("id", "number", "place", "word")

    def __init__(
        self,
        fields: dict[str, Any],
        number: int,
        id: int | None = None,  # noqa: A002 (the result's word)
        word: str = "line",
    ) -> None:
        super().__init__(fields)
        self.number = number
        self.word = word
        self.id = id
        self.place: int | None = None

    @property
    def where(self) -> str:
        """The row's number for errors, such as "line 7"."""
        return f"{self.word} {self.number}"


class BadRow(ValueError):
    """A row can't be read. The message begins with the row's position, which is ``number``."""

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.number = number


class RowWriter(ABC):
    """Writes rows, given as plain records, to a file."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    @abstractmethod
    def write(self, record: Mapping[str, Any]) -> None:
        """Write one row."""

    def close(self) -> None:  # noqa: B027 (most files have no end to write)
        """Write the end of the file, if its format has one; the file stays open."""


def format_of(path: str | Path) -> RowFormat:
    """Return the format of a file with this name; raise ValueError if its suffix is unknown."""
    suffix = Path(path).suffix.lower()
    try:
        return _SUFFIXES[suffix]
    except KeyError:
        msg = f"{path} does not end in one of {', '.join(_SUFFIXES)}"
        raise ValueError(msg) from None


def as_json(value: Any) -> str:
    """Return a value as JSON on one line, safe for terminals and for anything that reads lines."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return _NOT_ESCAPED_BY_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


HALVES = "rows with halves of characters, replaced by U+FFFD"
"""The label of rows that `whole` has changed, for notices that show their number."""


def whole(value: Any) -> Any:
    """Join surrogate pairs in a value, and replace lone surrogates: UTF-8 allows neither."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    elif isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        return {whole(name): whole(part) for name, part in fields.items()}
    elif isinstance(value, list):
        return [whole(part) for part in cast("Sequence[Any]", value)]
    return value


def of_results(names: Sequence[str]) -> bool:
    """Return whether a file with these columns contains results."""
    last = [name.removeprefix("result_") for name in names[-len(RESULT_FIELDS) :]]
    return last == list(RESULT_FIELDS)


def input_of(row: Row) -> Row | None:
    """Return a result's input, or None if the result passed; raise if the row isn't a result."""
    told: Mapping[str, Any] = row
    names = list(row)
    given: Any = row.get("input")
    if not (isinstance(given, dict) and {"id", "line", "success"} <= row.keys()):
        if not of_results(names):
            msg = f"{row.where} isn't a result of mellea-like batch"
            raise BadRow(msg, row.number)
        before = len(names) - len(RESULT_FIELDS)
        told = dict(zip(RESULT_FIELDS, list(row.values())[before:], strict=True))
        given = {name: row[name] for name in names[:before]}
        if names[:before] == ["input"]:  # The input had no columns.
            given = json.loads(row["input"])
    if told["success"] in {True, "true"}:
        return None
    return Row(cast("dict[str, Any]", given), int(told["line"]), int(told["id"]), row.word)


def result_columns(columns: Mapping[str, str] | None) -> dict[str, str]:
    """Return the columns of a file of results; rename result columns that the input also has."""
    given = {"input": "text"} if columns is None else columns
    names = free_names(list(given), list(RESULT_FIELDS))
    return {**given, **dict(zip(names, RESULT_FIELDS.values(), strict=True))}


def free_names(taken: Sequence[str], wanted: Sequence[str]) -> list[str]:
    """Return the ``wanted`` names, with prefixes for names that are ``taken`` or occur twice."""
    found: list[str] = []
    for field in wanted:
        name = field
        while name in taken or name in found:
            name = f"result_{name}"
        found.append(name)
    return found


def flat(record: Mapping[str, Any], columns: Iterable[str] | None) -> list[Any]:
    """Return a result as a list of values, one for each column in `result_columns`."""
    given = record["input"]
    before = [as_json(given)] if columns is None else [given.get(name) for name in columns]
    output, error = record["output"], record["error"]
    after = {
        **{name: record[name] for name in RESULT_FIELDS if name in record},
        **record["usage"],
        "output": output if output is None or isinstance(output, str) else as_json(output),
        "reasons": "; ".join(record["reasons"]),
        "error": None if error is None else f"{error['type']}: {error['message']}",
    }
    return before + [after[name] for name in RESULT_FIELDS]
