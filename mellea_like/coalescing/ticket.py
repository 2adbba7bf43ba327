"""Tickets for submissions; awaiting a ticket gives the submission's result."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import anyio
from anyio.lowlevel import checkpoint_if_cancelled

from mellea_like.errors import Expired, Stopped
from mellea_like.runtime.event_loops import check_loop, running_loop

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from types import TracebackType

    from mellea_like.errors import CoalescingError

__all__ = ["Ticket"]

T = TypeVar("T")


class Ticket(Generic[T]):
    """One accepted submission, which is settled exactly once, with a result or an error.

    A ticket may be awaited any number of times, or not at all. If a caller is cancelled while it
    waits, the component that made the ticket decides what happens to the submission.

    Args:
        left: a function that is called with the ticket and an error: `Stopped` if the last waiter
            was cancelled, or `Expired` if the deadline passed while someone waited. After
            `Expired`, the ticket fails with that error.
        deadline: the time until which the result is useful, on ``anyio.current_time``'s clock.
        late: the message of the `Expired` error.
    """

    def __init__(
        self,
        left: Callable[[Ticket[T], CoalescingError], object] | None = None,
        deadline: float = math.inf,
        late: str = "the deadline passed before there was an answer",
    ) -> None:
        self.deadline = deadline
        self.late = late
        self._left = left
        self._loop = running_loop()
        self._settled: anyio.Event | None = None
        self._value: Any = None
        self._error: BaseException | None = None
        self._traceback: TracebackType | None = None
        self._waiters = 0

    @property
    def done(self) -> bool:
        """Whether the ticket is settled."""
        return self._settled is not None and self._settled.is_set()

    @property
    def waiters(self) -> int:
        """The number of callers that are waiting for the result now."""
        return self._waiters

    def settle(self, value: T) -> bool:
        """Settle the ticket with a result. Settling it again changes nothing.

        Args:
            value: the result.

        Returns:
            Whether this settled the ticket; False if it was settled already.
        """
        return self._finish(value, None)

    def fail(self, error: BaseException) -> bool:
        """Settle the ticket with an error. Settling it again changes nothing.

        Args:
            error: the exception that everyone who awaits the ticket gets.

        Returns:
            Whether this settled the ticket; False if it was settled already.
        """
        return self._finish(None, error)

    def __await__(self) -> Generator[Any, Any, T]:
        return self.wait().__await__()

    async def wait(self) -> T:
        """Wait for the result.

        Returns:
            The result.

        Raises:
            RuntimeError: the ticket is awaited in another event loop.
            BaseException: the error that the ticket failed with.
        """
        if not self.done:
            check_loop(self._loop, "ticket's component")
            await self._until_done()
        if self._error is not None:
            # If callers are cancelled together with the component, they raise their cancellation.
            await checkpoint_if_cancelled()
        try:
            if self._error is not None:
                # Leave out the frames of earlier raises.
                raise self._error.with_traceback(self._traceback)
            value: T = self._value
            return value
        finally:
            del self  # Break the cycle between frame and exception.

    async def _until_done(self) -> None:
        self._waiters += 1
        try:
            while not self.done:
                if self.deadline == math.inf:
                    await self._event().wait()
                    break
                with anyio.CancelScope(deadline=self.deadline):
                    await self._event().wait()
                if not self.done and self.deadline <= anyio.current_time():
                    error = Expired(self.late)
                    self._leave(error)
                    self.fail(error)
        except BaseException:
            if self._waiters == 1 and not self.done:
                self._leave(Stopped("its caller was cancelled"))
            raise
        finally:
            self._waiters -= 1

    def _leave(self, error: CoalescingError) -> None:
        if self._left is not None:
            self._left(self, error)

    def _event(self) -> anyio.Event:
        if self._settled is None:
            self._settled = anyio.Event()
        return self._settled

    def _finish(self, value: Any, error: BaseException | None) -> bool:
        if self.done:
            return False
        self._value, self._error, self._left = value, error, None
        self._traceback = None if error is None else error.__traceback__
        self._event().set()
        return True
