"""Reads sentences out of text: out of Python's own help pages, or out of what a user names."""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["help_sentences", "prose_of", "read_corpus", "sentences_of"]

# In the help pages, code stands in quotes or backticks; a plain word in them is fit for prose.
_QUOTED_WORD = re.compile("[\u201c\"`']{1,2}([A-Za-z]+)[\u201d\"`']{1,2}")
_ASIDE = re.compile(r"\s\([^()]*\)")
_BULLET = re.compile(r"\A(?:[*•-]|\d+\.)\s+")
_PROSE = re.compile("[A-Z][a-z]*(?:,? (?:[A-Za-z][A-Za-z'\u2019-]*|[0-9]+)){3,25}[.!?]")
_REFERENCE = re.compile(r"\A(?:See|Changed|New|Deprecated|Added)\b|\bPEP\b|\bsection\b")

# Behind a full stop and the quotes or brackets that close there, before a capital or a figure.
_SENTENCE_END = re.compile(
    "(?<!\\bMr\\.)(?<!\\bMs\\.)(?<!\\bDr\\.)(?<!\\bSt\\.)(?<!\\bMrs\\.)"
    "(?:(?<=[.!?…])|(?<=[.!?…][\"'\u201d\u2019)\\]]))\\s+(?=[\"'\u201c\u2018(\\[]?[^\\W_a-z])"
)

FEWEST_SENTENCES = 50
"""Below this many sentences, the help pages are not what this module takes them for."""

LARGEST = 256 * 2**20
"""Bytes of a corpus file: what is larger would take minutes to learn, and all memory."""


@cache
def help_sentences() -> tuple[str, ...]:
    """Return the plain English sentences of Python's help pages (`pydoc_data.topics`).

    Returns:
        The sentences, without duplicates, in order.

    Raises:
        RuntimeError: this Python comes without its help pages.
    """
    try:
        from pydoc_data.topics import topics  # noqa: PLC0415 (half a megabyte, not always needed)
    except ImportError:  # pragma: no cover (a stripped-down Python)
        return prose_of(())
    return prose_of(topics.values())


def prose_of(pages: Iterable[str]) -> tuple[str, ...]:
    """Return the sentences of help pages that are plain English.

    Sentences with code, symbols, references or lists in them are left out.

    Args:
        pages: the pages' texts.

    Returns:
        The sentences, without duplicates, in order.

    Raises:
        RuntimeError: there are hardly any.
    """
    found: dict[str, None] = {}
    for page in pages:
        for paragraph in page.split("\n\n"):
            text = _BULLET.sub("", " ".join(_body(paragraph.splitlines())))
            text = _ASIDE.sub("", _QUOTED_WORD.sub(r"\1", text))
            for sentence in _SENTENCE_END.split(text):
                if _PROSE.fullmatch(sentence) and not _REFERENCE.search(sentence):
                    found[sentence] = None
    if len(found) < FEWEST_SENTENCES:
        msg = (
            "this Python comes without its help pages, from which MarkovBackend learns by default:"
            " name a text file, MarkovBackend('book.txt')"
        )
        raise RuntimeError(msg)
    return tuple(found)


def sentences_of(text: str) -> list[str]:
    """Cut a text into sentences; where it has none, into lines.

    Args:
        text: any text.

    Returns:
        The sentences, each on one line, none empty.
    """
    found: list[str] = []
    for paragraph in re.split(r"\n\s*\n", text):
        line = " ".join(paragraph.split())
        if re.search(r"[.!?…]", line):
            found.extend(_SENTENCE_END.split(line))
        else:
            found.extend(" ".join(part.split()) for part in paragraph.splitlines())
    return [sentence for sentence in found if sentence]


def read_corpus(
    files: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    texts: str | Iterable[str],
    largest: int = LARGEST,
) -> tuple[str, ...]:
    """Read the files that a user named.

    Args:
        files: a path or several, of UTF-8 text.
        texts: a text or several to take as they are.
        largest: the most bytes that a file may have.

    Returns:
        All texts.

    Raises:
        OSError: a file can't be read.
        ValueError: a file is a device, too large or no UTF-8 text, or there is no word in all.
    """
    paths = [files] if isinstance(files, str | os.PathLike) else list(files)
    read = [_read(Path(path), largest) for path in paths]
    read += [texts] if isinstance(texts, str) else list(texts)
    if not any(text.strip() for text in read):
        where = ", ".join(map(str, paths)) or "the texts"
        msg = f"MarkovBackend can't learn from an empty corpus: {where}"
        raise ValueError(msg)
    return tuple(read)


def _body(lines: list[str]) -> list[str]:
    """Leave out the term above an indented definition."""
    depths = [len(line) - len(line.lstrip()) for line in lines[:2]]
    defined = len(depths) > 1 and depths[1] > depths[0] and not _BULLET.match(lines[0].strip())
    return [line.strip() for line in (lines[1:] if defined else lines)]


def _read(path: Path, largest: int) -> str:
    try:
        if path.is_char_device() or path.is_block_device():
            msg = f"MarkovBackend learns from files, and {path} is a device: name a file"
            raise ValueError(msg)
        with path.open(encoding="utf-8-sig") as file:
            # A pipe has no size, so what it gives is counted too.
            text = file.read(largest + 1) if path.stat().st_size <= largest else None
        if text is None or len(text) > largest:
            msg = (
                f"MarkovBackend learns from files of up to {largest // 2**20} MB, and {path} has"
                " more: name a smaller one"
            )
            raise ValueError(msg)
    except OSError as exc:
        reason = f"MarkovBackend can't read its corpus: {exc.strerror}"
        raise OSError(exc.errno, reason, str(path)) from exc
    except UnicodeDecodeError as exc:
        msg = f"MarkovBackend can't read its corpus: {path} is no UTF-8 text ({exc.reason})"
        raise ValueError(msg) from exc
    return text
