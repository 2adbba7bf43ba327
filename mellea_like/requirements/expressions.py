"""Checks written as short texts, such as ``"words<=20"``.

Such texts are used on the command line, in specifications and in the gateway's configuration.
"""

from __future__ import annotations

import contextlib
import difflib
import json
import re
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

from mellea_like.core.display import excerpt
from mellea_like.requirements import checks

if TYPE_CHECKING:
    from collections.abc import Callable

    from mellea_like.core.requirement import Requirement
    from mellea_like.requirements.checks_common import CheckSettings

__all__ = ["CHECK_FORMS", "CODE_FORMS", "is_code_check", "parse_check"]


class _Form(NamedTuple):
    """A form of check: an example, the function that makes it, and whether that takes ``early``."""

    example: str
    make: Callable[..., Requirement]
    early: bool = False


_COUNTS = {
    "words": _Form("words<=20", checks.word_count, early=True),
    "chars": _Form("chars>=100", checks.char_count, early=True),
    "lines": _Form("lines==3", checks.line_count, early=True),
    "sentences": _Form("sentences==1", checks.sentence_count),
}
_TEXTS = {
    "contains": _Form("contains:TEXT", checks.contains),
    "excludes": _Form("excludes:TEXT", checks.excludes, early=True),
    "regex": _Form("regex:PATTERN", checks.matches),
    "starts": _Form("starts:TEXT", checks.starts_with, early=True),
    "ends": _Form("ends:TEXT", checks.ends_with),
}
CHECK_FORMS = (
    *(form.example for form in (_COUNTS | _TEXTS).values()),
    "json",
    "choice:a|b|c",
)
"""An example of each form of check that runs no code."""

_LIMITS = {
    "<=": ("at_most", 0),
    ">=": ("at_least", 0),
    "==": ("exactly", 0),
    "<": ("at_most", -1),
    ">": ("at_least", 1),
}
"""Maps each operator to an argument of the count checks, and to the amount to add to the number."""
_COUNT = re.compile(r"\s*([A-Za-z]+)\s*([<>=!]+)\s*(\S.*?)?\s*", re.DOTALL)
_MOST_DIGITS = 9


def parse_check(
    expression: str, *, early: bool = False, code: bool = False, **settings: Unpack[CheckSettings]
) -> Requirement:
    """Return the requirement that a short text describes.

    To limit a count, write ``words``, ``chars``, ``lines`` or ``sentences``, followed by an
    operator (``<= >= == < >``) and a whole number: ``words<=20``. Spaces between them are allowed.
    In checks such as ``contains:TEXT``, spaces around the text are ignored; in ``regex:PATTERN``,
    they are part of the pattern.

    In a check of code, a JSON object with the check's arguments follows the colon. There are two
    short forms: ``parses:`` also accepts just a language, and ``passes_tests:`` also accepts a test
    or a JSON list of tests. Each case of ``returns`` is ``[[ARGUMENT, ...], VALUE]``.

    Args:
        expression: the check, in a form of `CHECK_FORMS` or `CODE_FORMS`.
        early: whether the check also reads replies while they stream in, if it can.
        code: whether checks of code are allowed, which may run a model's code in a sandbox.
        **settings: ``name``, ``weight``, ``check_only``, ``on_error``, as for `Requirement`. The
            name is the expression by default.

    Returns:
        The requirement.

    Raises:
        ValueError: the text isn't a check (then the message lists the forms), or the check's
            arguments are wrong.
    """
    if code and is_code_check(expression):
        return _code_check(expression, settings)
    word, colon, text = expression.partition(":")
    kind = word.strip().lower()
    if colon and (kind in _TEXTS or kind == "choice"):
        return _text_check(expression, kind, text, early=early, settings=settings)
    if kind == "json" and not colon:
        settings.setdefault("name", expression.strip())
        return checks.is_json(early=early, **settings)
    counted = _COUNT.fullmatch(expression)
    if counted is not None and counted[1].lower() in _COUNTS:
        return _count_check(expression, *counted.groups(default=""), early=early, settings=settings)
    raise ValueError(_unknown(expression, kind))


def _text_check(
    expression: str, kind: str, text: str, *, early: bool, settings: CheckSettings
) -> Requirement:
    settings.setdefault("name", expression)
    given = text if kind == "regex" else text.strip()
    choices = [choice.strip() for choice in given.split("|")] if kind == "choice" else [given]
    if not all(choices):
        what = "a choice is empty" if len(choices) > 1 else "there is nothing after the colon"
        msg = f"check {expression!r}: {what}"
        raise ValueError(msg)
    try:
        if kind == "choice":
            return checks.one_of(choices, **settings)
        form = _TEXTS[kind]
        return _made(partial(form.make, given, **settings), early=early and form.early)
    except ValueError as exc:
        msg = f"check {expression!r}: {str(exc).partition(': ')[2] or exc}"
        raise ValueError(msg) from exc


