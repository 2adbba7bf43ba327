"""What a call tells its plugins, and what it takes from them.

Each function is called only where a plugin listens; the payload classes are imported there, since
they load pydantic's machinery.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mellea_like.core.requirement import Requirement
from mellea_like.core.slice import Outcome
from mellea_like.core.validation import ValidationResult
from mellea_like.errors import HookError, RequirementError
from mellea_like.hooks.types import HookType
from mellea_like.sampling.prepare import check_judge, check_requirements, merge_requirements

if TYPE_CHECKING:
    from datetime import datetime

    from mellea_like.core.action import Action
    from mellea_like.core.context import Context
    from mellea_like.core.slice import Slice
    from mellea_like.core.validation import Candidate
    from mellea_like.sampling.call import Call
    from mellea_like.sampling.ending import Ending
    from mellea_like.sampling.turns import Turn

__all__ = ["after_validation", "before_validation", "loop_end", "loop_start", "repaired"]


async def loop_start(call: Call) -> int:
    """Tell that a call begins.

    Args:
        call: the call.

    Returns:
        The loop budget that plugins want.

    Raises:
        HookError: a plugin failed.
        ValueError: a plugin set a loop budget that can't be.
    """
    from mellea_like.hooks.payloads import SamplingLoopStartPayload  # noqa: PLC0415

    settings = call.strategy.settings

    def amend(_before: Any, after: Any, plugin: str) -> Any:
        settings.check_loop_budget(after.loop_budget, f"plugin {plugin} set loop_budget")
        return after

    payload = SamplingLoopStartPayload(
        **call.ids(),
        action=call.plan.action,
        context=call.plan.context,
        requirements=call.plan.requirements,
        loop_budget=call.loop_budget,
        concurrency_budget=settings.concurrency_budget,
    )
    changed: SamplingLoopStartPayload = await call.fire(payload, amend)
    return changed.loop_budget


async def before_validation(
    call: Call, turn: Turn, candidate: Candidate, requirements: tuple[Requirement, ...]
) -> tuple[Requirement, ...]:
    """Ask plugins for further requirements.

    Args:
        call: the call.
        turn: the iteration's turn.
        candidate: what is to be validated.
        requirements: what it must meet anyway.

    Returns:
        These requirements and the plugins', in order.

    Raises:
        HookError: a plugin failed.
    """
    from mellea_like.hooks.payloads import ValidationPreCheckPayload  # noqa: PLC0415

    def amend(before: Any, after: Any, plugin: str) -> Any:
        known = {r.description for r in before.requirements if not r.parts and r.judged}
        try:
            wanted = check_requirements(after.requirements, "requirements")
            merged = merge_requirements(
                before.requirements, [item for item in wanted if item not in known]
            )
            for added in merged[len(before.requirements) :]:
                check_judge(added, call.plan.judge)
        except (TypeError, ValueError, RequirementError) as exc:
            raise _refused(plugin, HookType.VALIDATION_PRE_CHECK, str(exc)) from exc
        return after.model_copy(update={"requirements": merged})

    ids = call.ids(turn.iteration, turn.subsample)
    payload = ValidationPreCheckPayload(**ids, candidate=candidate, requirements=requirements)
    changed: ValidationPreCheckPayload = await call.fire(payload, amend)
    return changed.requirements


async def after_validation(
    call: Call,
    turn: Turn,
    candidate: Candidate,
    validations: tuple[tuple[Requirement, ValidationResult], ...],
    *,
    passed: bool,
) -> tuple[Requirement, ValidationResult] | None:
    """Ask plugins whether a pass shall stand.

    Args:
        call: the call.
        turn: the iteration's turn.
        candidate: what was validated.
        validations: the verdicts.
        passed: whether all are passes.

    Returns:
        The first plugin's objection to a pass, as a failed verdict; None where there is none.

    Raises:
        HookError: a plugin failed, or wanted to turn a failure into a pass.
    """
    from mellea_like.hooks.payloads import ValidationPostCheckPayload  # noqa: PLC0415

    objections: list[tuple[Requirement, ValidationResult]] = []

    def amend(before: Any, after: Any, plugin: str) -> Any:
        if not isinstance(after.passed, bool) or (after.passed and not before.passed):
            why = "it may turn a pass into a failure, not the reverse"
            raise _refused(plugin, HookType.VALIDATION_POST_CHECK, why)
        if before.passed and not after.passed:
            approval = Requirement(f"approved by plugin {plugin}", check_only=True)
            objections.append((approval, ValidationResult(passed=False, reason=str(after.reason))))
        return after

    payload = ValidationPostCheckPayload(
        **call.ids(turn.iteration, turn.subsample),
        candidate=candidate,
        validations=validations,
        passed=passed,
    )
    await call.fire(payload, amend)
    return objections[0] if objections else None


async def repaired(call: Call, failed: Slice, action: Action[Any], context: Context) -> None:
    """Tell plugins what is asked next.

    Args:
        call: the call.
        failed: the slice that is to be repaired.
        action: what is asked next.
        context: the conversation that it is asked in.

    Raises:
        HookError: a plugin failed.
    """
    from mellea_like.hooks.payloads import SamplingRepairPayload  # noqa: PLC0415

    ids = call.ids(failed.iteration, failed.subsample)
    await call.fire(SamplingRepairPayload(**ids, failed=failed, action=action, context=context))


async def loop_end(call: Call, ending: Ending, started: datetime) -> None:
    """Tell that a call has ended.

    Args:
        call: the call.
        ending: how it ended.
        started: when it began (UTC).
    """
    from mellea_like.hooks.payloads import SamplingLoopEndPayload  # noqa: PLC0415

    best = None if ending.best_index is None else call.race.slices[ending.best_index]
    payload = SamplingLoopEndPayload(
        **call.ids(),
        slices=tuple(call.race.slices),
        success=best is not None and best.passed,
        best=best,
        error=ending.error,
        iterations_used=sum(_finished_validation(slice_) for slice_ in call.race.slices),
        stop_reason=ending.stop_reason,
        started=started,
        elapsed=call.now(),
    )
    await call.hooks.announce(payload)


def _finished_validation(slice_: Slice) -> bool:
    return slice_.outcome in {Outcome.PASSED, Outcome.FAILED} or bool(slice_.verdicts)


def _refused(plugin: str, hook: HookType, why: str) -> HookError:
    return HookError(f"plugin {plugin} failed at {hook}: {why}", plugin=plugin, hook=hook)
