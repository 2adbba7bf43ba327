"""The gateway as an ASGI application."""

from __future__ import annotations

import logging
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

try:
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route, Router
except ImportError as exc:  # pragma: no cover
    msg = "the gateway needs starlette, uvicorn and more: pip install 'mellea-like[serve]'"
    raise ImportError(msg) from exc

from mellea_like.gateway.chat.caller_checks import Workers
from mellea_like.gateway.chat.completions import ChatCompletions
from mellea_like.gateway.chat.endpoint import unknown_model
from mellea_like.gateway.chat.responses import Responses
from mellea_like.gateway.chat.served_model import ServedModel, warm_up
from mellea_like.gateway.config.gateway_config import ANONYMOUS
from mellea_like.gateway.config.tokens import METRICS_KEY
from mellea_like.gateway.config.upstreams import open_upstreams
from mellea_like.gateway.current_request import CURRENT
from mellea_like.gateway.http.guard import Guard
from mellea_like.gateway.http.metrics import Metrics
from mellea_like.runtime.threads import run_in_thread

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping

    from starlette.requests import Request

    from mellea_like.core.backend import Backend
    from mellea_like.core.generation import Usage
    from mellea_like.core.prices import Price
    from mellea_like.gateway.config.gateway_config import GatewayConfig
    from mellea_like.gateway.config.upstreams import Upstream

__all__ = ["Gateway", "make_app"]

logger = logging.getLogger("mellea_like.gateway")


def make_app(
    config: GatewayConfig,
    *,
    backends: Mapping[str, Backend] | None = None,
    now: Callable[[], float] = time.time,
) -> Guard:
    """Make the gateway's application.

    Its lifespan opens the upstreams and closes them. It runs on asyncio and on trio, under any ASGI
    server; `mellea_like.gateway.http.server` has one with the limits on connections that a gateway
    wants.

    Args:
        config: the configuration.
        backends: ready backends in place of upstreams of the configuration, by name. They stay
            open.
        now: the time of day in seconds since 1970, for budgets of keys that are for a period.

    Returns:
        The application, an ASGI callable.

    Raises:
        ImportError: an extra is not installed.
        ValueError: ``backends`` has a name that no upstream has, or a key has no token.
    """
    return Gateway(config, backends, now).app


class Gateway:
    """The gateway: its application, and the upstreams behind it."""

    def __init__(
        self,
        config: GatewayConfig,
        backends: Mapping[str, Backend] | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        unknown = sorted((backends or {}).keys() - config.upstreams.keys())
        if unknown:
            msg = f"no upstream of the configuration is called {unknown[0]!r}"
            raise ValueError(msg)
        self._config = config
        self._backends = backends
        self._metrics = Metrics(config.models, (*(config.keys or (ANONYMOUS,)), METRICS_KEY))
        self._models: dict[str, ServedModel] = {}
        self._created = int(time.time())
        self._workers = Workers()
        given = (self._models, self._metrics, config.streaming, self._workers)
        routes = Router(
            [
                Route("/v1/chat/completions", ChatCompletions(*given), methods=["POST"]),
                Route("/v1/responses", Responses(*given), methods=["POST"]),
                Route("/v1/models", self._list_models),
                Route("/v1/models/{name:path}", self._one_model),
                Route("/healthz", self._health),
                Route("/metrics", self._show_metrics),
            ],
            redirect_slashes=False,
            lifespan=lambda _: self.open(),
        )
        self.app = Guard(routes, config.server, config.keys, metrics=self._metrics, now=now)

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[None]:
        """Open the upstreams, and close them at the end.

        The application's lifespan does it too, where it wasn't done before. Here the error itself
        is raised when an upstream can't be opened; a server would only log it.
        """
        if self._models:
            yield
            return
        if self._config.server.log_upstream_errors:
            what = "server.log_upstream_errors: the log may show parts of prompts and replies"
            logger.warning(what)
        async with (
            self._workers,
            open_upstreams(
                self._config.upstreams,
                self._backends,
                spent=self._count_spent,
                log_errors=self._config.server.log_upstream_errors,
            ) as upstreams,
        ):
            self._models |= await run_in_thread(self._make_models, upstreams)
            self._price_keys()
            try:
                yield
            finally:
                self._models.clear()

    def _make_models(self, upstreams: Mapping[str, Upstream]) -> dict[str, ServedModel]:
        warm_up()
        made: dict[str, ServedModel] = {}
        for name, config in self._config.models.items():
            made[name] = ServedModel(config, upstreams)
        return made

    def _price_keys(self) -> None:
        """Tell the keys whose budgets are money what models cost."""
        charged = [
            key
            for key in self.app.keys.values()
            if key.limits.budget is not None and key.limits.budget.money is not None
        ]
        prices: dict[str, Price] = {}
        for served in self._models.values() if charged else ():
            for name, price in (served.prices or {}).items():
                if prices.setdefault(name, price) != price:
                    msg = (
                        f"two upstreams have a model {name!r}, each with another price: a key's"
                        " budget of money can't tell them apart"
                    )
                    raise ValueError(msg)
        for key in charged:
            key.prices = prices

    def _count_spent(self, usage: Usage, price: Price | None) -> None:
        current = CURRENT.get()
        if current is not None:
            self._metrics.spent(current.model, current.key, usage, price)

    def _described(self, name: str) -> dict[str, object]:
        created = self._created
        return {"id": name, "object": "model", "created": created, "owned_by": "mellea-like"}

    async def _list_models(self, _: Request) -> Response:
        data = [self._described(name) for name in self._config.models]
        return JSONResponse({"object": "list", "data": data})

    async def _one_model(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in self._config.models:
            raise unknown_model()
        return JSONResponse(self._described(name))

    async def _health(self, _: Request) -> Response:
        ready = bool(self._models)
        body = {"status": "ok" if ready else "starting"}
        return JSONResponse(body, status_code=200 if ready else 503)

    async def _show_metrics(self, _: Request) -> Response:
        content, kind = self._metrics.render()
        return Response(content, media_type=kind)
