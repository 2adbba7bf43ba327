"""The arguments of a call: their names and types, for all functions that pass them on.

A function that takes ``**arguments: Unpack[Arguments]`` and passes them on to
`BaseSamplingStrategy.sample` is type-checked like ``sample`` itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from typing import Any

    from mellea_like.core.backend import Backend, Options
    from mellea_like.core.conversation import Context, MessageLike
    from mellea_like.core.slice import Slice
    from mellea_like.core.tools import ToolSource
    from mellea_like.limits.budget import Budget

__all__ = ["Arguments", "OfEachItem", "Prepared"]


class OfEachItem(TypedDict, total=False):
    """The arguments that a batch passes on to the call of each item."""

    backend: Backend | None
    budget: Budget | None
    options: Options | Mapping[str, Any] | None
    tools: Sequence[ToolSource]
    tool_choice: str | None
    tool_rounds: int


class Prepared(OfEachItem, total=False):
    """The arguments of `BaseSamplingStrategy.begin` that become a call's inputs."""

    context: Context | Sequence[MessageLike] | None
    validation_context: Context | Sequence[MessageLike] | None


class Arguments(Prepared, total=False):
    """The keyword arguments of `BaseSamplingStrategy.sample`, except ``format``."""

    on_slice: Callable[[Slice], Awaitable[None] | None] | None
