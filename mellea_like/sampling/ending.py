"""How a call ends: a pure decision over its slices."""

from __future__ import annotations

from dataclasses import replace
from operator import index
from typing import TYPE_CHECKING, Any, NamedTuple

from mellea_like.core.decision import Decision
from mellea_like.core.display import add_note, error_text, plural
from mellea_like.core.generation import Usage
from mellea_like.core.result import StopReason
from mellea_like.core.slice import Outcome, Slice
from mellea_like.errors import HookError, SamplingFailed, SamplingTimeout

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mellea_like.errors import MelleaError
    from mellea_like.sampling.prepare import CheckedSelection
    from mellea_like.selections.base import SelectionState

__all__ = ["Ending", "Stop", "conclude", "first_passed"]

# On Python 3.11, to look a member up takes ten times as long as a name.
_PASSED, _FAILED = Outcome.PASSED, Outcome.FAILED


class Stop(NamedTuple):
    """Why a call was stopped early; its error is raised if no slice was judged."""

    reason: StopReason
    detail: str
    error: MelleaError | None = None


class Ending(NamedTuple):
    """How a call ended: the position of the winner or the best failure, and why."""

    best_index: int | None
    stop_reason: StopReason
    error: BaseException | None
    stop_detail: str = ""
    decision: Decision | None = None
    success: bool = False


def conclude(
    slices: Sequence[Slice],
    *,
    selection: CheckedSelection,
    selected: SelectionState | None = None,
    select_from_failure: Callable[[Sequence[Slice]], int],
    strategy: str,
    sampling_id: str,
    won: bool = False,
    fatal: BaseException | None = None,
    late: BaseException | None = None,
    timed_out: bool = False,
    stopped: Stop | None = None,
    broken: bool = False,
    cancelled: bool = False,
) -> Ending:
    """Decide how a call ended; a bug in the selection or the strategy is its error.

    ``won``, ``fatal``, ``late``, ``timed_out``, ``stopped`` and ``broken`` are as in `Recorder`.
    """
    ordered = selection == "ordered"
    # A pass of an ordered call is beaten by one of a lower rank, if there is time for that.
    decided = won and not (ordered and (cancelled or timed_out or stopped is not None))
    bug: Exception | None = None
    decision: Decision | None = None
    may_win = fatal is None and (decided or not cancelled)
    best = first_passed(slices, ordered=ordered) if may_win else None
    try:
        if may_win and selected is not None:
            decision = _decision(selected, slices, stopped, timed_out=timed_out, broken=broken)
        if best is None:
            best = _best_failure(slices, select_from_failure, strategy)
        elif decision is not None:
            best = _place_of_winner(decision, slices)
    except Exception as exc:  # noqa: BLE001 (a bug in the selection or strategy: the call raises it)
        bug = exc
    success = bug is None and _is_answer(best, slices, decision)
    raised = late if fatal is None and not success else fatal
    if raised is not None:
        reason = StopReason.HOOK if isinstance(raised, HookError) else StopReason.ERROR
        return Ending(best, reason, raised, decision=decision)
    if cancelled and not success:
        return Ending(best, StopReason.CANCELLED, None, decision=decision)
    if bug is not None:
        return Ending(None, StopReason.ERROR, bug)
    if success and decided:
        return Ending(best, StopReason.PASSED, None, "", decision, success=True)
    stopped = stopped or _stop_of_itself(selected, sampling_id, timed_out=timed_out, broken=broken)
    if success:
        return Ending(best, stopped.reason, None, stopped.detail, decision, success=True)
    return _without_an_answer(best, stopped, slices, sampling_id)._replace(decision=decision)


def first_passed(slices: Sequence[Slice], *, ordered: bool) -> int | None:
    """Find the first slice that passed: the first recorded, or of the lowest rank if ordered."""
    passed = (i for i, slice_ in enumerate(slices) if slice_.outcome is _PASSED)
    if ordered:
        return min(passed, key=lambda i: slices[i].rank, default=None)
    return next(passed, None)


