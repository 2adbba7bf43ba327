"""Runs against an OpenAI-compatible server over HTTP."""

from __future__ import annotations

import json

import pytest
from http_server import Answer, OpenAIServer

from mellea_like.cli.backends import Backends
from mellea_like.cli.sample.command import SampleOptions
from mellea_like.core.format import json_schema, parse_json

NAMES = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


def verdict(passed, reason=""):
    return Answer(json.dumps({"passed": passed, "reason": reason}))


def test_a_url_chooses_the_server_and_its_first_model(command):
    with OpenAIServer(Answer("fine"), models=("first", "second")) as server:
        code, out, err = command("sample", "Write.", "--base-url", server.url)
    assert (code, out) == (0, "fine\n")
    assert err.startswith(f"Backend: openai, the server's first model at {server.url}.")
    assert server.requests[0]["model"] == "first"


def test_the_environment_chooses_the_server(command, monkeypatch):
    with OpenAIServer(Answer("fine")) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
        code, out, err = command("sample", "Write.", "--model", "mine")
    assert (code, out) == (0, "fine\n")
    assert "Backend: openai, mine at " in err
    assert server.requests[0]["model"] == "mine"
    assert server.headers[0]["authorization"] == "Bearer sk-secret"


def test_a_wrong_key_is_a_sentence_without_the_key(command, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    with OpenAIServer(Answer.error(401, "Incorrect API key provided: sk-secret")) as server:
        code, out, err = command("sample", "Write.", "--base-url", server.url, "-q")
    assert (code, out) == (3, "")
    assert err.startswith("mellea-like: ")
    assert "401" in err
    assert len(err.splitlines()) == 1
    assert "sk-secret" not in err


def test_an_error_beside_failures_is_told_with_the_best_failure(sample):
    answers = Answer("long enough"), Answer.error(500, "oops")
    given = ("--check", "words<2", "--attempts=2", "--lanes=1", "-q")
    code, out, err, _ = sample(*given, answers=answers)
    assert (code, out) == (1, "long enough\n")
    assert "1 draw ended in an error, the first with: " in err


def test_the_seed_is_sent(sample):
    *_, server = sample("--seed", "7", answers=[Answer("fine")])
    assert all(isinstance(request["seed"], int) for request in server.requests)


def test_what_is_required_in_words_is_judged_by_the_model(command):
    def choose(number, body):
        judging = '"reason"' in body["messages"][-1]["content"] + body["messages"][0]["content"]
        return verdict(True) if judging else Answer("a red fox")

    with OpenAIServer(choose=choose) as server:
        code, out, _ = command(
            *("sample", "x", "--base-url", server.url, "--require", "mentions a colour"),
            *("--lanes=1", "--json"),
        )
    record = json.loads(out)
    assert (code, record["text"]) == (0, "a red fox")
    assert record["usage"]["requests"] == 2
    assert record["slices"][0]["validations"][0]["name"] == "mentions a colour"


def test_another_model_may_judge_what_the_embedded_generator_writes(command):
    with OpenAIServer(verdict(False, "it has no colour")) as server:
        code, out, err = command(
            *("sample", "Write about lists.", "--require", "mentions a colour"),
            *("--judge-base-url", server.url, "--judge-model", "judge"),
            *("--attempts=1", "--lanes=1", "-q"),
        )
    assert code == 1
    assert out.strip()
    assert "mentions a colour: it has no colour" in err
    assert [request["model"] for request in server.requests] == ["judge"]


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        ([], {"temperature": 0}),
        (["temperature=none"], {}),
        (
            ["temperature=1", "max-tokens=50", "top-p=0.5"],
            {"temperature": 1, "max_tokens": 50, "top_p": 0.5},
        ),
        (
            ["extra.reasoning_effort=low", "extra.n=1"],
            {"temperature": 0, "reasoning_effort": "low", "n": 1},
        ),
    ],
)
@pytest.mark.parametrize("select", [[], ["--select", "tournament", "--n", "2"]])
def test_the_judge_generates_as_its_options_say(sample, given, asked, select):
    def choose(number, body):
        if body["model"] != "judge":
            return Answer(f"fine {number}")
        return Answer('{"better": "a"}') if select else verdict(True)

    code, _, err, server = sample(
        *("--judge-model", "judge", *(select or ["--require", "is fine"])),
        *(part for one in given for part in ("--judge-option", one)),
        choose=choose,
    )
    assert code == 0, err
    judged = [body for body in server.requests if body["model"] == "judge"]
    names = ("temperature", "max_tokens", "top_p", "reasoning_effort", "n")
    assert [{n: b[n] for n in names if n in b} for b in judged] == [asked] * len(judged)
    assert judged


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["warmth=1"], "--judge-option warmth: use temperature, top-p, max-tokens or extra.FIELD"),
        (["temperature=3"], "--judge-option temperature must be at most 2, not 3"),
        (["temperature=1", "temperature=0"], "each name once"),
        (["max-tokens=0"], "--judge-option max-tokens must be at least 1, not 0"),
        (["top-p"], "--judge-option 'top-p': write a name and a value, as in temperature=0.5"),
    ],
)
def test_a_wrong_option_of_the_judge_is_a_usage_error_that_says_what_is_allowed(
    command, given, said
):
    code, _, err = command(
        *("sample", "x", "--base-url", "http://127.0.0.1:9/v1", "--require", "is fine"),
        *(part for one in given for part in ("--judge-option", one)),
    )
    assert code == 2
    assert said in err


def test_an_option_of_the_judge_without_anything_to_decide_is_a_usage_error(command):
    code, _, err = command("sample", "x", "--judge-option", "temperature=1", "--check", "words<=9")
    assert code == 2
    assert "nothing to judge: add --require TEXT" in err


def test_a_call_whose_time_is_up_is_a_record_too(sample):
    answers = [Answer("slow", seconds=30.0)]
    code, out, err, _ = sample("--timeout", "0.3", "--json", answers=answers)
    assert "Nothing passed: time ran out; 1 draw," in err
    record = json.loads(out)
    assert (code, record["stop_reason"], record["text"]) == (1, "timeout", None)
    assert {piece["outcome"] for piece in record["slices"]} == {"cancelled"}


def test_a_log_record_is_shown_with_debug(sample):
    one = ("--attempts=1", "--lanes=1")
    code, _, err, _ = sample(*one, "--debug", answers=[Answer.error(500, "oops")])
    _, _, quiet, _ = sample(*one, answers=[Answer.error(500, "oops")])
    assert code == 3
    assert "WARNING mellea_like" in err
    assert "WARNING" not in quiet


@pytest.fixture
def type_of(tmp_path):
    """Return the type made of a file's JSON Schema."""

    def type_of_schema(schema):
        file = tmp_path / "schema.json"
        file.write_text(json.dumps(schema))
        options = SampleOptions(instruction="x", json_schema=file, base_url="http://a", model="m")
        return Backends(options).reply_type

    return type_of_schema


@pytest.mark.parametrize("schema", [NAMES, {"type": "array", "items": {"type": "integer"}}])
def test_a_type_of_a_schema_has_that_schema_and_takes_any_json(type_of, schema):
    made = type_of(schema)
    assert made is not None
    sent = json_schema(made)
    assert {name: sent[name] for name in schema} == schema
    assert parse_json(made, '{"whatever": [1, null]}') == {"whatever": [1, None]}


def test_a_schema_with_references_is_left_to_the_check(type_of):
    assert type_of({"$defs": {"n": {}}, "items": {"$ref": "#/$defs/n"}}) is None
