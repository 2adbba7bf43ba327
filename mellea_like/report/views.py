"""Typed views of records. In this package, only this module knows the format of records.

Views are made from plain data, as ``to_dict``, ``read_items`` and ``read_run`` return it.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from mellea_like.core.display import attempt_names
from mellea_like.core.ledger import models_of_draws
from mellea_like.core.prompts import messages_in, prompt_at
from mellea_like.core.recorded import error_from_dict
from mellea_like.core.serialization import check_usage_of, decision_from_dict, usage_from_dict

if TYPE_CHECKING:
    from collections.abc import Generator, Hashable, Mapping, Sequence

    from mellea_like.core.decision import Decision
    from mellea_like.core.generation import Usage

    Messages = list[Mapping[str, Any]]

FATES: dict[str, str] = {
    "won": "in the replies that won",
    "heard": "in replies that passed and took part in the choice, but did not win",
    "late": "in replies that passed after another had won",
    "rejected": "in replies that failed",
    "cancelled": "in draws that were cancelled",
    "errored": "in draws that ended in an error",
    "compared": "in comparisons of replies that passed",
    "other": "in requests whose draw is not recorded",
}
"""The ways in which a call can use tokens, each with a description."""

_UNFINISHED: dict[str, Any] = {
    "prompts": [[], []],
    "success": False,
    "best_index": None,
    **dict.fromkeys(("sampling_id", "started", "stop_reason", "stop_detail"), ""),
    "elapsed": 0.0,
}

_LATE = "BackendTimeout"

_LOST = {"passed": "late", "failed": "rejected", "errored": "errored"}


class Fault(NamedTuple):
    """A recorded exception."""

    type: str
    message: str

    @classmethod
    def of(cls, written: Mapping[str, Any] | None) -> Fault | None:
        """Return a recorded exception; None if there was none."""
        return None if written is None else cls(written["type"], written["message"])

    def __str__(self) -> str:
        return f"{self.type}: {self.message}"


class Verdict(NamedTuple):
    """A recorded verdict on one requirement."""

    name: str
    description: str
    status: str
    reason: str
    score: float | None
    weight: float


class SliceView:
    """A recorded draw. ``prompt`` and ``context`` are indices into the call's ``prompts``."""

    def __init__(self, plain: Mapping[str, Any], *, prompt: int | None = None) -> None:
        self.plain = plain
        self.iteration: int = plain["iteration"]
        self.subsample: int = plain["subsample"]
        self.chain: int = plain["chain"]
        self.depth: int = plain["depth"]
        self.stage: int | None = plain.get("stage")
        self.outcome: str = plain["outcome"]
        self.passed = self.outcome == "passed"
        self.judged = self.outcome in {"passed", "failed"}
        self.prompt: int = plain["prompt"] if prompt is None else prompt
        self.context: int = plain.get("context", 0)
        self.action: str = plain["action"]["text"]
        self.text: str | None = plain["text"]
        self.refusal: str | None = plain.get("refusal")
        self.reasoning: str | None = plain.get("reasoning")
        self.value: Any = plain.get("value")
        self.tool_calls: Sequence[Mapping[str, Any]] | None = plain.get("tool_calls")
        self.rounds: Sequence[Mapping[str, Any]] = plain.get("rounds", ())
        """In a journal, an unfinished item's calls of ``read_only`` tools, with their answers."""
        self.model: str | None = plain["model"]
        self.asked: str | None = plain.get("asked")
        self.reason: str = plain["reason"]
        self.error = Fault.of(plain["error"])
        self.timed_out = self.error is not None and self.error.type == _LATE
        self.finish_reason: str | None = plain["finish_reason"]
        self.started_at: float = plain["started_at"]
        self.ended_at: float = plain["ended_at"]
        self.seconds = self.ended_at - self.started_at

    @cached_property
    def usage(self) -> Usage:
        """The cost of the draw, including its checks."""
        return usage_from_dict(self.plain["usage"])

    @property
    def check_usage(self) -> tuple[tuple[str | None, Usage], ...] | None:
        """The cost of the draw's checks by model; None if it isn't recorded."""
        return check_usage_of(self.plain)

    @cached_property
    def verdicts(self) -> list[Verdict]:
        """The verdicts on the requirements."""
        return [Verdict(*(v[name] for name in Verdict._fields)) for v in self.plain["validations"]]

    @property
    def unmet(self) -> list[str]:
        """Descriptions of the requirements that the reply failed."""
        return [v.description for v in self.verdicts if v.status == "failed"]

    @property
    def problems(self) -> list[str]:
        """All problems of the draw, one text for each: errors and failed requirements."""
        lines = [] if (error := self.error) is None else [str(error)]
        if self.reason:
            lines.append(self.reason)
        lines += [
            f"{v.description}: {v.reason}" if v.reason else v.description
            for v in self.verdicts
            if v.status == "failed"
        ]
        return lines

    @property
    def share_met(self) -> float:
        """The share of requirements that the reply met, by weight, from 0 to 1."""
        if self.passed:
            return 1.0
        total = sum(v.weight for v in self.verdicts)
        met = sum(v.weight for v in self.verdicts if v.status == "passed")
        return 0.0 if self.reason or not total else met / total


