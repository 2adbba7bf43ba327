"""One draw: ask the model, read the reply, check it, and record the draw.

This code runs most often, so it avoids anything that takes more than a microsecond.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import anyio

from mellea_like.core.backend import CURRENT, Request, RequestMeta, checked_reply
from mellea_like.core.format import why_unread
from mellea_like.core.generation import INCOMPLETE, Generation, Meter, cost_of_draw, why_incomplete
from mellea_like.core.seeds import derive_seed
from mellea_like.core.slice import Outcome, Slice
from mellea_like.core.validation import Candidate, ValidationResult, ValidationStatus
from mellea_like.errors import BackendUnavailable, LimitExceeded, RequirementError
from mellea_like.kernel.ports import NotAnAnswer
from mellea_like.runtime.event_loops import first_in, split_cancellation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mellea_like.core.conversation import Message
    from mellea_like.core.requirement import Requirement
    from mellea_like.kernel.call import Call
    from mellea_like.kernel.ports import Ask

__all__ = ["Draw", "SurroundedDraw"]

# On Python 3.11, looking up a member takes ten times as long as a name.
_PASSED, _FAILED, _ERRORED, _CANCELLED = (
    Outcome.PASSED,
    Outcome.FAILED,
    Outcome.ERRORED,
    Outcome.CANCELLED,
)
_PASS, _ERROR = ValidationStatus.PASSED, ValidationStatus.ERRORED


class Draw:
    """A draw under way: everything known about it so far."""

    # Slots, set one by one: class-level defaults and a `__dict__` take 5 % more time.
    __slots__ = (
        *("call", "ask", "parts", "started_at", "meta", "messages", "rounds", "meter"),
        *("generation", "checking", "requirements", "verdicts", "tried"),
        *("outcome", "error", "reason", "_handled"),
    )

    def __init__(self, call: Call, ask: Ask, started_at: float) -> None:
        self.call = call
        self.ask = ask
        parts = call.parts
        self.parts = parts if parts is not None and parts.spec is ask.spec else call.parts_of(ask)
        self.started_at = started_at
        self.meta = RequestMeta(call.id, ask.iteration, ask.subsample, call.started, call.deadline)
        self.messages: tuple[Message, ...] = ()
        self.rounds: tuple[Message, ...] = ()
        """The tool calls that the draw has run, and their answers."""
        self.meter: Meter | None = None
        self.generation: Generation | None = None
        self.checking = False
        self.requirements: tuple[Requirement, ...] = ()
        self.verdicts: tuple[ValidationResult, ...] = ()
        self.tried: Exception | None = None
        """The error for which the draw's request is being retried; None if there is no retry."""
        self.outcome = _ERRORED
        self.error: BaseException | None = None
        self.reason = ""
        self._handled = False

    def _handle(self, error: BaseException) -> None:
        """Turn an exception into the outcome, or raise it again if the call must raise it."""
        self._handled = True
        if isinstance(error, NotAnAnswer):
            self.generation = error.reply or self.generation
            self.outcome, self.reason = _FAILED, str(error)
            if error.verdicts:
                self.set_verdicts(self.ask.spec.requirements, error.verdicts)
            return
        cancellation, self.error = split_cancellation(error)
        if cancellation is None:
            # What isn't an `Exception` is an interrupt.
            self.outcome = _ERRORED if isinstance(error, Exception) else _CANCELLED
            # Errors of checks are verdicts by now. The call must raise what still arrives here: by
            # ``on_error="raise"``, a bug in an option, an interrupt.
            if self.checking or self.outcome is _CANCELLED:
                raise error
            if isinstance(error, LimitExceeded) and error.result is None:
                # Nothing was sent and nothing went wrong: it was stopped before it began.
                # An option may have told the call already, which does no harm.
                self.outcome, self.error, self.reason = _CANCELLED, None, str(error)
                self.call.refused(error)
        elif self.call.race.asked_to_stop():
            self.outcome = _CANCELLED
            # A plain one: time limits absorb no group, and on trio no scope absorbs asyncio's.
            if isinstance(first := first_in(cancellation), anyio.get_cancelled_exc_class()):
                raise first
        else:
            self.outcome, self.error = _ERRORED, self._stray(error)

    def _stray(self, exc: BaseException) -> Exception:
        what = "raised a cancellation that no one asked for"
        error: Exception
        if self.checking:
            error = RequirementError(f"a validator {what}")
        else:
            error = BackendUnavailable(f"{type(self.ask.spec.backend).__name__} {what}")
        error.__cause__ = exc
        return error

    async def run(self) -> None:
        """Run the draw; raise only requested cancellations and errors that end the call."""
        meter = Meter()
        CURRENT.set((self.meta, meter))  # Never reset: the lane's task, or the call, does so.
        try:
            ask = self.ask
            spec, messages = ask.spec, self.parts.messages
            # The prompt is rendered once for all draws; a repair asks something else.
            if messages is None or ask.action is not spec.action or ask.context is not spec.context:
                messages = tuple(ask.action.render(ask.context))
            options = spec.options
            if options.seed is not None:
                options = options.with_seed(derive_seed(options.seed, ask.iteration))
            # Only now: a draw whose rendering fails has cost nothing.
            self.messages, self.meter = messages, meter
            request = Request(messages, options, spec.format, self.meta, meter)
            candidate = self.read(await self.parts.backend.generate(request))
            # The cost of requests that checks send from now on isn't part of the reply's cost.
            self.checking = meter.answered = True
            call, validation = self.call, self.parts.validation
            if call.check_options:
                self.set_verdicts(*await call.around_check(self, candidate))
                return
            # Not awaited: most checks are inline, and a coroutine would take as long as they do.
            verdicts, done = validation.begin(candidate, call.rules.check_all)
            if not done:
                verdicts = await validation.finish(verdicts, candidate, call.rules.check_all)
            self.set_verdicts(validation.requirements, verdicts)
        except BaseException as exc:  # noqa: BLE001 (it raises again what must leave)
            self._handle(exc)

    def read(self, reply: object) -> Candidate:
        """Make a candidate from a reply.

        Raises:
            NotAnAnswer: the reply is incomplete, or doesn't parse.
        """
        ask = self.ask
        spec = ask.spec
        self.generation = generation = checked_reply(spec.backend, reply)
        text = generation.text
        if (
            generation.finish_reason in INCOMPLETE
            or generation.tool_calls
            or generation.refusal is not None
            or not text
            or text.isspace()
        ) and (why := self.why_incomplete(generation)):
            raise NotAnAnswer(why)
        try:
            value = spec.value_of(generation, ask.action)
        except ValueError as exc:
            raise NotAnAnswer(why_unread(exc)) from exc
        # None may be the value that was parsed; only ``parsed`` tells it from no value.
        if value is not text and (value is not generation.value or value is None):
            self.generation = generation = replace(generation, value=value, parsed=True)
        seen = ask.context if spec.validation_context is None else spec.validation_context
        return Candidate(text, value, generation, seen, ask.action, self.rounds)

    def why_incomplete(self, reply: Generation) -> str:
        """Return why a reply is incomplete; empty if it isn't, or if the call accepts it anyway."""
        accepted = self.call.rules.accept_incomplete
        return "" if accepted else why_incomplete(reply, tools=self.ask.spec.offers_tools)

    def set_verdicts(
        self, requirements: tuple[Requirement, ...], verdicts: Sequence[ValidationResult]
    ) -> None:
        """Keep the verdicts, and derive the outcome; an error outweighs a failure."""
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

    # The record

    def record(self, ended_at: float) -> Slice:
        """Return the record of all that is known about the draw now; it may be asked twice."""
        self.tried = None  # Its traceback refers to this draw.
        ask, generation, meter = self.ask, self.generation, self.meter
        usage, asked, checks = cost_of_draw(meter, generation)
        return Slice(
            ask.iteration,
            ask.subsample,
            ask.depth,
            ask.chain,
            ask.action,
            ask.context,
            self.messages,
            generation,
            self.requirements,
            self.verdicts,
            self.outcome,
            self.error,
            self.reason,
            self.started_at,
            ended_at,
            usage,
            ask.stage,
            self.parts.model if asked is None else asked,
            checks,
        )


class SurroundedDraw(Draw):
    """A draw in a call that has options which wrap draws."""

    async def run(self) -> None:
        """Run the draw inside the options that wrap draws."""
        CURRENT.set((self.meta, CURRENT.get()[1]))
        try:
            await self.call.around_draw(self)
        except BaseException as exc:
            if self._handled:
                raise
            self._handle(exc)  # Of an option, before the draw itself began or after it.
