"""A slice of a call that goes on: what its record lacks is derived again. Pure."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mellea_like.core.trace import RecordedAction

if TYPE_CHECKING:
    from mellea_like.core.conversation import Action, Context
    from mellea_like.core.slice import Slice
    from mellea_like.sampling.recorder import CallContext

__all__ = ["replayed"]


def replayed(slice_: Slice, call: CallContext, action: Action[Any], context: Context) -> Slice:
    """Return a slice as it was when it was drawn.

    A record only describes what was asked and required. But `repair` is pure: so the action and the
    conversation that it gives now are those that it gave then.
    """
    if not isinstance(slice_.action, RecordedAction):
        return slice_  # It was never out of memory.
    reply = slice_.generation
    if reply is not None and reply.parsed and call.plan.format is None:
        with suppress(Exception):  # It read the reply once: this is not the same text.
            reply = replace(reply, value=action.parse(reply.text))
    known = {requirement.name: requirement for requirement in call.checklist.requirements}
    return replace(
        slice_,
        action=action,
        context=context,
        messages=tuple(action.render(context)),
        generation=reply,
        requirements=tuple(known.get(r.name, r) for r in slice_.requirements),
    )
