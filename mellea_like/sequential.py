"""Sequential tests of pass rates: draw until the answer is clear enough, then stop.

The tests are e-processes. They measure the evidence against a hypothesis as the capital of an
imagined gambler, who starts with 1 and bets on each outcome, at odds that would be fair, or too
low, if the hypothesis were true. If it is true, the expected capital is at most 1; if it is false,
the capital grows. By Ville's inequality (1939), the chance that the capital against a true
hypothesis ever reaches 1 / (1 - confidence) is at most 1 - confidence, however often one looks. The
gambler spreads the capital over many alternative rates, as in Robbins' mixtures (Annals of
Mathematical Statistics 41, 1970) and in Waudby-Smith and Ramdas (JRSS B 86, 2024).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

import anyio

from mellea_like.core.argument_checks import real_number, whole_number
from mellea_like.runtime.event_loops import foreign
from mellea_like.runtime.gather import gather

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

__all__ = ["Comparison", "PairedTest", "PassRateTest", "compare"]

T = TypeVar("T")

RATES = 48
"""The number of alternative rates, on each side of the tested rate, over which bets are spread."""
PLACES = [(k + 0.5) / RATES for k in range(RATES)]
MOST_FORESEEN = 10_000_000
"""The number of draws beyond which `PassRateTest.more` predicts nothing."""


class PassRateTest:
    """A test that decides whether a pass rate is at least a threshold.

    Draws may run side by side. Those that end first are not a random sample, because passes may be
    quicker than failures. So `start` numbers the draws, and `end` counts a draw only once all
    draws with lower numbers have ended.

    Args:
        at_least: the threshold, between 0 and 1.
        confidence: 1 minus the chance of each kind of wrong answer, between 0 and 1. The wrong
            answers are ``"passed"`` if the rate is below the threshold, and ``"failed"`` if it
            isn't.

    Attributes:
        started: the number of draws that have started.
        draws: the number of draws that count so far.
        passes: how many of those draws passed.
        verdict: None until the test is decided, then ``"passed"`` or ``"failed"``, which never
            changes.

    Raises:
        TypeError: an argument isn't a number.
        ValueError: an argument is out of range.
    """

    def __init__(self, at_least: float, confidence: float = 0.95) -> None:
        real_number("at_least", at_least, over=0, under=1)
        real_number("confidence", confidence, over=0, under=1)
        self.at_least = at_least
        self.confidence = confidence
        self.draws = self.passes = 0
        self.verdict: Literal["passed", "failed"] | None = None
        self._needed = -math.log(1 - confidence)
        self.started = 0
        self._ended: dict[int, bool] = {}

    def start(self) -> int:
        """Record that a draw starts, and return its number, from 0."""
        self.started += 1
        return self.started - 1

    def end(self, number: int, passed: bool) -> None:  # noqa: FBT001 (the one thing to say)
        """Record that a draw has ended.

        Args:
            number: the draw's number, as `start` returned it.
            passed: whether the draw passed.

        Raises:
            ValueError: no such draw has started, or it has already ended.
        """
        if not self.draws <= number < self.started or number in self._ended:
            msg = f"draw {number} has not started, or has already ended"
            raise ValueError(msg)
        self._ended[number] = passed
        while self.verdict is None and self.draws in self._ended:
            self._count(self._ended.pop(self.draws))

    def add(self, passed: bool) -> None:  # noqa: FBT001 (the one thing to say)
        """Record a draw's outcome without a call of `start`, if draws are made one by one."""
        self.end(self.start(), passed)

    def _count(self, passed: bool) -> None:  # noqa: FBT001
        self.draws += 1
        self.passes += passed
        if self._rules_out(self.at_least, above=True):
            self.verdict = "passed"
        elif self._rules_out(self.at_least, above=False):
            self.verdict = "failed"

    def _rules_out(self, rate: float, *, above: bool, draws: float | None = None) -> bool:
        """Return whether the draws rule out ``rate``, in favour of the rates above or below it.

        With ``draws``, assume that many draws, with the same share of passes.
        """
        scale = 1.0 if draws is None else draws / self.draws
        passes, failures = scale * self.passes, scale * (self.draws - self.passes)
        return _evidence(passes, failures, rate, above=above) >= self._needed

    @property
    def interval(self) -> tuple[float, float]:
        """The lowest and the highest plausible pass rate, valid no matter when the test stops.

        The ends are confidence sequences. Each is wrong with a chance of at most 1 -
        ``confidence``. They agree with the verdict: a test has passed if the lower end has
        reached the threshold, and failed if the upper end is below it.
        """
        if not self.draws:
            return 0.0, 1.0
        seen = min(max(self.passes / self.draws, 1e-12), 1 - 1e-12)

        def edge(outside: float, *, above: bool) -> float:
            inside = seen
            for _ in range(30):
                middle = (inside + outside) / 2
                if self._rules_out(middle, above=above):
                    outside = middle
                else:
                    inside = middle
            return outside

        low = edge(0.0, above=True) if self.passes else 0.0
        high = edge(1.0, above=False) if self.passes < self.draws else 1.0
        return low, high

    @property
    def more(self) -> int | None:
        """The number of further draws until a verdict, if they pass as often as those so far.

        It is None if that can't be predicted: there are no draws yet, their pass rate is exactly
        the threshold, or it would take over ten million draws.
        """
        if self.verdict is not None:
            return 0
        if not self.draws or (rate := self.passes / self.draws) == self.at_least:
            return None
        rules_out = partial(self._rules_out, self.at_least, above=rate > self.at_least)
        further = range(self.draws + 1, MOST_FORESEEN + 1)
        found = bisect_left(further, True, key=lambda draws: rules_out(draws=draws))
        return found + 1 if found < len(further) else None


