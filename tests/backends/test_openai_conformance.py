"""OpenAIBackend and LlamaCppBackend pass the conformance check for backends."""

from __future__ import annotations

import pytest
from http_server import Answer, OpenAIServer
from tiny_gguf import build_bigram_gguf

from mellea_like import Message, OpenAIBackend, Request
from mellea_like.backends import LlamaCppBackend
from mellea_like.core import Options
from mellea_like.testing import check_backend

pytestmark = pytest.mark.anyio

FAILING = Request((Message("user", "Fail."),))


@pytest.mark.parametrize(
    ("keep_alive", "api"), [(True, "chat"), (False, "chat"), (True, "responses")]
)
async def test_openai_backend_keeps_every_promise(keep_alive, api):
    def choose(number: int, body: dict) -> Answer:
        if body["messages" if api == "chat" else "input"][0]["content"] == "Fail.":
            return Answer.error(500, "as asked")
        return Answer("one two three", seconds=0.03)

    with OpenAIServer(choose=choose) as server:
        backend = OpenAIBackend("m", base_url=server.url, keep_alive=keep_alive, api=api)
        rules = await check_backend(lambda: backend, failing_request=FAILING)
        await backend.aclose()
        await server.wait_until(lambda: server.connections == 0)
    assert {"cancellation", "stream", "errors"} <= set(rules)


@pytest.mark.alone
async def test_llama_cpp_backend_keeps_every_promise(tmp_path):
    build_bigram_gguf("one two three four five six seven eight nine ten", tmp_path / "m.gguf")
    failing = Request((Message("user", "x" * 10_000),))
    request = Request((Message("user", "Say something."),), options=Options(seed=1))
    async with LlamaCppBackend(tmp_path / "m.gguf", threads=1) as backend:
        rules = await check_backend(lambda: backend, request=request, failing_request=failing)
    assert {"cancellation", "stream", "errors"} <= set(rules)
