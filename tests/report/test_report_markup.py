"""Pieces of a page are escaped unless they are markup."""

from __future__ import annotations

import pytest

from mellea_like.report.markup import Html, clip, html, text_block, visible


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain\ttext\nof two lines", "plain\ttext\nof two lines"),
        ("a\r\nb", "a\nb"),
        ("a\rb", "a␍b"),
        ("\x00\x1b[31m\x7f", "␀␛[31m␡"),
        ("\x85\x9b\xad", r"\x85\x9b\xad"),
        (
            "\u202eevil\u202c \u2066x\u2069 \u200f\u061c",
            r"\u202eevil\u202c \u2066x\u2069 \u200f\u061c",
        ),
        ("\u2028\u2029\u200b\ufeff", r"\u2028\u2029\u200b\ufeff"),
        ("\ud83d \udc00", r"\ud83d \udc00"),
        ("\U000e0041\uffff", r"\U000e0041\uffff"),
        ("שלום مرحبا 👩‍👩‍👧 é 漢字", "שלום مرحبا 👩‍👩‍👧 é 漢字"),
    ],
)
def test_what_can_not_be_seen_is_made_visible(text, shown):
    assert visible(text) == shown
    visible(text).encode("utf-8")


def test_what_is_filled_in_is_escaped_and_markup_is_not():
    made = html('<p title="{}">{text}</p>', "\"><script>'", text="<b>{0}&'\"")
    assert made == '<p title="&quot;&gt;&lt;script&gt;&#x27;">&lt;b&gt;{0}&amp;&#x27;&quot;</p>'
    assert html("<p>{}{}</p>", html("<b>{}</b>", "x"), Html("<i>y</i>")) == (
        "<p><b>x</b><i>y</i></p>"
    )


def test_none_is_nothing_and_numbers_are_short():
    assert html('<td x="{}">{}{}{}</td>', 3.0, None, 1, 0.1 + 0.2) == '<td x="3">10.3</td>'


@pytest.mark.parametrize(
    ("text", "limit", "clipped"),
    [("", 3, ""), ("abc", 3, "abc"), ("abcd", 3, "ab…"), ("abcd", 1, "…")],
)
def test_a_clipped_text_says_so(text, limit, clipped):
    assert clip(text, limit) == clipped


def test_a_long_text_says_how_much_more_there_is():
    assert text_block("x" * 3000, 1000) == (
        f'<pre dir="auto">{"x" * 1000}</pre><p class="note">… and 2,000 more characters</p>'
    )
    assert text_block("x" * 1000, 1000) == f'<pre dir="auto">{"x" * 1000}</pre>'


@pytest.mark.parametrize("begin", ["\n", "\r\n"])
def test_a_line_end_at_the_beginning_survives_the_parser(begin):
    # HTML's parsers drop the first line end in a pre element.
    assert text_block(f"{begin}x", 10) == '<pre dir="auto">\n\nx</pre>'
