"""Candidates for validators and stream checks, and the verdicts they return."""

from __future__ import annotations

import math
from enum import StrEnum
from typing import TYPE_CHECKING, Any, SupportsFloat, TypeAlias

from mellea_like.core.display import error_text, fields_shown
from mellea_like.core.records import record

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from mellea_like.core.conversation import Action, Context, Message
    from mellea_like.core.generation import Generation
    from mellea_like.core.tools import ToolCall

__all__ = [
    "Candidate",
    "StreamCheck",
    "ValidationResult",
    "ValidationStatus",
    "Validator",
    "ValidatorAnswer",
    "Verdict",
]


class ValidationStatus(StrEnum):
    """The status of the verdict on a requirement."""

    PASSED = "passed"
    FAILED = "failed"
    ERRORED = "errored"
    """The validator or the judge failed to do its job."""
    SKIPPED = "skipped"
    """The requirement was not checked, because a cheaper one had already failed."""


@record(frozen=True, slots=True, init=False)
class ValidationResult:
    """The verdict on one requirement.

    Args:
        passed: whether the requirement is met.
        reason: why it is met or not. Write it for the model, because the next prompt includes it.
        score: how well it is met, from 0.0 to 1.0, or None. Scores decide which failure is the
            best. Any real number, such as a ``Decimal`` or one of numpy's, is converted to a float.

    Attributes:
        status: passed, failed, errored or skipped.
        error: the exception, if the status is errored, or failed because of ``on_error="fail"``.

    Raises:
        TypeError: ``passed`` isn't a bool, ``reason`` not a str, or the score not a number.
        ValueError: the score is out of range, or not a number (NaN).
    """

    status: ValidationStatus
    reason: str
    score: float | None
    error: BaseException | None

    __repr__ = fields_shown

    def __init__(
        self,
        passed: bool,  # noqa: FBT001 (ValidationResult(True, "why") reads well)
        reason: str = "",
        score: SupportsFloat | None = None,
    ) -> None:
        if not isinstance(passed, bool):
            msg = f"a validation result's passed must be a bool, not {passed!r}"
            raise TypeError(msg)
        if not isinstance(reason, str):
            msg = f"a validation result's reason must be a str, not {reason!r}"
            raise TypeError(msg)
        if score is not None:
            if isinstance(score, bool) or not hasattr(score, "__float__"):
                msg = f"a validation result's score must be a number, not {score!r}"
                raise TypeError(msg)
            try:
                number = float(score)
            except OverflowError:
                number = math.inf
            if not 0.0 <= number <= 1.0:
                msg = f"a validation result's score must be between 0 and 1, not {score!r}"
                raise ValueError(msg)
            score = number
        draft: Any = self
        draft.status = ValidationStatus.PASSED if passed else ValidationStatus.FAILED
        draft.reason = reason
        draft.score = score
        draft.error = None

    @classmethod
    def recorded(
        cls,
        status: ValidationStatus,
        reason: str,
        score: float | None = None,
        error: BaseException | None = None,
    ) -> ValidationResult:
        """Return a verdict with any status, for reading records."""
        draft: Any = cls.__new__(cls)
        draft.status, draft.reason, draft.score, draft.error = status, reason, score, error
        result: ValidationResult = draft
        return result

    @classmethod
    def errored(cls, error: BaseException) -> ValidationResult:
        """Return the verdict of a validator that failed to do its job."""
        return cls.recorded(ValidationStatus.ERRORED, error_text(error), None, error)

    @classmethod
    def skipped(cls, reason: str) -> ValidationResult:
        """Return the verdict of a requirement that was not checked, with the reason."""
        return cls.recorded(ValidationStatus.SKIPPED, reason)

    @property
    def passed(self) -> bool:
        """Whether the requirement is met; False if its check failed, errored or was skipped."""
        return self.status is ValidationStatus.PASSED

    def __bool__(self) -> bool:
        return self.passed


@record(frozen=True, slots=True)
class Candidate:
    """A reply for a validator to judge.

    Args:
        text: the generated text.
        value: the parsed value: an instance of the ``format``, or the value that the action's
            ``parse`` or a `FunctionBackend` returned; otherwise the text.
        generation: the whole output.
        context: the call's ``validation_context`` if there is one, else the conversation that the
            output was generated in.
        action: the task.
        rounds: the calls of ``read_only`` tools in the draw, with their answers.
    """

    text: str
    value: Any
    generation: Generation
    context: Context
    action: Action[Any]
    rounds: tuple[Message, ...] = ()

    __repr__ = fields_shown

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The tools that the reply calls. None of them has run yet."""
        return self.generation.tool_calls


ValidatorAnswer: TypeAlias = "bool | tuple[bool, str] | ValidationResult"
Validator: TypeAlias = "Callable[[Candidate], ValidatorAnswer | Awaitable[ValidatorAnswer]]"


class Verdict(StrEnum):
    """The verdict of an incremental check on the reply so far."""

    FAIL = "fail"
    """The requirement can no longer be met, so the request is closed."""
    PASS = "pass"  # noqa: S105 (no password)
    """The requirement will be met no matter what follows. The complete reply is still checked."""
    UNKNOWN = "unknown"
    """The verdict depends on the rest of the reply."""


StreamCheck: TypeAlias = "Callable[[str, str], Verdict | tuple[Verdict, str]]"
"""A function that judges a reply as it arrives.

It takes the text so far, newest piece included, and the newest piece alone.
"""
