"""One producer: a chain of iterations, each repairing the one before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, cast

from mellea_like.core.conversation import Context, is_action
from mellea_like.core.slice import Outcome, Slice
from mellea_like.core.validation import ValidationStatus
from mellea_like.errors import BackendError, MissingAnswer, RequirementError
from mellea_like.hooks.types import HookType
from mellea_like.requirements.checklist import line_of
from mellea_like.runtime.event_loops import cancel_requested, split_cancellation
from mellea_like.sampling.iteration import Iteration, turn_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mellea_like.core.conversation import Action
    from mellea_like.core.requirement import Requirement
    from mellea_like.sampling.recorder import CallContext

__all__ = ["bug_of", "may_go_on", "produce", "times_seen"]


_FAILED = Outcome.FAILED
_ERROR, _SKIPPED = ValidationStatus.ERRORED, ValidationStatus.SKIPPED

FEWEST = 2
"""An error must come twice at least to be the same again."""


async def produce(call: CallContext, loop_budget: int, chain: int, last: int) -> None:
    """Run one subsample, and those up to the last one after the other while nothing has passed.

    What must end the whole call is handed to its recorder, never raised.
    """
    recorder = call.recorder
    recorder.under_way += 1
    broken = False
    try:
        with recorder.scope_of(chain):
            broken = await _run_chain(call, loop_budget, chain)
        while chain < last and not (recorder.stopping or recorder.passed or recorder.cut_short):
            chain += 1
            with recorder.scope_of(chain):
                await _run_chain(call, loop_budget, chain)
    except BaseException as exc:
        cancellation, rest = split_cancellation(exc)
        if cancellation is not None and cancel_requested():
            recorder.cut_short = True
            # anyio leaves the exception in a cycle; drop the traceback to free the record at once.
            exc.__traceback__ = None
            raise
        # A backend may answer its cancellation with another, which no scope takes for its own.
        if cancellation is None or rest is not None or not recorder.was_cancelled(chain):
            recorder.abort(exc)  # It is raised again by the call, outside its task group.
    finally:
        recorder.ended(chain, broken=broken)
        del call, recorder


async def _run_chain(  # noqa: C901, PLR0912 (one loop, the hot one)
    call: CallContext, loop_budget: int, chain: int
) -> bool:
    """Run the iterations of a chain; tell whether a permanent error ended it."""
    recorder, scheduler = call.recorder, call.recorder.scheduler
    action, context = call.plan.action, call.plan.context
    failed: list[Slice] = []
    to_repair: Slice | None = None
    for depth in range(loop_budget):
        if scheduler is None:
            turn = turn_of(chain, depth, loop_budget)
        elif (granted := await scheduler.turn_for(chain)) is not None:
            turn = granted
        else:
            return False
        if to_repair is not None and not recorder.stopping:
            # The backend ignored its cancellation, and no task waits that would notice.
            if recorder.over is None and cancel_requested():
                recorder.cut_short = True
                return False
            failed.append(to_repair)
            action, context = _repaired(call, failed)
            if HookType.SAMPLING_REPAIR in call.events.hooks:
                await call.events.fire(
                    HookType.SAMPLING_REPAIR,
                    to_repair,
                    failed=to_repair,
                    action=action,
                    context=context,
                )
            to_repair = None
        if recorder.stopping or (recorder.ordered and not recorder.may_start(turn)):
            return False
        iteration = Iteration(call, turn, chain, action, context)
        try:
            await iteration.attempt()
        except BaseException as exc:  # noqa: BLE001 (it raises again what must leave)
            iteration.failed(exc)
        finally:
            slice_ = iteration.finish()
            if scheduler is not None:
                scheduler.recorded(slice_)
        if slice_.outcome is _FAILED:
            to_repair = slice_
            if call.tally is not None and (why := call.tally.add(slice_)):
                recorder.hopeless(why)
        elif slice_.passed:
            return False
        elif cancel_requested():  # A backend may turn a cancellation into an error.
            recorder.cut_short = True
            return False
        elif not may_go_on(slice_):
            return True
        elif slice_.verdicts and _always_so(call, slice_):
            return False
    return False


def _repaired(call: CallContext, failed: list[Slice]) -> tuple[Action[Any], Context]:
    """Ask the strategy what to try next."""
    answer: object = call.repair(tuple(failed))
    if isinstance(answer, tuple) and len(pair := cast("tuple[object, ...]", answer)) == 2:  # noqa: PLR2004
        action, context = pair
        if isinstance(context, Context):
            first = failed[0].action
            if action is first:
                return first, context
            if is_action(action):
                return action, context
    msg = f"{call.events.strategy}.repair returned {answer!r}, not (Action, Context)"
    raise TypeError(msg)


def may_go_on(slice_: Slice) -> bool:
    """Tell whether a subsample may use its next turn after a slice that did not pass.

    It may not after a permanent error: an error of a backend that is not retryable, or any
    exception that is neither a backend's nor a requirement's. What a verdict says went wrong is a
    requirement's, but for a permanent error of the judge. An answer that is missing in a joint
    reply costs its turn only.
    """
    error = slice_.error
    if isinstance(error, RequirementError) and isinstance(error.__cause__, BackendError):
        return error.__cause__.retryable
    if error is None or slice_.verdicts or isinstance(error, RequirementError | MissingAnswer):
        return True
    return isinstance(error, BackendError) and error.retryable


# The same bug in a validator, again and again


class Bug(NamedTuple):
    """What a requirement's validator raised, and at which line, as in ``rules.py:12``."""

    requirement: Requirement
    kind: type[BaseException]
    line: str

    def __str__(self) -> str:
        return f"requirement {self.requirement.name!r} raises {self.kind.__name__} at {self.line}"


def _always_so(call: CallContext, slice_: Slice) -> bool:
    """Tell whether a validator has the same bug with every reply; then the call is stopped.

    An ordered call's subsample looks at its own slices only, and does not stop its siblings: what
    comes of them must not depend on timing.
    """
    bug = bug_of(slice_)
    if bug is None:
        return False
    recorder = call.recorder
    if recorder.ordered:
        own = [other for other in recorder.slices if other.chain == slice_.chain]
        return times_seen(bug, own) >= FEWEST
    times = times_seen(bug, recorder.slices)
    if times < max(call.settings.concurrency_budget, FEWEST):
        return False
    recorder.hopeless(f"{bug}, with every reply ({times} so far)")
    return True


def bug_of(slice_: Slice) -> Bug | None:
    """Return the bug in a validator that a slice errored by; None for any other slice."""
    for requirement, verdict in slice_.validations:
        if verdict.status is _ERROR and not requirement.judged and verdict.error is not None:
            cause = verdict.error.__cause__
            line = "" if cause is None or isinstance(cause, BackendError) else line_of(cause)
            return Bug(requirement, type(cause), line) if cause is not None and line else None
    return None


def times_seen(bug: Bug, slices: Sequence[Slice]) -> int:
    """Count the slices that errored by a bug; 0 if its requirement ever came to a verdict."""
    seen = 0
    for slice_ in slices:
        for requirement, verdict in slice_.validations:
            if requirement is bug.requirement and verdict.status is not _SKIPPED:
                if verdict.status is not _ERROR:
                    return 0
                other = bug_of(slice_)
                seen += other is not None and other[1:] == bug[1:]
    return seen
