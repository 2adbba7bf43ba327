"""OpenAIBackend's connection pool: its size, and the library that keeps it."""

from __future__ import annotations

from datetime import UTC, datetime

import anyio
import openai
import pytest
from http_server import Answer, serving
from limiter_kit import ask
from pydantic import BaseModel

from mellea_like import Message, OpenAIBackend, Request
from mellea_like.core import Options

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("most", [1, 3])
async def test_no_more_connections_are_open_than_the_user_allows(most):
    async with serving(Answer(seconds=0.05), keep_alive=True, max_connections=most) as (
        server,
        backend,
    ):
        async with anyio.create_task_group() as tasks:
            for _ in range(7):
                tasks.start_soon(backend.generate, ask())
        assert server.started == 7
        assert server.max_in_flight == most
        assert server.accepted == most


def test_a_wrong_number_of_connections_is_refused():
    with pytest.raises(ValueError, match="max_connections must be at least 1"):
        OpenAIBackend("m", max_connections=0)
    with pytest.raises(TypeError, match="max_connections must be an integer"):
        OpenAIBackend("m", max_connections="3")
    client = openai.AsyncOpenAI(api_key="k")
    with pytest.raises(ValueError, match="combined with max_connections"):
        OpenAIBackend("m", client=client, max_connections=3)


class Point(BaseModel):
    x: int
    y: int = 0


async def test_what_is_sent_is_what_the_sdk_would_send(monkeypatch):
    monkeypatch.setenv("OPENAI_ORG_ID", "the-organisation")
    extra = {"at": datetime(2026, 1, 2, tzinfo=UTC), "point": Point(x=1)}
    asked = Request((Message("user", "Grüß Gott."),), Options(extra=extra))
    cookie = Answer(headers={"set-cookie": "balancer=7; Path=/"})
    async with serving(cookie, api_key="key") as (server, backend):
        await backend.generate(asked)
        await backend.generate(asked)
        async with openai.AsyncOpenAI(api_key="key", base_url=server.url) as client:
            await OpenAIBackend("m", client=client).generate(asked)
    first, second, theirs = server.headers
    assert second.pop("cookie") == "balancer=7"
    assert first == second
    assert first["authorization"] == "Bearer key"
    assert first["openai-organization"] == "the-organisation"
    # What the SDK says of itself: its time limits, and where it runs.
    names = ("retry-count", "read-timeout", "os", "async")
    for headers in (first, theirs):
        for name in names:
            headers.pop(f"x-stainless-{name}", None)
    assert first == theirs
    assert server.requests[0] == server.requests[2]
    assert server.requests[0]["point"] == {"x": 1}
    assert set(server.paths) == {"/v1/chat/completions"}
