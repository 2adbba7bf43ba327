"""`sample_in_processes`: sample all items of a list in several processes."""

from __future__ import annotations

import pickle
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from mellea_like.batch.api import sample_many
from mellea_like.batch.journal.database import journal_errors
from mellea_like.batch.processes import Ended, Processes
from mellea_like.batch.row_outcome import RowOutcome, outcome_of
from mellea_like.core.argument_checks import whole_number
from mellea_like.core.display import error_text
from mellea_like.errors import JournalError, LimitExceeded, MelleaError
from mellea_like.sampling.base import BaseSamplingStrategy

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence

    from mellea_like.batch.batch_run import BatchRun
    from mellea_like.batch.processes import Sender

__all__ = ["ProcessRun", "ProcessedItem", "sample_in_processes"]


class ProcessedItem(NamedTuple):
    """The outcome of one item.

    Attributes:
        id: the item's position in the list, from 0.
        item: the item.
        outcome: the item's `RowOutcome`, which is plain data.
    """

    id: int
    item: Any
    outcome: RowOutcome


class _Part(NamedTuple):
    make_strategy: Callable[[], BaseSamplingStrategy]
    items: Sequence[Any]
    arguments: dict[str, Any]


def sample_in_processes(
    make_strategy: Callable[[], BaseSamplingStrategy],
    items: Sequence[Any],
    *,
    processes: int,
    concurrency: int,
    journal: str | os.PathLike[str] | None = None,
    **arguments: Any,
) -> ProcessRun:
    """Sample every item of a list in several processes, when one process would be too slow.

    ```python
    async with sample_in_processes(make, prompts, processes=4, concurrency=256) as results:
        async for id, item, outcome in results:
            print(id, outcome.status, outcome.output)
    ```

    The items are distributed evenly over the processes. Functions must have a name in a module
    that the processes can import. Lambdas don't work, nor do functions of a notebook or of the
    script itself. The processes end when the block is left, or when this process ends. To share a
    budget or a rate among the processes, use a `SQLiteStore` in ``make_strategy`` or ``budget``.

    Args:
        make_strategy: a function that makes the strategy. It is called once in each process.
        items: the items, which must be picklable.
        processes: the number of processes, at least 1.
        concurrency: the number of items that all processes together sample at a time, at least
            ``processes``.
        journal: a folder for the journals, one per process, or None. The same call with the same
            number of processes resumes the run.
        **arguments: other picklable arguments of `sample_many`, such as ``action``,
            ``requirements``, ``format``, ``options``, ``budget`` and ``settings``, but not
            ``in_order``, ``breadth_first``, ``unique`` or ``on_progress``.

    Returns:
        The results. Enter them with ``async with``, then iterate over them. Each comes as soon as
        it is ready. If a process is killed or a budget is spent, the other processes finish, and
        then the iteration raises `MelleaError` or `LimitExceeded`. Any other error ends the run.

    Raises:
        TypeError: an argument is of the wrong type, or can't be pickled.
        ValueError: a number is out of range, or the journals are from a different number of
            processes.
    """
    whole_number("sample_in_processes: processes", processes)
    whole_number("sample_in_processes: concurrency", concurrency)
    if concurrency < processes:
        msg = (
            f"concurrency is shared by all processes: it must be at least {processes}, not"
            f" {concurrency}"
        )
        raise ValueError(msg)
    of_one_process = {"in_order", "ordered", "breadth_first", "order", "unique", "on_progress"}
    if wrong := of_one_process & arguments.keys():
        msg = f"sample_in_processes does not support {', '.join(sorted(wrong))}: use sample_many"
        raise TypeError(msg)
    if isinstance(items, str) or not hasattr(items, "__getitem__"):
        msg = f"items must be a list, so that it can be divided, not {items!r}"
        raise TypeError(msg)
    folder = None if journal is None else Path(journal)
    if getattr(make_strategy, "__module__", None) == "__main__":
        msg = (
            "make_strategy must be in a module that the processes can import, not in __main__:"
            f" {make_strategy!r}"
        )
        raise TypeError(msg)
    each, more = divmod(concurrency, processes)
    settings: dict[str, Any] = arguments.get("settings") or {}
    parts: list[_Part] = []
    for number in range(processes):
        own: dict[str, Any] = {
            **arguments,
            "concurrency": each + (number < more),
            "settings": {**settings, "shard": f"{number}/{processes}"},
        }
        if folder is not None:
            own["journal"] = journal_of(folder, number, processes)
        parts.append(_Part(make_strategy, items[number::processes], own))
    if folder is not None and processes_of(folder) not in {0, processes}:
        msg = f"the run in {folder} was started with a different number of processes"
        raise ValueError(msg)
    try:
        return ProcessRun(parts, folder, items)
    except (pickle.PicklingError, AttributeError, TypeError) as exc:
        msg = (
            f"the arguments for the processes can't be pickled: {exc}; define functions in a module"
        )
        raise TypeError(msg) from exc


def journal_of(folder: Path, number: int, processes: int) -> Path:
    """Return the journal of a process, whose ``number`` counts from 0."""
    return folder / f"shard-{number + 1}-of-{processes}.db"


def processes_of(folder: Path) -> int:
    """Return how many processes the run in a folder was started with; 0 if there is no run."""
    counts = (path.stem.rpartition("-of-")[2] for path in folder.glob("shard-*-of-*.db"))
    return max((int(count) for count in counts if count.isdecimal()), default=0)


class ProcessRun:
    """The results of `sample_in_processes`. Enter it with ``async with``, then iterate over it."""

    def __init__(self, parts: Sequence[Any], folder: Path | None, items: Sequence[Any]) -> None:
        self._folder = folder
        self._items = items
        self._count = len(parts)
        self._processes = Processes(_sample, parts, partial(print, file=sys.stderr), "items")
        self._open = False

    async def __aenter__(self) -> Self:
        if self._folder is not None:
            with journal_errors(self._folder):
                self._folder.mkdir(parents=True, exist_ok=True)
        await self._processes.__aenter__()
        self._open = True
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._open = False
        await self._processes.__aexit__(*exc_info)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ProcessedItem:
        """Wait for the next result.

        Returns:
            The outcome of one item.

        Raises:
            RuntimeError: the run was not entered with ``async with``, or has been left.
            StopAsyncIteration: all items have been handed out.
            LimitExceeded: a budget that the items share is spent.
            JournalError: a journal can't be used, or belongs to another run.
            MelleaError: a process was killed or failed.
        """
        if not self._open:
            msg = "this run is not open: use `async with sample_in_processes(...) as results`"
            raise RuntimeError(msg)
        async for number, message in self._processes:
            if not isinstance(message, Ended):
                at, outcome = message
                place = number + at * self._count
                return ProcessedItem(place, self._items[place], outcome)
        raise StopAsyncIteration


async def _sample(part: _Part, sender: Sender) -> None:
    try:
        strategy: object = part.make_strategy()
        if not isinstance(strategy, BaseSamplingStrategy):
            msg = f"make_strategy returned {strategy!r}, which isn't a strategy"
            raise TypeError(msg)
        run: BatchRun[Any] = sample_many(strategy, part.items, **part.arguments)
        parsed = part.arguments.get("format") is not None
        async with run as results:
            async for item in results:
                sender.post((item.id, outcome_of(item, parsed=parsed)))
                await sender.drain()
    except LimitExceeded as exc:
        raise LimitExceeded(str(exc)) from None  # The record of its call can't be pickled.
    except JournalError:
        raise
    except Exception as exc:
        msg = f"{type(exc).__name__}: {error_text(exc)}"
        raise MelleaError(msg) from exc
