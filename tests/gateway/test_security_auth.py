"""Access to the gateway: tokens, addresses, hosts."""

from __future__ import annotations

import hashlib
import hmac
import socket
from collections.abc import Mapping
from contextlib import suppress

import pytest
from guard_kit import OTHER_TOKEN, TOKEN, key

from mellea_like.gateway.config.gateway_config import ANONYMOUS, KeyConfig, ServerConfig
from mellea_like.gateway.config.tokens import Tokens
from mellea_like.gateway.http import guard as guard_module
from mellea_like.gateway.http.guard import check_host, owner_of
from mellea_like.gateway.http.server import listening_address
from mellea_like.gateway.refusal import Refusal


def bearer(token: str) -> list[tuple[bytes, bytes]]:
    return [(b"authorization", f"Bearer {token}".encode())]


# --- tokens --------------------------------------------------------------------------------------


def tokens_of(environ: Mapping[str, str] | None = None, **keys: KeyConfig) -> Tokens:
    return Tokens(keys, None, environ or {})


@pytest.mark.parametrize(
    "header", [f"Bearer {TOKEN}", f"bearer {TOKEN}", f"BEARER  {TOKEN}", f"Bearer {TOKEN} "]
)
def test_a_token_opens_the_gateway(header):
    tokens = tokens_of(other=key(OTHER_TOKEN), team=key())
    assert owner_of([(b"authorization", header.encode())], tokens.owners) == "team"


def test_without_keys_everyone_is_anonymous():
    assert owner_of([], tokens_of().owners) == ANONYMOUS
    assert owner_of(bearer("whatever"), tokens_of().owners) == ANONYMOUS


@pytest.mark.parametrize(
    ("headers", "why"),
    [
        ([], "no API key"),
        (bearer(""), "not one of this"),
        (bearer(TOKEN[:-1]), "not one of this"),
        (bearer(TOKEN + "x"), "not one of this"),
        (bearer(TOKEN.upper()), "not one of this"),
        (bearer(hashlib.sha256(TOKEN.encode()).hexdigest()), "not one of this"),
        ([(b"authorization", TOKEN.encode())], "not one of this"),
        ([(b"authorization", f"Basic {TOKEN}".encode())], "not one of this"),
        ([(b"authorization", f"Bearer {TOKEN} {TOKEN}".encode())], "not one of this"),
        ([(b"authorization", b"Bearer \xff\xfe")], "not one of this"),
        ([*bearer(TOKEN), *bearer(TOKEN)], "more than one"),
        ([*bearer("wrong"), *bearer(TOKEN)], "more than one"),
        ([(b"api-key", TOKEN.encode())], "no API key"),
        ([(b"x-api-key", TOKEN.encode())], "no API key"),
    ],
)
def test_anything_else_is_401_and_shows_no_token(headers, why):
    with pytest.raises(Refusal, match=why) as caught:
        owner_of(headers, tokens_of(team=key()).owners)
    refusal = caught.value
    assert (refusal.status, refusal.code) == (401, "invalid_api_key")
    assert refusal.headers == {"www-authenticate": "Bearer"}
    assert TOKEN.encode() not in refusal.body()
    assert refusal.__cause__ is refusal.__context__ is None


def test_a_token_is_compared_with_all_keys_as_digests_of_one_length(monkeypatch):
    # Only the arguments of hmac.compare_digest show this.
    compared = []

    def watched(a, b):
        compared.append((a, b))
        return hmac.compare_digest(a, b)

    tokens = tokens_of(first=key(), second=key(OTHER_TOKEN), third=key("x" * 99))
    monkeypatch.setattr(guard_module, "hmac", type("Watched", (), {"compare_digest": watched}))
    for token in (TOKEN, "a", "b" * 1000):
        compared.clear()
        with suppress(Refusal):
            owner_of(bearer(token), tokens.owners)
        assert len(compared) == 3
        assert {len(part) for pair in compared for part in pair} == {32}
        assert {given for given, _ in compared} == {hashlib.sha256(token.encode()).digest()}


def test_a_token_may_come_from_the_environment():
    tokens = tokens_of({"TEAM": f" {TOKEN}\n"}, team=KeyConfig(env="TEAM"))
    assert owner_of(bearer(TOKEN), tokens.owners) == "team"


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ({}, "TEAM, which is not set"),
        ({"TEAM": "  "}, "TEAM, which is not set"),
        ({"TEAM": "short-canary"}, "shorter than 16"),
        ({"TEAM": "canary with blanks in it"}, "can't be sent"),
        (
            {"TEAM": "canary\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4"},
            "can't be sent",
        ),
    ],
)
def test_a_bad_token_in_the_environment_is_refused_without_showing_it(value, why):
    [problem] = tokens_of(value, team=KeyConfig(env="TEAM")).problems
    assert why in problem.what
    assert "canary" not in problem.what


