"""LlamaCppBackend against a real llama.cpp server with a model made for the test."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from leftovers import children, is_gone, wait_until
from pydantic import BaseModel
from tiny_gguf import build_bigram_gguf

from mellea_like import BestOf, RejectionSamplingStrategy, judge_score
from mellea_like.backends.llama import LlamaCppBackend, ServerProcess, _explained
from mellea_like.backends.openai import OpenAIBackend
from mellea_like.core.backend import Options, Request
from mellea_like.core.conversation import Message
from mellea_like.core.format import parse_json
from mellea_like.errors import BackendTimeout, BackendUnavailable, InvalidRequest, MalformedResponse

pytest.importorskip("xllamacpp")

pytestmark = pytest.mark.anyio

CORPUS = """\
The quick brown fox jumps over the lazy dog. The dog sleeps in the warm sun.
A small bird sings in the old tree. The bird sees the fox and flies away.
Autumn leaves fall on the quiet river. The river carries them to the sea.
The old man walks along the river and looks at the sea. Élodie dort — 眠る.
"""

# One chain of thousands of words, each followed by the next: a reply that takes its time, for the
# vocabulary makes the model large.
LONG = " ".join(f"w{number}" for number in range(2500))


def ask(text="Say something.", **fields) -> Request:
    return Request((Message("user", text),), **fields)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "tiny.gguf"
    return path, build_bigram_gguf(CORPUS, path)


@pytest.fixture(scope="module")
def running(model):
    with LlamaCppBackend(model[0], concurrency=4, threads=1) as backend:
        yield backend


@pytest.fixture
async def backend(running):
    yield running
    await running.aclose()


# --- requests ----------------------------------------------------------------------------------


async def test_log_probabilities_come_with_the_tokens_they_are_asked_for(backend, model):
    options = Options(seed=3, extra={"logprobs": True, "top_logprobs": 2})
    reply = await backend.generate(ask(options=options))
    said = "".join(token.text for token in reply.logprobs)
    assert said.removesuffix("<end>") == reply.text
    follows = model[1].follows[None]
    first = reply.logprobs[0]
    assert first.logprob == pytest.approx(math.log(follows[first.text] / follows.total()), abs=1e-3)
    assert first.text in dict(first.alternatives)
    assert len(first.alternatives) == 2
    assert -3 < reply.mean_logprob < 0
    assert (await backend.generate(ask())).mean_logprob is None


async def test_a_judges_score_is_the_mean_of_those_that_it_might_have_written(backend):
    # To the model, all digits are equally likely.
    strategy = RejectionSamplingStrategy(
        backend,
        concurrency_budget=1,
        selection=BestOf(judge_score("How nice?", judge=backend, scale=(0, 9)), n=1),
    )
    result = await strategy.sample("Say something.")
    assert result.decision.scores == {1: pytest.approx(4.5, abs=1e-4)}


class Scene(BaseModel):
    title: str
    actors: list[str]
    size: int
    outside: bool
    mood: str | None = None


async def test_the_server_keeps_to_the_schema_and_in_json_mode_to_json(running):
    # Where nothing but the server makes random words into JSON.
    for mode, read in [("auto", Scene), ("json_object", dict[str, Any])]:
        backend = OpenAIBackend(
            "m", base_url=running.base_url, api_key=running._where.api_key, output=mode
        )
        request = ask(format=Scene, options=Options(seed=4, max_tokens=1000))
        reply = await backend.generate(request)
        assert parse_json(read, reply.text)
        assert reply.usage.requests == 1
        await backend.aclose()


def test_only_who_has_the_key_may_use_the_server(running):
    url = f"{running.base_url}/chat/completions"
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(urllib.request.Request(url, data=b"{}"), timeout=10)
    assert caught.value.code == 401
    caught.value.close()


# --- cancellation frees the server's slots -------------------------------------------------------


@pytest.fixture(scope="module")
def slow(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "slow.gguf"
    build_bigram_gguf(LONG, path)
    with LlamaCppBackend(path, concurrency=4, threads=1) as backend:
        yield backend


def busy_slots(backend: LlamaCppBackend) -> int:
    key = backend._where.api_key  # only the backend itself may ask
    url = backend.base_url.removesuffix("/v1") + "/slots"
    request = urllib.request.Request(url, headers={"authorization": f"Bearer {key}"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return sum(slot["is_processing"] for slot in json.load(answer))


@pytest.mark.alone
async def test_cancelling_a_winners_siblings_frees_their_slots(slow):
    async def busy() -> int:
        return await anyio.to_thread.run_sync(busy_slots, slow)

    async with anyio.create_task_group() as tasks:

        async def lose() -> None:
            await slow.generate(ask())
            pytest.fail("the reply was meant to be long")

        async def win() -> None:
            while await busy() < 3:  # noqa: ASYNC110 (the server sets no event)
                await anyio.sleep(0.01)
            await slow.generate(ask(options=Options(max_tokens=3)))
            tasks.cancel_scope.cancel()

        for _ in range(3):
            tasks.start_soon(lose)
        tasks.start_soon(win)
    begun = time.monotonic()
    while await busy():
        assert time.monotonic() - begun < 0.25, "the slots were not freed within 250 ms"
        await anyio.sleep(0.005)
    await slow.aclose()


# --- the process ---------------------------------------------------------------------------------


async def test_no_process_is_left_when_the_block_is_cancelled(slow):
    with anyio.CancelScope() as scope:
        async with LlamaCppBackend(slow._path) as backend:
            pid = backend.pid
            async with backend.stream(ask()) as reply:
                await anext(reply)
                scope.cancel()
                await anyio.sleep(10)
    assert scope.cancelled_caught
    assert is_gone(pid)


@pytest.mark.parametrize("seconds", [0.0, 0.01, 0.05])
async def test_no_process_is_left_when_the_start_is_cancelled(model, seconds):
    before = children()
    with anyio.move_on_after(seconds) as scope:
        async with LlamaCppBackend(model[0]):
            await anyio.sleep(10)
    assert scope.cancelled_caught
    assert children() <= before


async def test_a_crash_of_the_server_is_told_with_its_log(slow):
    async with LlamaCppBackend(slow._path) as backend:
        with pytest.raises(BackendUnavailable) as caught:
            async with backend.stream(ask()) as reply:
                await anext(reply)
                os.kill(backend.pid, signal.SIGKILL)
                async for _ in reply:
                    pass
        assert "has crashed (killed by signal 9); its log ends with:\n" in str(caught.value)
        assert not caught.value.retryable
        with pytest.raises(BackendUnavailable, match="has crashed"):
            await backend.generate(ask())
        with pytest.raises(BackendUnavailable, match="has crashed"):
            async with backend.stream(ask()):
                pass


async def test_a_crash_is_told_if_the_process_takes_seconds_to_end(virtual_clock):
    class Dying:
        ends = anyio.current_time() + 4

        def has_ended(self) -> bool:
            return anyio.current_time() >= self.ends

        def failure(self, what: str) -> BackendUnavailable:
            return BackendUnavailable(what, retryable=False)

    for answered in (InvalidRequest("can't be encoded"), BackendUnavailable("busy", status=503)):
        assert await _explained(answered, Dying()) is answered
    assert virtual_clock.now == 0
    error = await _explained(MalformedResponse("an incomplete reply"), Dying())
    assert str(error) == "has crashed"


# A process that was forked off holds the pipe to the server open when the parent is gone.
FORK = """
forked = os.fork()
if forked == 0:
    time.sleep(30)
    os._exit(0)
