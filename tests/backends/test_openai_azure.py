"""OpenAIBackend with an Azure client: the URL and the limit key of its requests."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import openai
import pytest
from http_server import Answer, OpenAIServer

from mellea_like import Message, OpenAIBackend, Request
from mellea_like.backends import azure_client
from mellea_like.core import Options
from mellea_like.errors import BackendError

pytestmark = pytest.mark.anyio

VERSION = "2024-10-21"


@pytest.fixture(autouse=True)
def no_environment(monkeypatch):
    for name in ("OPENAI_API_KEY", "AZURE_OPENAI_API_KEY", "AZURE_OPENAI_AD_TOKEN"):
        monkeypatch.delenv(name, raising=False)


def azure(endpoint: str, **arguments: Any) -> openai.AsyncAzureOpenAI:
    return openai.AsyncAzureOpenAI(
        azure_endpoint=endpoint, api_version=VERSION, **{"api_key": "secret-1", **arguments}
    )


def ask() -> Request:
    return Request((Message("user", "Say something."),), Options(max_tokens=9))


async def test_requests_go_to_the_deployment_with_azures_key_and_are_closed_like_others():
    with OpenAIServer(Answer("a b")) as server:
        endpoint = server.url.removesuffix("/v1")
        async with azure(endpoint) as client:
            backend = OpenAIBackend("small", client=client)
            assert (await backend.generate(ask())).text == "a b"
        async with azure(endpoint, azure_deployment="large") as client:
            backend = OpenAIBackend(client=client)
            assert backend.model == "large"
            assert (await backend.generate(ask())).text == "a b"
            await OpenAIBackend("large", client=client, api="responses").generate(ask())
    chat = "/openai/deployments/{}/chat/completions?api-version=" + VERSION
    assert server.paths == [
        chat.format("small"),
        chat.format("large"),
        f"/openai/responses?api-version={VERSION}",
    ]
    assert {headers["api-key"] for headers in server.headers} == {"secret-1"}
    assert server.requests[0]["max_completion_tokens"] == 9
    assert server.requests[2]["max_output_tokens"] == 9


@pytest.mark.parametrize(
    ("url", "base_url"),
    [
        ("https://x.openai.azure.com", "https://x.openai.azure.com/openai/"),
        ("https://openai-x.openai.azure.com", "https://openai-x.openai.azure.com/openai/"),
        ("https://x.openai.azure.com/openai/v1/", "https://x.openai.azure.com/openai/v1/"),
    ],
)
def test_an_endpoint_is_told_from_a_whole_base_url(url, base_url, monkeypatch):
    monkeypatch.setenv("AZURE_OPENAI_API_KEY", "secret-1")
    monkeypatch.setenv("OPENAI_API_VERSION", VERSION)
    assert str(azure_client(url).base_url) == base_url


async def test_the_deployment_in_a_clients_url_is_its_model():
    url = "https://x.openai.azure.com/openai/deployments/large"
    client = openai.AsyncAzureOpenAI(base_url=url, api_version=VERSION, api_key="secret-1")
    assert OpenAIBackend(client=client).model == "large"
    assert OpenAIBackend("small", client=client).model == "small"
    assert OpenAIBackend(client=azure("https://x.openai.azure.com")).model is None


async def test_a_token_is_asked_for_and_does_not_show_in_errors():
    async def token() -> str:
        return "token-of-today"

    with OpenAIServer(Answer.error(400, "bad token-of-today")) as server:
        given = {"api_key": None, "azure_ad_token": "token-of-today"}
        async with azure(server.url, **given) as client:
            with pytest.raises(BackendError) as caught:
                await OpenAIBackend("m", client=client).generate(ask())
        async with azure(server.url, api_key=None, azure_ad_token_provider=token) as client:
            with pytest.raises(BackendError):
                await OpenAIBackend("m", client=client).generate(ask())
    assert "token-of-today" not in str(caught.value)
    assert {headers["authorization"] for headers in server.headers} == {"Bearer token-of-today"}


async def test_azure_counts_by_deployment_whoever_asks():
    def key(model: str | None = None, **arguments: Any) -> Any:
        client = azure("https://x.openai.azure.com", **arguments)
        return OpenAIBackend(model, client=client).limit_key

    small = ("https://x.openai.azure.com/openai/deployments/small", b"")
    assert key("small") == key("small", api_key="secret-2") == small
    assert key(azure_deployment="small") == small
    assert key("small", api_key=None, azure_ad_token="t") == small
    assert key("large") != small
    backend = OpenAIBackend("m", client=azure("https://x.openai.azure.com"))
    assert backend.provider == "azure.ai.openai"


@pytest.mark.parametrize(
    ("url", "is_azure"),
    [
        ("https://x.openai.azure.com/openai/v1/", True),
        ("https://x.cognitiveservices.azure.com/openai/v1", True),
        ("https://x.services.ai.azure.com/openai/v1", True),
        ("https://x.services.ai.azure.com/api/projects/p/openai/v1", True),
        ("https://x.services.ai.azure.com/models", False),
        ("https://services.ai.azure.com.example/openai/v1", False),
    ],
)
async def test_azures_servers_get_the_fields_that_their_models_know(url, is_azure):
    sent: list[dict[str, Any]] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        sent.append(json.loads(request.content))
        return httpx2.Response(400)

    http_client = httpx2.AsyncClient(transport=httpx2.MockTransport(answer))
    async with openai.AsyncOpenAI(base_url=url, api_key="k", http_client=http_client) as client:
        with pytest.raises(BackendError):
            await OpenAIBackend("gpt-6", client=client).generate(ask())
    assert ("max_completion_tokens" in sent[0], "max_tokens" in sent[0]) == (is_azure, not is_azure)
