"""``/v1/chat/completions`` without a stream: replies, refusals, and what is sent upstream."""

from __future__ import annotations

import json

import anyio
import pytest
from gateway_kit import Caller, InTurn, calling, config_for

from mellea_like.backends.function import FunctionBackend
from mellea_like.backends.scripted import Reply, ScriptedBackend
from mellea_like.core.generation import Generation, Usage
from mellea_like.errors import (
    AuthenticationFailed,
    BackendTimeout,
    BackendUnavailable,
    CircuitOpen,
    InvalidRequest,
    MalformedResponse,
    RateLimited,
)
from mellea_like.gateway import make_app
from mellea_like.gateway.http.app import Gateway

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("warm_checks")]

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def of_schema(schema: object) -> dict[str, object]:
    described = {"name": "reply", "schema": schema}
    return {"response_format": {"type": "json_schema", "json_schema": described}}


# --- what comes back ----------------------------------------------------------------------------


async def test_a_reply_has_openais_shape_and_what_it_took():
    counted = Generation("a b c d", usage=Usage(1, 10, 4))
    last = Generation("a b", usage=Usage(1, 10, 2), finish_reason="length")
    answered = calling(InTurn(counted, last), checks=["words<=2"], accept_incomplete=True)
    async with answered as caller:
        answer = await caller.chat()
    body = answer.json
    assert (answer.status, answer.headers["x-mellea-like-passed"]) == (200, "true")
    assert answer.headers["content-type"] == "application/json"
    assert int(answer.headers["content-length"]) == len(answer.body)
    assert (body["object"], body["model"]) == ("chat.completion", "mine")
    assert body["id"].startswith("chatcmpl-")
    assert body["choices"][0]["message"] == {"role": "assistant", "content": "a b", "refusal": None}
    assert body["choices"][0]["finish_reason"] == "length"
    # Rejected draws cost something, too.
    assert body["usage"] == {"prompt_tokens": 20, "completion_tokens": 6, "total_tokens": 26}
    told = body["mellea_like"]
    assert (told["passed"], told["iterations"], told["requests"]) == (True, 2, 2)
    assert told["sampling_id"] == body["choices"][0]["mellea_like"]["sampling_id"]
    assert body["choices"][0]["mellea_like"]["iteration"] == 2


@pytest.mark.parametrize(
    ("reason", "shown"),
    [("stop", "stop"), ("content_filter", "content_filter"), ("odd\r\n", "stop"), (None, "stop")],
)
async def test_reasons_are_openais(reason, shown):
    backend = InTurn(Generation("a", finish_reason=reason))
    async with calling(backend, accept_incomplete=True) as caller:
        answer = await caller.chat()
    assert answer.json["choices"][0]["finish_reason"] == shown


@pytest.mark.parametrize(("text", "ended"), [("a b", "length"), (" ", "stop")])
async def test_where_nothing_must_hold_a_reply_that_was_cut_off_or_is_empty_is_one(text, ended):
    cut = Generation(text, usage=Usage(1, 10, 2), finish_reason=ended)
    async with calling(InTurn(cut), attempts=2) as caller:
        plain = await caller.chat()
        checked = await caller.chat(mellea_like={"checks": ["words<=2"]})
    assert (plain.status, checked.status) == (200, 422)
    assert plain.json["choices"][0]["finish_reason"] == ended
    assert plain.json["choices"][0]["message"]["content"] == text
    async with calling(InTurn(cut), accept_incomplete=False) as caller:
        assert (await caller.chat()).status == 422


async def test_when_nothing_passed_the_reasons_and_the_best_failure_come_with_a_422():
    backend = InTurn("a b c d", "a b c", "a b c d e")
    async with calling(backend, checks=["words<=2"], attempts=3) as caller:
        answer = await caller.chat()
    assert (answer.status, answer.error["code"]) == (422, "nothing_passed")
    told = answer.error["mellea_like"]
    assert told["best"]["content"] == "a b c"
    assert told["problems"] == ["has at most 2 words: it has 3 words; at most 2 are allowed"]
    assert (told["passed"], told["iterations"], told["stop_reason"]) == (False, 3, "exhausted")
    assert told["usage"]["total_tokens"] == 0
    assert told["requests"] == 3


