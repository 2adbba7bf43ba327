"""A pytest plugin for tests of random behaviour: ``@pytest.mark.pass_rate(at_least=0.9)``.

```python
@pytest.mark.pass_rate(at_least=0.9, confidence=0.95, most=100)
async def test_extracts_the_total(draw):
    result = await strategy.sample(PROMPT, requirements)
    assert result.value.total == 41
```

The body runs again and again until it is certain, with the given confidence, whether it passes in
at least 90 % of its runs. `mellea_like.sequential.PassRateTest` decides this, and accounts for runs
that have not ended yet. The body may call anything. A plain body runs in threads. An async body
runs in the event loop of the plugin that runs the project's async tests (pytest-asyncio, anyio's,
pytest-trio), or on asyncio if there is no such plugin.

All runs of a body share its fixtures, except that each has its own `draw`.
"""

from __future__ import annotations

import inspect
import json
import math
import warnings
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from mellea_like.lazy import needs_extra

with needs_extra("testing", "mellea_like's fixtures need pytest"):
    import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from mellea_like.testing.trial import Purse, Trial

__all__ = ["Draw", "draw"]

T = TypeVar("T")

PROPERTY = "pass_rate"
SHOWN = 120
"""The most characters of a failing reply or message that the summary shows."""


@dataclass
class Draw:
    """One run of a test's body.

    Attributes:
        number: the number of the run, from 0.
        reply: the model's reply, if the body sets it. The reply of the first failed run is shown.
        cost: the run's cost in any currency, if the body sets it. It is counted against
            ``--draws-budget``.
    """

    number: int = 0
    reply: object = None
    cost: float = 0.0
    _cache: Callable[[Any], Any] | None = None

    def cached(self, backend: T) -> T:
        """Return the backend or, with ``--cached FILE``, one that replays replies from the file.

        Each run of the body has its own replies. When pytest runs again, the run with the same
        number gets the same replies.

        Args:
            backend: a backend of this library.

        Returns:
            A backend for this run of the body.
        """
        return backend if self._cache is None else cast("T", self._cache(backend))


@pytest.fixture
def draw(request: pytest.FixtureRequest) -> Draw:
    """The current run of the body."""
    if request.node.get_closest_marker(PROPERTY) is None:
        pytest.fail("the draw fixture is only for tests marked pass_rate", pytrace=False)
    return Draw()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the command-line options."""
    group = parser.getgroup("mellea_like")
    group.addoption(
        "--draws-budget",
        type=float,
        metavar="MONEY",
        default=None,
        help="start no run of a test marked pass_rate that might exceed this budget; it is divided"
        " evenly among the processes of pytest-xdist",
    )
    group.addoption(
        "--draws-price",
        metavar="IN,OUT",
        default=None,
        help="the prices of a million prompt tokens and of a million reply tokens, such as"
        " 0.15,0.60: counts the tokens of mellea_like's backends as the cost of draws",
    )
    group.addoption(
        "--cached",
        metavar="FILE",
        default=None,
        help="keep the replies of draw.cached(backend) in this file, and replay those that it"
        " already has",
    )
    group.addoption(
        "--pass-rates",
        metavar="FILE",
        default=None,
        help="write the pass rates of tests marked pass_rate to this file, as JSON",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark, check the budget, and read the price."""
    budget = config.getoption("--draws-budget")
    if budget is not None and not 0 < budget < math.inf:
        msg = f"--draws-budget must be an amount of money over 0, such as 2.00, not {budget}"
        raise pytest.UsageError(msg)
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


