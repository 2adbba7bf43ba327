"""``mellea-like serve``: a gateway with validated replies for any OpenAI client."""

from __future__ import annotations

import logging
import shutil
import sys
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path  # noqa: TC003 (typer reads the annotations)
from typing import TYPE_CHECKING, Any

import anyio

from mellea_like.cli.exit_codes import Exit, Problem, needs_unix, os_errors
from mellea_like.cli.option_fields import REQUIRED, option
from mellea_like.cli.standard_streams import warn, write
from mellea_like.core.display import one_line, plural
from mellea_like.errors import MelleaError, StoreError

if TYPE_CHECKING:
    from socket import socket

    from mellea_like.cli.signals import SignalHandler
    from mellea_like.gateway.config.gateway_config import GatewayConfig, KeyLimits
    from mellea_like.gateway.http.app import Gateway
    from mellea_like.gateway.http.worker_processes import Link
    from mellea_like.limits.sqlite_store import SQLiteStore

HELP = """\
The configuration gives each model name a strategy, requirements and a backend. To use them, change\
 the base URL of any OpenAI client. Ctrl-C and SIGTERM stop the server once running requests have\
 ended. SIGHUP reloads its models and keys.

[bold]Examples[/bold]

\b
mellea-like serve --config gateway.yaml --check
mellea-like serve --config gateway.yaml --port 8080 --processes 2
"""

logger = logging.getLogger("mellea_like.gateway")

IN_MEMORY = "memory"

SHARED = {"concurrency", "requests_per_minute", "tokens_per_minute"}
"""The limits on keys and upstreams that apply to all workers of a gateway together."""

LOGGED = "%(asctime)s %(levelname)s {who}%(message)s"

EPILOG = (
    "Exit codes: 0 stopped, 2 bad usage or an error in the configuration, 3 an upstream or port"
    " error, or a missing extra, 130 or 143 interrupted before it was ready."
)


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """The options of ``mellea-like serve``."""

    config: Path = option(REQUIRED, "--config -c FILE", "The configuration file, in YAML.")
    host: str | None = option(
        None, "--host ADDRESS", "The address to listen on. Overrides the file's."
    )
    port: int | None = option(
        None, "--port N", "The port; 0 picks a free one. Overrides the file's.", min=0, max=65_535
    )
    check: bool = option(False, "--check", "Check the configuration and exit.")
    processes: int = option(
        1,
        "--processes N",
        "How many processes to serve with, to use more than one processor.",
        min=1,
    )
    quiet: bool = option(False, "--quiet -q", "Don't log each request on stderr.")

    @property
    def server(self) -> dict[str, Any]:
        """The options that override the configuration's section ``server``."""
        given: dict[str, Any] = {"host": self.host or None, "port": self.port}
        return {name: value for name, value in given.items() if value is not None}


def run(options: ServeOptions, signals: SignalHandler) -> int:
    """Run ``mellea-like serve``."""
    needs_unix("serve")
    try:
        return _serve(options, signals)
    except (OSError, ValueError) as exc:
        raise Problem(str(exc)) from exc


def _serve(options: ServeOptions, signals: SignalHandler) -> int:
    from mellea_like.gateway.config.config_file import ConfigError  # noqa: PLC0415 (an extra)
    from mellea_like.gateway.http.app import Gateway  # noqa: PLC0415
    from mellea_like.gateway.http.server import listen  # noqa: PLC0415
    from mellea_like.gateway.http.startup import read_ready_config  # noqa: PLC0415

    try:
        config = read_ready_config(options.config, **options.server)
    except ConfigError as exc:
        raise Problem(str(exc), Exit.USAGE) from exc
    store = _store(options, config)
    gateway = Gateway(config, store=store)
    has_keys, server = bool(config.keys), config.server
    if options.check:
        write(f"{options.config} is valid; its models: {_names(config)}\n", sys.stdout)
        return Exit.PASSED
    with os_errors(f"can't listen on {server.host}, port {server.port}"):
        listening = listen(server, has_keys=has_keys)
    with listening:
        handler = _log(quiet=options.quiet)
        if store is not None and _counts(config, options.processes):
            try:
                store.check()
            except StoreError as exc:
                msg = (
                    f"{exc}. This file records what keys spend: name another file with store: PATH,"
                    " or use store: memory"
                )
                raise Problem(msg) from exc
            logger.info("the keys' spending is kept in %s", store.path)
            store.close()
        if options.processes > 1:
            return _serve_together(options, config, listening, store, handler)
        try:
            signals.run(_run, gateway, options, listening, _address(config, listening))
        finally:
            if store is not None:
                store.close()
    return Exit.PASSED


