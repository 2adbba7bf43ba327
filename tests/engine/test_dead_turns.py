"""What leads nowhere is not paid for: races without a contest, bugs that come every time."""

from __future__ import annotations

import anyio
import pytest
from engine_kit import after, by_iteration, outcomes

from mellea_like import RejectionSamplingStrategy, Requirement
from mellea_like.backends.scripted import ScriptedBackend
from mellea_like.errors import RequirementError

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("virtual_clock")]


# --- a draw that can't fail -----------------------------------------------------------------------


@pytest.mark.parametrize("selection", ["first", "ordered"])
async def test_where_a_draw_cannot_fail_one_request_is_sent(selection):
    backend = by_iteration({}, default=after(1, "hello"))
    strategy = RejectionSamplingStrategy(backend, concurrency_budget=4, selection=selection)
    result = await strategy.sample("do")
    assert (result.value, len(backend.requests), outcomes(result)) == ("hello", 1, {1: "passed"})


# --- the same bug ---------------------------------------------------------------------------------


def broken(candidate):
    return {}[candidate.text]  # the line of the bug


BUG = broken.__code__.co_firstlineno + 1


async def broken_async(candidate):
    await anyio.sleep(1)
    return broken(candidate)


@pytest.mark.parametrize("latency", [0, 1])
@pytest.mark.parametrize(
    "check",
    [{"validator": broken, "inline": True}, {"validator": broken_async}],
    ids=["inline", "async"],
)
@pytest.mark.parametrize(("subsamples", "slices"), [(4, 4), (1, 2)])
async def test_the_same_bug_ends_the_call_after_as_many_slices_as_subsamples(
    check, latency, subsamples, slices
):
    backend = by_iteration({}, default=after(latency, "no"))
    strategy = RejectionSamplingStrategy(backend, loop_budget=9, concurrency_budget=subsamples)
    with pytest.raises(RequirementError, match="KeyError: 'no'") as caught:
        await strategy.sample("do", [Requirement("broken", **check)])
    assert len(backend.requests) == slices
    notes = caught.value.__notes__
    assert f"{slices} draws errored" in notes[0]
    assert caught.value.line == f"{__file__}:{BUG}"
    assert notes[1] == f"raised at {__file__}:{BUG}"


async def test_an_error_that_does_not_come_with_every_reply_is_no_such_bug():
    def sometimes(candidate):
        return candidate.text == "yes" or broken(candidate)

    backend = by_iteration({1: "no", 2: after(1, "good")}, default="bad")

    def judges_no(candidate):
        return candidate.text == "good" or (candidate.text != "no" and broken(candidate))

    strategy = RejectionSamplingStrategy(backend, loop_budget=3, concurrency_budget=3)
    checks = [Requirement("s", judges_no, inline=True)]
    assert (await strategy.sample("do", checks)).value == "good"
    backend = ScriptedBackend(["a", "yes"])
    checks = [Requirement("s", sometimes, inline=True)]
    assert (await RejectionSamplingStrategy(backend).sample("do", checks)).success


async def test_an_ordered_call_counts_in_each_subsample_by_itself():
    backend = by_iteration({}, default="no")
    strategy = RejectionSamplingStrategy(
        backend, loop_budget=9, concurrency_budget=3, selection="ordered"
    )
    with pytest.raises(RequirementError):
        await strategy.sample("do", [Requirement("b", broken, inline=True)])
    assert len(backend.requests) == 6
