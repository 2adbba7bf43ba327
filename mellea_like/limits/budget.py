"""Budgets: how much a call, a batch or a tenant may spend."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple, cast, get_args

from anyio.lowlevel import EventLoopToken, current_token

from mellea_like.core.argument_checks import LARGEST, check_one_of, real_number, whole_number
from mellea_like.core.generation import REJECTED
from mellea_like.core.prices import PER, checked_prices, price_for
from mellea_like.core.token_estimate import estimate_input_tokens
from mellea_like.errors import LimitExceeded, Shortage, StoreError
from mellea_like.limits.budget_accounts import (
    MONEY,
    Account,
    Amounts,
    Cancelled,
    Denied,
    Lengths,
    amounts,
    beyond,
    charged_tokens,
    in_money,
)
from mellea_like.limits.fallback import models_of
from mellea_like.limits.joint_reservation import JointReservation, seconds_left
from mellea_like.limits.store import check_store
from mellea_like.runtime.timeline import TICK, Timeline

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mellea_like.core.backend import Backend, Options, Request, RequestMeta
    from mellea_like.core.generation import Usage
    from mellea_like.core.prices import Price
    from mellea_like.limits.base import Permit, RequestEnd
    from mellea_like.limits.budget_accounts import Rate
    from mellea_like.limits.store import Store, StoreAccount

__all__ = [
    "Budget",
    "BudgetLimits",
    "BudgetStatistics",
    "Cancelled",
]


class BudgetLimits(NamedTuple):
    """The limits of a budget; None means no limit.

    Attributes:
        requests: the largest number of requests.
        input_tokens: the largest number of tokens in prompts.
        output_tokens: the largest number of tokens in replies.
        money: the largest amount of money, in the currency of the prices.
        seconds: the seconds from the first request until no more requests are admitted.
    """

    requests: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    money: float | None = None
    seconds: float | None = None


class BudgetStatistics(NamedTuple):
    """A snapshot of a budget, including the amounts spent through budgets within it.

    Attributes:
        spent: the amounts charged for requests that have ended.
        reserved: the amounts that requests in progress may cost at most.
        unknown: the number of ended requests whose cost is unknown, and was estimated.
        denied: the number of requests that this budget has denied.
        waiting: the number of this process's requests that wait until others have ended.
    """

    spent: Amounts
    reserved: Amounts
    unknown: int
    denied: int
    waiting: int


class Budget:
    """A limit on what all requests that use it may cost together, whoever makes them.

    Before a request is sent, its largest possible cost is reserved: one request, the prompt's
    tokens as `estimate_input_tokens` estimates them, output tokens up to ``options.max_tokens``,
    and the price of both. When the request has ended, its real cost is charged instead. So
    concurrent requests can't spend more than the budget has.

    - A request that is too large for what is left unspent is denied with `LimitExceeded`.
    - A request that would fit if nothing were reserved waits, in the order of arrival, until
      requests in progress have ended. It waits even if ``requests`` is the only limit without
      room, because a request with a reservation may never be sent: its call may end while it waits
      for a limiter, which releases its reservation.
    - Each try of a request is admitted separately, including the tries of a `RetryBackend` or
      `FallbackBackend` inside.
    - A backend that makes further calls to answer a request needs a second budget for these calls.
      With the same budget, they would wait for room that the original request has reserved, while
      that request waits for them.
    - A request of unknown cost (cancelled, timed out or broken off) is charged for its prompt,
      estimated if necessary, and for its reply as ``cancelled`` says. A request that the server
      refused is charged no more than the server reported. If the backend doesn't report the cost
      of a complete reply, the reply's length is charged. The request's usage shows the same
      amounts, marked as ``unknown``. A request that was never sent costs nothing.
    - A cost above the reservation is charged too, and can overshoot the limits. This happens if a
      prompt is longer than estimated, or a server exceeds ``max_tokens``.

    A budget outlives calls and event loops, but must be used in one event loop at a time. Its
    limits never change, and neither does the budget around it. If requests need two budgets that
    are not within each other, reserve in both together with `Budgets`, as strategies do.

    Args:
        requests: the largest number of requests, including those of judges and retries.
        input_tokens: the largest number of tokens in prompts.
        output_tokens: the largest number of tokens in replies.
        money: the largest amount of money, in the currency of ``prices``.
        seconds: how long requests are admitted, in seconds from the first request.
        prices: the price of each model by its name, as `price_for` finds it. The default is the
            prices of the budget around this one. A request has the price of the model that it asks
            for; each try of a `FallbackBackend` has the price of the model that the try asks.
        assume_output_tokens: the number of output tokens to reserve if the options have no
            ``max_tokens``. The default is that of the budget around this one.
        cancelled: how to charge the output of a request that ended without a reply, if the server
            may have worked on it. ``"reserved"`` charges all that was reserved, which is the
            request's largest possible cost. ``"received"`` charges only what has arrived.
            ``"estimate"`` charges the mean length of finished replies of the same call, purpose
            and model or, if there are none, of all calls that this budget has seen. It charges at
            least what has arrived and at most what was reserved. Before any reply has finished, it
            charges all that was reserved. For a reply that was rejected as it arrived, the
            estimate is what has arrived plus the mean reasoning of finished replies. The default
            is that of the budget around this one, or else ``"estimate"``.
        within: the budget around this one. Each request needs room in both. A budget within
            another one may have no limit of its own; then it only counts what is spent through
            it.
        name: the budget's name in errors, by default ``"budget"``. In a store, it is also the name
            of the budget's account.
        store: the store that keeps the budget's sums, such as ``SQLiteStore("spent.db")``. The
            sums then outlive the process, and all budgets that name the same account share them.
            Each request is subject to the limits of the budget that it uses, so a new budget with
            a higher limit can continue where a spent budget stopped. By default, this object keeps
            the sums in memory.

    Attributes:
        name: see above.
        store: see above.
        prices: see above.
        assume_output_tokens: see above.
        cancelled: see above.
        limits: the limits, as given.
        chain: this budget, the budget around it, and so on.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: a number is not above 0 and finite, there is no limit, or money is limited
            without prices; ``cancelled`` isn't one of the values above; or a budget in a store has
            no name, or has the same account as a budget around it.
    """

    # No other attribute can be set, because ``budget.requests = 5`` would have no effect.
    __slots__ = (
        "__weakref__",
        "_account",
        "_late",
        "_lengths",
        "_loop",
        "_most",
        "_started",
        "_timeline",
        "assume_output_tokens",
        "cancelled",
        "chain",
        "limits",
        "name",
        "prices",
        "store",
    )

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
        cancelled: Cancelled | None = None,
        within: Budget | None = None,
        name: str | None = None,
        store: Store | None = None,
    ) -> None:
        if within is not None and not isinstance(within, Budget):
            msg = f"within must be the Budget around this one, not {type(within).__name__}"
            raise TypeError(msg)
        self.limits = BudgetLimits(requests, input_tokens, output_tokens, money, seconds)
        if within is not None:
            prices = within.prices if prices is None else prices
            if assume_output_tokens is None:
                assume_output_tokens = within.assume_output_tokens
            cancelled = cancelled or within.cancelled
        elif self.limits == BudgetLimits():
            msg = (
                "a budget needs a limit: requests, input_tokens, output_tokens, money or seconds;"
                " only a budget within another one can do without"
            )
            raise ValueError(msg)
        if name is not None and not isinstance(name, str):
            msg = f"a budget's name must be a str, not {name!r}"
            raise TypeError(msg)
        if store is not None:
            check_store("a budget", store, name)
        self.name = "budget" if name is None else name
        self.store = store
        around = () if within is None else within.chain
        if store is not None and any((b.store, b.name) == (store, name) for b in around):
            msg = f"a budget can't be within one that has the same account: {name!r}"
            raise ValueError(msg)
        self.prices: Mapping[str, Price] | None = checked_prices(prices)
        self.assume_output_tokens: int | None = assume_output_tokens
        if assume_output_tokens is not None:
            whole_number("a budget's assume_output_tokens", assume_output_tokens)
        self.cancelled: Cancelled = cancelled or "estimate"
        check_one_of("a budget's cancelled", self.cancelled, get_args(Cancelled))
        self._lengths = Lengths()
        self._most = self._checked_limits()  # In the units of accounts.
        self._account: StoreAccount = (
            Account(self._most) if store is None else store.account(self.name, self._most)
        )
        self.chain: tuple[Budget, ...] = (self, *around)
        self._started: float | None = None
        self._late = 0
        # The outermost budget keeps these:
        self._timeline = Timeline()
        self._loop: EventLoopToken | None = None

    # --- what it allows, and what is left ------------------------------------------------------

    @property
    def spent(self) -> Amounts:
        """The amounts charged for requests that have ended.

        Raises:
            StoreError: the budget's store can't be used.
        """
        return in_money(self._account.look().spent)

    def seconds_left(self) -> float | None:
        """Return how long requests are still admitted.

        Returns:
            The seconds left in this budget or in one around it, whichever are fewer; the whole
            limit before the first request, and None without a limit. Call this in an event loop.

        Raises:
            StoreError: a budget's store can't be used.
        """
        return seconds_left(self.chain)

    def statistics(self) -> BudgetStatistics:
        """Return what is spent and reserved at this moment; see `BudgetStatistics`.

        Raises:
            StoreError: the budget's store can't be used.
        """
        sums = self._account.look()
        denied = sums.denied + self._late
        return BudgetStatistics(
            in_money(sums.spent), in_money(sums.reserved), sums.unknown, denied, sums.waiting
        )

    def __repr__(self) -> str:
        limits = zip(BudgetLimits._fields, self.limits, strict=True)
        given = ", ".join(f"{name}={limit:g}" for name, limit in limits if limit is not None)
        try:
            spent = f"spent {tuple(self.spent)}"
        except StoreError:
            spent = "its store can't be read"
        return f"<Budget {self.name!r}: {given or 'no limits'}; {spent}>"

    # --- using it ------------------------------------------------------------------------------

    def check(self, options: Options, model: str | None) -> None:
        """Make sure that the largest possible cost of requests is known in advance.

        Args:
            options: the options of the requests.
            model: the backend's model, which ``options.model`` overrides.

        Raises:
            ValueError: output tokens or money are limited, and neither ``options.max_tokens`` nor
                ``assume_output_tokens`` is given; or money is limited, and the model's price is
                unknown.
        """
        for budget in self.chain:
            budget._terms(options, options.model or model)

    async def acquire(self, request: Request, backend: Backend) -> Permit:
        """Reserve a request's largest possible cost, here and in all budgets around this one.

        Raises:
            LimitExceeded: there is no room, even if all requests in progress cost nothing, or the
                budget's time is over.
            ValueError: the request's largest possible cost is unknown; see `check`.
            RuntimeError: the budget is in use in another event loop.
            StoreError: a budget's store can't be used.
        """
        return await Budget.reserve(self.chain, request, backend)

    @staticmethod
    async def reserve(budgets: Sequence[Budget], request: Request, backend: Backend) -> Permit:
        """Reserve a request's largest possible cost in all of several budgets, or in none of them.

        ``budgets`` must contain each budget once, together with all budgets around it.
        """
        held = JointReservation(budgets)
        sent = estimate_input_tokens(request)
        rates: list[dict[str | None, Rate]] = []
        wants: list[tuple[StoreAccount, Amounts]] = []
        for budget in budgets:
            wanted, of_models = budget._wanted(request, backend, sent)
            rates.append(of_models)
            wants.append((budget._account, wanted))
            budget._require_time()
        try:
            await held.make(wants)
        except Denied as exc:
            place = next(n for n, (account, _) in enumerate(wants) if account is exc.account)
            raise budgets[place]._refusal(exc.lacking, exc.spent, wants[place][1]) from None
        named = request.options.model or next(iter(models_of(backend)))
        bounds = [budget._bound(request.options) for budget in budgets]
        return _Reserved(held, budgets, request.meta, named, sent, rates, bounds)

    def _checked_limits(self) -> tuple[float, float, float, float]:
        for name, most in self.limits._asdict().items():
            if most is None:
                continue
            if name in {"money", "seconds"}:
                real_number(f"a budget's {name}", most, over=0)
            else:
                whole_number(f"a budget's {name}", most, most=LARGEST)
        if self.limits.money is not None and self.prices is None:
            msg = (
                f"budget {self.name!r} limits money, so it needs prices: pass"
                " prices={model: Price(input, output)}"
            )
            raise ValueError(msg)
        requests, sent, received, money, _ = (inf if most is None else most for most in self.limits)
        return requests, sent, received, money if money is inf else round(Fraction(money) * MONEY)

    def _bound(self, options: Options) -> int | None:
        return self.assume_output_tokens if options.max_tokens is None else options.max_tokens

    def _terms(self, options: Options, model: str | None) -> tuple[int, Rate]:
        """Return the output tokens to reserve for a request, and the prices of tokens."""
        limits = self.limits
        bound = self._bound(options)
        if bound is None and not (limits.output_tokens is None and limits.money is None):
            what = "output_tokens" if limits.money is None else "money"
            msg = (
                f"budget {self.name!r} limits {what}, but the length of a reply isn't limited:"
                " set max_tokens in the options, or assume_output_tokens on the budget"
            )
            raise ValueError(msg)
        price = None if self.prices is None else price_for(model, self.prices)
        if price is None and limits.money is not None:
            whose = "a model whose name is unknown" if model is None else f"the model {model!r}"
            msg = (
                f"budget {self.name!r} limits money, but has no price for {whose}, only for:"
                f" {', '.join(self.prices or ())}"
            )
            raise ValueError(msg)
        if price is None:
            return bound or 0, (0, 0, 0)
        cached = price.input if price.cached_input is None else price.cached_input
        of_each = (price.input, price.output, cached)
        return bound or 0, cast("Rate", tuple(map(_per_token, of_each)))

    def _wanted(
        self, request: Request, backend: Backend, sent: int
    ) -> tuple[Amounts, dict[str | None, Rate]]:
        """Return a request's largest possible cost, and the token prices of each model."""
        named = request.options.model
        models = models_of(backend) if named is None else (named,)
        terms = {model: self._terms(request.options, model) for model in models}
        wanted = {m: amounts(1, sent, received, rate) for m, (received, rate) in terms.items()}
        dearest = max(wanted, key=lambda model: wanted[model].money)
        # The first price is for requests that end before any model is asked.
        rates = {None: terms[dearest][1], **{m: rate for m, (_, rate) in terms.items()}}
        return wanted[dearest], rates

    def _has_room_twice(self, request: Request, backend: Backend) -> bool:
        once, _ = self._wanted(request, backend, estimate_input_tokens(request))
        sums = self._account.look()
        taken = sums.spent.plus(sums.reserved)
        return not sums.waiting and beyond(self._most, taken, once.plus(once)) is None

    def _refusal(self, lacking: str, so_far: Amounts, wanted: Amounts) -> LimitExceeded:
        allowed, spent, more = (
            getattr(amounts, lacking)
            for amounts in (self.limits, in_money(so_far), in_money(wanted))
        )
        if lacking == "requests":
            what = f"{spent} of {allowed} requests were made, and this would be one more"
        else:
            fix = "a shorter prompt" if lacking == "input_tokens" else "a lower max_tokens"
            what = (
                f"{spent:.12g} of {allowed:.12g} {lacking.replace('_', ' ')} spent, and this"
                f" request may take {more:.12g}: it needs a higher {lacking} limit, or {fix}"
            )
        error = LimitExceeded(f"budget {self.name!r}: {what}")
        error.shortage = Shortage(lacking, allowed, spent, more)
        return error

    # --- time and event loops ------------------------------------------------------------------

    def _now(self) -> float:
        return self.chain[-1]._timeline.now()

    def _own_seconds_left(self) -> float | None:
        seconds = self.limits.seconds
        if seconds is None:
            return None
        started = self._first_reserved()
        return seconds if started is None else max(0.0, started + seconds - self._now())

    def _begin(self) -> None:
        """Start the budget's time with its first reservation."""
        if self._first_reserved() is None:
            self._started = self._now()

    def _first_reserved(self) -> float | None:
        """Return when the first reservation was made, on this budget's clock; None before that."""
        timed_by_store = self.store is not None and self.limits.seconds is not None
        if self._started is None and timed_by_store:
            age = self._account.look().age
            self._started = None if age is None else self._now() - age
        return self._started

    def _require_time(self) -> None:
        left = self._own_seconds_left()
        if left is not None and left <= TICK:
            self._late += 1
            msg = f"budget {self.name!r}: its {self.limits.seconds:g} seconds are up"
            raise LimitExceeded(msg)

    def __getstate__(self) -> tuple[None, dict[str, Any]]:
        names = (name for name in Budget.__slots__ if name != "__weakref__")
        state = {name: getattr(self, name) for name in names}
        prices = None if self.prices is None else dict(self.prices)
        return None, {**state, "prices": prices, "_loop": None}

    def _enter_loop(self) -> None:
        loop = current_token()
        if self._loop != loop:
            if self._loop is not None and self._account.in_use:
                msg = (
                    f"budget {self.name!r} is in use in another event loop, and a budget can't be"
                    " used in two event loops at once: share one SyncSampler between threads"
                )
                raise RuntimeError(msg)
            self._loop = loop


