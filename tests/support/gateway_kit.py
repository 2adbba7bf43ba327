"""A gateway on a loopback port, and upstreams for it.

It runs in a thread with an event loop of its own, as `http_server` does::

    with OpenAIServer(Answer("quick brown fox")) as upstream:
        with running(config_for(upstream.url, checks=["words<=5"])) as gateway:
            gateway.client().chat.completions.create(model="mine", messages=[...])
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import anyio
import httpx2
import openai

from mellea_like.core.backend import Backend
from mellea_like.gateway.app import make_app
from mellea_like.gateway.config import GatewayConfig
from mellea_like.gateway.server import listen, serve

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
    """A configuration with one upstream, ``main``, and one model, ``mine``.

    Args:
        url: an OpenAI-compatible upstream; None for one that is handed over as a backend.
        upstream: more of the upstream's section.
        server: the section of that name; the port is a free one.
        keys: the section of that name.
        streaming: the section of that name.
        **model: the model's section.
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
    """A gateway that runs.

    Attributes:
        host: its address.
        port: its port.
        url: its base URL, with ``/v1``.
        root: the same without.
    """

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port
        self.root = f"http://{host}:{port}"
        self.url = f"{self.root}/v1"

    def client(self, **more: Any) -> openai.OpenAI:
        """The official client, which tries nothing again."""
        given = {"api_key": TOKEN, "max_retries": 0, "timeout": 20.0, **more}
        return openai.OpenAI(base_url=self.url, **given)

    def async_client(self, **more: Any) -> openai.AsyncOpenAI:
        """The same for event loops."""
        given = {"api_key": TOKEN, "max_retries": 0, "timeout": 20.0, **more}
        return openai.AsyncOpenAI(base_url=self.url, **given)

    def http(self, **more: Any) -> httpx2.Client:
        """A plain HTTP client; its paths begin at the root."""
        return httpx2.Client(base_url=self.root, timeout=20.0, trust_env=False, **more)


@contextmanager
def running(
    config: GatewayConfig, *, backends: Mapping[str, Backend] | None = None
) -> Iterator[Running]:
    """Run a gateway while the block runs.

    Args:
        config: its configuration.
        backends: what stands for its upstreams.
    """
    listening = listen(config.server, has_keys=bool(config.keys))
    host, port = listening.getsockname()[:2]
    ready = threading.Event()
    loops: list[tuple[asyncio.AbstractEventLoop, anyio.Event]] = []
    failures: list[BaseException] = []

    async def main() -> None:
        stop = anyio.Event()
        loops.append((asyncio.get_running_loop(), stop))
        app = make_app(config, backends=backends)
        await serve(app, config.server, listening, on_ready=ready.set, stop=stop)

    def run() -> None:
        try:
            anyio.run(main)
        except BaseException as exc:
            failures.append(exc)
        finally:
            ready.set()

    thread = threading.Thread(target=run, name="gateway under test", daemon=True)
    thread.start()
    assert ready.wait(20), "the gateway did not start"
    if failures:
        raise failures[0]
    try:
        yield Running(host, port)
    finally:
        loop, stop = loops[0]
        if thread.is_alive():
            loop.call_soon_threadsafe(stop.set)
        thread.join(20)
        assert not thread.is_alive(), "the gateway did not stop"
    if failures:
        raise failures[0]


def user(text: str = "Say something.") -> list[dict[str, Any]]:
    """A conversation of one message."""
    return [{"role": "user", "content": text}]
