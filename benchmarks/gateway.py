"""The gateway under load, with no checks: its rate, its processor time, its memory.

    python benchmarks/gateway.py                        print the table
    python benchmarks/gateway.py --litellm VENV/bin     ... with LiteLLM's proxy beside it
    python benchmarks/gateway.py --check                ... and exit 1 where a ratio is missed
    python benchmarks/gateway.py --workers              one worker and two, in place of all that

All on loopback, each server one process: an upstream that answers at once, with replies of 20
chunks where they are streamed (the gateway always asks it for a stream), the gateway as its command
starts it, and LiteLLM's proxy (``pip install 'litellm[proxy]'`` into an environment of its own).
The client keeps 32 or 200 connections busy, each with one request after the other, and reads every
byte; it and the upstream cost little. The servers take turns, and the figures are medians of the
runs; processor time is the server's own, from /proc.

With ``--workers``, one worker and two take turns, with a key without limits and one that has a
budget and a rate, which both workers keep in one SQLite file. The client and the upstream need the
processors as well, so the rate does not show what two workers serve that have a processor each:
that is as many requests as fit into the processor time of both.
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
REQUESTS = {"gateway": 2000, "LiteLLM": 200, "worker": 500}
"""Of a run."""
MANY = 10_000
TICK = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100

FASTER = 4.0
SCALES = 1.7
COSTLIEST = 3.0
"""Milliseconds of processor time of a request."""
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
LIMITED = """
  limited:
    sha256: {digest}
    budget: {{requests: 100000000, output_tokens: 100000000000}}
    max_tokens: 4096
    requests_per_minute: 100000000
"""
LITELLM = """
model_list:
  - model_name: plain
    litellm_params:
      {{model: openai/echo, api_base: "http://127.0.0.1:{upstream}/v1", api_key: none}}
general_settings: {{master_key: {token}}}
"""
TOKEN = f"sk-{secrets.token_hex(32)}"
LIMITED_TOKEN = f"sk-{secrets.token_hex(32)}"


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

    def __init__(
        self, port: int, requests: int, connections: int, *, stream: bool, token: str = TOKEN
    ) -> None:
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
            f"authorization: Bearer {token}",
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


def measure(
    server: Server, requests: int, connections: int, *, stream: bool, token: str = TOKEN
) -> Run:
    """Run a load, and measure."""

    async def load() -> tuple[float, list[float]]:
        asked = _Load(server.port, requests, connections, stream=stream, token=token)
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
        command = [sys.executable, "-m", "mellea_like", "serve", "--quiet"]
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
    parser.add_argument("--workers", action="store_true", help="compare one worker with two")
    arguments = parser.parse_args()
    if arguments.upstream:
        asyncio.run(upstream(arguments.upstream))
        return 0
    if arguments.workers:
        missed = compare_workers(arguments.rounds)
        for line in missed:
            print(f"missed: {line}", file=sys.stderr)
        return 1 if missed and arguments.check else 0
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


class Shared(NamedTuple):
    """A run of a gateway with workers: processor time a request in ms, and the busiest one's."""

    rate: float
    cpu: float
    busiest: float


def compare_workers(rounds: int) -> list[str]:
    """Measure one worker and two in turn, print a row for each, and return what missed."""
    print(f"Measured {machine()}.\n")
    print("| key | workers | requests/s | CPU a request | by the busiest | served, to one |")
    print("|---|--:|--:|--:|--:|--:|")
    missed: list[str] = []
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
        first = _free_port()
        source = [sys.executable, __file__, "--upstream", str(first)]
        stack.enter_context(_process("upstream", source, first))
        groups = {
            count: stack.enter_context(_workers(pathlib.Path(directory), first, count))
            for count in (1, 2)
        }
        for key, token in (("plain", TOKEN), ("limited", LIMITED_TOKEN)):
            runs: dict[int, list[Shared]] = {count: [] for count in groups}
            for number in range(rounds + 1):
                for count, workers in groups.items():
                    run = _measure_workers(workers, token)
                    if number:  # The first one warms up.
                        runs[count].append(run)
            found: dict[int, Shared] = {}
            for count, measured in runs.items():
                found[count] = run = Shared(*map(statistics.median, zip(*measured, strict=True)))
                scales = count * found[1].cpu / run.cpu
                print(
                    f"| {key} | {count} | {run.rate:.0f} | {run.cpu:.2f} ms"
                    f" | {run.busiest / run.cpu:.0%} | {scales:.2f} |",
                    flush=True,
                )
            if scales < SCALES:  # The last one's.
                missed.append(f"{key}: two workers serve {scales:.2f} times as much as one")
            missed += [
                f"{key}, {count} workers: a request takes {run.cpu:.2f} ms"
                for count, run in found.items()
                if run.cpu > COSTLIEST
            ]
    return missed


@contextlib.contextmanager
def _workers(directory: pathlib.Path, upstream: int, count: int) -> Iterator[list[Server]]:
    """Run a gateway with so many workers until the block is left."""
    port = _free_port()
    digests = [hashlib.sha256(token.encode()).hexdigest() for token in (TOKEN, LIMITED_TOKEN)]
    config = directory / f"gateway{count}.yaml"
    text = GATEWAY.format(port=port, upstream=upstream, digest=digests[0])
    config.write_text(text + LIMITED.format(digest=digests[1]), encoding="utf-8")
    command = [sys.executable, "-m", "mellea_like", "serve", "--quiet"]
    command += ["--config", str(config), "--processes", str(count)]
    with _process("gateway", command, port) as parent:
        pids = [parent.pid]
        if count > 1:
            listed = pathlib.Path(f"/proc/{parent.pid}/task/{parent.pid}/children")
            while len(pids) < count:  # It listens before it starts them.
                time.sleep(0.1)
                pids = [int(pid) for pid in listed.read_text("ascii").split()]
        yield [Server("worker", port, pid) for pid in pids]


def _measure_workers(workers: list[Server], token: str) -> Shared:
    requests = REQUESTS["worker"]
    before = [worker.processor() for worker in workers]
    run = measure(workers[0], requests, CONNECTIONS[0], stream=False, token=token)
    took = [
        (worker.processor() - since) * 1000 / requests
        for worker, since in zip(workers, before, strict=True)
    ]
    return Shared(run.rate, sum(took), max(took))


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