"""


@pytest.mark.parametrize("inside", ["forked = 0", FORK], ids=["alone", "with a fork"])
def test_the_server_ends_when_its_parent_is_killed(model, inside):
    script = f"""
import os, time
from mellea_like.backends.llama import LlamaCppBackend
backend = LlamaCppBackend({str(model[0])!r}).__enter__()
{inside}
print(backend.pid, forked, flush=True)
time.sleep(60)
"""
    command = [sys.executable, "-W", "ignore", "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid, forked = map(int, parent.stdout.readline().split())
        assert not is_gone(pid)
        parent.kill()
    try:
        wait_until(lambda: is_gone(pid), 10)
    finally:
        if forked:
            os.kill(forked, signal.SIGKILL)


def test_a_server_that_does_not_end_by_itself_is_killed(model):
    with LlamaCppBackend(model[0]) as backend:
        pid = backend.pid
        os.kill(pid, signal.SIGSTOP)
    assert is_gone(pid)


async def test_a_server_that_dies_while_starting_is_told(model):
    config = {"name": "m", "no such": "field"}
    process = await anyio.to_thread.run_sync(ServerProcess, model[0], config)
    os.kill(process.pid, signal.SIGKILL)
    with pytest.raises(BackendUnavailable, match=r"did not start \(killed by signal 9\)"):
        while await anyio.to_thread.run_sync(process.address) is None:  # noqa: ASYNC110
            await anyio.sleep(0.005)
    await anyio.to_thread.run_sync(process.stop)


# --- what is refused ----------------------------------------------------------------------------


def files(folder: Path, model: Path) -> list[tuple[Path, str]]:
    (folder / "text.gguf").write_text("hello", encoding="utf-8")
    (folder / "half.gguf").write_bytes(model.read_bytes()[:100_000])
    (folder / "magic.gguf").write_bytes(b"GGUF" + b"x" * 100)
    return [
        (folder / "none.gguf", r"can't read the model .*none\.gguf: No such file or directory"),
        (folder, r"can't read the model .*: Is a directory"),
        (folder / "text.gguf", r".*text\.gguf isn't a GGUF file: it doesn't start with .* GGUF"),
        (folder / "half.gguf", r"llama\.cpp can't load .*half\.gguf: .*corrupted or incomplete"),
        (folder / "magic.gguf", r"llama\.cpp can't load .*magic\.gguf: .+"),
    ]


async def test_a_file_that_is_no_model_gets_one_sentence(tmp_path, model):
    for path, message in files(tmp_path, model[0]):
        with pytest.raises(BackendUnavailable, match=rf"\A{message}\Z") as caught:
            async with LlamaCppBackend(path):
                pytest.fail("it started")
        assert not caught.value.retryable
        assert "\n" not in str(caught.value)


async def test_a_start_that_takes_too_long_is_a_timeout(model):
    backend = LlamaCppBackend(model[0], startup_timeout=1e-6)
    for _ in range(2):
        with pytest.raises(BackendTimeout, match="within 1e-06 s, its startup_timeout"):
            async with backend:
                pytest.fail("it started")


async def test_outside_its_block_it_says_how_to_start_it(model):
    backend = LlamaCppBackend(model[0])
    with pytest.raises(RuntimeError, match="inside `async with`"):
        await backend.generate(ask())
    with pytest.raises(RuntimeError, match="inside `async with`"):
        async with backend.stream(ask()):
            pytest.fail("it began")
    await backend.aclose()


def test_it_is_entered_once_at_a_time(running):
    with pytest.raises(RuntimeError, match="already entered"), running:
        pytest.fail("it was entered")


@pytest.mark.parametrize("name", ["context_size", "concurrency", "threads", "startup_timeout"])
def test_a_wrong_number_is_refused(name):
    with pytest.raises(ValueError, match=f"{name} must be (greater than 0|at least 1)"):
        LlamaCppBackend("model.gguf", **{name: 0})
    if name != "startup_timeout":
        with pytest.raises(TypeError, match=f"{name} must be an integer"):
            LlamaCppBackend("model.gguf", **{name: 1.5})


def test_without_llama_cpp_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    with pytest.raises(ImportError, match=r"pip install 'mellea-like\[llama\]'"):
        LlamaCppBackend("model.gguf")
