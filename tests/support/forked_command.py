"""The command, or a script, in a process that need not import the package: one that has is forked.

A start takes some 20 ms of processor time instead of 600. What a test says of the process holds: it
has its own session, environment, directory, streams and signals, and ends as any Python does.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
import warnings
from pathlib import Path

MOST = 2**20
"""Bytes of a request: the arguments and the environment."""


class Forked:
    """A process that another one forked, with what tests use of `subprocess.Popen`.

    It runs the command, or a script as ``python -W error`` does.
    """

    def __init__(self, arguments, *, stdin, stdout, stderr, env, cwd=None, text=False, script=None):
        ends, kept = [], []
        self.stdin = self.stdout = self.stderr = None
        for name, wanted in (("stdin", stdin), ("stdout", stdout), ("stderr", stderr)):
            if wanted == subprocess.PIPE:
                read, write = os.pipe()
                ours, theirs = (write, read) if name == "stdin" else (read, write)
                mode = ("w" if name == "stdin" else "r") + ("" if text else "b")
                setattr(self, name, os.fdopen(ours, mode, encoding="utf-8" if text else None))
                ends.append(theirs)
                kept.append(theirs)
            else:
                ends.append(wanted if isinstance(wanted, int) else wanted.fileno())
        self._status, theirs = os.pipe()
        request = {"arguments": arguments, "env": env, "cwd": str(cwd or Path.cwd())}
        request["script"] = script
        forker = _forker()
        socket.send_fds(forker, [json.dumps(request).encode()], [*ends, theirs])
        self.pid = int(forker.recv(20))
        for end in (*kept, theirs):
            os.close(end)
        self.returncode = None
        self._text = text

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream is not None:
                stream.close()
        self.wait()

    def poll(self):
        return self._wait(0.0)

    def wait(self, timeout=None):
        if self._wait(timeout) is None:
            raise subprocess.TimeoutExpired("mellea-like", timeout)
        return self.returncode

    def _wait(self, timeout):
        if self.returncode is None and select.select([self._status], [], [], timeout)[0]:
            self.returncode = os.waitstatus_to_exitcode(int(os.read(self._status, 20)))
            os.close(self._status)
        return self.returncode

    def send_signal(self, number):
        if self.poll() is None:
            # It may have ended, with its status still on the way; Popen allows for that as well.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)

    def terminate(self):
        self.send_signal(signal.SIGTERM)

    def communicate(self, data=b"", timeout=None):
        """Write what is read, read what is written, to the end."""
        until = time.monotonic() + (timeout or 60)
        waiting = [s for s in (self.stdout, self.stderr) if s is not None and not s.closed]
        found = dict.fromkeys(waiting, b"")
        rest = memoryview(data or b"")
        while waiting:
            sending = [] if self.stdin is None or self.stdin.closed else [self.stdin]
            ready = select.select(waiting, sending, [], max(0.0, until - time.monotonic()))
            if not any(ready):
                raise subprocess.TimeoutExpired("mellea-like", timeout)
            for stream in ready[0]:
                piece = os.read(stream.fileno(), 65536)
                found[stream] += piece
                if not piece:
                    waiting.remove(stream)
            for stream in ready[1]:
                with contextlib.suppress(BrokenPipeError):
                    rest = rest[os.write(stream.fileno(), rest[:4096]) :] if rest else rest
                    if rest:
                        continue
                stream.close()
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream is not None:
                stream.close()
        self.wait(max(0.1, until - time.monotonic()))
        out, err = found.get(self.stdout, b""), found.get(self.stderr, b"")
        return (out.decode(), err.decode()) if self._text else (out, err)


@functools.cache
def _forker():
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs, listener:
        listener.bind(_address())
        listener.listen()
        numbers = [theirs.fileno(), listener.fileno()]
        process = subprocess.Popen([sys.executable, __file__, *map(str, numbers)], pass_fds=numbers)
    atexit.register(_stop, process, ours)
    return ours


def _address():
    """The address, of a socket without a file, at which the forking process listens."""
    return f"\0mellea-like-tests-{os.getpid()}"


STAND_IN = """
import json, os, socket, sys
read, write = os.pipe()
script, *arguments = sys.argv[2:]
request = {"arguments": arguments, "env": dict(os.environ), "cwd": os.getcwd(), "script": script}
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as forker:
    forker.connect("\\0" + sys.argv[1])
    socket.send_fds(forker, [json.dumps(request).encode()], [0, 1, 2, write])
    forker.recv(20)
