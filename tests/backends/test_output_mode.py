"""Typed output of servers that accept one output mode and refuse others as real servers do."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import wraps

import pytest
from http_server import Answer, serving
from pydantic import BaseModel, Field

from mellea_like import Budget, Collect, RejectionSamplingStrategy
from mellea_like.backends.openai import OpenAIBackend
from mellea_like.backends.openai_chat import request_fields
from mellea_like.backends.output_mode import MODES, OutputModes, demand, refuses, reply_text
from mellea_like.core.backend import Options, Request
from mellea_like.core.conversation import Message
from mellea_like.core.parts import Image, Text
from mellea_like.core.tools import Tool
from mellea_like.errors import BackendError, InvalidRequest
from mellea_like.limits import Retry

pytestmark = pytest.mark.anyio


class Invoice(BaseModel):
    """A bill."""

    number: str = Field(description="as printed")
    title: str = ""


class Bill(Invoice):
    pass


REPLY = '{"number": "7", "title": "A {b}"}'


def called(name: str, arguments: str, **answer) -> Answer:
    """A reply that calls a tool, with the arguments in pieces, as servers send them."""
    pieces = [arguments[at : at + 5] for at in range(0, len(arguments), 5)]
    first = {"index": 0, "id": "c1", "type": "function", "function": {"name": name}}
    deltas = [first, *({"index": 0, "function": {"arguments": piece}} for piece in pieces)]
    choices = [{"index": 0, "delta": {"tool_calls": [delta]}} for delta in deltas]
    choices.append({"index": 0, "delta": {}, "finish_reason": "tool_calls"})
    return Answer(events=tuple(json.dumps({"choices": [choice]}) for choice in choices), **answer)


def told(server):
    """A server that answers even if an assertion in it fails."""

    @wraps(server)
    def choose(number, body):
        try:
            return server(number, body)
        except AssertionError as exc:
            return Answer.error(418, f"unexpected: {exc} in {body}")

    return choose


# --- servers that take one mode each ------------------------------------------------------------


@told
def new_server(number, body):
    """Accepts schemas but no tools, like a vLLM without a tool parser."""
    if "tools" in body:
        return Answer.error(400, '"auto" tool choice requires --enable-auto-tool-choice')
    assert body["response_format"]["type"] == "json_schema"
    assert "JSON" not in str(body["messages"])
    return Answer(REPLY)


@told
def tool_server(number, body):
    """Accepts tools but no formats, like DeepSeek's server."""
    if "response_format" in body:
        return Answer.error(400, "This response_format type is unavailable now")
    name = body["tool_choice"]["function"]["name"]
    (tool,) = body["tools"]
    assert tool["function"]["name"] == name
    assert "number" in tool["function"]["parameters"]["properties"]
    return called(name, REPLY)


@told
def json_server(number, body):
    """Accepts only JSON mode, like a Python server that checks its fields with pydantic."""
    if "tools" in body:
        why = "[{'type': 'extra_forbidden', 'loc': ('body', 'tools'), 'msg': 'Extra inputs ...'}]"
        return Answer.error(422, why)
    if body["response_format"] != {"type": "json_object"}:
        why = "('body', 'response_format', 'type'): Input should be 'text' or 'json_object'"
        return Answer.error(422, why)
    assert "as printed" in body["messages"][-1]["content"]
    return Answer(f"{REPLY}\n\n")


@told
def old_server(number, body):
    """Accepts no mode but the prompt, like an old llama.cpp server."""
    for field in ("response_format", "tools"):
        if field in body:
            return Answer.error(500, f"Unsupported param: {field}")
    assert "as printed" in body["messages"][-1]["content"]
    return Answer(f"Here is your invoice:\n\n```json\n{REPLY}\n```\nAnything else?")


@pytest.mark.parametrize(
    ("server", "mode"),
    list(zip([new_server, tool_server, json_server, old_server], MODES, strict=True)),
    ids=MODES,
)
async def test_each_server_gives_typed_output_in_one_turn(server, mode):
    refused = MODES.index(mode)
    async with serving(choose=server) as (http, backend):
        strategy = RejectionSamplingStrategy(backend, loop_budget=1, retry=Retry(attempts=3))
        first = await strategy.sample("An invoice, please.", format=Invoice)
        assert first.unwrap() == Invoice(number="7", title="A {b}")
        assert len(first.slices) == 1
        assert http.started == first.usage.requests == refused + 1
        # What was refused cost nothing, and is known to.
        assert first.usage.input_tokens <= 20 + 200 * (refused >= 2)
        assert first.usage.unknown <= 1
        # It is remembered, for another type too.
        second = await strategy.sample("Another, please.", format=Bill)
        assert second.usage.requests == 1
        named = OpenAIBackend("m", base_url=http.url, output=mode)
        await RejectionSamplingStrategy(named).sample("A third, please.", format=Invoice)
        assert http.started == refused + 3
        await named.aclose()


