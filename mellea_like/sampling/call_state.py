"""What a call's iterations share: what is fixed for the call, its records, and what stops it.

All of it changes in synchronous steps, so that no cancellation comes between them. The tasks are in
`race`.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio

from mellea_like.core.display import attempt_names, bounded, error_text
from mellea_like.core.generation import Usage
from mellea_like.core.result import StopReason
from mellea_like.core.slice import Outcome, Slice
from mellea_like.runtime.event_loops import split_cancellation
from mellea_like.runtime.logs import warn
from mellea_like.sampling.ending import Stop

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mellea_like.core.conversation import Action, Context, Message
    from mellea_like.core.validation import Candidate
    from mellea_like.errors import LimitExceeded
    from mellea_like.requirements.staged_validation import StagedValidation
    from mellea_like.sampling.escalate import StageAtWork
    from mellea_like.sampling.events import Events
    from mellea_like.sampling.iteration import Turn
    from mellea_like.sampling.prepare import CallInputs, Settings
    from mellea_like.sampling.scheduler import Scheduler
    from mellea_like.sampling.sender import Sender
    from mellea_like.schedules.giving_up import Tally
    from mellea_like.selections.base import SelectionState
    from mellea_like.telemetry.call import CallTelemetry

__all__ = ["CallContext", "ChainState", "Recorder", "SliceListener"]

_PASSED = Outcome.PASSED
_NOTHING = nullcontext()

NUMBER = re.compile(r"\d+")
"""What tells errors apart that are otherwise alike: ids, times."""


class ChainState(NamedTuple):
    """What a chain knows before its next turn: where it is, what to ask, and what has failed."""

    depth: int
    action: Action[Any]
    context: Context
    failures: list[Slice]
    to_repair: Slice | None


class SliceListener(ABC):
    """An ``on_slice`` that hears of a slice in the step that records it: it must not take long."""

    __slots__ = ()

    @abstractmethod
    def __call__(self, slice_: Slice) -> None:
        """Hear of a slice."""


class Recorder:
    """The records of one call, and whether its producers may go on.

    Its words for the end of a call:

    - `passed`: a slice has passed; a selection may want more, and an ordered call a lower rank.
    - ``won``: what has passed is all that was wanted, and decides the call.
    - ``stopping``, set by `start_no_more`: no turn starts any more; what runs may end.
    - `stop`: what runs is cancelled, too.
    - ``stopped``: why turns are left that nobody wins: a spent budget, or no hope.
    - ``broken``: an error that would come again ended a lane.
    - ``fatal``, set by `abort`: what the call raises instead.
    - ``late``, set by `abort` after the race: what it raises if what has passed is no answer.
    - ``cut_short``: a producer was cancelled, by its siblings or from outside.
    """

    # Class-level defaults: most calls never change these, so pending calls use less memory.
    stopping = False
    """Whether no further turn may start."""
    stopped: Stop | None = None
    """Why the call was stopped before its turns were spent."""
    fatal: BaseException | None = None
    """What the call must raise."""
    late: BaseException | None = None
    """What the call must raise unless it has an answer."""
    broken = False
    """Whether an error that would come again ended a lane."""
    won = False
    """Whether it is certain that a slice has won."""
    timed_out = False
    """Whether the call's time was up before all turns were spent."""
    cut_short = False
    """Whether a producer was cancelled before its end."""
    active = 0
    """Producers, and the scheduler's clock, that were started and have not ended."""
    under_way = 0
    """How many of them have begun to run."""
    scope: anyio.CancelScope | None = None
    over: anyio.Event | None = None
    """Set when a slice has won or the last producer has ended, where that is waited for."""
    deliver: Callable[[Slice], object] | None = None
    """What takes slices for hooks and the progress callback, until one has won."""
    listener: SliceListener | None = None
    scheduler: Scheduler | None = None
    selection: SelectionState | None = None
    """What hears each slice until the call is decided, where several have to pass."""
    all_ended: anyio.Event | None = None
    earlier: Mapping[int, Slice] | None = None
    """The slices of a call that goes on, by their iterations: its first turns are replayed."""
    draws_left: int | None = None
    """How many draws may start until the call is paused, where it is run in rounds."""
    paused = False
    """Whether those draws are made, and there was another turn."""
    at_pause: ChainState | None = None
    """How far the chain of a paused call has come."""
    _logged = 0
    streams = False
    """Whether the text of a draw may be shown while it arrives."""
    shown: int | None = None
    """The iteration whose text was shown: no other can win."""
    best_rank: tuple[int, int] | None = None
    """The rank of the best slice of an ordered call that has passed so far."""
    _too_late: BaseException | None = None

    def __init__(self, sampling_id: str, *, ordered: bool) -> None:
        self.sampling_id = sampling_id
        self.ordered = ordered
        self.slices: list[Slice] = []
        self._chain_scopes: dict[int, anyio.CancelScope] = {}
        self._turn_of_chain: dict[int, Turn] = {}

    @property
    def passed(self) -> bool:
        """Whether a slice has passed."""
        heard = self.selection is not None and bool(self.selection.passed)
        return self.won or self.best_rank is not None or heard

    @property
    def usage(self) -> Usage:
        """What the slices recorded so far have cost, and the comparisons."""
        compared = Usage() if self.selection is None else self.selection.usage
        return sum((slice_.usage for slice_ in self.slices), compared)

    @property
    def usage_by_model(self) -> list[tuple[str | None, Usage]]:
        """The usage in parts, each with the model that spent it."""
        parts = [part for slice_ in self.slices for part in slice_.usage_by_model]
        if self.selection is not None:
            parts.append((self.selection.model, self.selection.usage))
        return parts

    def record(self, slice_: Slice, mark: Any = None) -> None:
        """Keep a finished slice, and decide what it stops: one synchronous step."""
        if self.shown is not None and slice_.passed and slice_.iteration != self.shown:
            slice_ = replace(slice_, outcome=Outcome.CANCELLED)  # It came too late.
        self.slices.append(slice_)
        if self.selection is not None:
            self._select(self.selection, slice_, mark)
        elif slice_.outcome is _PASSED:
            if not self.ordered:
                self._win()
            elif self.best_rank is None or slice_.rank < self.best_rank:
                self.best_rank = slice_.rank
                self._cancel_higher_ranks(slice_.rank)
        if self.deliver is not None:
            self.deliver(slice_)
        if self.listener is not None:
            try:
                self.listener(slice_)
            except Exception as exc:  # noqa: BLE001 (the call raises it)
                self.abort(exc, "on_slice")

    def replay(self, slice_: Slice, mark: Any) -> None:
        """Keep a slice of the earlier part of the call, of which all have heard but a selection."""
        self.slices.append(slice_)
        if self.selection is not None:
            self._select(self.selection, slice_, mark)

    def _win(self) -> None:
        """Note that the call is decided."""
        self.won = True
        self.start_no_more()
        if self.over is not None:
            # The race delivers from here on: it cancels the siblings before.
            self.deliver = None
            self.over.set()

    def _select(self, selection: SelectionState, slice_: Slice, mark: Any) -> None:
        """Let the selection hear a slice; what ends after the decision has no say in it."""
        if not self.won:
            try:
                decided = selection.hear(slice_, mark)
            except Exception as exc:  # noqa: BLE001 (a bug in the selection: the call raises it)
                self.abort(exc, "the selection")
            else:
                if decided:
                    self._win()

    # What stops a call

    def start_no_more(self) -> None:
        """Let no further turn start."""
        self.stopping = True
        if self.scheduler is not None:
            self.scheduler.stop()

    def stop(self) -> None:
        """Let no further turn start, and cancel those that run."""
        self.start_no_more()
        if self.scope is not None:
            self.scope.cancel()

    def show(self, iteration: int | None, chain: int | None) -> bool:
        """Let a draw's text be shown, unless the call is decided: no other can win any more."""
        if self.stopping or self.fatal is not None:
            return False
        self.shown = iteration
        self.start_no_more()
        for other, scope in self._chain_scopes.items():
            if other != chain:
                scope.cancel()
        return True

    def out_of_budget(self, error: LimitExceeded, stage: StageAtWork | None = None) -> None:
        """Let no further turn start, for a budget is spent; what is paid for already may go on.

        Where it is the budget of a stage, that goes for the turns of the stage.
        """
        if stage is not None and error.stage == stage.index:
            if stage.last and self.stopped is None:
                self.stopped = Stop(StopReason.BUDGET, str(error), error)
        elif not self.stopping:
            self.stopped = Stop(StopReason.BUDGET, str(error), error)
            self.start_no_more()

    def hopeless(self, why: str) -> None:
        """Stop: further turns would not help."""
        if not self.stopping:
            self.stopped = Stop(StopReason.HOPELESS, why)
            self.stop()

    def abort(self, error: BaseException, source: str = "the strategy") -> None:
        """End the call with an error that its source raised, unless it is won already."""
        cancellation, rest = split_cancellation(error)
        if cancellation is not None:
            # Nobody asked for it: it must not leave the call as if someone had.
            stray = RuntimeError(f"{source} raised a cancellation that no one asked for")
            stray.__cause__ = error
            error = stray if rest is None else rest
        if any(error is known for known in (self.fatal, self.late, self._too_late)):
            return
        interrupt = not isinstance(error, Exception)
        if (self.won or self.fatal is not None or self.late is not None) and not interrupt:
            self.too_late(error)
        elif self.passed and not self.active and not interrupt:
            self.late = error  # The selection has yet to say whether there is an answer.
        else:
            self.fatal = error
            self.stop()

    def too_late(self, error: BaseException) -> None:
        """Log an error that no longer changes what comes of the call."""
        self._too_late = error
        warn(
            "after the call was decided: %s: %s",
            type(error).__name__,
            error,
            sampling_id=self.sampling_id,
        )

    # The producers

    def ended(self, chain: int, *, broken: bool = False) -> None:
        """Count a chain's producer as ended; with the last one, the race is over.

        The chain is -1 for the scheduler's clock, and broken where a permanent error has ended it.
        """
        self._turn_of_chain.pop(chain, None)
        if self.scheduler is not None and chain >= 0:
            self.scheduler.chain_ended(chain, broken=broken)
        self.active -= 1
        self.under_way -= 1
        if self.active == 0 and self.over is not None:
            self.over.set()
        if self.under_way == 0 and self.all_ended is not None:
            self.all_ended.set()

    # What only an ordered selection and a streamed call need

    def scope_of(self, chain: int) -> AbstractContextManager[object]:
        """Return what cancels one chain alone."""
        if not (self.ordered or self.streams):
            return _NOTHING
        return self._chain_scopes.setdefault(chain, anyio.CancelScope())

    def was_cancelled(self, chain: int) -> bool:
        """Tell whether one chain alone was cancelled."""
        scope = self._chain_scopes.get(chain)
        return scope is not None and scope.cancel_called

    def may_start(self, chain: int, turn: Turn) -> bool:
        """Tell whether a chain's turn could still win; note that the chain is at it."""
        if self.best_rank is not None and turn.rank > self.best_rank:
            return False
        self._turn_of_chain[chain] = turn
        return True

    def _cancel_higher_ranks(self, best: tuple[int, int]) -> None:
        """Cancel the chains whose turns can't win any more."""
        for chain, turn in self._turn_of_chain.items():
            if turn.rank > best:
                self._chain_scopes[chain].cancel()

    # The end

    def log_errors(self) -> None:
        """Log the errors, those that differ in numbers only as one with their count."""
        kinds: dict[object, list[Slice]] = {}
        fresh = self.slices[self._logged :]
        self._logged = len(self.slices)
        for slice_ in fresh:
            error = slice_.error
            if error is None or (self.earlier is not None and slice_.iteration in self.earlier):
                continue
            text = NUMBER.sub("0", bounded(error_text(error)))
            kind = (type(error), getattr(error, "status", None), text)
            kinds.setdefault(kind, []).append(slice_)
        if not kinds:
            return
        names = attempt_names((s.iteration, s.subsample, s.depth) for s in self.slices)
        for alike in kinds.values():
            first = alike[0]
            what: tuple[object, ...] = (type(first.error).__name__, first.error)
            if len(alike) == 1:
                message = f"error in {names[first.iteration]}: %s: %s"
            else:
                message = f"%d errors alike, the first in {names[first.iteration]}: %s: %s"
                what = (len(alike), *what)
            warn(
                message,
                *what,
                sampling_id=self.sampling_id,
                iteration=first.iteration,
                subsample=first.subsample,
            )


