"""Servers and models that know one of the two names of the field that limits a reply's length."""

from __future__ import annotations

from typing import Any

import pytest
from http_server import Answer, OpenAIServer

from mellea_like import Message, OpenAIBackend, Request
from mellea_like.backends import server_errors
from mellea_like.backends.openai_server import OpenAIServer as Address
from mellea_like.core import Options, Usage
from mellea_like.errors import InvalidRequest

pytestmark = pytest.mark.anyio

OPENAI = (
    "Unsupported parameter: 'max_tokens' is not supported with this model. Use"
    " 'max_completion_tokens' instead."
)
MISTRAL = "{'type': 'extra_forbidden', 'loc': ['body', 'max_completion_tokens']}"


def refusing(field: str, said: str) -> OpenAIServer:
    def choose(number: int, body: dict[str, Any]) -> Answer:
        return Answer.error(400, said) if field in body else Answer("a b")

    return OpenAIServer(choose=choose)


def ask(**options: Any) -> Request:
    return Request((Message("user", "Go."),), Options(**options))


@pytest.mark.parametrize(
    ("official", "fields", "said"),
    [
        (False, ["max_tokens", "max_completion_tokens"], OPENAI),
        (True, ["max_completion_tokens", "max_tokens"], MISTRAL),
    ],
)
async def test_the_other_name_is_used_and_remembered(official, fields, said, monkeypatch):
    monkeypatch.setattr(Address, "is_official", official)
    with refusing(fields[0], said) as server:
        backend = OpenAIBackend("m", base_url=server.url, api_key="k")
        requests = [ask(max_tokens=9), ask(max_tokens=8), ask()]
        for request in requests:
            assert (await backend.generate(request)).text == "a b"
        await backend.aclose()
    sent = [{name: body[name] for name in fields if name in body} for body in server.requests]
    assert sent == [{fields[0]: 9}, {fields[1]: 9}, {fields[1]: 8}, {}]
    assert requests[0].meter.usage == Usage(2, 7, 4)


async def test_a_length_that_is_refused_under_both_names_is_an_error():
    with OpenAIServer(Answer.error(400, OPENAI)) as server:
        backend = OpenAIBackend("m", base_url=server.url)
        for _ in range(2):
            with pytest.raises(InvalidRequest, match="Unsupported parameter"):
                await backend.generate(ask(max_tokens=9))
        with pytest.raises(InvalidRequest, match="Unsupported parameter"):
            await backend.generate(ask())
        await backend.aclose()
    assert server.started == 5


@pytest.mark.parametrize(
    ("status", "said", "refused"),
    [
        (400, OPENAI, True),
        (422, MISTRAL, True),
        (400, "Unrecognized request argument supplied: max_completion_tokens", True),
        (400, "max_tokens is too large: 99999. This model supports at most 4096", False),
        (400, "Unsupported parameter: 'logit_bias' is not supported with this model.", False),
        (500, OPENAI, False),
    ],
)
def test_servers_word_the_refusal_in_their_ways(status, said, refused):
    error = server_errors.Translator("http://x", "m", 9.0, ()).refusal(status, {}, said)
    assert server_errors.refuses_length(error) is refused