@pytest.mark.parametrize(("by_model", "by_request"), [("best", None), ("error", "best")])
async def test_the_best_failure_comes_as_a_reply_where_that_is_wanted(by_model, by_request):
    wishes = {} if by_request is None else {"mellea_like": {"when_nothing_passed": by_request}}
    config = {"checks": ["words<=2"], "attempts": 2, "when_nothing_passed": by_model}
    async with calling(InTurn("a b c d", "a b c"), **config) as caller:
        answer = await caller.chat(**wishes)
    assert (answer.status, answer.headers["x-mellea-like-passed"]) == (200, "false")
    choice = answer.json["choices"][0]
    assert choice["message"]["content"] == "a b c"
    assert choice["mellea_like"]["passed"] is False
    assert "it has 3 words" in choice["mellea_like"]["problems"][0]
    assert answer.json["mellea_like"]["passed"] is False


async def test_a_best_failure_that_was_rejected_while_it_arrived_is_incomplete(virtual_clock):
    backend = ScriptedBackend([Reply("all is bad and so on", delay=5)])
    config = {"attempts": 1, "early": True, "when_nothing_passed": "best"}
    async with calling(backend, checks=["excludes:bad"], **config) as caller:
        [choice] = (await caller.chat()).json["choices"]
    assert choice["message"]["content"] == "all is bad "
    assert choice["finish_reason"] == "length"


async def test_several_replies_are_one_call_that_ends_when_there_are_enough(virtual_clock):
    replies = [Reply("a b c", delay=1), *(Reply("a", delay=d) for d in (2, 3, 60, 60))]
    backend = ScriptedBackend(replies)
    async with calling(backend, checks=["words<=2"], attempts=2, lanes=2) as caller:
        body = (await caller.chat(n=2)).json
    assert len(body["choices"]) == 2
    assert virtual_clock.now == pytest.approx(3)
    statistics = backend.statistics()
    assert statistics.max_in_flight == 4  # Two lanes for each reply.
    assert (statistics.finished, statistics.in_flight) == (3, 0)
    assert statistics.cancelled == statistics.started - 3


async def test_with_best_the_best_failures_fill_up_what_several_replies_lack():
    backend = InTurn("a b c", "a", "a b c d", "b c d")
    config = {"checks": ["words<=3", "words<=2"], "attempts": 1, "when_nothing_passed": "best"}
    async with calling(backend, **config) as caller:
        answer = await caller.chat(n=4)
    assert answer.headers["x-mellea-like-passed"] == "false"
    choices = answer.json["choices"]
    texts = [choice["message"]["content"] for choice in choices]
    assert texts == ["a", "a b c", "b c d", "a b c d"]
    assert [choice["mellea_like"]["passed"] for choice in choices] == [True, False, False, False]
    assert ["problems" in choice["mellea_like"] for choice in choices] == [False, True, True, True]


@pytest.mark.parametrize("lost", ["a b c", BackendUnavailable("x")], ids=["failed", "error"])
async def test_of_several_replies_those_come_that_passed(lost):
    async with calling(InTurn("a", lost), checks=["words<=2"], attempts=1) as caller:
        answer = await caller.chat(n=3)
    assert answer.status == 200
    assert [c["message"]["content"] for c in answer.json["choices"]] == ["a"]
    assert answer.headers["x-mellea-like-passed"] == "false"
    assert answer.json["mellea_like"]["passed"] is False
    assert answer.json["mellea_like"]["iterations"] == 3


async def test_seeds_differ_between_replies_and_not_between_requests():
    backend = InTurn("a")
    async with calling(backend) as caller:
        for _ in range(2):
            await caller.chat(n=2, seed=7)
    seeds = [request.options.seed for request in backend.requests]
    assert len(set(seeds)) == 2
    assert sorted(seeds[:2]) == sorted(seeds[2:])


