"""A GGUF model on this machine, served by llama.cpp in a child process."""

from __future__ import annotations

import importlib.util
import math
import secrets
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import anyio

from mellea_like.backends.llama_process import ServerProcess
from mellea_like.core.numbers import real_number
from mellea_like.core.options import Options
from mellea_like.errors import BackendError, BackendTimeout
from mellea_like.runtime.threads import run_in_thread

MISSING = "LlamaCppBackend needs llama.cpp: pip install 'mellea-like[llama]'"

try:
    from mellea_like.backends.openai import OpenAIBackend
except ImportError as _exc:  # It speaks to its server through the SDK.
    raise ImportError(MISSING) from _exc

if TYPE_CHECKING:
    import os
    from collections.abc import AsyncGenerator, AsyncIterator, Mapping
    from contextlib import AbstractAsyncContextManager

    from mellea_like.core.backend import Request
    from mellea_like.core.generation import Generation

__all__ = ["LlamaCppBackend"]

POLL_SECONDS = 0.01
CRASH_SECONDS = 0.5
"""A broken connection is seen before the process's end; wait so long for the latter."""


@dataclass(frozen=True)
class _Running:
    """A server that is ready, and the backend that speaks to it."""

    process: ServerProcess
    backend: OpenAIBackend


class LlamaCppBackend:
    """A llama.cpp server of its own for one GGUF file.

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
        parallel: requests that the server works on at a time; further ones wait in its queue.
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
        parallel: int = 4,
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
            ("parallel", parallel),
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
            "parallel": parallel,
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
        """Answer one request.

        Args:
            request: what is wanted.

        Returns:
            The reply, with its text not yet parsed.

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
        """Answer one request piece by piece.

        Args:
            request: what is wanted.

        Returns:
            A context manager to enter with ``async with``; it gives an iterator over the pieces of
            the text and, as its last item, the whole `Generation`. Leaving the block early closes
            the request.

        Raises:
            BackendError: there is no reply; raised on entering or while iterating.
            RuntimeError: the server is not running.
        """
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
