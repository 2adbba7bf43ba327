"""`check_many`: check many replies that already exist, several at a time."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from mellea_like.batch.api import check_takes_one, sample_many
from mellea_like.checking import GivenReply, strategy_for_checks
from mellea_like.core.requirement import several

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, Callable, Iterable, Mapping

    from mellea_like.batch.batch_run import BatchRun
    from mellea_like.checking import ReplyLike, Requirements
    from mellea_like.core.backend import Backend, Options
    from mellea_like.core.conversation import Action, Asked

__all__ = ["check_many"]

I = TypeVar("I")  # noqa: E741 (an item)


def check_many(
    items: Iterable[I] | AsyncIterable[I],
    requirements: Requirements | Callable[[I], Requirements] = (),
    *,
    concurrency: int,
    reply: Callable[[I], ReplyLike] | None = None,
    action: Callable[[I], Asked[Any]] | None = None,
    format: Any = None,
    judge: Backend | None = None,
    validate_all: bool = False,
    judge_options: Options | Mapping[str, Any] | None = None,
    **arguments: Any,
) -> BatchRun[Any, I]:
    """Check many replies, several at a time. With a journal, a run can be resumed.

    It works like `sample_many`, but with replies that exist already: enter the run with ``async
    with``, and iterate over its items. ``CheckResult(item.result.slices[0])`` is the result of one
    item's check. If a requirement could not be judged, the item is ``"errored"``. Its ``error``
    gives the reason, and its ``result`` has the verdicts on the other requirements. An item that
    can't be read as a reply has no ``result``.

    Args:
        items: the replies; or anything else, if ``reply`` and ``action`` return the reply and the
            task of an item.
        requirements: as for `mellea_like.checking.check`; or a plain function that returns the
            requirements of an item, for example with that item's right answer. When a run is
            resumed from a journal, each item must have the same requirements as before.
        concurrency: the number of replies to check at a time.
        reply: a function that returns the reply of an item. By default, the item is the reply.
        action: a function that returns the task that an item's reply answers; None if the tasks are
            unknown.
        format: see `mellea_like.checking.check`.
        judge: see `mellea_like.checking.check`.
        validate_all: see `mellea_like.checking.check`.
        judge_options: options for the judge's generation, as for a strategy.
        **arguments: ``budget``, ``in_order``, ``fail_fast``, ``journal``, ``keep_errors``,
            ``settings`` and ``on_progress``, as for `sample_many`.

    Returns:
        The results. Enter them with ``async with``, and then iterate over them once.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: an argument has a wrong value.
        RequirementError: a requirement needs a judge, and there is none.
    """
    own: Callable[[I], Requirements] | None = None
    if callable(requirements):
        own, requirements = requirements, ()
    for name, function in (("reply", reply), ("action", action), ("requirements", own)):
        check_takes_one(name, function, "an item")
    made: Callable[[Any], Action[Any]] = partial(_given, reply, action, own)
    run: BatchRun[Any, I] = sample_many(
        strategy_for_checks(judge, validate_all=validate_all, judge_options=judge_options),
        # With the type variable, pyright later finds no overload for an async source of actions.
        cast("Iterable[Any] | AsyncIterable[Any]", items),
        action=made,
        requirements=several(requirements),
        format=format,
        concurrency=concurrency,
        **arguments,
    )
    return run


def _given(
    reply: Callable[[I], ReplyLike] | None,
    action: Callable[[I], Asked[Any]] | None,
    own: Callable[[I], Requirements] | None,
    item: I,
) -> GivenReply[Any]:
    return GivenReply(
        item if reply is None else reply(item),
        None if action is None else action(item),
        () if own is None else several(own(item)),
    )
