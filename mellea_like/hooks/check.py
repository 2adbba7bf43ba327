"""The hooks around the validation of a reply."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from mellea_like.core.requirement import Requirement
from mellea_like.core.validation import Candidate, ValidationResult
from mellea_like.errors import RequirementError
from mellea_like.hooks.dispatch import failure
from mellea_like.hooks.payload import Is, Payload
from mellea_like.hooks.types import HookType
from mellea_like.kernel.ports import Option
from mellea_like.requirements.merging import check_judge, check_requirements, merge_requirements

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from mellea_like.core.backend import Backend
    from mellea_like.hooks.dispatch import Hooks
    from mellea_like.kernel.draw import Draw
    from mellea_like.kernel.ports import Checked

__all__ = ["ValidationPostCheckPayload", "ValidationPreCheckPayload"]


class ValidationPreCheckPayload(Payload):
    """Passed to handlers before a reply is validated.

    Attributes:
        candidate: the reply to validate.
        requirements: the reply's requirements. Handlers may add more, but can't drop any.
    """

    hook = HookType.VALIDATION_PRE_CHECK
    writable = frozenset({"requirements"})

    candidate: Is[Candidate]
    requirements: tuple[Is[Requirement], ...]


class ValidationPostCheckPayload(Payload):
    """Passed to handlers after a reply was validated.

    Attributes:
        candidate: the reply that was validated.
        validations: each requirement with the verdict on it.
        passed: whether the draw passes. Handlers may turn a pass into a failure, but not the
            reverse.
        reason: why a pass was turned into a failure. It is one of the draw's problems, which some
            strategies include in the next attempt's prompt.
    """

    hook = HookType.VALIDATION_POST_CHECK
    writable = frozenset({"passed", "reason"})

    candidate: Is[Candidate]
    validations: tuple[tuple[Is[Requirement], Is[ValidationResult]], ...]
    passed: bool
    reason: str = ""


class CheckHooks(Option):
    """Lets plugins add requirements before a check, and turn a pass into a failure after it."""

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks

    async def check(
        self,
        draw: Draw,
        candidate: Candidate,
        wanted: tuple[Requirement, ...],
        go: Callable[..., Awaitable[Checked]],
    ) -> Checked:
        """Fire the hooks before and after a check, and apply the changes that plugins make."""
        fire = partial(self._hooks.fire, at=draw.ask, candidate=candidate)
        add = partial(_add, draw.ask.spec.judge)
        changed = await fire(ValidationPreCheckPayload, amend=add, requirements=wanted)
        # A requirement is never dropped because a plugin returned fewer.
        if changed is not None and len(changed.requirements) > len(wanted):
            wanted = changed.requirements
        requirements, verdicts = await go(draw, candidate, wanted)
        # Before the hook, so that the record has the verdicts if the draw is cancelled in it.
        draw.set_verdicts(requirements, verdicts)
        objections: list[tuple[Requirement, ValidationResult]] = []
        await fire(
            ValidationPostCheckPayload,
            amend=partial(_object, objections),
            validations=tuple(zip(draw.requirements, draw.verdicts, strict=True)),
            passed=all(draw.verdicts),
        )
        if not objections:
            return requirements, verdicts
        [(approval, verdict)] = objections  # Only the first plugin can turn a pass into a failure.
        return (*requirements, approval), (*verdicts, verdict)


def _add(
    judge: Backend,
    before: ValidationPreCheckPayload,
    after: ValidationPreCheckPayload,
    plugin: str,
) -> ValidationPreCheckPayload:
    """Return a plugin's payload, with its new requirements appended to the earlier ones."""
    known = {r.description for r in before.requirements if not r.parts and r.judged}
    try:
        asked = check_requirements(after.requirements, "requirements")
        new = [item for item in asked if item not in known]
        merged = merge_requirements(before.requirements, new)
        for added in merged[len(before.requirements) :]:
            check_judge(added, judge)
    except (TypeError, ValueError, RequirementError) as exc:
        raise failure(plugin, after.hook, str(exc)) from exc
    return after.model_copy(update={"requirements": merged})


def _object(
    objections: list[tuple[Requirement, ValidationResult]],
    before: ValidationPostCheckPayload,
    after: ValidationPostCheckPayload,
    plugin: str,
) -> ValidationPostCheckPayload:
    """Add to ``objections`` if a plugin has turned a pass into a failure; refuse the reverse."""
    if not isinstance(after.passed, bool) or (after.passed and not before.passed):
        why = "it may turn a pass into a failure, but not the reverse"
        raise failure(plugin, after.hook, why)
    if before.passed and not after.passed:
        approval = Requirement(f"approved by plugin {plugin}", check_only=True)
        verdict = ValidationResult(passed=False, reason=str(after.reason or ""))
        objections.append((approval, verdict))
    return after
