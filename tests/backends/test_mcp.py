"""MCPSamplingBackend: sampling requests, sent or returned, depending on the connection."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import mcp_types as types
import pytest
from mcp import Client
from mcp.server.mcpserver import Context, MCPServer
from mcp.shared.exceptions import MCPError, NoBackChannelError
from mcp_kit import sampled

from mellea_like import Message, Request
from mellea_like.backends import MCPSamplingBackend, SamplingRounds
from mellea_like.backends.mcp import error_of, generation_of, sampling_params
from mellea_like.core import Options, Usage
from mellea_like.errors import (
    BackendError,
    BackendTimeout,
    BackendUnavailable,
    InvalidRequest,
    MalformedResponse,
    ShutdownError,
)
from mellea_like.testing import check_backend

pytestmark = pytest.mark.anyio

LEGACY, MODERN = "legacy", "2026-07-28"


def ask(text: str = "hello", **options: Any) -> Request:
    return Request((Message("user", text),), Options(**options))


async def in_tool(
    work: Callable[[Context[Any, Any]], Awaitable[object]],
    *,
    mode: str = LEGACY,
    person: Any = None,
) -> Any:
    """Run a function inside a tool; return its result, or raise its exception."""
    outcome: list[Any] = []
    server = MCPServer("test")

    @server.tool()
    async def tool(context: Context) -> str | types.InputRequiredResult:
        try:
            result = await work(context)
        except Exception as exc:  # noqa: BLE001 (raised again below)
            outcome.append(exc)
            return ""
        if isinstance(result, types.InputRequiredResult):
            return result
        outcome.append(result)
        return ""

    async with Client(server, mode=mode, sampling_callback=person) as connected:
        await connected.call_tool("tool")
    (only,) = outcome
    if isinstance(only, Exception):
        raise only
    return only


async def obliging(context: Any, params: types.CreateMessageRequestParams) -> Any:
    return sampled("Hello yourself.")


# --- what is sent ------------------------------------------------------------------------------


def test_a_request_is_written_with_all_that_the_protocol_has_words_for():
    request = Request(
        (
            Message("system", "Be brief."),
            Message("user", "Hi."),
            Message("assistant", "Hello."),
            Message("system", "Be kind."),
            Message("user", "How are you?"),
        )
    )
    options = Options(
        model="opus",
        temperature=0.5,
        max_tokens=7,
        stop=("END",),
        seed=3,
        extra={"metadata": {"a": 1}, "model_preferences": {"hints": [{"name": "other"}]}},
    )
    params = sampling_params(request, options)
    assert params.model_dump(by_alias=True, mode="json", exclude_none=True) == {
        "messages": [
            {"role": "user", "content": {"type": "text", "text": "Hi."}},
            {"role": "assistant", "content": {"type": "text", "text": "Hello."}},
            {"role": "user", "content": {"type": "text", "text": "How are you?"}},
        ],
        "systemPrompt": "Be brief.\n\nBe kind.",
        "includeContext": "none",
        "temperature": 0.5,
        "maxTokens": 7,
        "stopSequences": ["END"],
        "metadata": {"a": 1},
        "modelPreferences": {"hints": [{"name": "opus"}, {"name": "other"}]},
    }


def test_a_format_is_asked_for_in_the_system_prompt():
    request = Request((Message("system", "Count."), Message("user", "Go.")), format=list[int])
    prompt = sampling_params(request, Options(max_tokens=9)).system_prompt
    assert prompt is not None
    assert prompt.startswith("Count.\n\n")
    assert json.loads(prompt.splitlines()[-1]) == {"items": {"type": "integer"}, "type": "array"}


@pytest.mark.parametrize(
    ("request_", "options", "match"),
    [
        (Request((Message("system", "Be."),)), Options(), "that isn't a system message"),
        (ask(), Options(top_p=0.5), "top_p"),
        (ask(), Options(extra={"tools": [], "logprobs": 1}), "can't send logprobs, tools"),
        (ask(), Options(extra={"include_context": "everything"}), "include_context"),
    ],
)
def test_what_the_protocol_has_no_word_for_is_an_invalid_request(request_, options, match):
    with pytest.raises(InvalidRequest, match=match):
        sampling_params(request_, options.over(Options(max_tokens=9)))


# --- what comes back ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("endTurn", "stop"),
        ("stopSequence", "stop"),
        ("maxTokens", "length"),
        ("refusal", "refusal"),
        (None, None),
    ],
)
def test_stop_reasons_are_told_in_openais_words(reason, finish):
    generation = generation_of(sampled("x", stop_reason=reason), Usage(1))
    assert (generation.text, generation.model) == ("x", "a-model")
    assert (generation.finish_reason, generation.usage) == (finish, Usage(1))


@pytest.mark.parametrize(
    ("result", "match"),
    [
        (sampled("x", role="user"), "a message with the role 'user'"),
        (
            sampled(
                "x", content=types.ImageContent(type="image", data="aGk=", mime_type="image/png")
            ),
            "content of type 'image'",
        ),
        (types.ListRootsResult(roots=[]), "sent ListRootsResult"),
    ],
)
def test_what_is_no_text_of_the_assistant_is_malformed(result, match):
    with pytest.raises(MalformedResponse, match=match) as caught:
        generation_of(result, Usage())
    assert not caught.value.retryable


@pytest.mark.parametrize(
    ("raised", "kind", "match"),
    [
        (MCPError(types.REQUEST_TIMEOUT, "late"), BackendTimeout, "in time"),
        (MCPError(types.CONNECTION_CLOSED, "gone"), BackendUnavailable, "disconnected"),
        (MCPError(types.METHOD_NOT_FOUND, "what?"), InvalidRequest, r"what\? \(code -32601\)"),
        (MCPError(types.INTERNAL_ERROR, "ouch"), BackendUnavailable, "ouch"),
        (NoBackChannelError("sampling/createMessage"), BackendUnavailable, "has ended"),
        (anyio.BrokenResourceError(), BackendUnavailable, "broke: BrokenResourceError"),
    ],
)
def test_each_failure_has_its_error_and_none_is_retried(raised, kind, match):
    error = error_of(raised)
    assert type(error) is kind
    assert not error.retryable
    with pytest.raises(kind, match=match):
        raise error


# --- on a connection that carries requests -----------------------------------------------------


async def test_a_request_is_sent_to_the_client_and_counted_with_its_cost_unknown():
    request = ask()

    async def work(context):
        backend = MCPSamplingBackend(context, options={"model": "opus"})
        assert (backend.way, backend.model, backend.provider) == ("request", "opus", "mcp")
        assert repr(backend) == "<MCPSamplingBackend 2025-11-25 request>"
        return await backend.generate(request)

    generation = await in_tool(work, person=obliging)
    assert (generation.text, generation.finish_reason) == ("Hello yourself.", "stop")
    assert generation.usage == request.meter.usage == Usage(1, 0, 0, 1)


async def test_a_reply_that_does_not_fit_the_protocol_is_malformed():
    async def odd(context, params):
        return types.CreateMessageResultWithTools(
            role="assistant", content=[types.TextContent(type="text", text="a")] * 2, model="m"
        )

    async def work(context):
        return await MCPSamplingBackend(context).generate(ask())

    with pytest.raises(MalformedResponse, match="an invalid reply"):
        await in_tool(work, person=odd)


async def test_it_keeps_the_promises_of_a_backend():
    async def work(context):
        backend = MCPSamplingBackend(context)
        return await check_backend(lambda: backend, failing_request=ask(top_p=0.5))

    assert "errors" in await in_tool(work, person=obliging)


# --- on a connection without sampling ----------------------------------------------------------


async def test_on_a_new_connection_the_error_names_the_rounds():
    async def work(context):
        await MCPSamplingBackend(context).generate(ask())

    with pytest.raises(InvalidRequest, match=r"2026-07-28.*through SamplingRounds"):
        await in_tool(work, mode=MODERN, person=obliging)


@pytest.mark.parametrize(
    ("wrong", "kind", "match"),
    [
        ({"fallback": "direct"}, TypeError, "fallback must be a backend"),
        ({"max_tokens": 0}, ValueError, "max_tokens"),
        ({"timeout": 0}, ValueError, "timeout"),
    ],
)
async def test_wrong_arguments_are_named(wrong, kind, match):
    async def work(context):
        MCPSamplingBackend(context, timeout=None)
        MCPSamplingBackend(context, **wrong)

    with pytest.raises(kind, match=match):
        await in_tool(work)


# --- tools that return their requests ----------------------------------------------------------


async def test_what_the_work_raises_the_tools_call_raises():
    async def work(backend):
        await backend.generate(ask())
        raise RuntimeError("after the answer")

    async def tool(context):
        return await rounds.run(MCPSamplingBackend(context), context, work)

    async with SamplingRounds() as rounds:
        with pytest.raises(RuntimeError, match="after the answer"):
            await in_tool(tool, mode=MODERN, person=obliging)


async def test_rounds_that_are_not_open_say_so():
    async def work(context):
        return await SamplingRounds().run(MCPSamplingBackend(context), context, work)

    with pytest.raises(ShutdownError, match="lifespan"):
        await in_tool(work, mode=MODERN, person=obliging)


class ByHand:
    """The client's side of rounds, as the SDK's own client doesn't play it."""

    way = "rounds"

    def __init__(self) -> None:
        self.request_state: str | None = None
        self.input_responses: dict[str, Any] | None = None
        self._rounds: Any = None

    async def generate(self, request: Request) -> Any:
        return await self._rounds.ask(sampling_params(request, Options(max_tokens=9)))


