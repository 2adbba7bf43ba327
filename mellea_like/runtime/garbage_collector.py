"""Python's cyclic garbage collector while very many calls are pending.

A pending request is some sixty objects that the collector looks at: tasks, frames, scopes, events.
With the collector's usual thresholds it starts at every 700 new ones, and now and then looks at all
there are. With ten thousand calls pending at once that takes 30 to 50 % of the time, and finds next
to nothing, for a call leaves no cycles behind: reference counts free it.
"""

from __future__ import annotations

import gc
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from mellea_like.core.argument_checks import whole_number

if TYPE_CHECKING:
    from collections.abc import Generator

__all__ = ["relaxed_gc"]

OBJECTS = 50_000
"""New objects between two collections: about as many as a hundred pending calls are made of."""

_lock = threading.Lock()
_active: list[int] = []
_before = 0
_raised: int | None = None


@contextmanager
def relaxed_gc(objects: int = OBJECTS) -> Generator[None]:
    """Let the garbage collector run less often while many calls run.

    ::

        with relaxed_gc():
            async with anyio.create_task_group() as tasks:
                for prompt in prompts:  # thousands
                    tasks.start_soon(strategy.sample, prompt)

    It raises the collector's first threshold (see `gc.set_threshold`), and does not turn it off:
    cycles, if your own code makes any, are still collected, later. The threshold is the process's,
    so this works from any thread; blocks may nest and overlap, and the highest number counts. When
    the last block is left, the threshold is what it was, or what other code set it to meanwhile. A
    collector that is turned off stays off, and a threshold that is higher already stays.

    Args:
        objects: how many more objects there must be than at the last collection for the next one to
            start. Python's own default is 700, from 3.13 on 2,000.

    Yields:
        Nothing.

    Raises:
        TypeError: ``objects`` isn't an int.
        ValueError: it is below 1.
    """
    whole_number("objects", objects)
    with _lock:
        _active.append(objects)
        _adjust()
    try:
        yield
    finally:
        with _lock:
            _active.remove(objects)
            _adjust()


def _adjust() -> None:
    """Set the threshold to what the open blocks ask for, unless others have set it."""
    global _before, _raised  # noqa: PLW0603 (the threshold is the process's)
    first, *others = gc.get_threshold()
    if first != _raised:  # Nobody has raised it, or somebody else has set it since.
        _before = first
    wanted = max([_before, *_active]) if _before else 0
    if wanted != first:
        gc.set_threshold(wanted, *others)
    _raised = wanted if _active else None
