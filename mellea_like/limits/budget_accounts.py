"""The sums of budgets: the amounts spent, the amounts reserved, and the queue of claims.

A claim is what one request wants to reserve. It waits in the queue of the first account that has no
room for it, behind earlier claims, and reserves nothing in the meantime. So the claims in a queue
wait only for claims that were granted. When a granted claim is settled, the queue is served. If no
granted claim is left, a claim is granted or denied immediately.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass, field
from itertools import count
from operator import add, sub
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import anyio

from mellea_like.core.generation import REJECTED
from mellea_like.core.token_estimate import BYTES_PER_TOKEN
from mellea_like.errors import (
    BackendError,
    BackendTimeout,
    BackendUnavailable,
    MalformedResponse,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from mellea_like.core.generation import Generation
    from mellea_like.limits.base import RequestEnd

__all__ = ["Amounts", "Denied", "StoreSums"]

MONEY = 10**15
"""The integer units in one unit of the currency, such as a dollar. Sums of integers are exact."""

Rate: TypeAlias = "tuple[int, int, int]"
"""The prices of an input, an output and a cached input token, in the units of `MONEY`."""

Cancelled: TypeAlias = Literal["estimate", "reserved", "received"]
"""How to charge the output of a request whose cost isn't fully known; see `Budget`."""

CALLS_KNOWN = 128
"""The maximum number of pairs (call, kind of request) for which `Lengths` keeps separate sums."""

Limits: TypeAlias = tuple[float, float, float, float]


class Amounts(NamedTuple):
    """The amounts that a budget counts; money is in the currency of the prices."""

    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    money: float = 0

    def plus(self, other: Amounts) -> Amounts:
        """Return the sum of these and other amounts, field by field."""
        return Amounts._make(map(add, self, other))

    def minus(self, other: Amounts) -> Amounts:
        """Return these amounts minus other amounts, field by field."""
        return Amounts._make(map(sub, self, other))


class StoreSums(NamedTuple):
    """A snapshot of the sums of an account.

    Money is in integer units (see ``MONEY``). ``unknown`` is the number of charged requests whose
    cost isn't known. ``denied`` is the number of denied requests, and ``waiting`` the number of
    waiting requests of this process. ``age`` is the number of seconds since the first reservation,
    or None if the store doesn't know it.
    """

    spent: Amounts = Amounts()
    reserved: Amounts = Amounts()
    unknown: int = 0
    denied: int = 0
    waiting: int = 0
    age: float | None = None


class Denied(Exception):
    """A request wants more from an account than is left unspent (reservations don't count).

    Args:
        account: the account, the same object as in the request's wants.
        lacking: the first field of `Amounts` of which too little is left.
        spent: the amounts that are spent.
    """

    def __init__(self, account: object, lacking: str, spent: Amounts) -> None:
        super().__init__(lacking)
        self.account = account
        self.lacking = lacking
        self.spent = spent


@dataclass(slots=True, eq=False)
class Claim:
    """The amounts that one request wants to reserve in several accounts, in all or in none."""

    wants: Sequence[tuple[Account, Amounts]]
    number: int = field(default_factory=count().__next__)
    granted: bool = False
    denied_by: tuple[Account, str] | None = None
    queued_at: Account | None = None
    wake: Callable[[], object] | None = None

    def decide(self) -> None:
        """Grant the claim, deny it, or queue it at the first account that has no room."""
        for account, wanted in self.wants:
            lacking = account.lacking(wanted)
            if lacking is not None:
                self.denied_by = account, lacking
                account.sums.denied += 1
                return
        for account, wanted in self.wants:
            if account.is_queued_before(self.number) or not account.has_room(wanted):
                account.enqueue(self, wanted)
                return
        for account, wanted in self.wants:
            account.sums.reserved = account.sums.reserved.plus(wanted)
            account.sums.started = account.sums.started or time.time()
        self.granted = True

    def settle(self, charged: Sequence[Amounts], unknown: int = 0) -> None:
        """Release the reservation, and charge what was spent. Calling it again does nothing."""
        if not self.granted:
            return
        self.granted = False
        for (account, wanted), amounts in zip(self.wants, charged, strict=True):
            sums = account.sums
            sums.reserved = sums.reserved.minus(wanted)
            sums.spent = sums.spent.plus(amounts)
            sums.unknown += unknown
        for account, _ in reversed(self.wants):
            account.serve()

    async def wait(self) -> None:
        """Wait until a queued claim is granted or denied; withdraw it if the wait is cancelled."""
        woken = anyio.Event()
        self.wake = woken.set
        try:
            await woken.wait()
        except BaseException:
            self.leave()
            raise

    def leave(self) -> None:
        """Withdraw the claim. If it was already granted, the reservation is released unspent."""
        self.settle([Amounts()] * len(self.wants))
        if self.queued_at is not None:
            self.queued_at.dequeue(self)


