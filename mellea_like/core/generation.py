"""Replies of backends, and their cost."""

from __future__ import annotations

import math
from dataclasses import field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from mellea_like.core.display import bounded, fields_shown, plural
from mellea_like.core.extra import NO_EXTRA
from mellea_like.core.records import record

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mellea_like.core.backend import Backend, Request
    from mellea_like.core.tools import ToolCall

__all__ = [
    "INCOMPLETE",
    "REJECTED",
    "USAGE",
    "USAGE_DETAILS",
    "Cost",
    "Generation",
    "Meter",
    "RequestMeter",
    "TokenLogprob",
    "Usage",
    "cost_of",
    "why_incomplete",
]

CUT = frozenset({"length", "max_tokens", "model_length"})
"""Servers' names for the finish reason of a reply that reached the length limit."""

REJECTED = "rejected"
"""The finish reason of a reply that was rejected while it was still arriving."""

CALLS = frozenset({"tool_calls", "function_call"})
"""The finish reasons of replies that call tools."""

CALLS_NONE = "the reply ended to call a tool, and calls none"

INCOMPLETE = CUT | CALLS | {"content_filter", "refusal"}
"""The finish reasons of replies that may be incomplete; see `why_incomplete`."""


@record(frozen=True, slots=True, repr=False)
class Usage:
    """The cost of requests, in tokens. Usages can be added with ``+``.

    Args:
        requests: the number of requests sent.
        input_tokens: the known tokens of the prompts.
        output_tokens: the known tokens of the replies.
        unknown: the number of requests whose cost isn't known. They were cancelled or broke, their
            server doesn't count tokens, or several draws share one request. For such requests, the
            tokens are those that had arrived or, within a `Budget`, those that the budget charged.
        cached_input_tokens: the input tokens that the server took from its prompt cache.
        reasoning_tokens: the output tokens that the model spent on reasoning.
        cache_hits: the number of replies from a `CachedBackend`'s file. They aren't requests, and
            cost nothing.
    """

    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    unknown: int = 0
    cached_input_tokens: int = 0
    reasoning_tokens: int = 0
    cache_hits: int = 0

    @property
    def total_tokens(self) -> int:
        """Input and output tokens together."""
        return self.input_tokens + self.output_tokens

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.requests + other.requests,
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.unknown + other.unknown,
            self.cached_input_tokens + other.cached_input_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
            self.cache_hits + other.cache_hits,
        )

    def __sub__(self, other: Usage) -> Usage:
        names = (*USAGE, *USAGE_DETAILS)
        return Usage(*(max(0, getattr(self, name) - getattr(other, name)) for name in names))

    def __repr__(self) -> str:
        names = (*USAGE, *filter(partial(getattr, self), USAGE_DETAILS))
        return f"Usage({', '.join(f'{name}={getattr(self, name)}' for name in names)})"

    def __str__(self) -> str:
        requests = plural(self.requests, "request")
        if self.cache_hits:
            requests += f" and {self.cache_hits} from the cache"
        details = [
            f"{n:,} {what}"
            for n, what in (
                (self.unknown, "of unknown cost"),
                (self.cached_input_tokens, "input tokens cached"),
                (self.reasoning_tokens, "output tokens of reasoning"),
            )
            if n
        ]
        known = f"{requests}, {plural(self.input_tokens, 'token')} in, {self.output_tokens:,} out"
        return f"{known} ({', '.join(details)})" if details else known


USAGE = ("requests", "input_tokens", "output_tokens", "unknown")
"""The fields of a `Usage` that are always written to records."""

USAGE_DETAILS = ("cached_input_tokens", "reasoning_tokens", "cache_hits")
"""The fields of a `Usage` that are written to records only if they aren't 0."""


class TokenLogprob(NamedTuple):
    """A token of a reply, with its log-probability.

    Attributes:
        text: the token's text.
        logprob: the natural logarithm of its probability, given the text before it.
        alternatives: the most likely tokens at this position with their log-probabilities, as many
            as the request asked for. The token itself may be among them.
    """

    text: str
    logprob: float
    alternatives: tuple[tuple[str, float], ...] = ()


