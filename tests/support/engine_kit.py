"""Small things that tests of the engine are made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mellea_like import (
    Candidate,
    Context,
    Generation,
    Instruction,
    Message,
    Outcome,
    Requirement,
    Slice,
    ValidationResult,
)
from mellea_like.backends.request_counter import RequestCounter
from mellea_like.backends.scripted import Reply, ScriptedBackend
from mellea_like.core import Usage

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from mellea_like import Request, SamplingResult
    from mellea_like.backends.scripted import ScriptItem
    from mellea_like.core.decision import Decision


def says(word: str, **arguments: Any) -> Requirement:
    """An inline requirement: the text contains a word."""

    def check(candidate: Candidate) -> tuple[bool, str]:
        return word in candidate.text.split(), f"it lacks {word}"

    return Requirement(f"say {word}", check, name=f"says {word}", inline=True, **arguments)


yes = says("yes")


def votes_of(decision: Decision) -> dict[str, float]:
    """Return the votes of each answer, by their labels."""
    return {answer.label: answer.votes for answer in decision.answers}


def by_iteration(
    replies: Mapping[int, ScriptItem], default: ScriptItem = "no", **arguments: Any
) -> ScriptedBackend:
    """A backend whose reply depends on nothing but the iteration's id."""
    return ScriptedBackend(
        lambda request: replies.get(request.meta.iteration or 0, default), **arguments
    )


def after(seconds: float, content: Any) -> Reply:
    """A reply that takes its time."""
    return Reply(content, delay=seconds)


def outcomes(result: SamplingResult[Any]) -> dict[int, str]:
    """Each iteration's outcome."""
    return {s.iteration: str(s.outcome) for s in result.slices}


class Unmetered:
    """The least that a backend can be: it keeps no meter."""

    def __init__(self, generate: Callable[[Request], Awaitable[Generation]]) -> None:
        self._generate = generate

    async def generate(self, request: Request) -> Generation:
        return await self._generate(request)


class Busy(Unmetered):
    """A backend that counts its requests."""

    def __init__(self, generate: Callable[[Request], Awaitable[Generation]]) -> None:
        super().__init__(generate)
        self.counter = RequestCounter()
        self.statistics = self.counter.statistics

    async def generate(self, request: Request) -> Generation:
        with self.counter.flight():
            return await super().generate(request)


def candidate(text: str = "the text", **changes: Any) -> Candidate:
    """A candidate as validators see it."""
    fields = {
        "text": text,
        "value": text,
        "generation": Generation(text),
        "context": Context([Message("user", "earlier")]),
        "action": Instruction("do it"),
    }
    return Candidate(**{**fields, **changes})


def verdict(check: Requirement, text: str, **more: Any) -> ValidationResult:
    """Ask a ready-made check about a text."""
    return check.validator(candidate(text, **more))


def a_slice(
    iteration: int = 1,
    outcome: Outcome = Outcome.FAILED,
    *,
    verdicts: Sequence[tuple[Requirement, ValidationResult]] = (),
    error: BaseException | None = None,
    subsample: int = 0,
    depth: int | None = None,
    **changes: Any,
) -> Slice:
    """A slice as the engine records it."""
    fields: dict[str, Any] = {
        "iteration": iteration,
        "subsample": subsample,
        "depth": iteration - 1 if depth is None else depth,
        "chain": subsample,
        "action": Instruction("do it"),
        "context": Context(),
        "messages": (),
        "generation": Generation("text", usage=Usage(1, 2, 3)),
        "requirements": tuple(requirement for requirement, _ in verdicts),
        "verdicts": tuple(verdict for _, verdict in verdicts),
        "outcome": outcome,
        "error": error,
    }
    return Slice(**{**fields, **changes})
