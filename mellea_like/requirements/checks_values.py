"""Checks of a reply that is one value: a choice, a number."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import TYPE_CHECKING, Unpack

from mellea_like.core.argument_checks import real_number
from mellea_like.core.validation import ValidationResult
from mellea_like.requirements.checks_common import (
    Settings,
    check,
    clipped,
    given_texts,
    listed,
    quoted,
    ready_made,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mellea_like.core.requirement import Requirement
    from mellea_like.core.validation import Candidate

__all__ = ["number_between", "one_of"]

_NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?(?:[eE][+-]?\d{1,4})?")

MAX_DIGITS = 1_000
"""A longer text isn't a number that anyone meant."""


@ready_made
def one_of(
    choices: Iterable[str], *, ignore_case: bool = False, **settings: Unpack[Settings]
) -> Requirement:
    """Require a reply that is one of some texts, white space at its ends aside.

    Args:
        choices: the texts allowed.
        ignore_case: compare by Unicode case folding.
        **settings: ``name``, ``weight``, ``check_only``, ``on_error``, as for `Requirement`.

    Returns:
        The requirement.

    Raises:
        TypeError: it is a lone text, there is none, or one isn't a str.
        ValueError: a text is blank.
    """
    if isinstance(choices, str):
        msg = f"one_of takes a list of texts: one_of([{choices!r}])"
        raise TypeError(msg)
    allowed = given_texts("one_of", tuple(choices))
    if not all(text.strip() for text in allowed):
        msg = "one_of takes texts that are not blank"
        raise ValueError(msg)
    fold = str.casefold if ignore_case else str
    folded = {fold(text.strip()) for text in allowed}

    def validate(candidate: Candidate) -> ValidationResult:
        reply = candidate.text.strip()
        if fold(reply) in folded:
            return ValidationResult(True, f"it is {quoted(reply)}", 1.0)
        reason = f"it is {quoted(reply)}; allowed is {listed(allowed, 'or')}, and nothing else"
        return ValidationResult(False, reason, 0.0)

    return check("one_of", f"is {listed(allowed, 'or')}, and nothing else", validate, settings)


@ready_made
def number_between(
    low: float | None = None, high: float | None = None, **settings: Unpack[Settings]
) -> Requirement:
    """Require a reply that is one number, and the number to lie in a range.

    Numbers are read exactly, in the notation ``-12``, ``3.5`` or ``6e3``; white space at the ends
    aside, nothing else may stand in the reply. Where the value of the reply is an int or float
    already, that is taken.

    Args:
        low: the least allowed; None for no limit.
        high: the greatest allowed; None for no limit.
        **settings: ``name``, ``weight``, ``check_only``, ``on_error``, as for `Requirement`.

    Returns:
        The requirement; its score says how close the number is.

    Raises:
        TypeError: neither limit is given, or one isn't a number.
        ValueError: a limit is not finite, or the low one is over the high one.
    """
    if low is None and high is None:
        msg = "number_between needs a low limit, a high one, or both"
        raise TypeError(msg)
    least, most = _limit("low", low), _limit("high", high)
    if least is not None and most is not None and least > most:
        msg = f"number_between: low, {low}, is over high, {high}"
        raise ValueError(msg)
    if least is None:
        limits = f"at most {high}"
    else:
        limits = f"at least {low}" if most is None else f"between {low} and {high}"

    def validate(candidate: Candidate) -> ValidationResult:
        number = _number(candidate)
        if number is None:
            return ValidationResult(
                False, f"it isn't a number: {quoted(candidate.text.strip())}", 0.0
            )
        shown = clipped(str(number))
        distance = _distance(number, least, most)
        if distance == 0:
            return ValidationResult(True, f"it is {shown}", 1.0)
        size = max(Decimal(1), *(abs(limit) for limit in (least, most) if limit is not None))
        score = float(1 / (1 + distance / size))
        return ValidationResult(False, f"it is {shown}; it must be {limits}", score)

    return check("number_between", f"is a number {limits}, and nothing else", validate, settings)


def _limit(name: str, limit: object) -> Decimal | None:
    if limit is None:
        return None
    # By way of the shortest notation: a user's 0.1 means 0.1, not the nearest binary fraction.
    return Decimal(repr(real_number(f"number_between: {name}", limit)))


def _number(candidate: Candidate) -> Decimal | None:
    value = candidate.value
    if isinstance(value, int) and not isinstance(value, bool):
        return Decimal(value)
    text = repr(value) if isinstance(value, float) else candidate.text.strip()
    if len(text) > MAX_DIGITS or _NUMBER.fullmatch(text) is None:
        return None
    return Decimal(text)


def _distance(number: Decimal, low: Decimal | None, high: Decimal | None) -> Decimal:
    if high is not None and number > high:
        return number - high
    if low is not None and number < low:
        return low - number
    return Decimal(0)
