"""One iteration: generate, parse, validate, and the record of it.

This is the code that runs most often; it avoids what costs more than a microsecond.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio
from anyio.lowlevel import checkpoint_if_cancelled

from mellea_like.core.backend import (
    BUDGETS,
    ITERATION,
    JUDGE_OPTIONS,
    SPENDS_ON,
    Options,
    Request,
    RequestMeta,
    checked_reply,
    innermost,
)
from mellea_like.core.format import parse_reply, parse_value, why_unread
from mellea_like.core.generation import (
    INCOMPLETE,
    REJECTED,
    Generation,
    Meter,
    Usage,
    cost_of,
    why_incomplete,
)
from mellea_like.core.slice import Outcome, Slice
from mellea_like.core.validation import Candidate, ValidationResult, ValidationStatus
from mellea_like.errors import (
    BackendTimeout,
    BackendUnavailable,
    LimitExceeded,
    RequirementError,
    ToolError,
)
from mellea_like.hooks.types import HookType
from mellea_like.requirements.staged_validation import StagedValidation, errored
from mellea_like.runtime.event_loops import cancel_requested, split_cancellation
from mellea_like.sampling.sender import Sender

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from mellea_like.core.conversation import Action, Context, Message
    from mellea_like.core.requirement import Requirement
    from mellea_like.sampling.call_state import CallContext
    from mellea_like.sampling.scheduler import Scheduler
    from mellea_like.telemetry.spans import SpanScope

__all__ = ["Iteration", "Turn", "derive_seed", "turn_of"]

_PASSED, _FAILED, _ERRORED, _CANCELLED = (
    Outcome.PASSED,
    Outcome.FAILED,
    Outcome.ERRORED,
    Outcome.CANCELLED,
)
_PASS, _ERROR = ValidationStatus.PASSED, ValidationStatus.ERRORED
_NO_USAGE = Usage()


class Turn(NamedTuple):
    """Permission to start one iteration: its id (1-based), its subsample and depth (0-based)."""

    iteration: int
    subsample: int
    depth: int

    @property
    def rank(self) -> tuple[int, int]:
        """Where the turn stands when the winner must not depend on timing; lower is better."""
        return self.depth, self.subsample


def turn_of(subsample: int, depth: int, loop_budget: int) -> Turn:
    """Return the turn at a place; ids count through the subsamples, one after the other."""
    return Turn(subsample * loop_budget + depth + 1, subsample, depth)


def derive_seed(seed: int, iteration: int, purpose: str = "generate") -> int:
    """Derive the seed of one request from the call's.

    Neighbouring iterations get unrelated seeds (BLAKE2b of the three), so that servers whose
    generators are weak for close seeds still draw independently.
    """
    from hashlib import blake2b  # noqa: PLC0415 (it loads OpenSSL)

    digest = blake2b(f"{seed}/{iteration}/{purpose}".encode(), digest_size=4).digest()
    return int.from_bytes(digest) >> 1


class Iteration:
    """An iteration under way: what is known of it so far."""

    messages: tuple[Message, ...] = ()
    rounds: tuple[Message, ...] = ()
    meter: Meter | None = None
    generation: Generation | None = None
    validating = False
    requirements: tuple[Requirement, ...] = ()
    verdicts: tuple[ValidationResult, ...] = ()
    judged: list[tuple[Meter, Generation | None, str | None]] | None = None
    inside: Meter | None = None
    """What calls inside tools, validators and scorers cost."""
    outcome = _ERRORED
    error: BaseException | None = None
    reason = ""
    span: SpanScope | None = None
    tried: Exception | None = None
    mark: Any = None

    def __init__(
        self, call: CallContext, turn: Turn, chain: int, action: Action[Any], context: Context
    ) -> None:
        self.call = call
        self.turn = turn
        self.chain = chain
        self.action = action
        self.context = context
        self.started_at = call.clock() - call.started
        self.meta = RequestMeta(
            call.sampling_id, turn.iteration, turn.subsample, call.started, call.deadline
        )

    def attempt(self) -> Coroutine[Any, Any, None]:
        """Begin to generate, parse and validate; return what is to be awaited, at once.

        What it raises is for `take_exception`.
        """
        ITERATION.set(self.meta)
        call, turn = self.call, self.turn
        if call.telemetry is not None:
            span = call.telemetry.iteration(turn.iteration, turn.subsample, turn.depth)
            self.span = span.open()
        seconds = call.settings.iteration_timeout
        return self._attempt() if seconds is None else self._attempt_within(seconds)

    def take_exception(self, error: BaseException) -> None:
        """Take what the attempt raised: the iteration has errored, or was cancelled.

        A cancellation that was asked for, and what must end the whole call, it raises again.
        """
        cancellation, self.error = split_cancellation(error)
        if cancellation is None:
            if self.validating or not isinstance(error, Exception):
                raise error
            if isinstance(error, LimitExceeded) and error.result is None:
                # Nothing was sent and nothing went wrong: it was stopped before it began.
                self.outcome, self.error = _CANCELLED, None
                self.call.out_of_budget(error)
                self.reason = str(error)
        elif cancel_requested():
            self.outcome = _CANCELLED
            if isinstance(cancellation, anyio.get_cancelled_exc_class() | BaseExceptionGroup):
                raise cancellation
        else:
            self._fail_on_stray_cancellation(error)

    def finish(self) -> Slice:
        """Record the iteration, in one step that nothing can interrupt; return the record."""
        slice_ = self._record()
        self.call.recorder.record(slice_, self.mark)
        if self.call.telemetry is not None:
            self.call.telemetry.ended(self.span, slice_)
        return slice_

    async def _attempt_within(self, seconds: float) -> None:
        scope = anyio.CancelScope(deadline=anyio.current_time() + seconds)
        try:
            with scope:
                await self._attempt()
            late = scope.cancelled_caught
        except anyio.get_cancelled_exc_class():
            # A backend may answer its cancellation with another one, which no scope takes for its
            # own: the time was up all the same.
            if cancel_requested() or not scope.cancel_called:
                raise
            late = True
        finally:
            tried, self.tried = self.tried, None  # Its traceback refers to this iteration.
        if late:
            what = f"the draw took longer than {seconds:g} s"
            if self.generation is None:
                self.error = BackendTimeout(f"{what}: no reply by then")
                # What it was being tried again for would be lost otherwise.
                self.error.__cause__ = tried
            elif self.validating:
                self.error = RequirementError(f"{what}: its validation had not ended by then")
            else:
                names = ", ".join(call.name for call in self.generation.tool_calls)
                why = f"{what}: the tools it called had not answered by then ({names})"
                self.error = ToolError(why, tool=names)

    def _fail_on_stray_cancellation(self, exc: BaseException) -> None:
        what = "raised a cancellation that no one asked for"
        if self.validating:
            self.error = RequirementError(f"a validator {what}")
        else:
            self.error = BackendUnavailable(f"{type(self.call.inputs.backend).__name__} {what}")
        self.error.__cause__ = exc

    async def _attempt(self) -> None:  # noqa: C901, PLR0912, PLR0915 (the hot path: no calls for parts)
        call = self.call
        inputs = call.inputs
        messages = call.messages
        if (
            messages is None
            or self.action is not inputs.action
            or self.context is not inputs.context
        ):
            messages = tuple(self.action.render(self.context))
        self.messages = messages
        self.meter = meter = Meter()
        options = inputs.options
        if options.seed is not None:
            options = options.with_seed(derive_seed(options.seed, self.turn.iteration))
        tools = inputs.tools
        request = Request(
            messages,
            options,
            inputs.format,
            self.meta,
            meter,
            () if tools is None else tools.tools,
            None if tools is None else tools.choice,
        )
        SPENDS_ON.set(meter)
        on_failure = None if call.settings.iteration_timeout is None else self._try_again
        scheduler = call.recorder.scheduler
        send = call.sender.send
        if scheduler is not None and scheduler.restarts:
            send = partial(self._send_impatiently, scheduler)
        generation = await send(request, on_failure)
        if not isinstance(generation, Generation):
            checked_reply(inputs.backend, generation)
        if tools is not None:
            # Imported lazily: most programs don't need it.
            from mellea_like.sampling.tools import use_tools  # noqa: PLC0415

            self.inside = Meter()
            ask = partial(send, on_failure=on_failure)
            last = await use_tools(tools, self, request, generation, ask)
            if last is None:
                return
            generation = last
        candidate = self._read(generation)
        if candidate is None:
            return
        if self.inside is None:
            self.inside = Meter()
        SPENDS_ON.set(self.inside)
        self.validating = True
        if call.validation_observed:
            await self._validate_observed(candidate)
        else:
            verdicts, done = call.validation.begin(candidate, call.check_all)
            if not done:
                verdicts = await call.validation.finish(
                    verdicts, candidate, self._ask_judge, call.check_all
                )
            self._conclude(call.validation.requirements, verdicts)
        if call.mark is not None and self.outcome is _PASSED:
            try:
                answer: Any = call.mark(candidate)
                # Most are pairs, and to ask whether they can be awaited costs a microsecond.
                if not isinstance(answer, tuple) and isawaitable(answer):
                    within = BUDGETS.set(inputs.budgets)
                    asked = JUDGE_OPTIONS.set(call.settings.judge_options)
                    try:
                        answer = await answer
                    finally:
                        JUDGE_OPTIONS.reset(asked)
                        BUDGETS.reset(within)
                self.mark = answer
            except Exception as exc:  # noqa: BLE001 (a scorer's)
                self._unmarked(exc)

    async def _send_impatiently(
        self,
        scheduler: Scheduler,
        request: Request,
        on_failure: Callable[[Exception], None] | None,
    ) -> Generation:
        """Send a request, and another in its place where it takes too long for the schedule."""
        # Imported lazily: few schedules draw anew.
        from mellea_like.limits.budget import room_to_restart  # noqa: PLC0415

        call, meter, seed = self.call, request.meter, self.call.inputs.options.seed
        reply, restarts = None, 0
        while reply is None:
            seconds = scheduler.patience(self.chain, restarts, call.model)
            if seconds is not None and not room_to_restart(call.sender.backend, request):
                seconds = None  # Another draw would be refused, and this one be lost.
            began = anyio.current_time()
            scope = anyio.CancelScope(deadline=math.inf if seconds is None else began + seconds)
            request = replace(request, meter=meter.attempt())
            try:
                with scheduler.waiting_in(scope, self.chain), scope:
                    reply = checked_reply(
                        call.inputs.backend, await call.sender.send(request, on_failure)
                    )
            except anyio.get_cancelled_exc_class():
                # A backend may answer its cancellation with another, which no scope takes for its
                # own: the time was up all the same.
                if cancel_requested() or not scope.cancel_called:
                    raise
            finally:
                request.meter.finish(reply)
            if reply is None:
                restarts += 1
                scheduler.restarted(self.chain, anyio.current_time() - began, call.model)
                options = request.options
                if seed is not None:
                    # The same seed would be the same draw, which takes as long.
                    anew = derive_seed(seed, self.turn.iteration, f"restart {restarts}")
                    options = options.with_seed(anew)
                meta = replace(request.meta, retry=restarts)
                request = replace(request, meta=meta, options=options)
        return reply

    def _unmarked(self, exc: Exception) -> None:
        """Make this an errored iteration: the selection has no score or key of its candidate."""
        # Imported lazily: most programs don't need it.
        from mellea_like.selections.base import unjudged  # noqa: PLC0415

        requirement = unjudged(type(self.call.settings.selection).__name__)
        verdict = errored(requirement, exc)
        self._conclude((*self.requirements, requirement), (*self.verdicts, verdict))

    def _read(self, generation: Generation) -> Candidate | None:
        """Parse a reply; None where it isn't a whole answer, or does not parse."""
        call, inputs = self.call, self.call.inputs
        self.generation = generation
        if call.watched and generation.finish_reason == REJECTED and self._reject(generation):
            return None
        if (
            generation.finish_reason in INCOMPLETE
            or generation.tool_calls
            or generation.refusal is not None
            or not generation.text
            or generation.text.isspace()
        ) and (why := self.why_incomplete(generation)):
            self.fail(why)
            return None
        try:
            if generation.tool_calls and inputs.tools is not None:
                value = None  # It isn't an answer yet.
            elif inputs.format is None and not (generation.parsed or generation.value is not None):
                value = self.action.parse(generation.text)
            else:
                value = _given_value(generation, inputs.format)
        except ValueError as exc:
            self.fail(why_unread(exc))
            return None
        text = generation.text
        if value is not text and (value is not generation.value or value is None):
            self.generation = generation = Generation(
                text,
                value,
                generation.usage,
                generation.model,
                generation.finish_reason,
                parsed=True,
                logprobs=generation.logprobs,
                tool_calls=generation.tool_calls,
                refusal=generation.refusal,
                reasoning=generation.reasoning,
                extra=generation.extra,
            )
        seen = self.context if inputs.validation_context is None else inputs.validation_context
        return Candidate(text, value, generation, seen, self.action, self.rounds)

    def fail(self, reason: str) -> None:
        """Note that the reply isn't an answer that could be checked."""
        self.outcome, self.reason = _FAILED, reason

    def why_incomplete(self, reply: Generation) -> str:
        """Explain why a reply is not a whole answer; empty for one that is, or is accepted."""
        if self.call.settings.accept_incomplete:
            return ""
        inputs = self.call.inputs
        asked = (inputs.options, getattr(innermost(inputs.backend), "defaults", None))
        extras = [options.extra for options in asked if isinstance(options, Options)]
        tools = any(extra.get("tools") or extra.get("functions") for extra in extras)
        return why_incomplete(reply, tools=tools or inputs.tools is not None)

    def _reject(self, rejection: Generation) -> bool:
        """Conclude from the verdict of an incremental check, if that is what it is."""
        from mellea_like.sampling.early_rejection import EarlyRejection  # noqa: PLC0415

        if not isinstance(rejection, EarlyRejection):
            return False
        if rejection.unread:
            self.outcome, self.reason = _FAILED, rejection.unread
            return True
        self.validating = True
        if rejection.fault is not None:
            raise rejection.fault
        self._conclude(self.call.inputs.requirements, rejection.verdicts)
        return True

    async def _validate_observed(self, candidate: Candidate) -> None:
        call, validation = self.call, self.call.validation
        if HookType.VALIDATION_PRE_CHECK in call.events.hooks.types:
            wanted = await call.events.before_validation(
                self.turn, candidate, validation.requirements, call.inputs.judge
            )
            if len(wanted) > len(validation.requirements):
                validation = StagedValidation(wanted)
        span = nullcontext() if call.telemetry is None else call.telemetry.validation()
        with span:
            verdicts = await validation.check(candidate, self._ask_judge, call.check_all)
        self._conclude(validation.requirements, verdicts)
        if HookType.VALIDATION_POST_CHECK in call.events.hooks.types:
            await self._hear_objections(candidate)

    async def _hear_objections(self, candidate: Candidate) -> None:
        passed = self.outcome is _PASSED
        validations = tuple(zip(self.requirements, self.verdicts, strict=True))
        objection = await self.call.events.after_validation(
            self.turn, candidate, validations, passed=passed
        )
        if objection is not None:
            self.requirements = (*self.requirements, objection[0])
            self.verdicts = (*self.verdicts, objection[1])
            self.outcome = _FAILED

    async def _ask_judge(self, requirement: Requirement, candidate: Candidate) -> ValidationResult:
        """Ask a judge whether a candidate meets a requirement that has no validator."""
        # A backend that ignores its cancellation may reply after a sibling has won.
        await checkpoint_if_cancelled()
        call, inputs = self.call, self.call.inputs
        options, seed = call.settings.judge_options, inputs.options.seed
        if seed is not None:
            purpose = f"judge {requirement.name}"
            options = options.with_seed(derive_seed(seed, self.turn.iteration, purpose))
        # Imported lazily: most programs don't need it.
        from mellea_like.requirements.judge import judge_messages, read_verdict  # noqa: PLC0415

        meter = Meter()
        meta = replace(self.meta, purpose="judge")
        # What was sent, also by an action that renders otherwise the next time.
        sent = self.messages if inputs.validation_context is None else ()
        messages = judge_messages(requirement, candidate, sent)
        request = Request(messages, options, None, meta, meter)
        judge = inputs.judge if requirement.judge is None else requirement.judge
        model: str | None = options.model or getattr(judge, "model", None)
        if self.judged is None:
            self.judged = []
        position = len(self.judged)
        self.judged.append((meter, None, model))
        sender = Sender(judge, call.settings.retry, inputs.budgets, call.events, stage=call.stage)
        reply = checked_reply(judge, await sender.send(request))
        self.judged[position] = (meter, reply, model)
        if why := why_incomplete(reply):
            msg = f"the judge gave no verdict: {why}"
            raise ValueError(msg)
        return read_verdict(reply.text)

    def _try_again(self, error: Exception) -> None:
        self.tried = error

    def _conclude(
        self, requirements: tuple[Requirement, ...], verdicts: Sequence[ValidationResult]
    ) -> None:
        """Take the outcome from the verdicts: an error outweighs a failure."""
        self.requirements = requirements
        self.verdicts = tuple(verdicts)
        outcome = _PASSED
        for result in verdicts:
            status = result.status
            if status is _ERROR:
                self.error = result.error
                outcome = _ERRORED
                break
            if status is not _PASS:
                outcome = _FAILED
        self.outcome = outcome

    def _record(self) -> Slice:
        if self.error is not None and self.outcome is not _CANCELLED:
            self.outcome = _ERRORED
        call, generation = self.call, self.generation
        meter = self.meter
        asked = None if meter is None else meter.asked
        idle = (
            asked is None
            and self.judged is None
            and (self.inside is None or not self.inside.started)
        )
        checks = () if idle else self._check_usage(asked)
        usage = _NO_USAGE if meter is None else cost_of(meter, generation)
        if checks:
            own = usage if meter is None or asked is None else _split(meter, generation, asked)[0]
            usage = sum((spent for _, spent in checks), own)
        turn = self.turn
        return Slice(
            turn.iteration,
            turn.subsample,
            turn.depth,
            self.chain,
            self.action,
            self.context,
            self.messages,
            generation,
            self.requirements,
            self.verdicts,
            self.outcome,
            self.error,
            self.reason,
            self.started_at,
            call.clock() - call.started,
            usage,
            None if call.stage is None else call.stage.index,
            asked if generation is None and asked is not None else call.model,
            checks,
        )

    def _check_usage(self, asked: str | None) -> tuple[tuple[str | None, Usage], ...]:
        """Return the cost of checks and tools, and of models that failed first, by model."""
        spent: dict[str | None, Usage] = {}
        if asked is not None and self.meter is not None:
            spent.update(_split(self.meter, self.generation, asked)[1])
        for meter, reply, model in self.judged or ():
            answered = None if reply is None else reply.model
            own, others = _split(meter, reply, meter.asked)
            for name, cost in ((answered or meter.asked or model, own), *others):
                spent[name] = spent.get(name, _NO_USAGE) + cost
        for part in () if self.inside is None else self.inside.parts:
            # A call of a tool, validator or scorer tells its models apart; a request does not.
            by_model = getattr(part, "usage_by_model", None) or [(None, part.usage)]
            for name, cost in by_model:
                spent[name] = spent.get(name, _NO_USAGE) + cost
        return tuple((model, cost) for model, cost in spent.items() if cost != _NO_USAGE)


def _split(
    meter: Meter, reply: Generation | None, asked: str | None
) -> tuple[Usage, list[tuple[str | None, Usage]]]:
    """Return what the model that was asked last cost, and each that had been asked before it."""
    others = [pair for pair in meter.usage_by_model if pair[0] not in {None, asked}]
    own = sum((cost for model, cost in meter.usage_by_model if model in {None, asked}), _NO_USAGE)
    return (own if others else cost_of(meter, reply)), others


def _given_value(generation: Generation, wanted: Any) -> Any:
    """Return the value that the backend gave or the format asks for."""
    if wanted is None:
        return generation.value
    if generation.has_value:
        return parse_value(wanted, generation.value)
    return parse_reply(wanted, generation.text)
