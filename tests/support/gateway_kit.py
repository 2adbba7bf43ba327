"""A gateway on a loopback port, and upstreams for it.

It runs in a thread with its own event loop, like `http_server`::

    with OpenAIServer(Answer("quick brown fox")) as upstream:
        with running(config_for(upstream.url, checks=["words<=5"])) as gateway:
            gateway.client().chat.completions.create(model="mine", messages=[...])
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.lowlevel
import httpx2
import openai
from guard_kit import in_thread
from http_server import Answer, OpenAIServer

from mellea_like.backends.function import FunctionBackend
from mellea_like.core.backend import Backend, Request
from mellea_like.gateway.config.gateway_config import GatewayConfig
from mellea_like.gateway.http.app import Gateway, make_app

TOKEN = "a-token-for-tests-0123456789abcdef"


def config_for(
    url: str | None = None,
    *,
    upstream: Mapping[str, Any] | None = None,
    server: Mapping[str, Any] | None = None,
    keys: Mapping[str, Any] | None = None,
    streaming: Mapping[str, Any] | None = None,
    **model: Any,
) -> GatewayConfig:
    """Make a configuration with one upstream, ``main``, and one model, ``mine``.

    The sections have defaults. Without a URL, the upstream is passed as a backend.
    """
    kind = {"kind": "python"} if url is None else {"kind": "openai", "base_url": url, "model": "m"}
    return GatewayConfig.model_validate(
        {
            "upstreams": {"main": {**kind, **(upstream or {})}},
            "models": {"mine": {"upstream": "main", "retries": 0, **model}},
            "server": {"port": 0, "stop_seconds": 2, **(server or {})},
            "streaming": dict(streaming or {}),
            "keys": dict(keys or {}),
        }
    )


class Running:
    """A running gateway; its base URLs are ``root`` and, with ``/v1``, ``url``."""

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port
        self.root = f"http://{host}:{port}"
        self.url = f"{self.root}/v1"
        self._usual = {"base_url": self.url, "api_key": TOKEN, "max_retries": 0, "timeout": 20.0}

    def client(self, **more: Any) -> openai.OpenAI:
        """Make an official client that doesn't retry."""
        # Without certificates, which take 40 ms to load.
        plain = openai.DefaultHttpxClient(verify=False)
        return openai.OpenAI(http_client=plain, **{**self._usual, **more})

    def async_client(self, **more: Any) -> openai.AsyncOpenAI:
        """Make an asynchronous official client that doesn't retry."""
        plain = openai.DefaultAsyncHttpxClient(verify=False)
        return openai.AsyncOpenAI(http_client=plain, **{**self._usual, **more})

    def http(self, **more: Any) -> httpx2.Client:
        """Make a plain HTTP client, whose paths begin at the root."""
        given = {"timeout": 20.0, "trust_env": False, "verify": False, **more}
        return httpx2.Client(base_url=self.root, **given)


@contextmanager
def running(
    config: GatewayConfig, *, backends: Mapping[str, Backend] | None = None, quiet: bool = True
) -> Iterator[Running]:
    """Run a gateway while the block runs; ``quiet``, as the command is, it logs no texts."""
    app = make_app(config, backends=backends)
    with in_thread(app, config.server, has_keys=bool(config.keys), quiet=quiet) as port:
        yield Running(config.server.host, port)


class InTurn(FunctionBackend):
    """An upstream that gives its replies in turn, repeats the last one, and keeps the requests.

    Errors among the replies are raised. The default reply has two words.
    """

    def __init__(self, *replies: object, can_judge: bool = True) -> None:
        self.replies = list(replies or ("one two",))
        self.requests: list[Request] = []
        super().__init__(self._answer, inline=True, can_judge=can_judge)

    def _answer(self, request: Request) -> object:
        self.requests.append(request)
        reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        if isinstance(reply, Exception):
            raise reply
        return reply


def bearer(token: str) -> dict[str, str]:
    """Return the header with a caller's token."""
    return {"authorization": f"Bearer {token}"}