@record(frozen=True, slots=True)
class Generation:
    """One model output.

    Args:
        text: the output's text.
        value: the parsed output. If it is None, the text is the value, unless ``parsed`` is true:
            then the parsed value itself is None.
        usage: the output's cost.
        model: the model that answered, if it is known.
        finish_reason: why the output ended, in OpenAI's words: ``"stop"``, ``"length"``,
            ``"content_filter"``, ``"refusal"`` or ``"tool_calls"``. It is ``"rejected"`` if the
            output was rejected while it was still arriving; None if it is unknown.
        parsed: whether a ``format`` or an action's ``parse`` read the value from the text.
        logprobs: its tokens, if the request asked for their log-probabilities and the server gave
            them (``Options(extra={"logprobs": True})``). Records do not keep them.
        tool_calls: the tools that it calls, with or without a text.
        refusal: the model's refusal, if the server reports refusals separately.
        reasoning: the model's reasoning before its reply, if the server reports it.
        extra: more fields that a server of OpenAI's chat protocol sent, under ``"message"``,
            ``"choice"``, ``"reply"`` (the whole completion) or ``"usage"``. Records do not keep
            them, and comparisons ignore them.
    """

    text: str
    value: Any = None
    usage: Usage = Usage()
    model: str | None = None
    finish_reason: str | None = None
    parsed: bool = field(default=False, repr=False)
    logprobs: tuple[TokenLogprob, ...] = field(default=(), repr=False)
    tool_calls: tuple[ToolCall, ...] = field(default=(), repr=False)
    refusal: str | None = field(default=None, repr=False)
    reasoning: str | None = field(default=None, repr=False)
    extra: Mapping[str, Any] = field(default=NO_EXTRA, repr=False, compare=False, kw_only=True)

    __repr__ = fields_shown

    @property
    def has_value(self) -> bool:
        """Whether there is a value other than the text."""
        return self.parsed or self.value is not None

    @property
    def mean_logprob(self) -> float | None:
        """The mean log-probability of the output's tokens; None if it is unknown."""
        if not self.logprobs:
            return None
        return math.fsum(token.logprob for token in self.logprobs) / len(self.logprobs)


def why_incomplete(reply: Generation, *, tools: bool = False) -> str:
    """Explain, for people and the model, why a reply isn't a complete answer.

    The explanation is empty if the reply is complete. With ``tools``, the reply may call tools.
    """
    ended = reply.finish_reason
    if ended in CUT:
        tokens = reply.usage.output_tokens
        after = f" after {plural(tokens, 'token')}" if tokens else ""
        return f"the reply was cut off{after}: raise max_tokens, or ask for a shorter one"
    if ended == "content_filter":
        return "the reply was withheld by the server's content filter: ask in other words"
    if ended == "refusal" or reply.refusal is not None:
        words = reply.refusal or reply.text
        said = f" ({bounded(words, 200)})" if words.strip() else ""
        return f"the model refused{said}: ask in other words, or another model"
    if (ended in CALLS or reply.tool_calls) and not tools:
        return "the reply calls a tool, and no tools were asked for: answer with text"
    if not (reply.text.strip() or reply.tool_calls or reply.has_value):
        if ended in CALLS:
            return CALLS_NONE
        thought = " after the model's reasoning" if reply.reasoning else ""
        or_call = ", or call a tool" if tools else ""
        return f"the reply is empty{thought}: answer with text{or_call}"
    return ""


class _Known(NamedTuple):
    """A `Cost` that doesn't change, because it is already known as a whole."""

    usage: Usage
    model: str | None = None

    @property
    def usage_by_model(self) -> tuple[tuple[str | None, Usage], ...]:
        return ((self.model, self.usage),)


class Cost(Protocol):
    """Anything that has a cost, such as a request under way, whose cost may still change."""

    @property
    def usage(self) -> Usage:
        """The cost so far."""
        ...


class Admission(Protocol):
    """The limits that admitted a request. They are asked again before a retry."""

    async def readmit(self, request: Request, error: Exception, backend: Backend | None) -> None:
        """Tell the limits that the last try failed, and wait until they admit the next try.

        If a limit refuses the next try, ``error`` is raised.
        """
        ...


