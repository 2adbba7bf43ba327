"""Sample the rows of a batch in one process, and report progress and outages."""

from __future__ import annotations

from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any, Protocol, cast

from mellea_like.batch.api import sample_many
from mellea_like.batch.journal.differences import Difference
from mellea_like.batch.journal.journal import Journal
from mellea_like.cli.batch.records import row_result
from mellea_like.cli.option_fields import option_names
from mellea_like.cli.outages import watched_servers
from mellea_like.errors import JournalError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping

    from mellea_like.batch.progress import Progress
    from mellea_like.batch.rows.formats import Row
    from mellea_like.cli.backends import Backends
    from mellea_like.cli.batch.options import BatchOptions
    from mellea_like.cli.batch.prompt import PromptTemplate
    from mellea_like.cli.batch.records import RowResult
    from mellea_like.cli.batch.source import RowSource

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
"""Maps the library's names for settings to the options that set them, if the names differ."""


class View(Protocol):
    """A display of a batch's progress."""

    def update(self, progress: Progress) -> None:
        """Show the current progress."""
        ...

    def tell(self, line: str) -> None:
        """Show a message of one line."""
        ...


@asynccontextmanager
async def row_results(
    options: BatchOptions,
    backends: Backends,
    source: RowSource,
    template: PromptTemplate,
    settings: Mapping[str, Any],
    view: View,
) -> AsyncGenerator[AsyncIterator[RowResult]]:
    """Sample all rows of a source with open backends, and yield an iterator of the results."""
    async with (
        watched_servers(backends.gates, view.tell),
        sample_many(
            backends.make_strategy(),
            source.rows(often=options.breadth_first),
            concurrency=options.workers,
            action=cast("Callable[[Row], str]", template.fill),
            requirements=options.make_requirements(),
            format=backends.reply_type,
            options=options.request_options,
            budget=backends.make_budget("this run"),
            in_order=options.in_order,
            breadth_first=options.breadth_first,
            journal=_journal(options, backends),
            unique=options.similarity,
            keep_errors=False,  # A backend's error isn't about the row.
            on_progress=view.update,
            settings=settings,
        ) as results,
        aclosing(row_result(item, options) async for item in results) as rows,
    ):
        yield rows


def _journal(options: BatchOptions, backends: Backends) -> Journal | None:
    if options.journal is None:
        return None
    prices = backends.prices(backends.models)
    text, resume = options.journal_text, options.resume
    return Journal(options.journal, resume=resume, text=text, prices=prices)


def with_options(error: Exception, options: BatchOptions) -> Exception:
    """Return the error; one that lists changed settings names options in their place."""
    if not isinstance(error, JournalError) or not error.differences:
        return error
    from mellea_like.batch.unique import UNIQUE  # noqa: PLC0415 (few runs need it)

    message = str(error)
    names = option_names(type(options)) | OPTIONS
    for one in error.differences:
        told = Difference(*one)
        name = told.name.removeprefix("options.")
        if (told.was or told.now or "").startswith(f'"{UNIQUE}'):
            name = "unique"  # This requirement comes from no --check.
        if name in names:
            message = message.replace(str(told), str(told._replace(name=names[name])))
        elif name.partition(".")[0] == "selection":
            message = message.replace(str(told), _of_selection(told))
    worded = JournalError(message, error.differences)
    worded.__cause__ = error
    return worded


def _of_selection(told: Difference) -> str:
    part = told.name.rpartition(".")[2]
    if part not in {"by", "k", "n"}:  # Its values are Python objects.
        return "--select has changed"
    return str(told._replace(name="--n" if part == "n" else "--select"))
