"""Payloads of hooks: one frozen model for each hook type."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict
from pydantic_core import CoreSchema, core_schema

from mellea_like.core.backend import Options, Purpose
from mellea_like.core.conversation import Action, Context, Message
from mellea_like.core.decision import Decision
from mellea_like.core.generation import Generation, Usage
from mellea_like.core.requirement import Requirement
from mellea_like.core.result import StopReason
from mellea_like.core.slice import Slice
from mellea_like.core.validation import Candidate, ValidationResult
from mellea_like.hooks.types import HookType

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "GenerationErrorPayload",
    "GenerationPostCallPayload",
    "GenerationPreCallPayload",
    "Payload",
    "SamplingIterationPayload",
    "SamplingLoopEndPayload",
    "SamplingLoopStartPayload",
    "SamplingRepairPayload",
    "ValidationPostCheckPayload",
    "ValidationPreCheckPayload",
]

T = TypeVar("T")


class _AsItIs:
    """Any object, neither checked nor copied."""

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, _handler: Any) -> CoreSchema:
        return core_schema.any_schema()


class _Instance:
    """An instance of the annotated class, not copied; its fields' types are not looked at."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, _handler: Any) -> CoreSchema:
        return core_schema.is_instance_schema(source)


Is = Annotated[T, _Instance]


class Payload(BaseModel):
    """The fields that every payload has.

    A sequential handler may return ``payload.model_copy(update={...})`` with new values for the
    fields that the class names in ``writable``; a change of any other field is an error.

    Attributes:
        sampling_id: the call's id.
        strategy: the name of the strategy's class.
        iteration: the iteration's id, 1-based; None outside one. Ids aren't monotonic in time: with
            several subsamples, iteration 4 may end before iteration 1.
        subsample: the subsample's index, 0-based; None outside one.
    """

    model_config = ConfigDict(
        frozen=True, defer_build=True, extra="forbid", arbitrary_types_allowed=True
    )

    hook: ClassVar[HookType]
    writable: ClassVar[frozenset[str]] = frozenset()

    sampling_id: str
    strategy: str
    iteration: int | None = None
    subsample: int | None = None


class SamplingLoopStartPayload(Payload):
    """Before the first turn.

    Attributes:
        action: the request.
        context: the conversation so far.
        requirements: the conditions that each slice must meet, in order.
        loop_budget: turns of each subsample; may be changed, to an int of at least 1 with
            ``loop_budget * concurrency_budget`` within the strategy's ``max_iterations``.
        concurrency_budget: number of subsamples.
    """

    hook = HookType.SAMPLING_LOOP_START
    writable = frozenset({"loop_budget"})

    action: Annotated[Action[Any], _AsItIs]
    context: Is[Context]
    requirements: tuple[Is[Requirement], ...]
    loop_budget: int
    concurrency_budget: int


class GenerationPreCallPayload(Payload):
    """Before each request to a backend.

    Attributes:
        purpose: ``"generate"`` or ``"judge"``.
        retry: how often this request was tried before.
        messages: the conversation to be sent.
        options: how to generate; may be changed.
        model: the model's name, where it is known.
    """

    hook = HookType.GENERATION_PRE_CALL
    writable = frozenset({"options"})

    purpose: Purpose
    retry: int
    messages: tuple[Is[Message], ...]
    options: Is[Options]
    model: str | None


class GenerationPostCallPayload(Payload):
    """After each request that was answered.

    Attributes:
        purpose: ``"generate"`` or ``"judge"``.
        retry: how often this request was tried before.
        generation: the reply.
        usage: the cost of the request.
        duration: how long it took, in seconds.
    """

    hook = HookType.GENERATION_POST_CALL

    purpose: Purpose
    retry: int
    generation: Is[Generation]
    usage: Is[Usage]
    duration: float


class GenerationErrorPayload(Payload):
    """After each request that failed.

    Attributes:
        purpose: ``"generate"`` or ``"judge"``.
        retry: how often this request was tried before.
        error: the error.
        usage: the cost of the request, as far as it is known.
        duration: how long it took, in seconds.
    """

    hook = HookType.GENERATION_ERROR

    purpose: Purpose
    retry: int
    error: Is[BaseException]
    usage: Is[Usage]
    duration: float


class ValidationPreCheckPayload(Payload):
    """Before a slice is validated.

    Attributes:
        candidate: the reply to validate.
        requirements: what it must meet; more may be added, none is ever dropped.
    """

    hook = HookType.VALIDATION_PRE_CHECK
    writable = frozenset({"requirements"})

    candidate: Is[Candidate]
    requirements: tuple[Is[Requirement], ...]


class ValidationPostCheckPayload(Payload):
    """After a slice was validated.

    Attributes:
        candidate: the reply that was validated.
        validations: each requirement with the verdict on it.
        passed: whether the slice passes; a pass may be turned into a failure, not the reverse.
        reason: why it was turned into a failure; goes into the next attempt's prompt.
    """

    hook = HookType.VALIDATION_POST_CHECK
    writable = frozenset({"passed", "reason"})

    candidate: Is[Candidate]
    validations: tuple[tuple[Is[Requirement], Is[ValidationResult]], ...]
    passed: bool
    reason: str = ""


class SamplingRepairPayload(Payload):
    """After the strategy chose what to ask next.

    Attributes:
        failed: the slice to repair.
        action: the next request.
        context: the conversation that it is asked in.
    """

    hook = HookType.SAMPLING_REPAIR

    failed: Is[Slice]
    action: Annotated[Action[Any], _AsItIs]
    context: Is[Context]


class SamplingIterationPayload(Payload):
    """Once for each slice, in the order recorded.

    Attributes:
        slice: the record of the iteration.
    """

    hook = HookType.SAMPLING_ITERATION

    slice: Is[Slice]


class SamplingLoopEndPayload(Payload):
    """Once, at the end.

    Attributes:
        slices: the record of each iteration that started.
        success: whether there is an answer: a slice has won; with ``Collect(k)``, k did. False if
            the call raises, or its caller left before that.
        best: the winner, else the best failure; None if no slice was judged.
        error: the error that the call raises, or None.
        iterations_used: slices that finished validation.
        stop_reason: why the call stopped.
        decision: the decision of the selection, as in the result; or None.
        started: when the call began (UTC).
        elapsed: how long it took, in seconds.
    """

    hook = HookType.SAMPLING_LOOP_END

    slices: tuple[Is[Slice], ...]
    success: bool
    best: Is[Slice] | None
    error: Is[BaseException] | None
    iterations_used: int
    stop_reason: StopReason
    decision: Is[Decision] | None
    started: datetime
    elapsed: float


def build(hooks: Iterable[HookType]) -> None:
    """Make the models of some hooks ready."""
    # pydantic does it at a model's first use otherwise, and reads files: not on an event loop.
    wanted = set(hooks)
    for payload in Payload.__subclasses__():
        if payload.hook in wanted:
            payload.model_rebuild()


PAYLOADS = {kind.hook: kind for kind in Payload.__subclasses__()}
"""The payload of each hook."""
