"""Several passing draws instead of one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mellea_like.core.decision import Decision
from mellea_like.sampling.selections.base import BaseSelection, SelectionFacts, SelectionState
from mellea_like.sampling.selections.best_of import check_n
from mellea_like.sampling.selections.marks import Key, keying

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from mellea_like.core.slice import Slice
    from mellea_like.core.validation import Candidate

__all__ = ["Collect"]


@dataclass(frozen=True, slots=True)
class Collect(BaseSelection):
    """The first k draws that pass: ``result.values`` has them, in the order they came.

    The call is a success when there are k. With fewer, ``result.candidates`` has what there is.

    Args:
        k: how many.
        distinct: takes a `Candidate` and returns a key: of the draws with equal keys only the
            first counts. None where equal ones count, too.

    Raises:
        TypeError: ``distinct`` is not callable.
        ValueError: ``k`` is below 1.
    """

    k: int
    distinct: Key | None = None

    def __post_init__(self) -> None:
        check_n(self.k, "Collect")
        if self.distinct is not None and not callable(self.distinct):
            msg = f"Collect(distinct=...) is a function of a Candidate, not {self.distinct!r}"
            raise TypeError(msg)

    @property
    def mark(self) -> Callable[[Candidate], Any | Awaitable[Any]] | None:
        """The key that draws differ by."""
        return None if self.distinct is None else keying(self.distinct)

    @property
    def n(self) -> int:
        """How many are to pass: k."""
        return self.k

    def begin(self, facts: SelectionFacts) -> _State:
        """Begin a call."""
        return _State(self, facts)


class _State(SelectionState):
    def __init__(self, config: Collect, facts: SelectionFacts) -> None:
        super().__init__("collect", facts, None)
        self._config = config
        self._kept: list[Slice] = []
        self._seen: set[Any] = set()

    def wanted(self) -> int:
        return self._config.k - len(self._kept)

    def enough(self) -> str:
        if self._config.distinct is None or self.marks[-1] not in self._seen:
            self._seen.add(self.marks[-1])
            self._kept.append(self.passed[-1])
        return "" if self.wanted() else f"{len(self._kept)} passed"

    def decide(self) -> Decision | None:
        if not self._kept:
            return None
        winners = tuple(slice_.iteration for slice_ in self._kept)
        return Decision(
            self.kind,
            winners[: self._config.k],
            self.reason,
            complete=len(winners) >= self._config.k,
            abstentions=self.abstentions,
        )
