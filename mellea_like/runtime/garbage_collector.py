"""Make Python's cyclic garbage collector run less often while very many calls are pending.

A pending request consists of about sixty objects that the collector tracks: tasks, frames, scopes,
events. With the usual thresholds, the collector runs after every 700 new objects, and sometimes
examines all objects. With ten thousand pending calls, this takes 30 to 50 % of the time and finds
next to nothing, because calls leave no reference cycles behind: reference counts free them.
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
"""The number of new objects between two collections; several hundred pending calls make as many."""

_lock = threading.Lock()
_active: list[int] = []
_before = 0
_raised: int | None = None


@contextmanager
def relaxed_gc(objects: int = OBJECTS) -> Generator[None]:
    """Make the garbage collector run less often during a block.

    ::

        with relaxed_gc():
            async with anyio.create_task_group() as tasks:
                for prompt in prompts:  # thousands
                    tasks.start_soon(strategy.sample, prompt)

    It raises the collector's first threshold (see `gc.set_threshold`), but doesn't turn the
    collector off. If your own code makes reference cycles, they are still collected, only later.
    The threshold applies to the whole process, so this works from any thread. Blocks may nest and
    overlap, and the highest number counts. When the last block is left, the threshold is restored,
    unless other code has set it in the meantime. A collector that is turned off stays off, and a
    threshold that is already higher stays as it is.

    Args:
        objects: the number of new objects after which the next collection starts. Python's default
            is 700, and 2,000 since 3.13.

    Yields:
        Nothing.

    Raises:
        TypeError: ``objects`` isn't an int.
        ValueError: ``objects`` is below 1.
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
    """Set the threshold that the open blocks ask for, unless other code has set it."""
    global _before, _raised  # noqa: PLW0603 (the threshold is the process's)
    first, *others = gc.get_threshold()
    if first != _raised:  # It was not raised, or other code has set it since.
        _before = first
    wanted = max([_before, *_active]) if _before else 0
    if wanted != first:
        gc.set_threshold(wanted, *others)
    _raised = wanted if _active else None
