"""The results of a batch's rows, sampled by one process, with messages on the way."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Protocol, cast

import anyio

from mellea_like.batch.api import sample_many
from mellea_like.batch.journal.differences import Difference
from mellea_like.batch.journal.journal import Journal
from mellea_like.cli.batch.options import BatchOptions
from mellea_like.cli.batch.records import RowRecords
from mellea_like.cli.exit_codes import Problem
from mellea_like.cli.option_fields import option_names
from mellea_like.errors import JournalError
from mellea_like.runtime.task_scope import task_scope

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
    from typing import Self

    from mellea_like.batch.batch_run import BatchRun
    from mellea_like.batch.progress import Progress
    from mellea_like.batch.rows.formats import Row
    from mellea_like.cli.backends import Backends
    from mellea_like.cli.batch.prompt import PromptTemplate
    from mellea_like.cli.batch.records import RowResult
    from mellea_like.cli.batch.source import RowSource
    from mellea_like.limits.backoff_gate import BackoffGate

OPTIONS = {
    "loop_budget": "--attempts",
    "concurrency_budget": "--lanes",
    "provider": "--backend",
    "requirements": "--check, --require",
    "judge": "--judge-model",
    "format": "--schema",
    "checks": "--check",
    "input": "INPUT",
}
"""The options for parts of a run's identity that have other names in the library."""

LOOK_EVERY = 0.25
"""The seconds between checks whether the servers can be reached."""

GIVE_UP_AFTER = 4.0
"""The seconds of an outage after which a server that has never answered is given up."""


class View(Protocol):
    """A display of a batch's progress."""

    def update(self, progress: Progress) -> None:
        """Take the current numbers."""
        ...

    def tell(self, line: str) -> None:
        """Write a line."""
        ...


class Results(Protocol):
    """The result of each row, in the order of arrival."""

    @property
    def progress(self) -> Progress:
        """The progress of the batch."""
        ...

    def __aiter__(self) -> AsyncIterator[RowResult]: ...


@asynccontextmanager
async def row_results(
    options: BatchOptions,
    backends: Backends,
    source: RowSource,
    template: PromptTemplate,
    settings: Mapping[str, Any],
    view: View,
) -> AsyncGenerator[Results]:
    """Sample all rows of a source with open backends."""
    outages: list[str] = []
    async with task_scope() as tasks:
        with anyio.CancelScope() as scope:
            tasks.start_soon(_watch_servers, backends, view, scope, outages)
            async with sample_many(
                backends.make_strategy(),
                source.rows(often=options.order == "breadth"),
                concurrency=options.parallel,
                action=cast("Callable[[Row], str]", template.fill),
                requirements=options.make_requirements(),
                format=backends.reply_type,
                options=options.request_options,
                budget=backends.make_budget("this run"),
                in_order=options.in_order,
                order=options.order,
                journal=_journal(options, backends),
                unique=options.similarity,
                keep_errors=False,  # A backend's error isn't the row's fault.
                on_progress=view.update,
                settings=settings,
            ) as results:
                yield _RowResults(results, RowRecords(options))
    if scope.cancelled_caught:
        raise Problem(outages[0])


class _RowResults:
    def __init__(self, run: BatchRun[Any], records: RowRecords) -> None:
        self._run = run
        self._records = records

    @property
    def progress(self) -> Progress:
        return self._run.progress

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RowResult:
        return self._records.of(await anext(self._run))


async def _watch_servers(
    backends: Backends, view: View, run: anyio.CancelScope, outages: list[str]
) -> None:
    """Report each outage once; end the run if a server has never answered."""
    began: dict[BackoffGate, float] = {}
    while True:
        for gate in backends.gates:
            outage = gate.outage
            if outage is None:
                began.pop(gate, None)
                continue
            if gate not in began:
                began[gate] = anyio.current_time()
                place = outage.removeprefix("can't reach ")
                view.tell(f"Waiting for {place}" if place != outage else f"Waiting: {outage}")
            if not gate.reached and anyio.current_time() - began[gate] >= GIVE_UP_AFTER:
                outages.append(outage)
                run.cancel("the server has never answered")
                return
        await anyio.sleep(LOOK_EVERY)


def _journal(options: BatchOptions, backends: Backends) -> Journal | None:
    if options.journal is None:
        return None
    prices = backends.prices(backends.models)
    text, resume = options.journal_text, options.resume
    return Journal(options.journal, resume=resume, text=text, prices=prices)


def with_options(error: Exception) -> Exception:
    """Name the options in which a run differs from the run in its journal."""
    if not isinstance(error, JournalError) or not error.differences:
        return error
    from mellea_like.batch.unique import UNIQUE  # noqa: PLC0415 (few runs need it)

    message = str(error)
    options = option_names(BatchOptions) | OPTIONS
    for one in error.differences:
        told = Difference(*one)
        name = told.name.removeprefix("options.")
        if (told.was or told.now or "").startswith(f'"{UNIQUE}'):
            name = "unique"  # This requirement comes from no --check.
        if name in options:
            message = message.replace(str(told), str(told._replace(name=options[name])))
        elif name.partition(".")[0] == "selection":
            message = message.replace(str(told), _of_selection(told))
    worded = JournalError(message, error.differences)
    worded.__cause__ = error
    return worded


def _of_selection(told: Difference) -> str:
    part = told.name.rpartition(".")[2]
    if part not in {"by", "k", "n"}:  # Its values are Python objects.
        return "--select is not the same"
    return str(told._replace(name="--n" if part == "n" else "--select"))
