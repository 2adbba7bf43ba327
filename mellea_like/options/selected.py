"""A selection object: several draws must pass, and one or some of them win."""

from __future__ import annotations

from dataclasses import replace
from inspect import isawaitable
from typing import TYPE_CHECKING, Any

from mellea_like.core.backend import innermost
from mellea_like.core.decision import Decision
from mellea_like.core.display import error_text, plural
from mellea_like.core.result import StopReason
from mellea_like.core.validation import Candidate
from mellea_like.errors import LimitExceeded, SamplingTimeout
from mellea_like.kernel.ports import Ask, Choice, Option, Ruling, Stop
from mellea_like.requirements.staged_validation import errored
from mellea_like.runtime.event_loops import foreign
from mellea_like.runtime.logs import warn
from mellea_like.selections.base import SelectionState, unjudged

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping

    from mellea_like.core.backend import Backend
    from mellea_like.core.requirement import Requirement
    from mellea_like.core.slice import Slice
    from mellea_like.kernel.draw import Draw
    from mellea_like.kernel.ports import Checked, Facts, Next
    from mellea_like.selections.base import BaseSelection
    from mellea_like.selections.comparisons import Comparisons

ALIKE, LONG = 3, 200
"""The fewest equal replies, and their least length in characters, for which to log a warning."""