@dataclass(slots=True, eq=False)
class Sums:
    """The amounts spent and reserved in an account, and its queue of claims."""

    spent: Amounts = field(default_factory=Amounts)
    reserved: Amounts = field(default_factory=Amounts)
    unknown: int = 0
    denied: int = 0
    started: float | None = None
    queue: OrderedDict[Claim, tuple[Account, Amounts]] = field(
        default_factory=OrderedDict[Claim, tuple["Account", Amounts]]
    )


@dataclass(slots=True, eq=False)
class Account:
    """An account as one budget sees it: the budget's own limits, and the sums under its name."""

    limits: Limits
    name: str = ""
    known: dict[str, Sums] = field(default_factory=dict[str, Sums])
    """The sums of all accounts of a store, which may forget sums while a budget is in use."""

    @property
    def sums(self) -> Sums:
        if self.name not in self.known:
            self.known[self.name] = Sums()
        return self.known[self.name]

    @property
    def in_use(self) -> bool:
        return bool(self.sums.reserved.requests)

    def look(self) -> StoreSums:
        sums = self.sums
        age = None if sums.started is None else max(0.0, time.time() - sums.started)
        known = sums.spent, sums.reserved, sums.unknown, sums.denied
        return StoreSums(*known, len(sums.queue), age)

    def lacking(self, wanted: Amounts) -> str | None:
        """Return the first field of ``wanted`` that exceeds what is left unspent; None if all fit.

        Reservations don't count here: a request that has one may still wait for a limiter, and
        costs nothing if it is never sent.
        """
        return beyond(self.limits, self.sums.spent, wanted)

    def has_room(self, wanted: Amounts) -> bool:
        """Return whether the amounts fit beside all that is spent and reserved."""
        return beyond(self.limits, self.sums.spent.plus(self.sums.reserved), wanted) is None

    def is_queued_before(self, number: int) -> bool:
        """Return whether the first claim in the queue is older than claim ``number``."""
        first = next(iter(self.sums.queue), None)
        return first is not None and first.number < number

    def enqueue(self, claim: Claim, wanted: Amounts) -> None:
        """Put a claim at the end of the queue, or at the front if all claims there are newer."""
        first = not self.is_queued_before(claim.number)
        queue = self.sums.queue
        queue[claim] = self, wanted
        claim.queued_at = self
        if first:
            queue.move_to_end(claim, last=False)

    def dequeue(self, claim: Claim) -> None:
        """Remove a claim from the queue. Then serve the queue: later claims may have room now."""
        del self.sums.queue[claim]
        claim.queued_at = None
        self.serve()

    def serve(self) -> None:
        """Decide the queued claims that can be decided now. Call this when room has become free."""
        queue = self.sums.queue
        while queue:
            claim, (account, wanted) = next(iter(queue.items()))
            if not account.has_room(wanted) and account.lacking(wanted) is None:
                return
            del queue[claim]
            claim.queued_at = None
            claim.decide()
            if claim.queued_at is None and claim.wake is not None:
                claim.wake()


def beyond(limits: Limits, taken: Amounts, wanted: Amounts) -> str | None:
    """Return the first field in which ``taken + wanted`` exceeds the limit; None if all fit."""
    requests, sent, received, money = wanted
    if taken.requests + requests > limits[0]:
        return "requests"
    if taken.input_tokens + sent > limits[1]:
        return "input_tokens"
    if taken.output_tokens + received > limits[2]:
        return "output_tokens"
    return "money" if taken.money + money > limits[3] else None


