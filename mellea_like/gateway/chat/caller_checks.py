"""Checks and JSON Schemas that come with requests: run outside this process, in bounded time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections import defaultdict
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import anyio

from mellea_like.core.requirement import Requirement
from mellea_like.core.validation import ValidationResult
from mellea_like.errors import RequirementError
from mellea_like.gateway.refusal import refuse
from mellea_like.requirements.early_checks import json_only
from mellea_like.requirements.expressions import parse_check
from mellea_like.runtime.threads import run_in_thread

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator, Mapping
    from typing import TypeAlias

    from mellea_like.core.streaming import StreamCheck
    from mellea_like.core.validation import Candidate

    Check: TypeAlias = str | Mapping[str, Any]
    """An expression or a JSON Schema."""

__all__ = ["CallersChecks", "TooCostly", "Workers"]

PROCESSES = max(1, (os.cpu_count() or 2) // 2)
"""At most at a time: the others of the machine's processors are left to the gateway."""

MAIN = "from mellea_like.gateway.chat.caller_worker import main; main()"

INHERITED = ("LD_LIBRARY_PATH", "PATH")
"""Of the environment, which has the upstreams' keys in it."""

SPENT = "it takes more processor time or memory than a request's checks may in all"

LONGEST_SCHEMA = 2**16


class TooCostly(RequirementError):
    """What a request's checks may take of the processor or of memory is spent."""


class Workers:
    """Processes that run what callers bring; leaving ``async with`` ends them.

    A process is started when it is first needed, and one that is left in the middle is ended.
    """

    def __init__(self) -> None:
        self._idle: list[_Worker] = []
        self._turns = defaultdict[str, anyio.Semaphore](partial(anyio.Semaphore, 1))
        self._slots = anyio.Semaphore(PROCESSES)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        while self._idle:
            await self._idle.pop().end()

    @asynccontextmanager
    async def turn(self, key: str) -> AsyncGenerator[None]:
        """Wait until nothing else of a key is run, and a process is free for it."""
        async with self._turns[key], self._slots:
            yield

    async def ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Ask a process what `caller_worker` understands; within `turn`."""
        worker = self._idle.pop() if self._idle else _Worker()
        line = b""
        try:
            line = await run_in_thread(worker.ask, json.dumps(question).encode("ascii") + b"\n")
        finally:
            if not line:
                await worker.end()
        if line:
            self._idle.append(worker)
            answer: dict[str, Any] = json.loads(line)
            return answer
        if worker.status < 0:  # A signal: the kernel's.
            raise TooCostly(SPENT)
        msg = f"the process for callers' checks ended with status {worker.status}"
        raise RuntimeError(msg)


class _Worker:
    """One process, that is asked in a thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._ended = False
        self.status = 0

    def ask(self, question: bytes) -> bytes:
        """Send a question, and wait for the answer; there is none if the process ends."""
        with self._lock:
            if self._ended:
                return b""
            process = self._process = self._process or _start()
        assert process.stdin is not None  # noqa: S101 (see _start)
        assert process.stdout is not None  # noqa: S101
        with suppress(OSError):  # It has ended.
            process.stdin.write(question)
            process.stdin.flush()
        line = process.stdout.readline()
        if not line:
            self.status = process.wait()
        return line

    async def end(self) -> None:
        with anyio.CancelScope(shield=True):
            await run_in_thread(self._end)

    def _end(self) -> None:
        with self._lock:
            self._ended = True
        if self._process is not None:
            self._process.kill()
            with suppress(OSError), self._process:
                pass  # Waits for its end, and closes its pipes.


def _start() -> subprocess.Popen[bytes]:
    environ = {name: os.environ[name] for name in INHERITED if name in os.environ}
    environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    return subprocess.Popen(  # noqa: S603 (our own words)
        (sys.executable, "-P", "-c", MAIN),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environ,
        start_new_session=True,
    )


class CallersChecks:
    """The checks of one request, and what they may still take."""

    def __init__(self, workers: Workers, key: str) -> None:
        self._workers = workers
        self._key = key
        self._left = 0.0

    async def make(
        self, checks: Mapping[str, Check], *, seconds: float, early: bool, check_only: bool
    ) -> list[Requirement]:
        """Make requirements of expressions and schemas, each by the field that it stood in.

        All of it may take so many seconds of processor time, for all replies.
        """
        self._left = seconds
        made: list[Requirement] = []
        for param, check in checks.items():
            if len(json.dumps(check)) > LONGEST_SCHEMA:
                refuse(param, f"{LONGEST_SCHEMA:,} characters are the most for a schema")
            try:
                answer = await self.ask(check, "{}")  # References in a circle show themselves.
            except RequirementError as exc:
                problem = str(exc)
            else:
                made.append(
                    Requirement(
                        answer["description"],
                        partial(_Verdict, self, check),
                        name=answer["name"],
                        inline=True,
                        check_only=check_only and not isinstance(check, str),
                        on_error="raise",
                        stream=_stream(check) if early else None,
                    )
                )
                continue
            refuse(param, problem)
        return made

    async def ask(self, check: Check, text: str) -> dict[str, Any]:
        """Check a text; returns the process's answer."""
        async with self._workers.turn(self._key):
            if self._left <= 0:
                raise TooCostly(SPENT)
            question = {"check": check, "text": text, "seconds": self._left}
            self._left = 0.0  # Unless it comes back.
            answer = await self._workers.ask(question)
            self._left = question["seconds"] - answer["spent"]
        if "costly" in answer:
            raise TooCostly(answer["costly"])
        if "wrong" in answer:
            raise RequirementError(answer["wrong"])
        return answer


class _Verdict:
    """What a check will say of a reply once it is awaited, which it needn't be."""

    def __init__(self, checks: CallersChecks, check: Check, candidate: Candidate) -> None:
        self._asked = checks, check, candidate.text

    def __await__(self) -> Generator[Any, Any, ValidationResult]:
        return self._decide().__await__()

    async def _decide(self) -> ValidationResult:
        checks, check, text = self._asked
        return ValidationResult(*(await checks.ask(check, text))["verdict"])


def _stream(check: Check) -> StreamCheck | None:
    if not isinstance(check, str):
        return json_only()
    if check.partition(":")[0].strip().lower() == "regex":
        return None  # It would run here.
    return parse_check(check, early=True).stream
