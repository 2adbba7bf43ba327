"""Text that is written to a terminal can't control it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mellea_like.core.display import one_line, printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain\ttext\n", "plain\ttext\n"),
        ("naïve 東京 👍", "naïve 東京 👍"),
        ("\x1b[31mred", r"\x1b[31mred"),
        ("\x1b]0;title\x07", r"\x1b]0;title\x07"),
        ("\x9b2J", r"\x9b2J"),
        ("over\rwritten\b", r"over\x0dwritten\x08"),
        ("windows\r\nline", "windows\nline"),
        ("\u202eturned", r"\u202eturned"),
        ("half \ud83d", r"half \ud83d"),
        ("\x7f", r"\x7f"),
    ],
)
def test_what_steers_a_terminal_is_shown_as_an_escape(text, shown):
    assert printable(text) == shown


@given(st.text(st.characters()), st.integers(1, 50))
def test_one_line_is_one_line_of_limited_length(text, limit):
    line = one_line(text, limit)
    assert len(line) <= limit
    assert len(line.splitlines()) <= 1
