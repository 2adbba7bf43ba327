"""What a backend gives back, and what it cost."""

from __future__ import annotations

import math
from dataclasses import field
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
"""The finish reasons of replies that reached their longest length, as servers call them."""

REJECTED = "rejected"
"""The finish reason of a reply that was rejected while it was still arriving."""

CALLS = frozenset({"tool_calls", "function_call"})
"""The finish reasons of replies that call tools."""

CALLS_NONE = "the reply ended to call a tool, and calls none"

INCOMPLETE = CUT | CALLS | {"content_filter", "refusal"}
"""The finish reasons of replies that may be incomplete: `why_incomplete` tells."""


@record(frozen=True, slots=True, repr=False)
class Usage:
    """What a number of requests cost. Usages add with ``+``.

    Args:
        requests: requests sent.
        input_tokens: tokens of the prompts, as far as they are known.
        output_tokens: tokens of the replies, as far as they are known.
        unknown: requests among them whose cost the server did not say (cancelled or broken ones,
            servers that keep no count), or not to each of those that share one; their tokens so far
            are what had arrived or, within a `Budget`, what that has charged.
        cached_input_tokens: those of the input tokens that the server took from its prompt cache.
        reasoning_tokens: those of the output tokens that the model thought with, and that are no
            part of its replies.
        cache_hits: replies that came from a `CachedBackend`'s file. They are no requests, and cost
            nothing.
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
        return Usage(
            max(0, self.requests - other.requests),
            max(0, self.input_tokens - other.input_tokens),
            max(0, self.output_tokens - other.output_tokens),
            max(0, self.unknown - other.unknown),
            max(0, self.cached_input_tokens - other.cached_input_tokens),
            max(0, self.reasoning_tokens - other.reasoning_tokens),
            max(0, self.cache_hits - other.cache_hits),
        )

    def __repr__(self) -> str:
        shown = {name: getattr(self, name) for name in USAGE}
        shown |= {name: n for name in USAGE_DETAILS if (n := getattr(self, name))}
        return f"Usage({', '.join(f'{name}={n}' for name, n in shown.items())})"

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
"""The fields that each record of a usage has."""

USAGE_DETAILS = ("cached_input_tokens", "reasoning_tokens", "cache_hits")
"""The fields that it has where they aren't 0."""


class TokenLogprob(NamedTuple):
    """A token of a reply, with its log-probability.

    Attributes:
        text: the token's text.
        logprob: the natural logarithm of its probability after all that stands before it.
        alternatives: the likeliest tokens in its place with theirs, as many as were asked for; it
            may be among them.
    """

    text: str
    logprob: float
    alternatives: tuple[tuple[str, float], ...] = ()


@record(frozen=True, slots=True)
class Generation:
    """One model output.

    Args:
        text: the output's text.
        value: the parsed output; None where the text itself is the value, unless ``parsed``.
        usage: what it cost.
        model: the model that answered, where it is known.
        finish_reason: why the output ended, in OpenAI's words: ``"stop"``, ``"length"``,
            ``"content_filter"``, ``"refusal"`` or ``"tool_calls"``; None where it is not known.
        parsed: whether the value was read from the text, by a ``format`` or an action's ``parse``:
            None is a value then.
        logprobs: its tokens, where the request asked for log-probabilities and the server gives
            them: ``Options(extra={"logprobs": True})``. Records do not keep them.
        tool_calls: the tools that it calls, beside its text or in place of one.
        refusal: what the model said in refusing to answer, where its server tells that apart.
        reasoning: what the model thought before its reply, where its server tells.
        extra: further fields that a server of OpenAI's chat protocol sent, by where they were:
            under ``"message"``, ``"choice"``, ``"reply"`` (the whole completion) and ``"usage"``.
            Records do not keep them, and replies don't compare by them.
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
        """Whether there is a value besides the text."""
        return self.parsed or self.value is not None

    @property
    def mean_logprob(self) -> float | None:
        """The mean log-probability of its tokens; None where they are not known."""
        if not self.logprobs:
            return None
        return math.fsum(token.logprob for token in self.logprobs) / len(self.logprobs)


def why_incomplete(reply: Generation, *, tools: bool = False) -> str:
    """Explain why a reply is not a whole answer, and what to do; for people and for the model."""
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


class _Known:
    """The cost of requests that nobody counted one by one."""

    __slots__ = ("usage", "usage_by_model")

    def __init__(self, usage: Usage, model: str | None = None) -> None:
        self.usage = usage
        self.usage_by_model = ((model, usage),)


class Cost(Protocol):
    """Something whose cost may still change."""

    @property
    def usage(self) -> Usage:
        """What it costs, as known by now."""
        ...


class Admission(Protocol):
    """The limits that have admitted a request, for whoever sends it more than once."""

    async def readmit(self, request: Request, error: Exception, backend: Backend | None) -> None:
        """Settle the try that has failed, and wait until another one may be sent."""
        ...


class RequestMeter:
    """The running count of one request; a backend updates it as it learns more."""

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
        """Say what is known by now, while the reply is still arriving.

        Args:
            input_tokens: tokens of the prompt so far counted; None leaves the count as it is.
            output_tokens: tokens of the reply so far counted; None leaves the count as it is.
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
        """Say the request's final cost; it is then known.

        Args:
            input_tokens: tokens of the prompt.
            output_tokens: tokens of the reply.
            cached_input_tokens: those of the prompt that the server had in its cache.
            reasoning_tokens: those of the reply that the model thought with.
        """
        self.input_tokens = input_tokens
        self.output_tokens = output_tokens
        self.cached_input_tokens = cached_input_tokens
        self.reasoning_tokens = reasoning_tokens
        self.settled = True

    @property
    def usage(self) -> Usage:
        """The request's cost as known by now."""
        return Usage(
            1,
            self.input_tokens,
            self.output_tokens,
            0 if self.settled else 1,
            self.cached_input_tokens,
            self.reasoning_tokens,
        )


