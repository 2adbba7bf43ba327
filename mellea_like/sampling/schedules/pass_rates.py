"""How often draws pass: posteriors that calls share."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from mellea_like.core.argument_checks import real_number, whole_number
from mellea_like.core.slice import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from mellea_like.core.slice import Slice
    from mellea_like.sampling.schedules.base import CallFacts

__all__ = ["Beta", "PassRateStatistics", "PassRates", "RateKey", "key_of"]

RateKey: TypeAlias = "Hashable | Callable[[CallFacts], Hashable]"
"""What a call's pass rate is kept under, or a function that says so."""


class Beta(NamedTuple):
    """A Beta distribution: what is believed of a probability.

    Attributes:
        a: as if so many draws had passed, over 0.
        b: as if so many had failed, over 0.
    """

    a: float
    b: float

    @property
    def mean(self) -> float:
        """The mean of the probability."""
        return self.a / (self.a + self.b)

    def at_most(self, draws: float) -> Beta:
        """Return a belief of the same mean that counts as at most so many draws.

        Args:
            draws: how many, over 0.

        Returns:
            The belief, weaker where it was stronger than that.
        """
        share = min(1.0, draws / (self.a + self.b))
        return Beta(self.a * share, self.b * share)

    def after_failures(self, failures: int) -> Beta:
        """Return the belief after further draws that all failed.

        Args:
            failures: how many.

        Returns:
            The posterior.
        """
        return Beta(self.a, self.b + failures)

    def draws_for(self, risk: float, most: int) -> int:
        """Return the smallest number of draws of which all fail with a probability of ``risk``.

        The probability that n draws all fail is E[(1 - p)^n], the product of (b + i) / (a + b + i)
        for i from 0 to n - 1.

        Args:
            risk: the probability, between 0 and 1.
            most: the largest number of interest.

        Returns:
            The number; ``most`` where even so many are more likely than ``risk`` to fail.
        """
        all_fail = 1.0
        risk *= 1 + 1e-9  # Products round.
        for n in range(most):
            if all_fail <= risk:
                return n
            all_fail *= (self.b + n) / (self.a + self.b + n)
        return most


class PassRateStatistics(NamedTuple):
    """What is known of the pass rate under one key.

    Attributes:
        passed: how many draws passed, of all observed.
        failed: how many failed, of all observed.
        mean: the posterior mean of the pass rate, which trusts the latest draws most.
    """

    passed: int
    failed: int
    mean: float


class PassRates:
    """The pass rates of draws, each a Beta posterior, shared by all who are given it.

    What was observed fades, so that a rate follows a change: with each further draw, all before it
    count less, by a factor of ``1 - 1 / memory``; so all of them together never count as more than
    ``memory`` draws.

    The rate is that of draws, not of calls: a hard call makes many. So 1 / mean is how many draws a
    call makes on average, hard and easy ones together.

    Args:
        prior: what is believed before anything is known, as (a, b) of a Beta distribution, each
            over 0. The default, (0.5, 1), believes in a pass rate of a third, as weakly as one and
            a half draws would.
        memory: how many draws are remembered, at least 1.
        keys: for how many keys, at least 1; beyond it, the one used longest ago is forgotten.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: an argument is out of its range.
    """

    def __init__(
        self,
        prior: tuple[float, float] = (0.5, 1.0),
        *,
        memory: int = 1000,
        keys: int = 1000,
    ) -> None:
        if not isinstance(prior, tuple) or len(prior) != 2:  # noqa: PLR2004 (a and b)
            msg = f"PassRates: prior is a pair of numbers, (a, b), not {prior!r}"
            raise TypeError(msg)
        real_number("PassRates: the prior's a", prior[0], over=0)
        real_number("PassRates: the prior's b", prior[1], over=0)
        whole_number("PassRates: memory", memory)
        whole_number("PassRates: keys", keys)
        self._prior = Beta(float(prior[0]), float(prior[1]))
        self._fading = 1 - 1 / memory
        self._keys = keys
        self._known: OrderedDict[Hashable, _Counts] = OrderedDict()

    def observe(self, key: Hashable, passed: bool) -> None:  # noqa: FBT001 (it is what is observed)
        """Take note of a draw.

        Args:
            key: what was drawn.
            passed: whether it met its requirements.
        """
        counts = self._known.get(key)
        if counts is None:
            counts = self._known[key] = _Counts()
            if len(self._known) > self._keys:
                self._known.popitem(last=False)
        self._known.move_to_end(key)
        counts.add(passed=passed, fading=self._fading)

    def learn(self, key: Hashable, slice_: Slice) -> None:
        """Take note of an iteration, by its record; only one that was judged says anything.

        Args:
            key: what was drawn.
            slice_: its record.
        """
        if slice_.outcome is Outcome.PASSED or slice_.outcome is Outcome.FAILED:
            self.observe(key, slice_.outcome is Outcome.PASSED)

    def parameters(self, key: Hashable) -> Beta:
        """Return what is believed of a pass rate.

        Args:
            key: of what.

        Returns:
            The posterior; the prior where nothing is known.
        """
        counts = self._known.get(key)
        if counts is None:
            return self._prior
        return Beta(self._prior.a + counts.passes, self._prior.b + counts.failures)

    def mean(self, key: Hashable) -> float:
        """Return the posterior mean of a pass rate.

        Args:
            key: of what.

        Returns:
            It, between 0 and 1.
        """
        return self.parameters(key).mean

    def statistics(self) -> dict[Hashable, PassRateStatistics]:
        """Return what is known under each key.

        Returns:
            A look at each key, the one used longest ago first.
        """
        return {
            key: PassRateStatistics(counts.passed, counts.failed, self.mean(key))
            for key, counts in self._known.items()
        }


class _Counts:
    """What was observed under one key: in all, and faded."""

    __slots__ = ("failed", "failures", "passed", "passes")

    def __init__(self) -> None:
        self.passed = self.failed = 0
        self.passes = self.failures = 0.0

    def add(self, *, passed: bool, fading: float) -> None:
        self.passes = self.passes * fading + passed
        self.failures = self.failures * fading + (not passed)
        self.passed += passed
        self.failed += not passed


def key_of(key: RateKey, facts: CallFacts) -> Hashable:
    """Return what a call's pass rate is kept under."""
    if key is None:
        return tuple(requirement.name for requirement in facts.requirements)
    return key(facts) if callable(key) else key