# --- selections ---------------------------------------------------------------------------------


async def test_the_model_says_which_reply_wins():
    backend = InTurn("a b", "a b c d", "a", "a b c")
    async with calling(backend, select="best:-words", n=3, lanes=4) as caller:
        body = (await caller.chat()).json
        assert body["choices"][0]["message"]["content"] == "a"
        assert body["mellea_like"]["iterations"] == 3
        # A request may ask for fewer draws than the model's `n`.
        few = (await caller.chat(mellea_like={"attempts": 1, "lanes": 2})).json
        assert few["mellea_like"]["iterations"] == 2


async def test_several_replies_of_a_model_with_a_selection_are_selected_each():
    backend = InTurn("yes", "no", "Yes")
    async with calling(backend, select="vote:lower", n=3, attempts=3) as caller:
        body = (await caller.chat(n=2)).json
    assert len(body["choices"]) == 2
    assert len({choice["mellea_like"]["sampling_id"] for choice in body["choices"]}) == 2


@pytest.mark.parametrize(("select", "requests"), [("tournament", 4), ("best:judge:Kind?", 4)])
async def test_what_a_judge_takes_to_select_is_in_the_usage(select, requests):
    drawn = iter(["rude", "kind"])

    def answers(request):
        told = request.messages[-1].content
        if "<b>" in told:
            text = json.dumps({"better": "a" if "<a>kind" in told else "b"})
        elif "Score: Kind?" in told:
            text = json.dumps({"reason": "", "score": 9 if "kind</answer>" in told else 1})
        else:
            text = next(drawn)
        return Generation(text, usage=Usage(1, 10, 1))

    backend = FunctionBackend(answers, inline=True, can_judge=True)
    async with calling(backend, select=select, n=2, attempts=2) as caller:
        body = (await caller.chat()).json
    assert body["choices"][0]["message"]["content"] == "kind"
    assert body["mellea_like"]["requests"] == requests
    assert body["usage"]["total_tokens"] == requests * 11


# --- what is sent to the upstream ---------------------------------------------------------------


async def test_the_conversation_goes_on_with_what_must_hold_below_its_last_message():
    backend = InTurn("a")
    talk = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi."},
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": "A word?"},
    ]
    async with calling(backend, checks=["words<=2"]) as caller:
        await caller.chat(messages=talk)
    *before, last = backend.requests[0].messages
    assert [(m.role, m.content) for m in before] == [(m["role"], m["content"]) for m in talk[:3]]
    assert last.content == "A word?\n\nRequirements:\n- has at most 2 words"


@pytest.mark.parametrize(
    ("config", "messages"),
    [
        ({"checks": ["words<=2"], "tell": False}, [{"role": "user", "content": "A word?"}]),
        ({}, [{"role": "user", "content": "A word?"}]),
        ({"checks": ["words<=2"]}, [{"role": "system", "content": "A word?"}]),
    ],
)
async def test_messages_stay_as_they_are_where_nothing_is_to_be_told(config, messages):
    backend = InTurn("a")
    async with calling(backend, **config) as caller:
        await caller.chat(messages=messages)
    assert [(m.role, m.content) for m in backend.requests[0].messages] == [
        (messages[0]["role"], "A word?")
    ]


@pytest.mark.parametrize(
    ("strategy", "roles", "said"),
    [
        ("rejection", ["user"], "A word?\n\nRequirements:\n- has at most 2 words"),
        ("repair", ["user"], "Put this right:"),
        ("multi-turn", ["user", "assistant", "user"], "That was not accepted."),
    ],
)
async def test_a_model_stands_for_a_strategy(strategy, roles, said):
    backend = InTurn("a b c", "a")
    async with calling(backend, checks=["words<=2"], strategy=strategy) as caller:
        assert (await caller.chat("A word?")).status == 200
    second = backend.requests[1].messages
    assert [m.role for m in second] == roles
    assert said in second[-1].content


