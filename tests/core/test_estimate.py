"""Estimates of the tokens that a request costs."""

from __future__ import annotations

import pytest

from mellea_like import Image, Message, Request
from mellea_like.core import Audio, File, Text
from mellea_like.core.token_estimate import estimate_input_tokens


@pytest.mark.parametrize(
    ("texts", "tokens"),
    [
        ((), 1),
        (("",), 4),
        (("a",), 5),
        (("abcd",), 5),
        (("abcde",), 6),
        (("abcd", "efgh"), 10),
        (("ab", "cd"), 9),  # Rounded up once, not message by message.
        (("日本語",), 4 + 3),  # Nine bytes.
        (("\ud800",), 4 + 1),  # A lone surrogate can't be sent, but it can be counted.
        (("x" * 4000,), 1004),
    ],
)
def test_input_is_a_quarter_of_the_bytes_and_four_a_message(texts, tokens):
    request = Request(tuple(Message("user", text) for text in texts))
    assert estimate_input_tokens(request) == tokens


@pytest.mark.parametrize(
    ("part", "tokens"),
    [
        (Text("abcde"), 2),
        (Image("https://example.org/a.png"), 765),
        (Image(data=b"x" * 9_000_000, media_type="image/png"), 765),
        (Image("https://example.org/a.png", detail="low"), 85),
        (Audio(b"x" * 48_000, "wav"), 10),  # A second of it.
        (Audio(b"x" * 16_000, "mp3"), 10),
        (File(b"x" * 4000, filename="a.txt"), 1000),
        (File(b"%PDF-" + b"x" * 70_000), 2 * 765),
        (File(file_id="file-1"), 765),
    ],
)
def test_parts_count_by_their_kind(part, tokens):
    assert estimate_input_tokens(Request((Message("user", [part]),))) == 4 + tokens