_TRIAL: pytest.StashKey[Trial] = pytest.StashKey()
_PURSE: pytest.StashKey[Purse] = pytest.StashKey()
_PRICE: pytest.StashKey[Any] = pytest.StashKey()
_CACHES: pytest.StashKey[dict[int, Any]] = pytest.StashKey()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Replace a marked test's body with a function that runs the body as often as needed."""
    mark = item.get_closest_marker(PROPERTY)
    if mark is None or not isinstance(item, pytest.Function):
        yield
        return
    from mellea_like.testing.trial import Trial, rule_of  # noqa: PLC0415 (marked tests only)

    rule, config = rule_of(mark), item.config
    body: Callable[..., Any] = item.obj
    price = config.stash.get(_PRICE, None)
    trial = Trial(body, rule, _purse_of(config), partial(_draw, config, item.nodeid), price)
    item.stash[_TRIAL] = trial
    item.obj = trial.stand_in()
    try:
        yield
    finally:
        item.obj = body
        del item.stash[_TRIAL]
        # A test that runs again, as by pytest-rerunfailures, still has the record of its last run.
        item.user_properties[:] = [one for one in item.user_properties if one[0] != PROPERTY]
        if trial.ran and not trial.skipped:
            record = {"test": item.nodeid, **trial.record()}
            item.user_properties.append((PROPERTY, json.dumps(record)))
    if trial.returned is not None:
        text = f"{item.nodeid} returned {type(trial.returned).__name__}: did you mean assert?"
        warnings.warn(pytest.PytestReturnNotNoneWarning(text), stacklevel=1)
    trial.conclude()


@pytest.hookimpl
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an async body on asyncio, if no other plugin runs it."""
    if _TRIAL not in pyfuncitem.stash or not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    import anyio  # noqa: PLC0415

    async def run() -> None:
        names = inspect.signature(pyfuncitem.obj).parameters
        await pyfuncitem.obj(**{n: v for n, v in pyfuncitem.funcargs.items() if n in names})

    anyio.run(run)
    return True


def _draw(config: pytest.Config, test: str, number: int) -> Draw:
    path = config.getoption("--cached")
    if path is None:
        return Draw(number)
    caches = config.stash.setdefault(_CACHES, dict[int, Any]())

    def cached(backend: Any) -> Any:
        from mellea_like.backends import CachedBackend  # noqa: PLC0415

        if id(backend) not in caches:
            caches[id(backend)] = CachedBackend(backend, path)
        return caches[id(backend)].apart(f"{test} {number}")

    return Draw(number, _cache=cached)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Close the file of cached replies."""
    caches: dict[int, Any] = config.stash.get(_CACHES, dict[int, Any]())
    if not caches:
        return
    import anyio  # noqa: PLC0415

    for cache in caches.values():
        anyio.run(cache.close_file)


def _purse_of(config: pytest.Config) -> Purse:
    """Return this process's share of ``--draws-budget``, with the amount spent so far."""
    from mellea_like.testing.trial import Purse  # noqa: PLC0415

    if _PURSE not in config.stash:
        budget = config.getoption("--draws-budget")
        workers = int(getattr(config, "workerinput", {}).get("workercount", 1))
        config.stash[_PURSE] = Purse(math.inf if budget is None else budget / workers)
    return config.stash[_PURSE]


def _records(reporter: Any) -> list[dict[str, Any]]:
    """Return the outcomes of all marked tests, including those run by other processes."""
    again = "rerun"  # Of pytest-rerunfailures: only the last run of a test counts.
    reports = [one for kind, some in reporter.stats.items() if kind != again for one in some]
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
        try:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            Path(path).write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")
        except OSError as exc:
            terminalreporter.write_line(f"--pass-rates could not be written: {exc}", red=True)
    if not records:
        return
    from mellea_like.core.display import one_line, plural, three_decimals  # noqa: PLC0415

    terminalreporter.section("pass rates")
    for one in records:
        rate = "no draw" if one["rate"] is None else three_decimals(one["rate"])
        between = f"{three_decimals(one['low'])} to {three_decimals(one['high'])}"
        cost = f", {plural(one['requests'], 'request')}" if one["requests"] else ""
        cost += f", {one['cost']:.4g} spent" if one["cost"] else ""
        terminalreporter.write_line(
            f"{one['verdict']:9} {rate} ({between}), {plural(one['draws'], 'draw')}{cost}:"
            f" {one['test']}"
        )
        if one["first_failing_reply"] is not None:
            reply = one_line(one["first_failing_reply"], SHOWN)
            terminalreporter.write_line(f"{'':9} the first failing reply: {reply}")
        elif one["first_failure"]:
            why = one_line(one["first_failure"], SHOWN)
            terminalreporter.write_line(f"{'':9} the first failure: {why}")
    free = sum(not one["cost"] for one in records if one["draws"])
    if free and config.getoption("--draws-budget") and not config.getoption("--cached"):
        terminalreporter.write_line(
            f"--draws-budget did not limit {free} of these tests, which reported no cost: set"
            " draw.cost, or pass --draws-price",
            yellow=True,
        )