class RequestMeter:
    """Counts the tokens of one request. A backend updates the count as it learns more."""

    __slots__ = (
        "cached_input_tokens",
        "input_tokens",
        "output_tokens",
        "reasoning_tokens",
        "settled",
    )

    def __init__(self) -> None:
        self.input_tokens = 0
        self.output_tokens = 0
        self.cached_input_tokens = 0
        self.reasoning_tokens = 0
        self.settled = False

    def update(self, *, input_tokens: int | None = None, output_tokens: int | None = None) -> None:
        """Update the counts while the reply is still arriving.

        Args:
            input_tokens: tokens of the prompt counted so far, or None to leave the count unchanged.
            output_tokens: tokens of the reply counted so far, or None to leave the count unchanged.
        """
        if input_tokens is not None:
            self.input_tokens = input_tokens
        if output_tokens is not None:
            self.output_tokens = output_tokens

    def settle(
        self,
        *,
        input_tokens: int,
        output_tokens: int,
        cached_input_tokens: int = 0,
        reasoning_tokens: int = 0,
    ) -> None:
        """Set the request's final cost.

        Args:
            input_tokens: tokens of the prompt.
            output_tokens: tokens of the reply.
            cached_input_tokens: tokens of the prompt that came from the server's prompt cache.
            reasoning_tokens: tokens of the reply that the model spent on reasoning.
        """
        self.input_tokens = input_tokens
        self.output_tokens = output_tokens
        self.cached_input_tokens = cached_input_tokens
        self.reasoning_tokens = reasoning_tokens
        self.settled = True

    @property
    def usage(self) -> Usage:
        """The request's cost so far."""
        return Usage(
            1,
            self.input_tokens,
            self.output_tokens,
            0 if self.settled else 1,
            self.cached_input_tokens,
            self.reasoning_tokens,
        )


class Meter:
    """Counts what a `Request` has cost so far, with all tries and the calls made for it.

    A backend calls `start` for each request that it sends, and keeps the returned count up to
    date. So the known cost survives if the request breaks or is cancelled. A backend that fails or
    is cancelled before it has sent anything calls `sent_nothing`. If a backend calls neither, the
    meter counts the cost that its reply states or, if the reply states none, one request of unknown
    cost. Code that retries a request calls `readmit` before each retry, so that budgets can refuse
    it, and gives each try its own meter with `attempt` and `finish`.

    Attributes:
        admission: the limits that admitted the request; None without limits.
        started: whether anything was counted, or it is known that nothing was sent. If it is
            False, the backend has not used this meter.
    """

    __slots__ = ("_model", "_requests", "admission", "answered", "aside", "started")

    def __init__(self, admission: Admission | None = None, model: str | None = None) -> None:
        self._requests: list[Cost] = []
        self._model = model
        """The model that is asked, if this is a try and others may ask different ones."""
        self.started = False
        self.admission = admission
        self.answered = False
        """Whether the reply has arrived. The later costs of checks and tools go to ``aside``."""
        self.aside: Meter | None = None
        """The cost of calls made by the reply's checks and tools; None if there were none."""

    def start(self) -> RequestMeter:
        """Count one more request as sent. Its cost is unknown until the backend settles it.

        Returns:
            The new request's own count.
        """
        request = RequestMeter()
        self.add(request)
        return request

    def attempt(self, model: str | None = None) -> Meter:
        """Make a meter for a try of the request. This meter includes the cost of the try.

        Args:
            model: the model that is asked, if tries may ask different ones.

        Returns:
            The try's own meter.
        """
        attempt = Meter(self.admission, model)
        self.add(attempt)
        return attempt

    async def readmit(
        self, request: Request, error: Exception, backend: Backend | None = None
    ) -> None:
        """Ask the limits to admit a retry. Call this method before every try but the first.

        Args:
            request: the request that will be sent again; its last try is over.
            error: why the last try failed.
            backend: the backend of the retry, if it isn't the one of the last try.

        Raises:
            Exception: ``error``, with a note, if a limit refuses another try.
        """
        try:
            if self.admission is not None:
                await self.admission.readmit(request, error, backend)
        finally:
            del error  # Break the cycle between frame and exception.

    def finish(self, reply: Generation | None) -> Usage:
        """End a try.

        If the backend didn't use this meter, the meter counts the cost that the reply states or, if
        the reply states none, one request of unknown cost.

        Args:
            reply: the reply, or None if there was none.

        Returns:
            The cost of the try.
        """
        if self.started:
            return self.usage
        usage = stated(reply)
        self.add(_Known(usage))
        return usage

    def add(self, cost: Cost) -> None:
        """Add a cost that is counted elsewhere, such as the share of a joint request.

        Args:
            cost: the cost; its ``usage`` is read each time this meter's ``usage`` is read.
        """
        if self.answered:
            self.aside = self.aside or Meter()
            self.aside.add(cost)
        else:
            self._requests.append(cost)
            self.started = True

    def assume(self, more: Usage, model: str | None) -> None:
        """Add a fixed cost that isn't counted elsewhere, such as tokens that a budget charged.

        Args:
            more: the cost.
            model: the model that was asked, if tries may ask different ones.
        """
        self.add(_Known(more, model))

    def sent_nothing(self) -> None:
        """Note that no request was sent, so that none is counted."""
        self.started = True

    @property
    def asked(self) -> str | None:
        """The model that was asked last; None if no try named its model."""
        for part in reversed(self._requests):
            if isinstance(part, Meter) and (model := part.asked) is not None:
                return model
        return self._model

    @property
    def usage_by_model(self) -> tuple[tuple[str | None, Usage], ...]:
        """The cost of each model, as pairs; the model is None for tries that named no model."""
        spent: dict[str | None, Usage] = {}
        for part in self._requests:
            # A call of a tool, validator or scorer tells its models apart; a request does not.
            shares = getattr(part, "usage_by_model", None) or ((None, part.usage),)
            for named, usage in shares:
                model = named or self._model
                spent[model] = spent[model] + usage if model in spent else usage
        return tuple(spent.items())

    @property
    def parts(self) -> tuple[Cost, ...]:
        """The parts of the cost, in order: requests, tries, and nested calls."""
        return tuple(self._requests)

    @property
    def usage(self) -> Usage:
        """The cost of all requests counted so far."""
        if len(self._requests) == 1:
            return self._requests[0].usage
        return sum((request.usage for request in self._requests), Usage())


