"""Learn from calls how long draws take, how often they pass, and what they cost."""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeVar

from mellea_like.core.argument_checks import real_number, whole_number
from mellea_like.core.slice import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from mellea_like.core.generation import Usage
    from mellea_like.core.slice import Slice
    from mellea_like.schedules.base import CallFacts

__all__ = [
    "MOST_KEYS",
    "Beta",
    "LatencyQuantiles",
    "MeanCosts",
    "PassRates",
    "RateKey",
]

T = TypeVar("T")

MOST_KEYS = 1000
"""The most keys to remember. If there are more, the least recently used one is forgotten."""

RateKey: TypeAlias = "Hashable | Callable[[CallFacts], Hashable]"
"""The key under which a call's pass rate is kept, or a function that returns it."""


def _now_used(known: OrderedDict[Hashable, T], key: Hashable, make: Callable[[], T]) -> T:
    """Return a key's entry (made if it is missing), and mark the key as most recently used."""
    if key not in known:
        known[key] = make()
        if len(known) > MOST_KEYS:
            known.popitem(last=False)
    known.move_to_end(key)
    return known[key]


class LatencyQuantiles:
    """Running quantiles of durations, kept per key. Several schedules can share one object.

    A draw that was cancelled after t seconds shows only that it would have taken longer than t.
    Slow draws are the ones that get cancelled when another one wins, so leaving them out would
    make the quantiles too low. Therefore the quantiles come from the product-limit estimate
    (Kaplan and Meier, "Nonparametric Estimation from Incomplete Observations", JASA 53, 1958).
    They use only the latest ``window`` durations of a key, so that they follow changes. They are
    computed again when the window has changed by 2 %. If there are more than 1,000 keys, the least
    recently used one is forgotten.

    Args:
        window: the number of durations to keep per key, at least 1.
        least: the number of complete durations that are needed for a quantile, from 1 to
            ``window``.

    Raises:
        TypeError: an argument isn't an int.
        ValueError: an argument is out of range.
    """

    def __init__(self, window: int = 1000, *, least: int = 10) -> None:
        whole_number("LatencyQuantiles: window", window)
        whole_number("LatencyQuantiles: least", least)
        if least > window:
            msg = f"LatencyQuantiles: least, {least}, is more than the window holds ({window})"
            raise ValueError(msg)
        self._window = window
        self._least = least
        self._known: OrderedDict[Hashable, _Durations] = OrderedDict()

    def observe(self, seconds: float, key: Hashable = None, *, censored: bool = False) -> None:
        """Record a duration.

        Args:
            seconds: the duration, at least 0 and finite.
            key: the kind of work that took this long.
            censored: whether the work would have taken longer if it hadn't been cancelled.

        Raises:
            TypeError: the duration isn't a number.
            ValueError: the duration is negative or not finite.
        """
        if not 0 <= seconds < float("inf"):  # Unlike `real_number`, this takes numpy's numbers.
            msg = (
                "LatencyQuantiles: a duration must be at least 0 seconds and finite, not"
                f" {seconds!r}"
            )
            raise ValueError(msg)
        durations = _now_used(self._known, key, lambda: _Durations(self._window))
        durations.add(float(seconds), censored=censored)

    def learn(self, slice_: Slice, key: Hashable = None, *, before: float = 0.0) -> None:
        """Record how long a draw took, from its record.

        The duration of an errored or cancelled draw is censored, because a good reply would have
        taken longer. (So a server that refuses quickly does not look fast.) A draw whose reply
        came from a `CachedBackend`'s file is ignored.

        Args:
            slice_: the draw's record.
            key: the kind of work that took this long.
            before: the seconds that the draw spent on requests before a restart. They have already
                been recorded.
        """
        if slice_.generation is not None and slice_.generation.usage.cache_hits:
            return
        judged = slice_.outcome is Outcome.PASSED or slice_.outcome is Outcome.FAILED
        self.observe(max(0.0, slice_.duration - before), key, censored=not judged)

    def quantile(self, q: float, key: Hashable = None, *, lower_bound: bool = True) -> float | None:
        """Return the duration within which a share ``q`` of the draws ends.

        Args:
            q: the share, between 0 and 1.
            key: the kind of work.
            lower_bound: whether to return a lower bound, the longest known duration, if the longest
                draws were all cancelled, so that the quantile is unknown.

        Returns:
            The seconds. None while fewer than ``least`` complete durations are known, or fewer
            than the ``1 / (1 - q)`` that such a quantile needs, and instead of a lower bound.

        Raises:
            TypeError: ``q`` isn't a number.
            ValueError: ``q`` is out of range.
        """
        real_number("LatencyQuantiles: q", q, over=0, under=1)
        durations = self._known.get(key)
        if durations is None or durations.complete < max(self._least, round(1 / (1 - q), 6)):
            return None
        seconds, known = durations.quantile(q)
        return seconds if known or lower_bound else None


