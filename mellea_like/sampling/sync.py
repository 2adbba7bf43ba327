"""Running one call where no event loop runs."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, TypeVar, cast

import anyio
from anyio.lowlevel import current_token

from mellea_like.core.requirement import Requirement
from mellea_like.runtime.logs import warn

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

__all__ = ["judges_of", "run_once"]

T = TypeVar("T")

CLOSE_SECONDS = 2.0
"""How long closing idle connections may take."""


def run_once(call: Callable[[], Awaitable[T]], backends: Iterable[Any]) -> T:
    """Run a call in an event loop of its own, and close the loop's idle connections at the end.

    Args:
        call: what to run.
        backends: what may keep connections open; they may be used again afterwards.

    Returns:
        What the call returned.

    Raises:
        RuntimeError: an event loop is running already in this thread.
    """
    if _loop_is_running():
        msg = (
            "sample_sync was called while an event loop is running in this thread:"
            " use `await strategy.sample(...)` there"
        )
        raise RuntimeError(msg)
    closers: dict[int, Any] = {id(b): b.aclose for b in backends if hasattr(b, "aclose")}

    async def main() -> T:
        try:
            return await call()
        finally:
            with anyio.move_on_after(CLOSE_SECONDS, shield=True):
                for close in closers.values():
                    try:
                        await close()
                    except Exception as exc:  # noqa: BLE001 (the call's outcome stands)
                        warn("closing idle connections: %s: %s", type(exc).__name__, exc)

    return anyio.run(main)


def judges_of(requirements: object) -> list[Any]:
    """Return the backends that requirements bring along.

    Args:
        requirements: requirements and texts; anything else is a mistake, which the call explains.

    Returns:
        Their judges, those of combined requirements' parts too.
    """
    judges: list[Any] = []
    if isinstance(requirements, str | Requirement) or not isinstance(requirements, Collection):
        return judges
    for requirement in cast("Collection[object]", requirements):
        if isinstance(requirement, Requirement):
            judges += [requirement.judge, *judges_of(requirement.parts)]
    return judges


def _loop_is_running() -> bool:
    try:
        current_token()
    except anyio.NoEventLoopError:
        return False
    return True
