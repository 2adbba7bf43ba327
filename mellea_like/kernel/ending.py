"""Decide how a call ended: from its facts, the options' choice, and the best failure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from mellea_like.core.causes import caused_by, first_error
from mellea_like.core.result import StopReason
from mellea_like.core.slice import Outcome
from mellea_like.errors import HookError, SamplingFailed, SamplingTimeout
from mellea_like.kernel.ports import Choice, Stop

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mellea_like.core.decision import Decision
    from mellea_like.core.slice import Slice
    from mellea_like.kernel.ports import Facts

__all__ = ["Ending", "conclude", "first_passed"]

# On Python 3.11, looking up a member takes ten times as long as a name.
_PASSED = Outcome.PASSED


class Ending(NamedTuple):
    """How a call ended: the index of the winner or best failure, and why the call stopped."""

    best_index: int | None
    stop_reason: StopReason
    error: BaseException | None
    stop_detail: str = ""
    decision: Decision | None = None
    success: bool = False


def conclude(
    facts: Facts,
    choose: Callable[[Facts], Choice],
    best_failure: Callable[[Sequence[Slice]], int | None],
    *,
    sampling_id: str,
    fatal: BaseException | None = None,
    late: BaseException | None = None,
) -> Ending:
    """Decide how a call ended; a bug in an option or the strategy becomes the call's error.

    The call has to raise ``fatal`` in any case, and ``late`` only if it has no answer.
    """
    slices = facts.slices
    best, choice, bug = None, Choice(None, final=False), None
    try:
        if fatal is None:
            choice = choose(facts)
        if facts.cancelled and not choice.final:  # Whoever left gets only an answer that was final.
            choice = Choice(None, final=False)
        best = choice.place
        if best is None:
            best = best_failure(slices)
    except Exception as exc:  # noqa: BLE001 (the call raises it)
        bug = exc
    decision = choice.decision
    passed = bug is None and best is not None and slices[best].outcome is _PASSED
    success = passed and (decision is None or decision.complete)
    raised = late if fatal is None and not success else fatal
    if raised is not None:
        reason = StopReason.HOOK if isinstance(raised, HookError) else StopReason.ERROR
        return Ending(best, reason, raised, decision=decision)
    if facts.cancelled and not success:
        return Ending(best, StopReason.CANCELLED, None, decision=decision)
    if bug is not None:
        return Ending(None, StopReason.ERROR, bug)
    if success and choice.final:
        return Ending(best, StopReason.PASSED, None, "", decision, success=True)
    stopped = facts.stopped or choice.why or _stop_of_itself(facts, sampling_id)
    if success:
        return Ending(best, stopped.reason, None, stopped.detail, decision, success=True)
    return _without_an_answer(best, stopped, slices, sampling_id)._replace(decision=decision)


def first_passed(facts: Facts) -> Choice:
    """Choose the first slice that passed. This is the default if no option makes a choice."""
    for i, slice_ in enumerate(facts.slices):
        if slice_.outcome is _PASSED:
            return Choice(i, facts.won)
    return Choice(None, facts.won)


def _stop_of_itself(facts: Facts, sampling_id: str) -> Stop:
    """Return why a call ended if no ruling stopped it: a timeout, an error, or no attempts left."""
    if facts.timed_out:
        error = SamplingTimeout(
            f"sampling {sampling_id}: time ran out before any draw was judged;"
            " give the call a longer timeout"
        )
        return Stop(StopReason.TIMEOUT, "", error)
    return Stop(StopReason.ERROR if facts.broken else StopReason.EXHAUSTED, "")


def _without_an_answer(
    best: int | None, stopped: Stop, slices: Sequence[Slice], sampling_id: str
) -> Ending:
    """Decide how a call without an answer ended, if there is no error that it must raise."""
    if best is not None:
        return Ending(best, stopped.reason, None, stopped.detail)
    errors = [s.error for s in slices if s.error is not None]
    if not slices and stopped.error is None:
        unasked = f"sampling {sampling_id}: the schedule didn't let any draw start"
        return Ending(None, StopReason.ERROR, SamplingFailed(unasked))
    error = stopped.error
    if error is None:
        return Ending(None, StopReason.ERROR, first_error(errors, sampling_id))
    if errors and error.__cause__ is None:
        error = caused_by(error, errors[0])
    return Ending(None, stopped.reason, error, stopped.detail)
