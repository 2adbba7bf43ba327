"""Several processes that serve on one socket, and their parent, which starts and ends them.

The processes are forked without an event loop, and share the socket that the parent listens on.
Each accepts a connection when it has time, so no waiting connection is lost if a process dies.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import signal
import socket
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import anyio

from mellea_like.gateway.http.hangup import Terminal, signals_to_handle
from mellea_like.gateway.redaction import without_text

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator

logger = logging.getLogger("mellea_like.gateway")

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

READY, RELOAD, STOP, CUT = b"r", b"h", b"t", b"k"
"""The messages between parent and worker. Workers send ``READY``, and the parent all others."""

FIRST_PAUSE = 0.5
LONGEST_PAUSE = 30.0
"""The longest pause before a dead worker is replaced, in seconds. Each death doubles the pause."""

SOUND_SECONDS = 60.0
"""The seconds of service after which a worker's earlier deaths no longer count."""

GRACE_SECONDS = 10.0
"""The seconds that a worker has to end after its requests were cut off. Then it is killed."""


class Link:
    """A worker's connection to its parent process, which tells it to reload or stop."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.stop = anyio.Event()
        """Set when the worker must accept no more requests, or when the parent is gone."""
        self.cut = anyio.Event()
        """Set when running requests must be cut off."""

    def ready(self) -> None:
        """Tell the parent that requests are being answered."""
        with contextlib.suppress(OSError):
            self._connection.send(READY)

    async def listen(self, reload: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Act on the parent's messages until cancelled; ``reload`` rereads the configuration."""
        self._connection.setblocking(False)
        async with anyio.create_task_group() as tasks:
            while True:
                await anyio.wait_readable(self._connection)
                try:
                    said = self._connection.recv(64)
                except BlockingIOError:
                    continue
                except OSError:
                    said = b""
                if RELOAD in said:
                    tasks.start_soon(reload)
                if CUT in said:
                    self.cut.set()
                if STOP in said or not said:
                    self.stop.set()
                if not said:
                    await anyio.sleep_forever()


@dataclass
class _Worker:
    number: int
    deaths: int = 0
    """The number of deaths in a row, with at most `SOUND_SECONDS` of service between two deaths."""
    pid: int = 0
    """The worker's process id; 0 while no process is running."""
    link: socket.socket | None = None
    began: float = 0.0
    due: float = 0.0
    """The monotonic time at which to start the worker's next process, in seconds."""
    is_ready: bool = False


