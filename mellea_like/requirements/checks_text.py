"""Checks of wording: what a text contains, how it starts and ends, its casing, patterns."""

from __future__ import annotations

import math
import re
import unicodedata
from typing import TYPE_CHECKING, Any, Literal, Unpack, get_args

from mellea_like.core.argument_checks import real_number
from mellea_like.core.validation import ValidationResult, Verdict
from mellea_like.errors import RequirementError
from mellea_like.requirements.checks_common import (
    Answer,
    Fresh,
    Look,
    Settings,
    check,
    clipped,
    folded,
    given_texts,
    listed,
    quoted,
    ready_made,
)
from mellea_like.requirements.checks_counts import sentences_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mellea_like.core.requirement import Requirement
    from mellea_like.core.validation import Candidate

__all__ = ["Casing", "casing", "contains", "ends_with", "excludes", "matches", "starts_with"]

Casing = Literal["lower", "upper", "title", "sentence"]

_EMPTY = "it is empty"

FEWEST_WORDS_OF_A_TITLE = 3
"""Fewer words may all be capitalised in a sentence: ``Ada Lovelace.``"""

_SMALL_WORDS = frozenset(
    "a an and as at but by for from if in into nor of on onto or so the to"  # noqa: SIM905
    " up via with yet".split()
)


@ready_made
def contains(*texts: str, ignore_case: bool = False, **settings: Unpack[Settings]) -> Requirement:
    """Require texts, all of them, anywhere in the reply; inside a longer word too.

    Texts compare after Unicode normalisation (NFC), so that two ways to encode ``é`` are the same.

    Args:
        *texts: what must occur.
        ignore_case: compare by Unicode case folding.
        **settings: ``name``, ``weight``, ``check_only``, ``on_error``, as for `Requirement`.

    Returns:
        The requirement; its score is the share of the texts that occur.

    Raises:
        TypeError: there is no text, or one isn't a str.
        ValueError: a text is empty.
    """
    wanted = given_texts("contains", texts)
    needles = [(text, folded(text, ignore_case=ignore_case)) for text in wanted]

    def validate(candidate: Candidate) -> ValidationResult:
        reply = folded(candidate.text, ignore_case=ignore_case)
        missing = [text for text, needle in needles if needle not in reply]
        if not missing:
            return ValidationResult(True, f"it contains {listed(wanted)}", 1.0)
        score = 1.0 - len(missing) / len(wanted)
        return ValidationResult(False, f"it does not contain {listed(missing, 'or')}", score)

    case = _whatever_case(ignore_case=ignore_case)
    return check("contains", f"contains {listed(wanted)}{case}", validate, settings)


@ready_made
def excludes(
    *texts: str, ignore_case: bool = False, early: bool = False, **settings: Unpack[Settings]
) -> Requirement:
    """Forbid texts, all of them, anywhere in the reply; inside a longer word too.

    Texts compare after Unicode normalisation (NFC).

    Args:
        *texts: what must not occur.
        ignore_case: compare by Unicode case folding.
        early: check a reply while it arrives, too, and close its request at the first sure failure;
            see `mellea_like.requirements.checks`.
        **settings: ``name``, ``weight``, ``check_only``, ``on_error``, as for `Requirement`.

    Returns:
        The requirement; its score is the share of the texts that do not occur.

    Raises:
        TypeError: there is no text, or one isn't a str.
        ValueError: a text is empty.
    """
    unwanted = given_texts("excludes", texts)
    needles = [(text, folded(text, ignore_case=ignore_case)) for text in unwanted]

    def wrong(found: list[str]) -> str:
        return f"it contains {listed(found)}, which is not allowed"

    def validate(candidate: Candidate) -> ValidationResult:
        reply = folded(candidate.text, ignore_case=ignore_case)
        found = [text for text, needle in needles if needle in reply]
        if not found:
            return ValidationResult(True, f"it does not contain {listed(unwanted, 'or')}", 1.0)
        return ValidationResult(False, wrong(found), 1.0 - len(found) / len(unwanted))

    stream = _excluding(needles, wrong, ignore_case=ignore_case) if early else None
    words = f"does not contain {listed(unwanted, 'or')}{_whatever_case(ignore_case=ignore_case)}"
    return check("excludes", words, validate, settings, stream)