def _store(options: ServeOptions, config: GatewayConfig) -> SQLiteStore | None:
    """Return the store that records what each key has spent; None to record it in memory."""
    from mellea_like.limits.sqlite_store import SQLiteStore  # noqa: PLC0415 (loads SQLite)

    if config.store == IN_MEMORY:
        return None
    file = options.config.absolute()
    return SQLiteStore(file.parent / (config.store or f"{file.stem}.spent.db"))


def _counts(config: GatewayConfig, workers: int) -> bool:
    """Return whether the store is needed, for budgets or for limits that workers share."""
    limits: list[KeyLimits] = list(config.keys.values()) or [config.server.limits]
    if any(key.budget is not None for key in limits):
        return True
    named = [
        *(each.model_fields_set for each in limits),
        *(each.model_fields_set for each in config.upstreams.values()),
    ]
    return workers > 1 and any(SHARED & names for names in named)


def _log(*, quiet: bool) -> logging.Handler:
    handler = logging.StreamHandler()
    handler.setLevel(logging.INFO)
    handler.setFormatter(logging.Formatter(LOGGED.format(who="")))
    logging.getLogger().addHandler(handler)
    logging.getLogger("mellea_like.gateway").setLevel(logging.WARNING if quiet else logging.INFO)
    return handler


def _address(config: GatewayConfig, listening: socket) -> str:
    host, port = listening.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    return f"Listening on http://{shown}:{port}/v1 (models: {_names(config)})\n"


async def _run(
    gateway: Gateway,
    options: ServeOptions,
    listening: socket,
    address: str = "",
    link: Link | None = None,
) -> None:
    from mellea_like.gateway.http.server import serve  # noqa: PLC0415 (an extra)
    from mellea_like.gateway.http.startup import reload  # noqa: PLC0415

    server = gateway.serving.config.server
    again = partial(reload, gateway, options.config, tell=link is None, **options.server)

    def say_stop(under_way: int) -> None:
        if under_way:
            requests = plural(under_way, "request")
            have, them = ("has", "it") if under_way == 1 else ("have", "them")
            msg = (
                f"Stopping: {requests} under way {have} up to {server.stop_seconds:g} s;"
                f" Ctrl-C again cuts {them} off."
            )
            warn(msg)

    async with gateway.open():
        if link is None:
            ready = partial(write, address, sys.stdout)
            await serve(
                *(gateway, server, listening),
                on_ready=ready,
                on_stop=say_stop,
                on_hangup=again,
                quiet=True,
            )
            return
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(link.listen, again)
            await serve(
                *(gateway, server, listening),
                on_ready=link.ready,
                stop=link.stop,
                cut=link.cut,
                quiet=True,
            )
            tasks.cancel_scope.cancel()


# --- several processes ---------------------------------------------------------------------------


def _serve_together(
    options: ServeOptions,
    config: GatewayConfig,
    listening: socket,
    store: SQLiteStore | None,
    handler: logging.Handler,
) -> int:
    """Serve in several worker processes, which this process starts and stops."""
    from mellea_like.gateway.config.config_file import ConfigError  # noqa: PLC0415 (an extra)
    from mellea_like.gateway.http.app import Gateway  # noqa: PLC0415
    from mellea_like.gateway.http.startup import read_again, say_unchanged  # noqa: PLC0415
    from mellea_like.gateway.http.worker_processes import Supervisor  # noqa: PLC0415
    from mellea_like.gateway.metrics import forget_worker, share_metrics  # noqa: PLC0415

    current = [config]
    directory = tempfile.mkdtemp(prefix="mellea-like-")

    def work(number: int, link: Link) -> int:
        handler.setFormatter(logging.Formatter(LOGGED.format(who=f"worker {number}: ")))
        share_metrics(directory, number)
        try:
            gateway = Gateway(current[0], store=store, together=store is not None)
            anyio.run(_run, gateway, options, listening, "", link)
        except (ImportError, MelleaError, OSError, ValueError) as exc:
            warn(f"mellea-like: worker {number}: {exc}".splitlines())
            return Exit.SETUP
        finally:
            if store is not None:
                store.close()
        return Exit.PASSED

    def reload() -> bool:
        try:
            current[0] = read_again(options.config, current[0], **options.server)
        except ConfigError as exc:
            say_unchanged(exc)
            return False
        return True

    def say_stop() -> None:
        seconds = f"{config.server.stop_seconds:g} s"
        warn(f"Stopping: requests under way have up to {seconds}; Ctrl-C again cuts them off.")

    if store is None:
        logger.warning("store: memory: each worker separately counts what keys spend")
    supervisor = Supervisor(
        options.processes,
        work,
        stop_seconds=config.server.stop_seconds,
        reload=reload,
        on_ready=partial(write, _address(config, listening), sys.stdout),
        on_stop=say_stop,
        on_end=partial(forget_worker, directory),
    )
    try:
        return supervisor.run(listening)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _names(config: GatewayConfig) -> str:
    return one_line(", ".join(config.models))
