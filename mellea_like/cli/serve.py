"""``mellea-like serve``: a gateway with validated replies for any OpenAI client."""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass
from pathlib import Path  # noqa: TC003 (typer reads the annotations)
from typing import TYPE_CHECKING, Any

from mellea_like.cli.exit_codes import Exit, Problem, needs_unix
from mellea_like.cli.option_fields import REQUIRED, option
from mellea_like.cli.standard_streams import one_line, warn, write
from mellea_like.core.display import plural
from mellea_like.errors import MelleaError

if TYPE_CHECKING:
    from socket import socket

    from mellea_like.cli.signals import SignalHandler
    from mellea_like.gateway.config.gateway_config import GatewayConfig
    from mellea_like.gateway.http.app import Gateway

__all__ = ["EPILOG", "HELP", "ServeOptions", "run"]

HELP = """Answer OpenAI's chat protocol with replies that meet requirements.

The configuration says what each model's name stands for: a strategy, what replies must meet, and\
 what generates. Any OpenAI client then gets such replies by changing its base URL. Ctrl-C or a\
 SIGTERM stops it once the requests under way have ended.

[bold]Examples[/bold]

\b
mellea-like serve --config gateway.yaml --check
mellea-like serve --config gateway.yaml --port 8080
"""

EPILOG = (
    "Exit codes: 0 it was stopped, 2 bad usage or a mistake in the configuration, 3 an upstream,"
    " the port or a missing extra is at fault, 130 or 143 interrupted before it could answer."
)


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """The options of ``mellea-like serve``."""

    config: Path = option(REQUIRED, "The configuration, in YAML.", "--config", "-c", metavar="FILE")
    host: str | None = option(
        None, "The address to listen on, instead of the file's.", metavar="ADDRESS"
    )
    port: int | None = option(
        None, "The port, instead of the file's; 0 takes any.", metavar="N", min=0, max=65_535
    )
    check: bool = option(False, "Look whether the configuration can be used, and end.")
    quiet: bool = option(False, "No line on stderr for each request.", "--quiet", "-q")


def run(options: ServeOptions, signals: SignalHandler) -> int:
    """Run the command."""
    needs_unix("serve")
    try:
        return _serve(options, signals)
    except (ImportError, MelleaError, OSError, ValueError) as exc:
        raise Problem(str(exc)) from exc


def _serve(options: ServeOptions, signals: SignalHandler) -> int:
    from mellea_like.gateway.config.config_file import ConfigError  # noqa: PLC0415 (an extra)
    from mellea_like.gateway.http.app import Gateway  # noqa: PLC0415
    from mellea_like.gateway.http.server import listen  # noqa: PLC0415
    from mellea_like.gateway.http.startup import read_ready_config  # noqa: PLC0415

    given: dict[str, Any] = {"host": options.host or None, "port": options.port}
    given = {name: value for name, value in given.items() if value is not None}
    try:
        config = read_ready_config(options.config, **given)
    except ConfigError as exc:
        raise Problem(str(exc), Exit.USAGE) from exc
    gateway = Gateway(config)
    has_keys, server = bool(config.keys), config.server
    if options.check:
        write(f"{options.config} can be used; its models: {_names(config)}\n", sys.stdout)
        return Exit.PASSED
    try:
        listening = listen(server, has_keys=has_keys)
    except OSError as exc:
        msg = f"can't listen on {server.host}, port {server.port}: {exc.strerror or exc}"
        raise Problem(msg) from exc
    handler = logging.StreamHandler()
    handler.setLevel(logging.INFO)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logging.getLogger().addHandler(handler)
    level = logging.WARNING if options.quiet else logging.INFO
    logging.getLogger("mellea_like.gateway").setLevel(level)
    with listening:
        signals.run(_run, gateway, config, listening)
    return Exit.PASSED


async def _run(gateway: Gateway, config: GatewayConfig, listening: socket) -> None:
    from mellea_like.gateway.http.server import serve  # noqa: PLC0415 (an extra)

    host, port = listening.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host

    def say() -> None:
        write(f"Listening on http://{shown}:{port}/v1 (models: {_names(config)})\n", sys.stdout)

    def say_stop(under_way: int) -> None:
        if under_way:
            requests = plural(under_way, "request")
            have, them = ("has", "it") if under_way == 1 else ("have", "them")
            msg = (
                f"Stopping: {requests} under way {have} up to {config.server.stop_seconds:g} s;"
                f" Ctrl-C again cuts {them} off."
            )
            warn(msg)

    async with gateway.open():
        await serve(
            gateway.app, config.server, listening, on_ready=say, on_stop=say_stop, quiet=True
        )


def _names(config: GatewayConfig) -> str:
    return one_line(", ".join(config.models))
