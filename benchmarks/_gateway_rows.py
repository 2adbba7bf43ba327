"""What the gateway adds to a request: the same one at the upstream alone, and through the gateway.

Three processes on loopback: an upstream that answers at once, the gateway before it with one check
that always passes, and the client, which asks the two in turn with the official SDK.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

REQUESTS = 300
WARM_UP = 20
CONFIG = """
server: {{port: {port}}}
upstreams:
  fast: {{kind: openai, base_url: "http://127.0.0.1:{upstream}/v1", model: echo, keep_alive: true}}
models:
  checked: {{upstream: fast, attempts: 2, lanes: 1, checks: ["words>=1"]}}
"""


def upstream(port: int) -> None:
    """Serve chat completions that are there at once, whole or streamed."""
    import uvicorn
    from starlette.applications import Starlette
    from starlette.responses import JSONResponse, StreamingResponse
    from starlette.routing import Route

    usage = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
    common = {"id": "x", "created": 1, "model": "echo"}

    async def complete(request: Any) -> Any:
        asked = json.loads(await request.body())
        if not asked.get("stream"):
            message = {"role": "assistant", "content": "Hello there."}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            whole = {**common, "object": "chat.completion", "choices": [choice], "usage": usage}
            return JSONResponse(whole)

        async def events() -> Any:
            for delta, reason in (({"content": "Hello there."}, None), ({}, "stop")):
                choice = {"index": 0, "delta": delta, "finish_reason": reason}
                chunk = {**common, "object": "chat.completion.chunk", "choices": [choice]}
                yield f"data: {json.dumps(chunk)}\n\n"
            last = {**common, "object": "chat.completion.chunk", "choices": [], "usage": usage}
            yield f"data: {json.dumps(last)}\n\ndata: [DONE]\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")

    app = Starlette(routes=[Route("/v1/chat/completions", complete, methods=["POST"])])
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="error")


def measure(requests: int = REQUESTS) -> dict[str, float]:
    """Ask both in turn.

    Returns:
        The median latency of each in ms, and the median of the differences.
    """
    with tempfile.TemporaryDirectory() as directory:
        first, second = _free_port(), _free_port()
        config = pathlib.Path(directory, "gateway.yaml")
        config.write_text(CONFIG.format(port=second, upstream=first), encoding="utf-8")
        serve = ["-m", "mellea_like", "serve", "--config", str(config), "--quiet"]
        with _process([__file__, str(first)], first), _process(serve, second):
            return _ask(first, second, requests)


def _ask(first: int, second: int, requests: int) -> dict[str, float]:
    from openai import OpenAI

    alone = OpenAI(base_url=f"http://127.0.0.1:{first}/v1", api_key="none", max_retries=0)
    through = OpenAI(base_url=f"http://127.0.0.1:{second}/v1", api_key="none", max_retries=0)
    times: dict[str, list[float]] = {"alone": [], "gateway": []}
    with alone, through:
        for number in range(WARM_UP + requests):
            for name, client, model in (("alone", alone, "echo"), ("gateway", through, "checked")):
                begun = time.perf_counter()
                reply = client.chat.completions.create(
                    model=model, messages=[{"role": "user", "content": "Say hello."}]
                )
                took = time.perf_counter() - begun
                if reply.choices[0].message.content != "Hello there.":
                    sys.exit(f"{name} answered {reply}")
                if number >= WARM_UP:
                    times[name].append(took * 1000)
    added = [via - direct for via, direct in zip(times["gateway"], times["alone"], strict=True)]
    medians = {name: statistics.median(taken) for name, taken in times.items()}
    return {**medians, "added": statistics.median(added)}


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@contextlib.contextmanager
def _process(arguments: list[str], port: int) -> Iterator[None]:
    """Run a server until the block is left; begin when it listens."""
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("OPENAI_", "COVERAGE_"))}
    command = [sys.executable, *arguments]
    with subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL) as process:
        try:
            for _ in range(300):
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
                if process.poll() is not None:
                    sys.exit(f"{arguments} ended with exit code {process.returncode}")
                time.sleep(0.1)
            yield
        finally:
            process.terminate()
            process.wait(20)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        upstream(int(sys.argv[1]))
    else:
        print(measure())
