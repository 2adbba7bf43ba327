"""ScriptedBackend: its replies, their timing and its counts."""

from __future__ import annotations

import math

import anyio
import pytest
from anyio.lowlevel import checkpoint

from mellea_like import Generation, Message, Request
from mellea_like.backends import Reply, ScriptedBackend
from mellea_like.core import Usage

pytestmark = pytest.mark.anyio


def ask(text: str = "two words") -> Request:
    return Request((Message("user", text),))


async def test_a_script_that_is_used_up_says_so():
    backend = ScriptedBackend(["only"])
    await backend.generate(ask())
    with pytest.raises(IndexError, match=r"the script has 1 replies, and this is request 2.*cycle"):
        await backend.generate(ask())


async def test_a_rule_may_be_async():
    async def rule(request):
        await checkpoint()
        return Reply("later", delay=0)

    assert (await ScriptedBackend(rule).generate(ask())).text == "later"


async def test_a_reply_that_never_comes_can_be_cancelled(virtual_clock):
    backend = ScriptedBackend([Reply("never", delay=math.inf)])
    request = ask()
    with anyio.move_on_after(5) as scope:
        await backend.generate(request)
    assert scope.cancelled_caught
    assert backend.statistics()[:6] == (1, 0, 0, 1, 0, 1)
    assert request.meter.usage == Usage(1, 2, 0, unknown=1)


@pytest.mark.parametrize("usage", [Usage(1, 10, 20), Usage(1, 10, 20, 1), None])
async def test_tokens_are_words_unless_the_script_says_otherwise(usage):
    request = ask("two words")
    item = "three words here" if usage is None else Generation("x", usage=usage)
    reply = await ScriptedBackend([item]).generate(request)
    assert reply.usage == request.meter.usage == (usage or Usage(1, 2, 3))


@pytest.mark.parametrize(
    ("script", "error", "message"),
    [
        ("text", TypeError, "put the text in a list"),
        (3, TypeError, "a sequence of replies or a rule"),
        (ValueError, TypeError, "a sequence of replies or a rule"),
        ([3], TypeError, "a str, a Generation or an exception"),
        ([int], TypeError, "a str, a Generation or an exception"),
    ],
)
def test_a_wrong_script_is_refused(script, error, message):
    with pytest.raises(error, match=message):
        ScriptedBackend(script)


def test_wrong_numbers_are_refused():
    with pytest.raises(ValueError, match="delay must be at least 0"):
        ScriptedBackend([], delay=-1)
    with pytest.raises(ValueError, match="delay must be at least 0"):
        Reply("x", delay=-1)
    with pytest.raises(ValueError, match="needs at least one reply"):
        ScriptedBackend([], cycle=True)
    with pytest.raises(ValueError, match="don't add up to its text"):
        Reply("abc", chunks=["a", "b"])
