"""Checks with regular expressions."""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Unpack

from mellea_like.core.argument_checks import real_number
from mellea_like.core.display import clipped
from mellea_like.core.requirement import ready_made
from mellea_like.core.validation import ValidationResult
from mellea_like.errors import RequirementError
from mellea_like.requirements.checks_common import CheckSettings, check, how_found, package
from mellea_like.requirements.checks_counts import given_range

if TYPE_CHECKING:
    from collections.abc import Generator

    from mellea_like.core.requirement import Requirement
    from mellea_like.core.validation import Candidate


@ready_made
def matches(
    pattern: str,
    *,
    full: bool = False,
    ignore_case: bool = False,
    timeout: float = 0.1,
    **settings: Unpack[CheckSettings],
) -> Requirement:
    """Require a match of a regular expression, in the dialect of the ``regex`` package.

    The dialect includes that of the standard library's ``re``. Searches have a time limit, so a
    pattern that needs exponential time makes the requirement err instead of blocking the event
    loop. Write flags into the pattern, such as ``(?m)`` or ``(?s)``.

    Args:
        pattern: the regular expression.
        full: whether the whole reply must match, except for white space at its ends. By default,
            any part of it may match.
        ignore_case: whether upper and lower case are the same.
        timeout: the time limit of one search, in seconds of processor time; over 0.
        **settings: ``name``, ``weight``, ``check_only``, ``on_error``, as for `Requirement`.

    Returns:
        The requirement. If a search takes too long, its validator raises `RequirementError`.

    Raises:
        ImportError: the ``regex`` package isn't installed.
        TypeError: the pattern isn't a str, or the timeout isn't a number.
        ValueError: the pattern isn't a regular expression, or the timeout isn't over 0.
    """
    compiled = _compiled("matches", pattern, timeout, ignore_case=ignore_case)
    shown = _shown(pattern)
    wrong = f"it does not match {shown} {'as a whole' if full else 'anywhere'}"

    def validate(candidate: Candidate) -> ValidationResult:
        with _in_time("matches", shown, timeout, candidate):
            if full:
                found = compiled.fullmatch(candidate.text.strip(), timeout=timeout)
            else:
                found = compiled.search(candidate.text, timeout=timeout)
        if found is None:
            return ValidationResult(False, wrong, 0.0)
        return ValidationResult(True, f"it matches {shown}", 1.0)

    how = "matches as a whole" if full else "has a part that matches"
    words = f"{how} {shown}{how_found(ignore_case=ignore_case)}"
    return check("matches", words, validate, settings)


@ready_made
def occurrences(
    pattern: str,
    *,
    at_least: int | None = None,
    at_most: int | None = None,
    exactly: int | None = None,
    words: bool = False,
    ignore_case: bool = False,
    timeout: float = 0.1,
    **settings: Unpack[CheckSettings],
) -> Requirement:
    r"""Require that the number of matches of a regular expression is within limits.

    Patterns use the same dialect as in `matches`. Matches are counted from the left and don't
    overlap; empty matches don't count. Escape characters that have a special meaning in
    patterns, as in ``occurrences(r"\?", at_most=1)``.

    Args:
        pattern: the regular expression.
        at_least: the smallest number allowed.
        at_most: the largest number allowed.
        exactly: the only number allowed, instead of the other two limits.
        words: count only whole words, which have no letter, digit or ``_`` next to them.
        ignore_case: whether upper and lower case are the same.
        timeout: the time limit for one reply, in seconds of processor time; over 0.
        **settings: ``name``, ``weight``, ``check_only``, ``on_error``, as for `Requirement`.

    Returns:
        The requirement. Its score tells how close the number is to the allowed range. If a search
        takes too long, the validator raises `RequirementError`.

    Raises:
        ImportError: the ``regex`` package isn't installed.
        TypeError: the pattern isn't a str, no number is given, or one isn't an int; or the timeout
            isn't a number.
        ValueError: the pattern isn't a regular expression, a number is negative, the numbers
            contradict each other, or the timeout isn't over 0.
    """
    allowed = given_range("occurrences", at_least, at_most, exactly)
    compiled = _compiled("occurrences", pattern, timeout, ignore_case=ignore_case, words=words)
    shown = _shown(pattern)

    def validate(candidate: Candidate) -> ValidationResult:
        with _in_time("occurrences", shown, timeout, candidate):
            found = compiled.finditer(candidate.text, timeout=timeout)
            number = sum(match.end() > match.start() for match in found)
        passed = number in allowed
        has = f"it has {number} {'match' if number == 1 else 'matches'} of {shown}"
        return ValidationResult(
            passed, has if passed else f"{has}; {allowed.limit}", allowed.closeness(number)
        )

    plural = "match" if allowed.last == 1 else "matches"
    how = how_found(ignore_case=ignore_case, words=words)
    return check("occurrences", f"has {allowed} {plural} of {shown}{how}", validate, settings)


def _shown(pattern: str) -> str:
    return f"the regular expression `{clipped(pattern, 200)}`"


def _compiled(
    name: str, pattern: object, timeout: object, *, ignore_case: bool, words: bool = False
) -> Any:
    regex = package("regex", name)
    if not isinstance(pattern, str):
        msg = f"{name}: the pattern must be a str, not {pattern!r}"
        raise TypeError(msg)
    real_number(f"{name}: timeout", timeout, over=0, most=math.inf, unit="seconds")
    try:
        flags = regex.IGNORECASE if ignore_case else 0
        compiled = regex.compile(pattern, flags)
        return regex.compile(rf"(?<!\w)(?:{pattern})(?!\w)", flags) if words else compiled
    except (regex.error, OverflowError, RecursionError) as exc:
        msg = f"{name}: `{clipped(pattern)}` isn't a regular expression: {exc}"
        raise ValueError(msg) from exc


@contextmanager
def _in_time(name: str, shown: str, timeout: float, candidate: Candidate) -> Generator[None]:
    try:
        yield
    except TimeoutError as exc:
        msg = (
            f"{shown} took more than {timeout:g} s on a reply of {len(candidate.text)} characters:"
            " simplify it, or raise its timeout"
        )
        raise RequirementError(msg, requirement=name) from exc
