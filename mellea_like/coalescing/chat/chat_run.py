"""Runs of the functions that answer messages."""

from __future__ import annotations

import os
from dataclasses import dataclass
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import anyio

from mellea_like.runtime.event_loops import scope_cancelled
from mellea_like.runtime.logs import logger
from mellea_like.runtime.task_stack import stacks_of
from mellea_like.telemetry import session
from mellea_like.telemetry.names import MESSAGES, OUTCOME, RUN_ID, SESSION
from mellea_like.telemetry.spans import shared_span

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable

    from opentelemetry.util.types import AttributeValue

    from mellea_like.coalescing.chat.session import Submission

__all__ = ["joined"]

M = TypeVar("M")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class _Joined(Generic[R]):
    """A function of several texts that joins them for a function of one text; see `joined`."""

    run: Callable[[str], Awaitable[R]]

    def __call__(self, messages: list[str]) -> Awaitable[R]:
        return self.run("\n\n".join(messages))


def joined(run: Callable[[str], Awaitable[R]]) -> Callable[[list[str]], Awaitable[R]]:
    """Return a function of several messages that passes them to a function of one text.

    Args:
        run: an async function that takes one text.

    Returns:
        A function that takes a list of texts, and calls ``run`` with the texts joined by blank
        lines. Two such functions made from the same ``run`` are equal, so a `ChatDispatcher`
        answers their messages in one run.
    """
    return _Joined(run)


class ChatRun(Generic[M, R]):
    """One call of the function that answers messages: the messages, and the outcome."""

    def __init__(self, key: Hashable, members: tuple[Submission[M, R], ...]) -> None:
        self.key = key
        self.members = members
        self.run_id = os.urandom(8).hex()
        self.name = f"mellea_like chat run {self.run_id} of session {key!r}"
        self.scope = anyio.CancelScope()
        self.over = anyio.Event()
        self.ended = False
        self.answered = False
        self.error: Exception | None = None
        self._result: Any = None

    async def carry_out(self) -> None:
        """Call the run function, and record its result or exception; pass on a cancellation."""
        if self.scope.cancel_called:
            return  # It was stopped before its first step.
        attributes: dict[str, AttributeValue] = {
            SESSION: str(self.key),
            RUN_ID: self.run_id,
            MESSAGES: len(self.members),
        }
        spans = [each.span for each in self.members]
        try:
            with shared_span("chat run", attributes, spans) as span:
                with self.scope, session(str(self.key)):
                    self._result = await self._answer()
                    self.answered = True
                if not self.answered:
                    span.set({OUTCOME: "cancelled"})
        except Exception as exc:  # noqa: BLE001 (it goes to those who wait)
            self.error = exc

    async def _answer(self) -> R:
        run = self.members[0].run
        try:
            result: Any = run([each.message for each in self.members])
            if not isawaitable(result):
                msg = (
                    f"a run must be an async function, but {run!r} returned {type(result).__name__}"
                )
                raise TypeError(msg)
            answer: R = await result
        except anyio.get_cancelled_exc_class() as exc:
            # It isn't `foreign`, because here a native cancellation is the function's own doing.
            if scope_cancelled():
                raise
            msg = f"{run!r} raised a cancellation that no one asked for"
            raise RuntimeError(msg) from exc
        return answer

    def end(self) -> int:
        """End the run, settle open tickets with its outcome, if any, and return their number."""
        self.ended = True
        self.over.set()
        tickets = [each.ticket for each in self.members]
        if self.answered:
            return sum(ticket.settle(self._result) for ticket in tickets)
        if self.error is None:
            return 0
        if not any(ticket.waiters and not ticket.done for ticket in tickets):
            self._log_error(self.error)
        return sum(ticket.fail(self.error) for ticket in tickets)

    def log_stuck(self, grace: float) -> None:
        for _, stack in stacks_of(self.name):
            logger.warning(
                "session %r is stuck: its run was cancelled %g s ago and is still running; new"
                " messages are refused until it ends. It is at:\n%s",
                self.key,
                grace,
                stack,
                extra=self._ids(),
            )

    def _log_error(self, error: Exception) -> None:
        logger.warning(
            "a run of session %r failed, and no one is waiting for it: %s: %s",
            self.key,
            type(error).__name__,
            error,
            exc_info=error,
            extra=self._ids(),
        )

    def _ids(self) -> dict[str, Any]:
        none = dict.fromkeys(("sampling_id", "iteration", "subsample"))
        return {**none, "session": self.key, "run_id": self.run_id}
