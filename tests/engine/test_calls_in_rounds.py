"""A call that is left after each draw, and goes on from the records of its slices."""

from __future__ import annotations

import json

import pytest
from engine_kit import by_iteration, says, yes

from mellea_like import (
    Context,
    Instruction,
    Message,
    MultiTurnStrategy,
    RejectionSamplingStrategy,
    RepairTemplateStrategy,
)
from mellea_like.core.recorded import recorded_requirement
from mellea_like.core.serialization import slice_from_dict, slice_to_dict
from mellea_like.errors import BackendUnavailable
from mellea_like.hooks import HookType, PluginSet, hook

pytestmark = pytest.mark.anyio


class Growing(RejectionSamplingStrategy):
    """Its repair looks at all that the actions and conversations of its history have."""

    def repair(self, history):
        *_, last = history
        said = [m.content for m in last.messages]
        action = Instruction(f"{last.action.description} again, after {len(said)} {last.value!r}")
        return action, Context([*last.context.messages, Message("user", last.problems[0])])


def written_and_read(slice_):
    body = json.loads(json.dumps(slice_to_dict(slice_)))
    return slice_from_dict(body, None, Context(), (), recorded_requirement)


async def in_rounds(strategy, action, requirements=(), *, budget=None):
    """Run a call a draw at a time; each round knows of those before by their records."""
    earlier, seen = (), []
    while True:
        call = strategy.begin(
            action, requirements, budget=budget, on_slice=seen.append, earlier=earlier
        )
        result = await call.run(draws=1)
        assert len(result.slices) <= len(earlier) + 1
        if not call.paused:
            return result, seen
        earlier = tuple(map(written_and_read, result.slices))


def same(s):
    return (
        *(s.iteration, s.depth, s.action, s.context.messages, s.messages, s.text, s.value),
        *(s.requirements, s.outcome, s.problems, type(s.error), s.usage, s.duration),
    )


LAST = {4: "yes and no"}
DOWN = {1: "no", 2: BackendUnavailable("away"), 3: "no no", **LAST}
STRATEGIES = {
    "rejection": RejectionSamplingStrategy,
    "repair": RepairTemplateStrategy,
    "multi-turn": MultiTurnStrategy,
    "one's own": Growing,
}


@pytest.mark.parametrize("replies", [LAST, DOWN, {}], ids=["passes", "was away", "fails"])
@pytest.mark.parametrize("kind", STRATEGIES.values(), ids=STRATEGIES)
async def test_a_call_in_rounds_is_the_same_as_a_call_at_once(kind, replies, virtual_clock):
    def strategy():
        return kind(by_iteration(replies), loop_budget=4, requirements=[yes], retry=None)

    asked = Instruction("say it", requirements=[says("and")])
    whole = await strategy().sample(asked)
    result, seen = await in_rounds(strategy(), asked)
    assert list(map(same, result.slices)) == list(map(same, whole.slices))
    assert (result.success, result.best_index, result.stop_reason) == (
        *(whole.success, whole.best_index, whole.stop_reason),
    )
    assert result.elapsed == pytest.approx(whole.elapsed)
    assert [s.iteration for s in seen] == [1, 2, 3, 4], "each is told of once"


async def test_plugins_hear_of_each_draw_and_repair_once(virtual_clock):
    heard = []

    @hook(HookType.SAMPLING_REPAIR)
    async def on_repair(payload):
        heard.append(("repair", payload.failed.iteration))

    @hook(HookType.SAMPLING_ITERATION)
    async def on_iteration(payload):
        heard.append(("slice", payload.slice.iteration))

    ears = PluginSet("ears", [on_repair, on_iteration])
    strategy = RejectionSamplingStrategy(
        by_iteration({3: "yes"}), requirements=[yes], loop_budget=3, plugins=[ears]
    )
    await in_rounds(strategy, "say it")
    assert sorted(heard) == [("repair", 1), ("repair", 2), ("slice", 1), ("slice", 2), ("slice", 3)]
