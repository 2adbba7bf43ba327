"""Starting iterations when a schedule says so.

A call whose schedule has something to decide has a scheduler: it keeps the turns that are left,
asks the schedule when something has happened or the time has come, opens chains, and holds back
those that would go on too early. What it knows changes in synchronous steps; its task only keeps
the time.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from operator import index
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio

from mellea_like.core.slice import Outcome, Slice
from mellea_like.sampling.iteration import Turn, turn_of
from mellea_like.schedules.base import CallProgress, SchedulePlan

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

__all__ = ["Scheduler", "TurnPool"]


class TurnPool:
    """The turns of a call that are left.

    A chain takes the turns of its own subsample, in order. Where turns are pooled, a chain that has
    none, because it is a fresh one or because others took them, borrows from the subsample that has
    most left (the lowest of several). A borrowed turn keeps its id.
    """

    __slots__ = ("_loop_budget", "_next", "left", "pooled")

    def __init__(self, subsamples: int, loop_budget: int, *, pooled: bool) -> None:
        self._loop_budget = loop_budget
        self._next = [0] * subsamples
        self.pooled = pooled
        self.left = subsamples * loop_budget

    def has(self, chain: int) -> bool:
        """Tell whether there is a turn for a chain; past the subsamples, it is a fresh one."""
        if self.pooled:
            return self.left > 0
        return chain < len(self._next) and self._next[chain] < self._loop_budget

    def take(self, chain: int) -> Turn | None:
        """Take the next turn for a chain; None where there is none for it."""
        if not self.has(chain):
            return None
        subsample = chain
        if chain >= len(self._next) or self._next[chain] == self._loop_budget:
            subsample = min(range(len(self._next)), key=self._next.__getitem__)
        depth = self._next[subsample]
        self._next[subsample] = depth + 1
        self.left -= 1
        return turn_of(subsample, depth, self._loop_budget)


class _Waiting(NamedTuple):
    """A chain that waits for its next turn."""

    chain: int
    ready: anyio.Event


class Scheduler:
    """A schedule at work in one call: at most so many iterations in flight at a time."""

    def __init__(
        self,
        plan: SchedulePlan,
        pool: TurnPool,
        *,
        most: int,
        extra: int = 0,
        wanted: Callable[[], int] | None = None,
        clock: Callable[[], float],
        abort: Callable[[BaseException, str], None],
    ) -> None:
        self._plan = plan
        # Asking costs time in each iteration, and few schedules draw anew.
        self.restarts = getattr(type(plan), "patience", None) not in {None, SchedulePlan.patience}
        self._pool = pool
        self._most = most + extra
        self._extra = extra
        self._wanted = wanted
        self._clock = clock
        self._abort = abort
        self._running: dict[int, float] = {}
        self._impatient: dict[int, anyio.CancelScope] = {}
        self._granted: dict[int, Turn | None] = {}
        self._waiting: list[_Waiting] = []
        self._opened = self._started = self._failed = self._passed = self._broken = 0
        self._look_again: float | None = None
        self._changed: anyio.Event | None = None
        self._open: Callable[[int], None] | None = None
        self._over = False

    # What producers use

    async def turn_for(self, chain: int) -> Turn | None:
        """Return a chain's next turn, when the schedule lets it go on; None where none is left."""
        if chain not in self._granted:
            if self._over:
                return None
            waiting = _Waiting(chain, anyio.Event())
            self._waiting.append(waiting)
            self._steer()
            if chain not in self._granted:
                try:
                    await waiting.ready.wait()
                except BaseException:
                    if waiting in self._waiting:
                        self._waiting.remove(waiting)
                    raise
        return self._granted.pop(chain)

    def unused(self, chain: int) -> None:
        """Take note of a turn that was granted to a chain, and that nothing was started on."""
        self._running.pop(chain, None)
        self._started -= 1

    def patience(self, chain: int, restarts: int, model: str | None) -> float | None:
        """Return for how long a chain may wait for a reply before it draws anew; None for ever."""
        try:
            spends = self._plan.restarts_spend_turns
            seconds = self._plan.patience(restarts, model)
        except Exception as exc:  # noqa: BLE001 (a bug in the schedule: the call raises it)
            self._fail(exc)
            return None
        return None if self._over or (spends and not self._pool.has(chain)) else seconds

    @contextmanager
    def waiting_in(self, scope: anyio.CancelScope, chain: int) -> Generator[None]:
        """Have what ends a chain's wait for a reply wait for ever, once it can't draw anew."""
        self._impatient[chain] = scope
        try:
            yield
        finally:
            del self._impatient[chain]

    def restarted(self, chain: int, seconds: float, model: str | None) -> None:
        """Take note of an iteration that is drawn anew, after so many seconds."""
        self._running[chain] = self._clock()
        try:
            if self._plan.restarts_spend_turns:
                self._pool.take(chain)
            self._plan.restarted(chain, seconds, model)
        except Exception as exc:  # noqa: BLE001 (a bug in the schedule: the call raises it)
            self._fail(exc)
        self._steer()

    def recorded(self, slice_: Slice) -> None:
        """Take note of an iteration that has ended: part of the step that records it."""
        self._running.pop(slice_.chain, None)
        self._failed += slice_.outcome is Outcome.FAILED
        self._passed += slice_.outcome is Outcome.PASSED
        try:
            self._plan.observe(slice_)
        except Exception as exc:  # noqa: BLE001 (a bug in the schedule: the call raises it)
            self._fail(exc)

    def chain_ended(self, chain: int, *, broken: bool) -> None:
        """Take note of a chain that has ended, and start what may start in its place."""
        self._running.pop(chain, None)
        self._broken += broken
        self._steer()

    # What the race uses

    def start(self, open_chain: Callable[[int], None]) -> None:
        """Begin: open the first chains."""
        self._open = open_chain
        self._steer()

    async def keep_time(self) -> None:
        """Ask the schedule again whenever it wants to be asked, until there is nothing to start."""
        while not self._over:
            self._changed = anyio.Event()
            if self._look_again is None:
                await self._changed.wait()
                continue
            with anyio.move_on_after(self._look_again - self._clock()) as scope:
                await self._changed.wait()
            if scope.cancelled_caught:
                self._steer()

    def stop(self) -> None:
        """Start nothing any more: waiting chains end, and the timer task ends."""
        self._over = True
        self._open = None
        self._dismiss()
        self._wake()

    # Steering

    def _steer(self) -> None:
        """Start as many iterations as the schedule wants now."""
        if self._over or self._open is None:
            return
        try:
            wanted = None if self._wanted is None else self._wanted()
        except Exception as exc:  # noqa: BLE001 (a bug in the selection: the call raises it)
            self._fail(exc, "the selection")
            return
        progress = CallProgress(
            self._clock(),
            tuple(self._running.values()),
            self._opened,
            self._started,
            self._failed,
            self._broken,
            self._pool.left,
            len(self._waiting),
            self._passed,
            wanted,
        )
        try:
            more, look_again = _checked(self._plan.decide(progress))
        except Exception as exc:  # noqa: BLE001 (a bug in the schedule: the call raises it)
            self._fail(exc)
            return
        most = self._most if wanted is None else min(self._most, wanted + self._extra)
        for _ in range(min(more, most - len(self._running))):
            if not (self._go_on() or self._open_chain()):
                break
        if not self._pool.left or (look_again is not None and look_again <= progress.now):
            look_again = None
        if look_again != self._look_again:
            self._look_again = look_again
            self._wake()
        if not self._running and (look_again is None or not self._may_start()):
            self.stop()  # Nothing runs, and nothing ever will.
        elif not self._pool.left:
            self._dismiss()

    def _may_start(self) -> bool:
        """Tell whether there is a turn for a chain that waits, or for a new one."""
        return bool(self._waiting) or self._pool.has(self._opened)

    def _go_on(self) -> bool:
        """Let the chain go on that has waited longest and has a turn."""
        while self._waiting:
            waiting = self._waiting.pop(0)
            turn = self._pool.take(waiting.chain)
            self._grant(waiting.chain, turn)
            waiting.ready.set()
            if turn is not None:
                return True
        return False

    def _open_chain(self) -> bool:
        """Open the next chain, if there is a turn for it."""
        turn = self._pool.take(self._opened)
        if turn is None or self._open is None:
            return False
        chain = self._opened
        self._opened += 1
        self._grant(chain, turn)
        self._open(chain)
        return True

    def _grant(self, chain: int, turn: Turn | None) -> None:
        self._granted[chain] = turn
        if turn is not None:
            self._started += 1
            self._running[chain] = self._clock()

    def _dismiss(self) -> None:
        """End the chains that wait for a turn: there is none for them."""
        for waiting in self._waiting:
            self._granted[waiting.chain] = None
            waiting.ready.set()
        self._waiting.clear()
        if self._impatient and (self._over or self._plan.restarts_spend_turns):
            for scope in self._impatient.values():
                scope.deadline = math.inf  # There will be no other reply in place of this one.

    def _fail(self, error: Exception, source: str = "the schedule") -> None:
        self._abort(error, source)
        self.stop()

    def _wake(self) -> None:
        if self._changed is not None:
            self._changed.set()


def _checked(answer: Any) -> tuple[int, float | None]:
    """Make sure that a schedule has decided something, before anything is started on it."""
    try:
        more, look_again = answer
        more = index(more)
        if look_again is not None and math.isnan(look_again):
            raise ValueError(look_again)
    except (TypeError, ValueError) as exc:
        msg = f"the schedule decided {answer!r}, not Go(more, look_again): an int, a time or None"
        raise TypeError(msg) from exc
    return more, None if look_again == math.inf else look_again