@ready_made
def starts_with(
    *texts: str, ignore_case: bool = False, early: bool = False, **settings: Unpack[Settings]
) -> Requirement:
    """Require one of some texts at the start; white space before it is passed over.

    Args:
        *texts: one of them must stand at the start.
        ignore_case: compare by Unicode case folding.
        early: check a reply while it arrives, too, and close its request at the first sure failure;
            see `mellea_like.requirements.checks`.
        **settings: ``name``, ``weight``, ``check_only``, ``on_error``, as for `Requirement`.

    Returns:
        The requirement.

    Raises:
        TypeError: there is no text, or one isn't a str.
        ValueError: a text is empty.
    """
    wanted = given_texts("starts_with", texts)
    needles = tuple(folded(text, ignore_case=ignore_case) for text in wanted)
    longest = max(map(len, wanted))

    def wrong(text: str) -> str:
        head = text.lstrip()[: longest + 8]
        return f"it starts with {quoted(head)}, not with {listed(wanted, 'or')}" if head else _EMPTY

    def validate(candidate: Candidate) -> ValidationResult:
        reply = folded(candidate.text, ignore_case=ignore_case)
        if reply.startswith(needles) or reply.lstrip().startswith(needles):
            return ValidationResult(True, f"it starts with {listed(wanted, 'or')}", 1.0)
        return ValidationResult(False, wrong(candidate.text), 0.0)

    stream = _starting(needles, wrong, ignore_case=ignore_case) if early else None
    words = f"starts with {listed(wanted, 'or')}{_whatever_case(ignore_case=ignore_case)}"
    return check("starts_with", words, validate, settings, stream)


@ready_made
def ends_with(*texts: str, ignore_case: bool = False, **settings: Unpack[Settings]) -> Requirement:
    """Require one of some texts at the end; white space after it is passed over.

    Args:
        *texts: one of them must stand at the end.
        ignore_case: compare by Unicode case folding.
        **settings: ``name``, ``weight``, ``check_only``, ``on_error``, as for `Requirement`.

    Returns:
        The requirement.

    Raises:
        TypeError: there is no text, or one isn't a str.
        ValueError: a text is empty.
    """
    wanted = given_texts("ends_with", texts)
    needles = tuple(folded(text, ignore_case=ignore_case) for text in wanted)
    longest = max(map(len, wanted))

    def validate(candidate: Candidate) -> ValidationResult:
        reply = folded(candidate.text, ignore_case=ignore_case)
        if reply.endswith(needles) or reply.rstrip().endswith(needles):
            return ValidationResult(True, f"it ends with {listed(wanted, 'or')}", 1.0)
        tail = candidate.text.rstrip()[-(longest + 8) :]
        reason = f"it ends with {quoted(tail)}, not with {listed(wanted, 'or')}"
        return ValidationResult(False, reason if tail else _EMPTY, 0.0)

    case = _whatever_case(ignore_case=ignore_case)
    return check("ends_with", f"ends with {listed(wanted, 'or')}{case}", validate, settings)


