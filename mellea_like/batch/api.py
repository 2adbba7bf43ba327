"""`sample_many`: sample all items of a source, many at a time."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, overload

from mellea_like.batch.batch_run import BatchRun
from mellea_like.batch.item import Work
from mellea_like.batch.jobs.backend import BatchJobs, check_alike
from mellea_like.batch.journal.identity import identity_of
from mellea_like.batch.orders import BreadthFirst, DepthFirst
from mellea_like.batch.waiting import why_not_in_rounds
from mellea_like.core.argument_checks import (
    is_async,
    renamed_arguments,
    takes,
    whole_number,
)
from mellea_like.core.backend import innermost
from mellea_like.core.requirement import Requirement
from mellea_like.core.tools import TOOL_ROUNDS
from mellea_like.sampling import features_of
from mellea_like.sampling.base import BaseSamplingStrategy

if TYPE_CHECKING:
    from collections.abc import (
        AsyncIterable,
        Awaitable,
        Callable,
        Iterable,
        Mapping,
        Sequence,
    )
    from typing import Protocol, Required, Unpack

    from typing_extensions import TypeForm

    from mellea_like.batch.journal.journal import Journal, OpenJournal
    from mellea_like.batch.orders import Order
    from mellea_like.batch.progress import OnProgress
    from mellea_like.core.backend import Backend, Options
    from mellea_like.core.conversation import Action, Parsed, PlainText
    from mellea_like.core.tools import ToolSource
    from mellea_like.limits.budget import Budget
    from mellea_like.sampling.arguments import OfEachItem

    I_co = TypeVar("I_co", covariant=True)
    T_co = TypeVar("T_co", covariant=True)

    class ManyArguments(OfEachItem, total=False):
        """The keyword arguments that all overloads of `sample_many` share."""

        concurrency: Required[int]
        requirements: Sequence[Requirement | str]
        in_order: bool
        breadth_first: bool
        fail_fast: bool
        journal: Journal | str | os.PathLike[str] | None
        keep_errors: bool
        unique: bool | float
        on_progress: OnProgress | None
        settings: Mapping[str, Any] | None

    # A source of actions of one's own gives two types: that of the items, and that of the values to
    # which the items parse replies. An iterator has two methods from which a type checker infers
    # them.

    class Items(Protocol[I_co, T_co]):
        """An iterable of texts or actions, generic in their type and in that of parsed replies."""

        def __iter__(self) -> ItemIterator[I_co, T_co]: ...

    class ItemIterator(Protocol[I_co, T_co]):
        """An iterator over texts or actions."""

        def __next__(self) -> I_co: ...
        def __iter__(self) -> Iterator[PlainText[T_co] | Action[T_co]]: ...

    class AsyncItems(Protocol[I_co, T_co]):
        """An async iterable of texts or actions, with the type parameters of `Items`."""

        def __aiter__(self) -> AsyncItemIterator[I_co, T_co]: ...

    class AsyncItemIterator(Protocol[I_co, T_co]):
        """An async iterator over texts or actions."""

        def __anext__(self) -> Awaitable[I_co]: ...
        def __aiter__(self) -> AsyncIterator[PlainText[T_co] | Action[T_co]]: ...


__all__ = ["sample_many"]

I = TypeVar("I")  # noqa: E741 (an item)
F = TypeVar("F")


@overload
def sample_many(
    strategy: BaseSamplingStrategy,
    items: Items[I, Parsed] | AsyncItems[I, Parsed],
    *,
    action: None = None,
    format: None = None,
    **arguments: Unpack[ManyArguments],
) -> BatchRun[Parsed, I]: ...
@overload
def sample_many(
    strategy: BaseSamplingStrategy,
    items: Items[I, Any] | AsyncItems[I, Any],
    *,
    action: None = None,
    format: TypeForm[F],
    **arguments: Unpack[ManyArguments],
) -> BatchRun[F, I]: ...
@overload
def sample_many(
    strategy: BaseSamplingStrategy,
    items: Iterable[I] | AsyncIterable[I],
    *,
    action: Callable[[I], PlainText[Parsed] | Action[Parsed]],
    format: None = None,
    **arguments: Unpack[ManyArguments],
) -> BatchRun[Parsed, I]: ...
@overload
def sample_many(
    strategy: BaseSamplingStrategy,
    items: Iterable[I] | AsyncIterable[I],
    *,
    action: Callable[[I], str | Action[Any]],
    format: TypeForm[F],
    **arguments: Unpack[ManyArguments],
) -> BatchRun[F, I]: ...
# These two are for mypy, which gives a list of several types, such as [text, message], the type
# list[object] where nothing says what it holds.
@overload
def sample_many(
    strategy: BaseSamplingStrategy,
    items: Iterable[str | Action[Parsed]],
    *,
    action: None = None,
    format: None = None,
    **arguments: Unpack[ManyArguments],
) -> BatchRun[Parsed, str | Action[Parsed]]: ...
@overload
def sample_many(
    strategy: BaseSamplingStrategy,
    items: Iterable[str | Action[Any]],
    *,
    action: None = None,
    format: TypeForm[F],
    **arguments: Unpack[ManyArguments],
) -> BatchRun[F, str | Action[Any]]: ...
@renamed_arguments(ordered="in_order", order="breadth_first (True or False)")
def sample_many(
    strategy: BaseSamplingStrategy,
    items: Iterable[Any] | AsyncIterable[Any],
    *,
    concurrency: int,
    action: Callable[[Any], Any] | None = None,
    requirements: Sequence[Requirement | str] = (),
    backend: Backend | None = None,
    format: Any = None,
    options: Options | Mapping[str, Any] | None = None,
    budget: Budget | None = None,
    in_order: bool = False,
    breadth_first: bool = False,
    fail_fast: bool = False,
    journal: Journal | str | os.PathLike[str] | None = None,
    keep_errors: bool = True,
    unique: bool | float = False,
    on_progress: OnProgress | None = None,
    settings: Mapping[str, Any] | None = None,
    tools: Sequence[ToolSource] = (),
    tool_choice: str | None = None,
    tool_rounds: int = TOOL_ROUNDS,
) -> BatchRun[Any]:
    """Sample every item of a source, many at a time.

    ```python
    async with sample_many(strategy, prompts, concurrency=64, journal="run.db") as results:
        async for item in results:
            print(item.id, item.status, item.value)
    ```

    An item that fails doesn't stop the others. At most ``2 * concurrency`` items at a time are
    between the source and the consumer. So a source with a million items, or an endless one, needs
    no more memory than a short one, and a slow consumer slows the source down.

    Leaving the block cancels all items that are being sampled, and waits until nothing is running.
    With a journal, the same call resumes a run that ended early or was killed. Finished items then
    come from the journal (``replayed``), and the others are sampled.

    Args:
        strategy: the strategy that samples the items.
        items: an iterable or async iterable of texts and actions or, with ``action``, of anything.
            A plain iterable runs on the event loop, so use an async one if getting the next item
            takes time.
        concurrency: the number of items to sample at a time. Each may have as many requests in
            flight as the strategy's ``concurrency_budget``.
        action: a function that turns an item into its text or action. If it raises, that item is
            ``errored``, and the others continue.
        requirements: the requirements of each item, in addition to the strategy's.
        backend: the model that generates, instead of the strategy's backend. With `BatchJobs`, a
            provider's batch API answers the requests, at half the price and within a day. This
            needs ``breadth_first=True`` and a journal.
        format: the type to parse replies to, as in `BaseSamplingStrategy.sample`.
        options: options for generating; options not set here come from the strategy.
        budget: the budget of all items together. When it is spent, no further item starts. Items
            in flight are finished, and then the iteration raises `LimitExceeded`. With a journal,
            the items that the budget stopped are sampled when the run is resumed. But without
            rounds, an item for which some draws have passed by then keeps the answer that its
            selection makes of them (its ``stop_reason`` is ``"budget"``).
        in_order: whether results come in the order of the items. By default they come as soon as
            they are ready, so a slow item doesn't hold up the others.
        breadth_first: whether to work in rounds: make the first draw of every item, then the second
            draw of the items that need one, and so on. By default, all draws of an item are made
            without a break. If the budget can't pay for all draws, more items pass in rounds (Reset
            and Discard, https://arxiv.org/abs/2601.21522). In each round, an item continues from
            its earlier draws and repairs. Waiting items are kept in the journal, or in memory if
            there is none. With ``in_order``, results come after the last round. Rounds need a
            strategy with a concurrency budget of 1, no schedule and no stages with budgets. Of the
            selection objects, only `Collect`, and `Vote` without weights, are allowed; `BatchJobs`
            allows the others, too. A journal must have ``text="all"``. Time limits and plugins
            treat all draws of an item as one call.
        fail_fast: whether the first item that fails ends the run. Items in flight are then
            cancelled, and the iteration raises the error that the item's ``unwrap`` raises. With
            a journal, that item is sampled again when the run is resumed.
        journal: the journal of the run: a `Journal`, or the path of one to create or resume.
        keep_errors: whether the journal counts an item as finished if an error ended it: its call
            raised, or it failed with the ``stop_reason`` ``"error"`` because a lane could not make
            its draws. With False, errors that come from now on aren't recorded as results, so such
            items are sampled again when the run is resumed: an outage of the server says nothing
            about the items.
        unique: whether the winning replies of different items must differ. A reply that equals
            another item's reply fails, and the reason names the other item. The failed reply's item
            continues as after any failure. With True, parsed values are compared by ``==``, and
            texts regardless of case and spaces. A number between 0 and 1 also refuses
            near-duplicates. These are texts whose sets of three-word sequences have at least this
            Jaccard similarity, estimated by MinHash to within 0.1; this needs the extra
            ``dedupe``. While a reply is being checked, the same reply to another item already
            fails. With a journal, replies in the journal are compared too. Replies that call tools
            aren't compared.
        on_progress: a plain function that is called on the event loop with the progress of the
            run: at the start, at the end, and after changes, at most every half second. If the
            function raises, the exception is logged, and the function isn't called again.
        settings: further data that identifies the run, by name: ``"input"`` for a digest of the
            input file, ``"prompt"`` for a template, or others. A run can be resumed only with the
            same data. The strategy, requirements, model, options, format and tools are always
            compared.
        tools: the tools that the model may call, as in `BaseSamplingStrategy.sample`. Only
            ``read_only`` tools run during draws. To run the other tools that an item's winner
            calls, use ``item.result.run_tools()``.
        tool_choice: see `BaseSamplingStrategy.sample`.
        tool_rounds: see `BaseSamplingStrategy.sample`.

    Returns:
        The results. Enter them with ``async with``, and then iterate over them once.

    Raises:
        TypeError: an argument is of the wrong type, or unknown.
        ValueError: an argument is out of range, the strategy has no backend, or two `BatchJobs` of
            the same model have different settings.
        ImportError: ``unique`` is a number, and the extra ``dedupe`` is missing.
        RequirementError: a requirement needs a judge, and the backend can't judge.
    """
    whole_number("sample_many: concurrency", concurrency)
    if not isinstance(strategy, BaseSamplingStrategy):
        msg = f"strategy must be a sampling strategy, not {strategy!r}"
        raise TypeError(msg)
    if isinstance(requirements, Iterator):
        requirements = tuple(requirements)  # They are needed more than once.
    of_jobs = _uses_jobs(strategy, requirements, backend)
    record = _journal(journal)
    _check_order(strategy, items, record, breadth_first=breadth_first, of_jobs=of_jobs)
    check_takes_one("action", action, "an item and returns a text or an action")
    check_takes_one("on_progress", on_progress, "a Progress")
    replies = None
    if unique is not False:
        from mellea_like.batch.unique import UniqueReplies  # noqa: PLC0415 (few runs need it)

        replies = UniqueReplies(unique, format)
        requirements = (*requirements, replies.requirement)
    # This finds mistakes that would affect every item, before the first one is sampled.
    given: dict[str, Any] = {
        "backend": backend,
        "format": format,
        "options": options,
        "budget": budget,
        "tools": tuple(tools),
        "tool_choice": tool_choice,
        "tool_rounds": tool_rounds,
    }
    example = strategy.begin("an item", requirements, **given)
    work = Work(strategy, tuple(requirements), action, given, example, replies)
    opened: OpenJournal | None = None
    if record is not None:
        identity = identity_of(
            strategy, requirements, action, format, options, settings, backend=backend
        )
        if example.tools is not None:
            identity["tools"] = example.tools
        opened = record.open(identity)
    kind: type[Order] = BreadthFirst if breadth_first else DepthFirst
    if of_jobs:
        from mellea_like.batch.jobs.order import ByJobs  # noqa: PLC0415 (few runs have jobs)

        kind = ByJobs
    return BatchRun(
        work,
        items,
        order=kind,
        concurrency=concurrency,
        ordered=in_order,
        fail_fast=fail_fast,
        journal=opened,
        keep_errors=keep_errors,
        on_progress=on_progress,
    )


def check_takes_one(name: str, function: object, what: str) -> None:
    """Raise a TypeError unless an argument is None or a plain function that takes ``what``."""
    if function is None or (callable(function) and not is_async(function) and takes(function, 1)):
        return
    msg = f"{name} must be a plain function that takes {what}, not {function!r}"
    raise TypeError(msg)


def _uses_jobs(
    strategy: BaseSamplingStrategy,
    requirements: Sequence[Requirement | str],
    backend: Backend | None,
) -> bool:
    used = [backend, *strategy.settings.backends]
    used += [r.judge for r in requirements if isinstance(r, Requirement)]
    inner = [innermost(one) for one in used if one is not None]
    jobs = [one for one in inner if isinstance(one, BatchJobs)]
    for one, other in combinations(jobs, 2):
        check_alike(one, other)
    return bool(jobs)


def _check_order(
    strategy: BaseSamplingStrategy,
    items: object,
    journal: Journal | None,
    *,
    breadth_first: bool,
    of_jobs: bool,
) -> None:
    if of_jobs and (not breadth_first or not hasattr(journal, "path")):
        msg = (
            "BatchJobs answers many items at a time, and its jobs outlive a crash: pass"
            " breadth_first=True and journal='run.db'"
        )
        raise ValueError(msg)
    if not breadth_first:
        return
    features, text = features_of(strategy.settings), getattr(journal, "text", "all")
    if text != "all":
        features["fewer_texts"] = f"Journal(text={text!r})"
    if (why := why_not_in_rounds(features, marks=of_jobs)) is not None:
        raise ValueError(why)
    if isinstance(items, Iterator | AsyncIterator):
        msg = (
            "breadth_first=True iterates over the items once for each round of draws, but"
            f" {items!r} can be iterated over only once: pass a list, or an object whose"
            " __iter__ or __aiter__ starts again from the beginning"
        )
        raise TypeError(msg)


def _journal(journal: Journal | str | os.PathLike[str] | None) -> Journal | None:
    if isinstance(journal, str | os.PathLike):
        from mellea_like.batch.journal.journal import Journal  # noqa: PLC0415 (few runs need it)

        return Journal(Path(journal))
    if journal is not None and not callable(getattr(journal, "open", None)):
        msg = f"journal must be a Journal or the path of one, not {journal!r}"
        raise TypeError(msg)
    return journal
