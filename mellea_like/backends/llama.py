"""A GGUF model on this machine, served by llama.cpp in a child process."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import secrets
import subprocess
import sys
import tempfile
import time
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self, cast

import anyio

from mellea_like.core.argument_checks import real_number, whole_number
from mellea_like.core.backend import texts_only
from mellea_like.errors import BackendError, BackendTimeout, BackendUnavailable, MalformedResponse
from mellea_like.lazy import needs_extra
from mellea_like.runtime.threads import run_in_thread, run_to_its_end

NEEDS = "LlamaCppBackend needs llama.cpp"

with needs_extra("llama", NEEDS):  # It speaks to its server through the SDK.
    from mellea_like.backends.loop_clients import LoopClients
    from mellea_like.backends.openai import OpenAIBackend
    from mellea_like.backends.openai_server import OpenAIServer

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator, Mapping

    from mellea_like.backends.openai_connection import Incoming
    from mellea_like.core.backend import Options, Request

__all__ = ["LlamaCppBackend", "ServerProcess"]

CHILD = f"""
from importlib.util import module_from_spec, spec_from_file_location
spec = spec_from_file_location(
    "mellea_like.backends.llama_server", {str(Path(__file__).with_name("llama_server.py"))!r}
)
module = module_from_spec(spec)
spec.loader.exec_module(module)
module.main()
"""
"""The program that the child process runs. It loads a single module, because importing the package
takes longer."""

POLL_SECONDS = 0.01
CRASH_SECONDS = 5.0
"""How many seconds to wait, after a connection error, to see whether the server's process ends."""

STOP_SECONDS = 2.0
"""How many seconds the child process may take to end by itself before it is killed."""

TAIL_BYTES = 16_384
TAIL_LINES = 8
"""The number of lines of the log to show when the server fails."""


def check_gguf(path: Path) -> None:
    """Raise `BackendUnavailable` unless a path is a readable GGUF file."""
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as exc:
        msg = f"can't read the model {path}: {exc.strerror or exc}"
        raise BackendUnavailable(msg, retryable=False) from None
    if magic != b"GGUF":
        msg = f"{path} isn't a GGUF file: it doesn't start with the letters GGUF"
        raise BackendUnavailable(msg, retryable=False)


class ServerProcess:
    """A child process that runs a llama.cpp server. Making the object starts the process."""

    def __init__(self, path: Path, config: dict[str, Any]) -> None:
        check_gguf(path)
        self._path = path
        self._said = b""
        self._log: IO[bytes] = tempfile.TemporaryFile(prefix="mellea-like-llama-")  # noqa: SIM115
        self._process = subprocess.Popen(  # noqa: S603 (our own words)
            [sys.executable, "-P", "-c", CHILD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,
        )
        self._input = cast("IO[bytes]", self._process.stdin)
        self._output = cast("IO[bytes]", self._process.stdout)
        os.set_blocking(self._output.fileno(), False)
        config = {**config, "path": str(path.resolve())}
        with suppress(OSError):  # If the process has already ended, `address` reports it.
            self._input.write(json.dumps(config).encode() + b"\n")
            self._input.flush()

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._process.pid

    def has_ended(self) -> bool:
        """Return whether the process has ended."""
        return self._process.poll() is not None

    def address(self) -> str | None:
        """Return the server's address without waiting; None if the server isn't ready yet.

        Raises:
            BackendUnavailable: the server can't load the model, or ended before it was ready.
        """
        ended = self.has_ended()
        self._said += self._output.read() or b""
        # Other lines are llama.cpp's output.
        for line in self._said.splitlines(keepends=True):
            if line.startswith(b"{") and line.endswith(b"\n"):
                answer = json.loads(line)
                if "address" in answer:
                    return str(answer["address"])
                if not ended:
                    # The log has the reason, and is complete when the process has ended.
                    return None
                # llama.cpp's exception has no reason, but its log does; the first one counts.
                marked = (said.partition("error loading model: ")[2] for said in self._last_lines())
                why = next(filter(None, marked), answer["error"])
                msg = f"llama.cpp can't load {self._path}: {why}"
                raise BackendUnavailable(msg, retryable=False)
        if ended:
            what = "did not start"
            raise self.failure(what)
        return None

    def failure(self, what: str) -> BackendUnavailable:
        """Return the error for a failed server, with the end of its log."""
        code = self._process.poll()
        how = ""
        if code is not None:
            how = f" (killed by signal {-code})" if code < 0 else f" (exit code {code})"
        said = f"the llama.cpp server of {self._path} {what}{how}"
        tail = "\n".join(self._last_lines()[-TAIL_LINES:])
        return BackendUnavailable(
            f"{said}; its log ends with:\n{tail}" if tail else said, retryable=False
        )

    def stop(self) -> None:
        """End the process and wait until it has ended; kill it if that takes too long."""
        with suppress(OSError):  # Buffered data may be left that nobody will read.
            self._input.close()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._output.close()
        self._log.close()

    def _last_lines(self) -> list[str]:
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, size - TAIL_BYTES))
        return self._log.read().decode("utf-8", "replace").splitlines()