async def test_what_a_request_says_goes_before_what_the_model_says():
    options = {"temperature": 0.5, "top_p": 0.9, "max_tokens": 50, "stop": ["X"], "seed": 3}
    backend = InTurn("a")
    async with calling(
        backend,
        options={**options, "extra": {"top_k": 5, "min_p": 0.1}},
        overrides={"fields": {"top_k": "forward"}},
        upstream_model="other",
    ) as caller:
        await caller.chat()
        await caller.chat(temperature=0, max_tokens=60, stop="Y", top_k=7, presence_penalty=1)
    own, asked = (request.options for request in backend.requests)
    assert (own.temperature, own.top_p, own.max_tokens, own.stop) == (0.5, 0.9, 50, ("X",))
    assert (own.model, dict(own.extra)) == ("other", {"top_k": 5, "min_p": 0.1})
    assert (asked.temperature, asked.top_p, asked.max_tokens) == (0, 0.9, 60)
    assert asked.stop == ("Y",)
    assert dict(asked.extra) == {"top_k": 7, "min_p": 0.1, "presence_penalty": 1.0}


@pytest.mark.parametrize(
    ("config", "sent"),
    [({}, 40), ({"options": {"max_tokens": 9}}, 9), ({"options": {"max_tokens": 99}}, 40)],
)
async def test_a_reply_is_never_longer_than_the_caller_may_ask_for(config, sent):
    backend = InTurn("a")
    async with calling(backend, server={"limits": {"max_tokens": 40}}, **config) as caller:
        await caller.chat()
    assert backend.requests[0].options.max_tokens == sent


@pytest.mark.parametrize(
    ("given", "temperature", "max_tokens"),
    [({}, 0.0, None), ({"max_tokens": 9}, 0.0, 9), ({"temperature": None}, None, None)],
)
async def test_the_configuration_says_how_judges_generate(given, temperature, max_tokens):
    backend = InTurn("a", json.dumps({"passed": True, "reason": "it does"}))
    async with calling(backend, requirements=["It rhymes."], judge_options=given) as caller:
        assert (await caller.chat()).status == 200
    options = backend.requests[1].options
    assert (options.temperature, options.max_tokens) == (temperature, max_tokens)


async def test_a_judge_of_its_own_decides_requirements_in_words():
    yes = json.dumps({"passed": True, "reason": "it does"})
    backend, judge = InTurn("a", can_judge=False), InTurn(yes)
    config = config_for(requirements=["It rhymes."]).model_dump()
    config["upstreams"]["wise"] = {"kind": "python"}
    config["models"]["mine"]["judge"] = "wise"
    gateway = Gateway(type(config_for()).model_validate(config), {"main": backend, "wise": judge})
    async with gateway.open():
        answer = await Caller(gateway).chat()
    assert answer.status == 200
    assert (len(backend.requests), len(judge.requests)) == (1, 1)
    assert "It rhymes." in judge.requests[0].messages[-1].content


async def test_a_model_has_a_schedule(virtual_clock):
    backend = ScriptedBackend([Reply("a", delay=8)], cycle=True)
    config = {"lanes": 3, "schedule": "staggered:5", "attempts": 1}
    async with calling(backend, **config) as caller:
        await caller.chat()
    assert backend.statistics().started == 2  # At 0 and at 5 s: the first was done at 8 s.


async def test_a_reply_that_can_not_pass_is_closed_while_it_arrives(virtual_clock):
    backend = ScriptedBackend([Reply("bad " * 99 + "end", delay=100), Reply("good", delay=1)])
    async with calling(backend, early=True, checks=["excludes:bad"]) as caller:
        answer = await caller.chat()
    assert answer.json["choices"][0]["message"]["content"] == "good"
    assert virtual_clock.now < 10


async def test_so_is_one_that_can_not_pass_a_check_of_the_request():
    backend = ScriptedBackend([Reply("bad " * 99 + "end", delay=20), Reply("good")])
    with anyio.fail_after(15):
        async with calling(backend, early=True) as caller:
            answer = await caller.chat(mellea_like={"checks": ["excludes:bad"]})
    assert answer.json["choices"][0]["message"]["content"] == "good"


