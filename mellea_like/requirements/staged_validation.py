"""Check a candidate against its requirements in stages, the cheap checks first."""

from __future__ import annotations

import inspect
import os
from traceback import walk_tb
from typing import TYPE_CHECKING, Any, cast

import anyio

from mellea_like.core.display import add_note, error_text, with_reason
from mellea_like.core.requirement import CheckStage, Requirement
from mellea_like.core.validation import ValidationResult, ValidationStatus
from mellea_like.errors import BackendError, BadVerdict, RequirementError
from mellea_like.runtime.event_loops import foreign, split_cancellation
from mellea_like.runtime.logs import warn
from mellea_like.runtime.threads import run_in_thread

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mellea_like.core.validation import Candidate, Validator

_INLINE, _THREAD = CheckStage.INLINE, CheckStage.THREAD
_PASS = ValidationStatus.PASSED
_SKIPPED = ValidationResult.skipped("an earlier requirement was not met")
_UNASKED: object = object()
"""A placeholder for the verdict of a validator that has not been called."""


class StagedValidation:
    """Checks candidates against requirements in stages. One object checks many candidates."""

    # The stages are inline checks, then checks in threads, then judges and async checks. The
    # checks of a stage run concurrently. If any of them doesn't pass, later stages are skipped.

    __slots__ = ("_inline", "_later", "requirements")

    def __init__(self, requirements: Sequence[Requirement]) -> None:
        self.requirements = tuple(requirements)
        inline: list[tuple[int, Requirement, Validator | None]] = []
        thread: list[int] = []
        awaited: list[int] = []
        for i, requirement in enumerate(self.requirements):
            if requirement.stage is _INLINE:
                # `_decide` handles combinations and time limits.
                at_once = None if requirement.timeout else requirement.validator
                inline.append((i, requirement, at_once))
            else:
                (thread if requirement.stage is _THREAD else awaited).append(i)
        self._inline = inline
        self._later = [members for members in (thread, awaited) if members]

    def begin(
        self,
        candidate: Candidate,
        check_all: bool,  # noqa: FBT001
    ) -> tuple[list[ValidationResult], bool]:
        """Run the inline stage; return the verdicts, and whether no later stage is needed."""
        verdicts: list[Any] = [_SKIPPED] * len(self.requirements)
        passed = settled = True
        for i, requirement, validator in self._inline:
            verdict = _UNASKED
            if validator is not None:
                try:
                    verdict = validator(candidate)
                except Exception as exc:  # noqa: BLE001 (a validator's)
                    verdict = errored(requirement, exc)
            if verdict is True:
                verdicts[i] = _PASSED
            elif verdict is False:
                passed, verdicts[i] = False, _FAILED
            elif (result := read(verdict)) is None:
                passed = settled = False
                verdicts[i] = verdict
            else:
                passed = passed and result.status is _PASS
                verdicts[i] = result
        done = settled and (not self._later or not (passed or check_all))
        return verdicts, done

    async def finish(
        self,
        verdicts: list[ValidationResult],
        candidate: Candidate,
        check_all: bool,  # noqa: FBT001
    ) -> list[ValidationResult]:
        """Run the later stages, after awaiting the verdicts that the inline stage left open."""
        results: list[Any] = verdicts
        checks = _Checks(candidate)
        for i, requirement, _ in self._inline:
            if not isinstance(results[i], ValidationResult):
                results[i] = await checks.decide(requirement, results[i])
        if not check_all and not all(results[i] for i, *_ in self._inline):
            return results
        for members in self._later:
            if len(members) == 1:
                i = members[0]
                results[i] = await checks.decide(self.requirements[i])
            else:
                await checks.decide_together(self.requirements, members, results)
            if not check_all and not all(results[i] for i in members):
                break
        return results

    async def check(
        self,
        candidate: Candidate,
        check_all: bool = False,  # noqa: FBT001, FBT002
    ) -> list[ValidationResult]:
        """Run all stages that are needed, and return the verdicts, one for each requirement."""
        verdicts, done = self.begin(candidate, check_all)
        return verdicts if done else await self.finish(verdicts, candidate, check_all)


