"""An option is one class and one row of the table: this one stops when two lanes have passed."""

from __future__ import annotations

import anyio
import pytest
from engine_kit import after, by_iteration, yes

from mellea_like import Outcome, RejectionSamplingStrategy
from mellea_like.kernel.ports import Option, Ruling
from mellea_like.sampling import call, table

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("virtual_clock")]


class TwoLanes(Option):
    """The call ends when draws of two lanes have passed."""

    hears = Outcome.PASSED

    def __init__(self) -> None:
        self._lanes: set[int] = set()

    def hear(self, slice_):
        """Count the lanes that have passed."""
        self._lanes.add(slice_.subsample)
        return Ruling(over=True) if len(self._lanes) == 2 else None


def instead_of_first(setup):
    return TwoLanes() if setup.settings.selection == "first" else None


@pytest.fixture(autouse=True)
def two_lanes(monkeypatch):
    rows = [row for row in table.OPTIONS if "First" not in row.__code__.co_names]
    assert len(rows) == len(table.OPTIONS) - 1
    monkeypatch.setattr(call, "OPTIONS", (*rows, instead_of_first))


async def test_it_ends_the_call_and_cancels_the_others():
    """A draw that fails doesn't count, because the option hears only of those that pass."""
    draws = {1: after(1, "no"), 2: after(2, "yes"), 3: after(3, "yes"), 4: after(9, "yes")}
    strategy = RejectionSamplingStrategy(by_iteration(draws), loop_budget=1, concurrency_budget=4)
    result = await strategy.sample("do", [yes])
    assert result.value == "yes"
    assert [s.iteration for s in result.slices if s.passed] == [2, 3]
    assert result.count(Outcome.CANCELLED) == 1
    assert anyio.current_time() == 3


async def test_a_hear_that_returns_no_ruling_is_named(monkeypatch):
    monkeypatch.setattr(TwoLanes, "hear", lambda *_: True)
    strategy = RejectionSamplingStrategy(by_iteration({1: "yes"}))
    with pytest.raises(TypeError, match=r"TwoLanes object.* must return a Ruling or None"):
        await strategy.sample("do", [yes])


def test_a_synchronous_port_cannot_be_async():
    async def hear(self, slice_):
        return None

    with pytest.raises(TypeError, match=r"Late\.hear can't be async: the race doesn't wait for it"):
        type("Late", (Option,), {"hear": hear})
