"""Verdicts: read from what a validator returned, made from an exception, combined from parts."""

from __future__ import annotations

from pathlib import Path
from traceback import walk_tb
from typing import TYPE_CHECKING, cast

from mellea_like.core.display import add_note, error_text
from mellea_like.core.validation import ValidationResult, ValidationStatus
from mellea_like.errors import RequirementError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mellea_like.core.requirement import Requirement

__all__ = ["combined", "errored", "line_of", "read"]

_PACKAGE = str(Path(__file__).parents[1])

_PASS, _FAIL = ValidationStatus.PASSED, ValidationStatus.FAILED
_PASSED = ValidationResult(True)
_FAILED = ValidationResult(False)


def read(verdict: object) -> ValidationResult | None:
    """Read what a validator returned."""
    if verdict is True:
        return _PASSED
    if verdict is False:
        return _FAILED
    if isinstance(verdict, tuple):
        pair = cast("tuple[object, ...]", verdict)
        if len(pair) == 2:  # noqa: PLR2004
            passed, reason = pair
            if isinstance(passed, bool) and isinstance(reason, str):
                return ValidationResult(passed, reason)
        return None
    return verdict if isinstance(verdict, ValidationResult) else None


def errored(requirement: Requirement, exc: BaseException) -> ValidationResult:
    """Turn an exception in a check into what the requirement's ``on_error`` says."""
    if requirement.on_error == "raise":
        add_note(exc, f"raised by requirement {requirement.name!r}, whose on_error is 'raise'")
        raise exc
    said = error_text(exc)
    what = f"{type(exc).__name__}: {said}" if said else type(exc).__name__
    if "'Candidate'" in what:
        what += " (a validator takes a Candidate: its text is candidate.text)"
    if requirement.on_error == "fail":
        return ValidationResult.recorded(_FAIL, f"it could not be checked: {what}", None, exc)
    error = RequirementError(
        f"requirement {requirement.name!r} could not be decided: {what}",
        requirement=requirement.name,
    )
    error.__cause__ = exc
    if line := line_of(exc):
        error.add_note(f"raised at {line}")
    return ValidationResult.errored(error)


def line_of(exc: BaseException) -> str:
    """Return the file and line of a validator that raised: the deepest in the validator's file."""
    users = [
        (frame.f_code.co_filename, line)
        for frame, line in walk_tb(exc.__traceback__)
        if not frame.f_code.co_filename.startswith(_PACKAGE)
    ]
    lines = [line for file, line in users if file == users[0][0]]
    return f"{users[0][0]}:{lines[-1]}" if users else ""


def combined(whole: Requirement, results: Sequence[ValidationResult | None]) -> ValidationResult:
    """Combine the verdicts on parts, as many as make the answer certain."""
    # A part that errored makes the whole errored: an error is never argued away. A part that failed
    # by an exception (on_error="fail") doesn't make its negation true, either.
    known = [result for result in results if result is not None]
    for result in known:
        if result.status is ValidationStatus.ERRORED:
            return result
    exception = next((result.error for result in known if result.error is not None), None)
    if whole.operator == "not":
        part = known[0]
        if exception is not None:
            return part
        held = f"it meets {whole.parts[0].description!r}"
        return ValidationResult(not part.passed, held if part.passed else part.reason)
    scores = [result.score for result in known if result.score is not None]
    passed = all(known) if whole.operator == "and" else any(known)
    decisive = [
        part.description if not result.reason else f"{part.description}: {result.reason}"
        for part, result in zip(whole.parts, results, strict=True)
        if result is not None and result.passed is passed
    ]
    best = (min if whole.operator == "and" else max)(scores) if scores else None
    status = _PASS if passed else _FAIL
    why = "; ".join(decisive)
    return ValidationResult.recorded(status, why, best, None if passed else exception)
