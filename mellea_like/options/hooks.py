"""Plugins that may change a call: their hooks wrap the call, a draw, its check and its requests.

The payload classes are imported only if a plugin listens, because they load pydantic's machinery.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import anyio

from mellea_like.core.backend import (
    ITERATION,
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
from mellea_like.kernel.ports import Option, Ruling
from mellea_like.requirements.merging import check_judge, check_requirements, merge_requirements

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from mellea_like.core.backend import Backend, Request
    from mellea_like.core.generation import Generation
    from mellea_like.core.slice import Slice
    from mellea_like.core.validation import Candidate
    from mellea_like.hooks.dispatch import HookRun
    from mellea_like.hooks.payloads import Payload
    from mellea_like.kernel.draw import Draw
    from mellea_like.kernel.ports import Ask, Checked, Sent

__all__ = ["CheckHooks", "Hooks", "RepairHooks", "RequestHooks"]


class Hooks:
    """Fires the hooks of one call's plugins, each with its own type of payload."""

    rule: Callable[[Ruling], None]
    """Carries out a ruling, such as the end of the call after a failed hook."""

    def __init__(self, run: HookRun, sampling_id: str, strategy: str) -> None:
        from mellea_like.hooks.payloads import PAYLOADS  # noqa: PLC0415

        self.run = run
        self._sampling_id = sampling_id
        self._strategy = strategy
        self._payloads = PAYLOADS

    async def fire(
        self,
        hook: HookType,
        at: RequestMeta | Slice | Ask | None,
        amend: Callable[[Any, Any, str], Any] | None = None,
        **fields: Any,
    ) -> Any:
        """Fire a hook for a draw or for the whole call; if a handler fails, end the call."""
        try:
            return await self.run.fire(self.payload(hook, at, **fields), amend)
        except HookError as exc:
            self.rule(Ruling(fatal=exc))
            raise

    def payload(
        self, hook: HookType, at: RequestMeta | Slice | Ask | None, **fields: Any
    ) -> Payload:
        """Make the payload of a hook."""
        return self._payloads[hook](
            sampling_id=self._sampling_id,
            strategy=self._strategy,
            iteration=None if at is None else at.iteration,
            subsample=None if at is None else at.subsample,
            **fields,
        )


class RepairHooks(Option):
    """Tells plugins what the strategy has chosen to ask after a failure."""

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks

    async def draw(self, draw: Draw, go: Callable[[Draw], Awaitable[None]]) -> None:
        """Run a draw; if it repairs a failure, tell plugins first."""
        ask = draw.ask
        if ask.repairs is not None:
            # It is about the failure, so its handlers see that iteration.
            failed = ask.repairs
            ITERATION.set(RequestMeta(self.call.id, failed.iteration, failed.subsample))
            await self._hooks.fire(
                HookType.SAMPLING_REPAIR,
                ask.repairs,
                failed=ask.repairs,
                action=ask.action,
                context=ask.context,
            )
            ITERATION.set(draw.meta)
            draw.started_at = self.call.now  # It has only begun now.
        await go(draw)


