"""Asks a real server for an answer of 128 MiB, and prints by how many MiB the process grew::

    python big_reply.py asyncio text

The first answer is a usual one, so that what is loaded once does not count.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from pathlib import Path

import anyio
from http_server import Answer, OpenAIServer, Send

from mellea_like.backends.openai import OpenAIBackend
from mellea_like.core.backend import Request
from mellea_like.core.conversation import Message
from mellea_like.errors import BackendError

SIZE = 2**27
HEAD = b"HTTP/1.1 %d X\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"


def event(**delta: str) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": None}
    return f"data: {json.dumps({'choices': [choice]})}\n\n".encode()


FLOODS = {
    "text": (200, event(content="word " * 2000)),
    "emoji": (200, event(content="\U0001f600" * 20_000)),
    "thoughts": (200, event(reasoning_content="hm " * 4000)),
    "comments": (200, b": still working" + b"." * 60_000 + b"\n"),
    "one line": (200, b"x" * 2**16),
    "error": (500, b"<p>sorry</p>" * 5000),
}


def flood(kind: str) -> Answer:
    status, piece = FLOODS[kind]

    async def write(send: Send) -> None:
        await send.raw(HEAD % status)
        for _ in range(SIZE // len(piece)):
            await send.raw(piece)
            await asyncio.sleep(0)

    return Answer(write=write)


def peak() -> int:
    """The most memory that this process ever held, in KiB."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(re.search(r"VmHWM:\s+(\d+)", status)[1])


async def main(kind: str) -> None:
    request = Request((Message("user", "Say something."),))
    with OpenAIServer(Answer(), flood(kind)) as server:
        backend = OpenAIBackend("m", base_url=server.url)
        await backend.generate(request)
        before = peak()
        try:
            await backend.generate(request)
        except BackendError as exc:
            said = f"{type(exc).__name__}: {exc}"
        else:
            said = "a reply"
        grown = (peak() - before) / 1024
        await server.wait_until(lambda: server.in_flight == 0)
        await backend.aclose()
    sys.stdout.write(json.dumps({"grown": grown, "said": said}))


if __name__ == "__main__":
    anyio.run(main, sys.argv[2], backend=sys.argv[1])
