"""Which requests may share a batch, and who goes next: pure decisions, with the time passed in."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, cast

from mellea_like.coalescing.flush import Window, due_at
from mellea_like.core.message import Message

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Mapping

    from mellea_like.core.backend import Request

__all__ = ["Lanes", "share_key"]

T = TypeVar("T")

ONE_REPLY_EACH = frozenset(
    {
        "function_call",
        "functions",
        "grammar",
        "guided_choice",
        "guided_grammar",
        "guided_json",
        "guided_regex",
        "json_schema",
        "logprobs",
        "parallel_tool_calls",
        "response_format",
        "structured_outputs",
        "tool_choice",
        "toolChoice",
        "tools",
        "top_logprobs",
    }
)
"""Fields of ``options.extra`` that say what form the reply to the one request has."""

CONTEXT_WANTED = frozenset({"include_context", "includeContext"})
"""Fields that ask a client to add its own context, unless they say ``"none"``."""

_ALONE = object()


def share_key(request: Request, scope: Hashable = None) -> Hashable | None:
    """Tell which requests one may share a batch with: those that have the same key."""
    options = request.options
    messages = request.messages
    if request.format is not None or not messages or messages[-1].role != "user":
        return None
    if not all(_is_plain(message) for message in messages):
        return None
    if _wants_its_own_reply(options.extra):
        return None
    try:
        return (
            scope,
            request.meta.purpose,
            options.model,
            options.temperature,
            options.top_p,
            options.stop,
            # How long a joint reply may be is known only if it is for all of its members.
            options.max_tokens is None,
            _frozen(options.extra),
        )
    except (TypeError, RecursionError):
        return None


def _is_plain(message: Message) -> bool:
    # A subclass may hold more than its text.
    if type(message) is not Message or type(cast("object", message.content)) is not str:
        return False
    try:
        message.content.encode()
    except UnicodeEncodeError:  # A backend would refuse it, and all the others with it.
        return False
    return True


def _wants_its_own_reply(extra: Mapping[str, Any]) -> bool:
    return any(
        (name in ONE_REPLY_EACH and value)
        or (name in CONTEXT_WANTED and value is not None and value != "none")
        for name, value in extra.items()
    )


def _frozen(value: Any) -> Hashable:
    """Return something that is equal for equal JSON values only; raise TypeError for others."""
    if isinstance(value, str | int | float | bool | None):
        return type(value), value  # True is no 1 here.
    if isinstance(value, list | tuple):
        items = cast("list[object] | tuple[object, ...]", value)
        return "list", tuple(_frozen(item) for item in items)
    if hasattr(value, "items"):
        fields = cast("Mapping[str, Any]", value)
        return "mapping", frozenset((name, _frozen(field)) for name, field in fields.items())
    msg = f"{type(value).__name__} is not compared"
    raise TypeError(msg)


class _Place(NamedTuple):
    """Where an item waits."""

    key: Hashable
    caller: Hashable
    tokens: int


class _Lane(Generic[T]):
    """What may share batches, in the order that it came, by caller."""

    __slots__ = ("arrivals", "callers", "last", "tokens", "window")

    def __init__(self, window: Window) -> None:
        self.window = window
        self.arrivals: dict[T, float] = {}
        self.callers: dict[Hashable, dict[T, int]] = {}
        self.tokens = 0
        self.last = 0.0

    def add(self, item: T, caller: Hashable, tokens: int, now: float) -> None:
        self.arrivals[item] = self.last = now
        self.callers.setdefault(caller, {})[item] = tokens
        self.tokens += tokens

    def remove(self, item: T, caller: Hashable) -> None:
        del self.arrivals[item]
        mine = self.callers[caller]
        self.tokens -= mine.pop(item)
        if not mine:
            del self.callers[caller]

    def due_at(self, max_tokens: float) -> float:
        if self.tokens > max_tokens:
            return -math.inf  # More would not fit.
        first = next(iter(self.arrivals.values()))
        return due_at(self.window, first, self.last, len(self.arrivals))

    def take(self, max_items: int, max_tokens: float) -> list[T]:
        """Take one item of each caller in turn, those of each in order, for as long as they fit."""
        taken: list[T] = []
        room = max_tokens
        turns = list(self.callers)
        while turns and len(taken) < max_items:
            caller = turns.pop(0)
            mine = self.callers[caller]
            item, tokens = next(iter(mine.items()))
            if tokens > room and taken:
                continue  # Nothing of this caller's may overtake it.
            room -= tokens
            taken.append(item)
            self.remove(item, caller)
            if caller in self.callers:
                turns.append(caller)
                self.callers[caller] = self.callers.pop(caller)  # The others come first next time.
        return taken


class Lanes(Generic[T]):
    """What waits to be sent. Items of one key may go together, in one batch."""

    def __init__(self, window: Window, max_tokens: float = math.inf) -> None:
        self._window = window
        self._max_tokens = max_tokens
        self._lanes: dict[Hashable, _Lane[T]] = {}
        self._places: dict[T, _Place] = {}

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, item: T) -> bool:
        return item in self._places

    def __iter__(self) -> Iterator[T]:
        return iter(self._places)

    def add(
        self, item: T, key: Hashable | None, caller: Hashable, now: float, tokens: int = 0
    ) -> None:
        """Put an item in."""
        if key is None or tokens > self._max_tokens:
            key = _ALONE
        lane = self._lanes.get(key)
        if lane is None:
            window = Window(0.0, 0.0, 1) if key is _ALONE else self._window
            lane = self._lanes[key] = _Lane(window)
        lane.add(item, caller, tokens, now)
        self._places[item] = _Place(key, caller, tokens)

    def remove(self, item: T) -> bool:
        """Take an item out."""
        place = self._places.pop(item, None)
        if place is None:
            return False
        lane = self._lanes[place.key]
        lane.remove(item, place.caller)
        if not lane.arrivals:
            del self._lanes[place.key]
        return True

    def due_at(self) -> float:
        """Tell when the next batch goes."""
        return min(
            (lane.due_at(self._max_tokens) for lane in self._lanes.values()), default=math.inf
        )

    def take(self, now: float, *, at_once: bool = False) -> list[T]:
        """Take the next batch out."""
        key = self._next_key(now, at_once=at_once)
        if key is None:
            return []
        lane = self._lanes[key]
        limit = lane.window.max_items
        taken = lane.take(len(lane.arrivals) if limit is None else limit, self._max_tokens)
        for item in taken:
            del self._places[item]
        del self._lanes[key]
        if lane.arrivals:
            self._lanes[key] = lane
        return taken

    def _next_key(self, now: float, *, at_once: bool) -> Hashable | None:
        for key, lane in self._lanes.items():
            if at_once or lane.due_at(self._max_tokens) <= now:
                return key
        return None