class Selected(Option):
    """Reports each draw to a selection, with the mark (score or key) of each passing candidate.

    When all draws have ended, the selection settles: for example, it has a judge compare draws. If
    the comparisons are cut short, the results so far decide. ``warn_if_alike`` logs once that all
    draws are equal; it is None if that is to be expected.
    """

    def __init__(
        self,
        selection: BaseSelection,
        state: SelectionState,
        backend: Backend,
        *,
        lanes: int,
        seconds: float | None,
        warn_if_alike: Callable[[str], None] | None,
        marks: MutableMapping[int, Any] | None = None,
    ) -> None:
        self.state = state
        self._backend = backend
        self._lanes = lanes
        self._seconds = seconds
        self._warn_if_alike = warn_if_alike
        self._name = type(selection).__name__
        self._mark = selection.mark
        self._marks: MutableMapping[int, Any] = {} if marks is None else marks
        self._comparisons: Comparisons | None = None
        self._settled = type(state).settle is SelectionState.settle

    def next(self, lane: int, now: float, go: Callable[[int, float], Next]) -> Next:
        """Tell the selection of each draw that starts."""
        ask = go(lane, now)
        if isinstance(ask, Ask):
            self.state.start(ask.iteration)
        return ask

    async def check(
        self,
        draw: Draw,
        candidate: Candidate,
        wanted: tuple[Requirement, ...],
        go: Callable[..., Any],
    ) -> Checked:
        """Check a candidate, and if it passes, compute its score or key."""
        requirements, verdicts = await go(draw, candidate, wanted)
        if self._mark is None or not all(verdicts):
            return requirements, verdicts
        try:
            with foreign("its scorer"):
                mark = self._mark(candidate)
                self._marks[draw.ask.iteration] = await mark if isawaitable(mark) else mark
        except Exception as exc:  # noqa: BLE001 (a scorer's)
            own = unjudged(self._name)
            return (*requirements, own), (*verdicts, errored(own, exc))
        return requirements, verdicts

    def hear(self, slice_: Slice) -> Ruling | None:
        """Report a draw to the selection, and end the call if no further draw is needed."""
        mark, reply = self._marks.get(slice_.iteration), slice_.generation
        if mark is None and self._mark is not None and slice_.passed and reply is not None:
            # The draw is from an earlier round, and its score or key wasn't kept.
            mark = self._mark(
                Candidate(reply.text, slice_.value, reply, slice_.context, slice_.action)
            )
        return Ruling(over=True) if self.state.hear(slice_, mark) else None

    async def settle(self, go: Callable[[], Awaitable[None]]) -> None:
        """Let the selection settle, if any draw has passed."""
        await go()
        self._warn_if_all_are_alike()
        state, call = self.state, self.call
        if self._settled or not state.passed:
            return
        # Imported lazily: few selections compare.
        from mellea_like.selections.comparisons import Comparisons, out_of_time  # noqa: PLC0415

        refused: Exception | None = out_of_time(call.id) if call.race.time_up else None
        if refused is None and call.race.why is not None:
            refused = call.race.why.error
        self._comparisons = made = Comparisons(
            state.passed,
            lanes=self._lanes,
            seconds=self._seconds,
            grace=call.rules.cancel_grace,
            refused=refused,
            ended=lambda: call.fatal is not None,
        )
        await state.settle(made)
        self._settled = not made.halted
        if made.errors:
            first = made.errors[0]
            warn(
                "%s failed; the first: %s: %s",
                plural(len(made.errors), "comparison"),
                type(first).__name__,
                first,
                sampling_id=call.id,
            )

    def _warn_if_all_are_alike(self) -> None:
        drawn = [slice_ for slice_ in self.call.slices if slice_.generation is not None]
        if self._warn_if_alike is None or len(drawn) < ALIKE or len(first := drawn[0].text) < LONG:
            return
        if all(slice_.text == first for slice_ in drawn[1:]):
            backend = type(innermost(self._backend)).__name__
            self._warn_if_alike(
                f"{self._name} chooses among draws, but all those from {backend} have the same"
                " text, as if seeds and temperature were ignored"
            )

    def choose(self, facts: Facts) -> Choice | None:
        """Choose the selection's winner or, if it has none, the leading answer."""
        slices = facts.slices
        won = facts.won and self._settled
        if facts.cancelled and not won:
            return Choice(None, final=False)
        why = self._why_not_final(facts)
        decision = self._decision(facts, why)
        places = {slice_.iteration: i for i, slice_ in enumerate(slices) if slice_.passed}
        if unknown := [winner for winner in decision.winners if winner not in places]:
            msg = f"the selection decided for iterations {unknown}, which have not passed"
            raise ValueError(msg)
        ahead = decision.winners or tuple(answer.iteration for answer in decision.answers)
        place = places[ahead[0]] if ahead else next(iter(places.values()), None)
        return Choice(place, won, decision, why)

    def _why_not_final(self, facts: Facts) -> Stop | None:
        """Return why draws or comparisons that might have changed the winner weren't made, or None.

        Only reasons that the selection knows count.
        """
        state = self.state
        halted = None if self._comparisons is None else self._comparisons.error
        if isinstance(halted, SamplingTimeout):
            return self.call.due or Stop(StopReason.TIMEOUT, "", halted)
        if isinstance(halted, LimitExceeded):
            return Stop(StopReason.BUDGET, str(halted), halted)
        if halted is not None:
            return Stop(StopReason.ERROR, "")
        if state.reason and state.wanted() and not facts.timed_out:
            return Stop(StopReason.HOPELESS, state.reason)
        return None

    def _decision(self, facts: Facts, why: Stop | None) -> Decision:
        """Return the selection's decision or, if no slice passed, a decision without a winner."""
        state, made = self.state, self._comparisons
        if state.passed:
            decision = state.decide()
        else:
            none = f"none of {plural(len(facts.slices), 'draw')} passed"
            decision = Decision(state.kind, (), none, complete=False, abstentions=state.abstentions)
        if not isinstance(decision, Decision) or (decision.complete and not decision.winners):
            msg = f"the selection decided {decision!r}, not a Decision with a winner"
            raise TypeError(msg)
        reason = decision.reason
        if not reason or not decision.complete:
            ended = "an error ended one of the lanes" if facts.broken else "all attempts were used"
            if facts.timed_out or (why is not None and why.reason is StopReason.TIMEOUT):
                ended = "the time was up"
            ended = state.reason or ended
            if facts.stopped is not None and facts.stopped.detail:
                ended = facts.stopped.detail
            reason = f"{reason}: {ended}" if reason else ended
        if made is None or (meter := self.call.meter) is None:
            return replace(decision, reason=reason)
        errors = tuple(error_text(error) for error in made.errors)
        return replace(decision, reason=reason, usage=meter.usage, errors=errors, model=made.model)
