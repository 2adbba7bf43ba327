"""Runs a program in a network namespace of its own, where there is nothing but a loopback device.

``python ray_namespace.py program arguments…`` runs inside: it switches the device on, then becomes
the program.
"""

from __future__ import annotations

import fcntl
import functools
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import pytest

SIOCGIFFLAGS, SIOCSIFFLAGS = 0x8913, 0x8914
IFF_UP = 0x1

AS_ROOT = ("--net", "--pid", "--mount-proc", "--fork", "--kill-child")
WAYS = (AS_ROOT, ("--user", "--map-root-user", *AS_ROOT))


def switch_loopback_on() -> None:
    """Do what ``ip link set lo up`` does; the command need not be there."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        asked = struct.pack("16sh22x", b"lo", 0)
        (flags,) = struct.unpack_from("h", fcntl.ioctl(any_socket, SIOCGIFFLAGS, asked), 16)
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", flags | IFF_UP))
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        socket.create_connection(listener.getsockname(), timeout=5).close()


@functools.cache
def way() -> tuple[tuple[str, ...], str]:
    """Return the options by which unshare makes namespaces here; or () and why it does not."""
    if shutil.which("unshare") is None:
        return (), "there is no command unshare"
    why = ""
    for options in WAYS:
        done = subprocess.run(
            ["unshare", *options, sys.executable, __file__, sys.executable, "-c", ""],
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
        )
        if done.returncode == 0:
            return options, ""
        why = done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "unshare failed"
    return (), why


class Outside:
    """A program in a namespace, seen from outside.

    Args:
        arguments: the program and its arguments.
        log: where its output goes.
        environ: its environment.
        directory: where it runs.
    """

    def __init__(
        self, arguments: list[str], log: Path, environ: dict[str, str], directory: Path
    ) -> None:
        command = ["unshare", *way()[0], sys.executable, __file__, *arguments]
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                command,
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environ,
            )
        self.namespace = ""

    def wait(self, seconds: float) -> int:
        """Wait for its end; return its exit status."""
        until = time.monotonic() + seconds
        while self.process.poll() is None:
            if not self.namespace:
                self._look()
            if time.monotonic() > until:
                self.stop()
                raise TimeoutError(f"it was still running after {seconds} s")
            time.sleep(0.05)
        return self.process.returncode

    def stop(self) -> None:
        """Kill it and all that it started: they go with the first process of their namespace."""
        with suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def _look(self) -> None:
        """Learn the namespace's name from unshare's child."""
        pid = self.process.pid
        with suppress(OSError, IndexError):
            child = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()[0]
            name = _namespace(child)
            if name != _namespace("self"):
                self.namespace = name

    def left(self, seconds: float = 5.0) -> list[str]:
        """Return the processes that are still in the namespace after a while."""
        if not self.namespace:
            return []  # It ended before it could be looked at.
        until = time.monotonic() + seconds
        while (found := self._members()) and time.monotonic() < until:
            time.sleep(0.1)
        return found

    def _members(self) -> list[str]:
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if _namespace(process.name) == self.namespace:
                    name = (process / "comm").read_text(encoding="utf-8").strip()
                    found.append(f"{process.name} {name}")
        return found


def _namespace(pid: str) -> str:
    return str(Path("/proc", pid, "ns", "net").readlink())


def run_in_namespace(arguments: list[object], directory: Path, seconds: float) -> str:
    """Run a Python program in a namespace, or skip the test where there can be none.

    Args:
        arguments: the script and its arguments.
        directory: where it runs, and where Ray finds its home.
        seconds: how long it may take.

    Returns:
        What it printed.
    """
    pytest.importorskip("ray", reason="Ray is not installed: nox -s ray installs it")
    options, why = way()
    if not options:
        pytest.skip(f"this machine can't make a network namespace: {why}")
    log = directory / "log.txt"
    environ = {
        name: text
        for name, text in os.environ.items()
        if not name.startswith(("COV_", "COVERAGE_", "RAY_"))
    }
    # Ray keeps a token in the home directory.
    environ |= {"HOME": str(directory), "RAY_USAGE_STATS_ENABLED": "0"}
    # The path of a socket has at most 107 bytes, and Ray adds 70 to this one.
    with tempfile.TemporaryDirectory(prefix="ml", dir="/tmp", ignore_cleanup_errors=True) as short:
        environ["RAY_TMPDIR"] = short
        outside = Outside([sys.executable, *map(str, arguments)], log, environ, directory)
        try:
            status = outside.wait(seconds)
        finally:
            outside.stop()
            left = outside.left()
            printed = log.read_text(encoding="utf-8", errors="replace")
            sys.stdout.write(printed[-8000:])
    assert status == 0
    assert left == []
    return printed


if __name__ == "__main__":
    switch_loopback_on()
    os.execvp(sys.argv[1], sys.argv[1:])
