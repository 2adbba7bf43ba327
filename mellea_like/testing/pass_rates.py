"""A pytest plugin for tests of random behaviour: ``@pytest.mark.pass_rate(at_least=0.9)``.

```python
@pytest.mark.pass_rate(at_least=0.9, confidence=0.95, most=100)
async def test_extracts_the_total(draw):
    result = await strategy.sample(PROMPT, requirements)
    assert result.value.total == 41
```

The body runs several times, until it is certain whether it passes at a rate of at least 0.9. The
rule is `mellea_like.sequential.PassRateTest`, which accounts for bodies that are still running.
The body may call anything. A plain function runs in threads; an async one runs on asyncio or trio
(the parameter of ``anyio_backend``, if the test has it).

Except for `draw`, fixtures are set up once for all runs of a body. Async fixtures belong to
another event loop, so don't use them in async bodies.
"""

from __future__ import annotations

import inspect
import json
import math
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

try:
    import pytest
except ImportError as exc:
    msg = "mellea_like's fixtures need pytest: pip install 'mellea-like[testing]'"
    raise ImportError(msg) from exc

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

    from mellea_like.sequential import PassRateTest

__all__ = ["Draw", "draw"]

T = TypeVar("T")

PROPERTY = "pass_rate"
LONGEST = 500
"""The most characters of a failing reply to show."""


@dataclass
class Draw:
    """One run of a test's body.

    Attributes:
        number: the number of the run, from 0.
        reply: the model's reply, if the body sets it. The first failing one is shown.
        cost: the run's cost in any currency, if the body sets it, for ``--draws-budget``.
    """

    number: int = 0
    reply: object = None
    cost: float = 0.0
    _cache: Callable[[Any], Any] | None = None

    def cached(self, backend: T) -> T:
        """Return the backend or, with ``--cached FILE``, one that replays replies from the file.

        Each run of the body has its own replies, which are the same the next time.

        Args:
            backend: a backend of this library.

        Returns:
            A backend for this run of the body.
        """
        return backend if self._cache is None else cast("T", self._cache(backend))


@dataclass(frozen=True)
class _Rule:
    """The arguments of a mark."""

    at_least: float
    confidence: float = 0.95
    most: int = 100
    concurrency: int = 8
    errors: Literal["fail", "raise"] = "fail"

    def __post_init__(self) -> None:
        from mellea_like.core.argument_checks import real_number, whole_number  # noqa: PLC0415

        real_number("pass_rate: at_least", self.at_least, over=0, under=1)
        real_number("pass_rate: confidence", self.confidence, over=0, under=1)
        whole_number("pass_rate: most", self.most)
        whole_number("pass_rate: concurrency", self.concurrency)
        if self.errors not in ("fail", "raise"):
            msg = f"pass_rate: errors is 'fail' or 'raise', not {self.errors!r}"
            raise ValueError(msg)


