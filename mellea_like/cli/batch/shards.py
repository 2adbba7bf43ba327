"""A batch in several processes, each of which has its share of the rows and its own journal.

Rows are dealt out in turn: of three processes, the first takes the rows 1, 4, 7 and so on. The
processes share the budget and the rate limits through a file. The parent process writes the
results, shows the total progress, and ends the other processes.
"""

from __future__ import annotations

import tempfile
from collections import deque
from contextlib import aclosing, asynccontextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio

from mellea_like.batch.process_run import journal_of, processes_of
from mellea_like.batch.processes import Lost, Processes
from mellea_like.batch.progress import Progress
from mellea_like.cli.backends import Backends
from mellea_like.cli.batch.prompt import PromptTemplate
from mellea_like.cli.batch.results import RowResult, row_results, with_options
from mellea_like.cli.batch.source import RowSource
from mellea_like.cli.errors import code_of, logs, sentence
from mellea_like.cli.exit_codes import Problem, fail, os_errors
from mellea_like.errors import JournalError, LimitExceeded
from mellea_like.limits import SQLiteStore
from mellea_like.runtime.garbage_collector import relaxed_gc

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence

    from mellea_like.batch.processes import Sender
    from mellea_like.cli.batch.options import BatchOptions
    from mellea_like.cli.batch.progress import BatchView

ACCOUNT = "this run"
"""The name of the budget and rate limits in the file through which processes share them."""

TOLD_FOR = 10.0
"""The seconds before a repeated message is shown again, because several processes may send it."""


class Part(NamedTuple):
    """One process's part of a run, as passed to that process; ``number`` counts from 0."""

    number: int
    of: int
    options: BatchOptions
    prompt: tuple[str | None, str | None]
    settings: Mapping[str, Any]
    store: Path | None


# --- in the process that starts them -------------------------------------------------------------


class Shards:
    """Prepares a run in several processes: finds its journals, and divides it into parts."""

    def __init__(self, options: BatchOptions) -> None:
        self._options = options
        self._folder = folder = options.journal
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        if folder is not None and folder.exists() and not folder.is_dir():
            fail(
                f"--journal {folder} is a file, but a run with --processes has a journal for each"
                " process: name a folder"
            )

    def begun(self) -> list[Path]:
        """Return the journals that exist; refuse a run started with another number of processes."""
        assert self._folder is not None  # noqa: S101 (it is there)
        count = processes_of(self._folder)
        if count not in {0, self._options.processes}:
            fail(
                f"the run in {self._folder} was started with --processes {count}: use the same"
                " number, because each process has its own rows"
            )
        return [path for path in self._journals() if path.exists()]

    def close(self) -> None:
        """Remove temporary files."""
        if self._temporary is not None:
            self._temporary.cleanup()

    def parts(self, template: PromptTemplate, settings: Mapping[str, Any]) -> list[Part]:
        """Divide the run into a part for each process, and create the folder of the journals."""
        options, count = self._options, self._options.processes
        journals: Sequence[Path | None] = [None] * count
        if self._folder is not None:
            with os_errors(f"--journal: can't create the folder {self._folder}"):
                self._folder.mkdir(parents=True, exist_ok=True)
            journals = self._journals()
        store, prompt = self._store(), (template.text, template.system)
        each, more = divmod(options.workers, count)
        return [
            Part(
                number,
                count,
                replace(options, journal=journal, workers=each + (number < more), processes=1),
                prompt,
                settings if journal is None else {**settings, "shard": f"{number + 1} of {count}"},
                store,
            )
            for number, journal in enumerate(journals)
        ]

    def _journals(self) -> list[Path]:
        assert self._folder is not None  # noqa: S101 (it was given)
        count = self._options.processes
        return [journal_of(self._folder, number, count) for number in range(count)]

    def _store(self) -> Path | None:
        """Clear the file of the shared budget and rates; return it, or None without any limits."""
        options = self._options
        rates = options.requests_per_minute, options.tokens_per_minute
        if options.spec.budget is None and rates == (None, None):
            return None
        folder = self._folder
        if folder is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="mellea-like-")
            folder = Path(self._temporary.name)
        store = SQLiteStore(folder / "limits.sqlite")
        store.forget(ACCOUNT)
        store.close()
        return store.path


