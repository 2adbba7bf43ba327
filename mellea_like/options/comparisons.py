"""Comparisons: when all draws have ended, a judge compares passing draws two at a time."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import anyio

from mellea_like.core.backend import (
    ITERATION,
    SPENDS_ON,
    Request,
    RequestMeta,
    checked_reply,
    innermost,
)
from mellea_like.core.conversation import reply_message
from mellea_like.core.generation import Meter, cost_of
from mellea_like.core.result import StopReason
from mellea_like.core.seeds import derive_seed
from mellea_like.errors import (
    BackendError,
    BackendTimeout,
    HookError,
    InvalidRequest,
    LimitExceeded,
    SamplingTimeout,
)
from mellea_like.kernel.ports import Option, Ruling, Stop
from mellea_like.kernel.race import Race
from mellea_like.requirements.judge import comparison_messages, read_comparison
from mellea_like.runtime.event_loops import foreign, split_cancellation
from mellea_like.runtime.logs import warn
from mellea_like.runtime.threads import run_in_thread
from mellea_like.selections.base import SelectionState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mellea_like.core.conversation import Message
    from mellea_like.core.slice import Slice

__all__ = ["Comparisons"]

NOT_FOUND = 404
"""The HTTP status for an unknown model, or for a server without a chat protocol."""

ALIKE, LONG = 3, 200
"""The fewest equal replies, and their least length in characters, for which to log a warning."""


class Comparisons(Option):
    """Runs the slow part of a selection, and asks a judge for the comparisons that it needs.

    The cost of comparisons isn't part of any slice. A pair is a tie if its comparison failed. If
    the time is up, a budget is spent, a plugin fails, or the judge has a permanent error, the
    comparisons made so far decide.
    """

    def __init__(self, setup: Any) -> None:
        self._name = type(setup.settings.selection).__name__
        self._selection: SelectionState = setup.selection
        self._settings = setup.settings
        self._inputs = setup.inputs
        self.won: dict[tuple[int, int], float] = {}
        """Maps pairs of draws, in the order shown to the judge, to the points of the first one."""
        self.halted = False
        """Whether no further comparison starts."""

    async def settle(self) -> None:
        """Run the selection's `steps`, and have the judge compare the draws that have passed."""
        selection = self._selection
        self._warn_if_all_are_alike()
        try:
            if selection.passed and type(selection).steps is not SelectionState.steps:
                await _take_steps(selection)
            if pairs := selection.pairs():
                await self.run(pairs)
        except Exception as exc:  # noqa: BLE001 (a bug in the selection: the call raises it)
            self.call.race.fatal = exc

    def _warn_if_all_are_alike(self) -> None:
        """Log a warning if all replies are alike, as if seeds and temperature were ignored."""
        texts = (s.text for s in self.call.slices if s.generation is not None)
        if len(first := next(texts, "")) < LONG or self._inputs.temperature == 0:
            return
        others = list(texts)
        if len(others) >= ALIKE - 1 and all(text == first for text in others):
            backend = type(innermost(self._inputs.backend)).__name__
            what = (
                f"{self._name} chooses among draws, but all those from {backend} have the same"
                " text, as if seeds and temperature were ignored"
            )
            self._settings.warn_once(what)

    async def run(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Compare pairs, round after round, until the selection asks for no more pairs."""
        selection, call = self._selection, self.call
        stopped = call.race.why
        call.undecided = True  # Until all pairs are compared.
        if call.race.late:
            self._halt(self._late())
        elif stopped is not None and stopped.error is not None:
            self._halt(stopped.error)
        while pairs and not self.halted:
            await self._compare(pairs)
            pairs = () if self.halted or call.race.fatal is not None else selection.pairs()
        call.undecided = self.halted
        if errors := selection.errors:
            warn(
                "%d comparisons failed; the first: %s: %s",
                len(errors),
                type(errors[0]).__name__,
                errors[0],
                sampling_id=call.id,
            )

    async def _compare(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Compare pairs in both orders, concurrently, and report the results to the selection."""
        call, won = self.call, self.won
        orders = [order for a, b in pairs for order in ((a, b), (b, a))]
        race = Race(
            _Orders(self, orders, min(len(orders), self._settings.concurrency_budget)),
            partial(_Comparison, self),
            clock=call.clock,
            started=call.started,
            deadline=call.deadline,
            grace=call.rules.cancel_grace,
            name=call.id,
        )
        await race.run()
        if race.fatal is not None:
            call.rule(Ruling(fatal=race.fatal))
        elif race.late and call.race.fatal is None:
            self._halt(self._late())
        for a, b in pairs:
            if (a, b) in won and (b, a) in won:
                self._selection.compared((a, b), (won[a, b] + 1 - won[b, a]) / 2)

    def _halt(self, why: Exception) -> None:
        """Prevent further comparisons, and note the error as the reason why the call ends."""
        if self.halted:
            return
        self.halted = True
        self._selection.errors.append(why)
        race = self.call.race
        if isinstance(why, SamplingTimeout):
            self.call.timed_out = True
        elif not isinstance(why, LimitExceeded):
            self.call.broken = True
        elif race.why is None:
            race.why = Stop(StopReason.BUDGET, str(why), why)

    def _late(self) -> SamplingTimeout:
        return SamplingTimeout(
            f"sampling {self.call.id}: time ran out before all comparisons were made"
        )

    def failed(self, error: Exception) -> None:
        """Note the error of a comparison, and stop comparing if the next ones would fail, too."""
        if (
            isinstance(error, HookError)
            or (isinstance(error, LimitExceeded) and error.result is None)
            or _permanent(error)
        ):
            self._halt(error)
        else:
            self._selection.errors.append(error)

    async def answer(self, order: tuple[int, int]) -> float:
        """Ask the judge to compare two draws, and return the points of the first one."""
        one, other = (self._selection.passed[i] for i in order)
        call, selection = self.call, self._selection
        options, seed = call.rules.judge_options, self._inputs.options.seed
        if seed is not None:
            purpose = f"against {other.iteration}"
            options = options.with_seed(derive_seed(seed, one.iteration, purpose))
        meter, reply = Meter(), None
        meta = RequestMeta(
            call.id,
            one.iteration,
            one.subsample,
            call_started=call.started,
            deadline=call.deadline,
            purpose="judge",
        )
        ITERATION.set(meta)
        SPENDS_ON.set(meter)
        question = _question(selection.criterion, one, other)
        seconds = self._settings.iteration_timeout
        try:
            with anyio.move_on_after(seconds):
                request = Request(question, options, None, meta, meter)
                judge = self._inputs.judge if selection.judge is None else selection.judge
                reply = checked_reply(judge, await call.judging(judge).generate(request))
        finally:
            selection.usage += cost_of(meter, reply)
        if reply is None:
            msg = f"comparing two draws took longer than {seconds:g} s"
            raise BackendTimeout(msg)
        selection.model = reply.model or selection.model
        return read_comparison(reply.text)


class _Orders:
    """The plan of a race of comparisons: it hands out the pairs, each in both orders."""

    def __init__(self, option: Comparisons, orders: Sequence[tuple[int, int]], lanes: int) -> None:
        self.lanes = lanes
        self._option = option
        self._orders = iter(orders)

    def next(self, lane: int, now: float) -> Any:
        del lane, now
        return None if self._option.halted else next(self._orders, None)

    def hear(self, slice_: Any) -> None: ...

    def unused(self, ask: Any) -> None: ...


class _Comparison:
    """One comparison by the judge, run by a race like a draw; the object itself is the record."""

    def __init__(self, option: Comparisons, ask: Any, started_at: float) -> None:
        self.ask = self.iteration = ask
        self.ended_at = started_at
        self._option = option

    async def run(self) -> None:
        option, order = self._option, self.ask
        try:
            with foreign("the judge"):
                option.won[order] = await option.answer(order)
        except BaseException as exc:
            cancellation, error = split_cancellation(exc)
            if cancellation is not None or not isinstance(error, Exception):
                raise
            option.failed(error)
            if not option.halted:
                option.won[order] = 0.5

    def record(self, ended_at: float) -> _Comparison:
        self.ended_at = ended_at
        return self


async def _take_steps(selection: SelectionState) -> None:
    if selection.quick:
        for _ in selection.steps():
            pass
        return
    left = False

    def take() -> None:
        for _ in selection.steps():
            if left:
                return

    try:
        await run_in_thread(take, name=f"the comparisons of a {selection.kind}")
    finally:
        left = True


def _permanent(error: Exception) -> bool:
    """Return whether every further comparison would fail as well."""
    if not isinstance(error, BackendError) or error.retryable:
        return False
    return not isinstance(error, InvalidRequest) or error.status == NOT_FOUND


def _question(criterion: str, one: Slice, other: Slice) -> tuple[Message, ...]:
    return comparison_messages(criterion, one.messages, _said(one), _said(other))


def _said(slice_: Slice) -> str:
    return "" if slice_.generation is None else reply_message(slice_.generation).text
