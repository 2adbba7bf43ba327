"""The record of one draw."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any

from mellea_like.core.connection_errors import connection_failed
from mellea_like.core.conversation import Context, Message, reply_message
from mellea_like.core.display import attempt_name, first_few, shown, with_reason
from mellea_like.core.generation import Usage
from mellea_like.core.records import record
from mellea_like.core.validation import ValidationStatus
from mellea_like.errors import BackendError, MissingAnswer, RequirementError, ToolError

if TYPE_CHECKING:
    from mellea_like.core.conversation import Action
    from mellea_like.core.generation import Generation
    from mellea_like.core.requirement import Requirement
    from mellea_like.core.tools import ToolCall
    from mellea_like.core.validation import ValidationResult

__all__ = ["Outcome", "Slice"]


class Outcome(StrEnum):
    """How a draw ended."""

    PASSED = "passed"
    """Every requirement was met."""
    FAILED = "failed"
    """A requirement was not met, or the reply was cut off, refused or empty, or didn't parse."""
    ERRORED = "errored"
    """The backend, a validator or a hook raised an exception."""
    CANCELLED = "cancelled"
    """Another draw won, time or a budget was used up, or the call was cancelled or interrupted."""


# On Python 3.11, looking up a member takes ten times as long as a name.
_PASSED, _MET = Outcome.PASSED, ValidationStatus.PASSED


