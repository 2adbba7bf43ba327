"""Run a test marked ``pass_rate`` until it is certain whether it passes often enough."""

from __future__ import annotations

import functools
import inspect
import math
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, cast
from unittest import SkipTest

import anyio
import pytest

from mellea_like.core.argument_checks import check_one_of, real_number, whole_number
from mellea_like.core.backend import CURRENT
from mellea_like.core.display import bounded, error_text, printable, three_decimals
from mellea_like.core.generation import Meter, Usage
from mellea_like.runtime.event_loops import foreign, split_cancellation
from mellea_like.runtime.threads import run_in_thread
from mellea_like.sequential import PassRateTest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mellea_like.core.prices import Price
    from mellea_like.testing.pass_rates import Draw

LONGEST = 500
"""The most characters of a failing reply or message that are kept."""
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
"""The colour codes that pytest puts into assertion messages on a terminal."""


@dataclass(frozen=True)
class Rule:
    """The arguments of a ``pass_rate`` mark."""

    at_least: float
    confidence: float = 0.95
    most: int = 100
    concurrency: int = 8
    errors: Literal["fail", "raise"] = "fail"

    def __post_init__(self) -> None:
        real_number("pass_rate: at_least", self.at_least, over=0, under=1)
        real_number("pass_rate: confidence", self.confidence, over=0, under=1)
        whole_number("pass_rate: most", self.most)
        whole_number("pass_rate: concurrency", self.concurrency)
        check_one_of("pass_rate: errors", self.errors, ("fail", "raise"))


def rule_of(mark: pytest.Mark) -> Rule:
    """Return the arguments of a mark, or fail the test if they are wrong."""
    try:
        return Rule(*mark.args, **mark.kwargs)
    except (TypeError, ValueError) as exc:
        why = str(exc).replace("Rule.__init__()", "pass_rate")
        raise pytest.fail.Exception(why, pytrace=False) from None


@dataclass
class Purse:
    """The budget for all tests marked ``pass_rate`` in this process, and their cost so far."""

    most: float = math.inf
    spent: float = 0.0