def test_two_keys_with_the_same_token_are_refused():
    [problem] = tokens_of(a=key(), b=key()).problems
    assert problem.what == "the keys 'a' and 'b' have the same token"


@pytest.mark.parametrize(
    "given",
    [{}, {"env": "A", "sha256": "0" * 64}, {"sha256": "canary"}, {"env": "no name"}, {"key": "x"}],
)
def test_a_key_has_one_source(given):
    with pytest.raises(ValueError) as caught:
        KeyConfig(**given)
    assert "canary" not in str(caught.value)


# --- where to listen -----------------------------------------------------------------------------


@pytest.fixture
def resolves(monkeypatch):
    """Set what names resolve to: addresses, or an error."""

    def resolve(*found):
        def getaddrinfo(host, port, **_):
            families = [socket.AF_INET6 if ":" in str(a) else socket.AF_INET for a in found]
            if found and isinstance(found[0], Exception):
                raise found[0]
            return [(f, None, None, "", (a, port)) for f, a in zip(families, found, strict=True)]

        monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)

    return resolve


@pytest.mark.parametrize(
    ("found", "taken"),
    [
        (["127.0.0.1"], "127.0.0.1"),
        (["::1"], "::1"),
        (["::1", "127.0.0.1"], "127.0.0.1"),
        (["127.8.9.10"], "127.8.9.10"),
        (["::ffff:127.0.0.1"], "::ffff:127.0.0.1"),
    ],
)
def test_the_loopback_needs_no_key(found, taken, resolves):
    resolves(*found)
    _, address = listening_address(ServerConfig(host="name"), has_keys=False)
    assert address == (taken, 8080)


@pytest.mark.parametrize(
    "found",
    [
        ["0.0.0.0"],
        ["::"],
        ["192.168.1.7"],
        ["8.8.8.8"],
        ["fe80::1%eth0"],
        ["::ffff:10.0.0.1"],
        ["127.0.0.1", "10.0.0.1"],
        ["10.0.0.1", "127.0.0.1"],
    ],
)
def test_another_address_starts_only_with_a_key(found, resolves):
    resolves(*found)
    server = ServerConfig(host="name")
    with pytest.raises(ValueError, match="no keys are configured"):
        listening_address(server, has_keys=False)
    assert listening_address(server, has_keys=True)[1][1] == 8080


@pytest.mark.parametrize("host", ["0.0.0.0", "0", "::", "[::]", "00.0.0.0"])
def test_the_system_s_ways_to_write_every_address_are_seen_through(host):
    with pytest.raises(ValueError, match=r"no keys are configured|doesn't resolve"):
        listening_address(ServerConfig(host=host), has_keys=False)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.1", "[::1]", "::1"])
def test_the_system_s_ways_to_write_the_loopback_are_taken(host):
    _, found = listening_address(ServerConfig(host=host), has_keys=False)
    assert found[0] in {"127.0.0.1", "::1"}


@pytest.mark.parametrize("found", [[socket.gaierror("no")], [UnicodeError("too long")], []])
def test_a_host_that_does_not_resolve_is_said_so(found, resolves):
    resolves(*found)
    with pytest.raises(ValueError, match="doesn't resolve"):
        listening_address(ServerConfig(host="nowhere"), has_keys=True)


# --- DNS rebinding -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST:8080", "127.0.0.1", "127.0.0.1:1", "[::1]", "[::1]:80", "localhost."],
)
def test_the_loopback_s_names_are_answered(host):
    check_host([(b"host", host.encode())], ServerConfig())


@pytest.mark.parametrize(
    ("host", "server"),
    [
        ("gate.example:443", ServerConfig(allowed_hosts=("gate.example",))),
        ("gate.example", ServerConfig(host="gate.example")),
        ("[fd00::1]:80", ServerConfig(host="fd00::1")),
    ],
)
def test_configured_hosts_are_answered(host, server):
    check_host([(b"host", host.encode())], server)


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(b"host", b"")],
        [(b"host", b"evil.example")],
        [(b"host", b"localhost.evil.example")],
        [(b"host", b"localhost@evil.example")],
        [(b"host", b"evil.example:localhost")],
        [(b"host", b"127.0.0.1.evil.example")],
        [(b"host", b"[::1].evil.example")],
        [(b"host", b"\xff")],
        [(b"host", b"localhost"), (b"host", b"evil.example")],
    ],
)
def test_other_hosts_are_refused(headers):
    with pytest.raises(Refusal) as caught:
        check_host(headers, ServerConfig())
    assert caught.value.status == 403
    assert b"evil" not in caught.value.body()
