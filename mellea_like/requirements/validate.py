"""Checking a candidate against its requirements, in stages: the cheap ones first."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import anyio

from mellea_like.core.requirement import (
    Requirement,
    Stage,
    ValidationResult,
    ValidationStatus,
)
from mellea_like.errors import BadVerdict, RequirementError
from mellea_like.runtime.native import cancel_requested
from mellea_like.runtime.threads import run_in_thread

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from mellea_like.core.requirement import Candidate

__all__ = ["Judge", "validate"]

Judge: TypeAlias = "Callable[[Requirement, Candidate], Awaitable[ValidationResult]]"
"""Decides a requirement that has no validator."""

_PASSED = ValidationResult(True)  # noqa: FBT003
_FAILED = ValidationResult(False)  # noqa: FBT003
_SKIPPED = ValidationResult.skipped("an earlier requirement was not met")


async def validate(
    requirements: Sequence[Requirement],
    candidate: Candidate,
    *,
    judge: Judge,
    check_all: bool = False,
) -> tuple[ValidationResult, ...]:
    """Check a candidate against requirements.

    The stages are inline checks, then threaded ones, then judges and async ones. The members of a
    stage run concurrently. After a stage with a verdict other than a pass, the later ones are
    skipped.

    Args:
        requirements: what it must meet.
        candidate: what is checked.
        judge: decides the requirements without a validator.
        check_all: skip nothing.

    Returns:
        A verdict for each requirement, in their order. An exception in a validator is an errored or
        a failed verdict, as the requirement's ``on_error`` says.

    Raises:
        BadVerdict: a validator returned something that is no verdict.
        Exception: what a validator raised whose requirement has ``on_error="raise"``.
    """
    results: list[ValidationResult | None] = [None] * len(requirements)
    for stage in Stage:
        members = [i for i, requirement in enumerate(requirements) if requirement.stage is stage]
        if not members:
            continue
        if stage is Stage.INLINE or len(members) == 1:
            for i in members:
                results[i] = await _decide(requirements[i], candidate, judge)
        else:
            await _decide_together(requirements, members, candidate, judge, results)
        if not check_all and not all(results[i] for i in members):
            break
    return tuple([_SKIPPED if result is None else result for result in results])


async def _decide_together(
    requirements: Sequence[Requirement],
    members: Sequence[int],
    candidate: Candidate,
    judge: Judge,
    results: list[ValidationResult | None],
) -> None:
    """Decide some requirements concurrently; the first exception stops the rest."""
    raised: list[BaseException] = []

    async def decide(i: int) -> None:
        try:
            results[i] = await _decide(requirements[i], candidate, judge)
        except anyio.get_cancelled_exc_class():
            raise
        except BaseException as exc:  # noqa: BLE001 (raised again below, outside the group)
            raised.append(exc)
            tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        for i in members:
            tasks.start_soon(decide, i)
    if raised:
        raise raised[0]


async def _decide(
    requirement: Requirement, candidate: Candidate, judge: Judge
) -> ValidationResult:
    """Decide one requirement, and turn an exception into what ``on_error`` says."""
    try:
        if requirement.timeout is None:
            return await _ask(requirement, candidate, judge)
        with anyio.move_on_after(requirement.timeout) as scope:
            return await _ask(requirement, candidate, judge)
        if not scope.cancelled_caught:  # pragma: no cover (the block returns or is cancelled)
            raise AssertionError
        msg = f"it took longer than {requirement.timeout:g} s"
        return _errored(requirement, TimeoutError(msg))
    except BadVerdict:
        raise
    except anyio.get_cancelled_exc_class() as exc:
        if cancel_requested():
            raise
        return _errored(requirement, exc)
    except Exception as exc:  # noqa: BLE001 (a validator's)
        return _errored(requirement, exc)


def _errored(requirement: Requirement, exc: BaseException) -> ValidationResult:
    if requirement.on_error == "raise":
        exc.add_note(f"raised by requirement {requirement.name!r}, whose on_error is 'raise'")
        raise exc
    what = f"{type(exc).__name__}: {exc}" if str(exc) else type(exc).__name__
    if requirement.on_error == "fail":
        return ValidationResult(passed=False, reason=f"it could not be checked: {what}")
    error = RequirementError(
        f"requirement {requirement.name!r} could not be decided: {what}",
        requirement=requirement.name,
    )
    error.__cause__ = exc
    return ValidationResult.errored(error)


async def _ask(requirement: Requirement, candidate: Candidate, judge: Judge) -> ValidationResult:
    if requirement.parts:
        return await _ask_parts(requirement, candidate, judge)
    validator = requirement.validator
    if validator is None:
        return await judge(requirement, candidate)
    if requirement.stage is Stage.THREAD:
        verdict: Any = await run_in_thread(validator, candidate)
    else:
        verdict = validator(candidate)
    if inspect.isawaitable(verdict):
        verdict = await verdict
    return _read(requirement, verdict)


async def _ask_parts(
    whole: Requirement, candidate: Candidate, judge: Judge
) -> ValidationResult:
    """Decide a combined requirement: its parts in stages, until the answer is certain.

    A part that errored makes the whole errored: an error is never argued away.
    """
    results = [
        None if result is _SKIPPED else result
        for result in await _until_certain(whole, candidate, judge)
    ]
    known = [result for result in results if result is not None]
    for result in known:
        if result.status is ValidationStatus.ERRORED:
            return result
    if whole.operator == "not":
        part = known[0]
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
    return ValidationResult(passed, "; ".join(decisive), best)


async def _until_certain(
    whole: Requirement, candidate: Candidate, judge: Judge
) -> tuple[ValidationResult, ...]:
    if whole.operator != "or":
        return await validate(whole.parts, candidate, judge=judge)
    results: list[ValidationResult] = [_SKIPPED] * len(whole.parts)
    for stage in Stage:
        members = [i for i, part in enumerate(whole.parts) if part.stage is stage]
        verdicts = await validate([whole.parts[i] for i in members], candidate, judge=judge)
        for i, verdict in zip(members, verdicts, strict=True):
            results[i] = verdict
        settled = any(v.passed or v.status is ValidationStatus.ERRORED for v in verdicts)
        if settled:
            break
    return tuple(results)


def _read(requirement: Requirement, verdict: object) -> ValidationResult:
    if verdict is True:
        return _PASSED
    if verdict is False:
        return _FAILED
    if isinstance(verdict, ValidationResult):
        return verdict
    if isinstance(verdict, tuple):
        pair = cast("tuple[object, ...]", verdict)
        if len(pair) == 2 and isinstance(pair[0], bool) and isinstance(pair[1], str):  # noqa: PLR2004
            return ValidationResult(pair[0], pair[1])
    msg = (
        f"requirement {requirement.name!r}: its validator returned {ascii(verdict)[:100]}, which is"
        " no verdict: return a bool, (bool, reason) or a ValidationResult"
    )
    raise BadVerdict(msg, requirement=requirement.name)