class _Checks:
    """The checks of one candidate that may have to wait."""

    def __init__(self, candidate: Candidate) -> None:
        self._candidate = candidate

    async def decide_together(
        self, requirements: Sequence[Requirement], members: Sequence[int], results: list[Any]
    ) -> None:
        """Check several requirements concurrently; the first exception stops the other checks."""
        raised: list[BaseException] = []

        async def decide(i: int) -> None:
            try:
                results[i] = await self.decide(requirements[i])
            except BaseException as exc:  # noqa: BLE001 (raised again: here, or outside the group)
                cancellation, _ = split_cancellation(exc)
                if cancellation is not None:
                    raise cancellation from None
                raised.append(exc)
                tasks.cancel_scope.cancel()

        async with anyio.create_task_group() as tasks:
            for i in members:
                tasks.start_soon(decide, i)
        if raised:
            raise raised[0]

    async def decide(
        self, requirement: Requirement, verdict: object = _UNASKED
    ) -> ValidationResult:
        """Check one requirement, and treat exceptions according to its ``on_error``."""
        try:
            with foreign("it"):
                return await self._in_time(requirement, verdict)
        except BadVerdict:
            raise
        except Exception as exc:  # noqa: BLE001 (a validator's)
            return errored(requirement, exc)

    async def _in_time(self, requirement: Requirement, verdict: object) -> ValidationResult:
        """Check one requirement within its time limit; warn if its thread is left running."""
        begun = ended = False

        def validate(candidate: Candidate) -> Any:
            nonlocal begun, ended
            begun = True
            try:
                return requirement.validator(candidate)  # type: ignore[misc]
            finally:
                ended = True

        if requirement.timeout is None:
            return await self._ask(requirement, verdict, validate)
        with anyio.move_on_after(requirement.timeout) as scope:
            result = await self._ask(requirement, verdict, validate)
            if anyio.current_time() <= scope.deadline:
                return result
        msg = f"it took longer than {requirement.timeout:g} s"
        if requirement.stage is _THREAD:
            if not begun:
                msg = f"no thread was free for it within {requirement.timeout:g} s"
            elif not ended:
                said = "requirement %r was abandoned: %s; its thread is still running"
                warn(said, requirement.name, msg)
        raise TimeoutError(msg)

    async def _ask(
        self, requirement: Requirement, verdict: object, validate: Validator
    ) -> ValidationResult:
        candidate, name = self._candidate, requirement.name
        if requirement.parts:
            results = await self._until_certain(requirement)
            return combined(requirement, [None if r is _SKIPPED else r for r in results])
        if requirement.validator is None:
            # Imported lazily: most calls have no judge.
            from mellea_like.requirements.judge import judged  # noqa: PLC0415

            return await judged(requirement, candidate)
        if requirement.stage is _THREAD:
            verdict = await run_in_thread(validate, candidate, name=f"requirement {name!r}")
        elif verdict is _UNASKED:
            verdict = validate(candidate)
        if inspect.isawaitable(verdict):
            verdict = await verdict
        result = read(verdict)
        if result is None:
            msg = (
                f"requirement {name!r}: its validator returned {ascii(verdict)[:100]},"
                " not a verdict: return a bool, (bool, reason) or a ValidationResult"
            )
            raise BadVerdict(msg, requirement=name)
        return result

    async def _until_certain(self, whole: Requirement) -> Sequence[ValidationResult]:
        """Check the parts of a combined requirement in stages, until the verdict is certain."""
        if whole.operator in ("and", "not"):
            return await self._staged(whole.parts)
        if whole.operator == "or else":
            first, other = whole.parts
            met = await self._staged([first])
            return met if met[0] else [*met, *await self._staged([other])]
        results = [_SKIPPED] * len(whole.parts)
        for stage in CheckStage:
            members = [i for i, part in enumerate(whole.parts) if part.stage is stage]
            verdicts = await self._staged([whole.parts[i] for i in members])
            for i, verdict in zip(members, verdicts, strict=True):
                results[i] = verdict
            passes, open_ = sum(map(bool, results)), sum(r is _SKIPPED for r in results)
            if any(v.status is ValidationStatus.ERRORED for v in verdicts) or not (
                passes < whole.needed <= passes + open_
            ):
                break
        return results

    async def _staged(self, parts: Sequence[Requirement]) -> list[ValidationResult]:
        return await StagedValidation(parts).check(self._candidate)


