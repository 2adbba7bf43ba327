"""Work for a client ends when the client leaves; what it raises comes out as it is."""

from __future__ import annotations

import gc
import socket
import threading
import weakref
from contextlib import contextmanager

import anyio
import pytest
import uvicorn
from http_server import Answer, OpenAIServer
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from mellea_like import RejectionSamplingStrategy
from mellea_like.backends.openai import OpenAIBackend
from mellea_like.errors import ClientDisconnected
from mellea_like.requirements.checks import contains
from mellea_like.web import while_here

pytestmark = pytest.mark.anyio


def caller(*messages: str, leaves_after: float = float("inf")):
    """The ``receive`` of a caller who sends messages and then leaves."""
    left = list(messages)

    async def receive() -> dict[str, str]:
        if left:
            return {"type": left.pop(0)}
        await anyio.sleep(leaves_after)
        return {"type": "http.disconnect"}

    return receive


async def test_what_the_work_returns_comes_out(virtual_clock):
    async def work() -> int:
        await anyio.sleep(3)
        return 7

    assert await while_here(caller(), work) == 7
    assert virtual_clock.now == 3


async def test_only_leaving_ends_the_work(virtual_clock):
    receive = caller("http.request", "http.request", leaves_after=5)
    with pytest.raises(ClientDisconnected):
        await while_here(receive, anyio.sleep_forever)
    assert virtual_clock.now == 5


async def test_work_that_is_done_leaves_nothing_to_the_collector():
    async def work() -> None:
        await anyio.lowlevel.checkpoint()

    gc.collect()
    gc.disable()
    try:
        receive = caller()
        await while_here(receive, work)
        kept = weakref.ref(receive)
        del receive
        await anyio.lowlevel.checkpoint()
        assert kept() is None
    finally:
        gc.enable()


async def test_an_error_comes_out_as_it_is_and_in_no_group():
    async def work() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError) as caught:
        await while_here(caller(), work)
    assert caught.value.__context__ is None


@pytest.mark.parametrize("seconds", [0, 3])
@pytest.mark.parametrize("ends", ["when it is cancelled", "with an error of its own"])
async def test_an_error_of_receive_comes_out_as_it_is_and_in_no_group(virtual_clock, seconds, ends):
    lost = OSError("the server's connection is broken")

    async def receive():
        await anyio.sleep(seconds)
        raise lost

    async def work() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            if ends == "with an error of its own":
                raise KeyError("x")

    with pytest.raises(OSError, match="connection is broken") as caught:
        await while_here(receive, work)
    assert caught.value is lost
    assert virtual_clock.now == seconds


async def test_an_outer_cancellation_goes_through(virtual_clock):
    with anyio.move_on_after(2) as scope:
        await while_here(caller(), anyio.sleep_forever)
    assert scope.cancelled_caught
    assert virtual_clock.now == 2


async def test_work_that_is_done_when_the_caller_leaves_is_done(virtual_clock):
    async def work() -> str:
        with anyio.CancelScope(shield=True):
            await anyio.sleep(3)
        return "done"

    assert await while_here(caller(leaves_after=1), work) == "done"


@contextmanager
def served(app):
    """Serve an application with uvicorn, in a thread; give its port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off"))
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join(10)
            assert not thread.is_alive()


@pytest.mark.alone
async def test_a_client_that_leaves_closes_all_four_upstream_requests_within_100_ms():
    answers = []

    async def write(request):
        strategy = RejectionSamplingStrategy(backend, concurrency_budget=4)
        prompt = (await request.body()).decode()
        result = await while_here(
            request.receive, lambda: strategy.sample(prompt, [contains("never")])
        )
        return PlainTextResponse(result.unwrap())

    async def gone(request, error):
        answers.append(str(error))
        return Response(status_code=499)

    app = Starlette(
        routes=[Route("/", write, methods=["POST"])], exception_handlers={ClientDisconnected: gone}
    )
    with OpenAIServer(Answer("slow " * 40, seconds=20.0)) as upstream, served(app) as port:
        backend = OpenAIBackend("m", base_url=upstream.url)
        client = await anyio.connect_tcp("127.0.0.1", port)
        await client.send(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\ntext")
        await upstream.wait_until(lambda: upstream.in_flight == 4, 20)
        await client.aclose()
        await upstream.wait_until(lambda: upstream.disconnected == 4, 0.1)
        assert upstream.started == 4
    assert answers == ["the client closed the connection before the response was ready"]
