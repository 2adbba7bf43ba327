"""Budgets: how much a call, a batch or a tenant may spend."""

from __future__ import annotations

from contextlib import suppress
from fractions import Fraction
from math import inf
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Self, TypeVar, overload

import anyio
from anyio.lowlevel import EventLoopToken, current_token

from mellea_like.core.argument_checks import LARGEST, real_number, whole_number
from mellea_like.core.backend import estimate_input_tokens
from mellea_like.core.prices import PER, checked_prices, price_for
from mellea_like.errors import LimitExceeded
from mellea_like.limits.accounts import (
    MONEY,
    Account,
    Amounts,
    Claim,
    Standing,
    amounts,
    charged_tokens,
    in_money,
)
from mellea_like.runtime.timeline import Timeline

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mellea_like.core.backend import Backend, Request
    from mellea_like.core.options import Options
    from mellea_like.core.prices import Price
    from mellea_like.limits.accounts import Rate
    from mellea_like.limits.base import Permit, RequestEnd

__all__ = ["Budget", "BudgetLimits", "BudgetStatistics"]

N = TypeVar("N", int, float)

TICK = 1e-9
"""Seconds that count as none: what may be left when a timer has run for all the time left."""


class BudgetLimits(NamedTuple):
    """How much of each thing there is; None where there is no limit.

    Attributes:
        requests: requests.
        input_tokens: tokens of prompts.
        output_tokens: tokens of replies.
        money: money, in the currency of the prices.
        seconds: time.
    """

    requests: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    money: float | None = None
    seconds: float | None = None

    def least(self, other: BudgetLimits) -> BudgetLimits:
        """Return the lower of each two limits."""
        return BudgetLimits._make(map(_least, self, other))


class BudgetStatistics(NamedTuple):
    """A look at a budget. What is spent through the budgets within it counts.

    Attributes:
        limits: the limits.
        spent: what requests that have ended were charged.
        reserved: what requests under way may cost.
        unknown: requests that have ended and whose cost is not known; they were charged estimates.
        denied: requests that this budget has denied.
        waiting: requests that wait until others have ended.
        seconds: time since the first request was admitted.
    """

    limits: BudgetLimits
    spent: Amounts
    reserved: Amounts
    unknown: int
    denied: int
    waiting: int
    seconds: float


