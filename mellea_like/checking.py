"""Check replies that already exist, exactly as a draw is checked.

```python
from mellea_like import check_sync, checks

result = check_sync("No, thanks.", [checks.word_count(at_most=5), checks.starts_with("Yes")])
print(result.problems)  # ('starts with "Yes": it starts with "No, thanks.", not with "Yes"',)
```

Judges are the only models that are called. To check many replies, use
``mellea_like.batch.check_many``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypeVar, cast, overload

from mellea_like.core.backend import Options
from mellea_like.core.display import shown
from mellea_like.core.given import GivenReply, ReplyLike
from mellea_like.core.requirement import several
from mellea_like.core.validation import ValidationStatus
from mellea_like.errors import HookError, LimitExceeded
from mellea_like.sampling.prepare import judges_of
from mellea_like.sampling.strategies import RejectionSamplingStrategy
from mellea_like.sampling.sync import run_once

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import TypedDict, Unpack

    from typing_extensions import TypeForm

    from mellea_like.core.backend import Backend, Request
    from mellea_like.core.conversation import Asked, Context, MessageLike
    from mellea_like.core.generation import Generation, Usage
    from mellea_like.core.requirement import Requirement
    from mellea_like.core.slice import Slice
    from mellea_like.core.validation import ValidationResult
    from mellea_like.limits.budget import Budget
    from mellea_like.sampling.rounds import CallInRounds

    class CheckArguments(TypedDict, total=False):
        """Further arguments of `check`."""

        action: Asked[Any] | None
        context: Context | Sequence[MessageLike] | None
        judge: Backend | None
        budget: Budget | None
        validate_all: bool


__all__ = [
    "CheckResult",
    "GivenReply",
    "ReplyLike",
    "Requirements",
    "check",
    "check_sync",
    "strategy_for_checks",
]

T = TypeVar("T")
F = TypeVar("F")

Requirements: TypeAlias = "Requirement | str | Sequence[Requirement | str]"
"""One requirement or several; the judge model judges those that are texts."""

CALLS_ALLOWED = Options(extra={"tools": True})
"""Options that let a checked reply contain calls of any tool. No model ever gets these options."""


@dataclass(frozen=True, slots=True)
class CheckResult(Generic[T]):
    """The result of a check, generic in the parsed value; ``bool(result)`` is `passed`.

    Args:
        slice: the full record of the check, in the form of a draw's record.
    """

    slice: Slice

    def __repr__(self) -> str:
        problems = f": {shown('; '.join(self.problems))}" if self.problems else ""
        return f"<CheckResult: {self.status}{problems}>"

    @property
    def status(self) -> Literal["passed", "failed", "errored"]:
        """``"passed"``, ``"failed"``, or ``"errored"`` if a requirement could not be judged."""
        outcome: Any = self.slice.outcome.value
        status: Literal["passed", "failed", "errored"] = outcome
        return status

    @property
    def passed(self) -> bool:
        """Whether every requirement is met."""
        return self.slice.passed

    def __bool__(self) -> bool:
        return self.passed

    @property
    def verdicts(self) -> tuple[ValidationResult, ...]:
        """The verdict on each requirement, in order; empty if the reply could not be checked.

        A reply can't be checked if it is incomplete or doesn't parse as the ``format``. Then
        ``problems`` has the reason.
        """
        return self.slice.verdicts

    @property
    def validations(self) -> tuple[tuple[Requirement, ValidationResult], ...]:
        """Each requirement with the verdict on it."""
        return self.slice.validations

    @property
    def problems(self) -> tuple[str, ...]:
        """The reasons why the reply didn't pass, one for each problem."""
        if self.error is not None:
            return (str(self.error),)
        return self.slice.problems

    @property
    def score(self) -> float | None:
        """How well the requirements are met, from 0 to 1: the mean of the scores, by weight.

        A requirement without a score counts as 1 if it is met, else as 0. The result is 0 for a
        reply that could not be checked. It is None if a requirement was skipped or could not be
        judged.
        """
        if self.status == "errored":
            return None
        if not self.verdicts:
            return float(self.passed)
        total = met = 0.0
        for requirement, verdict in self.validations:
            if verdict.status is ValidationStatus.SKIPPED:
                return None
            score = float(bool(verdict)) if verdict.score is None else verdict.score
            met += requirement.weight * score
            total += requirement.weight
        return met / total if total else float(self.passed)

    @property
    def value(self) -> T | None:
        """The parsed value, or the text if nothing was parsed; None if the reply didn't pass."""
        return cast("T", self.slice.value) if self.passed else None

    @property
    def error(self) -> BaseException | None:
        """The error that kept a requirement from being judged; None if all were judged."""
        return self.slice.error

    @property
    def usage(self) -> Usage:
        """The cost of the judges' requests."""
        return self.slice.usage


