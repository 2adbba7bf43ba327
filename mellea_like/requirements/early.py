"""Checking a reply while it is still arriving, so that a hopeless one need not be paid for."""

from __future__ import annotations

import copy
import inspect
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from mellea_like.core.validation import ValidationResult, ValidationStatus, Verdict
from mellea_like.errors import BadVerdict
from mellea_like.requirements.checklist import combined, errored

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mellea_like.core.requirement import Requirement
    from mellea_like.core.validation import StreamCheck

__all__ = ["EarlyWatch", "watches"]

_ERRORED = ValidationStatus.ERRORED
_PASSED = ValidationResult(True)
_FAILED = ValidationResult(False, "it was rejected while it was still arriving")


def watches(requirements: Iterable[Requirement]) -> bool:
    """Tell whether there is anything to check while a reply arrives."""
    return any(requirement.streams for requirement in requirements)


class EarlyWatch:
    """The checks of one reply that is still arriving; made anew for each attempt."""

    # A check that has said PASS, failed inside a combination or raised isn't asked again. A PASS is
    # no verdict: the final check is made all the same.

    __slots__ = ("_rejection", "_watches")

    def __init__(self, requirements: Sequence[Requirement]) -> None:
        self._rejection: tuple[int, ValidationResult] | None = None
        self._watches = [
            (i, watch)
            for i, requirement in enumerate(requirements)
            if (watch := _watch(requirement)) is not None
        ]

    def feed(self, text_so_far: str, delta: str) -> tuple[int, ValidationResult] | None:
        """Check the newest piece of the reply."""
        if self._rejection is not None:
            return self._rejection
        settled = False
        for i, watch in self._watches:
            result = watch.ask(text_so_far, delta)
            if result is None:
                continue
            if not result.passed:
                self._rejection = i, result
                return self._rejection
            settled = True
        if settled:
            self._watches = [pair for pair in self._watches if pair[1].result is None]
        return None


class _Check:
    """The stream check of one requirement, and what it said for good."""

    __slots__ = ("_check", "_requirement", "result")

    def __init__(self, requirement: Requirement, check: StreamCheck) -> None:
        self._requirement = requirement
        self._check: StreamCheck = copy.deepcopy(check)
        self.result: ValidationResult | None = None

    def ask(self, text: str, delta: str) -> ValidationResult | None:
        if self.result is None:
            try:
                answer: object = self._check(text, delta)
            except Exception as exc:  # noqa: BLE001 (a user's)
                self.result = errored(self._requirement, exc)
            else:
                if answer is not Verdict.UNKNOWN:
                    self.result = _read(self._requirement, answer)
        return self.result


class _Combination:
    """The watches of a combined requirement's parts, and what follows from them."""

    __slots__ = ("_parts", "_requirement", "result")

    def __init__(self, requirement: Requirement, parts: list[_Watch | None]) -> None:
        self._requirement = requirement
        self._parts = parts
        self.result: ValidationResult | None = None

    def ask(self, text: str, delta: str) -> ValidationResult | None:
        if self.result is None:
            results = [None if part is None else part.ask(text, delta) for part in self._parts]
            if self._certain(results):
                self.result = combined(self._requirement, results)
        return self.result

    def _certain(self, results: list[ValidationResult | None]) -> bool:
        if None not in results:
            return True
        decisive = self._requirement.operator == "or"  # One pass is enough, or one failure.
        return any(
            result.passed is decisive or result.status is _ERRORED
            for result in results
            if result is not None
        )


_Watch: TypeAlias = _Check | _Combination


def _watch(requirement: Requirement) -> _Watch | None:
    if requirement.parts:
        parts = [_watch(part) for part in requirement.parts]
        return _Combination(requirement, parts) if any(parts) else None
    return None if requirement.stream is None else _Check(requirement, requirement.stream)


def _read(requirement: Requirement, answer: object) -> ValidationResult | None:
    """Read what a check returned; None if it does not know yet."""
    verdict, reason = _parted(answer)
    if verdict is Verdict.UNKNOWN:
        return None
    if verdict is Verdict.FAIL:
        return ValidationResult(False, reason) if reason else _FAILED
    if verdict is Verdict.PASS:
        return _PASSED
    if inspect.iscoroutine(answer):
        answer.close()  # Or it would warn that no one awaited it.
    msg = (
        f"requirement {requirement.name!r}: its stream check returned {ascii(answer)[:100]}, which"
        " isn't a verdict: return Verdict.FAIL, PASS or UNKNOWN, or (Verdict, reason)"
    )
    raise BadVerdict(msg, requirement=requirement.name)


def _parted(answer: Any) -> tuple[object, str]:
    if isinstance(answer, tuple):
        pair = cast("tuple[object, ...]", answer)
        if len(pair) == 2 and isinstance(pair[1], str):  # noqa: PLR2004
            return pair[0], pair[1]
        return pair, ""
    return answer, ""