@ready_made
def matches(
    pattern: str,
    *,
    full: bool = False,
    ignore_case: bool = False,
    timeout: float = 0.1,
    early: bool = False,
    **settings: Unpack[Settings],
) -> Requirement:
    """Require a match of a regular expression, in the dialect of the ``regex`` package.

    That dialect has all of the standard library's, and a search in it can be stopped: a pattern
    that needs exponential time makes the requirement err instead of hanging the event loop. Flags
    are written into the pattern: ``(?m)``, ``(?s)``.

    Args:
        pattern: the regular expression.
        full: the whole reply must match, white space at its ends aside; by default any part may.
        ignore_case: match whatever the case.
        timeout: the most processor time for one search, in seconds; over 0.
        early: check a reply while it arrives, too, and close its request at the first sure failure;
            see `mellea_like.requirements.checks`.
        **settings: ``name``, ``weight``, ``check_only``, ``on_error``, as for `Requirement`.

    Returns:
        The requirement. A search that takes too long raises `RequirementError` from its validator.

    Raises:
        ImportError: the ``regex`` package is not installed.
        TypeError: the pattern isn't a str, or the timeout isn't a number.
        ValueError: the pattern isn't a regular expression, the timeout isn't over 0, or ``early``
            is asked for and the pattern can't be decided early: with look-around, word boundaries,
            back references or possessive repetition, more text may change what the text so far
            rules out; and without ``full`` or ``^`` at its start, a match may come at any time.
    """
    try:
        import regex  # noqa: PLC0415 (an extra)
    except ImportError as exc:
        msg = "matches needs the regex package: pip install 'mellea-like[checks]'"
        raise ImportError(msg) from exc
    if not isinstance(pattern, str):
        msg = f"matches takes a pattern as a str, not {pattern!r}"
        raise TypeError(msg)
    real_number("matches: timeout", timeout, over=0, most=math.inf, unit="seconds")
    try:
        compiled = regex.compile(pattern, regex.IGNORECASE if ignore_case else 0)
    except (regex.error, OverflowError, RecursionError) as exc:
        msg = f"matches: `{clipped(pattern)}` isn't a regular expression: {exc}"
        raise ValueError(msg) from exc
    if early and not (_is_plain(pattern) and (full or _anchored(pattern))):
        msg = (
            f"matches: `{clipped(pattern)}` can't be decided early: that takes full=True or ^ at"
            " its start, and no look-around, word boundary, back reference or possessive repetition"
        )
        raise ValueError(msg)
    shown = f"the regular expression `{clipped(pattern, 200)}`"

    wrong = f"it does not match {shown} {'as a whole' if full else 'anywhere'}"

    def validate(candidate: Candidate) -> ValidationResult:
        try:
            if full:
                found = compiled.fullmatch(candidate.text.strip(), timeout=timeout)
            else:
                found = compiled.search(candidate.text, timeout=timeout)
        except TimeoutError as exc:
            msg = (
                f"{shown} took over {timeout:g} s on a reply of {len(candidate.text)} characters:"
                " make it simpler, or raise its timeout"
            )
            raise RequirementError(msg, requirement="matches") from exc
        if found is None:
            return ValidationResult(False, wrong, 0.0)
        return ValidationResult(True, f"it matches {shown}", 1.0)

    stream = _matching(compiled, wrong, full=full, timeout=timeout) if early else None
    how = "matches as a whole" if full else "has a part that matches"
    words = f"{how} {shown}{_whatever_case(ignore_case=ignore_case)}"
    return check("matches", words, validate, settings, stream)


@ready_made
def casing(kind: Casing, **settings: Unpack[Settings]) -> Requirement:
    """Require a casing. What has no case, such as digits and most scripts of Asia, always passes.

    - ``"lower"``: no letter is a capital. ``"upper"``: every letter is one.
    - ``"title"``: every word starts with a capital; short words such as ``of`` may not, except the
      first and the last.
    - ``"sentence"``: every sentence starts with a capital, and none with three words or more
      capitalises them all.

    Args:
        kind: which casing.
        **settings: ``name``, ``weight``, ``check_only``, ``on_error``, as for `Requirement`.

    Returns:
        The requirement; its score is the share of words (for ``"sentence"``, sentences) in order.

    Raises:
        ValueError: there is no such casing.
    """
    if kind not in get_args(Casing):
        msg = f"casing is one of {', '.join(get_args(Casing))}, not {kind!r}"
        raise ValueError(msg)
    words, look = _CASINGS[kind]

    def validate(candidate: Candidate) -> ValidationResult:
        wrong, total = look(candidate.text)
        if not wrong:
            return ValidationResult(True, f"it is {words}", 1.0)
        others = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        reason = f"it is not {words}: {quoted(wrong[0])}{others}"
        return ValidationResult(False, reason, 1.0 - len(wrong) / total)

    return check("casing", f"is {words}", validate, settings)