@record(frozen=True, slots=True)
class Slice:
    """The record of one draw, from the prompt to the verdicts and the outcome.

    Args:
        iteration: the draw's id, 1-based and unique in the call. Ids aren't in the order of time.
        subsample: its lane, 0-based. The property ``lane`` counts from 1.
        depth: its place in that lane, 0-based. The property ``attempt`` counts from 1.
        chain: the index of its chain, 0-based. In a chain, each draw repairs the one before, or
            draws again. The index equals ``subsample``, unless the schedule or the selection let
            the chain use an attempt of another lane.
        action: the task, with its repairs.
        context: the conversation that the action continued.
        messages: the messages that were sent, empty if none were. They are the context and the
            prompt, followed by calls of ``read_only`` tools and their answers, round by round.
        generation: the output, or None if the backend gave none.
        requirements: the requirements that the output was checked against, in order; empty if it
            wasn't checked.
        verdicts: the verdict on each requirement, in the same order.
        outcome: how it ended.
        error: the exception behind an errored outcome; or, if the draw was cancelled, the
            interrupt (such as ``KeyboardInterrupt``) or the exception that it raised while it
            cleaned up; else None.
        reason: why there was no reply to check: it was cut off, refused or empty, it did not parse
            or broke a rule of its format, or a budget stopped the request. Otherwise empty.
        started_at: when it started, in seconds since the call began.
        ended_at: when it ended, in seconds since the call began.
        usage: its cost, including its judge calls.
        stage: the stage of an `Escalate` that made it, 0-based; None with other strategies.
        asked: the model that was asked last, if a plugin, the options or the backend name it.
        check_usage: the part of the usage that was not spent on the reply, as pairs of a model and
            its share. It includes judges, scorers, calls made by validators and tools, and the
            models that failed before a `FallbackBackend` got a reply. None if the slice was read
            from a record without this part.
    """

    iteration: int
    subsample: int
    depth: int
    chain: int
    action: Action[Any]
    context: Context
    messages: tuple[Message, ...]
    generation: Generation | None
    requirements: tuple[Requirement, ...]
    verdicts: tuple[ValidationResult, ...]
    outcome: Outcome
    error: BaseException | None = None
    reason: str = ""
    started_at: float = 0.0
    ended_at: float = 0.0
    usage: Usage = Usage()
    stage: int | None = None
    asked: str | None = None
    check_usage: tuple[tuple[str | None, Usage], ...] | None = ()

    def __repr__(self) -> str:
        name = attempt_name(self.attempt, self.lane)
        problems = shown("; ".join(self.problems)) if self.problems else ""
        parts = (str(self.outcome), shown(self.text), problems, self.error and shown(self.error))
        return f"<Slice: {name}, {', '.join(part for part in parts if part)}>"

    @property
    def attempt(self) -> int:
        """The draw's number among the ``loop_budget`` attempts of its lane, 1-based."""
        return self.depth + 1

    @property
    def lane(self) -> int:
        """The number of the draw's lane, 1-based."""
        return self.subsample + 1

    @property
    def validations(self) -> tuple[tuple[Requirement, ValidationResult], ...]:
        """Each requirement with the verdict on it, in the order of the requirements."""
        return tuple(zip(self.requirements, self.verdicts, strict=True))

    @property
    def passed(self) -> bool:
        """Whether every requirement was met."""
        return self.outcome is _PASSED

    @property
    def merit(self) -> tuple[float, float]:
        """How near the draw came to passing; more is better.

        It is a pair: the total weight of the requirements that were met, and the mean of the
        verdicts' scores (0 if there are none).
        """
        met = total = 0.0
        scored = i = 0
        for verdict in self.verdicts:
            if verdict.status is _MET:
                met += self.requirements[i].weight
            i += 1  # noqa: SIM113 (`enumerate` would take 1 % of a draw)
            score = verdict.score
            if score is not None:
                total += score
                scored += 1
        return met, total / scored if scored else 0.0

    @property
    def may_continue(self) -> bool:
        """Whether the draw's lane may draw again, that is, the draw has no permanent error.

        A permanent error is a backend's error that isn't retryable, or an exception that doesn't
        come from a backend, a connection, a requirement or a tool. A requirement's error is
        permanent only if it was caused by a permanent error of the judge. A `MissingAnswer`,
        raised if a joint reply lacks this draw's answer, is not permanent.
        """
        error = self.error
        if isinstance(error, RequirementError) and isinstance(error.__cause__, BackendError):
            return error.__cause__.retryable
        passing = RequirementError | MissingAnswer | ToolError
        if error is None or self.verdicts or isinstance(error, passing):
            return True
        return error.retryable if isinstance(error, BackendError) else connection_failed(error)

    @property
    def rounds(self) -> tuple[Message, ...]:
        """The calls of ``read_only`` tools in the draw, with their answers; empty if none ran."""
        sent, before = self.messages, self.context.messages
        asked = len(before) if sent[: len(before)] == before else 0
        end = len(sent)
        while True:
            begin = end
            while begin > asked and sent[begin - 1].role == "tool":
                begin -= 1
            begin -= 1  # The message with the calls.
            if begin <= asked or begin == end - 1 or not sent[begin].tool_calls:
                return sent[end:]
            end = begin

    @property
    def context_after(self) -> Context:
        """The whole conversation of the draw: the messages that were sent, and the output.

        After a repair, it contains the repair's text and, with some strategies, rejected replies;
        ``result.context`` has neither. Without an output, it equals the context.
        """
        if self.generation is None:
            return self.context
        before, sent = self.context.messages, self.messages
        n = len(before)
        reply = reply_message(self.generation)
        if n == 0 or (len(sent) >= n and sent[0] is before[0] and sent[n - 1] is before[-1]):
            return self.context.add(*sent[n:], reply)
        return Context((*sent, reply))

    @property
    def rank(self) -> tuple[int, int]:
        """The draw's place in ``selection="ordered"``, which ignores timing: (depth, subsample)."""
        return self.depth, self.subsample

    @property
    def model(self) -> str | None:
        """The model that answered, or else the one that was asked; None if neither is known."""
        answered = None if self.generation is None else self.generation.model
        return self.asked if answered is None else answered

    @property
    def usage_by_model(self) -> tuple[tuple[str | None, Usage], ...]:
        """The usage as pairs of a model and its cost: first for the reply, then for the checks."""
        checks = self.check_usage or ()
        own = self.usage - sum((spent for _, spent in checks), Usage())
        return ((self.model, own), *checks)

    @property
    def text(self) -> str:
        """The generated text; empty without an output."""
        return "" if self.generation is None else self.generation.text

    @property
    def value(self) -> Any:
        """The parsed value, or the text if nothing was parsed; None without an output."""
        if self.generation is None:
            return None
        return self.generation.value if self.generation.has_value else self.generation.text

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The tools that the output calls. If the draw ended normally, none of them has run."""
        return () if self.generation is None else self.generation.tool_calls

    @property
    def duration(self) -> float:
        """How long the draw took, in seconds."""
        return self.ended_at - self.started_at

    @property
    def failures(self) -> tuple[tuple[Requirement, ValidationResult], ...]:
        """The requirements that failed, with their verdicts, in order."""
        failed = ValidationStatus.FAILED
        return tuple(pair for pair in self.validations if pair[1].status is failed)

    @property
    def problems(self) -> tuple[str, ...]:
        """The reasons for the draw's failure, one for each problem.

        They are shortened for prompts and messages; ``verdicts`` has them in full.
        """
        if self.reason:
            return first_few((self.reason,))
        return first_few(
            with_reason(requirement.description, result.reason)
            for requirement, result in self.failures
        )
