"""The sums of a budget: what is spent, what is reserved, and who is in line; nothing waits here.

A claim that finds no room stands in line at the account that has none, behind those that came
before. It holds nothing meanwhile. What has no room therefore waits for claims that were granted,
each of which ends and then serves the line; and where none is under way, the answer is yes or no.
"""

from __future__ import annotations

from collections import OrderedDict
from enum import Enum, auto
from itertools import count
from operator import add, sub
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Account", "Amounts", "Claim", "Limits", "Standing"]


Limits: TypeAlias = tuple[float, float, float, float]


class Amounts(NamedTuple):
    """How much of each thing that a budget counts.

    Attributes:
        requests: requests.
        input_tokens: tokens of prompts.
        output_tokens: tokens of replies.
        money: money, in the currency of the prices.
    """

    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    money: float = 0

    def plus(self, other: Amounts) -> Amounts:
        """Return the sums.

        Args:
            other: what to add.

        Returns:
            Each amount with the other's added.
        """
        return Amounts._make(map(add, self, other))

    def minus(self, other: Amounts) -> Amounts:
        """Return the differences.

        Args:
            other: what to take away.

        Returns:
            Each amount without the other's.
        """
        return Amounts._make(map(sub, self, other))

    def most(self, other: Amounts) -> Amounts:
        """Return the greater amounts.

        Args:
            other: what to compare with.

        Returns:
            Of each amount the greater one.
        """
        return Amounts._make(map(max, self, other))


class Standing(Enum):
    """How a claim stands."""

    IN_LINE = auto()
    """There may be room for it when others have ended."""
    GRANTED = auto()
    """What it wants is reserved."""
    DENIED = auto()
    """Within the limits of now there will never be room for it."""
    ENDED = auto()
    """It was settled, or it left."""


_tickets = count()


def _nobody() -> None:
    """Wake nobody."""


class Claim:
    """What one request wants of an account and of all those that it is within: all or nothing.

    Args:
        wants: each account with what is wanted of it, the innermost first.

    Attributes:
        wake: is called when a claim that stood in line is granted or denied.
        standing: how it stands.
        denied_by: for a denied one, the account that has no room, and the name of the amount.
        ticket: a number that grows with the time of arrival.
        place: the account at which it stands in line, or None.
    """

    __slots__ = ("denied_by", "place", "standing", "ticket", "wake", "wants")

    def __init__(self, wants: Sequence[tuple[Account, Amounts]]) -> None:
        self.wants = wants
        self.wake: Callable[[], object] = _nobody
        self.ticket = next(_tickets)
        self.standing = Standing.IN_LINE
        self.denied_by: tuple[Account, str] | None = None
        self.place: Account | None = None

    def submit(self) -> None:
        """Ask: the claim is granted or denied now, or stands in line."""
        self._decide()
        if self.standing is Standing.IN_LINE:
            self._count_in_line(1)

    def reconsider(self) -> None:
        """Ask again: called by the account whose line the claim has just been taken out of."""
        self.place = None
        self._decide()
        if self.standing is not Standing.IN_LINE:
            self._count_in_line(-1)
            self.wake()

    def settle(self, spent: Sequence[Amounts], unknown: int = 0) -> None:
        """Give back what is reserved, and record what was spent; nothing happens a second time.

        Args:
            spent: what was spent of each account, in the order of ``wants``.
            unknown: requests of which that is not known for sure.
        """
        if self.standing is not Standing.GRANTED:
            return
        self.standing = Standing.ENDED
        for (account, wanted), amounts in zip(self.wants, spent, strict=True):
            account.reserved = account.reserved.minus(wanted)
            account.spent = account.spent.plus(amounts)
            account.unknown += unknown
        for account, _ in reversed(self.wants):
            account.serve()

    def leave(self) -> None:
        """Want nothing any more; what was granted meanwhile is given back unspent."""
        self.settle([Amounts()] * len(self.wants))
        if self.place is not None:
            self.standing = Standing.ENDED
            self._count_in_line(-1)
            self.place.dismiss(self)

    def _decide(self) -> None:
        for account, wanted in self.wants:
            lacking = account.lacking(wanted)
            if lacking is not None:
                self.standing = Standing.DENIED
                self.denied_by = account, lacking
                account.denied += 1
                return
        for account, wanted in self.wants:
            if account.is_awaited_before(self.ticket) or not account.has_room(wanted):
                self.place = account
                account.line_up(self, wanted)
                return
        for account, wanted in self.wants:
            account.reserved = account.reserved.plus(wanted)
        self.standing = Standing.GRANTED

    def _count_in_line(self, change: int) -> None:
        for account, _ in self.wants:
            account.waiting += change


