"""A configuration that a gateway can start with."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from mellea_like.gateway.config.config_file import read_config
from mellea_like.gateway.config.cross_checks import Parts, Problem
from mellea_like.gateway.config.tokens import Tokens
from mellea_like.gateway.config.upstreams import check_upstreams
from mellea_like.gateway.http.server import listening_address

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from mellea_like.gateway.config.gateway_config import GatewayConfig

__all__ = ["read_ready_config"]


def read_ready_config(path: Path, **server: Any) -> GatewayConfig:
    """Read a configuration, and look for all that would keep a gateway from starting with it.

    Args:
        path: the file.
        **server: fields of its section ``server`` that are given otherwise.

    Returns:
        The configuration.

    Raises:
        ConfigError: something is wrong; the message has a line for each mistake.
    """
    return read_config(path, further=_problems_at_the_start, **server)


def _problems_at_the_start(parts: Parts) -> Iterator[Problem]:
    yield from check_upstreams(parts.upstreams)
    server = parts.server
    metrics_key = None if server is None else server.metrics_key
    yield from Tokens(parts.keys, metrics_key, os.environ).problems
    if server is not None:
        try:
            listening_address(server, has_keys=bool(parts.keys))
        except ValueError as exc:
            yield Problem(("server", "host"), str(exc).removeprefix("server.host "))
