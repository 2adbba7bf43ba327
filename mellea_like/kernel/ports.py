"""The ports of a call: the interfaces through which its plan and its options control it.

`Plan` and `Option.hear` make decisions, synchronously, so nothing else happens meanwhile. Some
ports of an `Option` wrap what may wait (a request, a draw, a check, the settling, the call); the
others are synchronous, too. The kernel composes them and knows nothing else about the options.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from mellea_like.core.argument_checks import is_async
from mellea_like.core.records import record

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from mellea_like.core.backend import Backend, Purpose
    from mellea_like.core.conversation import Action, Context
    from mellea_like.core.decision import Decision
    from mellea_like.core.generation import Generation
    from mellea_like.core.requirement import Requirement
    from mellea_like.core.result import StopReason
    from mellea_like.core.slice import Outcome, Slice
    from mellea_like.core.spec import Spec
    from mellea_like.core.validation import Candidate, ValidationResult
    from mellea_like.kernel.call import Call
    from mellea_like.kernel.draw import Draw

__all__ = [
    "Ask",
    "Body",
    "Checked",
    "Choice",
    "Facts",
    "Next",
    "NotAnAnswer",
    "Option",
    "Plan",
    "Ruling",
    "Sent",
    "Stop",
    "Wait",
]


@record(frozen=True, slots=True)
class Ask:
    """A draw that may start now, as data that depends only on the records of earlier draws.

    The fields up to ``depth`` are the draw's turn. Keeping them in a separate object would cost
    0.2 µs per draw.
    """

    iteration: int
    subsample: int
    depth: int
    chain: int
    """The index of the draw's chain, in which each draw repairs the one before or draws again."""
    action: Action[Any]
    context: Context
    spec: Spec
    """The inputs of the call, or of its stage."""
    stage: int | None = None
    repairs: Slice | None = None
    """The failed draw that this one repairs; None if it repairs none."""

    @property
    def rank(self) -> tuple[int, int]:
        """The draw's rank. If timing must not matter, the passing draw of the lowest rank wins."""
        return self.depth, self.subsample


class Wait(NamedTuple):
    """A plan's answer that a lane must wait: for ``seconds``, or until a draw starts or ends."""

    seconds: float = math.inf


Next = Ask | Wait | None
"""A plan's answer to a lane: a draw to start, or a wait, or None to end the lane."""


class Stop(NamedTuple):
    """Why a call was stopped early. The call raises ``error`` if no draw was judged."""

    reason: StopReason
    detail: str
    error: Exception | None = None


class Ruling(NamedTuple):
    """An option's decision about a race, such as to end it. The defaults change nothing."""

    over: bool = False
    """Whether to end the race and cancel its draws. If ``why`` isn't set, the call is won."""
    stop: bool = False
    """Whether no further draw may start. Running draws continue."""
    drop: Callable[[Ask], bool] | None = None
    """Selects draws that can't win any more: running ones are cancelled, others don't start."""
    fatal: BaseException | None = None
    """The error that the call raises; None if there is none."""
    why: Stop | None = None
    """The reason to report if the call ends without being won. Alone, it doesn't stop the race."""
    hold: float = 0.0
    """How many seconds the lane of the slice that was just recorded waits before its next draw."""


class Plan(Protocol):
    """Decides which draw starts next, and what it asks. Pure and synchronous."""

    lanes: int
    """How many draws may run at the same time, 1 or more."""

    def next(self, lane: int, now: float) -> Next:
        """Return what an idle lane does next; ``now`` is in seconds since the call began."""
        ...

    def hear(self, slice_: Slice) -> None:
        """Take note of a draw that has ended. Each draw that has started is reported once."""
        ...

    def unused(self, ask: Ask) -> None:
        """Take note of an ask that was not started, because its turn can't win any more."""
        ...


class Body(Protocol):
    """A draw or, in tests, something simpler that a race runs in its lanes."""

    ask: Ask

    def run(self) -> Awaitable[None]:
        """Run the body; it raises only cancellations and errors that the call must raise."""
        ...

    def record(self, ended_at: float) -> Any:
        """Return the record of what is known now, however the body ended. Synchronous."""
        ...