async def test_draws_that_start_together_each_find_out_and_none_fails():
    async with serving(choose=json_server) as (http, backend):
        strategy = RejectionSamplingStrategy(
            backend, concurrency_budget=4, loop_budget=1, selection=Collect(4)
        )
        result = await strategy.sample("Invoices, please.", format=Invoice)
        assert len(result.values) == len(result.slices) == 4
        assert not result.errors
        assert result.usage.requests == http.started <= 4 * 3
        again = await strategy.sample("More, please.", format=Invoice)
    assert again.usage.requests == 4


async def test_what_is_learnt_is_learnt_of_one_model_and_of_one_schema_where_that_was_refused():
    def choose(number, body):
        if "response_format" not in body:
            return called(body["tool_choice"]["function"]["name"], REPLY)
        if body["model"] == "old":
            why = (
                "Invalid parameter: 'response_format' of type 'json_schema' is not supported with"
                " this model. Learn more about supported models at the guide."
            )
            return Answer.error(400, why)
        if body["response_format"]["json_schema"]["name"] == "Invoice":
            why = "The provided JSON schema contains features not supported by xgrammar."
            return Answer.error(400, why)
        return Answer('{"x": 1}')

    class Point(BaseModel):
        x: int

    async with serving(choose=choose) as (http, backend):
        ways = []
        for model, format_ in [
            ("old", Invoice),
            ("old", Point),
            ("new", Invoice),
            ("new", Invoice),
            ("new", Point),
        ]:
            before = http.started
            request = Request(
                (Message("user", "Go."),), options=Options(model=model), format=format_
            )
            await backend.generate(request)
            ways.append((http.started - before, "tools" in http.requests[-1]))
    assert ways == [(2, True), (1, True), (2, True), (1, True), (1, False)]


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (400, "This model's maximum context length is 4096 tokens: 9 in messages, 5 in functions"),
        (400, "messages with role 'tool' must be a response to a message with 'tool_calls'"),
        (422, "messages[1].role: unknown variant `developer`, expected `system`, `user` or `tool`"),
        (400, "The prompt is too long for the JSON schema cache"),
        (400, "temperature: Input should be less than 2"),
        (401, "response_format needs another key"),
        (429, "response_format: too many requests"),
        (500, "the grammar's thread died"),
        (404, "no model named json_schema-7b"),
    ],
)
async def test_other_refusals_are_raised_and_nothing_is_sent_again(status, said):
    error = InvalidRequest(said, status=status)
    assert not any(refuses(mode, error) for mode in MODES)
    async with serving(Answer.error(status, said), Answer(REPLY)) as (http, backend):
        with pytest.raises(BackendError):
            await backend.generate(Request((Message("user", "Go."),), format=Invoice))
    assert http.started == 1


async def test_a_mode_that_was_chosen_is_kept():
    async with serving(choose=tool_server, output="json_schema") as (http, backend):
        with pytest.raises(InvalidRequest, match="unavailable"):
            await backend.generate(Request((Message("user", "Go."),), format=Invoice))
    assert http.started == 1
    with pytest.raises(ValueError, match="output must be 'auto', 'json_schema'"):
        OpenAIBackend("m", output="json")
    backend = OpenAIBackend("m", base_url=http.url, output="json_object")
    with pytest.raises(InvalidRequest, match="the format isn't one"):
        await backend.generate(Request((), format=list[int]))


# --- the output tool ------------------------------------------------------------------------------


async def test_a_reply_in_a_tool_is_rejected_at_its_first_wrong_field():
    bad = called("Invoice", '{"number": 7, ' + '"title": "' + "x" * 5000 + '"}')
    async with serving(bad, called("Invoice", REPLY), output="tool") as (_, backend):
        strategy = RejectionSamplingStrategy(backend, loop_budget=2)
        result = await strategy.sample("Go.", format=Invoice)
    assert result.success
    assert result.slices[0].problems == (
        "the reply isn't a valid Invoice: number: Input should be a valid string (it is 7)",
    )
    assert len(result.slices[0].text) < 100


async def test_what_is_no_object_is_wrapped_for_the_tool_and_unwrapped():
    @told
    def choose(number, body):
        (tool,) = body["tools"]
        assert tool["function"]["parameters"]["required"] == ["value"]
        return called(tool["function"]["name"], '{"value": [1, 2]}')

    async with serving(choose=choose, output="tool") as (_, backend):
        result = await RejectionSamplingStrategy(backend).sample("Go.", format=list[int])
    assert result.unwrap() == [1, 2]
    assert result.best.text == "[1, 2]"


class Node(BaseModel):
    next: Node | None = None