class Comparison(NamedTuple):
    """Which of two variants is better, so far.

    Attributes:
        better: ``"first"``, ``"second"``, or None as long as that is undecided.
        first: the number of passes of the first variant.
        second: the number of passes of the second variant.
        examples: how many examples both were tried on.
        p_value: an upper bound on the chance that two equal variants ever show a difference this
            clear.
    """

    better: Literal["first", "second"] | None
    first: int
    second: int
    examples: int
    p_value: float


class PairedTest:
    """A test that decides which of two variants passes more often, on the same examples.

    Only the examples on which the variants differ count. If neither variant were better, each of
    these examples would be equally likely to favour the first or the second. The test decides as
    soon as the examples contradict this clearly enough.

    Args:
        confidence: 1 minus the chance of calling one variant better if neither is, between 0 and 1.

    Raises:
        TypeError: the confidence isn't a number.
        ValueError: the confidence is out of range.
    """

    def __init__(self, confidence: float = 0.95) -> None:
        real_number("confidence", confidence, over=0, under=1)
        self._needed = -math.log(1 - confidence)
        self._examples = self._first = self._second = 0
        self._alone = [0, 0]
        self._most = 0.0
        self._better: Literal["first", "second"] | None = None

    def add(self, first: bool, second: bool) -> Comparison:  # noqa: FBT001 (two outcomes)
        """Record the outcomes of both variants on one example.

        Args:
            first: whether the first variant passed.
            second: whether the second variant passed.

        Returns:
            The comparison so far.
        """
        self._examples += 1
        self._first += first
        self._second += second
        if first != second:
            self._alone[second] += 1
            ahead, behind = self._alone
            mixture = _log_beta(ahead, behind)
            self._most = max(self._most, mixture - (ahead + behind) * math.log(0.5))
            if self._better is None and self._most >= self._needed:
                self._better = "first" if ahead > behind else "second"
        return self.result

    @property
    def result(self) -> Comparison:
        """The comparison so far."""
        p_value = min(1.0, math.exp(-self._most))
        return Comparison(self._better, self._first, self._second, self._examples, p_value)


async def compare(
    first: Callable[[T], Awaitable[bool]],
    second: Callable[[T], Awaitable[bool]],
    examples: Iterable[T],
    *,
    confidence: float = 0.95,
    concurrency: int = 8,
) -> Comparison:
    """Try two variants on the same examples until it is clear which one passes more often.

    Both variants are tried side by side on each example. Examples count in the order in which they
    started. So a slow example delays the examples after it, and quick passes have no advantage.
    Runs that are still under way when the answer is clear are cancelled.

    Args:
        first: the first variant (a model, a prompt, a strategy): an async function of an example
            that returns whether it passed.
        second: the second variant.
        examples: the examples, independent of each other and in random order. If they end before
            the answer is clear, ``better`` is None.
        confidence: 1 minus the chance of calling one variant better if neither is, between 0 and 1.
        concurrency: how many examples are tried at a time.

    Returns:
        The comparison.

    Raises:
        TypeError: an argument is of the wrong type, or a variant returned None.
        ValueError: an argument is out of range.
        Exception: the error of a variant, or of iterating over ``examples``.
    """
    whole_number("concurrency", concurrency)
    test = PairedTest(confidence)
    waiting = enumerate(examples)
    ended: dict[int, list[bool]] = {}

    async def tried(example: T, variant: Callable[[T], Awaitable[bool]]) -> bool:
        with foreign("a variant"):
            passed: Any = await variant(example)
        if passed is None:
            msg = f"{variant!r} returned None: it must return whether the example passed"
            raise TypeError(msg)
        return bool(passed)

    async def work(_: int) -> None:
        for number, example in waiting:
            ended[number] = await gather((first, second), 2, partial(tried, example))
            while test.result.examples in ended and test.result.better is None:
                test.add(*ended.pop(test.result.examples))
            if test.result.better is not None:
                clear.cancel("it is clear which one is better")
                return

    with anyio.CancelScope() as clear:
        await gather(range(concurrency), concurrency, work)
    return test.result


def _log_likelihood(passes: float, failures: float, rate: float) -> float:
    return passes * math.log(rate) + failures * math.log1p(-rate)


def _log_beta(passes: int, failures: int) -> float:
    """Return the logarithm of the outcomes' mean likelihood over all rates."""
    return math.lgamma(passes + 1) + math.lgamma(failures + 1) - math.lgamma(passes + failures + 2)


def _evidence(passes: float, failures: float, rate: float, *, above: bool) -> float:
    """Return the log of the capital won by betting that the true rate is above ``rate``.

    Without ``above``, the bets are that it is below ``rate``.
    """
    here = _log_likelihood(passes, failures, rate)
    start, width = (rate, 1 - rate) if above else (0.0, rate)
    gains = [_log_likelihood(passes, failures, start + width * place) - here for place in PLACES]
    most = max(gains)
    return most + math.log(sum(math.exp(gain - most) for gain in gains) / len(gains))