class CheckHooks(Option):
    """Lets plugins add requirements before a check, and object to a pass after it."""

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks

    async def check(
        self,
        draw: Draw,
        candidate: Candidate,
        wanted: tuple[Requirement, ...],
        go: Callable[..., Awaitable[Checked]],
    ) -> Checked:
        """Check a candidate with the plugins' requirements and objections."""
        listened = self._hooks.run.types
        if HookType.VALIDATION_PRE_CHECK in listened:
            wanted = await self._before(draw, candidate, wanted)
        requirements, verdicts = await go(draw, candidate, wanted)
        if HookType.VALIDATION_POST_CHECK in listened:
            # Before the hook, so that the record has the verdicts if the draw is cancelled in it.
            draw.conclude(requirements, verdicts)
            objection = await self._after(draw, candidate)
            if objection is not None:
                return (*requirements, objection[0]), (*verdicts, objection[1])
        return requirements, verdicts

    async def _before(
        self, draw: Draw, candidate: Candidate, wanted: tuple[Requirement, ...]
    ) -> tuple[Requirement, ...]:
        judge = draw.ask.spec.judge

        def amend(before: Any, after: Any, plugin: str) -> Any:
            known = {r.description for r in before.requirements if not r.parts and r.judged}
            try:
                asked = check_requirements(after.requirements, "requirements")
                merged = merge_requirements(
                    before.requirements, [item for item in asked if item not in known]
                )
                for added in merged[len(before.requirements) :]:
                    check_judge(added, judge)
            except (TypeError, ValueError, RequirementError) as exc:
                raise _refused(plugin, HookType.VALIDATION_PRE_CHECK, str(exc)) from exc
            return after.model_copy(update={"requirements": merged})

        changed = await self._hooks.fire(
            HookType.VALIDATION_PRE_CHECK,
            draw.ask,
            amend,
            candidate=candidate,
            requirements=wanted,
        )
        # A requirement is never dropped because a plugin returned fewer.
        return changed.requirements if len(changed.requirements) > len(wanted) else wanted

    async def _after(
        self, draw: Draw, candidate: Candidate
    ) -> tuple[Requirement, ValidationResult] | None:
        objections: list[tuple[Requirement, ValidationResult]] = []

        def amend(before: Any, after: Any, plugin: str) -> Any:
            if not isinstance(after.passed, bool) or (after.passed and not before.passed):
                why = "it may turn a pass into a failure, but not the reverse"
                raise _refused(plugin, HookType.VALIDATION_POST_CHECK, why)
            if before.passed and not after.passed:
                approval = Requirement(f"approved by plugin {plugin}", check_only=True)
                objection = ValidationResult(passed=False, reason=str(after.reason))
                objections.append((approval, objection))
            return after

        await self._hooks.fire(
            HookType.VALIDATION_POST_CHECK,
            draw.ask,
            amend,
            candidate=candidate,
            validations=tuple(zip(draw.requirements, draw.verdicts, strict=True)),
            passed=all(draw.verdicts),
        )
        return objections[0] if objections else None


class RequestHooks(Option):
    """Lets plugins see each request, including retries and judges', and change its options."""

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
        listened = self._hooks.run.types
        if HookType.GENERATION_PRE_CALL in listened:
            request = await self._before(request)
        started = anyio.current_time()
        try:
            generation = checked_reply(self.inner, await self.inner.generate(request))
        except Exception as exc:
            if HookType.GENERATION_ERROR in listened:
                await self._fire(
                    HookType.GENERATION_ERROR,
                    request,
                    error=exc,
                    usage=cost_of(request.meter, None),
                    duration=anyio.current_time() - started,
                )
            raise
        if HookType.GENERATION_POST_CALL in listened:
            await self._fire(
                HookType.GENERATION_POST_CALL,
                request,
                generation=generation,
                usage=cost_of(request.meter, generation),
                duration=anyio.current_time() - started,
            )
        return generation

    async def _before(self, request: Request) -> Request:
        model = request.options.model or getattr(self.inner, "model", None)
        try:
            payload = await self._fire(
                HookType.GENERATION_PRE_CALL,
                request,
                _only_options,
                messages=request.messages,
                options=request.options,
                model=None if model is None else str(model),
            )
        except BaseException:
            request.meter.sent_nothing()
            raise
        return replace(request, options=payload.options)

    async def _fire(
        self,
        hook: HookType,
        request: Request,
        amend: Callable[[Any, Any, str], Any] | None = None,
        **fields: Any,
    ) -> Any:
        meta = request.meta
        asked = {"purpose": meta.purpose, "retry": meta.retry}
        return await self._hooks.fire(hook, meta, amend, **asked, **fields)


def _only_options(_: Any, after: Any, plugin: str) -> Any:
    if not isinstance(after.options, Options):
        msg = f"plugin {plugin} set options to {after.options!r}, which is not an Options object"
        raise HookError(msg, plugin=plugin, hook=HookType.GENERATION_PRE_CALL)
    return after


def _refused(plugin: str, hook: HookType, why: str) -> HookError:
    return HookError(f"plugin {plugin} failed at {hook}: {why}", plugin=plugin, hook=hook)