# --- verdicts ---

_PACKAGE = os.path.dirname(os.path.dirname(__file__))  # noqa: PTH120 (without pathlib's imports)

_FAIL = ValidationStatus.FAILED
_PASSED = ValidationResult(True)
_FAILED = ValidationResult(False)


def read(verdict: object) -> ValidationResult | None:
    """Convert the return value of a validator to a verdict; return None if it isn't one."""
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
    """Raise a check's exception, or turn it into a verdict, as ``on_error`` says."""
    if requirement.on_error == "raise":
        add_note(exc, f"raised by requirement {requirement.name!r}, whose on_error is 'raise'")
        raise exc
    said = error_text(exc)
    what = f"{type(exc).__name__}: {said}" if said else type(exc).__name__
    if "'Candidate'" in what:
        what += " (a validator takes a Candidate; its text is candidate.text)"
    if requirement.on_error == "fail":
        return ValidationResult.recorded(_FAIL, f"it could not be checked: {what}", None, exc)
    error = RequirementError(
        f"requirement {requirement.name!r} could not be decided: {what}",
        requirement=requirement.name,
    )
    error.__cause__ = exc
    if line := line_of(exc):
        error.line = line
        error.add_note(f"raised at {line}")
    return ValidationResult.errored(error)


def line_of(exc: BaseException) -> str:
    """Return where in the validator's file an exception was raised, as ``file:line``, or ""."""
    if isinstance(exc, BackendError):  # It comes from a server, not from a line.
        return ""
    users = [
        (frame.f_code.co_filename, line)
        for frame, line in walk_tb(exc.__traceback__)
        if not frame.f_code.co_filename.startswith(_PACKAGE)
    ]
    lines = [line for file, line in users if file == users[0][0]]
    return f"{users[0][0]}:{lines[-1]}" if users else ""


def combined(whole: Requirement, results: Sequence[ValidationResult | None]) -> ValidationResult:
    """Combine the verdicts on a requirement's parts; a verdict that wasn't needed is None."""
    # An error in a part is an error of the whole. A part that failed because of an exception
    # (on_error="fail") doesn't make its negation true.
    known = [result for result in results if result is not None]
    for result in known:
        if result.status is ValidationStatus.ERRORED:
            return result
    if whole.operator == "or else":
        return known[-1]
    exception = next((result.error for result in known if result.error is not None), None)
    if whole.operator == "not":
        part = known[0]
        if exception is not None:
            return part
        held = f"it meets {whole.parts[0].description!r}"
        return ValidationResult(not part.passed, held if part.passed else part.reason)
    scores = [result.score for result in known if result.score is not None]
    passed = sum(map(bool, known)) >= whole.needed
    decisive = [
        with_reason(part.description, result.reason)
        for part, result in zip(whole.parts, results, strict=True)
        if result is not None and result.passed is passed
    ]
    scores.sort(reverse=True)
    best = scores[min(whole.needed, len(scores)) - 1] if scores else None
    status = _PASS if passed else _FAIL
    why = "; ".join(decisive)
    if whole.operator == "at least" and len(known) == len(results):
        if len({part.description for part in whole.parts}) == 1:  # Several judges decided.
            why = "; ".join(r.reason for r in known if r.passed is passed and r.reason)
        why = f"{sum(map(bool, known))} of {len(results)} met" + (why and f": {why}")
    return ValidationResult.recorded(status, why, best, None if passed else exception)
