"""Hostile and careless uses of connections, with the real server and raw sockets."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from contextlib import ExitStack
from typing import Any

import anyio
import pytest
import uvicorn
from guard_kit import TOKEN, Caller, TinyApp, guarded, in_thread, key, request, running
from leftovers import wait_until
from uvicorn.server import ServerState

from mellea_like.gateway.config.gateway_config import ServerConfig
from mellea_like.gateway.http.server import connection_factory, listen

SHORT = 0.12
"""The seconds that a test's server waits. Tests allow a second more."""


def waiting(seconds: float, **more: Any):
    bounds = {"header_seconds": seconds, "body_seconds": seconds, "keep_alive_seconds": seconds}
    return running(**bounds, max_body=1000, **more)


@pytest.fixture(scope="module")
def hasty():
    """A gateway with very short time limits."""
    with waiting(SHORT) as running_:
        yield running_


@pytest.fixture(scope="module")
def patient():
    """A gateway whose time limits are long enough for tests on a busy machine."""
    with waiting(1) as running_:
        yield running_


@pytest.fixture
def gateway(patient):
    """The patient gateway, which holds back its answers to requests for /wait."""
    patient.app.release.clear()
    return patient


@pytest.fixture
def calls(gateway):
    """The requests that have reached the app since the test began."""
    gateway.app.calls.clear()
    return gateway.app.calls


@pytest.fixture
def hasty_calls(hasty):
    """The requests that have reached the hasty gateway's app since the test began."""
    hasty.app.calls.clear()
    return hasty.app.calls


# --- slow callers --------------------------------------------------------------------------------


@pytest.mark.parametrize("begun", [b"", b"G", b"GET / HTTP/1.1\r\n", b"GET / HTTP/1.1\r\nA: b\r\n"])
def test_a_head_that_does_not_end_is_given_up(hasty, hasty_calls, begun):
    with hasty.connect() as caller:
        caller.send(begun)
        assert caller.closed_after() > SHORT / 2
    assert hasty_calls == []


def test_a_head_that_drips_is_given_up_however_often_some_of_it_comes(hasty, hasty_calls):
    with hasty.connect() as caller:
        caller.send(b"GET / HTTP/1.1\r\n")
        dripping = threading.Event()

        def drip() -> None:
            while not dripping.wait(0.01):
                caller.send(b"X-A: b\r\n")

        thread = threading.Thread(target=drip)
        thread.start()
        assert caller.answer().status == 408
        dripping.set()
        thread.join()
    assert hasty_calls == []


def test_a_connection_between_requests_is_closed_after_a_while(hasty):
    with hasty.connect() as caller:
        for _ in range(3):
            caller.send(request("/healthz"))
            assert caller.answer().status == 200
        assert caller.closed_after() > SHORT / 2


@pytest.mark.parametrize("framing", [{"Content_Length": "100"}, {"Transfer_Encoding": "chunked"}])
def test_a_body_that_does_not_come_is_given_up(hasty, hasty_calls, framing):
    with hasty.connect() as caller:
        caller.send(request(method="POST", content_type="application/json", **framing))
        answer = caller.answer()
        assert (answer.status, answer.error["code"]) == (408, "body_timeout")
        assert caller.closed_after() < 1
    assert hasty_calls == []


def test_a_caller_that_does_not_read_its_answer_is_cut_off(hasty):
    with hasty.connect() as caller:
        caller.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        caller.send(request("/big"))
        left = hasty.app.left
        wait_until(lambda: (hasty.app.left, hasty.app.inside) == (left + 1, 0))


# --- too much ------------------------------------------------------------------------------------


def test_headers_beyond_the_limit_are_refused():
    with running(max_header_bytes=1024) as gateway:
        assert gateway.ask(request("/healthz", a="b" * 700)).status == 200
        assert gateway.ask(request("/healthz", a="b" * 1500)).status == 431
        assert gateway.ask(request("/" + "p" * 1500)).status == 431
        assert gateway.ask(request("/healthz?" + "q" * 1500)).status == 431
        many = {f"h{n}": "v" for n in range(200)}
        assert gateway.ask(request("/healthz", **many)).status == 431
        with gateway.connect() as caller:
            for _ in range(30):
                caller.send(b"GET /healthz HTTP/1.1\r\nA: ".ljust(100, b"x"))
            assert caller.answer(1).status == 400


