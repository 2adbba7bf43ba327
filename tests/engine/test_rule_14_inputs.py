"""Rule 14 of the engine: inputs stay as they are, and are shared, not copied."""

from __future__ import annotations

import pytest
from engine_kit import by_iteration, yes

from mellea_like import (
    Context,
    Instruction,
    Message,
    MultiTurnStrategy,
    RejectionSamplingStrategy,
    RepairTemplateStrategy,
)
from mellea_like.backends.scripted import ScriptedBackend
from mellea_like.errors import RateLimited

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("virtual_clock")]

STRATEGIES = [RejectionSamplingStrategy, RepairTemplateStrategy, MultiTurnStrategy]


class Uncopyable:
    """An action that must not be copied, and notices when it is changed."""

    def __init__(self):
        self.name = "a"

    def __setattr__(self, name, value):
        if name in self.__dict__:
            raise AssertionError(f"{name} was changed")
        super().__setattr__(name, value)

    def __copy__(self):
        raise AssertionError("copied")

    def __deepcopy__(self, memo):
        raise AssertionError("deep-copied")

    def render(self, context):
        return (*context.messages, Message("user", self.name))

    def parse(self, text):
        return text


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_rule_14_an_action_is_neither_changed_nor_copied(strategy):
    action = Uncopyable()
    result = await strategy(by_iteration({3: "yes"}), loop_budget=3).sample(action, [yes])
    assert result.slices[0].action is action


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_rule_14_a_context_is_shared_and_stays_as_it_is(strategy):
    context = Context([Message("system", "be brief"), Message("user", "hello")])
    before = context.messages
    result = await strategy(by_iteration({3: "yes"}), loop_budget=3).sample(
        "do", [yes], context=context
    )
    assert context.messages is before
    assert len(context) == 2
    assert result.slices[0].context is context


async def test_rule_14_an_instruction_keeps_its_own_requirements():
    action = Instruction("do", requirements=(yes,))
    extra = ["be kind"]
    judge = ScriptedBackend(lambda request: '{"passed": true, "reason": ""}')
    strategy = RejectionSamplingStrategy(by_iteration({1: "yes"}), judge=judge)
    result = await strategy.sample(action, extra)
    assert action.requirements == (yes,)
    assert action.repair == ()
    assert extra == ["be kind"]
    assert len(result.slices[0].action.requirements) == 2


async def test_rule_14_a_mapping_of_options_is_copied_once_and_shallowly():
    marker = object()
    extra = {"marker": marker}
    options = {"temperature": 0.5, "extra": extra, "seed": 3}
    backend = by_iteration({})
    strategy = RejectionSamplingStrategy(backend, loop_budget=2, options=options)
    options["temperature"] = 9
    extra["more"] = 1
    await strategy.sample("do", [yes])
    for request in backend.requests:
        assert request.options.temperature == 0.5
        assert dict(request.options.extra) == {"marker": marker}
        assert request.options.extra["marker"] is marker


async def test_rule_14_a_list_of_requirements_may_be_changed_afterwards():
    requirements = [yes]
    strategy = RejectionSamplingStrategy(by_iteration({}), requirements=requirements)
    requirements.clear()
    assert not (await strategy.sample("do")).success


async def test_rule_14_the_history_holds_what_failed_and_not_what_erred():
    histories = []

    class Keeping(RejectionSamplingStrategy):
        def repair(self, history):
            histories.append([s.iteration for s in history])
            return super().repair(history)

    backend = by_iteration({2: RateLimited("again"), 3: RateLimited("again")})
    await Keeping(backend, loop_budget=5).sample("do", [yes])
    assert histories == [[1], [1, 4]]