for end in (0, 1, 2, write):
    os.close(end)
code = os.waitstatus_to_exitcode(int(os.read(read, 20)))
os.kill(os.getpid(), -code) if code < 0 else os._exit(code)
"""


def stand_in(script=""):
    """The command of a process that has a forked one run the command or a script, and ends so."""
    _forker()
    return (sys.executable, "-I", "-S", "-c", STAND_IN, _address()[1:], str(script))


def can_fork():
    """Whether processes may be forked: not where coverage is measured, nor where there is none."""
    return sys.platform == "linux" and not any(name.startswith("COV") for name in os.environ)


def _stop(process, ours):
    ours.close()
    process.wait()


# In the process that forks


def serve(requests, listener):
    """Fork at each request, and tell how each child ended; return the request in the child.

    Requests come from the process that started this one, and one on each connection to the
    listener.
    """
    wake, ended = os.pipe()
    os.set_blocking(ended, False)
    signal.set_wakeup_fd(ended, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    statuses = {}
    while True:
        asking, data, ends = _next_request(requests, listener, wake, statuses)
        pid = os.fork()
        if not pid:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for connection in (asking, requests, listener):
                connection.close()
            for end in (wake, ended, ends[3], *statuses.values()):
                os.close(end)
            request = json.loads(data)
            _become(request, ends[:3])
            return request
        statuses[pid] = ends[3]
        for end in ends[:3]:
            os.close(end)
        with contextlib.suppress(BrokenPipeError):  # Whoever asked was killed.
            asking.sendall(str(pid).encode())
        if asking is not requests:
            asking.close()


def _next_request(requests, listener, wake, statuses):
    """Wait for a request, and meanwhile tell of children that end."""
    while True:
        ready = select.select([requests, listener, wake], [], [])[0]
        if wake in ready:
            os.read(wake, 4096)
        _tell_ends(statuses)
        asking = listener.accept()[0] if listener in ready else requests
        if requests in ready or asking is not requests:
            data, ends, _, _ = socket.recv_fds(asking, MOST, 4)
            if data:
                return asking, data, ends
            if asking is requests:
                os._exit(0)
            asking.close()


def _tell_ends(statuses):
    while statuses:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            break
        end = statuses.pop(pid)
        with contextlib.suppress(BrokenPipeError):  # Whoever waited for it was killed.
            os.write(end, str(status).encode())
        os.close(end)


def _become(request, ends):
    os.setsid()
    for number, end in enumerate(ends):
        os.dup2(end, number)
        os.close(end)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(  # noqa: SIM115
        2, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False
    )
    sys.argv[:] = [request["script"] or "mellea-like", *request["arguments"]]


def _run_script(path):
    """Run a script; return its exit code."""
    warnings.simplefilter("error")
    sys.path[0] = str(Path(path).parent)
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as exc:
        if isinstance(exc.code, str):
            sys.stderr.write(f"{exc.code}\n")
            return 1
        return exc.code or 0
    except BaseException:  # noqa: BLE001 (as the interpreter does)
        traceback.print_exc()
        return 1
    return 0


def _exit(code):
    """End as Python does, but for taking apart all that was imported, which takes half a second."""
    threading._shutdown()
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):
        code = 120
    os._exit(code)


if __name__ == "__main__":
    # What a start would import, and what the first call of each takes time for.
    for name in (
        "anyio._backends._asyncio",
        "anyio._backends._trio",
        "mellea_like.backends.openai",
        "mellea_like.batch.processes",
        "mellea_like.cli.batch.command",
        "mellea_like.cli.batch.shards",
        "mellea_like.coalescing.rerun.watch",
        "mellea_like.core.ledger",
        "mellea_like.gateway.http.app",
        "mellea_like.gateway.http.server",
        "mellea_like.hooks.call",
        "mellea_like.report.call",
        "mellea_like.report.run_page",
        "mellea_like.report.run_summary",
    ):
        with contextlib.suppress(ImportError):  # One that has moved costs time and no more.
            importlib.import_module(name)
    import typer

    from mellea_like.backends import markov
    from mellea_like.cli.app import COMMANDS, app, command

    markov._of_help_pages()
    typer.main.get_command(app)
    for name in COMMANDS:
        command(name)
    gc.freeze()
    wanted = serve(*(socket.socket(fileno=int(number)) for number in sys.argv[1:]))
    if wanted["script"]:
        _exit(_run_script(wanted["script"]))
    from mellea_like.__main__ import main

    _exit(main())