def _decision(
    selected: SelectionState,
    slices: Sequence[Slice],
    stopped: Stop | None,
    *,
    timed_out: bool,
    broken: bool,
) -> Decision:
    """Ask a selection among the slices that passed; if none has, say so in its place."""
    if selected.passed:
        decision = selected.decide()
    else:
        none = f"none of {plural(len(slices), 'draw')} passed"
        decision = Decision(
            selected.kind, (), none, complete=False, abstentions=selected.abstentions
        )
    if not isinstance(decision, Decision) or (decision.complete and not decision.winners):
        msg = f"the selection decided {decision!r}, not a Decision with a winner"
        raise TypeError(msg)
    reason = decision.reason
    if not reason or not decision.complete:
        ended = "an error ended a lane" if broken else "all attempts are spent"
        if timed_out:
            ended = "the time was up"
        ended = selected.reason or ended
        if stopped is not None and stopped.detail:
            ended = stopped.detail
        reason = f"{reason}: {ended}" if reason else ended
    elif selected.usage == Usage() and not selected.errors:
        return decision
    return replace(
        decision,
        reason=reason,
        usage=selected.usage,
        errors=tuple(error_text(error) for error in selected.errors),
        model=selected.model,
    )


def _place_of_winner(decision: Decision, slices: Sequence[Slice]) -> int | None:
    """Find the winner; if there is none, the answer in front, or else the first that passed."""
    places = {slice_.iteration: i for i, slice_ in enumerate(slices) if slice_.passed}
    if unknown := [winner for winner in decision.winners if winner not in places]:
        msg = f"the selection decided for iterations {unknown}, which have not passed"
        raise ValueError(msg)
    ahead = decision.winners or tuple(answer.iteration for answer in decision.answers)
    return places[ahead[0]] if ahead else first_passed(slices, ordered=False)


def _is_answer(best: int | None, slices: Sequence[Slice], decision: Decision | None) -> bool:
    passed = best is not None and slices[best].passed
    return passed and (decision is None or decision.complete)


def _stop_of_itself(
    selected: SelectionState | None, sampling_id: str, *, timed_out: bool, broken: bool
) -> Stop:
    """Return why a call ended that nobody stopped."""
    if timed_out:
        return Stop(StopReason.TIMEOUT, "", _late(sampling_id))
    if selected is not None and selected.reason and selected.wanted():
        return Stop(StopReason.HOPELESS, selected.reason)  # No answer can win any more.
    return Stop(StopReason.ERROR if broken else StopReason.EXHAUSTED, "")


def _without_an_answer(
    best: int | None, stopped: Stop, slices: Sequence[Slice], sampling_id: str
) -> Ending:
    """Decide how a call ended that has no answer, and that nothing ended by force."""
    errors = [s.error for s in slices if s.error is not None]
    if not slices and stopped.error is None:
        unasked = f"sampling {sampling_id}: the schedule let no draw start"
        return Ending(None, StopReason.ERROR, SamplingFailed(unasked))
    if best is None and stopped.error is None:
        return Ending(None, StopReason.ERROR, _noted(errors, sampling_id))
    error = None if best is not None else stopped.error
    if error is not None and errors and error.__cause__ is None:
        if _behind(errors[0], error):
            # A judge ran out of budget: chaining its error to itself would make a circle, so a
            # second one is raised.
            error = type(error)(stopped.detail)
        error.__cause__ = errors[0]
    return Ending(best, stopped.reason, error, stopped.detail)


def _behind(error: BaseException, other: BaseException) -> bool:
    """Tell whether one exception came of another: causes in a circle have no end."""
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


def _late(sampling_id: str) -> SamplingTimeout:
    return SamplingTimeout(
        f"sampling {sampling_id}: time ran out before any draw was judged;"
        " give the call a longer timeout"
    )


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
        stopped = f"sampling {sampling_id}: its draws were cancelled, though nobody left"
        return SamplingFailed(stopped)
    first = errors[0]
    count = plural(len(errors), "draw")
    add_note(
        first,
        f"sampling {sampling_id}: no draw was judged; {count} errored,"
        " and this was the first error",
    )
    notes = first.__notes__  # Put the note about the call before those on where a validator raised.
    notes.insert(0, notes.pop())
    return first
