"""The schedules that come with the library."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mellea_like.core.argument_checks import real_number, whole_number
from mellea_like.sampling.schedules.base import SLACK, BaseSchedule, Go, SchedulePlan
from mellea_like.sampling.schedules.learned import LatencyQuantiles, PassRates, RateKey, key_of

if TYPE_CHECKING:
    from mellea_like.core.slice import Slice
    from mellea_like.sampling.schedules.base import CallFacts, CallProgress
    from mellea_like.sampling.schedules.learned import Beta, CallDraws

__all__ = ["Adaptive", "Deadline", "Eager", "Hedged", "Restart", "Staggered", "width_for"]


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

    A further subsample costs nothing where the ones before pass within the delay. Where none is at
    work any more, the next one does not wait for its time. (The connection attempts of "happy
    eyeballs" are paced like this: RFC 8305, section 5.)

    What a turn comes to does not depend on when it starts, so ``selection="ordered"`` is possible.

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
    """Lets every chain at work go on, and opens a further one when its time has come."""

    delay: float
    chains: int

    def decide(self, progress: CallProgress) -> Go:
        """Open what chains are due; chains at work go on whatever the time."""
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
    per model) no longer counts towards ``concurrency_budget``, so another takes its place. It goes
    on all the same. Never more than ``concurrency_budget + extra`` are in flight. The turns are
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
    """Closes the request of an iteration that takes unusually long, and draws it anew.

    An iteration whose reply takes longer than most iterations do (than the ``quantile`` of the
    durations known so far, per model) sends another request in place of that one, with another
    seed. It remains one iteration, whose usage has both requests. When iterations start is another
    schedule's to say: ``Restart(schedule=Hedged())`` does both.

    It helps where slowness is redrawn: a busy replica behind a load balancer, a reply that rambles.
    Where the prompt itself is what takes long, or the whole server is slow, what had arrived is
    lost, so that an iteration is drawn anew ``most`` times only and then takes as long as it does.
    The time that a request waits for a limiter counts. (With heavy tails, the expected time to a
    reply is least with restarts at a fixed cutoff: Luby, Sinclair and Zuckerman, "Optimal speedup
    of Las Vegas algorithms", IPL 47, 1993.)

    Until enough durations are known (see `LatencyQuantiles`), nothing is drawn anew; nor is an
    iteration that was sent when a budget had no room for another like it.

    Args:
        quantile: the share of iterations that do not take unusually long, between 0 and 1.
        schedule: when iterations may start; by default as many as ``concurrency_budget`` at once,
            with pooled turns.
        most: how often an iteration is drawn anew at most, at least 1.
        spend_turns: whether drawing anew spends one of the call's turns, so that it makes no more
            requests than it has turns, retries aside. An iteration whose call has no turn left
            takes as long as it does.
        latency: the durations known so far. By default each schedule learns its own; give several
            of them one object to learn from each other.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: an argument is out of its range.
    """

    quantile: float = 0.95
    schedule: BaseSchedule = Eager(pool=True)
    most: int = 2
    spend_turns: bool = False
    latency: LatencyQuantiles = field(default_factory=LatencyQuantiles)

    def __post_init__(self) -> None:
        real_number("Restart: quantile", self.quantile, over=0, under=1)
        _check("Restart: schedule", self.schedule, BaseSchedule)
        whole_number("Restart: most", self.most)
        _check("Restart: spend_turns", self.spend_turns, bool)
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

    @property
    def restarts_spend_turns(self) -> bool:
        """Whether drawing an iteration anew spends a turn."""
        return self.schedule.spend_turns

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


@dataclass(frozen=True, slots=True)
class Adaptive(BaseSchedule):
    """Starts few iterations where most pass, and many where few do.

    With k iterations in flight, each of which passes with probability p, a call waits for about
    1 / (k p) iterations' time until one passes; and then about k requests are in flight that are
    paid for and not needed. At a ``price`` per request the two together cost 1 / (k p) + k price,
    which is least for k = sqrt(1 / (p price)). So many are started, at least 1 and at most
    ``concurrency_budget``.

    p is the posterior mean of the pass rate: what earlier calls taught, then, with each failure of
    this call, less. So a call that turns out to be hard gets wider. The turns are pooled.

    Args:
        price: what one more request costs, in units of an iteration's time, over 0. At 0.1 a
            request may be spent to save a tenth of an iteration's time. At the default, where calls
            differ in how hard they are, about as many requests are made as with `Eager` and half
            the ``concurrency_budget``.
        rates: the pass rates known so far. By default each schedule learns its own; give several
            of them one object to learn from each other.
        key: what the pass rate is kept under: anything hashable, or a function that takes
            `CallFacts` and returns it. By default the names of the call's requirements.
        strength: as how many draws what earlier calls taught counts at most, over 0; the fewer,
            the sooner a call's own failures tell. It counts as less where earlier calls differed
            more than that (`PassRates.strength`).

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: an argument is out of its range.
    """

    price: float = 0.9
    rates: PassRates = field(default_factory=PassRates)
    key: RateKey = None
    strength: float = 2.5

    def __post_init__(self) -> None:
        real_number("Adaptive: price", self.price, over=0)
        real_number("Adaptive: strength", self.strength, over=0)
        _check("Adaptive: rates", self.rates, PassRates)

    def begin(self, facts: CallFacts) -> SchedulePlan:
        """Begin a call."""
        key = key_of(self.key, facts)
        strength = min(self.strength, self.rates.strength(key) or self.strength)
        belief = self.rates.parameters(key).at_most(strength)
        return _Adapting(self, facts.concurrency_budget, self.rates.call(key), belief)


def width_for(pass_rate: float, price: float, most: int) -> int:
    """Return how many iterations to keep in flight, between 1 and the most there may be."""
    return max(1, round(min(most, math.sqrt(1 / pass_rate / price))))


@dataclass(slots=True)
class _Adapting(SchedulePlan):
    """Keeps as many iterations in flight as the call's failures so far suggest."""

    schedule: Adaptive
    most: int
    draws: CallDraws
    belief: Beta

    def decide(self, progress: CallProgress) -> Go:
        """Fill up to the width, less the chains that permanent errors have ended."""
        pass_rate = _learnt(self.belief, progress).mean
        # To wait for w of them costs w / (k p).
        wanted = progress.wanted or 1
        width = min(
            width_for(pass_rate / wanted, self.schedule.price, self.most),
            self.most - progress.broken,
        )
        return Go(max(0, width - len(progress.running)))

    def observe(self, slice_: Slice) -> None:
        """Learn whether a draw passed."""
        self.draws.learn(slice_)


@dataclass(frozen=True, slots=True)
class Deadline(BaseSchedule):
    """Spreads as many attempts over the time left as a small risk of failure asks for.

    Needed is the smallest number of attempts of which all fail with a probability of at most
    ``risk``, as far as is known of the pass rate. They need not all run at once: where the time
    left is enough for r rounds one after the other, an r-th of them is started now, at least 1 and
    at most ``concurrency_budget``. A round takes as long as the median iteration; until that is
    known, there is one round. Each failure, and each iteration that takes longer than a round,
    makes the call wider. The turns are pooled.

    When the time is up, the call returns what there is, as for the strategy's ``timeout``.

    Args:
        seconds: how long the call may take, over 0.
        risk: how probable it may be that no attempt passes, between 0 and 1.
        rates: the pass rates known so far. By default each schedule learns its own; give several
            of them one object to learn from each other.
        latency: the durations known so far, per model; likewise.
        key: what the pass rate is kept under: anything hashable, or a function that takes
            `CallFacts` and returns it. By default the names of the call's requirements.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: an argument is out of its range.
    """

    # Read-only, as the property is that it replaces, which field() keeps from being its default.
    seconds: float = field()  # pyright: ignore[reportIncompatibleMethodOverride]
    risk: float = 0.05
    rates: PassRates = field(default_factory=PassRates)
    latency: LatencyQuantiles = field(default_factory=LatencyQuantiles)
    key: RateKey = None

    def __post_init__(self) -> None:
        real_number("Deadline: seconds", self.seconds, over=0)
        real_number("Deadline: risk", self.risk, over=0, under=1)
        _check("Deadline: rates", self.rates, PassRates)
        _check("Deadline: latency", self.latency, LatencyQuantiles)

    def begin(self, facts: CallFacts) -> SchedulePlan:
        """Begin a call."""
        key = key_of(self.key, facts)
        belief = self.rates.parameters(key)
        draws = self.rates.call(key)
        return _Hurrying(self, facts.concurrency_budget, facts.model, draws, belief)


@dataclass(slots=True)
class _Hurrying(SchedulePlan):
    """Keeps in flight what must be, for enough attempts to end in time."""

    schedule: Deadline
    most: int
    model: str | None
    draws: CallDraws
    belief: Beta

    def decide(self, progress: CallProgress) -> Go:
        """Start what those in flight, and those to follow them, can't do in time."""
        schedule, now, running = self.schedule, progress.now, progress.running
        left = schedule.seconds - now
        if left <= 0:
            return Go(0)
        belief = _learnt(self.belief, progress)
        possible = len(running) + progress.turns
        needed = belief.draws_for(schedule.risk, possible)
        # Of several that are wanted, all but the last are taken to come at the mean rate.
        needed = min(possible, needed + math.ceil(((progress.wanted or 1) - 1) / belief.mean))
        round_ = schedule.latency.quantile(0.5, self.model)
        rounds = _rounds(left, round_, needed)
        # Each iteration in flight will be followed by others; an overdue one should end soon.
        coming = sum(
            max(1, min(_rounds(schedule.seconds - began, round_, needed), rounds + 1))
            for began in running
        )
        most = self.most - progress.broken
        more = min(math.ceil((needed - coming) / max(1, rounds)), most - len(running))
        if not round_ or rounds == 0 or len(running) + more >= most:
            return Go(max(0, more))
        return Go(max(0, more), schedule.seconds - rounds * round_ + 2 * SLACK)

    def observe(self, slice_: Slice) -> None:
        """Learn whether a draw passed, and how long it took."""
        self.draws.learn(slice_)
        self.schedule.latency.learn(slice_, self.model)


def _learnt(belief: Beta, progress: CallProgress) -> Beta:
    """Return what is believed of a pass rate after a call's draws so far."""
    belief = belief._replace(a=belief.a + progress.passed)
    return belief.after_failures(progress.failed)


def _rounds(seconds: float, round_: float | None, most: int) -> int:
    """Return how many rounds fit into a time, one after the other."""
    if round_ is None:
        return 1
    return most if round_ == 0 else int(min(most, (seconds + SLACK) / round_))
