"""The library's own schedules."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mellea_like.core.argument_checks import check_type, real_number, whole_number
from mellea_like.schedules.base import SLACK, BaseSchedule, Go, SchedulePlan
from mellea_like.schedules.learned import LatencyQuantiles

if TYPE_CHECKING:
    from mellea_like.core.slice import Slice
    from mellea_like.schedules.base import CallFacts, CallProgress

__all__ = ["Eager", "Hedged", "Restart", "Staggered"]


@dataclass(frozen=True, slots=True)
class Eager(BaseSchedule):
    """Starts as many draws as ``concurrency_budget`` allows, immediately. This is the default.

    A lane that ended with a permanent error, such as a wrong API key, is not replaced. Otherwise a
    wrong key would be sent once for each attempt.

    Args:
        pool: whether other lanes may take over the attempts of a lane that ends early or is slow.
            If not, each lane keeps its own attempts.

    Raises:
        TypeError: ``pool`` isn't a bool.
    """

    pool: bool = False

    def __post_init__(self) -> None:
        check_type("Eager: pool", self.pool, bool, "a bool")

    @property
    def pooled(self) -> bool:
        """Whether a new sequence of draws may use the attempts of another lane."""
        return self.pool

    @property
    def timing_dependent(self) -> bool:
        """Whether timing influences which draws are made: yes if attempts are pooled, else no."""
        return self.pool

    def begin(self, facts: CallFacts) -> SchedulePlan | None:
        """Return the state for a new call."""
        return _Wide(facts.concurrency_budget) if self.pool else None


@dataclass(slots=True)
class _Wide(SchedulePlan):
    """Keeps ``width`` draws in flight, for as long as there are attempts."""

    width: int

    def decide(self, progress: CallProgress) -> Go:
        return Go(max(0, self.width - progress.broken - len(progress.running)))


@dataclass(frozen=True, slots=True)
class Staggered(BaseSchedule):
    """Starts each lane ``delay`` seconds after the one before. Lanes don't share their attempts.

    A further lane costs nothing if an earlier one passes within the delay. If no lane is at work,
    the next one starts immediately. With a single lane, there is no delay. ("Happy eyeballs" paces
    connection attempts in the same way: RFC 8305, section 5.)

    The time at which a draw starts does not influence its outcome, so ``selection="ordered"`` is
    possible.

    Args:
        delay: the seconds between the starts of two lanes, over 0.

    Raises:
        TypeError: the delay isn't a number.
        ValueError: the delay is not over 0 and finite.
    """

    delay: float

    def __post_init__(self) -> None:
        real_number("Staggered: delay", self.delay, over=0)

    @property
    def pooled(self) -> bool:
        """Whether a new sequence of draws may use the attempts of another lane: never."""
        return False

    @property
    def timing_dependent(self) -> bool:
        """Whether timing influences which draws are made: no, it influences only their start."""
        return False

    def begin(self, facts: CallFacts) -> SchedulePlan:
        """Return the state for a new call."""
        return _Paced(self.delay, facts.concurrency_budget)


@dataclass(slots=True)
class _Paced(SchedulePlan):
    """Opens a new chain of draws every ``delay`` seconds, and lets the open ones continue."""

    delay: float
    chains: int

    def decide(self, progress: CallProgress) -> Go:
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
    """Starts another draw beside one that takes unusually long.

    A draw that takes longer than most (longer than the ``quantile`` of the durations known so far,
    per model) no longer counts towards ``concurrency_budget``, so another one starts. The slow
    draw continues. At most ``concurrency_budget + extra`` draws are in flight. While a lane lags
    behind, its attempts are used by new sequences of draws. (Hedged requests: Dean and Barroso,
    "The Tail at Scale", CACM 56(2), 2013.)

    Until enough durations are known (see `LatencyQuantiles`), nothing is hedged.

    Args:
        quantile: the share of draws that do not take unusually long, between 0 and 1.
        extra: how many draws beyond ``concurrency_budget`` may be in flight, at least 1.
        latency: the durations known so far. By default, each schedule learns its own. Schedules
            that share one object learn from each other.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: an argument is out of range.
    """

    quantile: float = 0.8
    # This is read-only, like the property that it replaces.
    extra: int = 1  # pyright: ignore[reportIncompatibleMethodOverride]
    latency: LatencyQuantiles = field(default_factory=LatencyQuantiles)

    def __post_init__(self) -> None:
        real_number("Hedged: quantile", self.quantile, over=0, under=1)
        whole_number("Hedged: extra", self.extra)
        check_type("Hedged: latency", self.latency, LatencyQuantiles, "a LatencyQuantiles")

    def begin(self, facts: CallFacts) -> SchedulePlan:
        """Return the state for a new call."""
        return _Hedging(self, facts.concurrency_budget, facts.model)


@dataclass(slots=True)
class _Hedging(SchedulePlan):
    """Keeps ``width`` ordinary draws in flight, besides those that take unusually long."""

    schedule: Hedged
    width: int
    model: str | None

    def decide(self, progress: CallProgress) -> Go:
        """Allow ``width`` draws that aren't slow, less one per chain ended by a permanent error."""
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
        self.schedule.latency.learn(slice_, self.model)