# --- what a request may ask for besides ---------------------------------------------------------


async def test_a_request_may_add_checks_and_requirements():
    no = json.dumps({"passed": False, "reason": "it does not rhyme"})
    backend = InTurn("a b", "a", no, "b", json.dumps({"passed": True, "reason": "ok"}))
    wishes = {"checks": ["words<=1"], "requirements": ["It rhymes."]}
    async with calling(backend, attempts=3) as caller:
        body = (await caller.chat(mellea_like=wishes)).json
    assert body["choices"][0]["message"]["content"] == "b"
    assert body["mellea_like"]["iterations"] == 3


async def test_a_request_may_draw_more_within_the_models_bounds():
    backend = InTurn("a b")
    async with calling(
        backend, checks=["words<=1"], attempts=1, overrides={"attempts": 5, "lanes": 2}
    ) as caller:
        plain = await caller.chat()
        more = await caller.chat(mellea_like={"attempts": 5, "lanes": 2, "timeout": 60})
    assert plain.error["mellea_like"]["iterations"] == 1
    assert more.error["mellea_like"]["iterations"] == 10


@pytest.mark.parametrize(
    ("wishes", "param", "said"),
    [
        ({"attempts": 4}, "attempts", "must be at most 3 for this model"),
        ({"lanes": 2}, "lanes", "must be at most 1 for this model"),
        ({"timeout": 121}, "timeout", "must be at most 120 for this model"),
        ({"checks": ["json"] * 3}, "checks", "must be at most 2 for this model, not 3"),
        ({"checks": ["wrds<=3"]}, "checks.0", "did you mean words<=3?"),
        ({"checks": ["json", "regex:("]}, "checks.1", "isn't a regular expression"),
        ({"requirements": ["x", "y"]}, "requirements", "must be at most 1 for this model, not 2"),
        ({"requirements": ["x"]}, "requirements", "can't judge: send checks instead"),
    ],
)
async def test_a_request_that_asks_for_too_much_is_refused_before_anything_is_sent(
    wishes, param, said
):
    backend = InTurn(can_judge=False)
    async with calling(backend, overrides={"checks": 2, "requirements": 1}) as caller:
        answer = await caller.chat(mellea_like=wishes)
    assert (answer.status, answer.error["param"]) == (400, f"mellea_like.{param}")
    assert said in answer.error["message"]
    assert backend.requests == []


# --- JSON ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "replies"),
    [
        (of_schema(SCHEMA), ("no JSON", '{"n": "x"}', '{"n": 1}')),
        ({"response_format": {"type": "json_object"}}, ("[1]", "1", '{"a": 1}')),
    ],
)
async def test_a_reply_meets_the_requests_schema_or_is_any_object(asked, replies):
    backend = InTurn(*replies)
    async with calling(backend) as caller:
        answer = await caller.chat(**asked)
    assert answer.json["choices"][0]["message"]["content"] == replies[-1]
    # This upstream takes no response_format, so the prompt tells it.
    assert "JSON Schema" in backend.requests[0].messages[-1].content
    assert "response_format" not in backend.requests[0].options.extra


PARTS = {f"n{n}": {"anyOf": [{"$ref": f"#/$defs/n{n + 1}"}] * 2} for n in range(60)}

BAD_SCHEMAS = [
    ({"type": "objekt"}, "the schema is invalid at $.type"),
    ({"$ref": "#/$defs/nope"}, "can't be resolved"),
    ({"$ref": "http://127.0.0.1:9/schema.json"}, "can't be resolved"),
    ({"$ref": "#"}, "circular references"),
    ({"pattern": "("}, "is not a 'regex'"),
    ({"enum": ["x" * 70_000]}, "a schema may have at most 65,536 characters"),
    ({"$defs": {**PARTS, "n60": {"type": "string"}}, "$ref": "#/$defs/n0"}, ""),  # Exponential.
]


