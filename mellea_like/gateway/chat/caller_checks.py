"""Run callers' checks and JSON Schemas in other processes, within limits of time and memory."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from contextlib import asynccontextmanager, suppress
from functools import lru_cache, partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Self

import anyio

from mellea_like.core.conversation import Context, Instruction
from mellea_like.core.generation import Generation
from mellea_like.core.requirement import Requirement
from mellea_like.core.validation import Candidate, ValidationResult
from mellea_like.errors import RequirementError
from mellea_like.gateway.refusal import refuse
from mellea_like.requirements.checks import ForeignSchema, json_schema
from mellea_like.requirements.expressions import parse_check
from mellea_like.runtime.threads import run_in_thread, run_to_its_end

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
    from typing import TypeAlias

    from mellea_like.core.validation import StreamCheck

    Check: TypeAlias = str | Mapping[str, Any]
    """A check that a caller sent: an expression or a JSON Schema."""

    _Process: TypeAlias = subprocess.Popen[bytes]

PROCESSES = max(1, (os.cpu_count() or 2) // 2)
"""The maximum number of check processes: half the CPUs, so that the gateway can use the others."""

MAIN = "from mellea_like.gateway.chat.caller_checks import main; main()"

INHERITED = ("LD_LIBRARY_PATH", "PATH")
"""The environment variables that a check process inherits. Others may contain upstreams' keys."""

SPENT = "it takes more processor time or memory than all checks of a request may use together"

LONGEST_SCHEMA = 2**16

REMEMBERED = 4096
"""The maximum number of valid tool schemas to remember, so that they aren't checked again."""

MEMORY = 2**30
"""The limit of a check process's address space, in bytes: callers' patterns can need any amount."""

NICENESS = 10


class TooCostly(RequirementError):
    """A request's checks have used up their processor time or memory."""


class Workers:
    """Runs callers' checks in processes, which are ended at the end of the ``async with`` block."""

    def __init__(self) -> None:
        self._idle: list[_Process] = []
        self._turns = defaultdict[str, anyio.Semaphore](partial(anyio.Semaphore, 1))
        self._slots = anyio.Semaphore(PROCESSES)
        self.accepted: dict[bytes, None] = {}
        """The digests of valid tool schemas, the latest last."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        while self._idle:
            await run_to_its_end(_end, self._idle.pop())

    @asynccontextmanager
    async def turn(self, key: str) -> AsyncGenerator[None]:
        """Run a block as soon as a process is free and no other check for this API key runs."""
        async with self._turns[key], self._slots:
            yield

    async def ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Run a check in a process, and return the result. Call this only within `turn`."""
        process = self._idle.pop() if self._idle else await run_to_its_end(_start)
        line = b""
        try:
            line = await run_in_thread(_ask, process, json.dumps(question).encode("ascii"))
        finally:
            if not line:
                await run_to_its_end(_end, process)
        if line:
            self._idle.append(process)
            answer: dict[str, Any] = json.loads(line)
            return answer
        if process.returncode < 0:  # The kernel sent a signal.
            raise TooCostly(SPENT)
        msg = f"the process for callers' checks ended with status {process.returncode}"
        raise RuntimeError(msg)


def _start() -> _Process:
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


def _ask(process: _Process, question: bytes) -> bytes:
    """Send a question to a process, and return the answer, or ``b""`` if the process has ended."""
    assert process.stdin is not None  # noqa: S101 (see _start)
    assert process.stdout is not None  # noqa: S101
    with suppress(OSError):  # It has ended.
        process.stdin.write(question + b"\n")
        process.stdin.flush()
    line = process.stdout.readline()
    if not line:
        process.wait()  # Wait before anyone kills it, because its status tells why it ended.
    return line


def _end(process: _Process) -> None:
    process.kill()
    with suppress(OSError), process:
        pass  # This waits for its end and closes its pipes.


