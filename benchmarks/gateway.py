"""The gateway under load, with no checks: its rate, its processor time, its memory.

    python benchmarks/gateway.py                        print the table
    python benchmarks/gateway.py --litellm VENV/bin     ... with LiteLLM's proxy beside it
    python benchmarks/gateway.py --check                ... and exit 1 where a ratio is missed

All on loopback, each server one process: an upstream that answers at once, with replies of 20
chunks where they are streamed (the gateway always asks it for a stream), the gateway as its command
starts it, and LiteLLM's proxy (``pip install 'litellm[proxy]'`` into an environment of its own).
The client keeps 32 or 200 connections busy, each with one request after the other, and reads every
byte; it and the upstream cost little. The servers take turns, and the figures are medians of the
runs; processor time is the server's own, from /proc.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import json
import os
import pathlib
import secrets
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING, NamedTuple

from overhead import machine

if TYPE_CHECKING:
    from collections.abc import Iterator

CHUNKS = 20
CONNECTIONS = (32, 200)
ROUNDS = 3
REQUESTS = {"gateway": 2000, "LiteLLM": 200}
"""Of a run."""
MANY = 10_000
TICK = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100

FASTER = 4.0
TAIL = 3.0
GROWTH_MB = 4.0

GATEWAY = """
server: {{port: {port}}}
upstreams:
  fast: {{kind: openai, base_url: "http://127.0.0.1:{upstream}/v1", model: echo, keep_alive: true}}
models:
  plain: {{upstream: fast}}
keys:
  team: {{sha256: {digest}}}
"""
LITELLM = """
model_list:
  - model_name: plain
    litellm_params:
      {{model: openai/echo, api_base: "http://127.0.0.1:{upstream}/v1", api_key: none}}
general_settings: {{master_key: {token}}}
"""
TOKEN = f"sk-{secrets.token_hex(32)}"


# --- the upstream --------------------------------------------------------------------------------


def _event(data: str) -> bytes:
    text = f"data: {data}\n\n".encode()
    return b"%x\r\n%b\r\n" % (len(text), text)


def _streamed() -> bytes:
    frame = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "echo"}
    deltas = [({"role": "assistant", "content": ""}, None)]
    deltas += [({"content": f"word{n} "}, None) for n in range(CHUNKS)]
    events = [
        {**frame, "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}
        for delta, reason in [*deltas, ({}, "stop")]
    ]
    usage = {"prompt_tokens": 5, "completion_tokens": CHUNKS, "total_tokens": 5 + CHUNKS}
    events.append({**frame, "choices": [], "usage": usage})
    body = b"".join(_event(json.dumps(event)) for event in events) + _event("[DONE]")
    head = (
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    )
    return head + body + b"0\r\n\r\n"


def _whole() -> bytes:
    text = "".join(f"word{n} " for n in range(CHUNKS))
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    usage = {"prompt_tokens": 5, "completion_tokens": CHUNKS, "total_tokens": 5 + CHUNKS}
    frame = {"id": "x", "object": "chat.completion", "created": 1, "model": "echo"}
    body = json.dumps({**frame, "choices": [choice], "usage": usage}).encode()
    fields = b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
    return b"HTTP/1.1 200 OK\r\n" + fields + body


class _Upstream(asyncio.Protocol):
    """Answers each request with the same reply, streamed if that is asked for, at once."""

    streamed = _streamed()
    whole = _whole()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.received = b""

    def data_received(self, data: bytes) -> None:
        self.received += data
        while (whole := _whole_message(self.received)) is not None:
            request, self.received = self.received[:whole], self.received[whole:]
            stream = json.loads(request.partition(b"\r\n\r\n")[2]).get("stream")
            self.transport.write(self.streamed if stream else self.whole)


def _whole_message(data: bytes) -> int | None:
    """Return where the first HTTP message in some bytes ends, if it does."""
    head, found, rest = data.partition(b"\r\n\r\n")
    if not found:
        return None
    fields = head.lower()
    if b"transfer-encoding: chunked" in fields:
        end = rest.find(b"0\r\n\r\n")
        while end > 0 and rest[end - 2 : end] != b"\r\n":
            end = rest.find(b"0\r\n\r\n", end + 1)
        return None if end < 0 else len(head) + 4 + end + 5
    length = 0
    for line in fields.split(b"\r\n"):
        if line.startswith(b"content-length:"):
            length = int(line.partition(b":")[2])
    return None if len(rest) < length else len(head) + 4 + length


async def upstream(port: int) -> None:
    """Serve until the process is ended."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(_Upstream, "127.0.0.1", port, backlog=512)
    await server.serve_forever()


