"""What a joint request costs, split among its members so that the parts sum exactly to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mellea_like.core.generation import Meter, Usage, cost_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mellea_like.core.generation import Generation

__all__ = ["CostPart", "SharedCost", "split"]


def split(total: int, weights: Sequence[int]) -> list[int]:
    """Split a whole number by weights; the parts sum to it."""
    # Hare's method of largest remainders: each part is rounded down, and those that lost most by
    # that get one more.
    if not any(weights):
        weights = [1] * len(weights)
    whole = sum(weights)
    parts = [total * weight // whole for weight in weights]
    lost = [total * weight % whole for weight in weights]
    most = sorted(range(len(weights)), key=lambda index: -lost[index])
    for index in most[: total - sum(parts)]:
        parts[index] += 1
    return parts


class CostPart:
    """One member's part of what a joint request costs."""

    __slots__ = ("_cost", "_index")

    def __init__(self, cost: SharedCost, index: int) -> None:
        self._cost = cost
        self._index = index

    @property
    def usage(self) -> Usage:
        """The part, as known by now."""
        return self._cost.usages()[self._index]

    def leave(self) -> None:
        """Fix the part as it is now: the member leaves, and the others bear the rest."""
        self._cost.leave(self._index)


class SharedCost:
    """The cost of a joint request, and who bears it."""

    # Tokens of the prompt are split by the length of the members' own prompts, those of the reply
    # by the length of their answers, once these are known. Requests, and which of them are of
    # unknown cost, fall to the first members that are left. A member that leaves early bears the
    # tokens that are known by then; the last one of all bears what is left.

    def __init__(self, meter: Meter, weights: Sequence[int]) -> None:
        self._meter = meter
        self._reply: Generation | None = None
        self._input_weights = list(weights)
        self._output_weights = [0] * len(weights)
        self._left: dict[int, Usage] = {}

    def parts(self) -> list[CostPart]:
        """Return each member's part, in order."""
        return [CostPart(self, index) for index in range(len(self._input_weights))]

    def answered(self, reply: Generation, lengths: Sequence[int]) -> None:
        """Say that the reply is there."""
        self._reply = reply
        self._output_weights = list(lengths)

    def leave(self, index: int) -> None:
        """Fix a member's part as it is now, unless nobody else is left."""
        if len(self._left) < len(self._input_weights) - 1:
            usage = self.usages()[index]
            self._left[index] = Usage(0, usage.input_tokens, usage.output_tokens)

    def usages(self) -> list[Usage]:
        """Return each member's part as known by now; they sum to what the meter says."""
        total = cost_of(self._meter, self._reply)
        parts = [Usage()] * len(self._input_weights)
        inputs, outputs = total.input_tokens, total.output_tokens
        for index, left in self._left.items():
            # The server may count less than was thought when the member left.
            mine = min(left.input_tokens, inputs), min(left.output_tokens, outputs)
            inputs, outputs = inputs - mine[0], outputs - mine[1]
            parts[index] = Usage(0, *mine)
        here = [index for index in range(len(parts)) if index not in self._left]
        equal = [1] * len(here)
        shares = zip(
            here,
            split(total.requests, equal),
            split(inputs, [self._input_weights[index] for index in here]),
            split(outputs, [self._output_weights[index] for index in here]),
            split(total.unknown, equal),
            strict=True,
        )
        for index, *numbers in shares:
            parts[index] = Usage(*numbers)
        return parts
