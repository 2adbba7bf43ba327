"""Wording, checked while a reply arrives: texts at its start or nowhere, regular expressions."""

from __future__ import annotations

import re
import unicodedata
from typing import TYPE_CHECKING, Any

from mellea_like.core.streaming import Verdict
from mellea_like.requirements.checks_common import folded
from mellea_like.requirements.early_checks import Answer, Fresh, Look

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["anchored", "excluding", "is_plain", "joins_nothing", "matching", "starting"]

# Vowels and final consonants of Hangul join the syllable before them, and the vowel signs of Kirat
# Rai each other; all else that joins what stands before it is a mark, or follows no text at all.
_JOINING = re.compile("[\u1160-\u11ff\ud7b0-\ud7ff\U00016d63-\U00016d6a]")
_FIRST_MARK = "\u0300"

# What a regular expression may consist of so that more text never undoes what the text so far
# rules out. A word boundary, say, may hold at the end of a text and not once more has arrived.
_ESCAPE = r"\\[dDwWsSnrtfv]|\\[pP]\{\^?\w+\}|\\[^A-Za-z0-9]"
_TOKEN = re.compile(
    rf"[^\\^$.|?*+()\[\]{{}}]|\.|\||{_ESCAPE}|\[\^?(?:[^\\\[\]]|{_ESCAPE})+\]"
    r"|\((?![?*])|\(\?[is]*:|\(\?P?<[A-Za-z_]\w*>|\)"
    r"|(?:[*+?]|\{\d+(?:,\d*)?\}|\{,\d+\})\??(?!\+)",
    re.DOTALL,
)
_HEAD = re.compile(r"(?:\(\?[is]+\))?(\^|\\A)?")
_TAIL = re.compile(r"(?<!\\)(?:\\\\)*(\$|\\Z)\Z")


def joins_nothing(character: str) -> bool:
    """Tell whether Unicode normalisation (NFC) never joins a character to the text before it.

    Args:
        character: one code point.

    Returns:
        Whether it surely does not; some that do not are not known here.
    """
    if character < _FIRST_MARK:
        return True
    return unicodedata.category(character)[0] not in "MC" and not _JOINING.match(character)


def excluding(
    needles: Sequence[tuple[str, str]], reason: Callable[[list[str]], str], *, ignore_case: bool
) -> Fresh:
    """Return a check that fails once one of some texts has arrived.

    Args:
        needles: the texts, each as it is shown to people and as it is compared.
        reason: says what is wrong, given the texts found.
        ignore_case: compare by Unicode case folding.

    Returns:
        The check.
    """
    kept = max(len(needle) for _, needle in needles) - 1

    def make() -> Look:
        settle = _settling(ignore_case=ignore_case)
        tail = ""

        def look(_: str, delta: str) -> Answer:
            nonlocal tail
            window = tail + settle(delta)
            found = [shown for shown, needle in needles if needle in window]
            if found:
                return Verdict.FAIL, reason(found)
            tail = window[-kept:] if kept else ""
            return Verdict.UNKNOWN

        return look

    return Fresh(make)


def starting(needles: tuple[str, ...], reason: Callable[[str], str], *, ignore_case: bool) -> Fresh:
    """Return a check that fails once a reply starts with none of some texts.

    Args:
        needles: the texts, as they are compared.
        reason: says what is wrong, given the reply so far.
        ignore_case: compare by Unicode case folding.

    Returns:
        The check; it says PASS once the reply starts with one of the texts.
    """
    longest = max(map(len, needles))

    def may_become(start: str) -> bool:
        return any(needle.startswith(start) for needle in needles)

    def make() -> Look:
        settle = _settling(ignore_case=ignore_case)
        head = body = ""  # With the white space before it, and without.

        def look(text: str, delta: str) -> Answer:
            nonlocal head, body
            more = settle(delta)
            head = (head + more)[:longest] if len(head) < longest else head
            body = ((body + more) if body else more.lstrip())[:longest]
            if head.startswith(needles) or body.startswith(needles):
                return Verdict.PASS
            if may_become(head) or may_become(body):
                return Verdict.UNKNOWN
            return Verdict.FAIL, reason(text)

        return look

    return Fresh(make)


def _settling(*, ignore_case: bool) -> Callable[[str], str]:
    """Return a folder of pieces: of each, it returns what further text no longer changes."""
    waiting: list[str] = []  # A character and its marks: the next character may be one more.

    def settle(delta: str) -> str:
        for i in range(len(delta) - 1, -1, -1):
            if joins_nothing(delta[i]):
                settled = "".join([*waiting, delta[:i]])
                waiting[:] = [delta[i:]]
                return folded(settled, ignore_case=ignore_case)
        waiting.append(delta)
        return ""

    return settle


# --- regular expressions ----------------------------------------------------------------------


def is_plain(pattern: str) -> bool:
    """Tell whether a pattern can be decided early: it asks nothing of what stands round a match.

    Args:
        pattern: a valid regular expression.

    Returns:
        Whether it consists of characters, sets, groups, alternatives and repetitions alone, an
        anchor at either end aside.
    """
    at, end = _body(pattern)
    while at < end:
        token = _TOKEN.match(pattern, at, end)
        if token is None:
            return False
        at = token.end()
    return True


def anchored(pattern: str) -> bool:
    """Tell whether a plain pattern can match at the start of a text only.

    Args:
        pattern: one that `is_plain`.

    Returns:
        Whether it starts with an anchor that goes for all its alternatives.
    """
    head = _HEAD.match(pattern)
    if head is None or head[1] is None:
        return False
    at, end = _body(pattern)
    depth = 0
    for token in _TOKEN.finditer(pattern, at, end):
        if token[0] == "|" and not depth:
            return False
        depth += (token[0][0] == "(") - (token[0] == ")")
    return True


def _body(pattern: str) -> tuple[int, int]:
    """Return where the part between the anchors starts and ends."""
    head = _HEAD.match(pattern)
    start = 0 if head is None else head.end()
    tail = _TAIL.search(pattern, start)
    return start, len(pattern) if tail is None else tail.start(1)


def matching(compiled: Any, reason: str, *, full: bool, timeout: float) -> Fresh:
    """Return a check that fails once a reply can't come to match.

    The pattern is tried again whenever the reply has grown by a quarter: as a match has no memory,
    this keeps the total time linear. One that takes too long is left to the whole check.

    Args:
        compiled: a pattern of the ``regex`` package that `is_plain`, and if not ``full``,
            `anchored`.
        reason: what is wrong then.
        full: the whole reply must match, white space at its ends aside; else its start.
        timeout: the most processor time for one try, in seconds.

    Returns:
        The check.
    """

    def hopeless(text: str) -> bool:
        if not full:
            return compiled.match(text, partial=True, timeout=timeout) is None
        text = text.lstrip()
        if compiled.fullmatch(text, partial=True, timeout=timeout) is not None:
            return False
        # The white space may have been the last of it.
        ended = text.rstrip()
        return len(ended) == len(text) or compiled.fullmatch(ended, timeout=timeout) is None

    def make() -> Look:
        seen = 0
        due: float = 1

        def look(text: str, delta: str) -> Answer:
            nonlocal seen, due
            seen += len(delta)
            if seen < due:
                return Verdict.UNKNOWN
            due = seen + max(1, seen // 4)
            try:
                return (Verdict.FAIL, reason) if hopeless(text) else Verdict.UNKNOWN
            except TimeoutError:
                due = float("inf")
                return Verdict.UNKNOWN

        return look

    return Fresh(make)
