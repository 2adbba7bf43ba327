"""The conversation that a result hands on: the prompt, the rounds of tools, and the winner."""

from __future__ import annotations

import pytest
from engine_kit import outcomes, says

from mellea_like import (
    Context,
    Generation,
    Message,
    MultiTurnStrategy,
    RejectionSamplingStrategy,
    RepairTemplateStrategy,
    SamplingFailed,
    Tool,
)
from mellea_like.backends import ScriptedBackend
from mellea_like.core import ToolCall
from mellea_like.errors import BackendUnavailable

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("virtual_clock")]

PAST = Context([Message("user", "hello"), Message("assistant", "hi")])
YES = says("yes")
STRATEGIES = (RejectionSamplingStrategy, RepairTemplateStrategy, MultiTurnStrategy)


async def rooms(city: str) -> int:
    """How many rooms are free."""
    return len(city)


ROOMS = Tool.of(rooms, read_only=True)


def looks_up(city: str) -> Generation:
    return Generation("", tool_calls=(ToolCall(f"of-{city}", "rooms", f'{{"city": "{city}"}}'),))


def said(context: Context) -> list[tuple[str, str]]:
    return [(message.role, message.text) for message in context]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    ("action", "asked"),
    [
        ("do it", [("user", "do it\n\nRequirements:\n- say yes")]),
        (Message("user", "do it"), [("user", "do it")]),
        (
            [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}],
            [("user", "a"), ("user", "b")],
        ),
    ],
)
async def test_after_repairs_a_conversation_goes_on_without_their_words(strategy, action, asked):
    backend = ScriptedBackend(["no", BackendUnavailable("busy"), "never", "yes", "and on"])
    drawing = strategy(backend, loop_budget=4, retry=None)
    result = await drawing.sample(action, [YES], context=PAST)
    assert outcomes(result) == {1: "failed", 2: "errored", 3: "failed", 4: "passed"}
    assert said(result.context) == [*said(PAST), *asked, ("assistant", "yes")]
    await drawing.sample("next", context=result.context)
    assert backend.requests[-1].messages[:-1] == result.context.messages


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_what_tools_said_in_the_winning_draw_stays(strategy):
    backend = ScriptedBackend([looks_up("Rome"), "no", looks_up("Oslo"), looks_up("Bern"), "yes"])
    result = await strategy(backend).sample(Message("user", "do it"), [YES], tools=[ROOMS])
    looked_up = [
        pair
        for city in ("Rome", "Oslo", "Bern")
        for pair in (("assistant", f'[calls rooms({{"city": "{city}"}})]'), ("tool", "4"))
    ]
    # The reply of a conversation rests on what was looked up in it; another draw starts again.
    kept = looked_up if strategy is MultiTurnStrategy else looked_up[2:]
    assert said(result.context) == [("user", "do it"), *kept, ("assistant", "yes")]


async def test_answers_of_tools_are_what_was_asked():
    backend = ScriptedBackend([looks_up("Oslo"), "no", looks_up("Rome"), "yes"])
    strategy = RepairTemplateStrategy(backend)
    first = await strategy.sample("do it", tools=[rooms])
    assert said(first.context)[-1] == ("assistant", '[calls rooms({"city": "Oslo"})]')
    answers = await first.run_tools()
    second = await strategy.sample(answers, [YES], context=first.context, tools=[ROOMS])
    assert outcomes(second) == {1: "failed", 2: "passed"}
    assert second.context.messages == (
        *first.context.messages,
        *answers,
        *second.best.messages[-2:],
        Message("assistant", "yes"),
    )


async def test_without_an_answer_there_is_nothing_to_go_on_with():
    result = await RejectionSamplingStrategy(ScriptedBackend(["no"]), loop_budget=1).sample(
        "do it", [YES]
    )
    with pytest.raises(SamplingFailed, match="none of 1 draw passed"):
        result.context  # noqa: B018 (it raises)
