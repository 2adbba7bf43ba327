"""What is fixed for the length of a call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mellea_like.core.conversation import Action, Context, Message
    from mellea_like.core.slice import Slice
    from mellea_like.requirements.checklist import Checklist
    from mellea_like.sampling.events import Events
    from mellea_like.sampling.giving_up import Tally
    from mellea_like.sampling.prepare import Plan
    from mellea_like.sampling.recorder import Recorder
    from mellea_like.sampling.sender import Sender
    from mellea_like.sampling.settings import Settings
    from mellea_like.telemetry.call import CallTelemetry

__all__ = ["CallContext"]


class CallContext(NamedTuple):
    """What the iterations of one call go by, and whom they report to.

    Attributes:
        sampling_id: the call's id.
        plan: what the call does.
        settings: the strategy's configuration.
        repair: the strategy's choice of what to ask after a failure.
        recorder: takes the records, and stops the call.
        events: tells plugins.
        telemetry: records spans and metrics; None where nobody listens.
        sender: sends requests to the generating backend.
        checklist: the requirements.
        check_all: whether all of them are checked, also after one has failed.
        watched: whether their incremental checks look at replies.
        validation_observed: whether a plugin or telemetry looks at validations.
        tally: counts failures, where a rule says when to give up.
        messages: what the plan's action asks in the plan's context, where that is known beforehand.
        clock: the event loop's.
        started: when the call began, on that clock.
        deadline: when its time is up, on that clock; None for no limit.
    """

    sampling_id: str
    plan: Plan
    settings: Settings
    repair: Callable[[Sequence[Slice]], tuple[Action[Any], Context]]
    recorder: Recorder
    events: Events
    telemetry: CallTelemetry | None
    sender: Sender
    checklist: Checklist
    check_all: bool
    watched: bool
    validation_observed: bool
    tally: Tally | None
    messages: tuple[Message, ...] | None
    clock: Callable[[], float]
    started: float
    deadline: float | None