def _not_lower(text: str) -> tuple[list[str], int]:
    words = text.split()
    return [word for word in words if any(c.lower() != c for c in word)], len(words)


def _not_upper(text: str) -> tuple[list[str], int]:
    words = text.split()
    return [word for word in words if any(c.upper() != c for c in word)], len(words)


def _not_title(text: str) -> tuple[list[str], int]:
    words = [word for word in text.split() if any(map(str.isalnum, word))]
    last = len(words) - 1
    wrong = [
        word
        for i, word in enumerate(words)
        if _starts_small(word)
        and (i in {0, last} or "".join(filter(str.isalnum, word)) not in _SMALL_WORDS)
    ]
    return wrong, len(words)


def _not_sentence(text: str) -> tuple[list[str], int]:
    sentences = sentences_of(text)
    return [s for s in sentences if _starts_small(s) or _all_capitalised(s)], len(sentences)


def _starts_small(text: str) -> bool:
    first = next(filter(str.isalnum, text), "")
    return first.title() != first


def _all_capitalised(sentence: str) -> bool:
    firsts = [first for word in sentence.split() if (first := next(filter(str.isalpha, word), ""))]
    return len(firsts) >= FEWEST_WORDS_OF_A_TITLE and all(c.lower() != c for c in firsts)


_CASINGS: dict[str, tuple[str, Callable[[str], tuple[list[str], int]]]] = {
    "lower": ("all in lower case", _not_lower),
    "upper": ("all in capitals", _not_upper),
    "title": ("in title case", _not_title),
    "sentence": ("in sentence case", _not_sentence),
}


def _whatever_case(*, ignore_case: bool) -> str:
    return " (upper or lower case)" if ignore_case else ""


# --- while a reply arrives --------------------------------------------------------------------

# Vowels and final consonants of Hangul join the syllable before them, and the vowel signs of Kirat
# Rai each other; all else that joins what stands before it is a mark, or follows no text at all.
_JOINING = re.compile("[\u1160-\u11ff\ud7b0-\ud7ff\U00016d63-\U00016d6a]")
_FIRST_MARK = "\u0300"

# What a regular expression may consist of so that more text never undoes what the text so far
# rules out. A word boundary, for one, may hold at the end of a text, and not once more arrives.
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
    """Tell whether Unicode normalisation (NFC) never joins a character to the text before it."""
    if character < _FIRST_MARK:
        return True
    return unicodedata.category(character)[0] not in "MC" and not _JOINING.match(character)


def _excluding(
    needles: Sequence[tuple[str, str]], reason: Callable[[list[str]], str], *, ignore_case: bool
) -> Fresh:
    """Return a check that fails once one of some texts has arrived."""
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


def _starting(
    needles: tuple[str, ...], reason: Callable[[str], str], *, ignore_case: bool
) -> Fresh:
    """Return a check that fails once a reply starts with none of some texts."""
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


def _is_plain(pattern: str) -> bool:
    """Tell whether a pattern can be decided early: it ignores what is around a match."""
    at, end = _body(pattern)
    while at < end:
        token = _TOKEN.match(pattern, at, end)
        if token is None:
            return False
        at = token.end()
    return True


def _anchored(pattern: str) -> bool:
    """Tell whether a plain pattern can match at the start of a text only."""
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


def _matching(compiled: Any, reason: str, *, full: bool, timeout: float) -> Fresh:
    """Return a check that fails once a reply can't come to match."""

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