def test_a_body_beyond_the_limit_is_413_by_its_length_or_by_count(gateway, calls):
    body = b'{"a": "' + b"x" * 990 + b'"}'
    assert len(body) == 999
    assert gateway.ask(request(raw=body + b" ")).status == 200
    for sent in (
        request(raw=body + b"  "),
        request(method="POST", content_type="application/json", content_length="99999"),
        chunked(body, b"  "),
        chunked(*[b"x" * 100] * 20),
    ):
        answer = gateway.ask(sent)
        assert (answer.status, answer.error["code"]) == (413, "body_too_large")
    assert len(calls) == 1


def test_the_answer_to_a_long_body_arrives_while_the_caller_still_sends(gateway):
    # If the server closed immediately, the caller might lose the answer to a reset.
    answer = gateway.ask(request(raw=b"x" * 15_000))
    assert answer.status == 413
    assert answer.headers["connection"] == "close"


def test_no_more_connections_than_configured():
    with running(max_connections=3) as gateway:
        callers: list[Caller] = []
        for _ in range(3):
            callers.append(caller := gateway.connect())
            caller.send(request("/v1/models"))
            assert caller.answer().status == 200
        refused = gateway.ask(request("/healthz"))
        assert (refused.status, refused.headers["retry-after"]) == (503, "1")
        callers.pop().socket.close()
        wait_until(lambda: gateway.ask(request("/healthz")).status == 200)
        for caller in callers:
            caller.socket.close()


def test_strangers_make_room_for_those_with_a_key():
    with (
        running(max_connections=40, keys={"team": key()}, header_seconds=30) as gateway,
        ExitStack() as stack,
    ):
        known = stack.enter_context(gateway.connect())
        known.send(request("/v1/models", token=TOKEN))
        assert known.answer().status == 200
        strangers = [stack.enter_context(gateway.connect()) for _ in range(50)]
        assert gateway.ask(request("/v1/models", token=TOKEN)).status == 200
        assert strangers[0].answer().status == 503
        known.send(request("/v1/models", token=TOKEN))
        assert known.answer().status == 200


# --- shapes that two servers may read in two ways ------------------------------------------------


def chunked(*parts: bytes, trailer: bytes = b"\r\n") -> bytes:
    head = request(method="POST", content_type="application/json", transfer_encoding="chunked")
    return head + b"".join(b"%x\r\n%b\r\n" % (len(p), p) for p in parts) + b"0\r\n" + trailer


