"""Checks that come with requests: none makes the gateway busy for long."""

from __future__ import annotations

import time
from contextlib import suppress

import pytest
import regex
from gateway_kit import config_for, running, user
from guard_kit import Caller, request
from http_server import Answer, OpenAIServer
from hypothesis import given
from hypothesis import strategies as st

from mellea_like.gateway.callers_pattern import problem_with_pattern

BOMBS = [
    "(((a{1000}){1000}){1000})",
    "((a{300}){300}){300}",
    "(a{1000}){1000}",
    "(?:(?:a|b){100}(?:c|d){100}){1000}",
    "(?:[a-z]{20}){9000}",
    "(?x)(a{1000}) {1000}",
    "(?ix)(a{1000}) {1000}",
    "(a{1000})(?#really){1000}",
    "a{99999999}",
    "(a{10,200}){10,200}",
    "(a{,200}){,200}",
    r"(\(a{200}\)){200}",
    "([(]a{200}){200}",
    "([^])]a{200}){200}",
    r"([\]]a{200}){200}",
    "(a|b)" * 20_000,
    "x" * 1001,
]
SMALL_BOMB = "(a{1000}){900}"
"""It takes half a second, and no more memory than there is."""

FINE = [
    "",
    r"^\d{4}-\d{2}-\d{2}$",
    "[A-Z]{1,500} [a-z]{1,500}",
    r"(?i)\b(yes|no)\b",
    "(?=.{8,64}$)(?=.*[0-9]).*",
    "(?:ab){50}",
    r"\{not a repeat\}",
    "{1,2",
    "))((",
    "(?P<x>a)(?P=x)",
    "x" * 1000,
]


@pytest.mark.parametrize("pattern", BOMBS, ids=lambda p: p[:40])
def test_a_pattern_that_is_long_when_written_out_is_refused(pattern):
    assert problem_with_pattern(pattern) is not None


@pytest.mark.parametrize("pattern", FINE, ids=lambda p: p[:40])
def test_other_patterns_are_not(pattern):
    assert problem_with_pattern(pattern) is None


PARTS = st.sampled_from(["a", "b", ".", r"\d", "[a-c]", "[^]x]", "|", "*", "+", "?", "^", "$", " "])
PATTERNS = st.recursive(
    PARTS,
    lambda inner: (
        st.lists(inner, min_size=1, max_size=4).map("".join)
        | inner.map(lambda p: f"({p})")
        | inner.map(lambda p: f"(?:{p})")
        | st.tuples(inner, st.integers(0, 300)).map(lambda t: f"(?:{t[0]}){{{t[1]}}}")
        | st.tuples(inner, st.integers(0, 99)).map(lambda t: f"(?:{t[0]}){{,{t[1]}}}")
    ),
    max_leaves=8,
)


@given(PATTERNS | st.text("ab(){}[]0123,|*+?\\^: x", max_size=30))
def test_whatever_passes_is_compiled_in_no_time(pattern):
    if problem_with_pattern(pattern) is not None:
        return
    begun = time.process_time()
    with suppress(regex.error, OverflowError, RecursionError):  # Said by whoever reads the check.
        regex.compile(pattern, cache_pattern=False)
    assert time.process_time() - begun < 0.5


def wish(**given):
    return {"mellea_like": given}


def schema(of):
    described = {"name": "x", "schema": of}
    return {"response_format": {"type": "json_schema", "json_schema": described}}


@pytest.fixture(scope="module")
def gateway():
    with (
        OpenAIServer(Answer("a" * 40 + "!")) as upstream,
        running(config_for(upstream.url, loop=1)) as running_,
    ):
        yield running_


@pytest.mark.parametrize(
    ("body", "statuses"),
    [
        (wish(checks=[f"regex:{SMALL_BOMB}"]), {400}),
        (wish(checks=[f" ReGex :{SMALL_BOMB}"]), {400}),
        (wish(checks=["regex:^(a+)+$"]), {422, 502}),
        (wish(checks=["regex:(?e)(?:a{50}){e<=9}b"] * 3), {422, 502}),
        (wish(checks=["choice:" + "|".join(map(str, range(2000)))]), {400}),
        (wish(checks=["contains:" + "y" * 3_000_000]), {400}),
        (wish(requirements=["y" * 3_000_000]), {400}),
        (schema({"type": "string", "pattern": SMALL_BOMB}), {400}),
        (schema({"properties": {"a": {"items": {"pattern": SMALL_BOMB}}}}), {400}),
        (schema({"$ref": "#"}), {400}),
        (schema({"allOf": [{"$ref": "#"}, {"$ref": "#"}]}), {400}),
        (schema({"enum": ["x" * 9000] * 100}), {400}),
    ],
)
def test_no_wish_keeps_the_gateway_from_others(gateway, body, statuses):
    with Caller(gateway.port) as caller, Caller(gateway.port) as other:
        begun = time.monotonic()
        caller.send(request(body={"model": "mine", "messages": user(), **body}))
        other.send(request("/healthz"))
        assert other.answer().status == 200
        assert caller.answer().status in statuses
        assert time.monotonic() - begun < 5
