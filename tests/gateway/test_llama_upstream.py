"""A gateway in front of the real llama.cpp server, with a model made for the test."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path

import openai
import pytest
from gateway_kit import running, user
from leftovers import children
from tiny_gguf import build_bigram_gguf

from mellea_like.gateway import read_config

pytest.importorskip("xllamacpp")

CORPUS = """\
The quick brown fox jumps over the lazy dog. The dog sleeps in the warm sun.
A small bird sings in the old tree. The bird sees the fox and flies away.
Autumn leaves fall on the quiet river. The river carries them to the sea.
"""

CONFIG = """\
upstreams:
  tiny:
    kind: llama
    gguf: tiny.gguf
    parallel: 4
    threads: 1
    concurrency: 4
models:
  fox:
    upstream: tiny
    attempts: 40
    lanes: 4
    checks: ["contains:fox", "words<=20"]
    tell: false
  typed:
    upstream: tiny
    attempts: 3
server:
  port: 0
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    directory = tmp_path_factory.mktemp("gateway")
    table = build_bigram_gguf(CORPUS, directory / "tiny.gguf")
    path = directory / "gateway.yaml"
    path.write_text(CONFIG, encoding="utf-8")
    return path, table


@pytest.fixture(scope="module")
def gateway(model):
    with running(read_config(model[0])) as gateway:
        yield gateway


@pytest.fixture
def client(gateway):
    with gateway.client() as client:
        yield client


@pytest.mark.parametrize("stream", [False, True])
def test_what_the_model_says_has_passed(client, model, stream):
    fields = {"model": "fox", "messages": user(), "max_tokens": 30}
    if stream:
        chunks = list(client.chat.completions.create(stream=True, **fields))
        text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    else:
        reply = client.chat.completions.create(**fields)
        text = reply.choices[0].message.content
        assert reply.usage.completion_tokens > 0
        assert reply.usage.prompt_tokens > 0
    assert "fox" in text
    assert model[1].allows(text, whole=False)


def test_a_schema_is_a_grammar_for_the_server(client):
    described = {"name": "word", "schema": {"type": "string", "enum": ["fox", "dog"]}}
    reply = client.chat.completions.create(
        model="typed",
        messages=user(),
        max_tokens=30,
        response_format={"type": "json_schema", "json_schema": described},
    )
    assert json.loads(reply.choices[0].message.content) in {"fox", "dog"}


def test_a_prompt_that_is_too_long_is_the_callers_mistake(client):
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="fox", messages=user("x" * 20_000))
    assert caught.value.code == "context_length_exceeded"


def llama_servers() -> set[int]:
    found: set[int] = set()
    for pid in children():
        with contextlib.suppress(OSError):  # It has ended.
            if "llama" in Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8"):
                found.add(pid)
    return found


def test_its_server_ends_with_the_gateway(model):
    before = llama_servers()
    with running(read_config(model[0])) as gateway, gateway.http() as http:
        assert http.get("/healthz").json() == {"status": "ok"}
        assert len(llama_servers() - before) == 1
    deadline = time.monotonic() + 5
    while llama_servers() - before:
        assert time.monotonic() < deadline
        time.sleep(0.01)