POST = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@pytest.mark.parametrize(
    "data",
    [
        POST + "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        POST + "Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
        POST + "Content-Length: 2, 3\r\n\r\n{}",
        POST + "Content-Length: +2\r\n\r\n{}",
        POST + "Content-Length: 0x2\r\n\r\n{}",
        POST + "Content-Length: -2\r\n\r\n{}",
        POST + "Content-Length: 2 \x0b\r\n\r\n{}",
        POST + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        POST + "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        POST + "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
        POST + "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        POST + "Transfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n",
        POST + " folded: x\r\n\r\n",
        POST + "Transfer-Encoding: chunked\r\n\r\n-1\r\n{}\r\n0\r\n\r\n",
        POST + "Transfer-Encoding: chunked\r\n\r\n2 \r\n{}X\r\n0\r\n\r\n",
        POST + "Transfer-Encoding: chunked\r\n\r\nfffffffffffffffffffff\r\n{}",
        POST + "A\x00B: c\r\n\r\n",
        POST + "A: c\x00d\r\n\r\n",
        POST + "A: c\rd: e\r\n\r\n",
        POST.replace("\r\n", "\n") + "Content-Length : 2\n\n{}",
        "GET /healthz HTTP/1.1\r\n\r\n",
        "GET /healthz HTTP/2.0\r\nHost: localhost\r\n\r\n",
        "GET  /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "GET /heal\x7fthz HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "GET /healthz\r\nHost: localhost\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "\x16\x03\x01\x02\x00\x01\x00",
        "CONNECT evil.example:443 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
)
def test_no_such_request_gets_through(gateway, calls, data):
    answer = gateway.ask(data.encode("latin-1"), seconds=2)
    assert 400 <= answer.status < 600
    assert calls == []
    assert gateway.ask(request("/healthz")).status == 200


def test_a_body_is_taken_whole_or_in_chunks(gateway, calls):
    assert gateway.ask(request(body={"a": 1})).status == 200
    assert gateway.ask(chunked(b'{"a"', b": 2}")).status == 200
    extended = chunked(b'{"a": 3}').replace(b"8\r\n", b"8;name=value\r\n")
    assert gateway.ask(extended).status == 200
    assert gateway.ask(chunked(b'{"a": 4}', trailer=b"X-Trailer: 1\r\n\r\n")).status == 200
    assert gateway.ask(chunked(b'{"a": 5}', trailer=b"\r\nJUNK\x00\r\n\r\n")).status == 200
    assert [call["a"] for call in calls] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("apart", [True, False])
def test_what_follows_a_request_before_its_answer_is_never_run(gateway, calls, apart):
    smuggled = request("/wait", {"smuggled": True})
    with gateway.connect() as caller:
        if apart:
            caller.send(request("/wait", {"a": 1}))
            wait_until(lambda: gateway.app.inside == 1)
            caller.send(smuggled)
        else:
            caller.send(request("/wait", {"a": 1}) + smuggled)
        wait_until(lambda: gateway.app.inside == 1)
        gateway.app.release.set()
        assert caller.answer().status == 200
        assert caller.closed_after() < 1
    assert list(calls) == [{"a": 1}]


@pytest.mark.parametrize("more", [b"", b"GET / HTTP/1.1\r\n", b"\x00" * 200_000])
@pytest.mark.parametrize("apart", [True, False])
def test_a_caller_that_leaves_is_noticed_whatever_it_sent_meanwhile(gateway, more, apart):
    left = gateway.app.left
    with gateway.connect() as caller:
        caller.send(request("/wait", {"a": 1}) + (b"" if apart else more))
        wait_until(lambda: gateway.app.inside == 1)
        caller.send(more if apart else b"")
    assert wait_until(lambda: gateway.app.left == left + 1) < 1
    wait_until(lambda: gateway.app.inside == 0)


class Pipe(asyncio.Transport):
    """A transport that goes nowhere."""

    def __init__(self) -> None:
        super().__init__()
        self.paused = False
        self.closed = False
        self.aborted = False
        self.written = b""

    def write(self, data) -> None:
        self.written += data

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.aborted = True


def connection_to_nowhere(app: TinyApp | None = None, **server: Any):
    limits = ServerConfig(**server)
    guard = guarded(app or TinyApp(), limits, {})
    config = uvicorn.Config(guard, log_config=None, lifespan="off")
    make = connection_factory(limits)
    connection = make(config=config, server_state=ServerState(), app_state={})
    connection.connection_made(pipe := Pipe())
    return connection, pipe


@pytest.mark.parametrize("apart", [True, False])
def test_what_is_sent_before_the_answer_takes_no_memory(apart):
    async def main() -> None:
        app = TinyApp()
        connection, pipe = connection_to_nowhere(app)
        begun = [request("/wait"), b"x" * 1000]
        for data in (*(begun if apart else [b"".join(begun)]), *[b"x" * 1000] * 1000):
            connection.data_received(data)
            await asyncio.sleep(0)
        assert len(connection.inner.conn.trailing_data[0]) <= 1000
        assert not pipe.paused
        app.release.set()
        while not pipe.closed:  # noqa: ASYNC110 (a few turns)
            await asyncio.sleep(0)
        assert pipe.written.count(b"HTTP/1.1") == 1
        connection.connection_lost(None)

    asyncio.run(main())


@pytest.mark.parametrize(
    "data", [b"nonsense\r\n\r\n", request("/healthz", connection="close"), b"GET /"]
)
def test_a_last_answer_that_nobody_reads_is_not_kept(data):
    async def main() -> None:
        connection, pipe = connection_to_nowhere(body_seconds=0.01, header_seconds=0.01)
        connection.data_received(data)
        async with asyncio.timeout(5):
            while not pipe.aborted:  # noqa: ASYNC110 (see above)
                await asyncio.sleep(0.002)
        assert pipe.closed
        connection.connection_lost(None)

    asyncio.run(main())


def test_a_request_after_an_answer_is_answered_even_if_the_app_has_not_returned():
    class Lingering(TinyApp):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await super().__call__(scope, receive, send)
            await anyio.sleep(0.2 if scope["type"] == "http" else 0)

    with running(Lingering()) as gateway, gateway.connect() as caller:
        for _ in range(3):
            caller.send(request(body={"a": 1}))
            assert caller.answer().status == 200


def test_an_unread_body_never_becomes_the_next_request(gateway, calls):
    with gateway.connect() as caller:
        smuggled = request("/v1/x", {"smuggled": True})
        caller.send(request("/v1/chat/completions", raw=smuggled, content_encoding="gzip"))
        answer = caller.answer()
        assert (answer.status, answer.headers["connection"]) == (415, "close")
        assert caller.closed_after() < 2
    assert calls == []


def test_nonsense_in_the_rest_of_a_refused_body_cuts_the_caller_off(gateway, caplog):
    with gateway.connect() as caller:
        head = request(method="POST", content_type="application/json", content_encoding="gzip")
        caller.send(head[:-2] + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n")
        assert caller.answer().status == 415
        caller.send(b"no chunk's length\r\n")
        assert caller.closed_after() < 1
    assert "Traceback" not in caplog.text
    assert "Fatal" not in caplog.text


@pytest.mark.parametrize("apart", [True, False])
def test_nonsense_amid_a_body_is_answered_once(gateway, calls, caplog, apart):
    head = request(method="POST", content_type="application/json", content_encoding="gzip")
    head = head[:-2] + b"Transfer-Encoding: chunked\r\n\r\n"
    with gateway.connect() as caller:
        if apart:
            caller.send(head.replace(b"gzip", b"identity"))
            time.sleep(0.02)
            caller.send(b"no chunk's length\r\n")
        else:
            caller.send(head + b"no chunk's length\r\n")
        assert caller.answer().status == 400
        assert caller.closed_after() < 1
        assert b"HTTP/1.1" not in caller.received
    assert calls == []
    assert "Exception" not in caplog.text


# --- methods, paths, upgrades --------------------------------------------------------------------


@pytest.mark.parametrize(
    "method", ["PUT", "DELETE", "PATCH", "TRACE", "OPTIONS", "PROPFIND", "get", "X" * 100]
)
def test_other_methods_are_405(gateway, calls, method):
    answer = gateway.ask(request("/v1/models", method=method))
    assert (answer.status, answer.error["code"]) == (405, "method_not_allowed")
    assert "access-control-allow-origin" not in answer.headers
    assert calls == []


@pytest.mark.parametrize("upgrade", ["websocket", "h2c"])
def test_no_upgrade_is_made(gateway, upgrade):
    answer = gateway.ask(
        request("/healthz", connection="Upgrade", upgrade=upgrade, sec_websocket_version="13")
    )
    assert answer.status == 200
    assert "upgrade" not in answer.headers


def test_an_answer_tells_nothing_of_the_server(gateway):
    answer = gateway.ask(request("/healthz"))
    assert "server" not in answer.headers
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["x-content-type-options"] == "nosniff"


# --- hosts and keys, over the wire ---------------------------------------------------------------


def test_with_keys_each_path_but_healthz_needs_one():
    with running(keys={"team": key()}) as gateway:
        paths = ("/v1/models", "/metrics", "/v1/chat/completions", "/", "/healthz/", "//healthz")
        for path in paths:
            assert gateway.ask(request(path)).status == 401
            assert gateway.ask(request(path, token=TOKEN)).status == 200
        assert gateway.ask(request("/v1/chat/completions", {"a": 1})).status == 401
        assert gateway.ask(request("/healthz", {"a": 1})).status == 401
        assert gateway.ask(request("/healthz")).status == 200
        assert gateway.ask(request("/v1/models", token=TOKEN, host="any.example")).status == 200
        twice = request("/v1/models", token=TOKEN).replace(
            b"\r\n\r\n", b"\r\nAuthorization: Bearer x\r\n\r\n"
        )
        assert gateway.ask(twice).status == 401


# --- what goes wrong inside ----------------------------------------------------------------------


def test_an_error_of_the_app_is_a_500_without_its_text(gateway, caplog):
    with caplog.at_level(0):
        answer = gateway.ask(request("/fail"))
    assert (answer.status, answer.error["type"]) == (500, "server_error")
    assert "KeyError at " in caplog.text
    assert "guard_kit.py:" in caplog.text
    assert "canary" not in answer.raw.decode() + caplog.text


def test_stopping_lets_answers_end_within_the_bound_and_cuts_the_rest_off():
    app = TinyApp()
    with running(app, stop_seconds=0.2) as gateway, gateway.connect() as caller:
        caller.send(request("/wait", {"a": 1}))
        wait_until(lambda: app.inside == 1)
    wait_until(lambda: app.inside == 0)


# --- the server ----------------------------------------------------------------------------------


def test_an_app_that_does_not_start_is_an_error():
    async def app(scope, receive, send) -> None:
        await receive()
        await send({"type": "lifespan.startup.failed", "message": "no"})

    server = in_thread(app, ServerConfig(port=0), has_keys=False)
    with pytest.raises(RuntimeError, match="did not start"), server:
        pass


def test_answers_do_not_wait_for_nagle_s_algorithm():
    with listen(ServerConfig(port=0), has_keys=False) as listening:
        assert listening.proto == socket.IPPROTO_TCP  # Asyncio turns it off for these alone.


def test_ipv6_is_listened_on():
    try:
        listening = listen(ServerConfig(host="::1", port=0), has_keys=False)
    except OSError:
        pytest.skip("this machine has no IPv6")
    with listening:
        assert listening.getsockname()[0] == "::1"
        assert listening.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY)
