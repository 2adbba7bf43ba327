"""Running programs that models wrote: in processes of their own, with limits."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import weakref
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self

import anyio
from anyio.lowlevel import RunVar

from mellea_like.core.argument_checks import real_number, whole_number
from mellea_like.errors import RequirementError
from mellea_like.runtime.threads import run_in_thread

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["CodeJob", "CodeReport", "CodeRunner", "Sandbox"]

BOOT = """\
import json, os, sys, types
def exactly(size):
    data = b""
    while len(data) < size:
        more = os.read(0, size - len(data))
        if not more:
            os._exit(0)
        data += more
    return data
given = json.loads(exactly(int.from_bytes(exactly(4), "big")))
for name, source in given["modules"]:
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(source, name, "exec", dont_inherit=True), vars(module))
module.serve(given["settings"])
"""
"""What an interpreter is started with; the server comes after it."""

PARTS = ("channel", "guest", "fork_server")

SECONDS_TO_START = 30.0

SECONDS_TO_ANSWER = 30.0
"""How long after a program's time its server may be silent: a program may have stopped it."""

SECONDS_TO_CANCEL = 2.0
"""How long a server may take to end a run; past that, the server is ended."""

SECONDS_TO_END = 10.0

CLIPPED = 2000
"""The most characters of what a program printed that a reason tells the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeJob:
    """A program to run, once.

    Attributes:
        program: its source, in Python.
        stdin: what it reads from its standard input.
        tests: the sources of its tests; without any, the program is run as a file is.
        names: what of the program the tests use; None is all that shadows no builtin.
        seconds: the most that it may take; None is the runner's own limit.
    """

    program: str
    stdin: str = ""
    tests: tuple[str, ...] = ()
    names: tuple[str, ...] | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeReport:
    """How a program's run ended.

    Attributes:
        failure: what went wrong, in words for the model; empty if the program ended by itself with
            exit status 0, or if its tests ran to their end, whatever they found.
        stdout: what it printed, up to the runner's limit.
        stderr: what it wrote to its standard error.
        passed: how many of its tests passed.
        total: how many tests there are.
        failures: what each failed test found.
        seconds: how long it ran.
    """

    failure: str = ""
    stdout: str = ""
    stderr: str = ""
    passed: int = 0
    total: int = 0
    failures: tuple[str, ...] = ()
    seconds: float = 0.0


class CodeRunner(Protocol):
    """Runs programs: a `Sandbox`, or anything of yours with this method, as a service's client."""

    async def run(self, job: CodeJob) -> CodeReport:
        """Run a program, and end it when cancelled.

        Args:
            job: the program, and its tests.

        Returns:
            How it ended; it raises only if the program could not be run.
        """
        ...


