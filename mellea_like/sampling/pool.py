"""Which turn a chain takes next, where a schedule decides when."""

from __future__ import annotations

from mellea_like.sampling.turns import Turn, turn_of

__all__ = ["TurnPool"]


class TurnPool:
    """The turns of a call that are left.

    A chain takes the turns of its own subsample, in order. Where turns are pooled, a chain that has
    none, because it is a fresh one or because others took them, borrows from the subsample that has
    most left (the lowest of several). A borrowed turn keeps its id.

    Args:
        subsamples: how many subsamples there are.
        loop_budget: turns of each.
        pooled: whether turns may be borrowed.
    """

    __slots__ = ("_loop_budget", "_next", "left", "pooled")

    def __init__(self, subsamples: int, loop_budget: int, *, pooled: bool) -> None:
        self._loop_budget = loop_budget
        self._next = [0] * subsamples
        self.pooled = pooled
        self.left = subsamples * loop_budget

    def has(self, chain: int) -> bool:
        """Tell whether there is a turn for a chain.

        Args:
            chain: the chain's index; from the number of subsamples on, it is a fresh one.

        Returns:
            Whether `take` would return one.
        """
        if self.pooled:
            return self.left > 0
        return chain < len(self._next) and self._next[chain] < self._loop_budget

    def take(self, chain: int) -> Turn | None:
        """Take the next turn for a chain.

        Args:
            chain: the chain's index.

        Returns:
            The turn; None where there is none for it.
        """
        if not self.has(chain):
            return None
        subsample = chain
        if chain >= len(self._next) or self._next[chain] == self._loop_budget:
            subsample = min(range(len(self._next)), key=self._next.__getitem__)
        depth = self._next[subsample]
        self._next[subsample] = depth + 1
        self.left -= 1
        return turn_of(subsample, depth, self._loop_budget)
