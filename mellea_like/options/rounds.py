"""A call in rounds: it replays earlier draws, and pauses after some new ones."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mellea_like.core.conversation import Instruction, Message
from mellea_like.core.recorded import RecordedAction
from mellea_like.kernel.ports import Ask, Option

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, MutableMapping, Sequence

    from mellea_like.core.backend import Backend
    from mellea_like.core.slice import Slice
    from mellea_like.kernel.ports import Next


class Rounds(Option):
    """Replays earlier draws, lets a number of new ones start, and then pauses the call.

    This works because ``repair`` is pure: what a lone lane asks next depends only on the records
    of its earlier draws. `BaseSamplingStrategy.begin` and `CallInRounds.run` describe the
    arguments.
    """

    paused = False
    """Whether this round has made its draws, and the call could make more."""
    left: int | None = None
    """How many draws may still start; None for any number."""
    _kept: Ask | None = None

    def __init__(
        self,
        earlier: Sequence[Slice],
        heard: Callable[[Slice], None] | None,
        marks: MutableMapping[int, Any] | None,
        wrap: Callable[[Backend, Backend], Backend] | None,
    ) -> None:
        self.before = earlier[-1].ended_at if earlier else 0.0
        self.heard = heard
        self.marks = marks
        self.wrap = wrap
        self._earlier = {slice_.iteration: slice_ for slice_ in earlier}

    @property
    def recorded(self) -> Collection[int]:
        """The ids of earlier draws that have not been replayed yet."""
        return self._earlier.keys()

    @property
    def in_parts(self) -> bool:
        """Whether the call makes its draws in several runs."""
        return bool(self._earlier) or self.left is not None

    def next(self, lane: int, now: float, go: Callable[[int, float], Next]) -> Next:
        """Replay earlier draws, then let new ones start until this round has made its draws."""
        ask, self._kept = self._kept or go(lane, now), None
        race = self.call.race
        while isinstance(ask, Ask) and ask.iteration in self._earlier:
            race.replay(as_drawn(self._earlier.pop(ask.iteration), ask))
            ask = None if race.stopped else go(lane, now)
        if not isinstance(ask, Ask) or self.left is None:
            return ask
        if not self.left:
            self.paused, self._kept = True, ask
            return None
        self.left -= 1
        return ask

    def tell(self, slice_: Slice) -> None:
        """Pass a new slice on to ``heard``."""
        if self.heard is not None:
            self.heard(slice_)


def as_drawn(slice_: Slice, ask: Ask) -> Slice:
    """Return a slice that was read from a record, with the action and conversation of ``ask``.

    The record only describes the two. If the action's text has changed, the record's text is used.
    """
    if not isinstance(slice_.action, RecordedAction):
        return slice_  # It never left memory.
    spec, action, reply, asked = ask.spec, ask.action, slice_.generation, slice_.action.text
    if reply is not None and reply.tool_calls and spec.tools is not None:
        with suppress(ValueError):  # A wrong call, for which the draw has failed.
            reply = spec.tools.checked(reply, 1)
    elif reply is not None and reply.parsed and spec.format is None:
        with suppress(Exception):  # It read the original reply, so on an error this text differs.
            reply = replace(reply, value=action.parse(reply.text))
    # Journals may not keep the words of draws that errored.
    if action is not spec.action and asked:
        if type(action) is Instruction and action.description != asked:
            action = replace(action, description=asked)
        # Parts can't be made from a description.
        elif type(action) is Message and isinstance(action.content, str):
            action = replace(action, content=asked)
    known = {(r.name, r.description): r for r in spec.requirements}
    drawn = replace(
        slice_,
        action=action,
        context=ask.context,
        messages=tuple(action.render(ask.context)),
        generation=reply,
        requirements=tuple(known.get((r.name, r.description), r) for r in slice_.requirements),
    )
    if not slice_.rounds:
        return drawn
    # If the action's own messages end with calls of tools, the recorded rounds begin with these.
    rounds = slice_.rounds[len(drawn.rounds) :]
    return replace(drawn, messages=drawn.messages + rounds)
