"""A backend that gives scripted replies at scripted times."""

from __future__ import annotations

import inspect
import math
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import anyio
from anyio.lowlevel import checkpoint

from mellea_like.backends.request_counter import (
    RequestCounter,
    RequestStatistics,
    count_words,
    word_pieces,
)
from mellea_like.core.argument_checks import real_number
from mellea_like.core.generation import Generation, Usage

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from mellea_like.core.backend import Request
    from mellea_like.core.generation import RequestMeter

__all__ = ["Reply", "Rule", "ScriptItem", "ScriptedBackend"]


@dataclass(frozen=True, slots=True)
class Reply:
    """One reply of a script, with its timing.

    Args:
        content: the text, the whole generation, or an exception (an instance or a class) to raise.
        delay: the seconds until the reply, spread over the pieces of a stream. With ``math.inf``,
            the reply never comes. With None, the backend's delay applies.
        chunks: the pieces of a stream; by default, the words of the text. If the content is an
            exception, these pieces come before it.
        shielded: whether the delay ignores cancellation, as a badly behaved backend does.

    Raises:
        TypeError: ``content`` is none of the above, or the delay isn't a number.
        ValueError: the delay is negative, or the chunks don't add up to the text.
    """

    content: str | Generation | BaseException | type[BaseException]
    delay: float | None = None
    chunks: Sequence[str] | None = None
    shielded: bool = False

    def __post_init__(self) -> None:
        if not (
            isinstance(self.content, str | Generation | BaseException)
            or (isinstance(self.content, type) and issubclass(self.content, BaseException))
        ):
            msg = f"a reply must be a str, a Generation or an exception, not {self.content!r}"
            raise TypeError(msg)
        if self.delay is not None:
            real_number("a reply's delay", self.delay, least=0, most=math.inf, unit="seconds")
        text = self._text
        if self.chunks is not None and text is not None and "".join(self.chunks) != text:
            msg = f"a reply's chunks {list(self.chunks)!r} don't add up to its text {text!r}"
            raise ValueError(msg)

    @property
    def _text(self) -> str | None:
        if isinstance(self.content, Generation):
            return self.content.text
        return self.content if isinstance(self.content, str) else None

    @property
    def pieces(self) -> tuple[str, ...]:
        """The pieces of this reply in a stream."""
        if self.chunks is not None:
            return tuple(self.chunks)
        return tuple(word_pieces(self._text or ""))


ScriptItem: TypeAlias = "str | Generation | BaseException | type[BaseException] | Reply"
Rule: TypeAlias = "Callable[[Request], ScriptItem | Awaitable[ScriptItem]]"


