"""A server of OpenAI's chat protocol that counts: `python benchmarks/_peer_server.py`.

It prints its port. Each answer takes a while and is right by chance, both from a seed, so that all
who ask after the same `GET /begin` meet the same answers in the same order. An answer comes in the
form that was asked for: streamed or whole, as text, as a tool's arguments or in DSPy's headings.
`GET /log` tells when each request began and ended, by the clock `time.monotonic`, which the
machine's processes share, and whether the client left before its end, which ends the work on it.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import time
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qsl

MEDIAN, SPREAD, LONGEST = 0.2, 0.5, 1.0
"""Seconds that an answer takes: log-normal, with an end."""
PASSES = 0.4
"""How often an answer is right."""
CHUNKS = 12
LINES = [{"name": "paper", "price": 12.5}, {"name": "ink", "price": 30.0}]
HEADING = "[[ ## invoice ## ]]"

Json = dict[str, Any]


class Answers:
    """The answers still to come, and the record of those that were asked for."""

    def __init__(self) -> None:
        self.begin({})

    def begin(self, query: dict[str, str]) -> None:
        """Start anew, with `seed=` and `pause=1`, or `pause=0` for answers that take no time."""
        self.random = random.Random(query.get("seed", "0"))
        self.pause = query.get("pause") == "1"
        self.log: list[list[float | bool | None]] = []

    def draw(self) -> tuple[float, float]:
        """Draw the next answer: the seconds that it takes, and its total."""
        taken = min(self.random.lognormvariate(math.log(MEDIAN), SPREAD), LONGEST)
        right = self.random.random() < PASSES
        return taken * self.pause, sum(line["price"] for line in LINES) + (0 if right else 7)


class Connection(asyncio.Protocol):
    """One connection, with one request after the other."""

    transport: asyncio.Transport

    def __init__(self, answers: Answers) -> None:
        self.answers = answers
        self.received = b""
        self.answering: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data
        head, end, body = self.received.partition(b"\r\n\r\n")
        lines = head.split(b"\r\n")
        fields = {name.lower(): value for name, _, value in (x.partition(b":") for x in lines[1:])}
        length = int(fields.get(b"content-length", 0))
        if end and len(body) >= length:
            self.received = body[length:]
            path = lines[0].split()[1].decode()
            if path.endswith("/chat/completions"):
                self.answering = asyncio.create_task(self.answer(json.loads(body[:length])))
            else:
                self.control(path)

    def connection_lost(self, error: Exception | None) -> None:
        if self.answering is not None:
            self.answering.cancel()

    def control(self, path: str) -> None:
        route, _, query = path.partition("?")
        if route == "/begin":
            self.answers.begin(dict(parse_qsl(query)))
        self.send(json.dumps(self.answers.log).encode())

    def send(self, body: bytes, kind: str = "application/json") -> None:
        head = f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
        self.transport.write(head.encode() + body)

    async def answer(self, asked: Json) -> None:
        seconds, total = self.answers.draw()
        record: list[float | bool | None] = [time.monotonic(), None, True]
        self.answers.log.append(record)
        with suppress(asyncio.CancelledError):
            text = json.dumps({"lines": LINES, "total": total})
            if asked.get("stream"):
                await self.stream(asked, seconds, text)
            else:
                if seconds:
                    await asyncio.sleep(seconds)
                self.send(json.dumps(whole(asked, text)).encode())
            record[2] = False
        record[1] = time.monotonic()

    async def stream(self, asked: Json, seconds: float, text: str) -> None:
        """Send an answer bit by bit, the last as late as a whole one would come."""
        fields = b"content-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        self.transport.write(b"HTTP/1.1 200 OK\r\n" + fields)
        began = asyncio.get_running_loop().time()
        size = math.ceil(len(text) / CHUNKS)
        for number in range(CHUNKS):
            if seconds:
                due = began + seconds * (number + 1) / CHUNKS
                await asyncio.sleep(due - asyncio.get_running_loop().time())
            if self.transport.is_closing():
                raise asyncio.CancelledError
            bit = {"role": "assistant", "content": text[number * size : (number + 1) * size]}
            self.event(asked, [{"index": 0, "delta": bit, "finish_reason": None}])
        self.event(asked, [{"index": 0, "delta": {}, "finish_reason": "stop"}])
        self.event(asked, [], last=True)

    def event(self, asked: Json, choices: list[Json], *, last: bool = False) -> None:
        chunk = common(asked, "chat.completion.chunk") | {"choices": choices}
        data = json.dumps(chunk | USAGE if last else chunk)
        body = f"data: {data}\n\n" + "data: [DONE]\n\n" * last
        end = "0\r\n\r\n" * last
        self.transport.write(f"{len(body):x}\r\n{body}\r\n{end}".encode())


USAGE = {"usage": {"prompt_tokens": 60, "completion_tokens": 30, "total_tokens": 90}}


def common(asked: Json, kind: str) -> Json:
    """Return what every answer and every piece of one has."""
    return {"id": "chatcmpl-1", "object": kind, "created": 1760000000, "model": asked["model"]}


def whole(asked: Json, text: str) -> Json:
    """Return an answer in one piece, as a tool's arguments where a tool is offered."""
    message: Json = {"role": "assistant", "content": text}
    if asked.get("tools"):
        function = {"name": asked["tools"][0]["function"]["name"], "arguments": text}
        calls = [{"id": "call_1", "type": "function", "function": function}]
        message = {"role": "assistant", "content": None, "tool_calls": calls}
    elif HEADING in json.dumps(asked["messages"]):
        message["content"] = f"{HEADING}\n{text}\n\n[[ ## completed ## ]]\n"
    choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}
    return common(asked, "chat.completion") | {"choices": [choice]} | USAGE


async def serve() -> None:
    """Serve until the process is ended."""
    answers = Answers()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(answers), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve())