# --- the client ----------------------------------------------------------------------------------


class _Asker(asyncio.Protocol):
    """One connection, which asks until all requests are asked."""

    def __init__(self, load: _Load) -> None:
        self.load = load
        self.received = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.ask()

    def ask(self) -> None:
        if self.load.left <= 0:
            self.transport.close()
            return
        self.load.left -= 1
        self.began = time.perf_counter()
        self.transport.write(self.load.request)

    def data_received(self, data: bytes) -> None:
        self.received += data
        if not self.received.endswith((b"0\r\n\r\n", b"\n\n", b"}")):
            return
        whole = bytes(self.received)
        if _whole_message(whole) != len(whole):
            return
        if not whole.startswith(b"HTTP/1.1 200"):
            self.load.fail(whole[:400])
        elif b"word19" not in whole:
            self.load.fail(whole[-400:])
        self.received.clear()
        self.load.took.append(time.perf_counter() - self.began)
        self.ask()

    def connection_lost(self, exc: Exception | None) -> None:
        self.load.open -= 1
        if not self.load.open:
            self.load.done.set()


class _Load:
    """A number of requests over so many connections."""

    def __init__(self, port: int, requests: int, connections: int, *, stream: bool) -> None:
        self.left = requests
        self.open = connections
        self.took: list[float] = []
        self.failed: bytes | None = None
        self.done = asyncio.Event()
        self.port = port
        message = {"role": "user", "content": "Say twenty words."}
        body = json.dumps({"model": "plain", "messages": [message], "stream": stream}).encode()
        lines = [
            "POST /v1/chat/completions HTTP/1.1",
            f"host: 127.0.0.1:{port}",
            "content-type: application/json",
            f"authorization: Bearer {TOKEN}",
            f"content-length: {len(body)}",
        ]
        self.request = "\r\n".join([*lines, "", ""]).encode() + body

    def fail(self, answer: bytes) -> None:
        self.failed = answer
        self.left = 0

    async def run(self) -> float:
        """Ask; return how long it took."""
        loop = asyncio.get_running_loop()
        began = time.perf_counter()
        for _ in range(self.open):
            await loop.create_connection(lambda: _Asker(self), "127.0.0.1", self.port)
        await asyncio.wait_for(self.done.wait(), 600)
        if self.failed is not None:
            sys.exit(f"an answer isn't what it should be: {self.failed!r}")
        return time.perf_counter() - began


# --- measuring -----------------------------------------------------------------------------------


class Server(NamedTuple):
    """A server that runs."""

    name: str
    port: int
    pid: int

    def processor(self) -> float:
        """Return the seconds of processor time that it has taken."""
        fields = (
            pathlib.Path(f"/proc/{self.pid}/stat").read_text("ascii").rpartition(")")[2].split()
        )
        return (int(fields[11]) + int(fields[12])) / TICK

    def memory(self) -> float:
        """Return its resident memory, in MB."""
        lines = pathlib.Path(f"/proc/{self.pid}/status").read_text("utf-8").splitlines()
        found = next(line for line in lines if line.startswith("VmRSS"))
        return int(found.split()[1]) / 1024


class Run(NamedTuple):
    """What one run measured: requests a second, ms of processor time a request, ms of latency."""

    rate: float
    cpu: float
    p50: float
    p99: float


def measure(server: Server, requests: int, connections: int, *, stream: bool) -> Run:
    """Run a load, and measure."""

    async def load() -> tuple[float, list[float]]:
        asked = _Load(server.port, requests, connections, stream=stream)
        return await asked.run(), sorted(asked.took)

    before = server.processor()
    seconds, took = asyncio.run(load())
    cpu = (server.processor() - before) * 1000 / requests
    p50, p99 = (took[int(len(took) * part)] * 1000 for part in (0.5, 0.99))
    return Run(requests / seconds, cpu, p50, p99)


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@contextlib.contextmanager
def _process(name: str, command: list[str], port: int) -> Iterator[Server]:
    """Run a server until the block is left; begin when it listens."""
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("OPENAI_", "COVERAGE_"))}
    environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    null = subprocess.DEVNULL
    with subprocess.Popen(command, env=environ, stdout=null, stderr=null) as process:
        try:
            for _ in range(1200):
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
                if process.poll() is not None:
                    sys.exit(f"{command} ended with exit code {process.returncode}")
                time.sleep(0.1)
            yield Server(name, port, process.pid)
        finally:
            process.terminate()
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()