class Sandbox:
    """Runs each program in a process of its own, with limits, and ends all of it.

    A server process, started at the first run, forks a process for each program: that takes a few
    milliseconds, where a new interpreter takes ten times as many. The programs of one server see
    the same layout of memory and the same seed of hashes, and nothing else of each other.

    What the system allows is found out by trying, and `describe` says what holds. On Linux with
    namespaces (as root, or where users may make them), a program has no network, sees no other
    process and no files but Python's and ``/usr``, read-only, and all that it starts ends with it.
    Otherwise there are resource limits alone. **Either is a seat belt, not a wall**: the kernel is
    shared. The boundary for code of people who mean harm is a container or a virtual machine; put
    one there with ``python=``, or give the checks a `CodeRunner` of yours.

    Use it with ``async with``, or call `aclose`; servers also end with this process.

    Args:
        seconds: the longest that a program may run; over 0.
        memory: bytes of address space for each process of a program; at least 64 MiB.
        processes: how many processes and threads a program may start, at least 0.
        output: bytes that a program may print; one that prints more is ended.
        files: bytes that a program may write to files: in all with namespaces, else to each.
        concurrency: how many programs run at a time, in each event loop; by default as many as
            this machine has processors.
        path: directories from which programs may import, besides the standard library.
        preload: modules that the server imports before it forks, so that no program waits for them.
        isolation: ``"auto"``, or ``"limits"`` to do without namespaces.
        python: the command that starts an interpreter of Python 3.11 or newer, this one by default.
            ``("docker", "run", "-i", "--rm", "--network=none", "python:3.13-slim", "python3")``
            puts the server into a container; nothing need be installed in it.

    Raises:
        NotImplementedError: this system can't fork processes (Windows).
        TypeError: an argument is of the wrong type.
        ValueError: an argument is out of its range.
    """

    def __init__(
        self,
        *,
        seconds: float = 5.0,
        memory: int = 2**29,
        processes: int = 16,
        output: int = 2**20,
        files: int = 2**24,
        concurrency: int | None = None,
        path: Sequence[str | os.PathLike[str]] = (),
        preload: Sequence[str] = (),
        isolation: Literal["auto", "limits"] = "auto",
        python: Sequence[str] = (),
    ) -> None:
        if not hasattr(os, "fork"):
            msg = (
                "a Sandbox runs on Linux and macOS; on this system, give the check a CodeRunner of"
                " yours: sandbox=... is anything with an async method run(job)"
            )
            raise NotImplementedError(msg)
        if isolation not in ("auto", "limits"):
            msg = f"Sandbox: isolation is 'auto' or 'limits', not {isolation!r}"
            raise ValueError(msg)
        for name, value in (("path", path), ("preload", preload), ("python", python)):
            if isinstance(value, str):
                msg = f"Sandbox: {name} is a sequence of texts, not one text: {value!r}"
                raise TypeError(msg)
        self._config: dict[str, Any] = {
            "seconds": real_number("Sandbox: seconds", seconds, over=0, most=86400, unit="seconds"),
            "memory": whole_number("Sandbox: memory", memory, least=2**26),
            "processes": whole_number("Sandbox: processes", processes, least=0),
            "output": whole_number("Sandbox: output", output),
            "files": whole_number("Sandbox: files", files, least=4096),
            "concurrency": None
            if concurrency is None
            else whole_number("Sandbox: concurrency", concurrency),
            "path": tuple(os.fspath(place) for place in path),
            "preload": tuple(preload),
            "isolation": isolation,
            "python": tuple(python),
        }
        self._servers: list[_Server] = []
        self._turns: RunVar[anyio.Semaphore] = RunVar("the programs of a Sandbox")
        self._finalizer = weakref.finalize(self, _end_all, self._servers)

    def __reduce__(self) -> tuple[Any, ...]:
        return _made, (self._config,)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._config['seconds']:g} s>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End the servers; another run starts new ones."""
        with anyio.CancelScope(shield=True):
            await run_in_thread(_end_all, self._servers)

    async def describe(self) -> str:
        """Say what holds here: which limits, and what a program can still reach.

        Returns:
            Sentences for people.

        Raises:
            RequirementError: the server could not be started.
        """
        server = await self._server()
        self._servers.append(server)
        return _described(self._config, server.holds)

    async def run(self, job: CodeJob) -> CodeReport:
        """Run a program, and end it when cancelled; see `CodeRunner.run`.

        Args:
            job: the program, and its tests.

        Returns:
            How it ended.

        Raises:
            RequirementError: the server could not be started, or could not start the program.
        """
        seconds = self._config["seconds"] if job.seconds is None else job.seconds
        real_number("CodeJob: seconds", seconds, over=0, most=86400, unit="seconds")
        frames: list[dict[str, Any]] = [
            {"seconds": seconds, "tested": bool(job.tests)},
            {"source": job.program, "stdin": job.stdin},
        ]
        if job.tests:
            frames.append({"tests": job.tests, "names": job.names})
        async with self._turn():
            for _ in range(2):
                # A server that was killed is replaced, once: its program may have killed it.
                with anyio.move_on_after(seconds + SECONDS_TO_ANSWER) as waited:
                    found = await self._asked(frames)
                    if found is not None:
                        return _report(job, found, seconds, self._config)
                if waited.cancelled_caught:
                    break
        return CodeReport(
            failure="it ended or stopped the process that watches it, or the system did"
        )

    def _turn(self) -> anyio.Semaphore:
        try:
            return self._turns.get()
        except LookupError:
            turns = anyio.Semaphore(self._config["concurrency"] or os.cpu_count() or 1)
            self._turns.set(turns)
            return turns

    async def _asked(self, frames: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
        """Have a server run a program; None if the server has ended."""
        server = await self._server()
        sent = answered = False
        try:
            await server.send(*frames)
            sent = True
            found = await server.receive()
            answered = found is not None
            return found
        finally:
            if not answered:
                with anyio.CancelScope(shield=True):
                    if sent:
                        with anyio.move_on_after(SECONDS_TO_CANCEL):
                            answered = await server.cancel()
                    if not answered:
                        await run_in_thread(server.end)
            if answered:
                self._servers.append(server)

    async def _server(self) -> _Server:
        """Take a server that is idle, or start one."""
        while self._servers:
            server = self._servers.pop()
            if server.owner == os.getpid() and server.alive():
                return server
            with anyio.CancelScope(shield=True):
                await run_in_thread(server.end)
        server = await _started(self._config)
        try:
            with anyio.move_on_after(SECONDS_TO_START):
                await server.begin(self._config)
        finally:
            if not server.holds:
                with anyio.CancelScope(shield=True):
                    await run_in_thread(server.end)
        if server.holds:
            return server
        msg = (
            f"a Sandbox could not start its server: {self._config['python'] or sys.executable}"
            " is no Python 3.11 or newer, can't import what preload= names, or may not be run"
        )
        raise RequirementError(msg)


class _Server:
    """A server process, and the connection to it; anybody's but one task's at a time."""

    def __init__(self, config: dict[str, Any]) -> None:
        """Start it; blocks."""
        ours, theirs = socket.socketpair()
        kept = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
        command = config["python"] or (sys.executable,)
        try:
            with theirs:
                self.process = subprocess.Popen(  # noqa: S603 (the caller's own words)
                    [*command, "-I", "-S", "-X", "utf8", "-c", BOOT],
                    stdin=theirs.fileno(),
                    stdout=theirs.fileno(),
                    stderr=subprocess.DEVNULL,
                    env=None if config["python"] else kept,
                    start_new_session=True,
                )
        except BaseException:
            ours.close()
            raise
        ours.setblocking(False)
        self.connection = ours
        self.owner = os.getpid()
        self.local = not config["python"]
        self.holds: dict[str, Any] = {}
        self._read = bytearray()
        self._path = [os.path.abspath(place) for place in config["path"]]  # noqa: PTH100
        here = Path(__file__)
        self._modules = [
            [f"{__package__}.{part}", here.with_name(f"{part}.py").read_text("utf-8")]
            for part in PARTS
        ]

    async def begin(self, config: dict[str, Any]) -> None:
        """Send it its own program, and hear what holds."""
        await self.send({"modules": self._modules, "settings": config | {"path": self._path}})
        self._modules.clear()
        self.holds = await self.receive() or {}

    async def send(self, *messages: dict[str, Any]) -> None:
        """Send it messages; whether it is there shows when it answers."""
        data = bytearray()
        for message in messages:
            text = json.dumps(message).encode("ascii")
            data += len(text).to_bytes(4, "big") + text
        with suppress(OSError):
            while data:
                try:
                    del data[: self.connection.send(data)]
                except BlockingIOError:
                    await anyio.wait_writable(self.connection)

    async def receive(self) -> dict[str, Any] | None:
        """Wait for a message; None if it has ended."""
        while True:
            size = int.from_bytes(self._read[:4], "big")
            if len(self._read) >= 4 + size > 4:  # noqa: PLR2004
                message: dict[str, Any] = json.loads(self._read[4 : 4 + size])
                del self._read[: 4 + size]
                return message
            try:
                data = self.connection.recv(2**16)
            except BlockingIOError:
                await anyio.wait_readable(self.connection)
                continue
            except OSError:
                return None
            if not data:
                return None
            self._read += data

    async def cancel(self) -> bool:
        """End the run; whether the server can be used again."""
        await self.send({})
        return await self.receive() is not None

    def alive(self) -> bool:
        """Whether it runs, and says nothing unasked."""
        try:
            self.connection.recv(1)
        except BlockingIOError:
            return self.process.poll() is None
        except OSError:
            pass
        return False

    def end(self) -> None:
        """End it, and all that it has started; blocks, for a moment."""
        self.connection.close()
        if self.owner != os.getpid():
            return  # A fork of the process that started it.
        if (
            self.local and self.process.poll() is None
        ):  # One that its program has stopped could clear nothing away.
            with suppress(OSError):
                os.killpg(self.process.pid, signal.SIGCONT)
        try:
            self.process.wait(SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.local and (place := self.holds.get("place")):
            shutil.rmtree(place, ignore_errors=True)


async def _started(config: dict[str, Any]) -> _Server:
    try:
        with anyio.CancelScope(shield=True):
            return await run_in_thread(_Server, config)
    except OSError as exc:
        msg = f"a Sandbox could not start its server: {exc}"
        raise RequirementError(msg) from exc
    raise AssertionError  # For the type checkers: a scope may swallow what is raised in it.


def _made(config: dict[str, Any]) -> Sandbox:
    return Sandbox(**config)


def _end_all(servers: list[_Server]) -> None:
    while servers:
        servers.pop().end()


# --- in words ------------------------------------------------------------------------------------


def _size(count: int) -> str:
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if count >= unit:
            return f"{count / unit:.3g} {name}"
    return f"{count} bytes"


def _described(config: dict[str, Any], holds: dict[str, Any]) -> str:
    limits = (
        f"Each program runs in a process of its own, for at most {config['seconds']:g} s, with"
        f" {_size(config['memory'])} of memory a process, {config['processes']} more processes,"
        f" {_size(config['output'])} of output and {_size(config['files'])} of files, in an empty"
        " environment and a fresh directory."
    )
    if holds["namespaces"]:
        reach = (
            "Namespaces hold here: no network, no other processes, no files but Python's and /usr,"
            " read-only; all that a program starts ends with it."
        )
    else:
        reach = (
            f"Only these limits hold here ({holds['system']} without namespaces): a program reaches"
            f" the network, and the files and the processes that user {holds['user']} may reach."
        )
        if holds["system"] != "Linux":
            reach += " Memory may not be limited, and what a program detaches from itself stays."
    if holds["root"]:
        reach += " It runs as root, for whom the number of processes isn't limited."
    return f"{limits} {reach} A container is a boundary; this is a seat belt."


def _report(
    job: CodeJob, found: dict[str, Any], seconds: float, config: dict[str, Any]
) -> CodeReport:
    """Say how a run ended."""
    if found["trouble"]:
        msg = f"the sandbox could not start a program: {found['trouble']}"
        raise RequirementError(msg)
    said: list[dict[str, Any]] = found["said"]
    if said and "wrong" in said[-1]:
        msg = f"the tests could not be run: {said[-1]['wrong']}"
        raise RequirementError(msg)
    during = f" in `{said[-1]['at']}`" if said and "at" in said[-1] else ""
    verdict: dict[str, Any] = said[-1] if said and "total" in said[-1] else {}
    failure = ""
    if found["ended"] == "time":
        failure = f"it was not done after {seconds:g} s{during}, and was ended"
    elif found["ended"] == "output":
        failure = f"it printed more than {_size(config['output'])}{during}, and was ended"
    elif job.tests:
        if not verdict:
            failure = f"its tests gave no verdict{during}"
        elif verdict["ended"]:
            how = _status(found["status"])
            failure = f"the program {how} before its tests were done"
    elif found["status"] != 0:
        failure = f"it {_status(found['status'])}"
    tail = found["stderr"].strip()[-CLIPPED:]
    if failure and tail:
        failure += f":\n{tail}"
    return CodeReport(
        failure=failure,
        stdout=found["stdout"],
        stderr=found["stderr"],
        passed=verdict.get("passed", 0),
        total=verdict.get("total", 0),
        failures=tuple(verdict.get("failures", ())),
        seconds=found["seconds"],
    )


def _status(status: int) -> str:
    if status >= 0:
        return f"ended with exit status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    return f"was ended by {name}"
