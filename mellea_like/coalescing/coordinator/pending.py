"""One request on its way through a coordinator."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

from mellea_like.coalescing.ticket import Ticket
from mellea_like.core.generation import Generation, Usage

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from opentelemetry.trace import SpanContext

    from mellea_like.coalescing.coordinator.cost_split import Part
    from mellea_like.coalescing.coordinator.joint_request import Batch
    from mellea_like.core.backend import Request
    from mellea_like.core.generation import Cost
    from mellea_like.hooks.registry import Handler

__all__ = ["Pending", "own_copy"]


class Pending:
    """A request that was accepted, until its caller got something."""

    __slots__ = (
        "_ended",
        "_ticket",
        "asked_at",
        "batch",
        "costs",
        "done",
        "handlers",
        "part",
        "request",
        "request_id",
        "sent",
        "span",
        "task",
    )

    def __init__(
        self,
        request: Request,
        task: Request,
        *,
        request_id: str,
        asked_at: float,
        span: SpanContext | None,
        handlers: tuple[Handler, ...],
        left: Callable[[Pending], None],
        ended: Callable[[Pending, Generation | BaseException], None],
    ) -> None:
        self.request = request
        self.task = task
        self.request_id = request_id
        self.asked_at = asked_at
        self.span = span
        self.handlers = handlers
        self._ended = ended
        self._ticket: Ticket[Generation] = Ticket(lambda _: left(self))
        self.done = False
        self.batch: Batch | None = None
        self.part: Part | None = None
        self.costs: list[Cost] = []
        self.sent = False

    @property
    def usage(self) -> Usage:
        """What its joint requests have cost it so far."""
        return sum((cost.usage for cost in self.costs), Usage())

    async def wait(self) -> Generation:
        """Wait for the reply; once, for then it lets go of what it waited for."""
        ticket = self._ticket
        try:
            return await ticket.wait()
        finally:
            # An error knows the frames that it came through, and some of them know this request.
            del self._ticket, ticket

    def begin(self, part: Part) -> None:
        """Say that a joint request is being sent."""
        self.sent = True
        self.part = part
        self.costs.append(part)
        self.request.meter.add(part)

    def answer(self, reply: Generation) -> None:
        """Settle it with a reply, unless it is settled."""
        if not self.done:
            self.done = True
            self._ticket.settle(reply)
            self._ended(self, reply)

    def fail(self, error: BaseException) -> None:
        """Settle it with an error, unless it is settled."""
        if not self.done:
            self.done = True
            self._ticket.fail(error)
            if not self.sent:
                self.request.meter.sent_nothing()
            self._ended(self, error)


def own_copy(error: BaseException) -> BaseException:
    """Copy an error that several callers get: each adds notes and a traceback of its own."""
    try:
        twin: Any = copy.copy(error)
        if type(twin) is not type(error) or twin is error or twin.args != error.args:
            return error
    except Exception:  # noqa: BLE001 (an error of somebody else's, which takes other arguments)
        return error
    if hasattr(error, "__notes__"):
        twin.__notes__ = list(error.__notes__)
    twin.__cause__ = error.__cause__
    twin.__context__ = error.__context__
    twin.__suppress_context__ = error.__suppress_context__
    copied: BaseException = twin.with_traceback(error.__traceback__)
    return copied
