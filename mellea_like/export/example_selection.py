"""Choose the replies of an item to keep or to pair, with pure functions."""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import product
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, get_args

from mellea_like.batch.unique import UNIQUE
from mellea_like.core.argument_checks import check_one_of, real_number, whole_number
from mellea_like.core.generation import CUT, REJECTED

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Collection, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from mellea_like.report.views import ItemView, SliceView, TraceView

Messages: TypeAlias = "list[dict[str, Any]]"
Pairs: TypeAlias = Literal["best-worst", "all", "one"]
Select: TypeAlias = Literal["best", "shortest", "random"]
Reasoning: TypeAlias = Literal["drop", "field", "inline"]
Drop: TypeAlias = Literal["incomplete", "empty"]
Prompt: TypeAlias = Literal["sent", "bare"]

DISPUTED = "replies that both passed and failed"
UNFINISHED = CUT | {"content_filter", "refusal"}
"""The finish reasons of incomplete replies."""

LeftOut: TypeAlias = Literal[
    "not finished",
    "ended in an error",
    "no reply passed",
    "no reply to prefer it to",
    "the margin is too small",
    "the prompt is not kept",
    "the replies that passed also failed",
    "the filters leave no reply",
]
"""A reason why an item has no examples."""


@dataclass(frozen=True, slots=True)
class Draw:
    """A judged reply: its record, the messages before it and of it; ``rank`` orders the winners."""

    record: SliceView
    prompt: Messages
    reply: Messages
    score: float | None
    rank: int | None

    @property
    def text(self) -> str:
        """The reply's text."""
        return self.record.text or ""

    @property
    def said(self) -> str:
        """A text that is the same for equal replies: without reasoning, but with any tool calls."""
        [*rounds, last] = self.reply
        if not rounds and "tool_calls" not in last:
            return self.text
        return repr([{**message, "reasoning_content": None} for message in self.reply])

    def margin(self, other: Draw) -> float:
        """Return how much better this reply is, by scores or, if one is missing, by shares met."""
        if self.score is not None and other.score is not None:
            return self.score - other.score
        return self.record.share_met - other.record.share_met


class Pair(NamedTuple):
    """A chosen and a rejected reply to the same prompt."""

    chosen: Draw
    rejected: Draw
    prompt: Messages

    @property
    def margin(self) -> float:
        """How much better the chosen reply is than the rejected one."""
        return self.chosen.margin(self.rejected)


class ExampleRules(NamedTuple):
    """The rules for choosing replies; the fields are arguments of `export`."""

    pairs: Pairs = "best-worst"
    min_margin: float = 0.0
    max_per_item: int | None = None
    select: Select = "best"
    seed: int = 0
    keep_repairs: bool = False
    reasoning: Reasoning | None = None
    drop: Collection[Drop] = ()
    min_chars: int | None = None
    max_chars: int | None = None
    prompt: Prompt = "sent"

    def check(self, options: Mapping[str, str] = MappingProxyType({})) -> None:
        """Refuse values that don't fit; ``options`` maps fields to options, for errors."""
        names = {name: options.get(name, name) for name in self._fields}
        for name, value, known in (
            ("pairs", self.pairs, get_args(Pairs)),
            ("select", self.select, get_args(Select)),
            ("reasoning", self.reasoning or "drop", get_args(Reasoning)),
            ("prompt", self.prompt, get_args(Prompt)),
            *(("drop", one, get_args(Drop)) for one in self.drop),
        ):
            check_one_of(names[name], value, known)
        real_number(names["min_margin"], self.min_margin, least=0.0)
        for name, least in (("max_per_item", 1), ("seed", 0), ("min_chars", 0), ("max_chars", 0)):
            if (number := getattr(self, name)) is not None:
                whole_number(names[name], number, least=least)
        low, high = self.min_chars, self.max_chars
        if low is not None and high is not None and low > high:
            msg = (
                f"{names['min_chars']} {low} is more than {names['max_chars']} {high}: no reply"
                " could be kept"
            )
            raise ValueError(msg)
        if self.prompt == "bare" and self.keep_repairs:
            msg = (
                f"{names['prompt']} bare can't be combined with {names['keep_repairs']}, which"
                " keeps prompts as they were: choose one"
            )
            raise ValueError(msg)

    def allow(self, text: str, ended: str | None, *, calls: bool) -> bool:
        """Return whether a reply passes the filters; ``calls`` is whether it called tools."""
        length = len(text)
        return not (
            ("incomplete" in self.drop and ended in UNFINISHED)
            or ("empty" in self.drop and not text.strip() and not calls)
            or (self.min_chars is not None and length < self.min_chars)
            or (self.max_chars is not None and length > self.max_chars)
        )


