"""A sandbox for programs that models wrote: each runs in its own process, with limits."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import warnings
import weakref
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import anyio
from anyio.lowlevel import RunVar

from mellea_like.core.argument_checks import check_one_of, real_number, whole_number
from mellea_like.errors import RequirementError
from mellea_like.requirements.code.plain import encode
from mellea_like.requirements.code.report import described, report
from mellea_like.runtime.threads import run_in_thread, run_to_its_end

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mellea_like.requirements.code.report import CodeJob, CodeReport

BOOT = """\
import builtins, json, sys, types
given = json.loads(sys.stdin.buffer.readline())
for name, source in given["modules"]:
    module = sys.modules[name] = types.ModuleType(name)
    module.__builtins__ = dict(vars(builtins))
    exec(compile(source, name, "exec", dont_inherit=True), vars(module))
module.serve(given["settings"])
"""
"""The program that the interpreter starts with, which reads and runs the template's source."""

PARTS = ("plain", "pytest_parts", "harness", "template")

SHOWN = (
    *("/usr", "/lib", "/lib32", "/lib64", "/bin", "/etc/ld.so.cache", "/etc/localtime"),
    *(f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom")),
)
"""If namespaces are used, the paths that programs see in addition to Python's."""

WAYS = {"auto": ("bubblewrap", "unshare"), "limits": ("limits",)}
"""For each value of ``isolation``, the ways to isolate programs; the first that works is used."""

SECONDS_TO_START = 30.0
SECONDS_TO_ANSWER = 30.0
"""How long to wait for a report after a program's time is up.

The wait must end, because a program can suspend the template, which then sends no report.
"""
SECONDS_TO_END = 5.0


class Sandbox:
    """Runs each program in its own process, with limits. All that a program starts ends with it.

    The first run starts a template process, which forks a process for each program in a few
    milliseconds. Programs share the seed of Python's hashes, and nothing else.

    Namespaces keep a program away from the network, other processes, and all files except Python's
    and ``/usr``, which it can only read. They are made with bubblewrap (``bwrap``), or else with
    util-linux's ``unshare``. If neither works, no program runs, and the check errs with the
    reason. **A sandbox is a seat belt, not a wall**, because programs share the kernel. Run
    attackers' code in a container or a virtual machine, with ``python=`` or with your own
    `CodeRunner`.

    Use it with ``async with``, or call `aclose`. Template processes also end with this process.

    Args:
        seconds: the time limit of a program, in seconds of processor time; over 0.
        wall_seconds: the time limit of a program, in seconds of real time. The default is four
            times ``seconds`` plus one, because programs may have to wait for a processor.
        memory: the address space of each process of a program, in bytes, at least 64 MiB.
        processes: how many processes and threads a program may start, at least 0.
        output: how many bytes a program may write to each of its outputs.
        files: how many bytes a program may write: with namespaces to all files together, otherwise
            to each file.
        concurrency: how many programs may run at a time in each event loop; by default, the number
            of this machine's processors.
        path: directories from which programs may import, in addition to the standard library.
        preload: modules that the template imports before it forks, which saves each program time.
        isolation: ``"auto"`` for namespaces, or ``"limits"`` for none. With ``"limits"``, programs
            can reach the network and all files and processes of their user. They never run as
            root: if this process does, they run as an unprivileged user, or are refused.
        python: the command that starts Python 3.11 or newer. The default is this Python; with
            namespaces, the command must be in ``/usr``. To run the template in a container, use
            ``isolation="limits"`` with ``("docker", "run", "-i", "--rm", "--network=none",
            "--user=65534", "python:3.13-slim", "python3")``; nothing needs to be installed in it.

    Warns:
        RuntimeWarning: ``isolation="limits"`` is used without ``python``, so there is no container.

    Raises:
        NotImplementedError: the system is Windows.
        TypeError: an argument is of the wrong type.
        ValueError: an argument is out of range.
    """

    def __init__(
        self,
        *,
        seconds: float = 5.0,
        wall_seconds: float | None = None,
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
            msg = "a Sandbox needs Linux: on other systems, pass your own CodeRunner as sandbox="
            raise NotImplementedError(msg)
        check_one_of("Sandbox: isolation", isolation, ("auto", "limits"))
        for name, value in (("path", path), ("preload", preload), ("python", python)):
            if isinstance(value, str):
                msg = f"Sandbox: {name} must be a sequence of texts, not {value!r}"
                raise TypeError(msg)
        if isolation == "limits" and not python:
            msg = (
                "Sandbox(isolation='limits'): programs can access the network, and the files and"
                " processes of their user; use namespaces, or a container with python=, to prevent"
                " this"
            )
            warnings.warn(msg, RuntimeWarning, stacklevel=2)
        seconds = real_number("Sandbox: seconds", seconds, over=0, most=86400, unit="seconds")
        if wall_seconds is not None:
            real_number("Sandbox: wall_seconds", wall_seconds, over=0, most=86400)
        self._config: dict[str, Any] = {
            "seconds": seconds,
            "wall_seconds": wall_seconds,
            "memory": whole_number("Sandbox: memory", memory, least=2**26),
            "processes": whole_number("Sandbox: processes", processes, least=0),
            "output": whole_number("Sandbox: output", output),
            "files": whole_number("Sandbox: files", files, least=4096),
            "concurrency": concurrency,
            "path": tuple(os.fspath(place) for place in path),
            "preload": tuple(preload),
            "isolation": isolation,
            "python": tuple(python),
        }
        if concurrency is not None:
            whole_number("Sandbox: concurrency", concurrency)
        self._way = ""
        self._servers: list[_Server] = []
        self._turns: RunVar[anyio.Semaphore] = RunVar("the programs of a Sandbox")
        self._finalizer = weakref.finalize(self, _end_all, self._servers)

    def __reduce__(self) -> tuple[Any, ...]:
        return _made, (self._config,)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End the processes that wait for further programs. A later run starts a new one."""
        await run_to_its_end(_end_all, self._servers)

    async def describe(self) -> str:
        """Return a text about the limits in force, and about the things a program can still reach.

        Returns:
            The text, for people to read.

        Raises:
            RequirementError: the template could not be started.
        """
        server = await self._server()
        self._servers.append(server)
        return described(self._config, self._way, server.holds)

    async def run(self, job: CodeJob) -> CodeReport:
        """Run a program, and end it if this call is cancelled; see `CodeRunner.run`.

        Args:
            job: the program and its tests.

        Returns:
            The outcome of the run.

        Raises:
            RequirementError: the template process could not be started, or the program isn't to
                blame for the run's failure.
            TypeError: an input of the job isn't plain data, or its ``seconds`` isn't a number.
            ValueError: its ``seconds`` isn't over 0 and at most 86,400.
        """
        seconds = self._config["seconds"] if job.seconds is None else job.seconds
        real_number("CodeJob: seconds", seconds, over=0, most=86400, unit="seconds")
        names = ("program", "stdin", "tests", "names", "function")
        asked: dict[str, Any] = {name: getattr(job, name) for name in names} | {
            "inputs": [encode(given) for given in job.inputs],
            "secret": secrets.token_hex(16),
            "seconds": seconds,
            "wall": self._config["wall_seconds"] or 4 * seconds + 1,
        }
        try:
            turns = self._turns.get()
        except LookupError:
            turns = anyio.Semaphore(self._config["concurrency"] or os.cpu_count() or 1)
            self._turns.set(turns)
        async with turns:
            for _ in range(2):
                # A killed server is replaced only once, because its program may have killed it.
                with anyio.move_on_after(asked["wall"] + SECONDS_TO_ANSWER) as waited:
                    server = await self._server()
                    if found := await self._asked(server, asked):
                        return await run_in_thread(report, job, found, asked, self._config)
                if waited.cancelled_caught:
                    break
        msg = "the program or the system stopped the process that watches programs"
        raise RequirementError(msg)

    async def _asked(self, server: _Server, asked: dict[str, Any]) -> dict[str, Any] | None:
        """Run a program in a template process; return the outcome, or None if the template died."""
        found = None
        try:
            await server.send(asked)
            try:
                found = await server.receive()
            except anyio.get_cancelled_exc_class():
                with anyio.move_on_after(SECONDS_TO_END, shield=True):
                    await server.send(None)  # This ends the program.
                    found = await server.receive()
                raise
            return found
        finally:
            if found:
                self._servers.append(server)
            else:
                await run_to_its_end(server.end)

    async def _server(self) -> _Server:
        """Return the connection to an idle template process, or to a new one."""
        while self._servers:
            server = self._servers.pop()
            if server.owner == os.getpid() and server.process.poll() is None:
                return server
            await run_to_its_end(server.end)
        trouble: list[str] = []
        for way in (self._way,) if self._way else WAYS[self._config["isolation"]]:
            try:
                server = await run_to_its_end(_Server, self._config, way)
            except OSError as exc:
                trouble.append(str(exc))
                continue
            try:
                with anyio.move_on_after(SECONDS_TO_START):
                    await server.begin()
            finally:
                if not server.holds:
                    await run_to_its_end(server.end)
            if server.holds:
                self._way = way
                return server
            trouble.append(f"{way}: {server.trouble}")
        msg = f"the Sandbox could not start. {'; '.join(trouble)}."
        if self._config["isolation"] == "auto":
            msg += (
                " Install bubblewrap (bwrap), allow users to create namespaces, run programs in"
                " your own container with python=[...], or do without isolation with"
                " isolation='limits'."
            )
        raise RequirementError(msg)


class _Server:
    """A template process and the connection to it, for one task at a time."""

    def __init__(self, config: dict[str, Any], way: str) -> None:
        """Start the template process. This blocks."""
        path = [os.path.abspath(place) for place in config["path"]]  # noqa: PTH100
        shown = sorted({*SHOWN, sys.base_prefix, sys.base_exec_prefix, *path} - {"/"})
        in_tmp = any(place.startswith("/tmp/") for place in shown)  # noqa: S108
        links = ["/dev/shm", *(() if in_tmp else ("/tmp",))]  # noqa: S108
        # It isn't the virtual environment's, which programs don't see.
        base: str = getattr(sys, "_base_executable", sys.executable)
        command = [
            *_wrapped(way, shown, links),
            *(config["python"] or (os.path.realpath(base),)),
            *("-I", "-S", "-X", "utf8", "-c", BOOT),
        ]
        kept = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
        kept["MALLOC_ARENA_MAX"] = "1"  # Otherwise each thread takes 64 MiB of address space.
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                self.process = subprocess.Popen(  # noqa: S603 (the caller's own words)
                    command,
                    stdin=theirs.fileno(),
                    stdout=theirs.fileno(),
                    stderr=subprocess.DEVNULL,
                    env=None if way == "limits" and config["python"] else kept,
                    start_new_session=True,
                )
        except BaseException:
            ours.close()
            raise
        ours.setblocking(False)
        self.connection = ours
        self.owner = os.getpid()
        self.holds: dict[str, Any] = {}
        self._read = bytearray()
        self.trouble = f"{command[0]} can't be run here, or doesn't start Python 3.11 or newer"
        self._settings = config | {"path": path, "way": way, "shown": shown, "links": links}

    async def begin(self) -> None:
        """Send the template its source, and receive a description of the limits."""
        here = anyio.Path(__file__)
        modules = [
            (f"{__package__}.{part}", await here.with_name(f"{part}.py").read_text("utf-8"))
            for part in PARTS
        ]
        await self.send({"modules": modules, "settings": self._settings})
        said = await self.receive() or {"trouble": self.trouble}
        self.trouble = said["trouble"]
        if not self.trouble:
            self.holds = said

    async def send(self, message: dict[str, Any] | None) -> None:
        """Send the template a message, or None to end its program; ignore a closed connection."""
        data = bytearray(b"" if message is None else json.dumps(message).encode("ascii")) + b"\n"
        with suppress(OSError):
            while data:
                try:
                    del data[: self.connection.send(data)]
                except BlockingIOError:
                    await anyio.wait_writable(self.connection)

    async def receive(self) -> dict[str, Any] | None:
        """Wait for the template's answer and return it, or None if the template has ended."""
        data = self._read  # It is kept if this is cancelled.
        while not data.endswith(b"\n"):
            try:
                more = self.connection.recv(2**20)
            except BlockingIOError:
                await anyio.wait_readable(self.connection)
                continue
            except OSError:
                return None
            if not more:
                return None
            data += more
        found: dict[str, Any] = json.loads(data)
        data.clear()
        return found

    def end(self) -> None:
        """End the template and everything that it has started. This blocks for a moment."""
        self.connection.close()  # This makes it end its program and itself.
        if self.owner != os.getpid():
            return  # This is a fork of the process that started it.
        with suppress(OSError):  # Without namespaces, a program may have stopped it.
            os.kill(self.process.pid, signal.SIGCONT)
        try:
            self.process.wait(SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def _wrapped(way: str, shown: Sequence[str], links: Sequence[str]) -> list[str]:
    """Return the words to put before a command to run it in namespaces; none for "limits"."""
    kinds = ["pid", "net", "ipc", "uts", *(["user"] if os.geteuid() else [])]
    unshared = [f"--{'unshare-' * (way == 'bubblewrap')}{kind}" for kind in kinds]
    if way == "unshare":
        mapped = ["--map-current-user", "--keep-caps"] if os.geteuid() else []
        return ["unshare", "--mount", "--fork", "--kill-child", *unshared, *mapped]
    if way == "limits":
        return []
    command = ["bwrap", "--as-pid-1", "--cap-add", "ALL", *unshared]
    above = {os.fspath(one) for path in shown for one in Path(path).parents}
    for place in sorted(above - {"/", *shown}):  # Unprivileged users must be able to enter them.
        command += ["--perms", "0755", "--dir", place]
    for path in shown:
        command += ["--dev-bind-try" if path.startswith("/dev/") else "--ro-bind-try", path, path]
    command += ["--dir", "/box"]
    for link in links:
        command += ["--symlink", "/box", link]
    return [*command, "--remount-ro", "/"]


def _made(config: dict[str, Any]) -> Sandbox:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # The user has already been warned.
        return Sandbox(**config)


def _end_all(servers: list[_Server]) -> None:
    while servers:
        servers.pop().end()