class _Durations:
    __slots__ = ("_cached", "_changes", "_latest", "complete")

    def __init__(self, window: int) -> None:
        self.complete = 0
        self._latest: deque[tuple[float, bool]] = deque(maxlen=window)
        self._cached: dict[float, tuple[float, bool]] = {}
        self._changes = 0

    def add(self, seconds: float, *, censored: bool) -> None:
        if len(self._latest) == self._latest.maxlen:
            self.complete -= not self._latest[0][1]
        self._latest.append((seconds, censored))
        self.complete += not censored
        self._changes += 1

    def quantile(self, q: float) -> tuple[float, bool]:
        """Return a quantile, or a lower bound, and whether it is the quantile itself."""
        if self._changes * 50 >= len(self._latest):
            self._cached.clear()
            self._changes = 0
        if q not in self._cached:
            self._cached[q] = self._product_limit_quantile(q)
        return self._cached[q]

    def _product_limit_quantile(self, q: float) -> tuple[float, bool]:
        """Find the shortest duration by which a share ``q`` of the draws has ended."""
        durations = sorted(self._latest)  # If durations tie, complete ones come first.
        left, at_risk = 1.0, len(durations)
        for seconds, censored in durations:
            if not censored:
                left *= 1 - 1 / at_risk
                if left <= 1 - q + 1e-9:
                    return seconds, True
            at_risk -= 1
        return durations[-1][0], False


class Beta(NamedTuple):
    """A Beta distribution, which describes a belief about a probability.

    Attributes:
        a: the number of passes that the belief is worth, over 0.
        b: the number of failures that the belief is worth, over 0.
    """

    a: float
    b: float

    @property
    def mean(self) -> float:
        """The mean of the probability."""
        return self.a / (self.a + self.b)

    def at_most(self, draws: float) -> Beta:
        """Return a belief with the same mean that is worth at most ``draws`` draws.

        Args:
            draws: the number of draws, over 0.

        Returns:
            The belief, weakened if it was stronger than that.
        """
        share = min(1.0, draws / (self.a + self.b))
        return Beta(self.a * share, self.b * share)

    def after_failures(self, failures: int) -> Beta:
        """Return the belief after further draws that all failed.

        Args:
            failures: the number of draws.

        Returns:
            The posterior.
        """
        return Beta(self.a, self.b + failures)


