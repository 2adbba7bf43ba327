"""Comparisons: after the race, a judge says which of two draws is better."""

from __future__ import annotations

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
from mellea_like.errors import (
    BackendError,
    BackendTimeout,
    HookError,
    InvalidRequest,
    LimitExceeded,
    SamplingTimeout,
)
from mellea_like.kernel.draw import derive_seed
from mellea_like.kernel.ports import Option, Ruling, Stop
from mellea_like.kernel.race import first_in
from mellea_like.requirements.judge import comparison_messages, read_comparison
from mellea_like.runtime.event_loops import foreign, scope_cancelled, split_cancellation
from mellea_like.runtime.logs import warn
from mellea_like.runtime.threads import run_in_thread
from mellea_like.selections.base import SelectionState

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from anyio.abc import TaskGroup

    from mellea_like.core.conversation import Message
    from mellea_like.core.slice import Slice

__all__ = ["Comparisons"]

NOT_FOUND = 404
"""The HTTP status for an unknown model, or for a server without a chat protocol."""

ALIKE, LONG = 3, 200
"""This many replies of this many characters are hardly ever equal by chance."""


class Comparisons(Option):
    """Takes a selection's steps, and asks a judge for the comparisons that it needs.

    The cost of comparisons is in no slice. A pair is even if its comparison failed. If the time is
    up, a budget is spent, a plugin fails, or the judge has a permanent error, the comparisons made
    so far decide.
    """

    def __init__(self, setup: Any) -> None:
        self._name = type(setup.settings.selection).__name__
        self._selection: SelectionState = setup.selection
        self._settings = setup.settings
        self._inputs = setup.inputs
        self._won: dict[tuple[int, int], float] = {}
        self._halted = False
        self._at_work = 0
        self._asked = anyio.Event()
        self._left: BaseException | None = None
        self._scope: anyio.CancelScope | None = None

    async def settle(self) -> None:
        """Compare the draws that have passed."""
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
        """Log if a backend seems to ignore seeds and temperature."""
        texts = (s.text for s in self.call.slices if s.generation is not None)
        if len(first := next(texts, "")) < LONG or self._inputs.temperature == 0:
            return
        others = list(texts)
        if len(others) >= ALIKE - 1 and all(text == first for text in others):
            backend = type(innermost(self._inputs.backend)).__name__
            what = (
                f"{self._name} chooses among draws, and all that it got from {backend} are the same"
                " text, as if seeds and temperature were ignored"
            )
            self._settings.warn_once(what)

    async def run(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Compare, round after round."""
        selection, call = self._selection, self.call
        stopped = call.race.why
        call.undecided = True  # Until all pairs are compared.
        if call.race.late:
            self._halt(self._late())
        elif stopped is not None and stopped.error is not None:
            self._halt(stopped.error)
        while pairs and not self._halted:
            await self._compare(pairs)
            pairs = () if self._halted or call.race.fatal is not None else selection.pairs()
        call.undecided = self._halted
        if errors := selection.errors:
            warn(
                "%d comparisons went wrong, the first one: %s: %s",
                len(errors),
                type(errors[0]).__name__,
                errors[0],
                sampling_id=call.id,
            )

    async def _compare(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Compare several pairs at a time, and give the selection the results."""
        self._asked = anyio.Event()
        async with anyio.create_task_group() as tasks:
            self._scope = tasks.cancel_scope
            if self.call.deadline is not None:
                tasks.cancel_scope.deadline = self.call.deadline
            orders = [order for a, b in pairs for order in ((a, b), (b, a))]
            to_ask = iter(orders)
            for _ in range(min(len(orders), self._settings.concurrency_budget)):
                tasks.start_soon(self._work, to_ask)
            await self._all_ended(tasks)
        if self._left is not None:
            # If the time ran out as well, anyio (4.16) takes a native one for its own.
            raise self._left
        if tasks.cancel_scope.cancel_called and self.call.race.fatal is None:
            self._halt(self._late())
        won = self._won
        for a, b in pairs:
            if (a, b) in won and (b, a) in won:
                self._selection.compared((a, b), (won[a, b] + 1 - won[b, a]) / 2)

    async def _all_ended(self, tasks: TaskGroup) -> None:
        """Wait until all pairs were asked about; keep a native cancellation that arrives before."""
        try:
            await self._asked.wait()
        except anyio.get_cancelled_exc_class() as exc:
            self._note_native(exc)
            tasks.cancel_scope.cancel()
            with anyio.CancelScope(shield=True):
                self._asked = anyio.Event()
                if self._at_work:
                    try:
                        await self._asked.wait()
                    except anyio.get_cancelled_exc_class() as again:
                        self._note_native(again)
                        raise
            raise

    def _note_native(self, cancellation: BaseException) -> None:
        if not scope_cancelled():
            self._left = type(cancellation)(*cancellation.args)

    async def _work(self, to_ask: Iterator[tuple[int, int]]) -> None:
        """Ask until nothing is left to ask; the last worker announces the end."""
        self._at_work += 1
        try:
            await self._ask(to_ask)
        finally:
            self._at_work -= 1
            if not self._at_work:
                self._asked.set()

    def _halt(self, why: Exception) -> None:
        """Start no further comparison, for a reason that ends the call."""
        if self._halted:
            return
        self._halted = True
        self._selection.errors.append(why)
        race = self.call.race
        if isinstance(why, SamplingTimeout):
            self.call.timed_out = True
        elif not isinstance(why, LimitExceeded):
            self.call.broken = True
        elif race.why is None:
            race.why = Stop(StopReason.BUDGET, str(why), why)

    def _late(self) -> SamplingTimeout:
        return SamplingTimeout(f"sampling {self.call.id}: the time was up before all was compared")

    async def _ask(self, to_ask: Iterator[tuple[int, int]]) -> None:
        """Ask the judge about pairs, each in one order, and note whether the first one won."""
        passed = self._selection.passed
        for a, b in to_ask:
            try:
                with foreign("the judge"):
                    self._won[a, b] = await self._answer(passed[a], passed[b])
            except BaseException as exc:  # noqa: BLE001 (it raises again what must leave)
                self._failed(exc)
                if not self._halted:
                    self._won[a, b] = 0.5
            if self._halted:
                return

    def _failed(self, exc: BaseException) -> None:
        """Note an error of a comparison; raise a requested cancellation again."""
        cancellation, error = split_cancellation(exc)
        if cancellation is not None:
            # A task group would nest groups, and callers expect none.
            raise first_in(cancellation) from None
        if not isinstance(error, Exception):
            self.call.rule(Ruling(fatal=exc))
            if self._scope is not None:
                self._scope.cancel()
        elif (
            isinstance(error, HookError)
            or (isinstance(error, LimitExceeded) and error.result is None)
            or _permanent(error)
        ):
            self._halt(error)
        else:
            self._selection.errors.append(error)

    async def _answer(self, one: Slice, other: Slice) -> float:
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
        # Each comparison has its own task, and so its own context.
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
    """Tell whether every further comparison would fail as well."""
    if not isinstance(error, BackendError) or error.retryable:
        return False
    return not isinstance(error, InvalidRequest) or error.status == NOT_FOUND


def _question(criterion: str, one: Slice, other: Slice) -> tuple[Message, ...]:
    return comparison_messages(criterion, one.messages, _said(one), _said(other))


def _said(slice_: Slice) -> str:
    return "" if slice_.generation is None else reply_message(slice_.generation).text