class NotAnAnswer(Exception):
    """Ends a draw as failed: the reply can't be checked, or ``verdicts`` rejected it early."""

    def __init__(
        self,
        reason: str,
        reply: Generation | None = None,
        verdicts: Sequence[ValidationResult] = (),
    ) -> None:
        super().__init__(reason)
        self.reply = reply
        self.verdicts = verdicts


Checked = tuple[tuple["Requirement", ...], "Sequence[ValidationResult]"]
"""Requirements, including those that an option adds, and the verdict on each."""


class Sent(NamedTuple):
    """Describes the requests to one backend, for the options that wrap this backend."""

    backend: Backend
    """The backend as the user gave it, without the options around it."""
    purpose: Purpose
    spec: Spec
    """The inputs of the draws that the requests are for."""
    stage: int | None = None
    """The index of the stage; None without stages."""


class Option:
    """An optional feature of one call; a subclass overrides the ports (methods) that it needs.

    A port that gets ``go`` wraps a step, and ``go`` runs that step. Options wrap one another in the
    order of `sampling/table.py`; the first is the outermost.
    """

    call: Call
    """The call, set before any port is used."""
    uses: ClassVar[tuple[str, ...]] = ()
    """The ports that the class overrides; the others cost nothing."""
    hears: ClassVar[Outcome | None] = None
    """If set, ``hear`` gets only slices with this outcome; if None, it gets all slices."""

    def __init_subclass__(cls) -> None:
        ports = {name: port for name, port in vars(Option).items() if not name.startswith("_")}
        cls.uses = tuple(
            name
            for name, port in ports.items()
            if callable(port) and getattr(cls, name) is not port
        )
        for name in cls.uses:
            if is_async(getattr(cls, name)) and not is_async(ports[name]):
                msg = f"{cls.__name__}.{name} can't be async: the race doesn't wait for it"
                raise TypeError(msg)

    def next(self, lane: int, now: float, go: Callable[[int, float], Next]) -> Next:
        """Wrap the plan's answer to a lane; ``go`` asks the plan."""
        return go(lane, now)

    def request(self, inner: Backend, sent: Sent) -> Backend:
        """Wrap a backend; the call does this once for each stage and each judge."""
        del sent
        return inner

    async def draw(self, draw: Draw, go: Callable[[Draw], Awaitable[None]]) -> None:
        """Wrap a draw; ``go`` runs the draw."""
        await go(draw)

    async def check(
        self,
        draw: Draw,
        candidate: Candidate,
        wanted: tuple[Requirement, ...],
        go: Callable[[Draw, Candidate, tuple[Requirement, ...]], Awaitable[Checked]],
    ) -> Checked:
        """Wrap the check of a candidate; ``go`` runs the check."""
        return await go(draw, candidate, wanted)

    async def around(self, loop_budget: int, go: Callable[[int], Awaitable[None]]) -> None:
        """Wrap the whole call: its race, and then `settle`; ``go`` runs both.

        Only options of the table `AROUND` are asked, because the others are made inside of it.
        """
        await go(loop_budget)

    def hear(self, slice_: Slice) -> Ruling | None:
        """Return a ruling on a slice, or None. Called in the step that records it, until a win."""
        del slice_
        return None

    def tell(self, slice_: Slice) -> None:
        """Observe a slice; called after every option's `hear`."""
        del slice_

    def stops(self) -> None:
        """Take note that no further draw will start."""

    def ended(self) -> None:
        """Take note that all lanes have ended, for any reason."""

    async def settle(self, go: Callable[[], Awaitable[None]]) -> None:
        """After the race, wrap the work that needs all draws, such as comparing them.

        The cost of the requests that are sent meanwhile is the call's, and no draw's.
        """
        await go()

    def choose(self, facts: Facts) -> Choice | None:
        """Choose the winner, or return None to leave the choice to the next option. Pure."""
        del facts
        return None


class Facts(NamedTuple):
    """How the race of a call has ended."""

    slices: Sequence[Slice]
    won: bool
    """Whether a ruling has decided the call, because enough draws have passed."""
    stopped: Stop | None
    timed_out: bool
    broken: bool
    """Whether a permanent error ended a lane."""
    cancelled: bool


class Choice(NamedTuple):
    """The winner's position among the slices, and whether no further draw could have changed it."""

    place: int | None
    final: bool
    decision: Decision | None = None
    why: Stop | None = None
    """Why the choice isn't final, if the option knows a reason."""
