"""A fake server as a process: ``python -m batch_servers openai --file state.db --port 0``.

It writes its URL to its standard output when it is ready, and goes on where it was if its file
exists. What tests may do to it is under ``/admin``; see `batch_servers.web`.
"""

from __future__ import annotations

import argparse
import json
import socket
import sys
from pathlib import Path

import uvicorn

from batch_servers.kit import PROVIDERS, make_server
from batch_servers.settings import Settings
from batch_servers.world import World


def main() -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser(prog="batch_servers")
    parser.add_argument("provider", choices=PROVIDERS)
    parser.add_argument("--file", type=Path)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--speed", type=float, default=1.0, help="seconds that pass in one")
    parser.add_argument("--settings", help="the settings as JSON; by default the file's")
    given = parser.parse_args()
    settings = None if given.settings is None else Settings(**json.loads(given.settings))
    world = World(given.file, speed=given.speed, settings=settings)
    server = make_server(given.provider, world)
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind(("127.0.0.1", given.port))
    listening.listen(128)  # Who comes before the server does waits.
    sys.stdout.write(f"http://127.0.0.1:{listening.getsockname()[1]}\n")
    sys.stdout.flush()
    config = uvicorn.Config(server.app(), log_level="critical", lifespan="off")
    uvicorn.Server(config).run(sockets=[listening])


if __name__ == "__main__":
    main()
