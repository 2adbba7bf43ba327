"""A small real HTTP server on the loopback that speaks OpenAI's streaming chat protocol.

It runs in a thread with an event loop of its own, so that it works beside asyncio and trio tests::

    with OpenAIServer(Answer("quick brown fox", seconds=2.0)) as server:
        backend = OpenAIBackend("test", base_url=server.url)
        ...
    assert server.disconnected == 3

Answers are given out in turn, the last one again and again; or a function ``(number, body) ->
Answer`` chooses. Counters may be read from any thread.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Self

import anyio

from mellea_like.backends.openai import OpenAIBackend


@dataclass(frozen=True)
class Answer:
    """How the server answers one chat request."""

    text: str = "one two three four"  # Sent word by word.
    seconds: float = 0.0  # How long the reply takes, spread evenly over its words.
    wait: float = 0.0  # Seconds before the headers are sent.
    until: Callable[[], bool] = field(default=lambda: True, repr=False)  # The headers wait for it.
    usage: tuple[int, int] | None = (7, 4)  # Tokens of the prompt and the reply, in the last chunk.
    finish_reason: str | None = (
        "stop"  # In the chunk after the last word; None sends no such chunk.
    )
    done: bool = True  # Whether ``[DONE]`` is sent.
    linger: float = 0.0  # Seconds between the last event and the end of the body.
    cut_after: int | None = None  # Close the connection after this many words.
    hang_after: int | None = None  # Send nothing more after this many words, and stay connected.
    status: int = 200  # Any other is sent with ``body``.
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None  # The whole body in place of the reply.
    content_type: str | None = None
    events: tuple[str, ...] | None = None  # Raw data of the events in place of the words.
    model: str | None = None  # In the chunks; None echoes the request's.
    write: Callable[[Send], Awaitable[None]] | None = None  # Writes the whole answer itself.
    reasoning: str | None = None  # Sent before the reply.

    @classmethod
    def error(
        cls, status: int, message: str = "no", *, code: str | None = None, **headers: str
    ) -> Answer:
        """An error in OpenAI's form; header names are written with underscores."""
        error = {"message": message, "type": "error", "param": None, "code": code}
        return cls(
            status=status,
            body=json.dumps({"error": error}).encode(),
            headers={name.replace("_", "-"): value for name, value in headers.items()},
        )


Choose = Callable[[int, dict[str, Any]], Answer]