class TraceView:
    """A recorded call."""

    def __init__(self, plain: Mapping[str, Any], slices: list[SliceView] | None = None) -> None:
        self.plain = plain
        self.slices = [SliceView(s) for s in plain["slices"]] if slices is None else slices
        self.prompts: Sequence[Any] = plain["prompts"]  # See ``mellea_like.core.prompts``.
        self.success: bool = plain["success"]
        self.best_index: int | None = plain["best_index"]
        self.decides = plain.get("decision") is not None
        self.sampling_id: str = plain["sampling_id"]
        self.started: str = plain["started"]
        self.elapsed: float = plain["elapsed"]
        self.stop_reason: str = plain["stop_reason"]
        self.stop_detail: str = plain["stop_detail"]

    @property
    def usage(self) -> Usage:
        """The cost of the call."""
        return usage_from_dict(self.plain["usage"])

    @cached_property
    def decision(self) -> Decision | None:
        """The decision of the call's selection, or None."""
        return decision_from_dict(self.plain.get("decision"))

    @property
    def best(self) -> SliceView | None:
        """The winner, or else the best failed draw; None if no draw was judged."""
        return None if self.best_index is None else self.slices[self.best_index]

    @property
    def winner(self) -> SliceView | None:
        """The draw that won, or None."""
        return self.best if self.success else None

    @cached_property
    def winners(self) -> list[SliceView]:
        """The draws that won, best first. There may be several, as with `Collect`."""
        decision = self.decision
        if decision is None or not self.success:
            return [] if self.winner is None else [self.winner]
        found = {s.iteration: s for s in self.slices}
        return [found[iteration] for iteration in decision.winners if iteration in found]

    @cached_property
    def names(self) -> dict[int, str]:
        """The draws' names by iteration, as in "attempt 2 of 8, lane 3"."""
        return attempt_names((s.iteration, s.subsample, s.depth) for s in self.slices)

    @property
    def has_too_few(self) -> bool:
        """Whether draws passed, but not enough for the selection to choose a winner."""
        return self.decides and not self.success and any(s.passed for s in self.slices)

    @property
    def models(self) -> list[str | None]:
        """The model of each draw, in order; None if it is unknown.

        The rule for draws without a reply is that of the ledger.
        """
        return models_of_draws([(s, () if s.model is None else (s.model,)) for s in self.slices])

    @property
    def fates(self) -> list[tuple[str, Usage]]:
        """The fate (a key of `FATES`) and cost of each draw, then of the comparisons."""
        decision = self.decision
        special = dict.fromkeys(() if decision is None else decision.heard, "heard")
        special |= {s.iteration: "won" for s in self.winners}
        found = [
            (special.get(s.iteration) or _LOST.get(s.outcome, "cancelled"), s.usage)
            for s in self.slices
        ]
        return found if decision is None else [*found, ("compared", decision.usage)]

    @cached_property
    def questions(self) -> dict[int, Hashable]:
        """A key for each draw's prompt, by iteration, without the draw's own rounds of tools."""
        ends = [messages_in(self.prompts[s.prompt])[-1:] for s in self.slices]
        if not any(message["role"] == "tool" for end in ends for message in end):
            return {s.iteration: s.prompt for s in self.slices}
        prompts = ((s, self.conversation(s)[0]) for s in self.slices)
        return {s.iteration: repr(sent) if sent else s.prompt for s, sent in prompts}

    @cached_property
    def fresh_draws(self) -> list[SliceView]:
        """The draws that have the prompt and stage of first draws, and so aren't repairs.

        Draws that started after a repair or another stage's draw had been judged are left out.
        Whether they were made depended on its verdict, so they would be made mostly of hard items.
        """
        firsts = [s for s in self.slices if s.depth == 0]
        asked = self.questions
        prompts, stages = {asked[s.iteration] for s in firsts}, {s.stage for s in firsts}
        others, found = math.inf, list[SliceView]()
        for s in self.slices:
            if asked[s.iteration] in prompts and s.stage in stages:
                found.append(s)
            elif s.judged:
                others = min(others, s.ended_at)
        return [s for s in found if s.started_at < others]

    @cached_property
    def independent_draws(self) -> list[SliceView]:
        """The fresh draws that were judged and whose model also made one of the first draws.

        Draws that ran into a time limit also count, as failures: slow draws would do so again.
        """
        models = {s.model for s in self.slices if s.depth == 0} - {None}
        return [
            s
            for s in self.fresh_draws
            if (s.judged and (not models or s.model in models)) or s.timed_out
        ]

    @property
    def shown(self) -> tuple[int, int, int]:
        """The numbers of independent draws, of those that passed, and of cancelled fresh draws."""
        draws = self.independent_draws
        cancelled = sum(s.outcome == "cancelled" for s in self.fresh_draws)
        return len(draws), sum(s.passed for s in draws), cancelled

    @property
    def kind(self) -> Hashable:
        """A key made of task and requirements, the same for equal items; None without draws."""
        for s in self.slices:
            sent, _ = self.conversation(s)
            return s.action, repr(sent), tuple(v.description for v in s.verdicts)
        return None

    def sent(self, place: int) -> list[Mapping[str, Any]]:
        """Return all messages of the conversation at index ``place`` of ``prompts``."""
        return prompt_at(self.prompts, place)

    def conversation(self, s: SliceView) -> tuple[Messages, Messages]:
        """Return a draw's messages in two parts: its prompt, and its own rounds of tools."""
        sent = self.sent(s.prompt)
        # The first message after the earlier conversation is never a tool call of this draw.
        for place in range(len(self.sent(s.context)) + 1, len(sent)):
            if sent[place]["role"] == "assistant" and sent[place].get("tool_calls"):
                return sent[:place], sent[place:]
        return sent, []

    def until_passed(self) -> int:
        """Return how many draws had started when one passed, including that one."""
        winner = self.winner
        if self.decides:  # A later draw may have won.
            winner = next(s for s in self.slices if s.passed)
        assert winner is not None  # noqa: S101 (only successes are asked)
        # If draws race, those that have ended by then are only the quick ones.
        return 1 + sum(s is not winner and s.started_at < winner.ended_at for s in self.slices)

    def cut(self, most: int) -> TraceView:
        """Return a view of at most ``most`` draws, including the best."""
        if len(self.slices) <= most:
            return self
        kept, best = self.slices[:most], self.best_index
        if best is not None and best >= most:
            kept[-1], best = self.slices[best], most - 1
        return TraceView({**self.plain, "best_index": best}, kept)


