"""A llama.cpp server in a child process, seen from its parent. No event loop in here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, cast

from mellea_like.errors import BackendUnavailable

__all__ = ["ServerProcess"]

CHILD = f"""
from importlib.util import module_from_spec, spec_from_file_location
spec = spec_from_file_location(
    "mellea_like.backends.llama_server", {str(Path(__file__).with_name("llama_server.py"))!r}
)
module = module_from_spec(spec)
spec.loader.exec_module(module)
module.main()
"""
"""What the child runs: that one module, for the package round it takes longer to load."""

STOP_SECONDS = 2.0
"""How long the child may take to end by itself; then it is killed."""

TAIL_BYTES = 16_384
TAIL_LINES = 8
"""How much of the log is shown when the server fails."""


def check_gguf(path: Path) -> None:
    """Make sure that a file is there and is a GGUF file.

    Args:
        path: the file.

    Raises:
        BackendUnavailable: it is not; not retryable.
    """
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as exc:
        msg = f"can't read the model {path}: {exc.strerror or exc}"
        raise BackendUnavailable(msg, retryable=False) from None
    if magic != b"GGUF":
        msg = f"{path} is no GGUF file: it does not start with the letters GGUF"
        raise BackendUnavailable(msg, retryable=False)


class ServerProcess:
    """The child process.

    Args:
        path: the model's file.
        config: what else `mellea_like.backends.llama_server.serve` takes.
    """

    def __init__(self, path: Path, config: dict[str, Any]) -> None:
        self._path = path
        self._config = config
        self._said = b""
        self._log: IO[bytes] | None = None
        self._started: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process; `address` tells when the server is ready.

        Raises:
            BackendUnavailable: the file can't be served; not retryable.
        """
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
        """Look whether the server is ready; does not wait.

        Returns:
            Its address, or None while it is starting.

        Raises:
            BackendUnavailable: it will never be ready; not retryable.
        """
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
        """Say what happened to the server, with the end of its log.

        Args:
            what: what happened.

        Returns:
            The error; not retryable, for the server does not come back.
        """
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
