"""Checks of wording and of single values."""

from __future__ import annotations

import re
import unicodedata
from decimal import Decimal
from typing import TYPE_CHECKING, Literal, Unpack, get_args

from mellea_like.core.argument_checks import check_one_of, real_number
from mellea_like.core.display import clipped, quoted
from mellea_like.core.requirement import ready_made
from mellea_like.core.validation import ValidationResult, Verdict
from mellea_like.requirements.checks_common import (
    Answer,
    CheckSettings,
    Fresh,
    Look,
    check,
    folded,
    found_in,
    given_texts,
    how_found,
    listed,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from mellea_like.core.requirement import Requirement
    from mellea_like.core.validation import Candidate

Casing = Literal["lower", "upper"]

_EMPTY = "it is empty"

_NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?(?:[eE][+-]?\d{1,4})?")

MAX_DIGITS = 1_000
"""The most characters of a number. A longer text isn't read as a number."""


@ready_made
def contains(
    *texts: str, ignore_case: bool = False, words: bool = False, **settings: Unpack[CheckSettings]
) -> Requirement:
    """Require that the reply contains all of the texts, by default also inside longer words.

    Texts are compared after Unicode normalization (NFC), so both ways to encode ``é`` are the
    same.

    Args:
        *texts: the texts that must occur.
        ignore_case: compare by Unicode case folding.
        words: find only whole words, which have no letter, digit or ``_`` next to them. ``can`` is
            found in ``can-do`` and ``can't``, but not in ``significant`` or ``canned``.
        **settings: ``name``, ``weight``, ``check_only``, ``on_error``, as for `Requirement`.

    Returns:
        The requirement. Its score is the share of the texts that occur.

    Raises:
        TypeError: there is no text, or one isn't a str.
        ValueError: a text is empty.
    """
    wanted = given_texts("contains", texts)
    needles = [(text, folded(text, ignore_case=ignore_case)) for text in wanted]

    def validate(candidate: Candidate) -> ValidationResult:
        reply = folded(candidate.text, ignore_case=ignore_case)
        missing = [text for text, needle in needles if not found_in(reply, needle, words=words)]
        if not missing:
            return ValidationResult(True, f"it contains {listed(wanted)}", 1.0)
        score = 1.0 - len(missing) / len(wanted)
        return ValidationResult(False, f"it does not contain {listed(missing, 'or')}", score)

    how = how_found(ignore_case=ignore_case, words=words)
    return check("contains", f"contains {listed(wanted)}{how}", validate, settings)


@ready_made
def excludes(
    *texts: str,
    ignore_case: bool = False,
    words: bool = False,
    early: bool = False,
    **settings: Unpack[CheckSettings],
) -> Requirement:
    """Require that the reply contains none of the texts, by default not even inside longer words.

    Texts are compared after Unicode normalization (NFC).

    Args:
        *texts: the texts that must not occur.
        ignore_case: compare by Unicode case folding.
        words: find only whole words, as in `contains`.
        early: also check replies while they stream in, and close a request as soon as its reply is
            certain to fail; see `mellea_like.requirements.checks`.
        **settings: ``name``, ``weight``, ``check_only``, ``on_error``, as for `Requirement`.

    Returns:
        The requirement. Its score is the share of the texts that do not occur.

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
        found = [text for text, needle in needles if found_in(reply, needle, words=words)]
        if not found:
            return ValidationResult(True, f"it does not contain {listed(unwanted, 'or')}", 1.0)
        return ValidationResult(False, wrong(found), 1.0 - len(found) / len(unwanted))

    stream = _excluding(needles, wrong, ignore_case=ignore_case, words=words) if early else None
    how = how_found(ignore_case=ignore_case, words=words)
    described = f"does not contain {listed(unwanted, 'or')}{how}"
    return check("excludes", described, validate, settings, stream)


@ready_made
def starts_with(
    *texts: str, ignore_case: bool = False, early: bool = False, **settings: Unpack[CheckSettings]
) -> Requirement:
    """Require that the reply starts with one of several texts, ignoring leading white space.

    Args:
        *texts: the texts, one of which must be at the start.
        ignore_case: compare by Unicode case folding.
        early: also check replies while they stream in, and close a request as soon as its reply is
            certain to fail; see `mellea_like.requirements.checks`.
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
    words = f"starts with {listed(wanted, 'or')}{how_found(ignore_case=ignore_case)}"
    return check("starts_with", words, validate, settings, stream)


@ready_made
def ends_with(
    *texts: str, ignore_case: bool = False, **settings: Unpack[CheckSettings]
) -> Requirement:
    """Require that the reply ends with one of several texts, ignoring trailing white space.

    Args:
        *texts: the texts, one of which must be at the end.
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

    case = how_found(ignore_case=ignore_case)
    return check("ends_with", f"ends with {listed(wanted, 'or')}{case}", validate, settings)


@ready_made
def casing(kind: Casing, **settings: Unpack[CheckSettings]) -> Requirement:
    """Require lower or upper case. Characters without a case, such as digits, always pass.

    Args:
        kind: ``"lower"`` forbids upper-case letters, ``"upper"`` forbids lower-case letters.
        **settings: ``name``, ``weight``, ``check_only``, ``on_error``, as for `Requirement`.

    Returns:
        The requirement. Its score is the share of the words that pass.

    Raises:
        ValueError: ``kind`` is neither of the two.
    """
    check_one_of("casing: the kind", kind, get_args(Casing))
    described = "all in lower case" if kind == "lower" else "all in capitals"
    change = str.lower if kind == "lower" else str.upper

    def validate(candidate: Candidate) -> ValidationResult:
        words = candidate.text.split()
        wrong = [word for word in words if any(change(c) != c for c in word)]
        if not wrong:
            return ValidationResult(True, f"it is {described}", 1.0)
        others = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        reason = f"it is not {described}: {quoted(wrong[0])}{others}"
        return ValidationResult(False, reason, 1.0 - len(wrong) / len(words))

    return check("casing", f"is {described}", validate, settings)


@ready_made
def one_of(
    choices: Iterable[str], *, ignore_case: bool = False, **settings: Unpack[CheckSettings]
) -> Requirement:
    """Require a reply that is one of several texts, ignoring white space at its ends.

    Texts are compared after Unicode normalization (NFC).

    Args:
        choices: the allowed texts.
        ignore_case: compare by Unicode case folding.
        **settings: ``name``, ``weight``, ``check_only``, ``on_error``, as for `Requirement`.

    Returns:
        The requirement.

    Raises:
        TypeError: ``choices`` is a single text or empty, or a choice isn't a str.
        ValueError: a choice is blank.
    """
    if isinstance(choices, str):
        msg = f"one_of needs a list of texts: one_of([{choices!r}])"
        raise TypeError(msg)
    allowed = given_texts("one_of", tuple(choices))
    if not all(text.strip() for text in allowed):
        msg = "one_of: texts can't be blank"
        raise ValueError(msg)
    needles = {folded(text.strip(), ignore_case=ignore_case) for text in allowed}

    def validate(candidate: Candidate) -> ValidationResult:
        reply = candidate.text.strip()
        if folded(reply, ignore_case=ignore_case) in needles:
            return ValidationResult(True, f"it is {quoted(reply)}", 1.0)
        reason = f"it is {quoted(reply)}; only {listed(allowed, 'or')} is allowed"
        return ValidationResult(False, reason, 0.0)

    return check("one_of", f"is {listed(allowed, 'or')}, and nothing else", validate, settings)


@ready_made
def number_between(
    low: float | None = None, high: float | None = None, **settings: Unpack[CheckSettings]
) -> Requirement:
    """Require a reply that is one number within a range.

    Numbers are read exactly, in the notation ``-12``, ``3.5`` or ``6e3``. Except for white space at
    the ends, the reply may contain nothing else. If the reply was parsed into an int or a float,
    that value is checked instead of the text.

    Args:
        low: the smallest number allowed; None for no limit.
        high: the largest number allowed; None for no limit.
        **settings: ``name``, ``weight``, ``check_only``, ``on_error``, as for `Requirement`.

    Returns:
        The requirement. Its score tells how close the number is to the allowed range.

    Raises:
        TypeError: no limit is given, or one isn't a number.
        ValueError: a limit isn't finite, or ``low`` is greater than ``high``.
    """
    if low is None and high is None:
        msg = "number_between needs low, high or both"
        raise TypeError(msg)
    least, most = _limit("low", low, "-Infinity"), _limit("high", high, "Infinity")
    if least > most:
        msg = f"number_between: low={low} must not be greater than high={high}"
        raise ValueError(msg)
    limits = f"between {low} and {high}"
    if low is None or high is None:
        limits = f"at most {high}" if low is None else f"at least {low}"
    size = max(Decimal(1), *(abs(limit) for limit in (least, most) if limit.is_finite()))

    def validate(candidate: Candidate) -> ValidationResult:
        number = _number(candidate)
        if number is None:
            return ValidationResult(
                False, f"it isn't a number: {quoted(candidate.text.strip())}", 0.0
            )
        shown = clipped(str(number))
        distance = max(least - number, number - most, Decimal(0))
        if distance == 0:
            return ValidationResult(True, f"it is {shown}", 1.0)
        score = float(1 / (1 + distance / size))
        return ValidationResult(False, f"it is {shown}; it must be {limits}", score)

    return check("number_between", f"is a number {limits}, and nothing else", validate, settings)


def _limit(name: str, limit: object, none: str) -> Decimal:
    # The shortest notation is used because 0.1 means 0.1, not the nearest binary fraction.
    return Decimal(none if limit is None else repr(real_number(f"number_between: {name}", limit)))


def _number(candidate: Candidate) -> Decimal | None:
    value = candidate.value
    if isinstance(value, int) and not isinstance(value, bool):
        return Decimal(value)
    text = repr(value) if isinstance(value, float) else candidate.text.strip()
    if len(text) > MAX_DIGITS or _NUMBER.fullmatch(text) is None:
        return None
    return Decimal(text)


# --- while a reply arrives --------------------------------------------------------------------

# Hangul's vowels and final consonants join the syllable before them, and Kirat Rai's vowel signs
# join each other. Any other character that joins the one before it is a mark, or never follows
# text.
_JOINING = re.compile("[\u1160-\u11ff\ud7b0-\ud7ff\U00016d63-\U00016d6a]")
_FIRST_MARK = "\u0300"


def joins_nothing(character: str) -> bool:
    """Return whether Unicode normalization (NFC) never joins a character to the text before it."""
    if character < _FIRST_MARK:
        return True
    return unicodedata.category(character)[0] not in "MC" and not _JOINING.match(character)


def _excluding(
    needles: Sequence[tuple[str, str]],
    reason: Callable[[list[str]], str],
    *,
    ignore_case: bool,
    words: bool,
) -> Fresh:
    """Return a stream check that fails once one of the excluded texts has arrived."""
    # The characters around a word tell whether it is whole.
    kept = max(len(needle) for _, needle in needles) + (1 if words else -1)

    def make() -> Look:
        settle = _settling(ignore_case=ignore_case)
        tail = ""
        start = 0  # Where to start in the window.

        def look(_: str, delta: str) -> Answer:
            nonlocal tail, start
            window = tail + settle(delta)
            end = len(window) - words
            found = [
                shown
                for shown, needle in needles
                if found_in(window, needle, words=words, start=start, end=max(end, 0))
            ]
            if found:
                return Verdict.FAIL, reason(found)
            start = start or int(words and len(window) > kept)
            tail = window[-kept:] if kept else ""
            return Verdict.UNKNOWN

        return look

    return Fresh(make)


def _starting(
    needles: tuple[str, ...], reason: Callable[[str], str], *, ignore_case: bool
) -> Fresh:
    """Return a stream check that fails once a reply can't start with any of the texts."""
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
    """Return a function that takes a reply's pieces and returns folded text that is now final."""
    waiting: list[str] = []  # A character with its marks, to which the next piece may add.

    def settle(delta: str) -> str:
        for i in range(len(delta) - 1, -1, -1):
            if joins_nothing(delta[i]):
                settled = "".join([*waiting, delta[:i]])
                waiting[:] = [delta[i:]]
                return folded(settled, ignore_case=ignore_case)
        waiting.append(delta)
        return ""

    return settle
