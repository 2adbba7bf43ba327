"""The schedules that come with the library."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mellea_like.core.argument_checks import real_number, whole_number
from mellea_like.schedules.base import SLACK, BaseSchedule, Go, SchedulePlan
from mellea_like.schedules.learned import LatencyQuantiles

if TYPE_CHECKING:
    from mellea_like.core.slice import Slice
    from mellea_like.schedules.base import CallFacts, CallProgress

__all__ = ["Eager", "Hedged", "Restart", "Staggered"]


def _check(name: str, value: object, kind: type) -> None:
    if not isinstance(value, kind):
        msg = f"{name} is a {kind.__name__}, not {value!r}"
        raise TypeError(msg)


@dataclass(frozen=True, slots=True)
class Eager(BaseSchedule):
    """Starts as many iterations as ``concurrency_budget`` allows, at once. The default.

    A chain that a permanent error ended, such as a wrong key, is not replaced: else one wrong key
    would be asked with as many times as there are turns.

    Args:
        pool: whether the turns that a chain leaves, or has not come to, are open to fresh chains.
            Without it each subsample keeps its own turns.

    Raises:
        TypeError: ``pool`` isn't a bool.
    """

    pool: bool = False

    def __post_init__(self) -> None:
        _check("Eager: pool", self.pool, bool)

    @property
    def pooled(self) -> bool:
        """Whether turns that a chain leaves, or has not come to, are open to fresh chains."""
        return self.pool

    @property
    def timing_dependent(self) -> bool:
        """Whether which turns are taken depends on timing: when they are pooled."""
        return self.pool

    def begin(self, facts: CallFacts) -> SchedulePlan | None:
        """Begin a call."""
        return _Wide(facts.concurrency_budget) if self.pool else None


@dataclass(slots=True)
class _Wide(SchedulePlan):
    """Keeps as many iterations in flight as may be."""

    width: int

    def decide(self, progress: CallProgress) -> Go:
        """Fill up to the width, less the chains that permanent errors have ended."""
        return Go(max(0, self.width - progress.broken - len(progress.running)))


@dataclass(frozen=True, slots=True)
class Staggered(BaseSchedule):
    """Starts subsample i when i times ``delay`` seconds have passed; each keeps its own turns.

    A further subsample costs nothing if the ones before pass within the delay. If none is at work
    any more, the next one does not wait for its time. (The connection attempts of "happy
    eyeballs" are paced like this: RFC 8305, section 5.)

    The outcome of a turn does not depend on when it starts, so ``selection="ordered"`` is possible.

    Args:
        delay: seconds between the starts of two subsamples, over 0.

    Raises:
        TypeError: the delay isn't a number.
        ValueError: it is not over 0 and finite.
    """

    delay: float

    def __post_init__(self) -> None:
        real_number("Staggered: delay", self.delay, over=0)

    @property
    def pooled(self) -> bool:
        """Whether turns are open to fresh chains: no, each subsample keeps its own."""
        return False

    @property
    def timing_dependent(self) -> bool:
        """Whether which turns are taken depends on timing: no, only when they are."""
        return False

    def begin(self, facts: CallFacts) -> SchedulePlan:
        """Begin a call."""
        return _Paced(self.delay, facts.concurrency_budget)


@dataclass(slots=True)
class _Paced(SchedulePlan):
    """Continues every chain at work, and opens a further one when its time has come."""

    delay: float
    chains: int

    def decide(self, progress: CallProgress) -> Go:
        """Open what chains are due; chains at work continue whatever the time."""
        opened = progress.opened
        left = self.chains - opened
        if left <= 0:
            return Go(progress.waiting)
        due = 1 + int(min(self.chains - 1, (progress.now + SLACK) / self.delay))
        idle = not progress.running and not progress.waiting
        fresh = max(due - opened, 1 if idle else 0)
        return Go(
            progress.waiting + fresh,
            None if fresh == left else (opened + fresh) * self.delay,
        )


@dataclass(frozen=True, slots=True)
class Hedged(BaseSchedule):
    """Starts another iteration beside one that takes unusually long.

    An iteration that is older than most get (than the ``quantile`` of the durations known so far,
    per model) no longer counts towards ``concurrency_budget``, so another takes its place. It
    continues all the same. Never more than ``concurrency_budget + extra`` are in flight. Turns are
    pooled: while a chain lags, fresh chains take its turns. (Hedged requests: Dean and Barroso,
    "The Tail at Scale", CACM 56(2), 2013.)

    Until enough durations are known (see `LatencyQuantiles`), nothing is hedged.

    Args:
        quantile: the share of iterations that do not take unusually long, between 0 and 1.
        extra: how many iterations beyond ``concurrency_budget`` may be in flight, at least 1.
        latency: the durations known so far. By default each schedule learns its own; give several
            of them one object to learn from each other.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: an argument is out of its range.
    """

    quantile: float = 0.8
    # Read-only, as the property is that it replaces.
    extra: int = 1  # pyright: ignore[reportIncompatibleMethodOverride]
    latency: LatencyQuantiles = field(default_factory=LatencyQuantiles)

    def __post_init__(self) -> None:
        real_number("Hedged: quantile", self.quantile, over=0, under=1)
        whole_number("Hedged: extra", self.extra)
        _check("Hedged: latency", self.latency, LatencyQuantiles)

    def begin(self, facts: CallFacts) -> SchedulePlan:
        """Begin a call."""
        return _Hedging(self, facts.concurrency_budget, facts.model)


@dataclass(slots=True)
class _Hedging(SchedulePlan):
    """Keeps as many iterations in flight as may be, not counting those that take too long."""

    schedule: Hedged
    width: int
    model: str | None

    def decide(self, progress: CallProgress) -> Go:
        """Fill up to the width, less the chains that permanent errors have ended."""
        width = max(0, self.width - progress.broken)
        if progress.wanted is not None:
            width = min(width, progress.wanted)
        running = progress.running
        usual = self.schedule.latency.quantile(self.schedule.quantile, self.model)
        if usual is None:
            return Go(max(0, width - len(running)))
        old = progress.now + SLACK - usual
        counting = [began for began in running if began > old]
        most = width + self.schedule.extra if width else 0
        more = max(0, min(width - len(counting), most - len(running)))
        if len(running) + more >= most:
            return Go(more)
        return Go(more, min((*counting, progress.now) if more else counting) + usual)

    def observe(self, slice_: Slice) -> None:
        """Learn how long an iteration took."""
        self.schedule.latency.learn(slice_, self.model)


@dataclass(frozen=True, slots=True)
class Restart(BaseSchedule):
    """Closes the request of an iteration that takes unusually long, and draws it again.

    An iteration whose reply takes longer than most iterations do (than the ``quantile`` of the
    durations known so far, per model) sends another request in place of that one, with another
    seed. It remains one iteration, whose usage has both requests. When iterations start is another
    schedule's to say: ``Restart(schedule=Hedged())`` does both.

    It helps where slowness is redrawn: a busy replica behind a load balancer, a reply that rambles.
    If the prompt itself takes long, or the whole server is slow, what had arrived is
    lost, so that an iteration is drawn again ``most`` times only and then takes as long as it does.
    The time that a request waits for a limiter counts. (With heavy tails, the expected time to a
    reply is least with restarts at a fixed cutoff: Luby, Sinclair and Zuckerman, "Optimal speedup
    of Las Vegas algorithms", IPL 47, 1993.)

    Until enough durations are known (see `LatencyQuantiles`), nothing is drawn again; nor is an
    iteration that was sent when a budget had no room for another like it.

    Args:
        quantile: the share of iterations that do not take unusually long, between 0 and 1.
        schedule: when iterations may start; by default as many as ``concurrency_budget`` at once,
            with pooled turns.
        most: how often an iteration is drawn again at most, at least 1.
        latency: the durations known so far. By default each schedule learns its own; give several
            of them one object to learn from each other.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: an argument is out of its range.
    """

    quantile: float = 0.95
    schedule: BaseSchedule = Eager(pool=True)
    most: int = 2
    latency: LatencyQuantiles = field(default_factory=LatencyQuantiles)

    def __post_init__(self) -> None:
        real_number("Restart: quantile", self.quantile, over=0, under=1)
        _check("Restart: schedule", self.schedule, BaseSchedule)
        whole_number("Restart: most", self.most)
        _check("Restart: latency", self.latency, LatencyQuantiles)

    @property
    def pooled(self) -> bool:
        """Whether turns are open to fresh chains: as the other schedule has it."""
        return self.schedule.pooled

    @property
    def extra(self) -> int:
        """How many iterations beyond ``concurrency_budget`` the other schedule may start."""
        return self.schedule.extra

    @property
    def seconds(self) -> float | None:
        """When the call's time is up, by the other schedule."""
        return self.schedule.seconds

    def begin(self, facts: CallFacts) -> SchedulePlan:
        """Begin a call."""
        plan = self.schedule.begin(facts) or _Wide(facts.concurrency_budget)
        return _Restarting(self, plan, facts.model)


@dataclass(slots=True)
class _Restarting(SchedulePlan):
    """Starts what another schedule starts, and knows how long a reply may take."""

    schedule: Restart
    plan: SchedulePlan
    model: str | None
    waited: dict[int, float] = field(default_factory=dict[int, float])

    def decide(self, progress: CallProgress) -> Go:
        """Decide as the other schedule does."""
        return self.plan.decide(progress)

    def patience(self, restarts: int, model: str | None) -> float | None:
        """Wait as long as most iterations take."""
        if restarts >= self.schedule.most:
            return None
        usual = self.schedule.latency.quantile(self.schedule.quantile, model)
        return None if usual is None else usual + SLACK

    def restarted(self, chain: int, seconds: float, model: str | None) -> None:
        """Learn that a reply would have taken longer."""
        self.waited[chain] = self.waited.get(chain, 0.0) + seconds
        self.schedule.latency.observe(seconds, model, censored=True)
        self.plan.restarted(chain, seconds, model)

    def observe(self, slice_: Slice) -> None:
        """Learn how long the latest draw of an iteration took."""
        before = self.waited.pop(slice_.chain, 0.0)
        model = self.model if slice_.stage is None else slice_.asked
        self.schedule.latency.learn(slice_, model, before=before)
        self.plan.observe(slice_)