class Account:
    """What is spent of one budget, and what is reserved.

    Args:
        limits: the most of each amount, in the order of `Amounts`; infinite for no limit. They may
            be changed; `serve` then answers the line.

    Attributes:
        spent: what requests that have ended cost.
        reserved: what requests under way may cost.
        unknown: requests that have ended, of which it is not known for sure what they cost.
        waiting: claims on this account that stand in line, here or at another account.
        denied: claims that were denied for want of room here.
    """

    __slots__ = ("_line", "_most", "denied", "limits", "reserved", "spent", "unknown", "waiting")

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.spent = Amounts()
        self.reserved = Amounts()
        self.unknown = 0
        self.waiting = 0
        self.denied = 0
        self._line: OrderedDict[Claim, Amounts] = OrderedDict()
        self._most = Amounts()

    def lacking(self, wanted: Amounts) -> str | None:
        """Tell what there will never be room for, however little the requests under way cost.

        A request under way may cost nothing: one that waits for a limit is perhaps never sent.

        Args:
            wanted: the amounts.

        Returns:
            The name of the first amount that is too much; None where there may be room.
        """
        requests, sent, received, money = wanted
        spent, limits = self.spent, self.limits
        if spent.requests + requests > limits[0]:
            return "requests"
        if spent.input_tokens + sent > limits[1]:
            return "input_tokens"
        if spent.output_tokens + received > limits[2]:
            return "output_tokens"
        return "money" if spent.money + money > limits[3] else None

    def has_room(self, wanted: Amounts) -> bool:
        """Tell whether there is room, however much the requests under way cost.

        Args:
            wanted: the amounts.

        Returns:
            Whether there is.
        """
        spent, reserved, limits = self.spent, self.reserved, self.limits
        return (
            spent.requests + reserved.requests + wanted.requests <= limits[0]
            and spent.input_tokens + reserved.input_tokens + wanted.input_tokens <= limits[1]
            and spent.output_tokens + reserved.output_tokens + wanted.output_tokens <= limits[2]
            and spent.money + reserved.money + wanted.money <= limits[3]
        )

    def is_awaited_before(self, ticket: int) -> bool:
        """Tell whether the line begins with an earlier claim.

        Args:
            ticket: a claim's ticket.

        Returns:
            Whether it does.
        """
        first = next(iter(self._line), None)
        return first is not None and first.ticket < ticket

    def line_up(self, claim: Claim, wanted: Amounts) -> None:
        """Put a claim into the line.

        Args:
            claim: the claim. One that comes from another line, and is older than all in this one,
                goes to the front; any other goes to the end.
            wanted: what it wants of this account.
        """
        first = not self.is_awaited_before(claim.ticket)
        self._most = self._most.most(wanted) if self._line else wanted
        self._line[claim] = wanted
        if first:
            self._line.move_to_end(claim, last=False)

    def dismiss(self, claim: Claim) -> None:
        """Take a claim out of the line; those behind it may have room now.

        Args:
            claim: one that stands in it.
        """
        del self._line[claim]
        self.serve()

    def serve(self) -> None:
        """Answer those in line that can be answered now: called whenever room was made or lost."""
        while self._line:
            first, wanted = next(iter(self._line.items()))
            if not self.has_room(wanted) and self.lacking(wanted) is None:
                break
            del self._line[first]
            first.reconsider()
        # The others only if one of them may be hopeless: a line may be long.
        if not self._line or self.lacking(self._most) is None:
            return
        self._most = Amounts()
        for claim, wanted in list(self._line.items()):
            if self.lacking(wanted) is None:
                self._most = self._most.most(wanted)
            else:
                del self._line[claim]
                claim.reconsider()
