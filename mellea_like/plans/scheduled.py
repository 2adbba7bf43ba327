"""The plan of a call with a schedule, which decides how many draws may start, and when.

A chain that waits for its repair is only data in the plan, until an idle lane continues it. So
there are only as many lanes as draws may run at the same time, however many chains wait.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from operator import index
from typing import TYPE_CHECKING, Any, NamedTuple

from mellea_like.core.slice import Outcome
from mellea_like.kernel.ports import Wait
from mellea_like.plans.repairs import ChainState
from mellea_like.schedules.base import SLACK, CallProgress, SchedulePlan

if TYPE_CHECKING:
    from collections.abc import Callable

    from mellea_like.core.slice import Slice
    from mellea_like.kernel.ports import Ask, Next
    from mellea_like.plans.repairs import Repairs


class Turn(NamedTuple):
    """Permission to start one draw: its id (1-based), its lane and its place there (0-based)."""

    iteration: int
    subsample: int
    depth: int


def turn_of(subsample: int, depth: int, loop_budget: int) -> Turn:
    """Return the turn at a lane and depth; ids are numbered lane by lane."""
    return Turn(subsample * loop_budget + depth + 1, subsample, depth)


class TurnPool:
    """Hands out the turns of a call. A chain takes those of its own lane, in order.

    If turns are pooled, a chain without turns borrows one from the lane that has the most left. A
    borrowed turn keeps its id.
    """

    __slots__ = ("_loop_budget", "_next", "left", "pooled")

    def __init__(self, lanes: int, loop_budget: int, *, pooled: bool) -> None:
        self._loop_budget = loop_budget
        self._next = [0] * lanes
        self.pooled = pooled
        self.left = lanes * loop_budget

    def has(self, chain: int) -> bool:
        """Return whether a chain can get a turn: its own or, if turns are pooled, any."""
        if self.pooled:
            return self.left > 0
        return chain < len(self._next) and self._next[chain] < self._loop_budget

    def take(self, chain: int) -> Turn | None:
        """Take the next turn for a chain; return None if no turn is left for it."""
        if not self.has(chain):
            return None
        lane = chain
        if chain >= len(self._next) or self._next[chain] == self._loop_budget:
            lane = min(range(len(self._next)), key=self._next.__getitem__)
        depth = self._next[lane]
        self._next[lane] = depth + 1
        self.left -= 1
        return turn_of(lane, depth, self._loop_budget)


@dataclass(eq=False, repr=False)
class Scheduled:
    """The plan of a call that has a schedule, or whose selection doesn't need all possible draws.

    At most ``most`` draws run at the same time, plus ``extra`` ones that the schedule may add.
    ``wanted()`` returns how many more passing draws could matter. If ``wanted`` is None, the first
    pass decides.
    """

    schedule: SchedulePlan
    repairs: Repairs
    pool: TurnPool
    loop_budget: int
    most: int
    extra: int = 0
    wanted: Callable[[], int] | None = None

    def __post_init__(self) -> None:
        self.lanes = min(self.most + self.extra, max(1, self.pool.left))
        self.running: dict[int, float] = {}
        """Maps the chain of each running draw to the time when the draw began or was restarted."""
        self._waiting: deque[int] = deque()
        self._draws: dict[int, int] = {}
        self._opened = self._started = self._failed = self._passed = self._broken = 0
        self._more = 0
        self._look_again = -math.inf

    def __repr__(self) -> str:
        return type(self.schedule).__name__

    def next(self, lane: int, now: float) -> Next:  # noqa: ARG002 (chains are no lane's)
        """Return a draw that may start now, or how long to wait; None if no further one starts."""
        if now >= self._look_again - SLACK:
            now = max(now, self._look_again)
            self._decide(now)
        while self._more > 0:
            self._more -= 1
            ask = self._continue(now) or self._open(now)
            if ask is not None:
                return ask
            self._more = 0
        if not self.running and not self._may_start():
            return None  # Nothing runs, and nothing ever will.
        if not self.running and self._look_again == math.inf and self._broken:
            return None  # The schedule may start no chain in the place of a broken one.
        # If nothing runs and the schedule holds back for no such reason, the race logs a warning.
        return Wait(self._look_again - now)

    def hear(self, slice_: Slice) -> None:
        """Take note of a draw that has ended."""
        chain = slice_.chain
        self.running.pop(chain, None)
        self._failed += slice_.outcome is Outcome.FAILED
        self._passed += slice_.outcome is Outcome.PASSED
        state = self.repairs.hear(slice_)
        self._broken += state is ChainState.BROKEN
        if state is ChainState.CONTINUES and self._draws[chain] < self.loop_budget:
            self._waiting.append(chain)
        self._look_again = -math.inf

    def unused(self, ask: Ask) -> None:
        """End the chain of a draw that can't win: the chain's later draws can't win, either."""
        self.running.pop(ask.chain, None)
        self._look_again = -math.inf

    def _decide(self, now: float) -> None:
        wanted = None if self.wanted is None else self.wanted()
        progress = CallProgress(
            now,
            tuple(self.running.values()),
            self._opened,
            self._started,
            self._failed,
            self._broken,
            self.pool.left,
            len(self._waiting) if self.pool.left else 0,
            self._passed,
            wanted,
        )
        more, look_again = checked(self.schedule.decide(progress))
        most = self.most if wanted is None else min(self.most, wanted)
        self._more = min(more, most + self.extra - len(self.running))
        if not self.pool.left or look_again is None or look_again <= now:
            look_again = math.inf
        self._look_again = look_again

    def _may_start(self) -> bool:
        return bool(self._waiting) or self.pool.has(self._opened)

    def _continue(self, now: float) -> Ask | None:
        """Return the next draw of the chain that has waited longest; None if none can continue."""
        while self._waiting:
            ask = self._ask(self._waiting.popleft(), now)
            if ask is not None:
                return ask
        return None

    def _open(self, now: float) -> Ask | None:
        ask = self._ask(self._opened, now)
        self._opened += ask is not None
        return ask

    def _ask(self, chain: int, now: float) -> Ask | None:
        while (turn := self.pool.take(chain)) is not None:
            ask = self.repairs.ask(*turn, chain)
            if ask is not None:
                self.running[chain] = now
                self._draws[chain] = self._draws.get(chain, 0) + 1
                self._started += 1
                return ask
        return None


def checked(answer: Any) -> tuple[int, float | None]:
    """Return a schedule's decision, or raise ``TypeError`` if it isn't valid."""
    try:
        more, look_again = answer
        more = index(more)
        if look_again is not None and math.isnan(look_again):
            raise ValueError(look_again)
    except (TypeError, ValueError) as exc:
        msg = f"the schedule decided {answer!r}, not Go(more, look_again): an int, a time or None"
        raise TypeError(msg) from exc
    return more, None if look_again == math.inf else look_again