class ItemView:
    """A recorded item of a run."""

    def __init__(self, plain: Mapping[str, Any]) -> None:
        self.plain = plain
        self.id: int = plain["id"]
        self.label: str = plain["label"]
        self.data: Any = plain["data"]
        self.status: str = plain["status"]
        self.finished = self.status != "unfinished"
        self.attempts: int = plain["attempts"]
        self.started: str | None = plain["started"]
        self.elapsed: float = plain["elapsed"]
        self.error = Fault.of(plain["error"])
        self.digest: str = plain.get("digest") or ""
        self.journal: str | None = plain.get("journal")
        self.usage = usage_from_dict(plain["usage"])

    @cached_property
    def trace(self) -> TraceView | None:
        """The item's call; None if the item isn't finished, or its call left no record."""
        trace = self.plain["trace"]
        return None if trace is None else TraceView(trace)

    @property
    def begun(self) -> bool:
        """Whether any work on the item has started."""
        return self.finished or self.attempts > 0

    def shown(self, trace: TraceView | None, run: RunView) -> tuple[int, int, int]:
        """Return the numbers of independent draws, passes, and draws of an unknown outcome.

        A draw is recorded when it has ended. So if an unfinished item has no record of a draw, at
        least one is under way, or was when the process was killed. If all draws of an item ran into
        a time limit, the item has no trace, but made as many draws as it could.
        """
        if trace is not None:
            return trace.shown
        if self.error is not None and self.error.type == _LATE:
            return run.attempts, 0, 0
        return 0, 0, int(self.begun and not self.finished)

    @property
    def exception(self) -> Exception | None:
        """The recorded error as an exception, or None."""
        error = self.plain["error"]
        return None if error is None else error_from_dict(error)

    def so_far(self, run: RunView | None = None) -> TraceView | None:
        """Return the item's trace or, if it isn't finished, a trace of its draws so far.

        A journal stores prompts only with an item's result. Until then, a draw with the same action
        as some chain's first draw is assumed to have that draw's prompt. The strategy
        `RejectionSamplingStrategy` never changes the action, so in its runs all draws are assumed
        to have the same prompt.
        """
        slices: Sequence[Mapping[str, Any]] = self.plain.get("drawn", ())
        if not slices:
            return self.trace
        strategy: Any = None if run is None else run.identity.get("strategy")
        name: Any = strategy.get("class") if hasattr(strategy, "get") else strategy
        repeats = str(name).endswith(".RejectionSamplingStrategy")
        firsts = [s["action"] for s in slices if s["depth"] == 0]

        def prompt(s: Mapping[str, Any]) -> int:
            alike = repeats or not s["depth"] or (s["action"]["text"] and s["action"] in firsts)
            return 0 if alike else 1

        return TraceView(_UNFINISHED, [SliceView(s, prompt=prompt(s)) for s in slices])