class PassRates:
    """Pass rates of draws, each with a Beta posterior. Several strategies can share one object.

    Observations fade, so that a rate follows changes. With each new draw, the weight of each
    earlier draw is multiplied by ``1 - 1 / memory``, so all draws together never count as more than
    ``memory`` draws. If there are more than 1,000 keys, the least recently used one is forgotten.

    A rate is the share of draws that pass, so hard calls weigh more: they make more draws. 1 / mean
    is the average number of draws of a call, over hard and easy calls. If draws race, only the
    quick ones are seen. So the rate is right only for draws that are made one after another.

    Args:
        prior: the initial belief, as (a, b) of a Beta distribution, each over 0. The default,
            (0.5, 1), is a pass rate of a third, with the weight of one and a half draws.
        memory: the number of draws to remember, at least 1.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: an argument is out of range.
    """

    def __init__(
        self,
        prior: tuple[float, float] = (0.5, 1.0),
        *,
        memory: int = 1000,
    ) -> None:
        if not isinstance(prior, tuple) or len(prior) != 2:  # noqa: PLR2004 (a and b)
            msg = f"PassRates: prior must be a pair of numbers (a, b), not {prior!r}"
            raise TypeError(msg)
        real_number("PassRates: the prior's a", prior[0], over=0)
        real_number("PassRates: the prior's b", prior[1], over=0)
        whole_number("PassRates: memory", memory)
        self._prior = Beta(float(prior[0]), float(prior[1]))
        self._fading = 1 - 1 / memory
        self._known: OrderedDict[Hashable, _Counts] = OrderedDict()

    def observe(self, key: Hashable, passed: bool) -> None:  # noqa: FBT001 (it is what is observed)
        """Record whether a draw passed.

        Args:
            key: the kind of draw.
            passed: whether the draw met its requirements.
        """
        counts = _now_used(self._known, key, _Counts)
        counts.passes = counts.passes * self._fading + passed
        counts.failures = counts.failures * self._fading + (not passed)

    def learn(self, key: Hashable, slice_: Slice) -> None:
        """Record a draw, from its record. Only a draw that was judged counts.

        Args:
            key: the kind of draw.
            slice_: the draw's record.
        """
        if slice_.outcome is Outcome.PASSED or slice_.outcome is Outcome.FAILED:
            self.observe(key, slice_.outcome is Outcome.PASSED)

    def parameters(self, key: Hashable) -> Beta:
        """Return the belief about a pass rate.

        Args:
            key: the kind of draw.

        Returns:
            The posterior, or the prior if nothing is known.
        """
        counts = self._known.get(key)
        if counts is None:
            return self._prior
        return Beta(self._prior.a + counts.passes, self._prior.b + counts.failures)

    def mean(self, key: Hashable) -> float:
        """Return the posterior mean of a pass rate.

        Args:
            key: the kind of draw.

        Returns:
            The mean, between 0 and 1.
        """
        return self.parameters(key).mean


@dataclass(slots=True)
class _Counts:
    """The counts of passes and failures under one key, in which older draws count less."""

    passes: float = 0.0
    failures: float = 0.0


class MeanCosts:
    """Learns the mean tokens and cost of a draw, for each kind of draw (a key)."""

    def __init__(self) -> None:
        self._known: OrderedDict[Hashable, list[float]] = OrderedDict()

    def observe(self, key: Hashable, usage: Usage, cost: float) -> None:
        """Record the tokens and the cost of a draw.

        Args:
            key: the kind of draw.
            usage: the draw's tokens.
            cost: the draw's cost.
        """
        sums = _now_used(self._known, key, lambda: [0, 0, 0, 0.0])
        for place, number in enumerate((1, usage.input_tokens, usage.output_tokens, cost)):
            sums[place] += number

    def mean(self, key: Hashable) -> tuple[float, float, float] | None:
        """Return the mean tokens and cost of a draw.

        Args:
            key: the kind of draw.

        Returns:
            The tokens of the prompt and of the reply, and the cost; None if nothing is known.
        """
        draws, sent, received, cost = self._known.get(key, (0, 0, 0, 0.0))
        return (sent / draws, received / draws, cost / draws) if sent or received else None


def key_of(key: RateKey, facts: CallFacts) -> Hashable:
    """Return the key under which a call's pass rate is kept."""
    if key is None:
        return tuple(requirement.name for requirement in facts.requirements)
    return key(facts) if callable(key) else key