async def test_a_schema_that_is_none_or_costs_too_much_is_refused():
    backend = InTurn()
    async with calling(backend, overrides={"check_seconds": 0.3}) as caller:
        for schema, said in BAD_SCHEMAS:
            answer = await caller.chat(**of_schema(schema))
            assert answer.status == 400
            assert answer.error["param"] == "response_format.json_schema.schema"
            assert said in answer.error["message"]
    assert backend.requests == []


# --- when the upstream fails --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "status", "code", "wait", "again"),
    [
        (RateLimited("x", retry_after=7.2), 429, "upstream_rate_limit", "8", "false"),
        (RateLimited("x"), 429, "upstream_rate_limit", "1", "false"),
        (RateLimited("x", retryable=False), 429, "upstream_rate_limit", "1", "false"),
        (BackendTimeout("x"), 504, "upstream_timeout", None, "false"),
        (BackendUnavailable("x", status=503), 502, "upstream_failed", None, "false"),
        (MalformedResponse("x"), 502, "upstream_failed", None, "false"),
        (CircuitOpen("x", retry_after=2.5), 503, "upstream_unavailable", "3", None),
        (AuthenticationFailed("x", status=401), 502, "upstream_authentication", None, "false"),
        (InvalidRequest("x", status=400), 400, "upstream_refused", None, None),
        (InvalidRequest("x", status=413), 400, "upstream_refused", None, None),
        (InvalidRequest("x", status=404), 502, "upstream_refused", None, "false"),
        (ZeroDivisionError("x"), 502, "upstream_failed", None, "false"),
    ],
)
@pytest.mark.parametrize("when_nothing_passed", ["error", "best"])
async def test_an_upstreams_error_becomes_a_status_without_its_text(
    error, status, code, wait, again, when_nothing_passed
):
    error.args = ("the-upstream-said-this",)
    config = {"attempts": 2, "when_nothing_passed": when_nothing_passed}  # Nothing was judged.
    async with calling(InTurn(error), **config) as caller:
        answer = await caller.chat()
    assert (answer.status, answer.error["code"]) == (status, code)
    assert answer.headers.get("retry-after") == wait
    assert answer.headers.get("x-should-retry") == again
    assert b"the-upstream-said-this" not in answer.body
    assert "x-mellea-like-passed" not in answer.headers


async def test_an_upstream_that_answers_with_an_error_is_not_said_to_be_out_of_reach():
    async with calling(InTurn(BackendUnavailable("x", status=503)), retries=0) as caller:
        answer = await caller.chat()
    said = "the upstream can't be reached, broke off, or answered with a server error"
    assert answer.error["message"] == said


async def test_an_error_among_failures_leaves_it_at_a_422():
    backend = InTurn(BackendUnavailable("x"), "a b c")
    async with calling(backend, checks=["words<=2"], attempts=2) as caller:
        answer = await caller.chat()
    assert answer.status == 422
    assert answer.error["mellea_like"]["best"]["content"] == "a b c"


async def test_an_upstream_that_is_down_is_left_alone_and_callers_are_told_for_how_long(
    virtual_clock,
):
    backend = InTurn(BackendUnavailable("x", status=500))
    async with calling(backend, retries=2, attempts=4) as caller:
        answers = [await caller.chat() for _ in range(3)]
    assert len(backend.requests) <= 9
    assert answers[-1].status == 503
    assert int(answers[-1].headers["retry-after"]) >= 1


@pytest.mark.parametrize(("wishes", "seconds"), [({}, 30), ({"mellea_like": {"timeout": 5}}, 5)])
async def test_time_that_is_up_before_anything_was_judged_is_a_504(virtual_clock, wishes, seconds):
    backend = ScriptedBackend([Reply("a", delay=100)])
    async with calling(backend, timeout=30) as caller:
        answer = await caller.chat(**wishes)
    assert (answer.status, answer.error["code"]) == (504, "timeout")
    assert virtual_clock.now == pytest.approx(seconds)


