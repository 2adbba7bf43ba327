"""One call of ``sample``, which wraps its options around the race of its lanes."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from mellea_like.core.backend import CURRENT, RequestMeta
from mellea_like.core.conversation import Instruction, Message
from mellea_like.core.generation import Meter
from mellea_like.core.result import StopReason
from mellea_like.core.slice import Outcome
from mellea_like.kernel.draw import Draw, SurroundedDraw
from mellea_like.kernel.ending import first_passed
from mellea_like.kernel.ports import Facts, Option, Ruling, Sent, Stop
from mellea_like.kernel.race import Race
from mellea_like.requirements.staged_validation import StagedValidation

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from mellea_like.core.backend import Backend, Request
    from mellea_like.core.requirement import Requirement
    from mellea_like.core.slice import Slice
    from mellea_like.core.spec import Rules, Spec
    from mellea_like.core.validation import Candidate
    from mellea_like.errors import LimitExceeded
    from mellea_like.kernel.ports import Ask, Checked, Choice, Plan

__all__ = ["Call"]


async def _settled() -> None:
    """The innermost `Option.settle`."""


@dataclass(slots=True)
class Parts:
    """The backend, validation and prompt that the draws of a call (or stage) share."""

    spec: Spec
    backend: Backend
    validation: StagedValidation
    messages: tuple[Message, ...] | None
    """The rendered prompt of the original action; None if each draw must render it again."""
    model: str | None


class Call(ABC):
    """One call of ``sample``: its options, its race, and all that has happened so far."""

    # Class-level defaults: most calls never change these, so waiting calls use less memory.
    race: Race
    around_draw: Callable[[Draw], Awaitable[None]]
    request_options: Sequence[Option] = ()
    check_options: Sequence[Option] = ()
    """The options that wrap checks. Most calls have none, and then a draw takes a quicker way."""
    settle_options: Sequence[Option] = ()
    choose_options: Sequence[Option] = ()
    _fatal: BaseException | None = None
    late: tuple[BaseException, ...] = ()
    """Errors that came after the race. The call raises the first only if it has no answer."""
    due: Stop | None = None
    """Why the call ends at its deadline; None if the deadline is the call's own time limit."""
    concluded = False
    """Whether the call's outcome is known."""
    meter: Meter | None = None
    """Counts the requests of `Option.settle`, which belong to no draw; None if it hasn't run."""

    def __init__(
        self,
        sampling_id: str,
        rules: Rules,
        *,
        clock: Callable[[], float],
        started: float,
        deadline: float | None = None,
    ) -> None:
        self.id = sampling_id
        self.rules = rules
        self.clock = clock
        self.started = started
        self.deadline = deadline
        self.options: tuple[Option, ...] = ()
        self.slices: list[Slice] = []
        self.parts: Parts | None = None
        """The `Parts` of the latest draw, for a quick look-up. Most calls have no other `Parts`."""
        self._parts: tuple[Parts, ...] = ()

    @abstractmethod
    def assemble(self, loop_budget: int) -> tuple[Plan, Sequence[Option]]:
        """Make the plan and the options that the loop budget requires."""

    def add(self, options: Sequence[Option]) -> None:
        """Add options, which are wrapped by the options that the call already has."""
        self.options += tuple(options)
        for option in options:
            option.call = self

    def compose(self, loop_budget: int) -> Race:
        """Make the options and the race, and connect the options' ports to the race."""
        plan, options = self.assemble(loop_budget)
        self.add(options)
        using: defaultdict[str, tuple[Option, ...]] = defaultdict(tuple)
        for option in self.options:
            for port in option.uses:
                using[port] += (option,)
        self.request_options, self.check_options = using["request"], using["check"]
        self.settle_options, self.choose_options = using["settle"], using["choose"]
        body: type[Draw] = Draw
        if surrounding := using["draw"]:
            # A draw runs `around_draw`: option within option, and innermost the draw on its own.
            body, self.around_draw = SurroundedDraw, Draw.run
            for option in reversed(surrounding):
                self.around_draw = partial(option.draw, go=self.around_draw)
        self.race = race = Race(
            plan,
            partial(body, self),
            clock=self.clock,
            started=self.started,
            hear=[(option.hears, option.hear) for option in using["hear"]],
            tell=tuple([option.tell for option in using["tell"]]),
            stops=tuple([option.stops for option in using["stops"]]),
            ends=tuple([option.ended for option in using["ended"]]),
            deadline=math.inf if self.deadline is None else self.deadline,
            grace=self.rules.cancel_grace,
            name=self.id,
            slices=self.slices,
        )
        for option in reversed(using["next"]):
            race.next = partial(option.next, go=race.next)
        return race

    def rule(self, ruling: Ruling) -> None:
        """Carry out a ruling, even before or after the race."""
        if ruling.fatal in self.late:
            return  # A plugin's error comes twice: from its hook, and as it leaves what called it.
        if hasattr(self, "race"):
            if (fatal := ruling.fatal) is not None and self._is_late(fatal):
                self.late += (fatal,)
            else:
                self.race.rule(ruling)
        elif ruling.fatal is not None and self._fatal is None:
            self._fatal = ruling.fatal  # A hook has failed before the race.

    @property
    def fatal(self) -> BaseException | None:
        """The error that the call must raise; None if there is none."""
        return self.race.fatal if hasattr(self, "race") else self._fatal

    def _is_late(self, fatal: BaseException) -> bool:
        """Return whether an error came after the race of a call that may still have an answer."""
        # If it has one, the error doesn't take it away; only the call's conclusion knows. An
        # interrupt is never late. A race that was won has an answer, so it logs errors itself; and
        # after an earlier error, or without a draw that passed, there is no answer to take away.
        return (
            isinstance(fatal, Exception)
            and self.race.ended
            and not self.concluded
            and self.race.fatal is None
            and not self.race.won
            and any(slice_.passed for slice_ in self.slices)
        )

    # For its draws

    def draw_of(self, request: Request) -> Any:
        """Return the running `Draw` that a request belongs to, or None."""
        iteration = request.meta.iteration
        running: list[Any] = self.race.running
        return next((d for d in running if d is not None and d.ask.iteration == iteration), None)

    def parts_of(self, ask: Ask) -> Parts:
        """Return the `Parts` that a draw shares with the other draws of its call or stage."""
        spec = ask.spec
        for parts in self._parts:
            if parts.spec is spec:
                self.parts = parts
                return parts
        # A user's `render` may depend on anything; for these two classes it can run once.
        known = type(spec.action) in (Instruction, Message)
        self.parts = parts = Parts(
            spec,
            self.surrounded(Sent(spec.backend, "generate", spec, ask.stage)),
            StagedValidation(spec.requirements),
            tuple(spec.action.render(spec.context)) if known else None,
            spec.model,
        )
        self._parts += (parts,)
        return parts

    def surrounded(self, sent: Sent) -> Backend:
        """Return a backend with the options' wrappers around it."""
        backend = sent.backend
        for option in reversed(self.request_options):
            backend = option.request(backend, sent)
        return backend

    def refused(self, error: LimitExceeded) -> None:
        """Stop the call because a budget is spent. A stage's budget doesn't stop the call."""
        if error.stage is None:
            self.rule(Ruling(stop=True, why=Stop(StopReason.BUDGET, str(error), error)))

    async def around_check(self, draw: Draw, candidate: Candidate) -> Checked:
        """Check a candidate inside the options that wrap checks."""
        go: Callable[..., Awaitable[Checked]] = self._check
        for option in reversed(self.check_options):
            go = partial(option.check, go=go)
        return await go(draw, candidate, draw.parts.validation.requirements)

    async def _check(
        self, draw: Draw, candidate: Candidate, wanted: tuple[Requirement, ...]
    ) -> Checked:
        known = draw.parts.validation
        validation = known if wanted is known.requirements else StagedValidation(wanted)
        return wanted, await validation.check(candidate, self.rules.check_all)

    # Its course

    def run_race(self, loop_budget: int) -> Awaitable[None]:
        """Run the race and then each option's `settle`. Keep errors; raise only a cancellation."""
        go: Callable[[int], Awaitable[None]] = self._run_race
        for option in reversed(self.options):
            if "around" in option.uses:
                go = partial(option.around, go=go)
        return go(loop_budget)

    async def _run_race(self, loop_budget: int) -> None:
        race = self.race if hasattr(self, "race") else self.compose(loop_budget)
        # A lone lane runs in the caller's task, whose context must stay as it was.
        current = CURRENT.get()
        try:
            await race.run()
            if race.fatal is None and self.settle_options:
                self.meter = self.meter or Meter()
                meta = RequestMeta(self.id, call_started=self.started, deadline=self.deadline)
                CURRENT.set((meta, self.meter))
                settle: Callable[[], Awaitable[None]] = _settled
                for option in reversed(self.settle_options):
                    settle = partial(option.settle, go=settle)
                await settle()
        except Exception as exc:  # noqa: BLE001 (a bug in an option: the call raises it)
            # Not by a ruling, which would only be logged once the race is won: without what should
            # have been settled, the call has no answer.
            race.fatal = exc
        finally:
            CURRENT.set(current)

    @property
    def now(self) -> float:
        """The seconds since the call began."""
        return self.clock() - self.started

    def facts(self, turns: int, *, cancelled: bool) -> Facts:
        """Return how the race has ended. ``turns`` is the most draws that the call could make."""
        slices, race = self.slices, getattr(self, "race", None)
        if race is None:
            return Facts(slices, False, None, False, False, cancelled)
        cut, broken = len(slices) < turns, False
        was_cancelled, was_errored = Outcome.CANCELLED, Outcome.ERRORED  # Looked up only once.
        for slice_ in slices:
            if slice_.outcome is was_cancelled:
                cut = True
            elif slice_.outcome is was_errored and not slice_.may_continue:
                broken = True
        # The deadline may pass in the step in which the last lane ends; that cuts nothing.
        timed_out = race.time_up and cut
        stopped = race.why or (self.due if timed_out else None)
        return Facts(slices, race.won, stopped, timed_out, broken, cancelled)

    def choose(self, facts: Facts) -> Choice:
        """Ask the options for the winner; by default, it is the first slice that passed."""
        for option in self.choose_options:
            if (choice := option.choose(facts)) is not None:
                return choice
        return first_passed(facts)

    def forget(self) -> None:
        """Break the cycles between the call, its race and its options, to free the records."""
        for option in self.options:
            del option.call
        self.options = self.request_options = self.check_options = ()
        self.settle_options = self.choose_options = ()
        self.parts, self._parts = None, ()
        if hasattr(self, "race"):
            self.around_draw = Draw.run
            self.race.forget()