def user(text: str = "Say something.") -> list[dict[str, Any]]:
    """Return a conversation of one message."""
    return [{"role": "user", "content": text}]


# --- without sockets: on both event loops, and in virtual time ----------------------------------


@dataclass
class Answered:
    """An application's answer."""

    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    parts: list[tuple[float, bytes]] = field(default_factory=list)  # When each was sent, and what.
    ended: bool = False
    reads: int = 0  # How many parts of the request's body were read.

    @property
    def body(self) -> bytes:
        """The body so far."""
        return b"".join(part for _, part in self.parts)

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The error object of a refusal."""
        return self.json["error"]

    @property
    def events(self) -> list[Any]:
        """The parsed data of the events; ``[DONE]`` stays a string."""
        lines = self.body.decode().split("\n")
        texts = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
        return [text if text == "[DONE]" else json.loads(text) for text in texts]

    @property
    def text(self) -> str:
        """The text of a stream's first choice."""
        deltas = [
            choice["delta"].get("content") or ""
            for event in self.events
            if event != "[DONE]"
            for choice in event.get("choices", ())
            if choice["index"] == 0
        ]
        return "".join(deltas)


class Caller:
    """Sends requests to an application, whose upstreams are open, without a server."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def ask(
        self,
        path: str = "/v1/chat/completions",
        body: Any = None,
        *,
        method: str = "POST",
        leave: anyio.Event | None = None,
        headers: Mapping[str, str] | None = None,
        parts: tuple[bytes, ...] | None = None,
        pause: float = 0.0,
    ) -> Answered:
        """Send a request, and wait until the application returns or the caller leaves.

        Its body is JSON, or comes in parts, each after a pause.
        """
        unread = list(parts or [b"" if body is None else json.dumps(body).encode()])
        length = str(sum(map(len, unread)))
        fields = {"host": "127.0.0.1", "content-length": length, **(headers or {})}
        if body is not None:
            fields["content-type"] = "application/json"
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [(k.encode(), v.encode()) for k, v in fields.items()],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
            "state": {},
        }
        answered = Answered()

        async def receive() -> dict[str, Any]:
            if unread:
                await anyio.sleep(pause)
                answered.reads += 1
                part = unread.pop(0)
                return {"type": "http.request", "body": part, "more_body": bool(unread)}
            await (anyio.sleep_forever() if leave is None else leave.wait())
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            await anyio.lowlevel.checkpoint()
            if message["type"] == "http.response.start":
                assert answered.status is None
                answered.status = message["status"]
                pairs = [(k.decode("ascii"), v.decode("ascii")) for k, v in message["headers"]]
                answered.headers = dict(pairs)
            else:
                assert not answered.ended
                answered.parts.append((anyio.current_time(), message.get("body", b"")))
                answered.ended = not message.get("more_body", False)

        await self.app(scope, receive, send)
        return answered

    async def chat(
        self,
        text: str = "Say something.",
        leave: anyio.Event | None = None,
        headers: Mapping[str, str] | None = None,
        **fields: Any,
    ) -> Answered:
        """Ask the model ``mine`` for a reply."""
        body = {"model": "mine", "messages": user(text), **fields}
        return await self.ask(body=body, leave=leave, headers=headers)


@asynccontextmanager
async def calling(backend: Backend | None = None, **config: Any) -> AsyncIterator[Caller]:
    """Open a gateway whose upstream is a backend, and call it without a server."""
    given = None if backend is None else {"main": backend}
    gateway = Gateway(config_for(**config), given)
    async with gateway.open():
        yield Caller(gateway)


@asynccontextmanager
async def serving(*answers: Answer, **config: Any) -> AsyncIterator[tuple[Caller, OpenAIServer]]:
    """Open a gateway in front of a server with these answers, as `calling` does."""
    with OpenAIServer(*answers) as upstream:
        async with calling(url=upstream.url, **config) as caller:
            yield caller, upstream
