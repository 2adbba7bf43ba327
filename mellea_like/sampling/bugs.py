"""The same bug in a validator, again and again: a pure decision over a call's slices."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from mellea_like.core.validation import ValidationStatus
from mellea_like.errors import BackendError
from mellea_like.requirements.verdicts import line_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mellea_like.core.requirement import Requirement
    from mellea_like.core.slice import Slice

__all__ = ["Bug", "bug_of", "times_seen"]

_ERRORED, _SKIPPED = ValidationStatus.ERRORED, ValidationStatus.SKIPPED


class Bug(NamedTuple):
    """What a validator raised, and where.

    Attributes:
        requirement: whose validator.
        kind: the exception's type.
        line: the validator's line, as in ``rules.py:12``.
    """

    requirement: Requirement
    kind: type[BaseException]
    line: str

    def __str__(self) -> str:
        return f"requirement {self.requirement.name!r} raises {self.kind.__name__} at {self.line}"


def bug_of(slice_: Slice) -> Bug | None:
    """Return the bug in a validator that a slice errored by; None for any other slice."""
    for requirement, verdict in slice_.validations:
        if verdict.status is _ERRORED and not requirement.judged and verdict.error is not None:
            cause = verdict.error.__cause__
            line = "" if cause is None or isinstance(cause, BackendError) else line_of(cause)
            return Bug(requirement, type(cause), line) if cause is not None and line else None
    return None


def times_seen(bug: Bug, slices: Sequence[Slice]) -> int:
    """Count the slices that errored by a bug; 0 if its requirement ever came to a verdict."""
    seen = 0
    for slice_ in slices:
        for requirement, verdict in slice_.validations:
            if requirement is bug.requirement and verdict.status is not _SKIPPED:
                if verdict.status is not _ERRORED:
                    return 0
                other = bug_of(slice_)
                seen += other is not None and other[1:] == bug[1:]
    return seen