class RunView:
    """A recorded run without its items."""

    def __init__(self, plain: Mapping[str, Any]) -> None:
        self.plain = plain
        self.identity: Mapping[str, Any] = plain["identity"]
        self.started: str | None = plain["started"]
        self.ended: str | None = plain["ended"]
        self.prices: dict[str, list[Any]] | None = plain.get("prices")
        self.sittings: Sequence[tuple[str, str | None]] = plain.get("sittings") or ()
        self.versions: Mapping[str, str] = plain.get("versions") or {}
        self.text: str = plain.get("text", "all")
        self.counts: Mapping[str, int] = plain["counts"]
        """The number of items by status."""

    @property
    def attempts(self) -> int:
        """The number of draws that a call may make; 1 if it isn't recorded."""
        strategy: Any = self.identity.get("strategy")
        if not hasattr(strategy, "get"):
            return 1
        return int(strategy.get("loop_budget", 1)) * int(strategy.get("concurrency_budget", 1))

    @property
    def items(self) -> int:
        """The number of all items."""
        return sum(self.counts.values())

    @property
    def finished(self) -> int:
        """The number of items that have a result."""
        return self.items - self.counts.get("unfinished", 0)


@contextmanager
def damage(thing: str) -> Generator[None]:
    """Raise ``ValueError`` in place of an error that malformed data causes in the block."""
    try:
        yield
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as exc:
        what = f"it lacks {exc}" if isinstance(exc, KeyError) else str(exc)
        msg = f"this {thing} is damaged: {what}"
        raise ValueError(msg) from exc