class _Reserved(NamedTuple):
    held: JointReservation
    budgets: Sequence[Budget]
    meta: RequestMeta
    model: str | None
    sent: int
    rates: Sequence[Mapping[str | None, Rate]]
    bounds: Sequence[int | None]

    def release(self, end: RequestEnd) -> Usage | None:
        usage = end.usage
        call, kind = self.meta.sampling_id, (self.meta.purpose, end.model or self.model)
        cached = usage.cached_input_tokens
        known = [budget._lengths for budget in self.budgets]  # pyright: ignore[reportPrivateUsage]
        usual = next((found for lengths in known if (found := lengths.usual(call, kind))), None)
        charged: list[Amounts] = []
        for budget, rates, bound in zip(self.budgets, self.rates, self.bounds, strict=True):
            sent, received = charged_tokens(end, self.sent, budget.cancelled, bound, usual)
            rate = rates[end.model if end.model in rates else None]
            charged.append(amounts(usage.requests, sent, received, rate, min(sent, cached)))
        if end.generation is not None and end.generation.finish_reason != REJECTED:
            for lengths in known:
                lengths.hear(call, kind, charged[0].output_tokens, usage.reasoning_tokens)
        self.held.settle(charged, usage.unknown)
        most = max(charged, key=lambda amount: amount.output_tokens)
        return replace(usage, input_tokens=most.input_tokens, output_tokens=most.output_tokens)


def _per_token(price: float) -> int:
    return round(Fraction(price) * MONEY / PER)  # Exact, and without an overflow.
