"""One iteration: generate, parse, validate, and the record of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio

from mellea_like.core.backend import Request, RequestMeta
from mellea_like.core.context import Context
from mellea_like.core.current import ITERATION, IterationIds
from mellea_like.core.format import parse_json, parse_value
from mellea_like.core.generation import Generation, Meter, Usage
from mellea_like.core.message import Message
from mellea_like.core.requirement import Candidate, Requirement, ValidationResult, ValidationStatus
from mellea_like.core.slice import Outcome, Slice
from mellea_like.errors import BackendTimeout, BackendUnavailable, RequirementError
from mellea_like.hooks.types import HookType
from mellea_like.requirements.judge import judge_messages, read_verdict
from mellea_like.requirements.validate import validate
from mellea_like.runtime.native import cancel_requested
from mellea_like.sampling import events
from mellea_like.sampling.turns import derive_seed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mellea_like.core.action import Action
    from mellea_like.core.backend import Backend, Purpose
    from mellea_like.core.options import Options
    from mellea_like.sampling.call import Call
    from mellea_like.sampling.turns import Turn

__all__ = ["Iteration"]

_NO_USAGE = Usage()


class Iteration:
    """An iteration under way: what is known of it so far.

    Args:
        call: the call that it belongs to.
        turn: the turn that it spends.
        chain: the subsample that runs it.
        action: what is asked for.
        context: the conversation that it is asked in.
    """

    __slots__ = (
        "action",
        "call",
        "chain",
        "context",
        "context_after",
        "error",
        "generation",
        "meters",
        "outcome",
        "reason",
        "started_at",
        "turn",
        "validating",
        "validations",
    )

    def __init__(
        self, call: Call, turn: Turn, chain: int, action: Action[Any], context: Context
    ) -> None:
        self.call = call
        self.turn = turn
        self.chain = chain
        self.action = action
        self.context = context
        self.context_after = context
        self.generation: Generation | None = None
        self.validating = False
        self.validations: tuple[tuple[Requirement, ValidationResult], ...] = ()
        self.outcome = Outcome.ERRORED
        self.error: BaseException | None = None
        self.reason = ""
        self.meters: list[tuple[Meter, Generation | None]] = []
        self.started_at = call.now()

    async def run(self) -> Slice:
        """Run the iteration to its end and record it, in one step that nothing can interrupt.

        Returns:
            The record.

        Raises:
            BaseException: a cancellation that was asked for, an interrupt, or what must end the
                whole call; the record is complete by then.
        """
        call, turn = self.call, self.turn
        ITERATION.set(IterationIds(call.sampling_id, turn.iteration, turn.subsample))
        span = None
        if call.telemetry is not None:
            span = call.telemetry.iteration(turn.iteration, turn.subsample, turn.depth).open()
        try:
            if call.iteration_timeout is None:
                await self._attempt()
            else:
                await self._attempt_within(call.iteration_timeout)
        except anyio.get_cancelled_exc_class() as exc:
            if cancel_requested():
                self.outcome = Outcome.CANCELLED
                raise
            self._fail_on_stray_cancellation(exc)
        except Exception as exc:
            self.error = exc
            if self.validating:
                raise
        except BaseException as exc:
            self.error = exc
            raise
        finally:
            slice_ = self._record()
            call.record(slice_)
            if call.telemetry is not None:
                call.telemetry.ended(span, slice_)
        return slice_

    async def _attempt_within(self, seconds: float) -> None:
        with anyio.move_on_after(seconds) as scope:
            await self._attempt()
        if scope.cancelled_caught:
            self.outcome = Outcome.ERRORED
            what = f"iteration {self.turn.iteration} took longer than {seconds:g} s"
            self.error = (
                BackendTimeout(f"{what}: no reply by then")
                if self.generation is None
                else RequirementError(f"{what}: its validation had not ended by then")
            )

    def _fail_on_stray_cancellation(self, exc: BaseException) -> None:
        self.outcome = Outcome.ERRORED
        self.error = BackendUnavailable(
            f"iteration {self.turn.iteration}: {type(self.call.plan.backend).__name__} raised a"
            " cancellation that no one asked for"
        )
        self.error.__cause__ = exc

    async def _attempt(self) -> None:
        plan = self.call.plan
        messages = tuple(self.action.render(self.context))
        generation = await self._request(self.call.backend, messages, plan.options, "generate")
        self.generation = generation
        reply = Message("assistant", generation.text)
        self.context_after = _extended(self.context, messages, reply)
        try:
            value = self._parse(generation)
        except ValueError as exc:
            self.outcome = Outcome.FAILED
            self.reason = str(exc) or type(exc).__name__
            return
        if value is not generation.value:
            generation = Generation(
                generation.text, value, generation.usage, generation.model, generation.finish_reason
            )
            self.generation = generation
        seen = self.context if plan.validation_context is None else plan.validation_context
        self.validating = True
        await self._validate(Candidate(generation.text, value, generation, seen, self.action))

    async def _request(
        self,
        backend: Backend,
        messages: tuple[Message, ...],
        options: Options,
        purpose: Purpose,
    ) -> Generation:
        call, turn = self.call, self.turn
        meter = Meter()
        meta = RequestMeta(
            call.sampling_id,
            turn.iteration,
            turn.subsample,
            call.started,
            call.deadline,
            purpose,
        )
        if options.seed is not None:
            options = options.with_seed(derive_seed(options.seed, turn.iteration, purpose))
        wanted = call.plan.format if purpose == "generate" else None
        position = len(self.meters)
        self.meters.append((meter, None))
        generation = await backend.generate(Request(messages, options, wanted, meta, meter))
        if not isinstance(generation, Generation):
            msg = (
                f"{type(call.plan.backend).__name__}.generate returned"
                f" {type(generation).__name__}, not a Generation"
            )
            raise TypeError(msg)
        self.meters[position] = (meter, generation)
        return generation

    def _parse(self, generation: Generation) -> Any:
        wanted = self.call.plan.format
        if wanted is None:
            if generation.value is not None:
                return generation.value
            return self.action.parse(generation.text)
        if generation.value is not None:
            return parse_value(wanted, generation.value)
        return parse_json(wanted, generation.text)

    async def _validate(self, candidate: Candidate) -> None:
        call = self.call
        requirements = call.plan.requirements
        if HookType.VALIDATION_PRE_CHECK in call.hooks:
            requirements = await events.before_validation(call, self.turn, candidate, requirements)
        if requirements:
            if call.telemetry is None:
                verdicts = await self._verdicts(requirements, candidate)
            else:
                with call.telemetry.validation():
                    verdicts = await self._verdicts(requirements, candidate)
            self.validations = tuple(zip(requirements, verdicts, strict=True))
            self.outcome = self._judged()
        else:
            self.outcome = Outcome.PASSED
        if HookType.VALIDATION_POST_CHECK in call.hooks:
            objection = await events.after_validation(
                call,
                self.turn,
                candidate,
                self.validations,
                passed=self.outcome is Outcome.PASSED,
            )
            if objection is not None:
                self.validations = (*self.validations, objection)
                self.outcome = Outcome.FAILED

    async def _verdicts(
        self, requirements: Sequence[Requirement], candidate: Candidate
    ) -> tuple[ValidationResult, ...]:
        return await validate(
            requirements, candidate, judge=self._ask_judge, check_all=self.call.check_all
        )

    async def _ask_judge(self, requirement: Requirement, candidate: Candidate) -> ValidationResult:
        judge = self.call.judge_for(requirement)
        reply = await self._request(
            judge, judge_messages(requirement, candidate), self.call.judge_options, "judge"
        )
        return read_verdict(reply.text)

    def _judged(self) -> Outcome:
        """The outcome of the verdicts: an error outweighs a failure."""
        outcome = Outcome.PASSED
        for _, result in self.validations:
            if result.status is ValidationStatus.ERRORED:
                self.error = result.error
                return Outcome.ERRORED
            if not result.passed:
                outcome = Outcome.FAILED
        return outcome

    def _record(self) -> Slice:
        if self.error is not None and self.outcome is not Outcome.CANCELLED:
            self.outcome = Outcome.ERRORED
        return Slice(
            self.turn.iteration,
            self.turn.subsample,
            self.turn.depth,
            self.chain,
            self.action,
            self.context,
            self.context_after,
            self.generation,
            self.validations,
            self.outcome,
            self.error,
            self.reason,
            self.started_at,
            self.call.now(),
            self._usage(),
        )

    def _usage(self) -> Usage:
        if len(self.meters) == 1:
            return _cost(*self.meters[0])
        return sum((_cost(meter, reply) for meter, reply in self.meters), _NO_USAGE)


def _cost(meter: Meter, reply: Generation | None) -> Usage:
    """What a request cost, for backends that keep the meter and for those that don't."""
    if meter.started:
        return meter.usage
    if reply is None:
        return Usage(requests=1, unknown=1)
    return reply.usage if reply.usage.requests else Usage(requests=1, unknown=1)


def _extended(context: Context, sent: tuple[Message, ...], reply: Message) -> Context:
    """Return a conversation with what was sent in it and the reply, sharing it as the prefix."""
    before = context.messages
    n = len(before)
    if n == 0 or (len(sent) >= n and sent[0] is before[0] and sent[n - 1] is before[-1]):
        return context.add(*sent[n:], reply)
    return Context((*sent, reply))
