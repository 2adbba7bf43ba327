"""A provider's fake server in another process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
from command_line import start


class JobsServer:
    """A server that is running, and what a test may ask it."""

    def __init__(self, url: str) -> None:
        self.url = url

    def ask(self, what: str) -> Any:
        """Ask for the ``bill``, the ``jobs``' ids or the jobs and custom ids ``paid``."""
        return httpx2.get(f"{self.url}/admin/{what}", timeout=60).json()

    def _tell(self, what: str, body: dict[str, Any]) -> None:
        httpx2.post(f"{self.url}/admin/{what}", json=body, timeout=60).raise_for_status()

    def change(self, **settings: Any) -> None:
        """Change how it behaves."""
        self._tell("settings", settings)

    def skip(self, seconds: float) -> None:
        """Let time pass."""
        self._tell("skip", {"seconds": seconds})


@contextmanager
def jobs_server(
    provider: str, file: Path, *, speed: float = 1.0, **settings: Any
) -> Iterator[JobsServer]:
    """Serve a provider's batch API, whose state is in a file; time is so many times as fast."""
    arguments = (provider, "--file", str(file), "--speed", str(speed))
    with start(
        *arguments, "--settings", json.dumps(settings), script=__file__, text=True, stderr=2
    ) as server:
        try:
            yield JobsServer(server.stdout.readline().strip())
        finally:
            server.kill()


if __name__ == "__main__":
    from batch_servers.__main__ import main

    main()