class ScriptedBackend:
    """Answers requests from a script, in order or by a rule.

    Each word counts as a token, unless a reply's `Generation` has a usage. ``requests`` lists the
    requests in the order they arrived.

    Args:
        replies: the script, which is a sequence or a rule. With a sequence, the first request to
            arrive gets the first item, and so on. An item is a text, a `Generation`, an exception
            (an instance or a class) to raise, or a `Reply` with its timing. A rule is a callable
            that takes each request and returns an item, or an awaitable of one.
        delay: the seconds until each reply. With 0, the reply comes after exactly one checkpoint.
        cycle: whether to start the sequence again when it is used up, instead of raising an error.
        can_judge: whether the backend may judge requirements.
        model: the model's name, for records.

    Raises:
        TypeError: the script is a single text, an item is none of the above, or the delay isn't a
            number.
        ValueError: the delay is negative, or ``cycle`` is given with an empty script.
    """

    provider = "scripted"

    def __init__(
        self,
        replies: Sequence[ScriptItem] | Rule,
        *,
        delay: float = 0.0,
        cycle: bool = False,
        can_judge: bool = True,
        model: str | None = "scripted",
    ) -> None:
        real_number("a scripted backend's delay", delay, least=0, most=math.inf, unit="seconds")
        self._rule = _rule_of(replies, cycle=cycle)
        self._delay = delay
        self._counter = RequestCounter()
        self.can_judge = can_judge
        self.model = model
        self.requests: list[Request] = []

    def statistics(self) -> RequestStatistics:
        """Return the numbers of requests started, finished, failed and cancelled so far."""
        return self._counter.statistics()

    async def generate(self, request: Request) -> Generation:
        """Return the next reply of the script.

        Raises:
            BaseException: the exception that is the script's next item.
            IndexError: the script is used up.
        """
        with self._counter.flight():
            reply, meter = await self._begin(request)
            await self._wait(reply, 1.0)
            return self._end(reply, meter)

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncGenerator[AsyncIterator[str | Generation]]:
        """Stream the next reply of the script piece by piece; see `StreamingBackend.stream`."""
        async with aclosing(self._pieces(request)) as pieces:
            yield pieces

    async def _pieces(self, request: Request) -> AsyncGenerator[str | Generation]:
        with self._counter.flight():
            reply, meter = await self._begin(request)
            pieces = reply.pieces
            tokens = 0
            for piece in pieces:
                await self._wait(reply, 1 / len(pieces))
                tokens += len(piece.split())
                meter.update(output_tokens=tokens)
                self._counter["output_tokens"] += len(piece.split())
                yield piece
            if not pieces:
                await self._wait(reply, 1.0)
            whole = self._end(reply, meter, counted=tokens)
        yield whole

    async def _begin(self, request: Request) -> tuple[Reply, RequestMeter]:
        self.requests.append(request)
        meter = request.meter.start()
        tokens = count_words(request.messages)
        meter.update(input_tokens=tokens)
        self._counter["input_tokens"] += tokens
        item = self._rule(request)
        if inspect.isawaitable(item):
            item = await item
        return _reply_of(item), meter

    async def _wait(self, reply: Reply, share: float) -> None:
        delay = self._delay if reply.delay is None else reply.delay
        with anyio.CancelScope(shield=reply.shielded):
            await (anyio.sleep(delay * share) if delay else checkpoint())

    def _end(self, reply: Reply, meter: RequestMeter, *, counted: int = 0) -> Generation:
        content = reply.content
        if not isinstance(content, str | Generation):
            raise content
        if isinstance(content, str):
            content = Generation(content, model=self.model, finish_reason="stop")
        usage = content.usage
        if usage == Usage():
            output = len(content.text.split())
            meter.settle(input_tokens=meter.input_tokens, output_tokens=output)
            content = replace(content, usage=meter.usage)
        elif usage.unknown:
            meter.update(input_tokens=usage.input_tokens, output_tokens=usage.output_tokens)
        else:
            meter.settle(
                input_tokens=usage.input_tokens,
                output_tokens=usage.output_tokens,
                cached_input_tokens=usage.cached_input_tokens,
                reasoning_tokens=usage.reasoning_tokens,
            )
        self._counter["output_tokens"] += content.usage.output_tokens - counted
        return content


def _rule_of(replies: Sequence[ScriptItem] | Rule, *, cycle: bool) -> Rule:
    if isinstance(replies, str | bytes):
        msg = "a script must be a sequence of replies: put the text in a list"
        raise TypeError(msg)
    if callable(replies) and not isinstance(replies, type):
        return replies
    if isinstance(replies, type) or not isinstance(replies, Sequence):
        msg = f"a script must be a sequence of replies or a rule, not {replies!r}"
        raise TypeError(msg)
    script = [_reply_of(item) for item in replies]
    if cycle and not script:
        msg = "cycle=True needs at least one reply"
        raise ValueError(msg)
    return _Script(script, cycle=cycle)


class _Script:
    """A rule that returns the items of a sequence one after another."""

    def __init__(self, replies: Sequence[Reply], *, cycle: bool) -> None:
        self._replies = replies
        self._cycle = cycle
        self._taken = 0

    def __call__(self, _: Request) -> Reply:
        index, known = self._taken, len(self._replies)
        self._taken += 1
        if index >= known and not self._cycle:
            msg = (
                f"the script has {known} replies, and this is request {index + 1}:"
                " pass more replies to ScriptedBackend, or cycle=True"
            )
            raise IndexError(msg)
        return self._replies[index % known]


def _reply_of(item: ScriptItem) -> Reply:
    return item if isinstance(item, Reply) else Reply(item)
