"""What a request costs a client: `OpenAIBackend` beside the SDK's stream and the bare HTTP library.

A server in a process of its own sends a reply of 20 chunks, each as it would come from OpenAI, one
right after the other. The clients ask it in turn, on connections that stay open, and each reads the
text and the usage out of the chunks. What counts is the CPU time of this process.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

CHUNKS = 20
ROUNDS = 7
REQUESTS = 64
TEXT = "word " * CHUNKS
PROMPT = "Say something."
BODY = {
    "model": "bench",
    "messages": [{"role": "user", "content": PROMPT}],
    "stream": True,
    "stream_options": {"include_usage": True},
}
HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)


def serve() -> None:
    """Answer each request with the same reply; print the port that it is served at."""
    common = {
        "id": "chatcmpl-9x8y7z6w5v4u",
        "object": "chat.completion.chunk",
        "created": 1760000000,
        "model": "bench",
        "system_fingerprint": "fp_44709d6fcb",
    }
    deltas: list[tuple[dict[str, str], str | None]] = [({"content": "word "}, None)] * CHUNKS
    chunks: list[dict[str, Any]] = []
    for delta, reason in [*deltas, ({}, "stop")]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        chunks.append({**common, "choices": [choice], "usage": None})
    usage = {"prompt_tokens": 9, "completion_tokens": CHUNKS, "total_tokens": 9 + CHUNKS}
    chunks.append({**common, "choices": [], "usage": usage})
    events = [f"data: {data}\n\n".encode() for data in (*map(json.dumps, chunks), "[DONE]")]
    parts = [b"%x\r\n%b\r\n" % (len(event), event) for event in events]

    class Connection(asyncio.Protocol):
        transport: asyncio.Transport
        received = b""

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            assert isinstance(transport, asyncio.Transport)
            self.transport = transport

        def data_received(self, data: bytes) -> None:
            self.received += data
            head, _, body = self.received.partition(b"\r\n\r\n")
            lines = head.lower().split(b"\r\n")
            lengths = [int(line[15:]) for line in lines if line.startswith(b"content-length:")]
            if lengths and len(body) >= lengths[0]:
                self.received = body[lengths[0] :]
                self.answering = asyncio.create_task(self.answer())

        async def answer(self) -> None:
            self.transport.write(HEAD)
            for part in parts:
                self.transport.write(part)
                await asyncio.sleep(0)
            self.transport.write(b"0\r\n\r\n")

    async def run() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(Connection, "127.0.0.1", 0)
        print(server.sockets[0].getsockname()[1], flush=True)
        await server.serve_forever()

    asyncio.run(run())


def measure() -> dict[str, float]:
    """Ask with each in turn.

    Returns:
        The CPU time of a request by each, in ms: the least of the rounds. A name ends with how many
        requests run at a time.
    """
    command = [sys.executable, __file__, "serve"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            return asyncio.run(_ask(f"http://127.0.0.1:{int(server.stdout.readline())}/v1"))
        finally:
            server.terminate()


async def _ask(url: str) -> dict[str, float]:
    import httpx2
    import openai

    from mellea_like.backends import OpenAIBackend

    backend = OpenAIBackend("bench", base_url=url, api_key="none", keep_alive=True)
    client = openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0)
    http = httpx2.AsyncClient(base_url=url)
    kinds: dict[str, Callable[[], Awaitable[str]]] = {
        "OpenAIBackend": partial(_whole, backend),
        "OpenAIBackend, streamed": partial(_streamed, backend),
        "the SDK's stream": partial(_by_the_sdk, client),
        "bare httpx2": partial(_bare, http),
    }
    taken: dict[str, list[float]] = {}
    for round_ in range(ROUNDS + 1):
        for (kind, ask), at_a_time in itertools.product(kinds.items(), (1, 32)):
            begun = time.process_time()
            for _ in range(REQUESTS // at_a_time):
                texts = await asyncio.gather(*(ask() for _ in range(at_a_time)))
                if set(texts) != {TEXT}:
                    sys.exit(f"{kind} read {texts}")
            spent = (time.process_time() - begun) / REQUESTS * 1000
            if round_:  # The first is to warm up.
                taken.setdefault(f"{kind}, {at_a_time}", []).append(spent)
    await backend.aclose()
    await client.close()
    await http.aclose()
    return {name: min(times) for name, times in taken.items()}


async def _whole(backend: Any) -> str:
    from mellea_like import Message, Request

    text: str = (await backend.generate(Request((Message("user", PROMPT),)))).text
    return text


async def _streamed(backend: Any) -> str:
    from mellea_like import Message, Request

    async with backend.stream(Request((Message("user", PROMPT),))) as reply:
        return "".join([piece async for piece in reply if isinstance(piece, str)])


async def _by_the_sdk(client: Any) -> str:
    texts: list[str] = []
    async with await client.chat.completions.create(**BODY) as stream:
        async for chunk in stream:
            texts += [choice.delta.content or "" for choice in chunk.choices]
    return "".join(texts)


async def _bare(http: Any) -> str:
    texts: list[str] = []
    async with http.stream("POST", "/chat/completions", json=BODY) as response:
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                chunk = json.loads(line[6:])
                texts += [choice["delta"].get("content") or "" for choice in chunk["choices"]]
    return "".join(texts)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        serve()
    else:
        print(measure())
