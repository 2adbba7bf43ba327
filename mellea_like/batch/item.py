"""What came of one item of a batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from mellea_like.core.generation import Usage

if TYPE_CHECKING:
    from mellea_like.core.result import SamplingResult

__all__ = ["ItemResult", "ItemStatus"]

T = TypeVar("T")

ItemStatus = Literal["passed", "failed", "errored"]


@dataclass(frozen=True, slots=True)
class ItemResult(Generic[T]):
    """What came of one item; true if it is a `success`. Generic in the parsed value.

    Args:
        id: the item's position in the source, from 0.
        item: the item, as the source gave it.
        result: the record of its call; None where the call raised an error that carries none.
        error: what the call raised, or what ``action=`` raised; None where the call returned.
        attempt: which attempt this is, from 1; more than 1 where a run before was broken off while
            the item was under way.
        replayed: whether it comes from the journal, and nothing was sampled for it now.
        usage: what its requests cost, as far as that is known. Of a call that raised, that is what
            the journal or the error knows: nothing where there is no journal, and the error carries
            no record. A `Budget` counts what such calls cost, too.
    """

    id: int
    item: Any
    result: SamplingResult[T] | None
    error: Exception | None = None
    attempt: int = 1
    replayed: bool = False
    usage: Usage = Usage()

    @property
    def status(self) -> ItemStatus:
        """``"passed"``; ``"failed"``, no slice passed; or ``"errored"``, the call raised."""
        if self.error is not None:
            return "errored"
        return "passed" if self.success else "failed"

    @property
    def success(self) -> bool:
        """Whether a slice passed."""
        return self.error is None and self.result is not None and self.result.success

    def __bool__(self) -> bool:
        return self.success

    @property
    def value(self) -> T | None:
        """The winner's parsed value; None unless a slice passed."""
        return self.result.value if self.success and self.result is not None else None

    def unwrap(self) -> T:
        """Return the winner's parsed value.

        Returns:
            The value.

        Raises:
            SamplingFailed: no slice passed.
            ValueError: the item has neither a result nor an error.
            Exception: the call raised; this is what it raised.
        """
        if self.error is not None:
            raise self.error
        if self.result is None:
            msg = f"item {self.id} has neither a result nor an error"
            raise ValueError(msg)
        return self.result.unwrap()
