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
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self, cast

import anyio

from mellea_like.core.argument_checks import real_number
from mellea_like.core.options import Options
from mellea_like.errors import BackendError, BackendTimeout, BackendUnavailable
from mellea_like.runtime.threads import run_in_thread

MISSING = "LlamaCppBackend needs llama.cpp: pip install 'mellea-like[llama]'"

try:
    from mellea_like.backends.openai import OpenAIBackend
except ImportError as _exc:  # It speaks to its server through the SDK.
    raise ImportError(MISSING) from _exc

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Mapping
    from contextlib import AbstractAsyncContextManager

    from mellea_like.core.backend import Request
    from mellea_like.core.generation import Generation

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
"""What the child runs: that one module, for the package around it takes longer to load."""

POLL_SECONDS = 0.01
CRASH_SECONDS = 0.5
"""A broken connection is seen before the process's end; wait so long for the latter."""

STOP_SECONDS = 2.0
"""How long the child may take to end by itself; then it is killed."""

TAIL_BYTES = 16_384
TAIL_LINES = 8
"""How much of the log is shown when the server fails."""


def check_gguf(path: Path) -> None:
    """Make sure that a file is there and is a GGUF file."""
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
    """The child process."""

    def __init__(self, path: Path, config: dict[str, Any]) -> None:
        self._path = path
        self._config = config
        self._said = b""
        self._log: IO[bytes] | None = None
        self._started: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process; `address` tells when the server is ready."""
        check_gguf(self._path)
        log = self._log = tempfile.TemporaryFile(prefix="mellea-like-llama-")  # noqa: SIM115
        process = self._started = subprocess.Popen(  # noqa: S603 (our own words)
            [sys.executable, "-P", "-c", CHILD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )
        os.set_blocking(self._output.fileno(), False)
        config = {**self._config, "path": str(self._path.resolve())}
        with suppress(OSError):  # Where it has ended already, `address` says so.
            cast("IO[bytes]", process.stdin).write(json.dumps(config).encode() + b"\n")
            cast("IO[bytes]", process.stdin).flush()

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._process.pid

    @property
    def _process(self) -> subprocess.Popen[bytes]:
        return cast("subprocess.Popen[bytes]", self._started)

    @property
    def _output(self) -> IO[bytes]:
        return cast("IO[bytes]", self._process.stdout)

    def has_ended(self) -> bool:
        """Tell whether the process is gone."""
        return self._process.poll() is not None

    def address(self) -> str | None:
        """Look whether the server is ready; does not wait."""
        ended = self.has_ended()
        self._said += self._output.read() or b""
        # What llama.cpp might print there comes in other lines.
        for line in self._said.splitlines(keepends=True):
            if line.startswith(b"{") and line.endswith(b"\n"):
                answer = json.loads(line)
                if "address" in answer:
                    return str(answer["address"])
                if not ended:
                    return None  # Its log, which has the reason, is whole when it has ended.
                raise self._refusal(answer["error"])
        if ended:
            what = "did not start"
            raise self.failure(what)
        return None

    def failure(self, what: str) -> BackendUnavailable:
        """Say what happened to the server, with the end of its log."""
        code = self._process.poll()
        how = ""
        if code is not None:
            how = f" (killed by signal {-code})" if code < 0 else f" (exit code {code})"
        said = f"the llama.cpp server of {self._path} {what}{how}"
        tail = "\n".join(self._last_lines()[-TAIL_LINES:])
        return BackendUnavailable(
            f"{said}; its log ends:\n{tail}" if tail else said, retryable=False
        )

    def stop(self) -> None:
        """End the process and wait for its end; kill it if it takes too long."""
        if self._started is not None:
            with suppress(OSError):  # There may be something unwritten, for no one to read.
                cast("IO[bytes]", self._started.stdin).close()
            try:
                self._started.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._started.kill()
                self._started.wait()
            self._output.close()
        if self._log is not None:
            self._log.close()

    def _refusal(self, error: str) -> BackendUnavailable:
        # llama.cpp's exception says nothing; the first reason in its log does.
        marked = (line.partition("error loading model: ")[2] for line in self._last_lines())
        why = next(filter(None, marked), error)
        return BackendUnavailable(f"llama.cpp can't load {self._path}: {why}", retryable=False)

    def _last_lines(self) -> list[str]:
        log = cast("IO[bytes]", self._log)
        size = log.seek(0, os.SEEK_END)
        log.seek(max(0, size - TAIL_BYTES))
        return log.read().decode("utf-8", "replace").splitlines()


@dataclass(frozen=True)
class _Running:
    """A server that is ready, and the backend that speaks to it."""

    process: ServerProcess
    backend: OpenAIBackend


class LlamaCppBackend:
    """Runs a llama.cpp server for one GGUF file.

    Enter it with ``async with``, or with ``with`` in a script; the server is up inside the block,
    for any number of event loops, and gone after it. It is gone too when this process ends in
    whatever way. Only this process may use it: it listens on the loopback and asks for a key that
    is made for it.

    ```python
    async with LlamaCppBackend("model.gguf") as backend:
        result = await RejectionSamplingStrategy(backend).sample("Write a haiku.")
    ```

    Args:
        gguf_path: the model's file.
        context_size: tokens of one request, prompt and reply together.
        concurrency: requests that the server works on at a time; further ones wait in its queue.
        threads: processor threads; None leaves it to llama.cpp.
        startup_timeout: how long loading may take, in seconds.
        timeout: the longest silence of the server during a request, in seconds; None for no limit.
        options: defaults for what a request's options leave open.
        can_judge: whether its verdicts on requirements are wanted.

    Attributes:
        provider: ``"llama.cpp"``, for telemetry.
        can_judge: as given.
        defaults: ``options``, as given.
        model: the file's name without its ending.

    Raises:
        ImportError: ``xllamacpp`` is not installed.
        TypeError: a number is none.
        ValueError: a number is out of its range.
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
        if importlib.util.find_spec("xllamacpp") is None:
            raise ImportError(MISSING)
        for name, value in (
            ("context_size", context_size),
            ("concurrency", concurrency),
            ("threads", threads),
            ("startup_timeout", startup_timeout),
        ):
            if value is not None:
                real_number(name, value, over=0, most=math.inf)
        self.can_judge = can_judge
        self._path = Path(gguf_path)
        self.model = self._path.stem
        self._config = {
            "name": self.model,
            "context_size": context_size,
            "concurrency": concurrency,
            "threads": threads,
        }
        self._startup_timeout = startup_timeout
        self._timeout = timeout
        self.defaults = Options.of(options)
        self._running: _Running | None = None
        self._entered = False

    def __repr__(self) -> str:
        where = f" at {self._running.backend.base_url}" if self._running else ", not running"
        return f"<LlamaCppBackend {str(self._path)!r}{where}>"

    @property
    def base_url(self) -> str:
        """Where the server is.

        Raises:
            RuntimeError: it is not running.
        """
        return self._server().backend.base_url

    @property
    def pid(self) -> int:
        """The process id of the server.

        Raises:
            RuntimeError: it is not running.
        """
        return self._server().process.pid

    # --- the server's life ---------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        key = secrets.token_urlsafe()
        process = self._enter(key)
        try:
            with anyio.CancelScope(shield=True):
                await run_in_thread(process.start)
            deadline = time.monotonic() + self._startup_timeout
            while (address := await run_in_thread(process.address)) is None:
                await run_in_thread(self._check_time, process, deadline)
                await anyio.sleep(POLL_SECONDS)
        except BaseException:
            await self._leave(process)
            raise
        self._running = self._connect(process, address, key)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        server = self._server()
        self._running = None
        with anyio.CancelScope(shield=True):
            await server.backend.aclose()
        await self._leave(server.process)

    async def _leave(self, process: ServerProcess) -> None:
        self._entered = False
        with anyio.CancelScope(shield=True):
            await run_in_thread(process.stop)

    def __enter__(self) -> Self:
        key = secrets.token_urlsafe()
        process = self._enter(key)
        try:
            process.start()
            deadline = time.monotonic() + self._startup_timeout
            while (address := process.address()) is None:
                self._check_time(process, deadline)
                time.sleep(POLL_SECONDS)
        except BaseException:
            self._entered = False
            process.stop()
            raise
        self._running = self._connect(process, address, key)
        return self

    def __exit__(self, *exc_info: object) -> None:
        server = self._server()
        self._running = None
        self._entered = False
        server.process.stop()

    def _enter(self, key: str) -> ServerProcess:
        if self._entered:
            msg = "this LlamaCppBackend is entered already: one block at a time"
            raise RuntimeError(msg)
        self._entered = True
        return ServerProcess(self._path, {**self._config, "api_key": key})

    def _check_time(self, process: ServerProcess, deadline: float) -> None:
        if time.monotonic() > deadline:
            late = f"was not ready within {self._startup_timeout:g} s, its startup_timeout"
            raise BackendTimeout(str(process.failure(late)), retryable=False)

    def _connect(self, process: ServerProcess, address: str, key: str) -> _Running:
        backend = OpenAIBackend(
            self.model,
            base_url=f"{address}/v1",
            api_key=key,
            timeout=self._timeout,
            options=self.defaults,
            trust_env=False,
        )
        return _Running(process, backend)

    def _server(self) -> _Running:
        if self._running is None:
            msg = "the llama.cpp server is not running: use the backend inside `async with`"
            raise RuntimeError(msg)
        return self._running

    # --- requests ------------------------------------------------------------------------------

    async def generate(self, request: Request) -> Generation:
        """Answer one request; see `Backend.generate`.

        Raises:
            BackendError: there is no reply.
            RuntimeError: the server is not running.
        """
        server = self._server()
        try:
            return await server.backend.generate(request)
        except BackendError as exc:
            error = await _explained(exc, server.process)
        raise error

    def stream(
        self, request: Request
    ) -> AbstractAsyncContextManager[AsyncIterator[str | Generation]]:
        """Answer one request piece by piece; see `StreamingBackend.stream`."""
        return self._stream(self._server(), request)

    @asynccontextmanager
    async def _stream(self, server: _Running, request: Request) -> AsyncGenerator[_Pieces, None]:
        stream = server.backend.stream(request)
        try:
            reply = await stream.__aenter__()
        except BackendError as exc:
            error = await _explained(exc, server.process)
            raise error from None
        try:
            yield _Pieces(reply, server.process)
        finally:
            await stream.__aexit__(None, None, None)

    async def aclose(self) -> None:
        """Close the running event loop's connections to the server, which goes on running."""
        if self._running is not None:
            await self._running.backend.aclose()


class _Pieces:
    """The iterator over a reply that says so when the server has crashed."""

    def __init__(self, reply: AsyncIterator[str | Generation], process: ServerProcess) -> None:
        self._reply = reply
        self._process = process

    def __aiter__(self) -> _Pieces:
        return self

    async def __anext__(self) -> str | Generation:
        try:
            return await anext(self._reply)
        except BackendError as exc:
            error = await _explained(exc, self._process)
        raise error


async def _explained(exc: BackendError, process: ServerProcess) -> BackendError:
    """Return the error itself, or what stands behind it if the server has crashed."""
    if exc.status is not None or isinstance(exc, BackendTimeout):
        return exc
    with anyio.move_on_after(CRASH_SECONDS):
        while not process.has_ended():  # noqa: ASYNC110 (the end of a process sets no event)
            await anyio.sleep(POLL_SECONDS)
    if not process.has_ended():
        return exc
    return await run_in_thread(process.failure, "has crashed")