async def one_question(backend):
    try:
        return await backend.generate(ask())
    except BackendError as exc:
        return type(exc)


async def test_a_client_that_comes_back_without_the_answer_fails_that_request():
    client = ByHand()
    async with SamplingRounds() as rounds:
        first = await rounds.run(client, client, one_question)
        client.request_state = first.request_state
        assert await rounds.run(client, client, one_question) is MalformedResponse


async def test_work_whose_client_stays_away_is_given_up_and_its_result_forgotten_later(
    virtual_clock,
):
    client = ByHand()
    ended = anyio.Event()

    async def work(backend):
        result = await one_question(backend)
        ended.set()
        return result

    async with SamplingRounds(patience=0.05) as rounds:
        first = await rounds.run(client, client, work)
        assert list(first.input_requests) == ["sampling-1"]
        await ended.wait()
        assert rounds.waiting == 1
        client.request_state = first.request_state
        assert await rounds.run(client, client, work) is BackendTimeout
        assert rounds.waiting == 0
        with pytest.raises(InvalidRequest, match="no longer exists"):
            await rounds.run(client, client, work)

        client.request_state = None
        await rounds.run(client, client, one_question)
        with anyio.fail_after(5):
            while rounds.waiting:  # noqa: ASYNC110 (nothing tells of it)
                await anyio.sleep(0.01)