@contextlib.contextmanager
def servers(litellm: pathlib.Path | None) -> Iterator[list[Server]]:
    """Run the upstream and the servers before it."""
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
        first, port = _free_port(), _free_port()
        source = [sys.executable, __file__, "--upstream", str(first)]
        stack.enter_context(_process("upstream", source, first))
        digest = hashlib.sha256(TOKEN.encode()).hexdigest()
        config = pathlib.Path(directory, "gateway.yaml")
        config.write_text(
            GATEWAY.format(port=port, upstream=first, digest=digest), encoding="utf-8"
        )
        command = [sys.executable, "-m", "mellea_like.cli.main", "serve", "--quiet"]
        serve = [*command, "--config", str(config)]
        running = [stack.enter_context(_process("gateway", serve, port))]
        if litellm is not None:
            port = _free_port()
            config = pathlib.Path(directory, "litellm.yaml")
            config.write_text(LITELLM.format(upstream=first, token=TOKEN), encoding="utf-8")
            serve = [str(litellm / "litellm"), "--config", str(config), "--host", "127.0.0.1"]
            command = [*serve, "--port", str(port), "--num_workers", "1", "--telemetry", "False"]
            running.append(stack.enter_context(_process("LiteLLM", command, port)))
        yield running


def main() -> int:
    """Measure, print, and judge if asked."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--check", action="store_true", help="exit 1 where a target is missed")
    parser.add_argument("--litellm", type=pathlib.Path, help="the bin of an environment with it")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"runs (default {ROUNDS})")
    parser.add_argument("--upstream", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.upstream:
        asyncio.run(upstream(arguments.upstream))
        return 0
    missed: list[str] = []
    print(f"Measured {machine()}.\n")
    print("| replies | connections | server | requests/s | CPU a request | p50 | p99 |")
    print("|---|--:|---|--:|--:|--:|--:|")
    with servers(arguments.litellm) as running:
        for server in running:
            measure(server, 64, 32, stream=True)
        for stream in (True, False):
            for connections in CONNECTIONS:
                missed += compare(running, connections, arguments.rounds, stream=stream)
        ours = running[0]
        before = ours.memory()
        measure(ours, MANY, CONNECTIONS[-1], stream=True)
        after = ours.memory()
    print(
        f"\nMemory of the gateway: {before:.0f} MB before {MANY:,} requests, {after:.0f} MB after."
    )
    if after - before > GROWTH_MB:
        missed.append(f"memory grew by {after - before:.1f} MB, over {GROWTH_MB:g}")
    for line in missed:
        print(f"missed: {line}", file=sys.stderr)
    return 1 if missed and arguments.check else 0


def compare(running: list[Server], connections: int, rounds: int, *, stream: bool) -> list[str]:
    """Measure the servers in turn, print a row for each, and return what missed its target."""
    runs: dict[str, list[Run]] = {server.name: [] for server in running}
    for _ in range(rounds):
        for server in running:
            runs[server.name].append(
                measure(server, REQUESTS[server.name], connections, stream=stream)
            )
    kind = "streamed" if stream else "whole"
    found: dict[str, Run] = {}
    for name, measured in runs.items():
        found[name] = run = Run(*map(statistics.median, zip(*measured, strict=True)))
        print(
            f"| {kind} | {connections} | {name} | {run.rate:.0f} | {run.cpu:.2f} ms"
            f" | {run.p50:.0f} ms | {run.p99:.0f} ms |",
            flush=True,
        )
    ours = found["gateway"]
    missed: list[str] = []
    what = f"{kind}, {connections} connections"
    if ours.p99 > TAIL * ours.p50:
        missed.append(f"{what}: p99 is {ours.p99 / ours.p50:.1f} times p50, over {TAIL:g}")
    if "LiteLLM" in found and ours.rate < FASTER * found["LiteLLM"].rate:
        ratio = ours.rate / found["LiteLLM"].rate
        missed.append(f"{what}: {ratio:.1f} times LiteLLM's rate, under {FASTER:g}")
    return missed


if __name__ == "__main__":
    sys.exit(main())