def amounts(requests: int, sent: int, received: int, rate: Rate, cached: int = 0) -> Amounts:
    """Return amounts that include the price of the tokens, in integer units (see `MONEY`)."""
    money = (sent - cached) * rate[0] + received * rate[1] + cached * rate[2]
    return Amounts(requests, sent, received, money)


def in_money(counted: Amounts) -> Amounts:
    """Return amounts whose money is converted from integer units to the currency."""
    return counted._replace(money=counted.money / MONEY)


class Lengths:
    """The mean lengths of complete replies, for estimates of the cost of broken-off replies."""

    def __init__(self) -> None:
        self._of_all: dict[Hashable, list[int]] = {}
        self._of_calls: OrderedDict[Hashable, list[int]] = OrderedDict()

    def hear(self, call: str, kind: Hashable, length: int, reasoning: int) -> None:
        """Add a complete reply's tokens to the sums of its kind, for its call and for all calls."""
        for sums, key in ((self._of_all, kind), (self._of_calls, (call, kind))):
            total = sums.setdefault(key, [0, 0, 0])
            total[0] += 1
            total[1] += length
            total[2] += reasoning
        if len(self._of_calls) > CALLS_KNOWN:
            self._of_calls.popitem(last=False)

    def usual(self, call: str, kind: Hashable) -> tuple[int, int] | None:
        """Return the mean tokens of a kind's replies, and of their reasoning; None if unknown."""
        # The means are those of this call or, before its first complete reply, of all calls.
        found = self._of_calls.get((call, kind)) or self._of_all.get(kind)
        return None if found is None else (-(-found[1] // found[0]), -(-found[2] // found[0]))


def charged_tokens(
    end: RequestEnd,
    estimated: int,
    cancelled: Cancelled = "received",
    most: int | None = None,
    usual: tuple[int, int] | None = None,
) -> tuple[int, int]:
    """Return the input and output tokens that a request is charged for.

    If the cost is known, it is charged. Otherwise the known part is charged, and also:

    - the estimated prompt, if its tokens are unknown and the server may have worked on the request
      (it was cancelled, timed out or broke off, but was not refused);
    - the reply's length, if the reply is complete and its tokens are unknown. If the reply is
      incomplete and the server may have worked on it, ``cancelled`` decides, as described in
      `Budget`. ``most`` is the number of tokens reserved for the reply, and ``usual`` is the
      result of `Lengths.usual`.
    """
    usage, reply = end.usage, end.generation
    sent, received = usage.input_tokens, usage.output_tokens
    # This part of a shared request was abandoned, so nothing more is known of its cost.
    left = reply is None and not usage.requests and usage.total_tokens
    if not usage.unknown and not left:
        return sent, received
    refused = _refused(end, in_words=cancelled == "reserved")
    if not sent and usage.requests and not refused:
        sent = estimated
    if reply is not None and reply.finish_reason != REJECTED:
        return sent, received or _tokens_in(reply)
    assumed = 0
    if cancelled == "reserved":
        assumed = most or 0
    elif cancelled == "estimate" and end.error is not None:
        assumed = (most or 0) if usual is None else usual[0]
    elif cancelled == "estimate" and usual is not None and usual[1]:
        # It was rejected for the text that had arrived, which comes after all of the reasoning.
        assumed = usual[1] + (received if reply is None else _tokens_in(reply))
    if not refused:
        received = max(received, assumed if most is None else min(assumed, most))
    return sent, received


def _tokens_in(reply: Generation) -> int:
    return -(-len(reply.text.encode("utf-8", "surrogatepass")) // BYTES_PER_TOKEN)


def _refused(end: RequestEnd, *, in_words: bool) -> bool:
    """Return whether a server refused a request, and therefore did no work for it.

    A server that can't be reached counts as one that refused, but not with ``in_words``: then, only
    an error that the server sent counts.
    """
    error = end.error
    if end.usage.output_tokens or isinstance(error, BackendTimeout | MalformedResponse):
        return False
    if in_words and isinstance(error, BackendUnavailable) and error.status is None:
        return False
    return isinstance(error, BackendError)
