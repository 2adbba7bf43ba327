"""Checks of wording: what a text contains, how it starts and ends, its casing, patterns."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, Unpack, get_args

from mellea_like.core.numbers import real_number
from mellea_like.core.validation import ValidationResult
from mellea_like.errors import RequirementError
from mellea_like.requirements.checks_common import (
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
from mellea_like.requirements.early_text import anchored, excluding, is_plain, matching, starting

if TYPE_CHECKING:
    from collections.abc import Callable

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
        TypeError: there is no text, or one is no str.
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
        TypeError: there is no text, or one is no str.
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

    stream = excluding(needles, wrong, ignore_case=ignore_case) if early else None
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
        TypeError: there is no text, or one is no str.
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

    stream = starting(needles, wrong, ignore_case=ignore_case) if early else None
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
        TypeError: there is no text, or one is no str.
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
        TypeError: the pattern is no str, or the timeout no number.
        ValueError: the pattern is no regular expression, the timeout is not over 0, or ``early`` is
            asked for and the pattern can't be decided early: with look-around, word boundaries,
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
        msg = f"matches: `{clipped(pattern)}` is no regular expression: {exc}"
        raise ValueError(msg) from exc
    if early and not (is_plain(pattern) and (full or anchored(pattern))):
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

    stream = matching(compiled, wrong, full=full, timeout=timeout) if early else None
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
