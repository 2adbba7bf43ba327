"""Payloads of hooks: one frozen model for each hook type."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, SkipValidation
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


class _Instance:
    """Makes pydantic check only the class of an object in a field, and not copy it."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, _handler: Any) -> CoreSchema:
        return core_schema.is_instance_schema(source)


Is = Annotated[T, _Instance]


class Payload(BaseModel):
    """Base class of the payloads that handlers get, with the fields that all of them have.

    A sequential handler may return ``payload.model_copy(update={...})`` with new values for the
    fields that the class names in ``writable``; a change of any other field is an error.

    Attributes:
        sampling_id: the call's id.
        strategy: the name of the strategy's class.
        iteration: the draw's id, 1-based; None outside a draw. Ids aren't monotonic in time: with
            several lanes, iteration 4 may end before iteration 1.
        subsample: the index of the lane, 0-based; None outside a draw.
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
    """Passed to handlers before the first draw.

    Attributes:
        action: the task.
        context: the conversation so far.
        requirements: the requirements of each draw, in order.
        loop_budget: the number of attempts of each lane. A handler may change it to an int of at
            least 1, as long as ``loop_budget * concurrency_budget`` is within the strategy's
            ``max_iterations``.
        concurrency_budget: the number of lanes.
    """

    hook = HookType.SAMPLING_LOOP_START
    writable = frozenset({"loop_budget"})

    action: SkipValidation[Action[Any]]
    context: Is[Context]
    requirements: tuple[Is[Requirement], ...]
    loop_budget: int
    concurrency_budget: int


class GenerationPreCallPayload(Payload):
    """Passed to handlers before each request to a backend.

    Attributes:
        purpose: ``"generate"`` or ``"judge"``.
        retry: how many times this request was tried before.
        messages: the conversation to be sent.
        options: the options for generating; handlers may change them.
        model: the model's name, if it is known.
    """

    hook = HookType.GENERATION_PRE_CALL
    writable = frozenset({"options"})

    purpose: Purpose
    retry: int
    messages: tuple[Is[Message], ...]
    options: Is[Options]
    model: str | None


class GenerationPostCallPayload(Payload):
    """Passed to handlers after each request that was answered.

    Attributes:
        purpose: ``"generate"`` or ``"judge"``.
        retry: how many times this request was tried before.
        generation: the reply.
        usage: the cost of the request.
        duration: how long the request took, in seconds.
    """

    hook = HookType.GENERATION_POST_CALL

    purpose: Purpose
    retry: int
    generation: Is[Generation]
    usage: Is[Usage]
    duration: float


class GenerationErrorPayload(Payload):
    """Passed to handlers after each request that failed.

    Attributes:
        purpose: ``"generate"`` or ``"judge"``.
        retry: how many times this request was tried before.
        error: the error.
        usage: the cost of the request, as far as it is known.
        duration: how long the request took, in seconds.
    """

    hook = HookType.GENERATION_ERROR

    purpose: Purpose
    retry: int
    error: Is[BaseException]
    usage: Is[Usage]
    duration: float


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


class SamplingRepairPayload(Payload):
    """Passed to handlers after a failed draw, when the strategy has chosen what to ask next.

    Attributes:
        failed: the record of the draw to repair.
        action: the next task.
        context: the conversation in which it is asked.
    """

    hook = HookType.SAMPLING_REPAIR

    failed: Is[Slice]
    action: SkipValidation[Action[Any]]
    context: Is[Context]


class SamplingIterationPayload(Payload):
    """Passed to handlers after each draw, in the order in which draws were recorded.

    Attributes:
        slice: the record of the draw.
    """

    hook = HookType.SAMPLING_ITERATION

    slice: Is[Slice]


class SamplingLoopEndPayload(Payload):
    """Passed to handlers once, at the end of the call.

    Attributes:
        slices: the record of each draw that started.
        success: whether there is an answer: a draw has won, or k draws with ``Collect(k)``. False
            if the call raises, or if its caller was cancelled before there was an answer.
        best: the winner, else the best failure; None if no draw was judged.
        error: the error that the call raises, or None.
        iterations_used: the number of draws that finished validation.
        stop_reason: why the call stopped.
        decision: the selection's decision, as in the result; None if it made none.
        started: when the call began (UTC).
        elapsed: how long the call took, in seconds.
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


PAYLOADS = {kind.hook: kind for kind in Payload.__subclasses__()}
"""Maps each hook to the class of its payloads."""