def test_a_schema_that_refers_to_itself_is_an_object_too():
    tool = demand(Request((), format=Node), "tool").tool
    assert not tool.wrapped
    assert tool.parameters["type"] == "object"
    assert "Node" in tool.parameters["$defs"]
    tool = demand(Request((), format=list[Node]), "tool").tool
    assert "Node" in tool.parameters["$defs"]
    for arguments, text in [('{"value": [{}]}', "[{}]"), ("[1]", "[1]"), ("{", "{"), ("{}", "{}")]:
        assert reply_text(tool, arguments) == text


LOOK_UP = Tool("look_up", "Looks it up.")


@pytest.mark.parametrize(
    ("choice", "sent", "choice_sent"),
    [
        (None, ["look_up", "Invoice"], "required"),
        ("auto", ["look_up", "Invoice"], "required"),
        ("none", ["Invoice"], {"type": "function", "function": {"name": "Invoice"}}),
    ],
)
def test_beside_the_requests_own_tools_the_model_calls_one_or_replies(choice, sent, choice_sent):
    request = Request((), format=Invoice, tools=(LOOK_UP,), tool_choice=choice)
    tool = demand(request, "tool").tool
    assert (tool.name, tool.forced) == ("Invoice", choice == "none")
    same_name = replace(request, tools=(Tool("Invoice"),), tool_choice=None)
    assert demand(same_name, "tool").tool.name == "Invoice_2"


@pytest.mark.parametrize("choice", ["required", "look_up"])
def test_where_one_of_them_has_to_be_called_no_reply_is_asked_for(choice):
    request = Request((), format=Invoice, tools=(LOOK_UP,), tool_choice=choice)
    assert demand(request, "tool").tool is None


@pytest.mark.parametrize("official", [True, False])
def test_the_output_tool_is_strict_where_that_is_known_and_forced_if_it_is_alone(official):
    for tools in ((), (LOOK_UP,)):
        request = Request((), format=Invoice, tools=tools)
        output = demand(request, "tool")
        fields = request_fields(request, Options(), official=official, output=output)
        function = fields["tools"][-1]["function"]
        assert function.get("strict") is (True if official else None)
        alone = {"type": "function", "function": {"name": function["name"]}}
        assert fields["tool_choice"] == ("required" if tools else alone)


async def test_tools_that_are_sent_by_hand_rule_the_output_tool_out():
    request = Request((), options=Options(extra={"tools": [LOOK_UP.as_dict()]}), format=Invoice)
    with pytest.raises(InvalidRequest, match="pass tools="):
        OutputModes("tool").begin(request, "m", request.options)
    attempt = OutputModes().begin(request, "m", request.options)
    assert attempt.refused(InvalidRequest("x answered 400: no response_format", status=400))
    assert attempt.demand.mode == "json_object"


def test_a_request_learns_what_another_has_been_refused_in_the_meantime():
    modes, request = OutputModes(), Request((), format=Invoice)
    unknown = ("response_format", "tools")
    refused = [InvalidRequest(f"400: no {field}", status=400) for field in unknown]
    slow, quick = (modes.begin(request, "m", Options()) for _ in range(2))
    assert [quick.refused(error) for error in refused] == [True, True]
    quick.accepted()
    assert slow.refused(refused[0])
    assert slow.demand.mode == quick.demand.mode == "json_object"


# --- the schema in the prompt ---------------------------------------------------------------------


def test_the_prompt_has_the_schema_under_the_users_last_message():
    system, last = Message("system", "Be brief."), Message("assistant", "So?")
    user = Message("user", "Go.")
    asked = demand(Request((system, user, last), format=Invoice), "prompt").messages
    assert (asked[0], asked[2]) == (system, last)
    before, _, schema = asked[1].content.partition("\n\nReply with one JSON value")
    assert before == "Go."
    written = json.loads(schema.partition("\n")[2])
    assert list(written["properties"]) == ["number", "title"]  # A property may be called title.
    assert "title" not in written
    assert "title" not in written["properties"]["number"]

    picture = Message("user", (Text("This?"), Image("https://example.com/a.png")))
    (asked,) = demand(Request((picture,), format=Invoice), "prompt").messages
    assert asked.content[:2] == picture.content
    assert "as printed" in asked.content[2].text
    (asked,) = demand(Request((), format=Invoice), "prompt").messages
    assert asked.role == "user"


def test_hosts_that_are_known_to_take_no_schema_are_asked_by_a_tool_first():
    request = Request((), format=Invoice)
    modes = OutputModes()
    for host, mode in [("api.anthropic.com", "tool"), ("api.openai.com", "json_schema")]:
        assert modes.begin(request, "m", Options(), host).demand.mode == mode


async def test_a_budget_admits_each_way_of_asking_for_a_type():
    async with serving(choose=old_server) as (http, backend):
        budget = Budget(requests=2)
        strategy = RejectionSamplingStrategy(backend, loop_budget=1, budget=budget, retry=None)
        with pytest.raises(BackendError) as caught:
            await strategy.sample("An invoice, please.", format=Invoice)
        assert http.started == budget.spent.requests == 2
        assert "not retried: budget" in " ".join(caught.value.__notes__)
