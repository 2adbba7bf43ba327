"""Check replies while they arrive, and close the request of a rejected one, to save tokens.

`WatchedReplies` wraps the backend itself. It returns the beginning of a rejected reply like any
other reply, so retries, budgets and hooks treat it as an ordinary reply. `TakenVerdicts` wraps all
of these, and turns the rejected reply into a failed draw.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mellea_like.core.backend import BackendWrapper
from mellea_like.kernel.ports import NotAnAnswer, Option
from mellea_like.requirements.early_rejection import EarlyRejection, WatchedBackend

if TYPE_CHECKING:
    from mellea_like.core.backend import Backend, Request
    from mellea_like.core.generation import Generation
    from mellea_like.kernel.ports import Sent


class WatchedReplies(Option):
    """Checks a streamed reply as it arrives, and closes its request when a check rejects it."""

    def request(self, inner: Backend, sent: Sent) -> Backend:
        """Wrap a backend that generates, if anything checks its replies while they arrive."""
        watched = watches(sent, every=self.call.rules.check_all)
        return inner if watched is None else WatchedBackend(inner, **watched)


class TakenVerdicts(Option):
    """Turns a reply that was rejected while it arrived into a failed draw with its verdicts."""

    def request(self, inner: Backend, sent: Sent) -> Backend:
        """Wrap a backend that generates, if anything checks its replies while they arrive."""
        watched = watches(sent, every=self.call.rules.check_all)
        return inner if watched is None else _Taken(inner, self)


class _Taken(BackendWrapper):
    def __init__(self, inner: Backend, option: TakenVerdicts) -> None:
        super().__init__(inner)
        self._option = option

    async def generate(self, request: Request) -> Generation:
        """Answer a request; if the reply was rejected early, raise `NotAnAnswer` or the fault."""
        reply = await self.inner.generate(request)
        if isinstance(reply, EarlyRejection):
            if reply.fault is not None:
                self._option.call.draw_of(request).checking = True
                raise reply.fault
            raise NotAnAnswer(reply.unread, reply, reply.verdicts)
        return reply


def watches(sent: Sent, *, every: bool) -> dict[str, Any] | None:
    """Return the checks to run on an arriving reply, as arguments of `WatchedBackend`, or None.

    ``every`` is whether the verdicts on all requirements are needed, even after a failure.
    """
    if sent.purpose != "generate" or not hasattr(sent.backend, "stream"):
        return None
    spec = sent.spec
    tools = spec.tools
    # With tools, a reply may begin with words and continue with a call: nothing can be said of its
    # value then, nor of its text if the draw continues after it.
    checked = tools is None or not tools.run_in_draws
    requirements = spec.requirements if checked else ()
    found: dict[str, Any] = {
        "requirements": requirements if any(r.streams for r in requirements) else (),
        # If all reasons are wanted, the first wrong field isn't enough.
        "by_format": spec.format is not None
        and not every
        and (tools is None or tools.choice == "none"),
        "calls": None if tools is None else tools.watches(every=every),
    }
    return found if any(found.values()) else None