async def test_cancelling_the_tools_call_ends_the_work():
    began, ended = anyio.Event(), anyio.Event()

    async def work(backend):
        began.set()
        try:
            await anyio.sleep_forever()
        finally:
            ended.set()

    async with SamplingRounds() as rounds, anyio.create_task_group() as tasks:
        tasks.start_soon(rounds.run, ByHand(), ByHand(), work)
        await began.wait()
        tasks.cancel_scope.cancel()
    assert ended.is_set()


async def test_closing_the_rounds_ends_work_that_runs():
    client = ByHand()
    raised = []

    async def call(rounds):
        try:
            await rounds.run(client, client, lambda backend: anyio.sleep_forever())
        except BackendUnavailable as exc:
            raised.append(exc)

    async with anyio.create_task_group() as tasks, SamplingRounds() as rounds:
        tasks.start_soon(call, rounds)
        await anyio.wait_all_tasks_blocked()
    assert "stopped when its SamplingRounds closed" in str(raised)


async def test_a_question_that_is_withdrawn_before_it_is_given_out_is_not_asked():
    client = ByHand()

    async def work(backend):
        with anyio.move_on_after(0.01):
            await backend.generate(ask())
        return "without"

    async with SamplingRounds(gather=5.0) as rounds:
        assert await rounds.run(client, client, work) == "without"


async def test_what_is_asked_while_the_client_is_away_is_given_out_when_it_comes_back():
    client = ByHand()
    texts: list[object] = []

    async def work(backend):
        async def late():
            await left.wait()
            texts.append(await backend.generate(ask("late")))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(late)
            texts.append(await backend.generate(ask("soon")))
        return texts

    left = anyio.Event()
    async with SamplingRounds() as rounds:
        before = len(anyio.get_running_tasks())
        for answer in ("first", "second"):
            asked = await rounds.run(client, client, work)
            (key,) = asked.input_requests
            left.set()
            await anyio.wait_all_tasks_blocked()
            client.request_state, client.input_responses = asked.request_state, {key: answer}
        assert await rounds.run(client, client, work) == ["first", "second"]
        await anyio.wait_all_tasks_blocked()
        assert len(anyio.get_running_tasks()) == before


async def test_a_result_that_came_while_the_client_was_away_is_kept_until_it_is_fetched():
    client = ByHand()
    ended = anyio.Event()

    async def work(backend):
        with anyio.move_on_after(0.05):
            await backend.generate(ask())
        ended.set()
        return "without"

    async with SamplingRounds(gather=0) as rounds:
        before = len(anyio.get_running_tasks())
        client.request_state = (await rounds.run(client, client, work)).request_state
        await ended.wait()
        assert await rounds.run(client, client, work) == "without"
        await anyio.wait_all_tasks_blocked()
        assert len(anyio.get_running_tasks()) == before