class CallContext(NamedTuple):
    """What is fixed for the length of a call."""

    sampling_id: str
    inputs: CallInputs
    settings: Settings
    repair: Callable[[Sequence[Slice]], tuple[Action[Any], Context]]
    recorder: Recorder
    events: Events
    telemetry: CallTelemetry | None
    sender: Sender
    validation: StagedValidation
    check_all: bool
    """Whether all requirements are checked, also after one has failed."""
    watched: bool
    """Whether incremental checks look at replies."""
    validation_observed: bool
    """Whether a plugin or telemetry looks at validations."""
    repair_observed: bool
    """Whether a plugin looks at repairs."""
    tally: Tally | None
    mark: Callable[[Candidate], Any] | None
    """What the selection asks of each candidate that passes."""
    messages: tuple[Message, ...] | None
    """What the call's action asks in the call's context, where that is known beforehand."""
    clock: Callable[[], float]
    started: float
    deadline: float | None
    model: str | None = None
    """The model that is asked, as far as the options or the backend say."""
    stages: tuple[CallContext, ...] = ()
    """Of an escalation: what the turns of each depth go by."""
    stage: StageAtWork | None = None
    """The stage of an escalation that this is of."""

    def out_of_budget(self, error: LimitExceeded) -> None:
        """Let no further turn start that needs a spent budget."""
        self.recorder.out_of_budget(error, self.stage)
