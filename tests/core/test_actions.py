"""Actions: texts, messages, instructions and objects of one's own."""

from __future__ import annotations

import pytest

from mellea_like import (
    Context,
    Instruction,
    Message,
    RejectionSamplingStrategy,
    Request,
    Requirement,
)
from mellea_like.backends import ScriptedBackend
from mellea_like.core import Action, Options
from mellea_like.core.conversation import as_action, is_action


class Own:
    def render(self, context):
        return ()

    def parse(self, text):
        return int(text)


@pytest.mark.parametrize("action", [Instruction("x"), Message("user", "x"), Own()])
def test_an_action_stays_what_it_is(action):
    assert as_action(action) is action
    assert is_action(action)
    assert isinstance(action, Action)


@pytest.mark.parametrize("wrong", [3, None, Own, ["x"], object()])
def test_anything_else_is_no_action(wrong):
    assert not is_action(wrong)
    with pytest.raises(
        TypeError, match=r"a str, an Instruction, a Message, an OpenAI-style message"
    ):
        as_action(wrong)


class AwaitsItsParser(Own):
    async def parse(self, text):
        return int(text)


class YieldsItsValue(Own):
    def parse(self, text):
        yield int(text)


class AwaitsItsMessages(Own):
    async def render(self, context):
        return context.messages


@pytest.mark.parametrize(
    ("kind", "method"),
    [(AwaitsItsParser, "parse"), (YieldsItsValue, "parse"), (AwaitsItsMessages, "render")],
)
@pytest.mark.anyio
async def test_an_action_that_nobody_awaits_is_refused(kind, method):
    strategy = RejectionSamplingStrategy(ScriptedBackend(["no number"]))
    with pytest.raises(TypeError, match=f"{kind.__name__}.{method} must be a plain function"):
        await strategy.sample(kind())


def test_requirements_of_an_action_that_can_be_read_only_once_are_refused():
    class Once(Own):
        requirements = iter([Requirement("is one", lambda candidate: candidate.text == "1")])

    strategy = RejectionSamplingStrategy(ScriptedBackend(["2"]))
    with pytest.raises(TypeError, match="requirements must be a sequence: an iterator can be read"):
        strategy.sample_sync(Once())


def test_an_instruction_tells_the_model_its_requirements():
    hidden = Requirement("secret", check_only=True)
    it = Instruction("Do it.", requirements=("be brief", Requirement("be kind"), hidden))
    assert it.prompt == "Do it.\n\nRequirements:\n- be brief\n- be kind"


def test_a_repaired_instruction_says_what_was_wrong():
    it = Instruction("Do it.", repair=("too long", "too loud"))
    assert it.prompt == (
        "Do it.\n\nAn earlier attempt was rejected. Put this right:\n- too long\n- too loud"
    )


def test_an_instruction_goes_behind_the_conversation_and_its_system_message_before():
    past = Context([Message("user", "hi"), Message("assistant", "hello")])
    assert Instruction("x").render(past) == (*past.messages, Message("user", "x"))
    assert Instruction("x", system="s").render(past)[0] == Message("system", "s")
    assert Instruction("x").parse(" raw ") == " raw "


def test_a_wrong_instruction_is_refused():
    with pytest.raises(TypeError, match="description must be a str"):
        Instruction(3)
    with pytest.raises(TypeError, match="system must be a str"):
        Instruction("x", system=3)
    with pytest.raises(TypeError, match="put the text in a list"):
        Instruction("x", requirements="be brief")


def test_a_request_takes_options_as_a_mapping():
    request = Request([Message("user", "hi")], {"temperature": 1})
    assert request == Request((Message("user", "hi"),), Options(temperature=1))
    with pytest.raises(ValueError, match="unknown option heat"):
        Request((), {"heat": 1})