def cost_of(meter: Meter, reply: Generation | None) -> Usage:
    """Return what a request cost by its meter or, if nobody used the meter, by its reply."""
    return meter.usage if meter.started else stated(reply)


_OF_UNKNOWN_COST = Usage(requests=1, unknown=1)
_NOTHING = Usage()


def stated(reply: Generation | None) -> Usage:
    """Return the cost that a reply states, or one request of unknown cost if it states none."""
    if reply is None or not (reply.usage.requests or reply.usage.cache_hits):
        return _OF_UNKNOWN_COST
    return reply.usage


def cost_of_draw(
    meter: Meter | None, reply: Generation | None
) -> tuple[Usage, str | None, tuple[tuple[str | None, Usage], ...]]:
    """Return a draw's total cost, the model asked last, and the costs other than the reply's.

    The model is None if it is unknown. The other costs are pairs of a model and its cost: for
    checks, for tools, and for models that were asked before the last one. ``meter`` is None if the
    draw hasn't begun.
    """
    if meter is None:
        return _NOTHING, None, ()
    usage, asked = (meter.usage, meter.asked) if meter.started else (stated(reply), None)
    if asked is None and meter.aside is None:
        return usage, None, ()
    spent: dict[str | None, Usage] = {}
    if asked is not None:
        usage, others = cost_by_model(meter, reply, asked)
        spent.update(others)
    for name, cost in () if meter.aside is None else meter.aside.usage_by_model:
        spent[name] = spent.get(name, _NOTHING) + cost
    parts = tuple((model, cost) for model, cost in spent.items() if cost != _NOTHING)
    return sum((cost for _, cost in parts), usage), asked, parts


def cost_by_model(
    meter: Meter, reply: Generation | None, asked: str | None
) -> tuple[Usage, list[tuple[str | None, Usage]]]:
    """Return the cost of the model that a request asked last, and of each model asked before it."""
    others = [pair for pair in meter.usage_by_model if pair[0] not in {None, asked}]
    own = sum((cost for model, cost in meter.usage_by_model if model in {None, asked}), _NOTHING)
    return (own if others else cost_of(meter, reply)), others
