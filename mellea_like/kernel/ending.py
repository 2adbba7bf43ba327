"""How a call ends: a pure decision over its slices."""

from __future__ import annotations

from operator import index
from typing import TYPE_CHECKING, Any, NamedTuple

from mellea_like.core.display import add_note, plural
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
_PASSED, _FAILED = Outcome.PASSED, Outcome.FAILED


class Ending(NamedTuple):
    """How a call ended: the position of the winner or the best failure, and why."""

    best_index: int | None
    stop_reason: StopReason
    error: BaseException | None
    stop_detail: str = ""
    decision: Decision | None = None
    success: bool = False


def conclude(
    facts: Facts,
    choose: Callable[[Facts], Choice],
    select_from_failure: Callable[[Sequence[Slice]], int],
    *,
    strategy: str,
    sampling_id: str,
    fatal: BaseException | None = None,
    late: BaseException | None = None,
) -> Ending:
    """Decide how a call ended; a bug in an option or the strategy becomes the call's error.

    The call has to raise ``fatal`` in any case, and ``late`` unless it has an answer.
    """
    slices = facts.slices
    best, choice, bug = None, Choice(None, final=False), None
    try:
        if fatal is None:
            choice = choose(facts)
        if facts.cancelled and not choice.final:
            choice = Choice(None, final=False)
        best = choice.place
        if best is None:
            best = _best_failure(slices, select_from_failure, strategy)
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
    stopped = facts.stopped or _stop_of_itself(facts, choice.hopeless, sampling_id)
    if success:
        return Ending(best, stopped.reason, None, stopped.detail, decision, success=True)
    return _without_an_answer(best, stopped, slices, sampling_id)._replace(decision=decision)


def first_passed(facts: Facts) -> Choice:
    """Choose the first slice that passed; used if no option makes a choice."""
    passed = (i for i, slice_ in enumerate(facts.slices) if slice_.outcome is _PASSED)
    return Choice(next(passed, None), facts.won)


def _stop_of_itself(facts: Facts, hopeless: str, sampling_id: str) -> Stop:
    """Find out why a call ended that was not stopped for a given reason."""
    if facts.timed_out:
        error = SamplingTimeout(
            f"sampling {sampling_id}: time ran out before any draw was judged;"
            " give the call a longer timeout"
        )
        return Stop(StopReason.TIMEOUT, "", error)
    if hopeless:
        return Stop(StopReason.HOPELESS, hopeless)
    return Stop(StopReason.ERROR if facts.broken else StopReason.EXHAUSTED, "")


def _without_an_answer(
    best: int | None, stopped: Stop, slices: Sequence[Slice], sampling_id: str
) -> Ending:
    """Decide how a call ended without an answer and without a fatal error."""
    if best is not None:
        return Ending(best, stopped.reason, None, stopped.detail)
    errors = [s.error for s in slices if s.error is not None]
    if not slices and stopped.error is None:
        unasked = f"sampling {sampling_id}: the schedule didn't let any draw start"
        return Ending(None, StopReason.ERROR, SamplingFailed(unasked))
    error = stopped.error
    if error is None:
        return Ending(None, StopReason.ERROR, _noted(errors, sampling_id))
    if errors and error.__cause__ is None:
        if _behind(errors[0], error):
            # A judge ran out of budget. Its error as its own cause would be a circle, so a second
            # one is raised.
            error = type(error)(stopped.detail)
        error.__cause__ = errors[0]
    return Ending(None, stopped.reason, error, stopped.detail)


def _behind(error: BaseException, other: BaseException) -> bool:
    """Return whether ``other`` is ``error`` or led to it; causes may form a circle."""
    seen: set[int] = set()
    ahead: list[BaseException | None] = [error]
    while ahead:
        exc = ahead.pop()
        if exc is other:
            return True
        if exc is not None and id(exc) not in seen:
            seen.add(id(exc))
            ahead += (exc.__cause__, exc.__context__)
    return False


def _best_failure(
    slices: Sequence[Slice],
    select_from_failure: Callable[[Sequence[Slice]], int],
    strategy: str,
) -> int | None:
    failed = [i for i, slice_ in enumerate(slices) if slice_.outcome is _FAILED]
    if not failed:
        return None
    chosen: Any = select_from_failure([slices[i] for i in failed])
    if isinstance(chosen, bool) or not hasattr(chosen, "__index__"):
        msg = f"{strategy}.select_from_failure returned {chosen!r}, not an int"
        raise TypeError(msg)
    position = index(chosen)
    if not 0 <= position < len(failed):
        msg = (
            f"{strategy}.select_from_failure returned {chosen}, which isn't a position among"
            f" {len(failed)} failed draws: 0 to {len(failed) - 1}"
        )
        raise ValueError(msg)
    return failed[position]


def _noted(errors: Sequence[BaseException], sampling_id: str) -> BaseException:
    """Return the first error with a note on what happened to the call."""
    if not errors:
        stopped = (
            f"sampling {sampling_id}: its draws were cancelled, although nobody cancelled the call"
        )
        return SamplingFailed(stopped)
    first = errors[0]
    count = plural(len(errors), "draw")
    add_note(
        first,
        f"sampling {sampling_id}: no draw was judged; {count} errored,"
        " and this was the first of the errors",
    )
    notes = first.__notes__  # Put the note about the call before those on where a validator raised.
    notes.insert(0, notes.pop())
    return first
