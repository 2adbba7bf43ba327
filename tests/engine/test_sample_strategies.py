"""The three strategies: what each sends after a failure, and writing one's own."""

from __future__ import annotations

import pytest
from engine_kit import outcomes, says, yes
from pydantic import BaseModel

from mellea_like import (
    BaseSamplingStrategy,
    Context,
    Generation,
    Instruction,
    Message,
    MultiTurnStrategy,
    RejectionSamplingStrategy,
    RepairTemplateStrategy,
    Requirement,
)
from mellea_like.backends.scripted import ScriptedBackend

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("virtual_clock")]

no_digits = Requirement("no digits", lambda c: not any(x.isdigit() for x in c.text), inline=True)
quiet = says("please", check_only=True)
EARLIER = Context([Message("user", "Hello"), Message("assistant", "Hi")])

FIRST = "Answer.\n\nRequirements:\n- say yes\n- no digits"


def sent(backend):
    return [[(m.role, m.content) for m in request.messages] for request in backend.requests]


async def run(strategy, replies, *, action="Answer.", requirements=(yes, no_digits), **arguments):
    backend = ScriptedBackend(replies)
    result = await strategy(backend, loop_budget=len(replies)).sample(
        action, requirements, **arguments
    )
    return backend, result


async def test_rejection_repeats_the_action_in_the_original_context():
    backend, result = await run(RejectionSamplingStrategy, ["no", "1", "yes"], context=EARLIER)
    assert sent(backend) == [[("user", "Hello"), ("assistant", "Hi"), ("user", FIRST)]] * 3
    assert {id(s.action) for s in result.slices} == {id(result.slices[0].action)}
    assert all(s.context is EARLIER for s in result.slices)


async def test_repair_writes_the_reasons_below_the_instruction_in_the_original_context():
    backend, _ = await run(RepairTemplateStrategy, ["no 1", "yes"], context=EARLIER)
    assert sent(backend)[1] == [
        ("user", "Hello"),
        ("assistant", "Hi"),
        (
            "user",
            FIRST + "\n\nAn earlier attempt was rejected. Put this right:\n"
            "- say yes: it lacks yes\n"
            "- no digits",
        ),
    ]


NOTE = "An earlier attempt was rejected. Put this right:\n- say yes: it lacks yes"
BEGUN = Message("assistant", "Sure:")


@pytest.mark.parametrize(
    ("before", "repaired"),
    [
        ([Message("user", "Ask.")], [("user", f"Ask.\n\n{NOTE}")]),
        ([Message("system", "Brief.")], [("system", "Brief."), ("user", NOTE)]),
        ([], [("user", NOTE)]),
    ],
)
async def test_repair_leaves_the_beginning_of_a_reply_last_and_as_it_was(before, repaired):
    for action, context in ([*before, BEGUN], Context()), (BEGUN, Context(before)):
        backend, _ = await run(
            RepairTemplateStrategy,
            ["no", "yes"],
            action=action,
            requirements=[yes],
            context=context,
        )
        assert sent(backend)[1] == [*repaired, ("assistant", "Sure:")]


async def test_repair_writes_only_the_last_failures_reasons_so_that_prompts_do_not_grow():
    backend, _ = await run(RepairTemplateStrategy, ["no", "yes 1", "no", "no 1"])
    repairs = [messages[-1][1].removeprefix(FIRST) for messages in sent(backend)]
    assert repairs == [
        "",
        "\n\nAn earlier attempt was rejected. Put this right:\n- say yes: it lacks yes",
        "\n\nAn earlier attempt was rejected. Put this right:\n- no digits",
        "\n\nAn earlier attempt was rejected. Put this right:\n- say yes: it lacks yes",
    ]


async def test_multi_turn_goes_on_in_the_conversation_with_what_failed():
    backend, result = await run(MultiTurnStrategy, ["no 1", "still no", "yes"], context=EARLIER)
    begin = [("user", "Hello"), ("assistant", "Hi"), ("user", FIRST)]
    wanted = "That was not accepted. Put this right, and give the whole answer again:\n"
    second = [*begin, ("assistant", "no 1")]
    second.append(("user", wanted + "- say yes: it lacks yes\n- no digits"))
    third = [*second, ("assistant", "still no"), ("user", wanted + "- say yes: it lacks yes")]
    assert sent(backend) == [begin, second, third]
    assert result.best.context_after.messages[-1] == Message("assistant", "yes")
    assert len(EARLIER) == 2


@pytest.mark.parametrize("strategy", [RepairTemplateStrategy, MultiTurnStrategy])
async def test_what_is_check_only_is_named_once_it_has_failed_and_not_before(strategy):
    backend, _ = await run(strategy, ["yes", "yes please"], requirements=[yes, quiet])
    assert "please" not in sent(backend)[0][-1][1]
    assert "say please: it lacks please" in sent(backend)[1][-1][1]


async def test_a_record_of_a_turn_has_the_text_of_its_message_whatever_the_action():
    class Asking:
        def render(self, context):
            return (*context.messages, Message("user", "What do you say?"))

        def parse(self, text):
            return text

    strategy = MultiTurnStrategy(ScriptedBackend(["no", "yes"]), loop_budget=2)
    result = await strategy.sample(Asking(), [yes])
    asked = result.slices[1].messages[-1].text
    assert asked.startswith("That was not accepted.")
    assert result.to_dict()["slices"][1]["action"]["text"] == asked


# --- values -----------------------------------------------------------------------------------


class Pet(BaseModel):
    name: str
    legs: int


@pytest.mark.parametrize(
    "strategy", [RejectionSamplingStrategy, RepairTemplateStrategy, MultiTurnStrategy]
)
async def test_a_format_gives_a_typed_value_whatever_the_strategy(strategy):
    backend, result = await run(
        strategy,
        ["no JSON", '{"name": "Rex"}', '{"name": "Rex", "legs": 4}'],
        requirements=[Requirement("four legs", lambda c: c.value.legs == 4, inline=True)],
        format=Pet,
    )
    assert result.value == Pet(name="Rex", legs=4)
    assert outcomes(result) == {1: "failed", 2: "failed", 3: "passed"}
    assert [r.format for r in backend.requests] == [Pet] * 3
    assert result.errors == ()


async def test_a_backends_own_value_is_validated_against_the_format():
    class Backend:
        async def generate(self, request):
            legs = 4 if request.meta.iteration == 2 else "many"
            return Generation("as text", value={"name": "Rex", "legs": legs})

    result = await RejectionSamplingStrategy(Backend()).sample("do", format=Pet)
    assert outcomes(result) == {1: "failed", 2: "passed"}
    assert result.value == Pet(name="Rex", legs=4)
    assert result.best.text == "as text"


# --- one's own strategy -----------------------------------------------------------------------


async def test_a_strategy_of_ones_own_overrides_repair():
    class Counting(BaseSamplingStrategy):
        def repair(self, history):
            return Instruction(f"attempt {len(history) + 1}"), EARLIER

    backend, result = await run(Counting, ["no", "no", "yes"], requirements=[yes])
    assert [messages[-1][1] for messages in sent(backend)] == [
        "Answer.\n\nRequirements:\n- say yes",
        "attempt 2",
        "attempt 3",
    ]
    assert result.slices[2].context is EARLIER