class Meter:
    """What the requests behind one `Request` have cost so far.

    A backend calls `start` for each request that it really sends and keeps the returned count up to
    date, so that a cancelled or broken request leaves behind what was known of it. If it waits
    before it sends, and is cancelled or fails meanwhile, it calls `sent_nothing`: otherwise a
    request of unknown cost is counted. Whoever tries a request again calls `readmit`, so that
    budgets admit each try, and gives each its own meter: `attempt` before, `finish` after.

    Attributes:
        admission: the limits that have admitted what is counted here; None without limits.
    """

    __slots__ = ("_requests", "admission")

    def __init__(self, admission: Admission | None = None) -> None:
        self._requests: list[Cost] | None = None
        self.admission = admission

    def start(self) -> RequestMeter:
        """Count one more request as sent, its cost unknown until it is settled.

        Returns:
            The count of that request.
        """
        request = RequestMeter()
        self.add(request)
        return request

    def attempt(self, model: str | None = None) -> Meter:
        """Begin another try of the request, whose cost is part of this meter's.

        Args:
            model: which model is asked, where tries may ask different ones.

        Returns:
            The try's own meter.
        """
        attempt = Meter() if model is None else _ModelMeter(model)
        attempt.admission = self.admission
        self.add(attempt)
        return attempt

    async def readmit(
        self, request: Request, error: Exception, backend: Backend | None = None
    ) -> None:
        """Ask the limits around for one more try: call it before each but the first.

        Args:
            request: the request that will be sent again; its last try is over.
            error: why the last try failed.
            backend: what will be asked now, if that is another backend.

        Raises:
            Exception: ``error``, with a note, if a limit refuses another try.
        """
        if self.admission is not None:
            await self.admission.readmit(request, error, backend)

    def finish(self, reply: Generation | None) -> Usage:
        """Say that a try is over: a backend that keeps no meter has sent one request.

        Args:
            reply: the reply, or None where there was none.

        Returns:
            What the try cost, as `cost_of` says.
        """
        if self._requests is not None:
            return self.usage
        usage = _stated(reply)
        self._requests = [_Known(usage)]
        return usage

    def add(self, cost: Cost) -> None:
        """Count what is counted elsewhere, such as a part of requests that several share.

        Args:
            cost: its ``usage`` is asked for each time this meter's is.
        """
        if self._requests is None:
            self._requests = [cost]
        else:
            self._requests.append(cost)

    def assume(self, more: Usage, model: str | None) -> None:
        """Count tokens that nobody has counted, and that a budget has charged.

        Args:
            more: the tokens; no requests.
            model: the model that was asked for them, where tries may ask different ones.
        """
        self.add(_Known(more, model))

    def sent_nothing(self) -> None:
        """Say that no request was sent, so that none is thought to have cost something."""
        if self._requests is None:
            self._requests = []

    @property
    def asked(self) -> str | None:
        """The model that was asked last, where a try said so."""
        for part in reversed(self._requests or ()):
            if isinstance(part, Meter) and (model := part.asked) is not None:
                return model
        return None

    @property
    def usage_by_model(self) -> tuple[tuple[str | None, Usage], ...]:
        """What each model has cost: None for what no try said a model of."""
        spent: dict[str | None, Usage] = {}
        for part in self._requests or ():
            shares = getattr(part, "usage_by_model", None) or ((None, part.usage),)
            for model, usage in shares:
                spent[model] = spent[model] + usage if model in spent else usage
        return tuple(spent.items())

    @property
    def parts(self) -> tuple[Cost, ...]:
        """What was counted, in order: requests, tries and the calls made inside."""
        return tuple(self._requests or ())

    @property
    def started(self) -> bool:
        """Whether it is known how many requests were sent."""
        return self._requests is not None

    @property
    def usage(self) -> Usage:
        """The cost of all requests counted so far."""
        if self._requests is None:
            return Usage()
        if len(self._requests) == 1:
            return self._requests[0].usage
        return sum((request.usage for request in self._requests), Usage())


class _ModelMeter(Meter):
    """The meter of a try that asks one of several models."""

    __slots__ = ("_model",)

    def __init__(self, model: str) -> None:
        super().__init__()
        self._model = model

    @property
    def asked(self) -> str | None:
        return super().asked or self._model

    @property
    def usage_by_model(self) -> tuple[tuple[str | None, Usage], ...]:
        return tuple((model or self._model, usage) for model, usage in super().usage_by_model)


def cost_of(meter: Meter, reply: Generation | None) -> Usage:
    """Return what a request cost, of a backend that keeps the meter and of one that does not."""
    return meter.usage if meter.started else _stated(reply)


def _stated(reply: Generation | None) -> Usage:
    """Return what a reply says that it cost: one request at least, or a hit of a cache."""
    if reply is None or not (reply.usage.requests or reply.usage.cache_hits):
        return Usage(requests=1, unknown=1)
    return reply.usage
