"""Child processes that each do a part of a run, and send messages to their parent.

A child is a new interpreter that gets a pickled function and its argument. It doesn't outlive its
parent: when its standard input ends, its function is cancelled. The parent gets the child's
messages in order, and the lines that the child prints.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
import time
from contextlib import AsyncExitStack, suppress
from subprocess import PIPE
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import anyio
from anyio.lowlevel import current_token
from anyio.streams.buffered import BufferedByteReceiveStream

from mellea_like.errors import LimitExceeded, MelleaError
from mellea_like.runtime.event_loops import call_soon
from mellea_like.runtime.task_scope import task_scope

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from anyio.abc import Process
    from anyio.streams.memory import MemoryObjectSendStream

LENGTH = 4
"""The size in bytes of the length that precedes each message."""

FULL = 2**20
"""The bytes that a child buffers before it waits for its parent to read them."""

GRACE = 15.0
"""The seconds after which a child is killed if it was told to end and is still running."""

COMMAND = (
    sys.executable,
    "-P",  # Don't import modules from the current folder.
    "-c",
    "from mellea_like.batch.processes import main; main()",
)


class Lost(MelleaError):
    """A child ended before its function did."""


class Ended(NamedTuple):
    """The last message of a child: the error that its function raised, or `Lost`, or None."""

    error: Exception | None = None


class Processes:
    """Calls a function on each part of a run, each in a child process; iterates over messages.

    ``printed`` gets each line that a child prints; ``things`` is the word for a part's contents.
    """

    def __init__(
        self,
        function: Callable[[Any, Sender], Awaitable[None]],
        parts: Sequence[Any],
        printed: Callable[[str], object],
        things: str,
    ) -> None:
        # The child needs the path before it can import the function.
        self._work = [pickle.dumps((sys.path, pickle.dumps((function, part)))) for part in parts]
        self._printed = printed
        self._things = things
        self._failed: Exception | None = None
        self._stack = AsyncExitStack()
        self._children: list[Process] = []

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            tasks = await stack.enter_async_context(task_scope())
            stack.push_async_callback(self._end)
            send, messages = anyio.create_memory_object_stream[tuple[int, Any]](64)
            self._messages = stack.enter_context(messages)
            with send:
                for number, work in enumerate(self._work):
                    child = await anyio.open_process(
                        COMMAND, stdin=PIPE, stdout=PIPE, stderr=PIPE, start_new_session=True
                    )
                    self._children.append(child)
                    tasks.start_soon(self._read, number, child, send.clone())
                    tasks.start_soon(self._read_lines, child)
                    # If the child is gone, `_read` reports it.
                    with suppress(anyio.BrokenResourceError):
                        await child.stdin.send(len(work).to_bytes(LENGTH) + work)  # type: ignore[union-attr]
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._stack.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> tuple[int, Any]:
        """Return the number of a part and its next message; the last one is `Ended`.

        An error ends the run at once, but a lost child or a spent budget ends only its own part.
        """
        try:
            number, message = await self._messages.receive()
        except anyio.EndOfStream:
            raise self._failed or StopAsyncIteration from None
        if isinstance(message, Ended) and message.error is not None:
            if not isinstance(message.error, LimitExceeded | Lost):
                raise message.error
            if not isinstance(self._failed, Lost):  # A spent budget doesn't hide it.
                self._failed = message.error
        return number, message

    async def _read(
        self, number: int, child: Process, send: MemoryObjectSendStream[tuple[int, Any]]
    ) -> None:
        received = BufferedByteReceiveStream(child.stdout)  # type: ignore[arg-type]
        message: Any = None
        with send:
            with suppress(anyio.IncompleteRead):
                while not isinstance(message, Ended):
                    length = int.from_bytes(await received.receive_exactly(LENGTH))
                    message = pickle.loads(await received.receive_exactly(length))  # noqa: S301 (our own child's)
                    with suppress(anyio.BrokenResourceError):  # The run is ending.
                        await send.send((number, message))
            if not isinstance(message, Ended):
                which = f"process {number + 1} of {len(self._work)} {_how(await child.wait())}"
                lost = Lost(f"{which}: its unfinished {self._things} are left undone")
                with suppress(anyio.BrokenResourceError):
                    await send.send((number, Ended(lost)))

    async def _read_lines(self, child: Process) -> None:
        received = b""
        async for piece in child.stderr:  # type: ignore[union-attr]
            *lines, received = (received + piece).split(b"\n")
            for line in lines:
                self._printed(line.decode("utf-8", "replace"))

    async def _end(self) -> None:
        """Tell the remaining children to end, wait for them, and kill those that take too long."""
        with anyio.CancelScope(shield=True):
            for child in self._children:
                with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                    await child.stdin.aclose()  # type: ignore[union-attr]
            with anyio.move_on_after(GRACE):
                for child in self._children:
                    await child.wait()
            for child in self._children:
                with suppress(ProcessLookupError):
                    if child.returncode is None:
                        child.kill()
                await child.aclose()


def _how(code: int) -> str:
    """Describe an exit code, which is negative if a signal killed the process."""
    if code < 0:
        with suppress(ValueError):
            return f"was killed ({signal.Signals(-code).name})"
    return f"ended with exit code {code}"


class Sender:
    """Sends messages from a child to its parent."""

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._kept = bytearray()

    def post(self, message: object) -> None:
        """Queue a picklable message, and send as much as the parent can take now."""
        data = pickle.dumps(message)
        self._kept += len(data).to_bytes(LENGTH) + data
        self._write()

    async def drain(self, most: int = FULL) -> None:
        """Wait until at most ``most`` bytes are left to be sent."""
        while len(self._kept) > most:
            await anyio.wait_writable(self._descriptor)
            self._write()

    def _write(self) -> None:
        with suppress(BlockingIOError):
            while self._kept:
                del self._kept[: os.write(self._descriptor, self._kept)]


def main() -> None:
    """Run in a child: read the function and its argument from standard input, and call it."""
    out = os.dup(1)
    os.dup2(2, 1)  # Printed lines must not mix with messages.
    length = int.from_bytes(_read(LENGTH))
    work = _read(length)
    if len(work) < max(1, length):
        return  # The parent is gone.
    sys.path, work = pickle.loads(work)  # noqa: S301 (our own parent's)
    function, part = pickle.loads(work)  # noqa: S301 (our own parent's)

    async def run() -> None:
        with anyio.CancelScope() as scope:
            token = current_token()

            def end() -> None:
                os.read(0, 1)
                with suppress(RuntimeError):
                    call_soon(token, scope.cancel)
                time.sleep(GRACE)
                os._exit(1)

            threading.Thread(target=end, daemon=True).start()
            sender = Sender(out)
            try:
                await function(part, sender)
                ended = Ended()
            except Exception as exc:  # noqa: BLE001 (the parent raises it)
                ended = Ended(exc)
            sender.post(ended)
            await sender.drain(0)

    with suppress(BrokenPipeError):
        anyio.run(run)


def _read(size: int) -> bytes:
    """Return ``size`` bytes of standard input, or fewer if the input ends before that."""
    received = b""  # Unbuffered, because another thread could hold the buffer's lock at exit.
    while len(received) < size and (piece := os.read(0, size - len(received))):
        received += piece
    return received