def refuse_shards(path: Path) -> None:
    """Before a run in one process, refuse a folder with the journals of several processes."""
    if path.is_dir() and (count := processes_of(path)):
        fail(f"the run in {path} was started with --processes {count}: use the same number")


@asynccontextmanager
async def shard_results(
    parts: Sequence[Part], view: BatchView, total: int | None, *, ordered: bool
) -> AsyncGenerator[AsyncIterator[RowResult]]:
    """Start the processes, and yield the results of their rows."""
    async with (
        Processes(sample_shard, parts, view.tell, "rows") as processes,
        aclosing(_results(processes, len(parts), view, total, ordered=ordered)) as results,
    ):
        yield results


async def _results(
    processes: Processes, count: int, view: BatchView, total: int | None, *, ordered: bool
) -> AsyncGenerator[RowResult]:
    """Yield the results that the processes send, and show the sums of their progress."""
    began = anyio.current_time()
    running = set(range(count))
    progress: dict[int, Progress] = {}
    waiting: dict[int, deque[RowResult]] = {number: deque() for number in running}
    told: dict[str, float] = {}
    async for number, message in processes:
        now = anyio.current_time()
        match message:
            case RowResult() if not ordered:
                yield message
            case RowResult():
                waiting[number].append(message)
            case Progress():
                progress[number] = message
                view.update(_sum(progress.values(), total, now - began))
            case str():
                if now - told.get(message, -TOLD_FOR) >= TOLD_FOR:
                    told[message] = now
                    view.tell(message)
            case _:
                running.discard(number)
                if isinstance(message.error, Lost):
                    view.tell(str(message.error))
        # With --in-order, results wait until each running process has sent one.
        while any(waiting.values()) and all(waiting[number] for number in running):
            yield min(filter(None, waiting.values()), key=lambda rows: rows[0].place).popleft()


def _sum(parts: Iterable[Progress], total: int | None, elapsed: float) -> Progress:
    found = Progress(total=total, elapsed=elapsed)
    for one in parts:
        sums = {name: getattr(found, name) + getattr(one, name) for name in _SUMS}
        found = replace(found, **sums)
    return found


_SUMS = tuple(one.name for one in fields(Progress) if one.name not in {"total", "elapsed"})


# --- in each of them -----------------------------------------------------------------------------


async def sample_shard(part: Part, sender: Sender) -> None:
    """Sample one process's share of the rows, and send the results to its parent."""
    options = part.options
    with logs(debug=options.debug), relaxed_gc():
        try:
            await _sample(part, sender)
        except LimitExceeded as error:
            raise LimitExceeded(str(error)) from None  # The record of its call can't be pickled.
        except Exception as error:
            said = sentence(with_options(error, options), debug=options.debug)
            if isinstance(error, JournalError):
                raise JournalError(said) from error
            raise Problem(said, code_of(error)) from error


async def _sample(part: Part, sender: Sender) -> None:
    options = part.options
    store = None if part.store is None else SQLiteStore(part.store)
    backends = Backends(options, store=store)
    template = PromptTemplate(*part.prompt, options.row_checks, early=options.early)
    source = RowSource(
        options.source,
        template,
        on_bad=options.on_bad_line,
        most=options.first,
        again=options.again,
        share=(part.number, part.of),
    )
    async with backends.open():
        if not options.quiet:
            sender.post(f"Backend: {backends.description}")
        async with row_results(
            *(options, backends, source, template, part.settings),
            update=sender.post,
            tell=sender.post,
        ) as results:
            async for row in results:
                sender.post(row)
                await sender.drain()