class Supervisor:
    """Starts worker processes, replaces those that die, and ends all of them at a signal.

    SIGTERM and SIGINT stop the workers; a second signal aborts their requests. SIGHUP makes them
    read their configuration again, but a SIGHUP from a terminal that was closed stops them. Each
    worker process calls ``work`` with its number (from 1) and its `Link`, and exits with the
    returned code.
    """

    def __init__(
        self,
        count: int,
        work: Callable[[int, Link], int],
        *,
        stop_seconds: float,
        reload: Callable[[], bool],
        on_ready: Callable[[], object],
        on_stop: Callable[[], object],
        on_end: Callable[[int], object],
    ) -> None:
        self._work = work
        self._workers = [_Worker(number) for number in range(1, count + 1)]
        self._stop_seconds = stop_seconds
        self._reload = reload
        self._on_ready = on_ready
        self._on_stop = on_stop
        self._on_end = on_end
        self._selector = selectors.DefaultSelector()
        self._terminal = Terminal()
        self._stopping = False
        self._stops_at = 0.0
        self._was_ready = False
        self._code = 0

    def run(self, listening: socket.socket) -> int:
        """Run the workers until they are stopped, and return the exit code."""
        self._listening = listening
        with _signals_as_bytes() as self._wakes, self._selector:
            self._selector.register(self._wakes[0], selectors.EVENT_READ)
            try:
                while self._running() or not self._stopping:
                    self._start_due()
                    for key, _ in self._selector.select(self._patience()):
                        if key.data is None:
                            self._hear_signals()
                        else:
                            self._hear(key.data, key.fileobj)
                    if self._stopping and time.monotonic() > self._stops_at:
                        self._kill()
            finally:
                self._kill()  # Some are running only if this process itself failed.
        return self._code

    # --- workers ---------------------------------------------------------------------------------

    def _running(self) -> list[_Worker]:
        return [worker for worker in self._workers if worker.pid]

    def _kill(self) -> None:
        for worker in self._running():
            os.kill(worker.pid, signal.SIGKILL)

    def _start_due(self) -> None:
        now = time.monotonic()
        for worker in self._workers:
            if not (worker.pid or self._stopping) and now >= worker.due:
                self._start(worker)

    def _start(self, worker: _Worker) -> None:
        ours, theirs = socket.socketpair()
        worker.began, worker.is_ready = time.monotonic(), False
        pid = os.fork()
        if not pid:
            ours.close()
            self._become(worker, theirs)
        theirs.close()
        ours.setblocking(False)
        worker.pid, worker.link = pid, ours
        self._selector.register(ours, selectors.EVENT_READ, worker)

    def _become(self, worker: _Worker, connection: socket.socket) -> NoReturn:
        """Run this forked process as the worker, and exit."""
        code = 70
        try:
            signal.set_wakeup_fd(-1)
            # The parent receives signals and passes them on, because a terminal or service manager
            # may send them to all processes.
            for number in SIGNALS:
                signal.signal(number, signal.SIG_IGN)
            self._selector.close()
            for other in (*self._wakes, *(one.link for one in self._workers)):
                if other is not None:
                    other.close()
            code = self._work(worker.number, Link(connection))
        except BaseException as exc:  # noqa: BLE001 (its text may be anyone's)
            logger.error("the worker failed with %s", without_text(exc))  # noqa: TRY400
        finally:
            logging.shutdown()
            os._exit(code)

    def _hear(self, worker: _Worker, link: Any) -> None:
        try:
            said = link.recv(64)
        except OSError:
            said = b""
        if not said:
            self._selector.unregister(link)
            link.close()
            self._bury(worker)
        elif READY in said:
            worker.is_ready = True
            if not self._was_ready and all(each.is_ready for each in self._workers):
                self._was_ready = True
                self._on_ready()

    def _bury(self, worker: _Worker) -> None:
        """Clean up after a worker. Replace it later, or stop all if some were never ready."""
        _, status = os.waitpid(worker.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        lived = time.monotonic() - worker.began
        worker.pid, worker.link = 0, None
        self._on_end(worker.number)
        if self._stopping:
            return
        if not self._was_ready:
            self._code = code if code > 0 else 70
            self._stop()
            return
        worker.deaths = 1 if lived > SOUND_SECONDS else worker.deaths + 1
        pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (worker.deaths - 1))
        worker.due = time.monotonic() + pause
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        logger.error("worker %d %s: it will be restarted in %g s", worker.number, how, pause)

    # --- signals ---------------------------------------------------------------------------------

    def _hear_signals(self) -> None:
        for number in self._wakes[0].recv(64):
            if number == signal.SIGHUP and not self._terminal.was_closed():
                if not self._stopping and self._reload():
                    self._tell(RELOAD)
            elif not self._stopping:
                self._stop()
            else:
                self._tell(CUT)
                self._stops_at = min(self._stops_at, time.monotonic() + GRACE_SECONDS)

    def _stop(self) -> None:
        self._stopping = True
        self._listening.close()
        self._stops_at = time.monotonic() + self._stop_seconds + GRACE_SECONDS
        self._tell(STOP)
        if self._was_ready:
            self._on_stop()

    def _tell(self, what: bytes) -> None:
        for worker in self._workers:
            if worker.link is not None:
                with contextlib.suppress(OSError):  # It has just ended.
                    worker.link.send(what)

    def _patience(self) -> float | None:
        """Return how many seconds `run` may wait for an event; None for no limit."""
        now = time.monotonic()
        if self._stopping:
            return max(0.0, self._stops_at - now) + 0.01
        due = [worker.due for worker in self._workers if not worker.pid]
        return max(0.0, min(due) - now) if due else None


def _do_nothing(_number: int, _frame: object) -> None:
    """Do nothing. Signals need a handler, but their numbers are read from the wakeup socket."""


@contextlib.contextmanager
def _signals_as_bytes() -> Generator[tuple[socket.socket, socket.socket]]:
    """Write signals to a socket while the block runs, each as a byte with its number."""
    read, write = socket.socketpair()
    read.setblocking(False)
    write.setblocking(False)
    before: dict[int, Any] = {}
    woke = signal.set_wakeup_fd(write.fileno(), warn_on_full_buffer=False)
    try:
        for number in signals_to_handle(SIGNALS):
            before[number] = signal.signal(number, _do_nothing)
        yield read, write
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
        signal.set_wakeup_fd(woke)
        read.close()
        write.close()