class OpenAIServer:
    """The server; enter it with ``with``.

    Requests are chat requests: ``finished`` ones were answered to the end, ``disconnected`` ones
    left before that. Of connections, it counts those that are open now and those ever accepted.
    """

    def __init__(
        self,
        *answers: Answer,
        choose: Choose | None = None,
        models: tuple[str, ...] = ("test",),
        model_list: Answer | None = None,
    ) -> None:
        self._answers = answers or (Answer(),)
        self._choose = choose or self._in_turn
        self._models = models
        self._model_list = model_list
        self.url = ""
        self.started = 0
        self.finished = 0
        self.disconnected = 0
        self.connections = 0
        self.accepted = 0
        self.in_flight = 0
        self.max_in_flight = 0
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.model_lists = 0
        self.closing = False
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="openai test server", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(10), "the test server did not start"
        return self

    def __exit__(self, *exc: object) -> None:
        assert self._loop is not None
        assert self._stop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)
        assert not self._thread.is_alive(), "the test server did not stop"

    async def wait_until(self, condition: Callable[[], bool], seconds: float = 20.0) -> float:
        """Wait until a condition holds; return how long it took. Fails when the time is up."""
        begun = time.monotonic()
        while not condition():
            assert time.monotonic() - begun < seconds, f"not within {seconds} s: {self}"
            await anyio.sleep(0.002)
        return time.monotonic() - begun

    def __repr__(self) -> str:
        return (
            f"<OpenAIServer started={self.started} finished={self.finished}"
            f" disconnected={self.disconnected} connections={self.connections}>"
        )

    def _in_turn(self, number: int, body: dict[str, Any]) -> Answer:
        return self._answers[min(number, len(self._answers) - 1)]

    def _run(self) -> None:
        with asyncio.Runner() as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        open_connections: set[_Connection] = set()
        server = await self._loop.create_server(
            lambda: _Connection(self, open_connections), "127.0.0.1", 0, backlog=256
        )
        host, port = server.sockets[0].getsockname()
        self.url = f"http://{host}:{port}/v1"
        self._ready.set()
        await self._stop.wait()
        self.closing = True
        # A closed server has no place for connections that it accepted just before: they come
        # first, each a task of the event loop's until it is made.
        self._loop.remove_reader(server.sockets[0].fileno())
        tasks = [c.task for c in open_connections if c.task is not None]
        for connection in list(open_connections):
            connection.abort()
        await asyncio.gather(*tasks, return_exceptions=True)
        while open_connections or len(asyncio.all_tasks()) > 1:  # noqa: ASYNC110 (a few turns)
            await asyncio.sleep(0)
        server.close()
        await asyncio.sleep(0)

    async def answer(self, method: str, path: str, body: bytes, send: Send) -> bool:
        """Answer one request; tell whether the connection may stay open."""
        if method == "GET" and path.endswith("/models"):
            self.model_lists += 1
            if self._model_list is not None:
                return send.whole(self._model_list.status, self._model_list.body or b"")
            models = [{"id": name, "object": "model"} for name in self._models]
            return send.whole(200, json.dumps({"object": "list", "data": models}).encode())
        where = path.partition("?")[0]
        if method != "POST" or not where.endswith(("/chat/completions", "/messages", "/responses")):
            return send.whole(404, b'{"error": {"message": "no such path"}}')
        self.paths.append(path)
        request = json.loads(body)
        number = self.started
        self.started += 1
        self.requests.append(request)
        answer = self._choose(number, request)
        self.in_flight += 1
        self.max_in_flight = max(self.max_in_flight, self.in_flight)
        try:
            send.responses = where.endswith("/responses")
            stay = await self._chat(answer, request, send)
        except asyncio.CancelledError:
            self.disconnected += 1
            raise
        finally:
            self.in_flight -= 1
        self.finished += 1
        return stay

    async def _chat(  # noqa: C901 (one step of the script after the other)
        self, answer: Answer, request: dict[str, Any], send: Send
    ) -> bool:
        await asyncio.sleep(answer.wait)
        while not answer.until():  # noqa: ASYNC110 (another thread may make it true)
            await asyncio.sleep(0.002)
        if answer.write is not None:
            await answer.write(send)
            return False
        if answer.body is not None or answer.status != 200:
            kind = answer.content_type or "application/json"
            return send.whole(answer.status, answer.body or b"", kind, answer.headers)
        send.head(200, answer.content_type or "text/event-stream", answer.headers)
        parts = response_parts if send.responses else chat_parts
        before, words, after = parts(answer.model or request["model"], answer)
        if answer.events is not None:
            before, words = list(answer.events), []
            after = [] if send.responses else after
        for data in before:
            send.event(data)
        for number, data in enumerate(words):
            if number == answer.cut_after:
                return False
            if number == answer.hang_after:
                await asyncio.sleep(3600)
            await asyncio.sleep(answer.seconds / len(words))
            send.event(data)
        if words and answer.cut_after is not None:
            return False
        for data in after:
            send.event(data)
        await asyncio.sleep(answer.linger)
        return send.end()


Parts = tuple[list[str], list[str], list[str]]
"""The events of a reply before its words, one for each word, and after them."""


def chat_parts(model: str, answer: Answer) -> Parts:
    """The events of a chat reply."""

    def chunk(delta: dict[str, Any], finish_reason: str | None = None) -> str:
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
        return json.dumps({"id": "1", "model": model, "choices": [choice]})

    words = [f"{word} " for word in answer.text.split(" ")]
    words[-1] = words[-1][:-1]
    after = [] if answer.finish_reason is None else [chunk({}, answer.finish_reason)]
    if answer.usage is not None:
        prompt, completion = answer.usage
        usage = {"prompt_tokens": prompt, "completion_tokens": completion}
        usage["total_tokens"] = prompt + completion
        after.append(json.dumps({"model": model, "choices": [], "usage": usage}))
    thoughts = [] if answer.reasoning is None else [chunk({"reasoning_content": answer.reasoning})]
    done = ["[DONE]"] if answer.done else []
    return thoughts, [chunk({"content": word}) for word in words], after + done


