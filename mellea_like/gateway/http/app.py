"""The gateway as an ASGI application. Its configuration can be replaced while it runs."""

from __future__ import annotations

import logging
import time
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

import anyio

from mellea_like.lazy import needs_extra

with needs_extra("serve", "the gateway needs starlette, uvicorn and more"):
    from starlette.routing import Router

    from mellea_like.gateway.metrics import Metrics

from mellea_like.gateway.chat.caller_checks import Workers
from mellea_like.gateway.config.upstreams import OpenUpstreams
from mellea_like.gateway.current_request import CURRENT
from mellea_like.gateway.http.key_state import KeyState
from mellea_like.gateway.http.serving import Serving
from mellea_like.limits.memory_store import MemoryStore
from mellea_like.runtime.threads import run_in_thread

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping

    from starlette.types import Receive, Scope, Send

    from mellea_like.core.backend import Backend
    from mellea_like.core.generation import Usage
    from mellea_like.core.prices import Price
    from mellea_like.gateway.config.gateway_config import GatewayConfig
    from mellea_like.limits.store import Store

__all__ = ["Gateway", "make_app"]

logger = logging.getLogger("mellea_like.gateway")


def make_app(
    config: GatewayConfig,
    *,
    backends: Mapping[str, Backend] | None = None,
    now: Callable[[], float] = time.time,
) -> Gateway:
    """Make the gateway's application.

    The application's lifespan opens and closes the upstreams. Any ASGI server can run it, on
    asyncio or trio. The server in `mellea_like.gateway.http.server` also has the connection limits
    that a gateway needs.

    Args:
        config: the configuration.
        backends: backends that replace upstreams of the configuration, by name. They stay open.
        now: a function that returns the time in seconds since 1970, for keys' budgets with a
            period.

    Returns:
        The application, an ASGI callable.

    Raises:
        ImportError: an extra is not installed.
        ValueError: ``backends`` has a name that no upstream has, or a key has no token.
    """
    return Gateway(config, backends, now)


class Gateway:
    """The gateway: an ASGI application, and the upstreams behind it.

    Args:
        config: the configuration.
        backends: backends that replace upstreams, by name.
        now: a function that returns the time in seconds since 1970.
        store: the store of the keys' spending; the default is in memory.
        together: whether other processes serve the same configuration with the same store. Rates
            and concurrency are then also counted in the store.

    Raises:
        ValueError: ``backends`` has a name that no upstream has, or a key has no token.
    """

    def __init__(
        self,
        config: GatewayConfig,
        backends: Mapping[str, Backend] | None = None,
        now: Callable[[], float] = time.time,
        *,
        store: Store | None = None,
        together: bool = False,
    ) -> None:
        backends = backends or {}
        unknown = sorted(backends.keys() - config.upstreams.keys())
        if unknown:
            msg = f"the configuration has no upstream named {unknown[0]!r}"
            raise ValueError(msg)
        self._metrics = Metrics()
        self._workers = Workers()
        self._reloading = anyio.Lock()
        kept = MemoryStore() if store is None else store
        shared = kept if together else None
        self._make_key = partial(
            KeyState, spent=kept, together=shared, now=now, changed=self._metrics.show
        )
        self._upstreams = OpenUpstreams(
            backends,
            spent=self._count_spent,
            log_errors=config.server.log_upstream_errors,
            store=shared,
        )
        self.serving = self._make(config)
        self._lifespan = Router(lifespan=lambda _: self.open())

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[None]:
        """Open the upstreams, and close them at the end.

        The application's lifespan also does this, unless it has already been done. If an upstream
        can't be opened, this raises the error itself, whereas a server would only log it.
        """
        if self.serving.ready:
            yield
            return
        if self.serving.config.server.log_upstream_errors:
            what = "server.log_upstream_errors is on: the log may show parts of prompts and replies"
            logger.warning(what)
        async with self._workers, self._upstreams:
            await self._begin(self.serving)
            try:
                yield
            finally:
                self.serving.close()

    async def reload(self, config: GatewayConfig) -> None:
        """Use another configuration from now on.

        Requests under way finish with the old one. Keys that are in both configurations keep their
        spending and their requests under way. Upstreams that don't change stay open. The section
        ``server`` and backends that were passed in don't change.

        This returns when the old configuration's last request has ended and the upstreams that
        only the old configuration used are closed.

        Args:
            config: the new configuration.

        Raises:
            ValueError: a key has no token. The old configuration stays in use.
            Exception: an upstream can't be opened. The old configuration stays in use.
        """
        async with self._reloading:
            old = self.serving
            new = self._make(config.model_copy(update={"server": old.config.server}))
            await self._begin(new)
            new.guard.take_over(old.guard)
            self.serving = new
        logger.info("the configuration was reloaded; its models: %s", ", ".join(config.models))
        await old.wait_ended()
        old.close()
        await self._upstreams.release(old.used)

    def _make(self, config: GatewayConfig) -> Serving:
        self._metrics.models.update(config.models)
        return Serving(config, self._make_key, self._metrics, self._workers)

    async def _begin(self, serving: Serving) -> None:
        serving.used = await self._upstreams.open(serving.config.upstreams)
        try:
            await run_in_thread(serving.begin)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self._upstreams.release(serving.used)
            raise

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request (ASGI)."""
        if scope["type"] == "lifespan":
            await self._lifespan(scope, receive, send)
        else:
            await self.serving.answer(scope, receive, send)

    def _count_spent(self, usage: Usage, price: Price | None) -> None:
        current = CURRENT.get()
        current.tokens += usage.total_tokens
        self._metrics.spent(current.model, current.key, usage, price)