class ItemExamples:
    """The replies of one item, and the examples that an export makes from them."""

    def __init__(
        self,
        item: ItemView,
        how: ExampleRules,
        disputed: AbstractSet[int] = frozenset(),
        notes: Counter[str] | None = None,
    ) -> None:
        self._how = how
        trace = item.trace
        self._untold: LeftOut | None = None
        if trace is None:
            self._untold = "ended in an error" if item.finished else "not finished"
        drawn = [] if trace is None else draws_of(trace)
        self.draws = [
            d
            for d in drawn
            if how.allow(d.text, d.record.finish_reason, calls=bool(d.record.tool_calls))
        ]
        self._filtered = len(self.draws) < len(drawn)
        self._prompt = None if trace is None else prompt_of(trace)
        if trace is not None and how.prompt == "bare":
            self._prompt = _without_list(self._prompt, trace)
        agreed = [d for d in self.draws if not disputed or self.key_of(d) not in disputed]
        self._disputed = len(agreed) < len(self.draws)
        if notes is not None:
            notes[DISPUTED] += len(self.draws) - len(agreed)
        self.draws = agreed
        self._winners = 1 if trace is None else max(1, len(trace.winners))
        # An item's choices don't depend on the items before it.
        self._random = random.Random(f"{how.seed} {item.id} {item.label}")

    def kept(self) -> list[tuple[Draw, Messages]] | LeftOut:
        """Choose replies that passed, each with its prompt; or return why there are none."""
        good = self._passed()
        if not good:
            return self._why_none()
        most = self._how.max_per_item or self._winners
        return self._with_prompts(self._selected(good)[:most])

    def labelled(self) -> list[tuple[Draw, Messages]] | LeftOut:
        """Choose replies that passed and replies that failed, up to ``max_per_item`` of each."""
        good, bad = self._passed(), self._failed()
        if not good and not bad:
            return self._why_none()
        if self._how.select == "random":
            self._random.shuffle(bad)
        most = self._how.max_per_item
        return self._with_prompts([*self._selected(good)[:most], *bad[:most]])

    def paired(self) -> list[Pair] | LeftOut:
        """Pair passed replies with worse replies to the same prompt, or return why none exist."""
        if not self._passed():
            return self._why_none()
        found: list[Pair] = []
        unknown = False
        for prompt, good, bad in self._groups():
            unknown |= prompt is None
            if prompt is not None:
                found += self._pairs(prompt, good, bad)
        if not found:
            return "the prompt is not kept" if unknown else "no reply to prefer it to"
        wide = [pair for pair in found if pair.margin >= self._how.min_margin]
        if not wide:
            return "the margin is too small"
        if self._how.pairs != "all":
            return self._single(wide)
        if self._how.select == "random":
            self._random.shuffle(wide)
        elif self._how.select == "shortest":
            wide.sort(key=lambda pair: len(pair.chosen.text))
        else:
            wide.sort(key=lambda pair: -pair.margin)
        return wide[: self._how.max_per_item]

    def key_of(self, draw: Draw) -> int:
        """Return a hash of a reply and its prompt; it is the same for equal replies and prompts."""
        return hash((repr(self._prompt_of(draw)), draw.said))

    # --- parts -----------------------------------------------------------------------------------

    def _why_none(self) -> LeftOut:
        if self._untold is not None:
            return self._untold
        if self._disputed:
            return "the replies that passed also failed"
        return "the filters leave no reply" if self._filtered else "no reply passed"

    def _passed(self) -> list[Draw]:
        """Return the distinct replies that passed: winners, then by score, then by iteration."""
        good = [d for d in self.draws if d.record.passed]
        good.sort(key=_merit)
        return _different(good)

    def _failed(self) -> list[Draw]:
        """Return the distinct replies that failed, the worst first."""
        bad = [d for d in self.draws if not d.record.passed]
        return _different(sorted(bad, key=lambda d: (d.record.share_met, d.record.iteration)))

    def _selected(self, good: list[Draw]) -> list[Draw]:
        match self._how.select:
            case "best":
                return good
            case "shortest":
                return sorted(good, key=lambda d: len(d.text))
            case "random":
                return self._random.sample(good, len(good))

    def _with_prompts(self, draws: list[Draw]) -> list[tuple[Draw, Messages]] | LeftOut:
        found = [(d, p) for d in draws if (p := self._prompt_of(d)) is not None]
        return found or "the prompt is not kept"

    def _prompt_of(self, draw: Draw) -> Messages | None:
        return (draw.prompt or None) if self._how.keep_repairs else self._prompt

    def _groups(self) -> list[tuple[Messages | None, list[Draw], list[Draw]]]:
        """Group replies by prompt: one group, or several if repairs keep their prompts."""
        good, bad = self._passed(), self._failed()
        if not self._how.keep_repairs:
            return [(self._prompt, good, bad)]
        prompts: list[Messages] = []
        for draw in good:
            if draw.prompt not in prompts:
                prompts.append(draw.prompt)
        return [
            (p or None, [d for d in good if d.prompt == p], [d for d in bad if d.prompt == p])
            for p in prompts
        ]

    def _pairs(self, prompt: Messages, good: list[Draw], bad: list[Draw]) -> list[Pair]:
        texts = {d.said for d in good}
        found = [Pair(g, b, prompt) for g, b in product(good, bad) if b.said not in texts]
        found += [
            Pair(g, worse, prompt)
            for g, worse in product(good, good)
            if g.score is not None and worse.score is not None and g.score > worse.score
        ]
        return found

    def _single(self, pairs: list[Pair]) -> list[Pair]:
        """Choose one pair: the best reply with the worst, or with a random worse one."""
        chosen = self._selected(_different([pair.chosen for pair in pairs]))[0]
        its = [pair for pair in pairs if pair.chosen is chosen]
        if self._how.pairs == "one":
            return [self._random.choice(its)]
        return [
            min(
                its,
                key=lambda p: (p.rejected.record.passed, -p.margin, p.rejected.record.iteration),
            )
        ]


