"""One producer: a chain of iterations, each repairing the one before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import anyio

from mellea_like.core.action import is_action
from mellea_like.core.context import Context
from mellea_like.core.slice import Outcome, Slice
from mellea_like.errors import BackendError, MissingAnswer, RequirementError
from mellea_like.runtime.native import cancel_requested, split_cancellation
from mellea_like.sampling import events
from mellea_like.sampling.iteration import Iteration
from mellea_like.sampling.turns import turn_of

if TYPE_CHECKING:
    from mellea_like.core.action import Action
    from mellea_like.sampling.call import Call

__all__ = ["may_go_on", "produce"]


_FAILED = Outcome.FAILED

PATIENCE = 0.05
"""Seconds for which a subsample waits for its siblings at least."""

FEWEST = 2
"""An error must come twice at least to be the same again."""


async def produce(call: Call, chain: int, last: int) -> None:
    """Run one subsample to its end; what must end the whole call is handed to it, never raised.

    Args:
        call: the call.
        chain: the subsample's index.
        last: the last subsample to run after it, one after the other, while nothing has passed.
    """
    race = call.race
    race.under_way += 1
    broken = False
    try:
        with race.scope_of(chain):
            broken = await _run_chain(call, chain)
        while chain < last and not (race.stopping or race.passed):
            chain += 1
            with race.scope_of(chain):
                await _run_chain(call, chain)
    except BaseException as exc:
        cancellation, rest = split_cancellation(exc)
        if cancellation is not None and cancel_requested():
            race.cut_short = True
            # anyio leaves it in a cycle: the call's record shall not wait for the collector too.
            exc.__traceback__ = None
            raise
        # A backend may answer its cancellation with one of its own, which no scope takes for its.
        if cancellation is None or rest is not None or not race.was_cancelled(chain):
            call.abort(exc)  # It is raised again by the call, outside its task group.
    finally:
        race.ended(chain, broken=broken)
        del call, race


async def _run_chain(call: Call, chain: int) -> bool:  # noqa: C901, PLR0912 (one loop, the hot one)
    """Run the iterations of a chain; tell whether a permanent error ended it."""
    race, conductor = call.race, call.race.conductor
    action, context = call.plan.action, call.plan.context
    failed: list[Slice] = []
    to_repair: Slice | None = None
    turns = call.loop_budget
    for depth in range(turns):
        if conductor is None:
            turn = turn_of(chain, depth, turns)
        elif (granted := await conductor.turn_for(chain)) is not None:
            turn = granted
        else:
            return False
        if to_repair is not None and not race.stopping:
            failed.append(to_repair)
            action, context = _repaired(call, failed)
            if call.repairs_observed:
                await events.repaired(call, to_repair, action, context)
            to_repair = None
        if race.stopping or (race.ordered and not race.may_start(turn)):
            return False
        iteration = Iteration(call, turn, chain, action, context)
        try:
            await iteration.attempt()
        except BaseException as exc:  # noqa: BLE001 (it raises again what must leave)
            iteration.failed(exc)
        finally:
            slice_ = iteration.finish()
            if conductor is not None:
                conductor.recorded(slice_)
        if slice_.outcome is _FAILED:
            to_repair = slice_
            if call.tally is not None and (why := call.tally.add(slice_)):
                race.hopeless(why)
        elif slice_.passed or cancel_requested():
            return False  # A backend may make an error of its own of a cancellation.
        elif not may_go_on(slice_):
            return True
        elif slice_.verdicts and await _always_so(call, slice_):
            return False
    return False


async def _always_so(call: Call, slice_: Slice) -> bool:
    """Tell whether a validator has the same bug with every reply; then the call is stopped.

    Until that is known, a subsample waits for its siblings as long again as its draw took: each
    further draw would cost the same and lead to the same. An ordered call's subsample looks at its
    own slices only, and does not stop its siblings: what comes of them must not depend on timing.
    """
    from mellea_like.sampling.bugs import bug_of, times_seen  # noqa: PLC0415 (most calls have none)

    bug = bug_of(slice_)
    if bug is None:
        return False
    race = call.race
    if race.ordered:
        own = [other for other in race.slices if other.chain == slice_.chain]
        return times_seen(bug, own) >= FEWEST
    most = max(call.strategy.settings.concurrency_budget, FEWEST)
    before, times = 0, times_seen(bug, race.slices)
    with anyio.move_on_after(max(slice_.duration, PATIENCE)):
        # What a sibling has recorded was either the same once more, or something else.
        while before < times < most and race.siblings_at_work():
            await race.next_record()
            before, times = times, times_seen(bug, race.slices)
    if times >= most:
        race.hopeless(f"{bug}, with every reply ({times} so far)")
    return times >= most


def may_go_on(slice_: Slice) -> bool:
    """Tell whether a subsample may use its next turn after a slice that did not pass.

    Args:
        slice_: the slice.

    Returns:
        False after a permanent error: an error of a backend that is not retryable, or any exception
        that is neither a backend's nor a requirement's. What a verdict says went wrong, whatever it
        is, is a requirement's, but for a permanent error of the judge. An answer that is missing in
        a joint reply costs its turn only.
    """
    error = slice_.error
    if isinstance(error, RequirementError) and isinstance(error.__cause__, BackendError):
        return error.__cause__.retryable
    if error is None or slice_.verdicts or isinstance(error, RequirementError | MissingAnswer):
        return True
    return isinstance(error, BackendError) and error.retryable


def _repaired(call: Call, failed: list[Slice]) -> tuple[Action[Any], Context]:
    """Ask the strategy what to try next."""
    answer: object = call.strategy.repair(tuple(failed))
    if isinstance(answer, tuple) and len(pair := cast("tuple[object, ...]", answer)) == 2:  # noqa: PLR2004
        action, context = pair
        if isinstance(context, Context):
            first = failed[0].action
            if action is first:
                return first, context
            if is_action(action):
                return action, context
    msg = f"{type(call.strategy).__name__}.repair returned {answer!r}, not (Action, Context)"
    raise TypeError(msg)
