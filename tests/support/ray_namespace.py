"""Runs a program in a network namespace of its own, where there is nothing but a loopback device.

``python ray_namespace.py program arguments…`` runs inside: it switches the device on, then becomes
the program.
"""

from __future__ import annotations

import fcntl
import functools
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
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


def run_in_namespace(arguments: list[Path], directory: Path, seconds: float) -> str:
    """Run a script in a folder, Ray's home; return what it prints. Skip it without namespaces.

    When the first process of the namespace ends, the kernel kills all others.
    """
    pytest.importorskip("ray", reason="Ray is not installed: nox -s ray installs it")
    options, why = way()
    if not options:
        pytest.skip(f"this machine can't make a network namespace: {why}")
    environ = {
        name: text
        for name, text in os.environ.items()
        if not name.startswith(("COV_", "COVERAGE_", "RAY_"))
    }
    # Ray keeps a token in the home directory.
    environ |= {"HOME": str(directory), "RAY_USAGE_STATS_ENABLED": "0"}
    # The path of a socket has at most 107 bytes, and Ray adds 70 to this one.
    log = directory / "log.txt"
    short = tempfile.TemporaryDirectory(prefix="ml", dir="/tmp", ignore_cleanup_errors=True)
    with short, log.open("wb") as output:
        environ["RAY_TMPDIR"] = short.name
        try:
            status = subprocess.run(
                [*("unshare", *options, sys.executable, __file__), sys.executable, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=directory,
                env=environ,
                check=False,
                timeout=seconds,
            ).returncode
        finally:
            printed = log.read_text(encoding="utf-8", errors="replace")
            sys.stdout.write(printed[-8000:])
    assert status == 0
    return printed


if __name__ == "__main__":
    switch_loopback_on()
    os.execvp(sys.argv[1], sys.argv[1:])