def draws_of(trace: TraceView) -> list[Draw]:
    """Return the replies of a call that were judged and whose texts are kept.

    Replies that a check stopped while they were arriving, or that only resembled another item's
    reply, are left out: the former are incomplete, and the latter aren't wrong.
    """
    winners = {s.iteration: rank for rank, s in enumerate(trace.winners)}
    scores = scores_of(trace)
    return [
        Draw(s, sent, _reply(rounds, s), scores.get(s.iteration), winners.get(s.iteration))
        for s in trace.slices
        if s.judged
        and ((s.text or "").strip() or s.tool_calls)
        and s.finish_reason != REJECTED
        and not _only_a_duplicate(s)
        for sent, rounds in [_conversation(trace, s)]
    ]


def _only_a_duplicate(s: SliceView) -> bool:
    """Return whether a reply failed only because it resembled another item's reply."""
    return bool(s.unmet) and all(description.startswith(UNIQUE) for description in s.unmet)


def prompt_of(trace: TraceView) -> Messages | None:
    """Return the messages that were sent for a lane's first draw; None if they aren't kept."""
    for s in sorted(trace.slices, key=lambda s: (s.depth, s.iteration)):
        if s.depth > 0:
            return None
        if sent := sent_for(trace, s):
            return sent
    return None


def _without_list(prompt: Messages | None, trace: TraceView) -> Messages | None:
    """Return a prompt without the list of requirements after the action's text."""
    action = next((s.action for s in trace.slices if not s.depth), "")
    listed = f"{action}\n\nRequirements:\n"
    return prompt and [
        {**m, "content": action}
        if action and isinstance(m["content"], str) and m["content"].startswith(listed)
        else m
        for m in prompt
    ]


def sent_for(trace: TraceView, s: SliceView) -> Messages:
    """Return the messages sent for a draw, without the draw's own tool calls and their results."""
    return _conversation(trace, s)[0]


def _conversation(trace: TraceView, s: SliceView) -> tuple[Messages, Messages]:
    """Return copies of a draw's prompt, and of its tool calls with their results."""
    prompt, rounds = trace.conversation(s)
    return list(map(dict, prompt)), list(map(dict, rounds))


def _reply(rounds: Messages, s: SliceView) -> Messages:
    """Return all messages of a draw: its tool calls with their results, and its reply."""
    last: dict[str, Any] = {"role": "assistant", "content": s.text}
    if calls := s.tool_calls:
        last["tool_calls"] = calls
    if thoughts := s.reasoning:
        last["reasoning_content"] = thoughts
    return [*rounds, last]


def scores_of(trace: TraceView) -> Mapping[int, float]:
    """Return each reply's score, or its answer's weight after a vote; the keys are iterations."""
    decision = trace.decision
    if decision is None or decision.scores:
        return {} if decision is None else decision.scores
    return {iteration: a.votes for a in decision.answers for iteration in a.draws}


def _merit(draw: Draw) -> tuple[bool, int, float, int]:
    """Return a sort key for replies that passed, which puts the best first."""
    score = 0.0 if draw.score is None else -draw.score
    return draw.rank is None, draw.rank or 0, score, draw.record.iteration


def _different(draws: Sequence[Draw]) -> list[Draw]:
    """Return the replies, except for those that equal an earlier one."""
    found: dict[str, Draw] = {}
    for draw in draws:
        found.setdefault(draw.said, draw)
    return list(found.values())