async def test_replies_that_can_not_be_judged_are_a_502():
    backend = InTurn("a", "no verdict")
    async with calling(backend, requirements=["It rhymes."], attempts=1) as caller:
        answer = await caller.chat()
    assert (answer.status, answer.error["code"]) == (502, "not_judged")


# --- budgets ------------------------------------------------------------------------------------


async def test_a_call_spends_no_more_than_its_budget():
    backend = InTurn("a b c")
    async with calling(backend, checks=["words<=2"], attempts=9, budget={"requests": 2}) as caller:
        first, second = [(await caller.chat()).error["mellea_like"] for _ in range(2)]
    assert (first["requests"], first["stop_reason"]) == (2, "budget")
    assert second["requests"] == 2  # Each call has its own.


async def test_a_budget_that_is_too_small_for_one_request_is_a_422_of_its_own():
    bounded = {"budget": {"output_tokens": 10}, "options": {"max_tokens": 5}}
    async with calling(InTurn(), **bounded) as caller:
        answer = await caller.chat(max_tokens=11)
        assert (answer.status, answer.error["code"]) == (422, "budget_exceeded")
        assert (await caller.chat(max_tokens=10)).status == 200


async def test_a_budget_has_room_for_verdicts():
    yes = json.dumps({"passed": True, "reason": "it does"})
    config = {"requirements": ["It rhymes."], "budget": {"output_tokens": 1000}}
    config["options"] = {"max_tokens": 10}
    async with calling(InTurn("a", yes), **config) as caller:
        assert (await caller.chat()).status == 200


async def test_a_keys_budget_is_spent_by_all_its_calls():
    backend = InTurn("a b c")
    limits = {"budget": {"requests": 3}}
    config = {"checks": ["words<=2"], "attempts": 2, "budget": {"requests": 9}}
    async with calling(backend, server={"limits": limits}, **config) as caller:
        answers = [await caller.chat() for _ in range(3)]
    assert [answer.status for answer in answers] == [422, 422, 429]
    assert len(backend.requests) == 3
    assert answers[2].error["code"] == "insufficient_quota"
    assert answers[2].headers["x-should-retry"] == "false"


# --- limits of an upstream ----------------------------------------------------------------------


async def test_an_upstreams_limit_holds_for_all_calls(virtual_clock):
    backend = ScriptedBackend([Reply("a", delay=1)], cycle=True)
    async with (
        calling(backend, upstream={"concurrency": 2}) as caller,
        anyio.create_task_group() as tasks,
    ):
        for _ in range(6):
            tasks.start_soon(caller.chat)
    assert virtual_clock.now == pytest.approx(3, abs=0.01)


# --- the other routes ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "method", "body", "status", "code"),
    [
        ("/v1/models/other", "GET", None, 404, "model_not_found"),
        ("/v1/chat/completions", "POST", {"model": "other"}, 404, "model_not_found"),
        ("/v1/chat/completions", "POST", {"messages": []}, 400, None),
        ("/v1/chat/completions", "GET", None, 405, "method_not_allowed"),
        ("/v1/chat/completions/", "POST", {"model": "mine"}, 404, "not_found"),
        ("/v1/completions", "POST", {"model": "mine"}, 404, "not_found"),
        ("/v1/embeddings", "POST", {"model": "mine"}, 404, "not_found"),
        ("/", "GET", None, 404, "not_found"),
    ],
)
async def test_what_there_is_not_is_an_error_in_openais_shape(path, method, body, status, code):
    async with calling(InTurn()) as caller:
        answer = await caller.ask(path, body, method=method)
    assert answer.status == status
    assert answer.error["code"] == code


async def test_a_gateway_is_healthy_while_its_upstreams_are_open():
    app = make_app(config_for(), backends={"main": InTurn()})
    answer = await Caller(app).ask("/healthz", method="GET")
    assert (answer.status, answer.json) == (503, {"status": "starting"})
    async with calling(InTurn()) as caller:
        answer = await caller.ask("/healthz", method="GET")
    assert (answer.status, answer.json) == (200, {"status": "ok"})
