"""Fields that would choose the upstream or its key."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mellea_like.gateway.http.body import check_fields, check_query
from mellea_like.gateway.refusal import Refusal


def forbidden_path(body: object) -> str | None:
    try:
        check_fields(body)
    except Refusal as refusal:
        return refusal.param
    return None


NAMES = ["base_url", "api_base", "api_key"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("body", "path"),
    [
        (lambda n: {"model": "m", n: "canary"}, "{}"),
        (lambda n: {"extra_body": {n: "canary"}}, "extra_body.{}"),
        (lambda n: {"extra_body": {"extra_body": {n: "canary"}}}, "extra_body.extra_body.{}"),
        (lambda n: {"messages": [{"role": "user", n: "canary"}]}, "messages[0].{}"),
        (lambda n: {"messages": [{}, {"content": [{}, {n: 1}]}]}, "messages[1].content[1].{}"),
        (lambda n: {"mellea_like": [[[[{n: None}]]]]}, "mellea_like[0][0][0][0].{}"),
        (lambda n: {"metadata": {n: ""}}, "metadata.{}"),
    ],
)
def test_at_any_depth_it_is_400_that_names_where_but_not_what(name, body, path):
    with pytest.raises(Refusal) as caught:
        check_fields(body(name))
    refusal = caught.value
    assert (refusal.status, refusal.code) == (400, "forbidden_field")
    assert refusal.param == path.format(name)
    assert path.format(name) in refusal.message
    assert b"canary" not in refusal.body()


@pytest.mark.parametrize(
    "name",
    [
        "BASE_URL",
        "baseUrl",
        "base-url",
        "base url",
        "base.url",
        " base_url ",
        "Base__URL",
        "apiBase",
        "API-KEY",
        "ApiKey",
        "x-api-key",
        "openai_api_key",
        "OPENAI_BASE_URL",
        "azure_endpoint",
        "azure_ad_token",
        "api_version",
        "api_type",
        "\uff42\uff41\uff53\uff45_\uff55\uff52\uff4c",
        "base\u200b_url",
        "b\u00adase_url",
        "API\u212aEY",
        "api_\u212aey",
    ],
)
def test_however_it_is_written(name):
    assert forbidden_path({"metadata": [{"er": {name: 1}}]}) is not None


@pytest.mark.parametrize(
    "name", ["Authorization", "headers", "extra_headers", "proxy", "http_client", "endpoint", "url"]
)
def test_common_names_are_refused_near_the_top_only(name):
    assert forbidden_path({name: 1}) == name
    assert forbidden_path({"extra_body": {name: 1}}) == f"extra_body.{name}"
    assert forbidden_path({"metadata": {"a": {name: 1}}}) is None


@pytest.mark.parametrize("name", [*NAMES, "apiVersion", "apiHost"])
@pytest.mark.parametrize("field", ["response_format", "tools", "guided_json"])
def test_a_name_in_a_schema_chooses_nothing(field, name):
    schema = {"type": "object", "properties": {name: {"type": "string"}}}
    assert forbidden_path({field: {"json_schema": {"schema": schema}}}) is None


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"model": "m", "messages": [{"role": "user", "content": "my api_key is base_url"}]},
        {"database_url": 1, "base": {"url": 1}, "api": {"key": 1}, "keyapi": 1, "urlbase": 1},
        {"temperature": 1, "response_format": {"type": "json_object"}, "user": "base_url"},
        ["base_url"],
        "base_url",
        None,
    ],
)
def test_texts_and_other_names_may_say_it(body):
    assert forbidden_path(body) is None


def test_the_path_is_one_short_line():
    path = forbidden_path({"metadata": {"x\r\nSet-Cookie: y" * 100: {"api_key": 1}}})
    assert path is not None
    assert len(path) < 300
    assert path.isprintable()


@given(
    st.recursive(
        st.just({"api_key": "canary"}),
        lambda inner: (
            st.dictionaries(st.text("xyz", min_size=1), inner, min_size=1, max_size=2)
            | st.lists(inner, min_size=1, max_size=2)
        ),
        max_leaves=8,
    )
)
def test_no_nesting_hides_it(body):
    with pytest.raises(Refusal) as caught:
        check_fields({"extra_body": body})
    assert b"canary" not in caught.value.body()


@pytest.mark.parametrize(
    "query", [b"api_key=x", b"a=b&BASE-URL=x", b"api%5Fkey=canary", b"%61pi_key", b"api_base"]
)
def test_a_query_may_not_say_it_either(query):
    with pytest.raises(Refusal) as caught:
        check_query(query)
    assert caught.value.status == 400
    assert b"canary" not in caught.value.body()


def test_an_endless_query_is_refused():
    with pytest.raises(Refusal, match="can't be read"):
        check_query(b"&".join([b"a=b"] * 101))


@pytest.mark.parametrize(
    "query", [b"", b"a=b", b"api-version=2024-06-01", b"stream=true&a", b"\xff=%ff", b"a=api_key"]
)
def test_other_queries_pass(query):
    check_query(query)
