"""The hook between a failed draw and the one that repairs it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import SkipValidation

from mellea_like.core.backend import CURRENT, RequestMeta
from mellea_like.core.conversation import Action, Context
from mellea_like.core.slice import Slice
from mellea_like.hooks.payload import Is, Payload
from mellea_like.hooks.types import HookType
from mellea_like.kernel.ports import Option

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from mellea_like.hooks.dispatch import Hooks
    from mellea_like.kernel.draw import Draw

__all__ = ["SamplingRepairPayload"]


class SamplingRepairPayload(Payload):
    """Passed to handlers before a draw that repairs a failed one.

    ``iteration`` and ``subsample`` are those of the failed draw.

    Attributes:
        failed: the record of the draw to repair.
        action: the next task.
        context: the conversation in which it is asked.
    """

    hook = HookType.SAMPLING_REPAIR

    failed: Is[Slice]
    action: SkipValidation[Action[Any]]
    context: Is[Context]


class RepairHooks(Option):
    """Tells plugins what the strategy has chosen to ask after a failure."""

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks

    async def draw(self, draw: Draw, go: Callable[[Draw], Awaitable[None]]) -> None:
        """Run a draw; if it repairs a failure, tell plugins first."""
        ask, failed = draw.ask, draw.ask.repairs
        if failed is not None:
            # It is about the failure, so its handlers see that iteration. But that draw has been
            # paid for, and this one has not begun.
            about = RequestMeta(self.call.id, failed.iteration, failed.subsample)
            CURRENT.set((about, self._hooks.outside))
            await self._hooks.fire(
                SamplingRepairPayload,
                failed,
                failed=failed,
                action=ask.action,
                context=ask.context,
            )
            CURRENT.set((draw.meta, self._hooks.outside))
            draw.started_at = self.call.now  # It has only begun now.
        await go(draw)