@dataclass(frozen=True, slots=True)
class Restart(BaseSchedule):
    """Closes the request of a draw that takes unusually long, and sends another one.

    A draw whose reply takes longer than most (longer than the ``quantile`` of the durations known
    so far, per model) is restarted: its request is replaced by another one, with another seed if
    the draw has one. It remains one draw, whose usage includes both requests. Another schedule
    decides when draws start, so ``Restart(schedule=Hedged())`` does both.

    This helps if a new request is likely to be quicker, for example after a busy replica behind a
    load balancer, or a reply that rambles. If the prompt itself takes long, or the whole server is
    slow, a restart only loses the text so far. So a draw is restarted at most ``most`` times, and
    then takes as long as it takes. Waiting for a limiter counts as part of the duration. (With
    heavy tails, restarts at a fixed cutoff minimize the expected time to a reply: Luby, Sinclair
    and Zuckerman, "Optimal speedup of Las Vegas algorithms", IPL 47, 1993.)

    Nothing is restarted until enough durations are known (see `LatencyQuantiles`), or while so many
    draws are cancelled early, because others pass, that the quantile is unknown. Nor is a draw
    restarted if a budget had no room for another request when the draw's request was sent.

    Args:
        quantile: the share of draws that do not take unusually long, between 0 and 1.
        schedule: the wrapped schedule, which decides when draws may start. By default, as many as
            ``concurrency_budget`` start immediately, and lanes share their attempts.
        most: the most restarts of one draw, at least 1.
        latency: the durations known so far. By default, each schedule learns its own. Schedules
            that share one object learn from each other.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: an argument is out of range.
    """

    quantile: float = 0.95
    schedule: BaseSchedule = Eager(pool=True)
    most: int = 2
    latency: LatencyQuantiles = field(default_factory=LatencyQuantiles)

    def __post_init__(self) -> None:
        real_number("Restart: quantile", self.quantile, over=0, under=1)
        check_type("Restart: schedule", self.schedule, BaseSchedule, "a schedule")
        whole_number("Restart: most", self.most)
        check_type("Restart: latency", self.latency, LatencyQuantiles, "a LatencyQuantiles")

    @property
    def pooled(self) -> bool:
        """Whether the wrapped schedule lets new sequences of draws use another lane's attempts."""
        return self.schedule.pooled

    @property
    def extra(self) -> int:
        """How many draws beyond ``concurrency_budget`` the wrapped schedule may start."""
        return self.schedule.extra

    @property
    def seconds(self) -> float | None:
        """The longest that a call may take, in seconds, according to the wrapped schedule."""
        return self.schedule.seconds

    def begin(self, facts: CallFacts) -> SchedulePlan:
        """Return the state for a new call."""
        plan = self.schedule.begin(facts) or _Wide(facts.concurrency_budget)
        return _Restarting(self, plan, facts)


@dataclass(slots=True)
class _Restarting(SchedulePlan):
    """Starts draws like the wrapped schedule, and limits how long a reply may take."""

    schedule: Restart
    plan: SchedulePlan
    facts: CallFacts
    waited: dict[int, float] = field(default_factory=dict[int, float])

    def decide(self, progress: CallProgress) -> Go:
        return self.plan.decide(progress)

    def patience(self, restarts: int, model: str | None) -> float | None:
        """Return how long most replies take; None for no limit.

        There is no limit after ``most`` restarts, or while too few durations are known.
        """
        if restarts >= self.schedule.most:
            return None
        latency, quantile = self.schedule.latency, self.schedule.quantile
        # After a restart, the draw would be known only to take longer than a bound. So a lower
        # bound could never rise.
        usual = latency.quantile(quantile, model, lower_bound=False)
        return None if usual is None else usual + SLACK

    def restarted(self, chain: int, seconds: float, model: str | None) -> None:
        self.waited[chain] = self.waited.get(chain, 0.0) + seconds
        self.schedule.latency.observe(seconds, model, censored=True)
        self.plan.restarted(chain, seconds, model)

    def observe(self, slice_: Slice) -> None:
        before = self.waited.pop(slice_.chain, 0.0)
        # Not the model that the slice names, which a plugin or a fallback may have chosen later.
        facts, stage = self.facts, slice_.stage
        model = facts.model if stage is None else facts.stages[stage]
        self.schedule.latency.learn(slice_, model, before=before)
        self.plan.observe(slice_)
