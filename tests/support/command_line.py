"""The real command in a process of its own, with pipes or on a pseudo-terminal."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pathlib
import pty
import re
import select
import struct
import subprocess
import sys
import tempfile
import termios
import textwrap
import time
from collections.abc import Sequence
from typing import Any, Self

from forked_command import Forked, can_fork

COMMAND = (sys.executable, "-m", "mellea_like")
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
MOVES = re.compile(r"\r|\x1b\[[0-9;]*[ABHJK]")


def environment(**more: str) -> dict[str, str]:
    """The process's environment without what would choose another backend or another width."""
    unwanted = (
        "OPENAI_",
        "OTEL_",
        "MELLEA_",
        "COLUMNS",
        "LINES",
        "NO_COLOR",
        "FORCE_COLOR",
        "TERM",
    )
    kept = {name: value for name, value in os.environ.items() if not name.startswith(unwanted)}
    return {**kept, "TERM": "xterm-256color", **more}


def start(
    *arguments: str,
    stdin: Any = subprocess.DEVNULL,
    stdout: Any = subprocess.PIPE,
    stderr: Any = subprocess.PIPE,
    env: dict[str, str] | None = None,
    cwd: Any = None,
    text: bool = False,
    script: str | None = None,
) -> Any:
    """Start the command, or a script, in a process and a session of its own.

    Where coverage is measured, it is one that a test's own process has started.
    """
    streams = {"stdin": stdin, "stdout": stdout, "stderr": stderr}
    more = {"env": environment() if env is None else env, "cwd": cwd, "text": text}
    if not can_fork():
        command = COMMAND if script is None else (sys.executable, "-W", "error", script)
        return subprocess.Popen([*command, *arguments], start_new_session=True, **streams, **more)
    with pathlib.Path(os.devnull).open("r+b") as nowhere:
        for name, stream in streams.items():
            if stream == subprocess.DEVNULL:
                streams[name] = nowhere
        return Forked(list(arguments), script=script, **streams, **more)


def run(
    *arguments: str,
    stdin: bytes | str = b"",
    cwd: Any = None,
    script: str | None = None,
    **env: str,
) -> subprocess.CompletedProcess[str]:
    """Run the command, or a script, with pipes to its end."""
    given = {"env": environment(**env), "cwd": cwd, "script": script}
    process = start(*arguments, stdin=subprocess.PIPE, **given)
    data = stdin.encode() if isinstance(stdin, str) else stdin
    out, err = process.communicate(data, timeout=50)
    return subprocess.CompletedProcess(
        [script or "mellea-like", *arguments], process.returncode, out.decode(), err.decode()
    )


def python(code: str, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh interpreter to its end."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=environment(**env),
        check=False,
        timeout=50,
    )


def script(code: str, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run code in a process to its end; much of what it imports may be imported already."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "script.py")
        path.write_text(textwrap.dedent(code), encoding="utf-8")
        return run(*arguments, script=str(path), **env)


class Terminal:
    """The command, or another program, on a pseudo-terminal; what it prints may go to a pipe.

    Attributes:
        seen: everything that the terminal was sent so far.
    """

    def __init__(
        self,
        *arguments: str,
        command: Sequence[str] = COMMAND,
        columns: int = 80,
        lines: int = 24,
        pipe: bool = True,
        **env: str,
    ) -> None:
        self.seen = ""
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        streams = {"stdin": slave, "stdout": subprocess.PIPE if pipe else slave, "stderr": slave}
        if command is COMMAND:
            self.process = start(*arguments, **streams, env=environment(**env))
        else:
            self.process = subprocess.Popen(
                [*command, *arguments], **streams, env=environment(**env), start_new_session=True
            )
        os.close(slave)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        os.close(self._master)

    def type(self, text: str) -> None:
        """Press keys: Ctrl-C is ``"\\x03"``, Ctrl-D ``"\\x04"``, Enter ``"\\n"``."""
        os.write(self._master, text.encode())

    def wait_for(self, text: str, seconds: float = 20.0) -> None:
        """Read until the terminal was sent a text."""
        until = time.monotonic() + seconds
        while text not in self.seen:
            left = until - time.monotonic()
            assert left > 0, f"no {text!r} within {seconds} s; there was: {self.seen!r}"
            assert self._read(left), f"no {text!r} to the end; there was: {self.seen!r}"

    def finish(self, seconds: float = 20.0) -> tuple[int, str]:
        """Read to the end; return the exit code and what a piped standard output was sent."""
        until = time.monotonic() + seconds
        while self._read(until - time.monotonic()):
            assert time.monotonic() < until, f"not done within {seconds} s: {self.seen!r}"
        out = b"" if self.process.stdout is None else self.process.stdout.read()
        return self.process.wait(timeout=5), out.decode()

    @property
    def plain(self) -> str:
        """What was seen, without the escapes; each move of the cursor starts a line."""
        return ESCAPES.sub("", MOVES.sub("\n", self.seen.replace("\r\n", "\n")))

    def _read(self, seconds: float) -> bool:
        ready, _, _ = select.select([self._master], [], [], max(0.0, min(seconds, 0.2)))
        if not ready:
            return True
        with contextlib.suppress(OSError):  # Linux says EIO when the other side has closed.
            data = os.read(self._master, 65536)
            self.seen += data.decode("utf-8", "replace")
            return bool(data)
        return False
