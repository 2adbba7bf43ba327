"""Fire plugins' hooks in a draw: before a repair, around the check, and around each request.

The payload classes are imported only if a plugin listens, because they load pydantic's machinery.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio

from mellea_like.core.backend import (
    CURRENT,
    BackendWrapper,
    Options,
    RequestMeta,
    checked_reply,
)
from mellea_like.core.generation import cost_of
from mellea_like.core.requirement import Requirement
from mellea_like.core.validation import ValidationResult
from mellea_like.errors import HookError, RequirementError
from mellea_like.hooks.types import HookType
from mellea_like.kernel.ports import Option
from mellea_like.requirements.merging import check_judge, check_requirements, merge_requirements

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from mellea_like.core.backend import Backend, Request
    from mellea_like.core.generation import Generation
    from mellea_like.core.validation import Candidate
    from mellea_like.hooks.dispatch import Hooks
    from mellea_like.kernel.draw import Draw
    from mellea_like.kernel.ports import Checked, Sent

__all__ = ["CheckHooks", "RepairHooks", "RequestHooks"]


class RepairHooks(Option):
    """Tells plugins what the strategy has chosen to ask after a failure."""

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks

    async def draw(self, draw: Draw, go: Callable[[Draw], Awaitable[None]]) -> None:
        """Run a draw; if it repairs a failure, tell plugins first."""
        ask, failed = draw.ask, draw.ask.repairs
        if failed is not None:
            # It is about the failure, so its handlers see that iteration.
            _, meter = CURRENT.get()
            about = RequestMeta(self.call.id, failed.iteration, failed.subsample)
            CURRENT.set((about, meter))
            await self._hooks.fire(
                HookType.SAMPLING_REPAIR,
                failed,
                failed=failed,
                action=ask.action,
                context=ask.context,
            )
            CURRENT.set((draw.meta, meter))
            draw.started_at = self.call.now  # It has only begun now.
        await go(draw)


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
        changed = await fire(HookType.VALIDATION_PRE_CHECK, amend=add, requirements=wanted)
        # A requirement is never dropped because a plugin returned fewer.
        if changed is not None and len(changed.requirements) > len(wanted):
            wanted = changed.requirements
        requirements, verdicts = await go(draw, candidate, wanted)
        # Before the hook, so that the record has the verdicts if the draw is cancelled in it.
        draw.conclude(requirements, verdicts)
        objections: list[tuple[Requirement, ValidationResult]] = []
        await fire(
            HookType.VALIDATION_POST_CHECK,
            amend=partial(_object, objections),
            validations=tuple(zip(draw.requirements, draw.verdicts, strict=True)),
            passed=all(draw.verdicts),
        )
        if not objections:
            return requirements, verdicts
        [(approval, verdict)] = objections  # Only the first plugin can turn a pass into a failure.
        return (*requirements, approval), (*verdicts, verdict)


def _add(judge: Backend, before: Any, after: Any, plugin: str) -> Any:
    """Return a plugin's payload, with its new requirements appended to the earlier ones."""
    known = {r.description for r in before.requirements if not r.parts and r.judged}
    try:
        asked = check_requirements(after.requirements, "requirements")
        new = [item for item in asked if item not in known]
        merged = merge_requirements(before.requirements, new)
        for added in merged[len(before.requirements) :]:
            check_judge(added, judge)
    except (TypeError, ValueError, RequirementError) as exc:
        raise _refused(plugin, after.hook, str(exc)) from exc
    return after.model_copy(update={"requirements": merged})


def _object(
    objections: list[tuple[Requirement, ValidationResult]], before: Any, after: Any, plugin: str
) -> Any:
    """Add to ``objections`` if a plugin has turned a pass into a failure; refuse the reverse."""
    if not isinstance(after.passed, bool) or (after.passed and not before.passed):
        why = "it may turn a pass into a failure, but not the reverse"
        raise _refused(plugin, after.hook, why)
    if before.passed and not after.passed:
        approval = Requirement(f"approved by plugin {plugin}", check_only=True)
        verdict = ValidationResult(passed=False, reason=str(after.reason or ""))
        objections.append((approval, verdict))
    return after


class RequestHooks(Option):
    """Lets plugins see each request, even those of retries and judges, and change its options."""

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks

    def request(self, inner: Backend, sent: Sent) -> Backend:
        """Wrap a backend so that its requests fire hooks."""
        del sent
        return _Heard(inner, self._hooks)


class _Heard(BackendWrapper):
    def __init__(self, inner: Backend, hooks: Hooks) -> None:
        super().__init__(inner)
        self._hooks = hooks

    async def generate(self, request: Request) -> Generation:
        """Answer one request, and fire the hooks before and after it."""
        meta, meter = request.meta, request.meter
        fire = partial(self._hooks.fire, at=meta, purpose=meta.purpose, retry=meta.retry)
        model = request.options.model or self.model
        try:
            changed = await fire(
                HookType.GENERATION_PRE_CALL,
                amend=_only_options,
                messages=request.messages,
                options=request.options,
                model=None if model is None else str(model),
            )
        except BaseException:
            meter.sent_nothing()
            raise
        if changed is not None:
            request = replace(request, options=changed.options)
        started = anyio.current_time()
        try:
            reply = checked_reply(self.inner, await self.inner.generate(request))
        except Exception as exc:
            took, cost = anyio.current_time() - started, cost_of(meter, None)
            await fire(HookType.GENERATION_ERROR, error=exc, usage=cost, duration=took)
            raise
        took, cost = anyio.current_time() - started, cost_of(meter, reply)
        await fire(HookType.GENERATION_POST_CALL, generation=reply, usage=cost, duration=took)
        return reply


def _only_options(_: Any, after: Any, plugin: str) -> Any:
    if not isinstance(after.options, Options):
        why = f"it set options to {after.options!r}, which is not an Options object"
        raise _refused(plugin, after.hook, why)
    return after


def _refused(plugin: str, hook: HookType, why: str) -> HookError:
    return HookError(f"plugin {plugin} failed at {hook}: {why}", plugin=plugin, hook=hook)
