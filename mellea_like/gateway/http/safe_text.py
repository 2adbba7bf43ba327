"""Texts from outside, made fit for a header, a log line or a frame of an event stream."""

from __future__ import annotations

import json

__all__ = ["comment", "frame", "header_value", "one_line"]

MAX_HEADER = 200
MAX_LINE = 200


def header_value(text: str, most: int = MAX_HEADER) -> str:
    """Make a text fit for a header's value: printable ASCII, in bounds.

    Args:
        text: any text.
        most: how many characters it may have, 3 or more.

    Returns:
        The text, with ``?`` for what a header can't hold and ``...`` for what is too much.
    """
    shown = "".join(c if " " <= c <= "~" else "?" for c in text[: most + 1]).strip()
    return shown if len(text) <= most else f"{shown[: most - 3]}..."


def one_line(text: str, most: int = MAX_LINE) -> str:
    r"""Make a text fit for a log: one line, without anything that moves a terminal's cursor.

    Args:
        text: any text.
        most: how many characters of it are shown.

    Returns:
        The text, with escapes such as ``\n`` and ``\u2028`` for what is not printable.
    """
    # A backslash is escaped as well, so that an escape can't be forged.
    shown = "".join(
        c if c.isprintable() and c != "\\" else c.encode("unicode_escape").decode()
        for c in text[:most]
    )
    return shown if len(text) <= most else f"{shown}..."


def frame(data: object) -> bytes:
    """Make a frame of an event stream.

    JSON in ASCII has no line break of any kind, so nothing in it can end the frame early, or begin
    one.

    Args:
        data: what JSON can hold.

    Returns:
        The frame, with the empty line that ends it.
    """
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return f"data: {text}\n\n".encode("ascii")


def comment(text: str = "") -> bytes:
    """Make a comment of an event stream, which clients skip.

    Args:
        text: what it says.

    Returns:
        The comment, with the empty line that ends it.
    """
    return f": {header_value(text)}".rstrip().encode("ascii") + b"\n\n"
