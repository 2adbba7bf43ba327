"""Read a configuration at startup or to reload it, and check that a gateway can use it."""

from __future__ import annotations

import logging
import os
from functools import partial
from typing import TYPE_CHECKING, Any

from mellea_like.gateway.config.config_file import read_config
from mellea_like.gateway.config.cross_checks import Problem
from mellea_like.gateway.config.tokens import Tokens
from mellea_like.gateway.config.upstreams import check_upstreams
from mellea_like.gateway.http.server import listening_address
from mellea_like.runtime.threads import run_in_thread

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from mellea_like.gateway.config.gateway_config import GatewayConfig
    from mellea_like.gateway.http.app import Gateway

logger = logging.getLogger("mellea_like.gateway")


def read_ready_config(path: Path, **server: Any) -> GatewayConfig:
    """Read a configuration; check its upstreams, tokens and address, or raise `ConfigError`."""
    return read_config(path, further=_problems_at_the_start, **server)


async def reload(gateway: Gateway, path: Path, *, tell: bool = True, **server: Any) -> None:
    """Reload a running gateway's configuration; if it has mistakes, log them and change nothing."""
    before = gateway.serving.config
    try:
        config = await run_in_thread(partial(read_again, path, before, tell=tell, **server))
        await gateway.reload(config)
    except Exception as exc:  # noqa: BLE001 (whatever keeps an upstream from opening)
        say_unchanged(exc)


def read_again(
    path: Path, before: GatewayConfig, *, tell: bool = True, **server: Any
) -> GatewayConfig:
    """Read the configuration again, but keep ``server`` and ``store`` as in ``before``."""
    kept = {name: getattr(before, name) for name in ("server", "store")}

    def further(config: GatewayConfig) -> Iterator[Problem]:
        return _problems_at_the_start(config.model_copy(update=kept))

    config = read_config(path, further=further, **server)
    for name, old in kept.items():
        if tell and getattr(config, name) != old:
            what = "%s: %s has changed: restart the gateway to apply this"
            logger.warning(what, path, name)
    return config.model_copy(update=kept)


def say_unchanged(why: Exception) -> None:
    """Log the reason why the configuration was not reloaded."""
    for line in str(why).splitlines():
        logger.error("the configuration was not reloaded: %s", line)


def _problems_at_the_start(config: GatewayConfig) -> Iterator[Problem]:
    yield from check_upstreams(config.upstreams)
    yield from Tokens(config.keys, config.server.metrics_key, os.environ).problems
    try:
        listening_address(config.server, has_keys=bool(config.keys))
    except ValueError as exc:
        yield Problem(("server", "host"), str(exc).removeprefix("server.host "))