class NoJudge:
    """The backend of a strategy that only checks: it generates nothing, and can't be a judge."""

    can_judge = False
    unfit = "there is none"
    retries = True
    generates = False  # So budgets need no price for its model, and no length of its replies.

    async def generate(self, request: Request) -> Generation:
        """Raise RuntimeError, because checks generate no replies."""
        del request
        msg = "a check asks no model except judges"
        raise RuntimeError(msg)


def strategy_for_checks(
    judge: Backend | None = None,
    *,
    validate_all: bool = False,
    judge_options: Options | Mapping[str, Any] | None = None,
) -> RejectionSamplingStrategy:
    """Make the strategy that `check` uses. To check a reply, sample it as a `GivenReply`.

    Args:
        judge: the model that judges requirements without a validator; None if there is none.
        validate_all: check every requirement even after one has failed.
        judge_options: options for the judge's requests, as for a strategy.

    Returns:
        The strategy.

    Raises:
        TypeError: ``judge`` isn't a backend, or ``judge_options`` aren't options.
        ValueError: an option is unknown or out of range.
    """
    return RejectionSamplingStrategy(
        NoJudge(),
        loop_budget=1,
        judge=judge,
        judge_options=judge_options,
        validate_all=validate_all,
        options=CALLS_ALLOWED,
    )


@overload
async def check(
    reply: ReplyLike,
    requirements: Requirements = (),
    *,
    format: None = None,
    **arguments: Unpack[CheckArguments],
) -> CheckResult[Any]: ...
@overload
async def check(
    reply: ReplyLike,
    requirements: Requirements = (),
    *,
    format: TypeForm[F],
    **arguments: Unpack[CheckArguments],
) -> CheckResult[F]: ...
async def check(
    reply: ReplyLike,
    requirements: Requirements = (),
    *,
    action: Asked[Any] | None = None,
    context: Context | Sequence[MessageLike] | None = None,
    format: Any = None,
    judge: Backend | None = None,
    budget: Budget | None = None,
    validate_all: bool = False,
) -> CheckResult[Any]:
    """Check a reply that already exists, exactly as a draw is checked.

    Threads, time limits, validation hooks and the stages of checking work as in a draw. Cheap
    checks run first. If one of them fails, the more expensive checks are skipped. A reply that is
    cut off, refused, empty or not parseable fails without being checked.

    Args:
        reply: the reply: its text, a `Message` or `Generation`, or an OpenAI-style message or
            completion.
        requirements: one requirement or several. The judge model judges those that are texts.
        action: the task that the reply answers, as for ``sample``. Judges see it.
        context: the conversation before the task.
        format: the type to parse the reply to, as for ``sample``.
        judge: the model that judges requirements without a validator.
        budget: the limit on what the judges may cost.
        validate_all: check every requirement even after one has failed.

    Returns:
        The result. If a requirement can't be judged (the judge is down, a validator has a bug),
        the result's status is ``"errored"``, and nothing is raised.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: an argument is wrong.
        RequirementError: a requirement needs a judge, and there is none; or a validator returned
            no verdict.
        LimitExceeded: the budget is spent.
        HookError: a plugin failed, or stopped the check.
        Exception: the exception of a validator whose ``on_error`` is ``"raise"``.
    """
    strategy = strategy_for_checks(judge, validate_all=validate_all)
    call = strategy.begin(
        GivenReply(reply, action),
        several(requirements),
        context=context,
        format=format,
        budget=budget,
    )
    return CheckResult(await record_of(call))


@overload
def check_sync(
    reply: ReplyLike,
    requirements: Requirements = (),
    *,
    format: None = None,
    **arguments: Unpack[CheckArguments],
) -> CheckResult[Any]: ...
@overload
def check_sync(
    reply: ReplyLike,
    requirements: Requirements = (),
    *,
    format: TypeForm[F],
    **arguments: Unpack[CheckArguments],
) -> CheckResult[F]: ...
def check_sync(
    reply: ReplyLike,
    requirements: Requirements = (),
    *,
    format: Any = None,
    **arguments: Unpack[CheckArguments],
) -> CheckResult[Any]:
    """Check a reply, without ``await``.

    Args:
        reply: see `check`.
        requirements: see `check`.
        format: see `check`.
        **arguments: see `check`.

    Returns:
        The result.

    Raises:
        Exception: the errors of `check`.
    """
    asked = several(requirements)
    call: Any = partial(check, reply, asked, format=format, **arguments)
    result: CheckResult[Any] = run_once(call, [arguments.get("judge"), *judges_of(asked)])
    return result


async def record_of(call: CallInRounds[Any]) -> Slice:
    """Run a call that checks a reply; return its record even if a requirement can't be judged."""
    heard: list[Slice] = []
    try:
        await call.run(heard=heard.append)
    except (HookError, LimitExceeded):
        raise
    except Exception:
        if not heard or not heard[0].verdicts:
            raise
    return heard[0]
