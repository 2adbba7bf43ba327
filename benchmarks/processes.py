"""Rows a second of ``mellea-like batch`` in one process and in several, at a local server.

The server takes 20 ms for a reply and next to no CPU: a protocol of asyncio that reads no more of a
request than its length. Run it on a machine that does nothing else:

    python benchmarks/processes.py --rows 4000
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import uvloop

LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)
CHUNKS = (
    {"choices": [{"index": 0, "delta": {"role": "assistant", "content": "one two three"}}]},
    {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
    {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}},
)
KIND = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
BODY = b"".join(b"data: %s\n\n" % json.dumps(KIND | chunk).encode() for chunk in CHUNKS)
BODY += b"data: [DONE]\n\n"
REPLY = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n%s" % (
    len(BODY),
    BODY,
)


class Server(asyncio.Protocol):
    """Answers each request with the same reply."""

    seconds = 0.02

    def connection_made(self, transport) -> None:
        self.transport, self.received = transport, b""

    def data_received(self, data: bytes) -> None:
        self.received += data
        head, end, body = self.received.partition(b"\r\n\r\n")
        found = LENGTH.search(head)
        if end and found and len(body) >= int(found[1]):
            self.received = body[int(found[1]) :]
            asyncio.get_running_loop().call_later(self.seconds, self.transport.write, REPLY)


def serve(port) -> None:
    async def main() -> None:
        server = await asyncio.get_running_loop().create_server(Server, "127.0.0.1", 0)
        port.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


def rate(folder: Path, url: str, rows: int, processes: int, workers: int) -> tuple[float, float]:
    """Return rows a second and seconds of CPU of all rows, both without the start."""
    took, cpu = [], []
    for count in (processes, rows):
        source = folder / f"{count}.jsonl"
        source.write_text("".join(f'{{"n": {n}}}\n' for n in range(count)), encoding="ascii")
        more = ["--journal", str(folder / f"run-{count}-{processes}")]
        arguments = ["batch", str(source), "-p", "Say {{ n }}", "-o", "/dev/null", "--quiet"]
        more += ["--model", "m", "--base-url", url, "--workers", str(workers)]
        command = [sys.executable, "-m", "mellea_like", *arguments, *more]
        before, began = os.times(), time.perf_counter()
        subprocess.run([*command, "--processes", str(processes)], check=True)
        after = os.times()
        took.append(time.perf_counter() - began)
        cpu.append(sum(after[2:4]) - sum(before[2:4]))
    return (rows - processes) / (took[1] - took[0]), cpu[1] - cpu[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=4000)
    parser.add_argument("--workers", type=int, default=64)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 1, 2])
    given = parser.parse_args()
    here, there = multiprocessing.Pipe()
    server = multiprocessing.Process(target=serve, args=(there,), daemon=True)
    server.start()
    url = f"http://127.0.0.1:{here.recv()}/v1"
    print(f"load {os.getloadavg()[0]:.1f}; {given.rows} rows, {given.workers} at a time")
    for processes in given.processes:
        with tempfile.TemporaryDirectory() as folder:
            a_second, cpu = rate(Path(folder), url, given.rows, processes, given.workers)
        each = 1000 * cpu / given.rows
        print(f"{processes} processes: {a_second:.0f} rows/s, {each:.2f} ms CPU a row")
    server.terminate()


if __name__ == "__main__":
    main()