@pytest.fixture
def draw(request: pytest.FixtureRequest) -> Draw:
    """The current run of the body."""
    if request.node.get_closest_marker(PROPERTY) is None:
        pytest.fail("the fixture draw is for tests marked pass_rate", pytrace=False)
    return Draw()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("mellea_like")
    group.addoption(
        "--draws-budget",
        type=float,
        metavar="MONEY",
        default=None,
        help="start no further run of tests marked pass_rate when their costs reach this; it is"
        " shared out evenly to the processes of pytest-xdist",
    )
    group.addoption(
        "--draws-price",
        metavar="IN,OUT",
        default=None,
        help="the price of a million tokens of prompts and of replies, such as 0.15,0.60: counts"
        " the tokens of mellea_like's backends as the draws' cost",
    )
    group.addoption(
        "--cached",
        metavar="FILE",
        default=None,
        help="keep the replies of draw.cached(backend) in this file, and replay those that are"
        " there",
    )
    group.addoption(
        "--pass-rates",
        metavar="FILE",
        default=None,
        help="write the pass rates of tests marked pass_rate to this file, as JSON",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Declare the mark, and read the price option."""
    price = config.getoption("--draws-price")
    if price is not None:
        from mellea_like.specification.upstream import read_price  # noqa: PLC0415

        try:
            config.stash[_PRICE] = read_price(price)
        except ValueError as exc:
            msg = f"--draws-price {exc}"
            raise pytest.UsageError(msg) from None
    config.addinivalue_line(
        "markers",
        "pass_rate(at_least, confidence=0.95, most=100, concurrency=8, errors='fail'): run the"
        " body until it is certain whether it passes at least at this rate",
    )


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Run the body of a marked test as often as necessary, instead of once."""
    mark = pyfuncitem.get_closest_marker(PROPERTY)
    if mark is None:
        return (yield)
    rule = _rule_of(mark)
    if isinstance(rule, str):
        pytest.fail(rule, pytrace=False)
    body: Callable[..., Any] = pyfuncitem.obj

    def tried(**fixtures: Any) -> None:
        # This is a plain function, so that no other plugin takes it for an async test.
        config = pyfuncitem.config
        cache = _cache_of(config, pyfuncitem.nodeid)
        price = config.stash.get(_PRICE, None)
        trial = _Trial(body, fixtures, rule, _purse_of(config), price, cache)
        try:
            trial.run()
        finally:
            if trial.test.draws:
                record = {"test": pyfuncitem.nodeid, **trial.record()}
                pyfuncitem.user_properties.append((PROPERTY, json.dumps(record)))
        if trial.verdict != "passed":
            pytest.fail(trial.sentence(), pytrace=False)

    pyfuncitem.obj = tried
    try:
        return (yield)
    finally:
        pyfuncitem.obj = body


def _rule_of(mark: pytest.Mark) -> _Rule | str:
    """Read a mark; if its arguments are wrong, return a sentence that says so."""
    try:
        return _Rule(*mark.args, **mark.kwargs)
    except (TypeError, ValueError) as exc:
        return str(exc).replace("_Rule.__init__()", "pass_rate")


@dataclass
class _Purse:
    """A process's budget for marked tests, and their cost so far."""

    most: float
    spent: float = 0.0


_PURSE = pytest.StashKey[_Purse]()
_PRICE = pytest.StashKey[Any]()
_CACHES = pytest.StashKey[dict[int, Any]]()


def _cache_of(config: pytest.Config, test: str) -> Callable[[int, Any], Any] | None:
    """Return the function that caches a backend for a run of a test; None without a cache."""
    path = config.getoption("--cached")
    if path is None:
        return None
    caches = config.stash.setdefault(_CACHES, dict[int, Any]())

    def cached(number: int, backend: Any) -> Any:
        from mellea_like.backends import CachedBackend  # noqa: PLC0415

        if id(backend) not in caches:
            caches[id(backend)] = CachedBackend(backend, path)
        return caches[id(backend)].apart(f"{test} {number}")

    return cached


def pytest_unconfigure(config: pytest.Config) -> None:
    """Close the file of replies."""
    import anyio  # noqa: PLC0415

    caches: dict[int, Any] = config.stash.get(_CACHES, dict[int, Any]())
    for cache in caches.values():
        anyio.run(cache.close_file)


def _purse_of(config: pytest.Config) -> _Purse:
    """Return the process's share of the budget."""
    if _PURSE not in config.stash:
        budget = config.getoption("--draws-budget")
        workers = int(getattr(config, "workerinput", {}).get("workercount", 1))
        config.stash[_PURSE] = _Purse(math.inf if budget is None else budget / workers)
    return config.stash[_PURSE]


@dataclass
class _Trial:
    """A marked test while it runs."""

    body: Callable[..., Any]
    fixtures: Mapping[str, Any]
    rule: _Rule
    purse: _Purse
    price: Any = None
    cache: Callable[[int, Any], Any] | None = None
    failures: dict[int, tuple[str, object]] = field(default_factory=dict[int, tuple[str, object]])
    """The reasons and replies of failed runs, by their numbers."""
    raised: BaseException | None = None

    def __post_init__(self) -> None:
        from mellea_like.core.generation import Meter  # noqa: PLC0415
        from mellea_like.sequential import PassRateTest  # noqa: PLC0415

        self.test: PassRateTest = PassRateTest(self.rule.at_least, self.rule.confidence)
        self.meter = Meter()
        self.cost = self.tokens_cost = 0.0

    @property
    def verdict(self) -> Literal["passed", "failed", "undecided"]:
        """The verdict on the test."""
        return self.test.verdict or "undecided"

    def run(self) -> None:
        """Run the body until the answer is certain."""
        import anyio  # noqa: PLC0415

        chosen: Any = self.fixtures.get("anyio_backend", "asyncio")
        options: dict[str, Any] = {}
        if not isinstance(chosen, str):
            chosen, options = chosen
        anyio.run(self._run_all, backend=chosen, backend_options=options)
        if self.raised is not None:
            raise self.raised

    async def _run_all(self) -> None:
        import anyio  # noqa: PLC0415

        async with anyio.create_task_group() as tasks:

            async def work() -> None:
                while self.test.verdict is None and (number := self._next()) is not None:
                    try:
                        passed = await self._passes(number)
                    except BaseException as exc:
                        if isinstance(exc, anyio.get_cancelled_exc_class()):
                            raise
                        self.raised = self.raised or exc  # It is raised outside the task group.
                        tasks.cancel_scope.cancel()
                        return
                    self.test.end(number, passed)
                if self.test.verdict is not None:
                    tasks.cancel_scope.cancel()

            for _ in range(min(self.rule.concurrency, self.rule.most)):
                tasks.start_soon(work)

    def _next(self) -> int | None:
        if self.test.started == self.rule.most or self.purse.spent >= self.purse.most:
            return None
        return self.test.start()

    async def _passes(self, number: int) -> bool:
        """Run the body once."""
        from mellea_like.core.backend import SPENDS_ON  # noqa: PLC0415
        from mellea_like.runtime.threads import run_in_thread  # noqa: PLC0415

        cache = self.cache
        mine = Draw(number, _cache=None if cache is None else partial(cache, number))
        given = {**self.fixtures}
        if "draw" in given:
            given["draw"] = mine
        SPENDS_ON.set(self.meter)
        try:
            if inspect.iscoroutinefunction(self.body):
                await self.body(**given)
            else:
                await run_in_thread(partial(self.body, **given))
        except (AssertionError, pytest.fail.Exception) as exc:
            self.failures[number] = str(exc) or type(exc).__name__, mine.reply
            return False
        except Exception as exc:
            if self.rule.errors == "raise":
                raise
            self.failures[number] = f"{type(exc).__name__}: {exc}", mine.reply
            return False
        finally:
            self._spend(mine.cost)
        return True

    def _spend(self, cost: float) -> None:
        """Count the cost that a run reports, and that of all tokens since the last one ended."""
        if self.price is not None:
            tokens = self.price.cost(self.meter.usage)
            cost += tokens - self.tokens_cost
            self.tokens_cost = tokens
        self.cost += cost
        self.purse.spent += cost

    def record(self) -> dict[str, Any]:
        """Return the outcome as plain data."""
        test, usage = self.test, self.meter.usage
        low, high = test.interval
        number = min(self.failures, default=None)
        why, reply = ("", None) if number is None else self.failures[number]
        return {
            "verdict": self.verdict,
            "at_least": self.rule.at_least,
            "confidence": self.rule.confidence,
            "rate": test.passes / test.draws if test.draws else None,
            "low": low,
            "high": high,
            "draws": test.draws,
            "passes": test.passes,
            "requests": usage.requests,
            "input_tokens": usage.input_tokens,
            "output_tokens": usage.output_tokens,
            "cost": self.cost,
            "first_failure": why[:LONGEST],
            "first_failing_reply": None if reply is None else str(reply)[:LONGEST],
        }

    def sentence(self) -> str:
        """Explain why the test did not pass."""
        found = self.record()
        low, high = found["low"], found["high"]
        rate = f"{found['passes']} of {found['draws']} draws passed"
        wanted = f"at least {self.rule.at_least:.4g} is wanted"
        said = f"{rate} (the rate is plausibly {low:.3f} to {high:.3f}), and {wanted}"
        if self.verdict == "undecided":
            more = self.test.more
            takes = "no number of draws would tell" if more is None else f"some {more:,} more"
            how = f"raise most={self.rule.most}"
            if self.purse.spent >= self.purse.most:
                how = f"the draws' budget of {self.purse.most:g} is spent"
            said = f"undecided: {said}; it would take {takes}: {how}"
        if found["first_failure"]:
            said += f"\nthe first failure: {found['first_failure']}"
        if found["first_failing_reply"] is not None:
            said += f"\nits reply: {found['first_failing_reply']}"
        return said


def _records(reporter: Any) -> list[dict[str, Any]]:
    """Return the outcomes of all marked tests, including other processes'."""
    reports = [report for some in reporter.stats.values() for report in some]
    found = [
        json.loads(value)
        for report in reports
        if getattr(report, "when", None) == "call"
        for name, value in getattr(report, "user_properties", ())
        if name == PROPERTY
    ]
    return sorted(found, key=lambda record: str(record["test"]))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Show the pass rates, and write them to a file."""
    records = _records(terminalreporter)
    path = config.getoption("--pass-rates")
    if path is not None:
        Path(path).write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")
    if not records:
        return
    terminalreporter.section("pass rates")
    for one in records:
        rate = "no draw" if one["rate"] is None else f"{one['rate']:.3f}"
        between = f"{one['low']:.3f} to {one['high']:.3f}"
        cost = f", {one['requests']} requests" if one["requests"] else ""
        cost += f", {one['cost']:.4g} spent" if one["cost"] else ""
        terminalreporter.write_line(
            f"{one['verdict']:9} {rate} ({between}), {one['draws']} draws{cost}: {one['test']}"
        )