def _count_check(
    expression: str, noun: str, operator: str, text: str, *, early: bool, settings: CheckSettings
) -> Requirement:
    if operator not in _LIMITS:
        known = " ".join(_LIMITS)
        msg = f"check {expression!r}: the operator must be one of {known}, not {operator}"
        raise ValueError(msg)
    if not (text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS):
        msg = f"check {expression!r}: write an integer such as 20 after {operator}"
        raise ValueError(msg)
    number = int(text)
    settings.setdefault("name", f"{noun.lower()}{operator}{number}")
    if operator == "<" and number == 0:
        msg = f"check {expression!r}: no text has fewer than 0 {noun.lower()}"
        raise ValueError(msg)
    limit, more = _LIMITS[operator]
    form = _COUNTS[noun.lower()]
    make = partial(form.make, **settings, **{limit: number + more})
    return _made(make, early=early and form.early)


def _made(make: Callable[..., Requirement], *, early: bool) -> Requirement:
    """Make a requirement, with ``early=True`` if ``early`` is set and its arguments allow it."""
    requirement = make()
    if early:
        with contextlib.suppress(ValueError):
            return make(early=True)
    return requirement


def _unknown(expression: str, kind: str) -> str:
    names = (*_COUNTS, *_TEXTS, "json", "choice")
    word = re.match(r"[a-z]*", kind)
    close = difflib.get_close_matches(word[0] if word else kind, names, n=1)
    known = kind if kind in names else next(iter(close), None)
    hint = ""
    if known is not None:
        meant = next(form for form in CHECK_FORMS if form.startswith(known))
        mended = re.sub("^[a-z]+", known, expression.strip(), flags=re.IGNORECASE)
        if mended != expression.strip():
            with contextlib.suppress(ValueError):
                parse_check(mended)
                meant = mended
        hint = f"; did you mean {meant}?"
    return f"check {expression!r} is unknown{hint}\nAllowed: {'  '.join(CHECK_FORMS)}"


# --- checks of code ---

CODE_FORMS = (
    "parses:python",
    "runs",
    "passes_tests:TESTS",
    'returns:{"function": ..., "cases": ...}',
    'prints:{"stdin": ..., "stdout": ...}',
    'runs_sql:{"schema": ..., "like": ...}',
)
"""An example of each form of check that parses or runs code."""

_FORMS = {form.partition(":")[0]: form for form in CODE_FORMS}
_ALONE = {"parses": "language", "passes_tests": "tests"}
"""For each check, the argument that may follow the colon by itself, not in a JSON object."""


def is_code_check(expression: str) -> bool:
    """Return whether a text names a check of code.

    Args:
        expression: the text.

    Returns:
        Whether the text begins like a form of `CODE_FORMS`.
    """
    return expression.partition(":")[0].strip() in _FORMS


def _code_check(expression: str, settings: CheckSettings) -> Requirement:
    from mellea_like.requirements import code  # noqa: PLC0415 (few programs check code)

    kind, _, text = (part.strip() for part in expression.partition(":"))
    try:
        given = _arguments(kind, text)
        made: Requirement = getattr(code, kind)(
            **{"name": excerpt(expression), **settings, **given}
        )
    except (ImportError, NotImplementedError, OSError, TypeError, ValueError) as exc:
        said = str(exc).removeprefix(f"{kind}: ").removeprefix(f"{kind}() ")
        msg = f"check '{excerpt(expression)}': {said}\nWrite it as {_FORMS[kind]}"
        raise ValueError(msg) from exc
    return made


def _arguments(kind: str, text: str) -> dict[str, Any]:
    alone = _ALONE.get(kind)
    if text.startswith("{"):
        given: dict[str, Any] = json.loads(text)
        if kind == "returns":
            given["cases"] = [_case(case) for case in given.get("cases", ())]
        return given
    if alone is not None and text:
        return {alone: json.loads(text) if text.startswith("[") else text}
    if text:
        msg = "its arguments must be a JSON object"
        raise ValueError(msg)
    return {}


def _case(case: Any) -> tuple[Any, Any]:
    """Convert a test case of the check ``returns``: its list of arguments becomes a tuple."""
    match case:
        case [[*arguments], value]:
            return tuple(arguments), value
        case _:
            msg = "a case must be [[ARGUMENT, ...], VALUE]"
            raise ValueError(msg)