class CallersChecks:
    """Runs the checks of one request, which share one limit of processor time for all replies."""

    def __init__(self, workers: Workers, key: str, seconds: float) -> None:
        self._workers = workers
        self._key = key
        self._left = seconds

    async def make(
        self, checks: Mapping[str, Check], *, early: bool, check_only: bool
    ) -> list[Requirement]:
        """Make a requirement from each check. The keys are the checks' places in the request."""
        made: list[Requirement] = []
        for param, check in checks.items():
            answer = await self._try(param, check)
            made.append(
                Requirement(
                    answer["description"],
                    partial(self._verdict, check),
                    name=answer["name"],
                    inline=True,
                    check_only=check_only and not isinstance(check, str),
                    on_error="raise",
                    stream=_stream(check) if early else None,
                )
            )
        return made

    def _verdict(self, check: Check, candidate: Candidate) -> Deferred:
        async def decide() -> ValidationResult:
            return ValidationResult(*(await self.ask(check, candidate.text))["verdict"])

        return Deferred(decide)

    async def accept(self, param: str, schema: Mapping[str, Any]) -> None:
        """Refuse a tool's JSON Schema if it is invalid."""
        # A valid schema isn't checked again: agents send the same tools with each request.
        digest = sha256(json.dumps(schema).encode("ascii")).digest()
        accepted = self._workers.accepted
        if digest not in accepted:
            await self._try(param, schema)
            accepted[digest] = None
            if len(accepted) > REMEMBERED:
                del accepted[next(iter(accepted))]

    async def _try(self, param: str, check: Check) -> dict[str, Any]:
        if len(json.dumps(check)) > LONGEST_SCHEMA:
            refuse(param, f"a schema may have at most {LONGEST_SCHEMA:,} characters")
        answer: dict[str, Any] = {}
        problem = ""
        try:
            answer = await self.ask(check, "{}")  # A trial run reveals circular references.
        except RequirementError as exc:
            problem = str(exc)
        if not answer:
            refuse(param, problem)
        return answer

    async def ask(self, check: Check, text: str, *, call: bool = False) -> dict[str, Any]:
        """Check a text, or with ``call`` the arguments of a tool call, in a process."""
        async with self._workers.turn(self._key):
            if self._left <= 0:
                raise TooCostly(SPENT)
            question = {"check": check, "text": text, "call": call, "seconds": self._left}
            self._left = 0.0  # Set again below if an answer comes.
            answer = await self._workers.ask(question)
            self._left = question["seconds"] - answer["spent"]
        if "costly" in answer:
            raise TooCostly(answer["costly"])
        if "wrong" in answer:
            raise RequirementError(answer["wrong"])
        return answer


class Deferred:
    """A verdict that is computed when it is awaited. Unlike a coroutine, it need not be awaited."""

    def __init__(self, decide: Callable[[], Awaitable[ValidationResult]]) -> None:
        self._decide = decide

    def __await__(self) -> Generator[Any, Any, ValidationResult]:
        return self._decide().__await__()


def _stream(check: Check) -> StreamCheck | None:
    if not isinstance(check, str):
        return ForeignSchema(check).stream()
    if check.partition(":")[0].strip().lower() == "regex":
        return None  # A copy would run in this process.
    return parse_check(check, early=True).stream


# --- in the process, which may hang without harm -------------------------------------------------


def main() -> None:
    """Run the checks that arrive on stdin as lines of JSON, and write their results to stdout."""
    # The kernel ends the process when a question exceeds its processor time or memory.
    import resource  # noqa: PLC0415 (not on every system)

    os.nice(NICENESS)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for line in sys.stdin.buffer:
        asked = json.loads(line)
        began = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, asked["seconds"])  # Its signal isn't caught.
        answer = _answer(asked)
        signal.setitimer(signal.ITIMER_PROF, 0)
        spent = time.process_time() - began
        sys.stdout.write(json.dumps({**answer, "spent": spent}) + "\n")
        sys.stdout.flush()


def _answer(asked: dict[str, Any]) -> dict[str, Any]:
    try:
        requirement = _made(json.dumps(asked["check"]), call=asked.get("call", False))
        result = _verdict(requirement, asked["text"])
    except (TypeError, ValueError) as exc:
        return {"wrong": str(exc)}
    except (RequirementError, MemoryError, RecursionError) as exc:
        return {"costly": str(exc) or "it takes too much memory"}
    made = {"name": requirement.name, "description": requirement.description}
    return {**made, "verdict": [result.passed, result.reason, result.score]}


@lru_cache(maxsize=64)
def _made(check: str, *, call: bool) -> Requirement:
    given = json.loads(check)
    if isinstance(given, str):
        return parse_check(given)
    return ForeignSchema(given).arguments() if call else json_schema(given)


def _verdict(requirement: Requirement, text: str) -> ValidationResult:
    assert requirement.validator is not None  # noqa: S101 (a ready-made check has one)
    candidate = Candidate(text, text, Generation(text), Context(), Instruction(text))
    verdict = requirement.validator(candidate)
    return verdict if isinstance(verdict, ValidationResult) else anyio.run(_awaited, verdict)


async def _awaited(verdict: Any) -> ValidationResult:
    result: ValidationResult = await verdict
    return result
