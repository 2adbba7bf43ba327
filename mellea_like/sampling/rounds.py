"""A call that can pause between its draws and continue, for programs with many calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from mellea_like.core.argument_checks import whole_number
from mellea_like.options.rounds import Rounds
from mellea_like.sampling.call import RunningCall

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping, Sequence

    from mellea_like.core.backend import Backend
    from mellea_like.core.result import SamplingResult
    from mellea_like.core.slice import Slice
    from mellea_like.limits.budget import Budget
    from mellea_like.sampling.base import BaseSamplingStrategy
    from mellea_like.sampling.prepare import CallInputs

__all__ = ["CallInRounds"]

T = TypeVar("T")


class CallInRounds(Generic[T]):
    """A call that can pause after some of its draws, and continue later.

    `BaseSamplingStrategy.begin` makes it.

    Attributes:
        paused: whether the last `run` paused the call, instead of ending it.
    """

    paused = False

    def __init__(
        self,
        strategy: BaseSamplingStrategy,
        inputs: CallInputs,
        on_slice: Callable[[Slice], Awaitable[None] | None] | None,
        earlier: Sequence[Slice],
        marks: MutableMapping[int, Any] | None = None,
        wrap: Callable[[Backend, Backend], Backend] | None = None,
    ) -> None:
        self._strategy = strategy
        self._inputs = inputs
        self._on_slice = on_slice
        self._slices = tuple(earlier)
        self._marks = marks
        self._wrap = wrap
        self._call: RunningCall | None = None

    @property
    def budgets(self) -> tuple[Budget, ...]:
        """The budgets that limit the call's requests, including those around other budgets."""
        return tuple(dict.fromkeys(one for budget in self._inputs.budgets for one in budget.chain))

    @property
    def tools(self) -> dict[str, Any] | None:
        """The call's tools, ``tool_choice`` and ``tool_rounds`` as plain data.

        None for a call without tools.
        """
        box = self._inputs.tools
        return None if box is None else box.described()

    def restored(self, result: SamplingResult[T]) -> SamplingResult[T]:
        """Give the tools of this call to a result that was read from a record.

        Args:
            result: the result of a call with the same arguments.

        Returns:
            The result, whose ``run_tools`` runs these tools. The arguments of the winners' tool
            calls are parsed again, because a record doesn't contain parsed values.
        """
        box = self._inputs.tools
        return result if box is None else box.known_again(result)

    async def run(
        self, draws: int | None = None, *, heard: Callable[[Slice], None] | None = None
    ) -> SamplingResult[T]:
        """Make some further draws, or all that are left.

        The pauses between runs don't count towards the time that the call takes.

        Args:
            draws: how many draws to make, at least 1; None for all. A number works only for calls
                of one lane.
            heard: called with each draw's record as soon as the draw is recorded. The call waits
                for it, so it must return quickly. An exception in it ends the call.

        Returns:
            The result so far if the call is paused, else the final result.

        Raises:
            TypeError: ``draws`` isn't an int.
            ValueError: ``draws`` is less than 1.
            Exception: the errors of `BaseSamplingStrategy.sample`.
        """
        if draws is not None:
            whole_number("draws", draws)
        call = self._call
        if call is None:
            rounds = Rounds(self._slices, heard, self._marks, self._wrap)
            rounds.left = draws
            call = RunningCall(self._strategy, self._inputs, self._on_slice, rounds=rounds)
        else:
            rounds = call.resume(draws, heard)
        result: SamplingResult[T] = await call.run()
        self.paused = rounds.paused
        self._slices = result.slices
        self._call = call if call.keeps else None
        return result