class LlamaCppBackend(OpenAIBackend):
    """Runs a llama.cpp server for one GGUF file.

    Enter it with ``async with`` or, in a script, with ``with``. This raises `BackendUnavailable` if
    the server can't load the file, `BackendTimeout` if that takes too long, and ``RuntimeError`` if
    the backend is already entered. The server runs until the block ends, and any number of event
    loops may use it. It also stops when this process ends, even if this process is killed. Only
    this process can use the server: it listens on the loopback interface and requires a key that is
    generated for it.

    ```python
    async with LlamaCppBackend("model.gguf") as backend:
        result = await RejectionSamplingStrategy(backend).sample("Write a haiku.")
    ```

    Args:
        gguf_path: the model's file.
        context_size: the largest number of tokens of one request, prompt and reply together.
        concurrency: how many requests the server works on at a time; further requests wait in the
            server's queue.
        threads: the number of processor threads; with None, llama.cpp chooses it.
        startup_timeout: how long loading may take, in seconds.
        timeout: how long the server may send nothing during a request, in seconds; None for no
            limit.
        options: defaults for the options that a request leaves open.
        can_judge: whether the model may judge requirements.

    Attributes:
        provider: ``"llama.cpp"``, for telemetry.
        can_judge: as given.
        defaults: ``options``, as given.
        model: the file's name without its suffix.

    Raises:
        ImportError: ``xllamacpp`` is not installed.
        TypeError: an argument is of the wrong type.
        ValueError: a number is out of range, or an option is unknown.
    """

    provider = "llama.cpp"

    def __init__(
        self,
        gguf_path: str | os.PathLike[str],
        *,
        context_size: int = 4096,
        concurrency: int = 4,
        threads: int | None = None,
        startup_timeout: float = 120.0,
        timeout: float | None = 600.0,
        options: Options | Mapping[str, Any] | None = None,
        can_judge: bool = True,
    ) -> None:
        with needs_extra("llama", NEEDS):
            if importlib.util.find_spec("xllamacpp") is None:
                msg = "No module named 'xllamacpp'"
                raise ModuleNotFoundError(msg, name="xllamacpp")
        whole_number("context_size", context_size)
        whole_number("concurrency", concurrency)
        if threads is not None:
            whole_number("threads", threads)
        real_number("startup_timeout", startup_timeout, over=0, most=math.inf, unit="seconds")
        self._path = Path(gguf_path)
        super().__init__(
            self._path.stem,
            timeout=timeout,
            options=options,
            can_judge=can_judge,
            trust_env=False,
        )
        self._config = {
            "name": self._path.stem,
            "context_size": context_size,
            "concurrency": concurrency,
            "threads": threads,
        }
        self._startup_timeout = startup_timeout
        self._process: ServerProcess | None = None
        self._is_ready = False

    def __repr__(self) -> str:
        where = f" at {self.base_url}" if self._is_ready else ", not running"
        return f"<LlamaCppBackend {str(self._path)!r}{where}>"

    @property
    def pid(self) -> int:
        """The process id of the server.

        Raises:
            RuntimeError: the server is not running.
        """
        return self._server().pid

    # --- the server's life ---------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        steps = self._start()
        try:
            while await run_to_its_end(next, steps, False):  # noqa: ASYNC110 (no event)
                await anyio.sleep(POLL_SECONDS)
        except BaseException:
            await run_to_its_end(steps.close)
            raise
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        with anyio.CancelScope(shield=True):
            await self.aclose()
        await run_to_its_end(self._stop)

    def __enter__(self) -> Self:
        with closing(self._start()) as steps:
            for _ in steps:
                time.sleep(POLL_SECONDS)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stop()

    def _start(self) -> Generator[bool]:
        """Start the server, and yield each time that it isn't ready yet; stop it on an error."""
        if self._process is not None:
            msg = "this LlamaCppBackend is already entered: use it in one block at a time"
            raise RuntimeError(msg)
        key = secrets.token_urlsafe()
        process = self._process = ServerProcess(self._path, {**self._config, "api_key": key})
        try:
            deadline = time.monotonic() + self._startup_timeout
            while (address := process.address()) is None:
                if time.monotonic() > deadline:
                    late = f"was not ready within {self._startup_timeout:g} s, its startup_timeout"
                    raise BackendTimeout(str(process.failure(late)), retryable=False)
                yield True
        except BaseException:
            self._stop()
            raise
        self._address = OpenAIServer(f"{address}/v1", key, None)
        self._is_ready = True
        self._clients = LoopClients(self._make_client, close=True)

    def _stop(self) -> None:
        process, self._process, self._is_ready = self._process, None, False
        if process is not None:
            process.stop()

    def _server(self) -> ServerProcess:
        if self._process is None or not self._is_ready:
            msg = "the llama.cpp server isn't running: use the backend inside `async with`"
            raise RuntimeError(msg)
        return self._process

    @property
    def _where(self) -> OpenAIServer:
        self._server()
        return self._address

    # --- requests ------------------------------------------------------------------------------

    @asynccontextmanager
    async def _open(self, request: Request, choices: int | None = None) -> AsyncGenerator[Incoming]:
        server = self._server()
        texts_only(request, "LlamaCppBackend", tools=True)
        try:
            async with super()._open(request, choices) as incoming:
                yield incoming
                return
        except BackendError as exc:
            error = await _explained(exc, server)
        raise error


async def _explained(exc: BackendError, process: ServerProcess) -> BackendError:
    """Return an error about the crash if the server has crashed; otherwise, return ``exc``."""
    broken = isinstance(exc, BackendUnavailable | MalformedResponse)
    if not broken or exc.status is not None:
        return exc
    with anyio.move_on_after(CRASH_SECONDS):
        while not process.has_ended():  # noqa: ASYNC110 (the end of a process sets no event)
            await anyio.sleep(POLL_SECONDS)
    if not process.has_ended():
        return exc
    return await run_in_thread(process.failure, "has crashed")
