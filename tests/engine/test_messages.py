"""Messages of all kinds in calls: dicts, parts and tools' messages, and their repairs."""

from __future__ import annotations

import pytest

from mellea_like.backends import FunctionBackend
from mellea_like.core.conversation import Context, Message
from mellea_like.core.parts import Image, Text
from mellea_like.core.requirement import Requirement
from mellea_like.sampling.strategies import RejectionSamplingStrategy, RepairTemplateStrategy
from tests.support.messages import PNG

pytestmark = pytest.mark.anyio

SYSTEM, ASKED = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi!"}


async def test_dicts_are_actions_and_contexts():
    asked = []

    def reply(request):
        asked.append(request.messages)
        return "Hello."

    strategy = RejectionSamplingStrategy(FunctionBackend(reply, inline=True), loop_budget=1)
    told, said = Message("system", "Be brief."), Message("user", "Hi!")
    for action, context in [
        ([SYSTEM, ASKED], None),
        ((told, ASKED), ()),
        (ASKED, [SYSTEM]),
        ([ASKED], Context([SYSTEM])),
        ([said], [told]),
    ]:
        result = await strategy.sample(action, context=context)
        assert asked.pop() == (told, said)
        (slice_,) = result.slices
        assert (slice_.action, slice_.context) == (said, Context([told]))
        assert slice_.context_after.messages == (told, said, Message("assistant", "Hello."))


@pytest.mark.parametrize(
    ("action", "repaired"),
    [
        (
            Message("user", ["What?", Image(data=PNG)]),
            lambda last: (
                last[0].content[:2] == (Text("What?"), Image(data=PNG))
                and "too short" in last[0].content[2].text
            ),
        ),
        (
            Message("tool", "42", tool_call_id="a"),
            lambda last: last[0].content == "42" and "too short" in last[1].text,
        ),
    ],
)
async def test_a_template_repairs_below_parts_and_behind_a_tool_s_message(action, repaired):
    asked = []

    def reply(request):
        asked.append(request.messages)
        return "x"

    def long(_):
        return False, "too short"

    strategy = RepairTemplateStrategy(FunctionBackend(reply, inline=True), loop_budget=2)
    await strategy.sample(action, [Requirement("long", long, inline=True)])
    assert asked[0] == (action,)
    assert repaired(asked[1])