class _Limit(Generic[N]):
    """An attribute of a budget: one of its limits, which may be set at any time."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, budget: None, owner: type) -> Self: ...
    @overload
    def __get__(self, budget: Budget, owner: type) -> N | None: ...
    def __get__(self, budget: Budget | None, owner: type) -> Self | N | None:
        if budget is None:
            return self
        most: N | None = getattr(budget._limits, self._name)  # pyright: ignore[reportPrivateUsage]
        return most

    def __set__(self, budget: Budget, most: N | None) -> None:
        budget._change(self._name, most)  # pyright: ignore[reportPrivateUsage]


class Budget:
    """How much may be spent: the sum of all requests that it is used for, from any caller.

    Before a request, what it may cost is reserved: one request, the prompt's tokens as
    `estimate_input_tokens` guesses them, as many tokens of output as ``options.max_tokens`` allows,
    and the price of both. When it has ended, what it did cost is charged instead. So requests made
    together can't spend more than there is.

    - What does not fit beside what is spent is denied with `LimitExceeded`.
    - What does not fit only beside what is reserved waits, in the order of arrival, until requests
      under way have ended. That goes for the number of requests, too: one that waits for a limiter
      has a reservation, and is never sent if its call ends before.
    - A backend that makes further requests for each request needs another budget for them: in
      this one they would wait for the reservation of the request that waits for them.
    - A request of unknown cost (cancelled, broken off) is charged what is known of it: the tokens
      that arrived and, unless the server refused it, the prompt, as it was estimated if need be. A
      reply whose cost the backend does not say is charged by its length. What was never sent costs
      nothing.
    - What a request costs beyond its estimate is charged too, and can overshoot: a prompt longer
      than estimated, a server that exceeds ``max_tokens``, requests that the backend inside sends
      on its own account. Put retries outside, then each is asked for.

    A budget outlives calls and event loops; use it in one event loop at a time. Budgets nest by
    ``within``, for good. Requests that need two budgets which are not within each other are to ask
    for both at once, as strategies do: `Budgets`.

    Args:
        requests: the most requests, judges' and retries included.
        input_tokens: the most tokens of prompts.
        output_tokens: the most tokens of replies.
        money: the most money, in the currency of ``prices``.
        seconds: how long requests are admitted, from the first one that was.
        prices: the price of each model by its name, as `price_for` finds it; by default those of
            the budget around this one. A request is priced by the model that it asks for.
        assume_output_tokens: the longest reply to reserve for where the options have no
            ``max_tokens``; by default that of the budget around this one.
        within: the budget around this one: each request needs room in both. A budget within another
            one may have no limit itself, and counts what is spent through it.
        name: the budget's name in errors.

    Raises:
        TypeError: a limit isn't a number, ``prices`` a price table, or ``within`` a budget.
        ValueError: a limit is not above 0 and finite, there is none, or money is limited without
            prices.
    """

    requests = _Limit[int]()
    """The most requests; None for no limit. It may be set at any time, as may all limits."""
    input_tokens = _Limit[int]()
    """The most tokens of prompts; None for no limit."""
    output_tokens = _Limit[int]()
    """The most tokens of replies; None for no limit."""
    money = _Limit[float]()
    """The most money; None for no limit."""
    seconds = _Limit[float]()
    """How long requests are admitted, from the first one that was; None for no limit."""

    def __init__(
        self,
        *,
        requests: int | None = None,
        input_tokens: int | None = None,
        output_tokens: int | None = None,
        money: float | None = None,
        seconds: float | None = None,
        prices: Mapping[str, Price] | None = None,
        assume_output_tokens: int | None = None,
        within: Budget | None = None,
        name: str = "budget",
    ) -> None:
        if within is not None and not isinstance(within, Budget):
            msg = f"within takes the Budget around this one, not {type(within).__name__}"
            raise TypeError(msg)
        limits = BudgetLimits(requests, input_tokens, output_tokens, money, seconds)
        if within is not None:
            prices = within.prices if prices is None else prices
            if assume_output_tokens is None:
                assume_output_tokens = within.assume_output_tokens
        elif limits == BudgetLimits():
            msg = (
                "a budget needs a limit: requests, input_tokens, output_tokens, money or seconds;"
                " only one within another may go without"
            )
            raise ValueError(msg)
        if not isinstance(name, str):
            msg = f"a budget's name is a str, not {name!r}"
            raise TypeError(msg)
        self.name = name
        self._prices = checked_prices(prices)
        self._assumed = assume_output_tokens
        if assume_output_tokens is not None:
            whole_number("a budget's assume_output_tokens", assume_output_tokens)
        self._account = Account((inf, inf, inf, inf))
        self._limit(limits)
        self._chain: tuple[Budget, ...] = (self, *(() if within is None else within._chain))
        self._root = self._chain[-1]
        self._started: float | None = None
        # Of these, those of the outermost budget count:
        self._timeline = Timeline()
        self._latest = 0.0
        self._loop: EventLoopToken | None = None
        self._claims: set[Claim] = set()

    # --- what it allows, and what is left ------------------------------------------------------

    @property
    def prices(self) -> Mapping[str, Price] | None:
        """The price of each model, or None."""
        return self._prices

    @property
    def assume_output_tokens(self) -> int | None:
        """The longest reply to reserve for where the options have no ``max_tokens``, or None."""
        return self._assumed

    @property
    def spent(self) -> Amounts:
        """What requests that have ended were charged."""
        return in_money(self._account.spent)

    @property
    def within(self) -> Budget | None:
        """The budget around this one, or None."""
        return self._chain[1] if len(self._chain) > 1 else None

    @property
    def chain(self) -> tuple[Budget, ...]:
        """This budget, the one around it, and so on."""
        return self._chain

    @property
    def remaining(self) -> BudgetLimits:
        """What is neither spent nor reserved, here and in the budgets around this one."""
        left = BudgetLimits()
        for budget in self._chain:
            left = left.least(budget._left(budget._own_seconds_left()))
        return left

    def seconds_left(self) -> float | None:
        """Return how long requests are still admitted.

        Returns:
            The seconds left, here or in a budget around this one, whichever are fewer; all of them
            before the first request; None where no time limit is set.
        """
        left = [left for b in self._chain if (left := b._own_seconds_left()) is not None]
        return min(left, default=None)

    def statistics(self) -> BudgetStatistics:
        """Return what is spent and reserved at this moment."""
        account = self._account
        return BudgetStatistics(
            self._limits,
            in_money(account.spent),
            in_money(account.reserved),
            account.unknown,
            account.denied,
            account.waiting,
            0.0 if self._started is None else self._now() - self._started,
        )

    def __repr__(self) -> str:
        limits = zip(BudgetLimits._fields, self._limits, strict=True)
        given = ", ".join(f"{name}={limit:g}" for name, limit in limits if limit is not None)
        return f"<Budget {self.name!r}: {given or 'no limits'}; spent {tuple(self.spent)}>"

    # --- using it ------------------------------------------------------------------------------

    def child(
        self,
        *,
        requests: int | None = None,
        input_tokens: int | None = None,
        output_tokens: int | None = None,
        money: float | None = None,
        seconds: float | None = None,
        name: str = "budget",
    ) -> Budget:
        """Make a budget within this one, with its prices and assumptions; see `Budget`."""
        return Budget(
            requests=requests,
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            money=money,
            seconds=seconds,
            within=self,
            name=name,
        )

    def check(self, options: Options, model: str | None) -> None:
        """Make sure that what requests may cost can be told beforehand.

        Args:
            options: how they will be generated.
            model: the backend's model, which ``options.model`` overrides.

        Raises:
            ValueError: output tokens or money are limited, and neither ``options.max_tokens`` nor
                ``assume_output_tokens`` is given; or money is, and the model's price is not known.
        """
        for budget in self._chain:
            budget._terms(options, options.model or model)

    async def acquire(self, request: Request, backend: Backend) -> Permit:
        """Reserve what a request may cost, here and in all budgets around this one.

        Raises:
            LimitExceeded: there is no room, and requests under way can't make any.
            ValueError: what it may cost can't be told, as `check` says.
            RuntimeError: the budget is in use in another event loop.
        """
        return await Budget.reserve(self._chain, request, backend)

    @staticmethod
    async def reserve(budgets: Sequence[Budget], request: Request, backend: Backend) -> Permit:
        """Reserve what a request may cost in all of several budgets, or nothing in any.

        Each budget is given once, and with each of them those around it.
        """
        roots = tuple(dict.fromkeys(budget._root for budget in budgets))
        for root in roots:
            root._enter_loop()
        model = request.options.model or getattr(backend, "model", None)
        sent = estimate_input_tokens(request)
        rates: list[Rate] = []
        wants: list[tuple[Account, Amounts]] = []
        for budget in budgets:
            received, rate = budget._terms(request.options, model)
            rates.append(rate)
            wants.append((budget._account, amounts(1, sent, received, rate)))
            budget._require_time()
        claim = Claim(wants)
        claim.submit()
        if claim.standing is Standing.QUEUED:
            await Budget._wait(claim, budgets, roots)
        if claim.denied_by is not None:
            account, lacking = claim.denied_by
            budget = next(budget for budget in budgets if budget._account is account)
            raise budget._refusal(lacking, dict(wants)[account])
        for budget in budgets:
            if budget._started is None:
                budget._started = budget._now()
        return _Reservation(claim, sent, rates, [root._now for root in roots])

    @staticmethod
    async def _wait(claim: Claim, budgets: Sequence[Budget], roots: Sequence[Budget]) -> None:
        for root in roots:
            root._claims.add(claim)
        try:
            while claim.standing is Standing.QUEUED:
                woken = anyio.Event()
                claim.wake = woken.set
                left = [left for b in budgets if (left := b._own_seconds_left()) is not None]
                with anyio.move_on_after(min(left, default=None)):
                    await woken.wait()
                if claim.standing is Standing.QUEUED:
                    for budget in budgets:
                        budget._require_time()
        except BaseException:
            claim.leave()
            raise
        finally:
            for root in roots:
                root._claims.discard(claim)

    def _change(self, name: str, most: float | None) -> None:
        changed: dict[str, Any] = {name: most}
        self._limit(self._limits._replace(**changed))
        for claim in self._root._claims:
            claim.wake()  # There may be less time left.

    def _limit(self, limits: BudgetLimits) -> None:
        for name, most in limits._asdict().items():
            if most is None:
                continue
            if name in {"money", "seconds"}:
                real_number(f"a budget's {name}", most, over=0)
            else:
                whole_number(f"a budget's {name}", most, most=LARGEST)
        if limits.money is not None and self._prices is None:
            msg = (
                f"budget {self.name!r} limits money and needs to know what that buys:"
                " prices={model: Price(input, output)}"
            )
            raise ValueError(msg)
        self._limits = limits
        requests, sent, received, money, _ = (inf if most is None else most for most in limits)
        money = money if money is inf else round(Fraction(money) * MONEY)
        self._account.limits = requests, sent, received, money
        self._account.serve()

    def _terms(self, options: Options, model: str | None) -> tuple[int, Rate]:
        """Return the longest reply to reserve for, and what tokens cost."""
        limits = self._limits
        bound = self._assumed if options.max_tokens is None else options.max_tokens
        if bound is None and not (limits.output_tokens is None and limits.money is None):
            what = "output_tokens" if limits.money is None else "money"
            msg = (
                f"budget {self.name!r} limits {what}, and the length of a reply is not limited:"
                " set max_tokens in the options, or assume_output_tokens on the budget"
            )
            raise ValueError(msg)
        price = None if self._prices is None else price_for(model, self._prices)
        if price is None and limits.money is not None:
            whose = "a model of unknown name" if model is None else f"the model {model!r}"
            msg = (
                f"budget {self.name!r} limits money, and its prices have none for {whose}, only"
                f" for: {', '.join(self._prices or ())}"
            )
            raise ValueError(msg)
        if price is None:
            return bound or 0, (0, 0)
        return bound or 0, (_per_token(price.input), _per_token(price.output))

    def _left(self, seconds: float | None) -> BudgetLimits:
        """Return what is neither spent nor reserved."""
        limits, account = self._limits, self._account
        taken = in_money(account.spent.plus(account.reserved))
        return BudgetLimits(
            _free(limits.requests, taken.requests),
            _free(limits.input_tokens, taken.input_tokens),
            _free(limits.output_tokens, taken.output_tokens),
            _free(limits.money, taken.money),
            seconds,
        )

    def _refusal(self, lacking: str, wanted: Amounts) -> LimitExceeded:
        """Say why a request is denied."""
        account = self._account
        allowed, spent, more = (
            amounts._asdict()[lacking]
            for amounts in (self._limits, in_money(account.spent), in_money(wanted))
        )
        if lacking == "requests":
            what = f"{spent} of {allowed} requests are made"
            return LimitExceeded(f"budget {self.name!r}: {what}, and this would be one more")
        what = "money" if lacking == "money" else lacking.replace("_", " ")
        fix = "a shorter prompt" if lacking == "input_tokens" else "a lower max_tokens"
        msg = (
            f"budget {self.name!r}: {spent:.12g} of {allowed:.12g} {what} spent, and this request"
            f" may take {more:.12g}: it needs a higher {lacking} limit, or {fix}"
        )
        return LimitExceeded(msg)

    # --- time and event loops ------------------------------------------------------------------

    def _now(self) -> float:
        """Return the time; outside an event loop, the latest that was seen."""
        root = self._root
        with suppress(anyio.NoEventLoopError):
            root._latest = root._timeline.now()
        return root._latest

    def _own_seconds_left(self) -> float | None:
        seconds = self._limits.seconds
        if seconds is None or self._started is None:
            return seconds
        return max(0.0, self._started + seconds - self._now())

    def _require_time(self) -> None:
        left = self._own_seconds_left()
        if left is not None and left <= TICK:
            self._account.denied += 1
            msg = f"budget {self.name!r}: its {self.seconds:g} seconds are over"
            raise LimitExceeded(msg)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_loop": None}

    def _enter_loop(self) -> None:
        root, loop = self._root, current_token()
        if root._loop != loop:
            if root._account.reserved.requests or root._account.waiting:
                msg = (
                    f"budget {root.name!r} is in use in another event loop: a budget serves one"
                    " event loop after another, not two at once: threads share one SyncSampler"
                )
                raise RuntimeError(msg)
            root._loop = loop


class _Reservation:
    """What is reserved for one request."""

    __slots__ = ("_claim", "_clocks", "_rates", "_sent")

    def __init__(
        self, claim: Claim, sent: int, rates: Sequence[Rate], clocks: Sequence[Callable[[], float]]
    ) -> None:
        self._clocks = clocks
        self._claim = claim
        self._sent = sent
        self._rates = rates

    def release(self, end: RequestEnd) -> None:
        for look in self._clocks:
            look()  # Whoever looks at the budgets after the event loop sees this time.
        requests, unknown = end.usage.requests, end.usage.unknown
        tokens = charged_tokens(end, self._sent)
        self._claim.settle([amounts(requests, *tokens, rate) for rate in self._rates], unknown)


def _least(one: float | None, other: float | None) -> float | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)


def _per_token(price: float) -> int:
    return round(Fraction(price) * MONEY / PER)  # Exact, and without an overflow.


def _free(limit: float | None, taken: float) -> Any:
    return None if limit is None else max(0, limit - taken)
