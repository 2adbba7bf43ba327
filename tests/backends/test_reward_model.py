"""`RewardModel` against a fake of vLLM's three protocols, and llama.cpp's real server for one."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import anyio
import pytest
from http_server import OpenAIServer

from mellea_like import BestOf, Candidate, Context, Generation, Message, RejectionSamplingStrategy
from mellea_like.backends import RewardModel, ScriptedBackend
from mellea_like.errors import AuthenticationFailed, BackendUnavailable, MalformedResponse

pytestmark = pytest.mark.anyio


def by_length(text: str) -> float:
    return len(text) / 100


class RewardServer(OpenAIServer):
    """Scores an answer by its length."""

    def __init__(self, status: int = 200, body: bytes | None = None) -> None:
        super().__init__()
        self.status, self.body = status, body
        self.asked: list[tuple[str, dict]] = []
        self.left = 0

    async def answer(self, method, path, body, send):
        asked = json.loads(body)
        self.asked.append((path, asked))
        if self.body == b"wait":
            try:
                await anyio.sleep(30)
            finally:
                self.left += 1
        if self.status != 200 or self.body is not None:
            return send.whole(self.status, self.body or b'{"error": {"message": "no"}}')
        if path.endswith("/score"):
            reply = {"data": [{"index": 0, "score": by_length(asked["text_2"])}]}
        elif path.endswith("/rerank"):
            score = by_length(asked["documents"][0])
            reply = {"results": [{"index": 0, "relevance_score": score}]}
        else:
            score = by_length(asked["input"].split("\n\n")[-1])
            reply = {"data": [{"index": 0, "label": "good", "probs": [1 - score, score]}]}
        return send.whole(200, json.dumps(reply).encode())


def candidate(text: str) -> Candidate:
    return Candidate(text, text, Generation(text), Context(), Message("user", "Say something."))


@pytest.mark.parametrize("kind", ["score", "rerank", "classify"])
async def test_the_best_by_each_protocol(kind):
    with RewardServer() as server:
        scorer = RewardModel(server.url, kind=kind, model="reward", api_key="secret-of-mine")
        strategy = RejectionSamplingStrategy(
            ScriptedBackend(["short", "a longer one", "long"]),
            loop_budget=3,
            selection=BestOf(scorer, n=3),
        )
        result = await strategy.sample("Say something.")
        await scorer.aclose()
    assert result.value == "a longer one"
    assert result.decision.scores == {1: 0.05, 2: 0.12, 3: 0.04}
    assert {path.rpartition("/")[2] for path, _ in server.asked} == {kind}
    assert all(body["model"] == "reward" for _, body in server.asked)
    assert "Say something." in json.dumps(server.asked[0][1])


@pytest.mark.parametrize(
    ("status", "body", "error", "says"),
    [
        (401, None, AuthenticationFailed, "401"),
        (503, None, BackendUnavailable, "503"),
        (200, b'{"data": []}', MalformedResponse, "an invalid response to /score"),
        (200, b'{"data": [{"score": "much"}]}', MalformedResponse, "an invalid response to /score"),
        (200, b"<html>", MalformedResponse, "JSONDecodeError"),
    ],
)
async def test_what_is_no_score_is_an_error(status, body, error, says):
    with RewardServer(status, body) as server:
        scorer = RewardModel(server.url, max_retries=0, api_key="secret-of-mine")
        with pytest.raises(error, match=says) as raised:
            await scorer(candidate("x"))
        await scorer.aclose()
    assert "secret-of-mine" not in str(raised.value)


async def test_a_call_that_is_cancelled_closes_the_request():
    with RewardServer(body=b"wait") as server:
        scorer = RewardModel(server.url)
        strategy = RejectionSamplingStrategy(
            ScriptedBackend(["one"]), loop_budget=1, selection=BestOf(scorer)
        )
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(strategy.sample, "Say something.")
            await server.wait_until(lambda: bool(server.asked))
            tasks.cancel_scope.cancel()
        await server.wait_until(lambda: server.left == 1)
        await scorer.aclose()


SUPPORT = Path(__file__).parents[1] / "support"


@pytest.fixture(scope="module")
def reranker(tmp_path_factory):
    """Yield the URL of llama.cpp's server with a reranker for the word "good"."""
    if importlib.util.find_spec("xllamacpp") is None:
        pytest.skip("xllamacpp is not installed")
    path = tmp_path_factory.mktemp("models") / "reranker.gguf"
    command = [sys.executable, str(SUPPORT / "tiny_reranker.py"), "good", str(path)]
    pipe, null = subprocess.PIPE, subprocess.DEVNULL
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=null, text=True) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        yield server.stdout.readline().strip()
        server.stdin.close()


async def test_the_best_by_the_reranking_of_llama_cpp(reranker):
    scorer = RewardModel(f"{reranker}/v1", kind="rerank")
    replies = ["a bad one", "good", "a good one", "good good good", "none"]
    strategy = RejectionSamplingStrategy(
        ScriptedBackend(replies), concurrency_budget=1, loop_budget=5, selection=BestOf(scorer)
    )
    result = await strategy.sample("Say something.")
    await scorer.aclose()
    assert result.value == "good good good"
    scores = result.decision.scores
    assert sorted(scores, key=scores.__getitem__, reverse=True)[:3] == [4, 2, 3]
    assert scores[1] < 0 < scores[3]


@pytest.mark.parametrize(
    ("wrong", "kind", "says"),
    [
        ({"kind": "reward"}, ValueError, "not 'reward'"),
        ({"base_url": "localhost:8000"}, ValueError, "base_url must be a URL"),
        ({"timeout": 0}, ValueError, "timeout must be greater than 0 seconds"),
        ({"max_retries": -1}, ValueError, "max_retries must be at least 0"),
        ({"label": "good"}, TypeError, "label must be an integer"),
    ],
)
def test_wrong_arguments_are_refused(wrong, kind, says):
    with pytest.raises(kind, match=says):
        RewardModel(**{"base_url": "http://localhost:1", **wrong})


async def test_credentials_in_the_url_do_not_show_in_errors():
    with RewardServer(401, b'{"error": {"message": "not for pass%20word of me"}}') as server:
        url = server.url.replace("http://", "http://me:pass%20word@")
        scorer = RewardModel(f"{url}?key=secret-of-mine", max_retries=0)
        with pytest.raises(AuthenticationFailed) as caught:
            await scorer(candidate("x"))
        await scorer.aclose()
    assert str(caught.value) == f"{server.url} answered 401: not for *** of me; check the API key"