@dataclass
class Trial:
    """The runs of one marked test, and their outcome so far."""

    body: Callable[..., Any]
    rule: Rule
    purse: Purse
    draw: Callable[[int], Draw]
    """Makes the draw for the run with a given number."""
    price: Price | None = None
    raised: BaseException | None = None
    """The exception that ended the test, if any."""
    returned: object = None
    """A value that a run returned, if any: a test should return None."""
    ran: bool = False
    usage: Usage = field(default_factory=Usage)
    cost: float = 0.0
    _dearest: float | None = None
    """The highest cost of a run so far; None before the first run has ended."""
    _running: int = 0
    _failures: dict[int, tuple[str, str | None]] = field(
        default_factory=dict[int, tuple[str, str | None]]
    )
    """Maps the number of each failed run to the reason and the reply."""

    def __post_init__(self) -> None:
        self.test: PassRateTest = PassRateTest(self.rule.at_least, self.rule.confidence)
        self.began_at = datetime.now(UTC)

    @property
    def verdict(self) -> Literal["passed", "failed", "undecided", "errored"]:
        """The verdict so far, or ``"errored"`` if an exception ended the test."""
        return "errored" if self.raised is not None else self.test.verdict or "undecided"

    @property
    def skipped(self) -> bool:
        """Whether a run has skipped the test, or declared it an expected failure."""
        return isinstance(self.raised, pytest.skip.Exception | pytest.xfail.Exception | SkipTest)

    def stand_in(self) -> Callable[..., Any]:
        """Return a function that runs the body as often as needed. It is async if the body is."""
        # An async function is run by the project's plugin, in the event loop of async fixtures.

        @functools.wraps(self.body, updated=())
        async def tried(**fixtures: Any) -> None:
            await self._run(fixtures)

        @functools.wraps(self.body, updated=())
        def tried_in_threads(**fixtures: Any) -> None:
            anyio.run(self._run, fixtures)

        return tried if inspect.iscoroutinefunction(self.body) else tried_in_threads

    def conclude(self) -> None:
        """Raise the exception that ended the test, or fail the test if it has not passed."""
        if self.raised is not None:
            raise self.raised
        if not self.ran:
            pytest.fail(
                "pass_rate: something else ran the body, as with async methods of a"
                " unittest.TestCase: write a function, or a class without a base class",
                pytrace=False,
            )
        if self.verdict != "passed":
            pytest.fail(self.sentence(), pytrace=False)

    async def _run(self, fixtures: Mapping[str, Any]) -> None:
        self.ran = True
        self._news = anyio.Event()
        async with anyio.create_task_group() as tasks:
            for _ in range(min(self.rule.concurrency, self.rule.most)):
                tasks.start_soon(self._work, fixtures, tasks.cancel_scope)

    async def _work(self, fixtures: Mapping[str, Any], lanes: anyio.CancelScope) -> None:
        while (number := await self._next()) is not None:
            self._running += 1
            try:
                passed = await self._passes(number, fixtures)
            except BaseException as exc:  # noqa: BLE001 (raised outside of the task group)
                cancellation, _ = split_cancellation(exc)
                if cancellation is not None:
                    raise cancellation from None
                self.raised = self.raised or exc
            else:
                self.test.end(number, passed)
            finally:
                self._running -= 1
                self._news.set()
                self._news = anyio.Event()
            if self._over and inspect.iscoroutinefunction(self.body):
                # Threads can't be cancelled, and must not outlive their fixtures.
                lanes.cancel("the answer is certain")

    @property
    def _over(self) -> bool:
        return self.raised is not None or self.test.verdict is not None

    async def _next(self) -> int | None:
        """Wait until another run may start; return its number, or None if no more may start."""
        while not self._over and self.test.started < self.rule.most:
            if self._affordable():
                return self.test.start()
            if not self._running:
                return None
            await self._news.wait()
        return None

    def _affordable(self) -> bool:
        """Return whether the budget covers the active runs and one more at the highest cost."""
        # The first run of a test runs alone, because its cost is not known yet.
        purse = self.purse
        if purse.most == math.inf:
            return True
        if self._dearest is None:
            return not self._running and purse.spent < purse.most
        would_be = purse.spent + (self._running + 1) * self._dearest
        return would_be <= purse.most * (1 + 1e-9) and purse.spent < purse.most

    async def _passes(self, number: int, fixtures: Mapping[str, Any]) -> bool:
        draw = self.draw(number)
        given = {**fixtures, "draw": draw} if "draw" in fixtures else fixtures
        meter = Meter()
        CURRENT.set((CURRENT.get()[0], meter))
        try:
            with foreign("the body of the test"):
                await self._call(given)
        except BaseException as exc:
            error_counts = self.rule.errors == "fail" and isinstance(exc, Exception)
            if isinstance(exc, SkipTest) or not (error_counts or _only_assertions(exc)):
                raise
            self._failures[number] = _reason(exc), _text(draw.reply)
            return False
        finally:
            self._spend(draw.cost, meter.usage)
        return True

    async def _call(self, given: Mapping[str, Any]) -> None:
        if inspect.iscoroutinefunction(self.body):
            found: object = await self.body(**given)
        else:
            found = await run_in_thread(partial(self.body, **given), name="the body of a test")
            if inspect.isawaitable(found):  # From an async function inside a plain wrapper.
                found = await found
        if inspect.isasyncgen(found) or inspect.isgenerator(found):
            self.raised = pytest.fail.Exception(
                "pass_rate: the body is a generator, so its code never runs: remove its yield",
                pytrace=False,
            )
        elif found is not None:
            self.returned = found

    def _spend(self, named: object, usage: Usage) -> None:
        """Count the cost of a run: the cost named by its body, plus the price of its tokens."""
        try:
            cost = real_number("pass_rate: draw.cost", named, least=0)
        except (TypeError, ValueError) as exc:
            self.raised = self.raised or pytest.fail.Exception(str(exc), pytrace=False)
            return
        if self.price is not None:
            cost += self.price.cost(usage)
        self.usage += usage
        self.cost += cost
        self.purse.spent += cost
        self._dearest = max(cost, self._dearest or 0.0)

    def record(self) -> dict[str, Any]:
        """Return the outcome as plain data."""
        test = self.test
        low, high = test.interval
        first = min((n for n in self._failures if n < test.draws), default=None)
        why, reply = ("", None) if first is None else self._failures[first]
        return {
            "verdict": self.verdict,
            "at_least": self.rule.at_least,
            "confidence": self.rule.confidence,
            "rate": test.passes / test.draws if test.draws else None,
            "low": low,
            "high": high,
            "draws": test.draws,
            "passes": test.passes,
            "requests": self.usage.requests,
            "input_tokens": self.usage.input_tokens,
            "output_tokens": self.usage.output_tokens,
            "cost": self.cost,
            "began_at": self.began_at.isoformat(timespec="seconds"),
            "seconds": round((datetime.now(UTC) - self.began_at).total_seconds(), 3),
            "first_failure": why,
            "first_failing_reply": reply,
        }

    def sentence(self) -> str:
        """Explain why the test did not pass."""
        found = self.record()
        low, high = three_decimals(found["low"]), three_decimals(found["high"])
        rate = f"{found['passes']} of {found['draws']} draws passed"
        wanted = f"at least {self.rule.at_least!r} is required"
        said = f"{rate} (the rate is plausibly {low} to {high}), but {wanted}"
        if self.verdict == "undecided":
            more = self.test.more
            takes = "more draws than anyone would make" if more is None else f"about {more:,} more"
            how = f"raise most={self.rule.most}"
            if self.test.started < self.rule.most:
                how = f"the draws' budget of {self.purse.most:g} is spent"
            said = f"undecided: {said}; at this rate it would take {takes}: {how}"
            if not found["draws"]:
                said = f"undecided: no draw was made, but {wanted}: {how}"
        if found["first_failure"]:
            said += f"\nthe first failure: {found['first_failure']}"
        if found["first_failing_reply"] is not None:
            said += f"\nits reply: {found['first_failing_reply']}"
        return said


def _only_assertions(exc: BaseException) -> bool:
    """Return whether an exception is a failed assertion, or a group of only failed assertions."""
    if inside := _inside(exc):
        return all(map(_only_assertions, inside))
    return isinstance(exc, AssertionError | pytest.fail.Exception) and not isinstance(
        exc, pytest.xfail.Exception
    )


def _inside(exc: Any) -> tuple[BaseException, ...]:
    """Return the exceptions in a group, or an empty tuple for any other exception."""
    if not isinstance(exc, BaseExceptionGroup):
        return ()
    return cast("BaseExceptionGroup[BaseException]", exc).exceptions


def _reason(exc: BaseException) -> str:
    while inside := _inside(exc):
        exc = inside[0]
    text = _text(error_text(exc)) or ""
    if isinstance(exc, AssertionError | pytest.fail.Exception):
        return text or type(exc).__name__
    return f"{type(exc).__name__}: {text}"


def _text(value: object) -> str | None:
    """Return a reply or message as short text without control characters; None stays None."""
    if value is None:
        return None
    try:
        text = str(value)
    except Exception as exc:  # noqa: BLE001 (the object's own)
        text = f"<a {type(value).__name__}, whose __str__ raised {type(exc).__name__}>"
    return bounded(printable(COLOURS.sub("", text[: 20 * LONGEST])), LONGEST)