def response_parts(model: str, answer: Answer) -> Parts:
    """The events of a response of the Responses API."""
    response: dict[str, Any] = {"id": "resp_1", "object": "response", "created_at": 1.0}
    response |= {"model": model, "output": [], "tools": [], "tool_choice": "auto"}
    response |= {"parallel_tool_calls": True, "status": "in_progress"}
    numbers = itertools.count(1)

    def event(kind: str, **fields: Any) -> str:
        return json.dumps({"type": f"response.{kind}", "sequence_number": next(numbers), **fields})

    before = [event("created", response=response)]
    where = {"item_id": "msg_1", "output_index": 0, "content_index": 0, "logprobs": []}
    words = [
        event("output_text.delta", **where, delta=f" {word}" if n else word)
        for n, word in enumerate(answer.text.split(" "))
    ]
    content = {"type": "output_text", "text": answer.text, "annotations": [], "logprobs": []}
    item: dict[str, Any] = {"id": "msg_1", "type": "message", "role": "assistant"}
    item |= {"status": "completed", "content": [content]}
    if answer.usage is not None:
        sent, received = answer.usage
        response["usage"] = {
            "input_tokens": sent,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": received,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": sent + received,
        }
    done = {**response, "output": [item], "status": "completed"}
    ended = event("output_item.done", output_index=0, item=item)
    return before, words, [ended, event("completed", response=done)]


class Send:
    """Writes an HTTP answer."""

    responses = False
    """Whether the Responses API is asked."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport

    async def raw(self, data: bytes) -> None:
        """Any bytes; waits until the client has taken most of what came before."""
        self._transport.write(data)
        while self._transport.get_write_buffer_size() > 2**18:  # noqa: ASYNC110 (bytes, not events)
            await asyncio.sleep(0.0005)

    def whole(
        self,
        status: int,
        body: bytes,
        content_type: str = "application/json",
        headers: Mapping[str, str] | None = None,
    ) -> bool:
        """A whole answer."""
        fields = {"content-type": content_type, "content-length": str(len(body)), **(headers or {})}
        self._head(status, fields)
        self._transport.write(body)
        return True

    def head(self, status: int, content_type: str, headers: Mapping[str, str]) -> None:
        """The head of a streamed answer."""
        self._head(
            status, {"content-type": content_type, "transfer-encoding": "chunked", **headers}
        )

    def event(self, data: str) -> None:
        """One event."""
        part = f"data: {data}\n\n".encode("utf-8", "surrogateescape")
        self._transport.write(b"%x\r\n%b\r\n" % (len(part), part))

    def end(self) -> bool:
        """The end of a streamed answer."""
        self._transport.write(b"0\r\n\r\n")
        return True

    def _head(self, status: int, fields: Mapping[str, str]) -> None:
        lines = [f"HTTP/1.1 {status} X", *(f"{name}: {value}" for name, value in fields.items())]
        self._transport.write("\r\n".join([*lines, "", ""]).encode())


class _Connection(asyncio.Protocol):
    """One connection, a request at a time; it notices at once that the client is gone."""

    def __init__(self, server: OpenAIServer, connections: set[_Connection]) -> None:
        self.server = server
        self.connections = connections
        self.buffer = b""
        self.transport: asyncio.Transport | None = None
        self.task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        if self.server.closing:  # Accepted just before.
            transport.abort()
        self.connections.add(self)
        self.server.connections += 1
        self.server.accepted += 1

    def connection_lost(self, exc: Exception | None) -> None:
        self.connections.discard(self)
        self.server.connections -= 1
        if self.task is not None:
            self.task.cancel()

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        self.next_request()

    def next_request(self) -> None:
        if self.task is not None and not self.task.done():
            return
        head, separator, rest = self.buffer.partition(b"\r\n\r\n")
        if not separator:
            return
        first, *lines = head.decode("latin-1").split("\r\n")
        fields = {
            name.lower(): value.strip()
            for name, _, value in (line.partition(":") for line in lines)
        }
        length = int(fields.get("content-length", "0"))
        if len(rest) < length:
            return
        self.buffer = rest[length:]
        method, path, _ = first.split(" ")
        if method == "POST":
            self.server.headers.append(fields)
        self.task = asyncio.get_running_loop().create_task(self.run(method, path, rest[:length]))

    async def run(self, method: str, path: str, body: bytes) -> None:
        assert self.transport is not None
        stay = await self.server.answer(method, path, body, Send(self.transport))
        self.task = None
        if stay:
            self.next_request()
        else:
            self.transport.close()


@asynccontextmanager
async def serving(
    *answers: Answer, choose: Choose | None = None, **arguments: Any
) -> AsyncGenerator[tuple[OpenAIServer, OpenAIBackend]]:
    """Run a server, and a backend of it that is closed at the end."""
    with OpenAIServer(*answers, choose=choose) as server:
        backend = OpenAIBackend("m", base_url=server.url, **arguments)
        yield server, backend
        await backend.aclose()
