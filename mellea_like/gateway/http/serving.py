"""A configuration in use: its routes, its models, and the requests that it answers."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import anyio
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, Router

from mellea_like.gateway.chat.completions import Completion
from mellea_like.gateway.chat.endpoint import Endpoint, unknown_model
from mellea_like.gateway.chat.request import read_chat
from mellea_like.gateway.chat.responses import ModelResponse
from mellea_like.gateway.chat.responses_request import read_response
from mellea_like.gateway.chat.served_model import ServedModel, warm_up
from mellea_like.gateway.current_request import CURRENT
from mellea_like.gateway.http.guard import Guard

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

    from mellea_like.core.prices import Price
    from mellea_like.gateway.chat.caller_checks import Workers
    from mellea_like.gateway.config.gateway_config import GatewayConfig
    from mellea_like.gateway.config.upstreams import Upstream
    from mellea_like.gateway.http.key_state import KeyState
    from mellea_like.gateway.metrics import Metrics

STARTED = int(time.time())
"""The creation time that clients see for every model, in seconds since 1970."""


class Serving:
    """Answers requests under one configuration, until another one replaces it."""

    def __init__(
        self,
        config: GatewayConfig,
        make_key: Callable[..., KeyState],
        metrics: Metrics,
        workers: Workers,
    ) -> None:
        self.config = config
        self.used: Sequence[Upstream] = ()
        """The open upstreams that the models use."""
        self._metrics = metrics
        self._models: dict[str, ServedModel] = {}
        self._under_way = 0
        self._ended = anyio.Event()
        given = (self._models, metrics, config.streaming, workers)
        chat = Endpoint(read_chat, Completion, *given)
        responses = Endpoint(read_response, ModelResponse, *given)
        routes = Router(
            [
                Route("/v1/chat/completions", chat, methods=["POST"]),
                Route("/v1/responses", responses, methods=["POST"]),
                Route("/v1/models", self._list_models),
                Route("/v1/models/{name:path}", self._one_model),
                Route("/healthz", self._health),
                Route("/metrics", self._show_metrics),
            ],
            redirect_slashes=False,
        )
        self.guard = Guard(routes, config.server, config.keys, metrics=metrics, make_key=make_key)

    @property
    def ready(self) -> bool:
        """Whether the configuration's models can be used."""
        return bool(self._models)

    def begin(self) -> None:
        """Make the models, and set prices for keys with budgets of money. This takes time."""
        warm_up()
        upstreams = {upstream.name: upstream for upstream in self.used}
        made = {name: ServedModel(config, upstreams) for name, config in self.config.models.items()}
        for key in self.guard.keys.values():
            if key.limits.budget is not None and key.limits.budget.money is not None:
                key.prices = _prices([made[name] for name in made if key.limits.allows(name)])
        self._models |= made

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request (ASGI)."""
        self._under_way += 1
        try:
            await self.guard(scope, receive, send)
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._ended.set()

    async def wait_ended(self) -> None:
        """Wait until the last request has ended. Call this once no new requests can come."""
        if self._under_way:
            self._ended = anyio.Event()
            await self._ended.wait()

    def close(self) -> None:
        """Forget the models, because their upstreams are about to be closed."""
        self._models.clear()

    def _described(self, name: str) -> dict[str, object]:
        return {"id": name, "object": "model", "created": STARTED, "owned_by": "mellea-like"}

    async def _list_models(self, _: Request) -> Response:
        limits = CURRENT.get().limits
        data = [self._described(name) for name in self.config.models if limits.allows(name)]
        return JSONResponse({"object": "list", "data": data})

    async def _one_model(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in self.config.models or not CURRENT.get().limits.allows(name):
            raise unknown_model()
        return JSONResponse(self._described(name))

    async def _health(self, _: Request) -> Response:
        body = {"status": "ok" if self.ready else "starting"}
        return JSONResponse(body, status_code=200 if self.ready else 503)

    async def _show_metrics(self, _: Request) -> Response:
        content, kind = self._metrics.render()
        return Response(content, media_type=kind)


def _prices(models: list[ServedModel]) -> dict[str, Price]:
    """Return the prices by model name, for a key's budget of money."""
    prices: dict[str, Price] = {}
    for served in models:
        for name, price in (served.prices or {}).items():
            if prices.setdefault(name, price) != price:
                msg = (
                    f"two upstreams have a model {name!r} with different prices, and a key's"
                    " budget of money can't tell them apart"
                )
                raise ValueError(msg)
    return prices
