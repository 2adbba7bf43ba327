"""An MCP server whose tool samples three times, and a person at the client. Also run as a program:

``python mcp_kit.py PATH BACKEND`` serves on stdin and stdout, on asyncio or trio, and writes what
became of each request to the path.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
import uvicorn
from joint_kit import echo, text_of
from mcp.server.mcpserver import Context, MCPServer

from mellea_like.backends.mcp import MCPSamplingBackend, SamplingRounds
from mellea_like.coalescing import SamplingCoordinator
from mellea_like.core.backend import Request
from mellea_like.core.conversation import Message

THREE = ("one", "two", "three")


class Books:
    """What became of the requests, and whether the tool's work is at an end."""

    def __init__(self, path: Path | None = None) -> None:
        self.statuses: list[str] = []
        self.ended = threading.Event()
        self.path = path

    def record(self, record: Any) -> None:
        if record.status != "asked":
            self.statuses.append(str(record.status))

    async def wait_for_the_end(self) -> None:
        """Wait until the tool's work is at an end, in whatever thread."""
        assert await anyio.to_thread.run_sync(self.ended.wait, 10)

    def end(self) -> None:
        self.ended.set()
        if self.path is not None:
            self.path.write_text(json.dumps(self.statuses), encoding="utf-8")


async def answers(
    backend: Any, books: Books, texts: Sequence[str] = THREE, *, again: bool = False
) -> str:
    """Sample several times through a coordinator; give what each request got."""
    got: dict[str, str] = {}

    async def one(coordinator: SamplingCoordinator, text: str) -> None:
        try:
            reply = await coordinator.generate(Request((Message("user", text),)))
        except Exception as exc:  # noqa: BLE001 (named in the report)
            got[text] = type(exc).__name__
        else:
            got[text] = f"{reply.text} ({reply.finish_reason})"

    try:
        async with (
            SamplingCoordinator(
                backend,
                window=5.0,
                max_batch=max(3, len(texts)),
                audit=books.record,
                retry_missing=again,
            ) as shared,
            anyio.create_task_group() as tasks,
        ):
            for text in texts:
                tasks.start_soon(one, shared, text)
    finally:
        books.end()
    return json.dumps(got)


def make_server(
    books: Books,
    *,
    texts: Sequence[str] = THREE,
    patience: float = 600.0,
    again: bool = False,
    **options: Any,
) -> MCPServer:
    """Make the server; ``again`` asks again for what is missing, options are the backend's."""

    @asynccontextmanager
    async def lifespan(server: Any) -> AsyncIterator[SamplingRounds]:
        async with SamplingRounds(patience=patience) as rounds:
            yield rounds

    server = MCPServer("kit", lifespan=lifespan)

    @server.tool()
    async def three(context: Context) -> str | types.InputRequiredResult:
        backend = MCPSamplingBackend(context, **options)
        rounds = context.request_context.lifespan_context
        work = partial(answers, books=books, texts=texts, again=again)
        return await rounds.run(backend, context, work)

    return server


@contextmanager
def over_http(books: Books, *, json_response: bool = False, **more: Any) -> Iterator[str]:
    """Serve streamable HTTP on the loopback, in a thread on asyncio; give the URL."""
    servers: list[uvicorn.Server] = []
    made = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            try:
                # Made where it runs: what is made in an event loop belongs to that.
                app = make_server(books, **more).streamable_http_app(json_response=json_response)
                config = uvicorn.Config(
                    app, log_config=None, ws="none", timeout_graceful_shutdown=1
                )
                servers.append(uvicorn.Server(config))
                made.set()
                servers[0].run([listener])
            finally:
                made.set()
                listener.close()  # So that a client does not wait for what is not there.

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        made.wait()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
        finally:
            servers[0].should_exit = True
            thread.join(10)
            assert not thread.is_alive()


class Person:
    """Approves requests for sampling, and keeps them; ``reply`` makes the answer."""

    def __init__(self, reply: Callable[[list[dict[str, Any]]], object] | None = None) -> None:
        self.prompts: list[types.CreateMessageRequestParams] = []
        self.asked = anyio.Event()
        self.reply = reply or everything

    async def __call__(self, context: Any, params: types.CreateMessageRequestParams) -> Any:
        self.prompts.append(params)
        self.asked.set()
        content: Any = params.messages[-1].content
        if not content.text.startswith("{"):
            return sampled(f"{content.text}, alone")
        answer = self.reply(json.loads(content.text)["tasks"])
        if isinstance(answer, types.ErrorData):
            return answer
        if answer is None:
            await anyio.sleep_forever()
        return sampled(str(answer))


def sampled(text: str, **more: Any) -> types.CreateMessageResult:
    return types.CreateMessageResult(
        **{
            "role": "assistant",
            "content": types.TextContent(type="text", text=text),
            "model": "a-model",
            "stop_reason": "endTurn",
            **more,
        }
    )


def everything(tasks: list[dict[str, Any]]) -> str:
    return json.dumps(echo(tasks))


def all_but_the_second(tasks: list[dict[str, Any]]) -> str:
    return everything([task for task in tasks if text_of(task) != "two"])


def refuse(tasks: list[dict[str, Any]]) -> types.ErrorData:
    return types.ErrorData(code=-1, message="User rejected sampling request")


def never(tasks: list[dict[str, Any]]) -> None:
    return None


def answers_of(result: types.CallToolResult) -> dict[str, str]:
    """Return what the tool says that each request got."""
    assert not result.is_error, result
    (block,) = result.content
    assert isinstance(block, types.TextContent)
    return json.loads(block.text)


if __name__ == "__main__":
    anyio.run(make_server(Books(Path(sys.argv[1]))).run_stdio_async, backend=sys.argv[2])
