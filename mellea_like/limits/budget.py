"""Budgets: how much a call, a batch or a tenant may spend."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast, get_args

import anyio
from anyio.lowlevel import EventLoopToken, current_token

from mellea_like.core.argument_checks import LARGEST, real_number, whole_number
from mellea_like.core.backend import BackendWrapper
from mellea_like.core.generation import REJECTED
from mellea_like.core.prices import PER, checked_prices, price_for
from mellea_like.core.token_estimate import estimate_input_tokens
from mellea_like.errors import LimitExceeded, Shortage
from mellea_like.limits.base import LimitedBackend
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
from mellea_like.limits.fallback import FallbackBackend, models_of
from mellea_like.limits.memory_store import MemoryStore, reserve
from mellea_like.runtime.timeline import Timeline

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mellea_like.core.backend import Backend, Options, Request, RequestMeta
    from mellea_like.core.generation import Usage
    from mellea_like.core.prices import Price
    from mellea_like.limits.base import Permit, RequestEnd
    from mellea_like.limits.budget_accounts import Rate
    from mellea_like.limits.store import Reservation, Store, StoreAccount

__all__ = [
    "Budget",
    "BudgetLimits",
    "BudgetStatistics",
    "Budgets",
    "Cancelled",
    "room_to_restart",
    "within_budgets",
]

TICK = 1e-9
"""Seconds that count as none: what may be left when a timer has run for all the time left."""


class BudgetLimits(NamedTuple):
    """How much of each thing there is; None if there is no limit.

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


class BudgetStatistics(NamedTuple):
    """A snapshot of a budget, which includes amounts spent through budgets within it.

    Attributes:
        spent: amounts charged for requests that have ended.
        reserved: amounts that requests under way may cost.
        unknown: requests that have ended and whose cost is not known; they were charged estimates.
        denied: requests that this budget has denied.
        waiting: requests that wait for room in this budget until others have ended; those of this
            process.
    """

    spent: Amounts
    reserved: Amounts
    unknown: int
    denied: int
    waiting: int


class Budget:
    """How much may be spent: the sum of all requests that it is used for, from any caller.

    Before a request, what it may cost is reserved: one request, the prompt's tokens as
    `estimate_input_tokens` guesses them, as many tokens of output as ``options.max_tokens`` allows,
    and the price of both. When it has ended, what it did cost is charged instead. So requests made
    together can't spend more than there is.

    - A request that does not fit in addition to the amounts spent is denied with
      `LimitExceeded`.
    - A request that fits only without the amounts reserved waits, in the order of arrival, until
      requests under way have ended. That holds for the number of requests, too: one that waits
      for a limiter has a reservation, and is never sent if its call ends before.
    - Each try of a request is admitted by itself, those of a `RetryBackend` or `FallbackBackend`
      inside too.
    - A backend that makes calls inside for each request needs another budget for them: in this one
      they would wait for the reservation of the request that waits for them.
    - A request of unknown cost (cancelled, timed out, broken off) is charged its prompt, as it was
      estimated if need be, and what ``cancelled`` says of its reply; one that the server refused is
      charged no more than it said. A reply whose cost the backend does not say is charged by its
      length. The usage of the request says the same, marked as ``unknown``. A request
      that was never sent costs nothing.
    - Costs beyond a reservation are charged too, and can overshoot the limits: of a prompt longer
      than estimated, or a server that exceeds ``max_tokens``.

    A budget outlives calls and event loops; use it in one event loop at a time. Its limits are for
    good, and so is what it is ``within``. Requests that need two budgets which are not within each
    other must ask for both at once, as strategies do: `Budgets`.

    Args:
        requests: the most requests, judges' and retries included.
        input_tokens: the most tokens of prompts.
        output_tokens: the most tokens of replies.
        money: the most money, in the currency of ``prices``.
        seconds: how long requests are admitted, from the first one that was.
        prices: the price of each model by its name, as `price_for` finds it; by default those of
            the budget around this one. A request is priced by the model that it asks for; each try
            of a `FallbackBackend` by the one that was asked.
        assume_output_tokens: the longest reply to reserve for if the options have no
            ``max_tokens``; by default that of the budget around this one.
        cancelled: the cost of the output of a request that ended without a reply and may have been
            worked on: ``"reserved"`` as much as was reserved for it, which is the most that it can;
            ``"estimate"`` as much as replies to finished requests of its call (or else of all that
            this budget has seen) for the same purpose and model did on average, at least what has
            arrived and at most what was reserved, and before the first of them all of that;
            ``"received"`` what has arrived. A reply that was rejected while it arrived is estimated
            at what has arrived and the reasoning that finished ones had on average. By default as
            the budget around this one, or else ``"estimate"``.
        within: the budget around this one: each request needs room in both. A budget within another
            one may have no limit itself, and counts what is spent through it.
        name: the budget's name in errors, by default ``"budget"``; in a store, its account's name.
        store: the store that keeps its sums, such as ``SQLiteStore("spent.db")``: they outlive the
            process then, and are shared by all that name the same account. Each request is judged
            by the limits of the budget that it uses, so that a budget with a higher limit
            continues from one that was spent. By default they are kept in memory, by this object.

    Attributes:
        name: see above.
        store: see above.
        prices: see above.
        assume_output_tokens: see above.
        cancelled: see above.
        limits: how much there is of each thing.
        chain: this budget, the one around it, and so on.

    Raises:
        TypeError: a limit isn't a number, ``prices`` a price table, or ``within`` a budget.
        ValueError: a limit is not above 0 and finite, there is none, or money is limited without
            prices; ``cancelled`` is none of the three; or a budget in a store has no name.
    """

    # No other attributes: ``budget.requests = 5`` would change nothing.
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
            msg = f"within takes the Budget around this one, not {type(within).__name__}"
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
                " only one within another may go without"
            )
            raise ValueError(msg)
        if name is not None and not isinstance(name, str):
            msg = f"a budget's name is a str, not {name!r}"
            raise TypeError(msg)
        if store is not None and not name:
            msg = "a budget in a store needs a name, which is its account's: name='...'"
            raise ValueError(msg)
        self.name = "budget" if name is None else name
        self.store = store
        around = () if within is None else within.chain
        if store is not None and any((b.store, b.name) == (store, name) for b in around):
            msg = f"a budget can't be within one of the same account: {name!r}"
            raise ValueError(msg)
        self.prices: Mapping[str, Price] | None = checked_prices(prices)
        self.assume_output_tokens: int | None = assume_output_tokens
        if assume_output_tokens is not None:
            whole_number("a budget's assume_output_tokens", assume_output_tokens)
        self.cancelled: Cancelled = cancelled or "estimate"
        if self.cancelled not in get_args(Cancelled):
            ways = ", ".join(map(repr, get_args(Cancelled)))
            msg = f"a budget's cancelled is one of {ways}, not {cancelled!r}"
            raise ValueError(msg)
        self._lengths = Lengths()
        self._most = self._checked_limits()  # As accounts count.
        self._account: StoreAccount = (
            Account(self._most) if store is None else store.account(self.name, self._most)
        )
        self.chain: tuple[Budget, ...] = (self, *(() if within is None else within.chain))
        self._started: float | None = None
        self._late = 0
        # Of these, those of the outermost budget count:
        self._timeline = Timeline()
        self._loop: EventLoopToken | None = None

    # --- what it allows, and what is left ------------------------------------------------------

    @property
    def spent(self) -> Amounts:
        """The amounts charged for requests that have ended."""
        return in_money(self._account.look().spent)

    def seconds_left(self) -> float | None:
        """Return how long requests are still admitted.

        Returns:
            The seconds left, here or in a budget around this one, whichever are fewer; all of them
            before the first request; None if no time limit is set. Ask in an event loop.
        """
        left = [left for b in self.chain if (left := b._own_seconds_left()) is not None]
        return min(left, default=None)

    def statistics(self) -> BudgetStatistics:
        """Return what is spent and reserved at this moment."""
        sums = self._account.look()
        denied = sums.denied + self._late
        return BudgetStatistics(
            in_money(sums.spent), in_money(sums.reserved), sums.unknown, denied, sums.waiting
        )

    def __repr__(self) -> str:
        limits = zip(BudgetLimits._fields, self.limits, strict=True)
        given = ", ".join(f"{name}={limit:g}" for name, limit in limits if limit is not None)
        return f"<Budget {self.name!r}: {given or 'no limits'}; spent {tuple(self.spent)}>"

    # --- using it ------------------------------------------------------------------------------

    def check(self, options: Options, model: str | None) -> None:
        """Make sure that what requests may cost can be told beforehand.

        Args:
            options: how they will be generated.
            model: the backend's model, which ``options.model`` overrides.

        Raises:
            ValueError: output tokens or money are limited, and neither ``options.max_tokens`` nor
                ``assume_output_tokens`` is given; or money is, and the model's price is not known.
        """
        for budget in self.chain:
            budget._terms(options, options.model or model)

    async def acquire(self, request: Request, backend: Backend) -> Permit:
        """Reserve what a request may cost, here and in all budgets around this one.

        Raises:
            LimitExceeded: there is no room, and requests under way can't make any.
            ValueError: its largest possible cost is unknown; see `check`.
            RuntimeError: the budget is in use in another event loop.
        """
        return await Budget.reserve(self.chain, request, backend)

    @staticmethod
    async def reserve(budgets: Sequence[Budget], request: Request, backend: Backend) -> Permit:
        """Reserve what a request may cost in all of several budgets, or nothing in any.

        Each budget is given once, and with each of them those around it.
        """
        roots = tuple(dict.fromkeys(budget.chain[-1] for budget in budgets))
        for root in roots:
            root._enter_loop()
        sent = estimate_input_tokens(request)
        rates: list[dict[str | None, Rate]] = []
        wants: list[tuple[StoreAccount, Amounts]] = []
        for budget in budgets:
            wanted, of_models = budget._wanted(request, backend, sent)
            rates.append(of_models)
            wants.append((budget._account, wanted))
            budget._require_time()
        made: list[_Part] = []
        try:
            for store, places in _by_store(budgets):
                part = [wants[place] for place in places]
                made.append((await Budget._wait(store, part, budgets), places))
        except BaseException as exc:
            for reservation, places in made:
                reservation.settle([Amounts()] * len(places))
            if not isinstance(exc, Denied):
                raise
            place = next(n for n, (account, _) in enumerate(wants) if account is exc.account)
            raise budgets[place]._refusal(exc, wants[place][1]) from None
        for budget in budgets:
            if budget._started is None:
                budget._started = budget._first_reserved() or budget._now()
        named = request.options.model or next(iter(models_of(backend)))
        bounds = [budget._bound(request.options) for budget in budgets]
        return _Reserved(made, budgets, request.meta, named, sent, rates, bounds)

    @staticmethod
    async def _wait(
        store: Store | None, wants: Sequence[tuple[Any, Amounts]], budgets: Sequence[Budget]
    ) -> Reservation:
        """Reserve in one store, as long as all of some budgets have time left."""
        held = reserve if store is None else store.reserve
        if not any(budget.limits.seconds for budget in budgets):
            return await held(wants)
        while True:
            left = [left for b in budgets if (left := b._own_seconds_left()) is not None]
            with anyio.move_on_after(min(left)):
                return await held(wants)
            for budget in budgets:
                budget._require_time()

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
                f"budget {self.name!r} limits money and needs to know what that buys:"
                " prices={model: Price(input, output)}"
            )
            raise ValueError(msg)
        requests, sent, received, money, _ = (inf if most is None else most for most in self.limits)
        return requests, sent, received, money if money is inf else round(Fraction(money) * MONEY)

    def _bound(self, options: Options) -> int | None:
        return self.assume_output_tokens if options.max_tokens is None else options.max_tokens

    def _terms(self, options: Options, model: str | None) -> tuple[int, Rate]:
        """Return the longest reply to reserve for, and what tokens cost."""
        limits = self.limits
        bound = self._bound(options)
        if bound is None and not (limits.output_tokens is None and limits.money is None):
            what = "output_tokens" if limits.money is None else "money"
            msg = (
                f"budget {self.name!r} limits {what}, and the length of a reply is not limited:"
                " set max_tokens in the options, or assume_output_tokens on the budget"
            )
            raise ValueError(msg)
        price = None if self.prices is None else price_for(model, self.prices)
        if price is None and limits.money is not None:
            whose = "a model of unknown name" if model is None else f"the model {model!r}"
            msg = (
                f"budget {self.name!r} limits money, and its prices have none for {whose}, only"
                f" for: {', '.join(self.prices or ())}"
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
        """Return the most that a request may cost, and what the tokens of each model do."""
        named = request.options.model
        models = models_of(backend) if named is None else (named,)
        terms = {model: self._terms(request.options, model) for model in models}
        wanted = {m: amounts(1, sent, received, rate) for m, (received, rate) in terms.items()}
        dearest = max(wanted, key=lambda model: wanted[model].money)
        # The first is for what ends before a model is asked.
        rates = {None: terms[dearest][1], **{m: rate for m, (_, rate) in terms.items()}}
        return wanted[dearest], rates

    def _has_room_twice(self, request: Request, backend: Backend) -> bool:
        once, _ = self._wanted(request, backend, estimate_input_tokens(request))
        sums = self._account.look()
        taken = sums.spent.plus(sums.reserved)
        return not sums.waiting and beyond(self._most, taken, once.plus(once)) is None

    def _refusal(self, denied: Denied, wanted: Amounts) -> LimitExceeded:
        """Return the error for a request that is denied."""
        lacking = denied.lacking
        allowed, spent, more = (
            amounts._asdict()[lacking]
            for amounts in (self.limits, in_money(denied.spent), in_money(wanted))
        )
        shortage = Shortage(lacking, allowed, spent, more)
        if lacking == "requests":
            what = f"{spent} of {allowed} requests are made"
            error = LimitExceeded(f"budget {self.name!r}: {what}, and this would be one more")
            error.shortage = shortage
            return error
        what = "money" if lacking == "money" else lacking.replace("_", " ")
        fix = "a shorter prompt" if lacking == "input_tokens" else "a lower max_tokens"
        msg = (
            f"budget {self.name!r}: {spent:.12g} of {allowed:.12g} {what} spent, and this request"
            f" may take {more:.12g}: it needs a higher {lacking} limit, or {fix}"
        )
        error = LimitExceeded(msg)
        error.shortage = shortage
        return error

    # --- time and event loops ------------------------------------------------------------------

    def _now(self) -> float:
        return self.chain[-1]._timeline.now()

    def _own_seconds_left(self) -> float | None:
        seconds = self.limits.seconds
        if seconds is None:
            return None
        if self._started is None:
            self._started = self._first_reserved()
            if self._started is None:
                return seconds
        return max(0.0, self._started + seconds - self._now())

    def _first_reserved(self) -> float | None:
        """Return when others that share its account began, in its own time; None if none has."""
        if self.store is None or self.limits.seconds is None:
            return None
        age = self._account.look().age
        return None if age is None else self._now() - age

    def _require_time(self) -> None:
        left = self._own_seconds_left()
        if left is not None and left <= TICK:
            self._late += 1
            msg = f"budget {self.name!r}: its {self.limits.seconds:g} seconds are over"
            raise LimitExceeded(msg)

    def __getstate__(self) -> tuple[None, dict[str, Any]]:
        names = (name for name in Budget.__slots__ if name != "__weakref__")
        state = {name: getattr(self, name) for name in names}
        if self.store is not None:
            del state["_account"]  # The copy finds it in the store.
        prices = None if self.prices is None else dict(self.prices)
        return None, {**state, "prices": prices, "_loop": None}

    def __setstate__(self, state: tuple[None, dict[str, Any]]) -> None:
        for name, value in state[1].items():
            object.__setattr__(self, name, value)
        if self.store is not None:
            self._account = self.store.account(self.name, self._most)

    def _enter_loop(self) -> None:
        loop = current_token()
        if self._loop != loop:
            if self._loop is not None and self._account.in_use:
                msg = (
                    f"budget {self.name!r} is in use in another event loop: a budget serves one"
                    " event loop after another, not two at once: threads share one SyncSampler"
                )
                raise RuntimeError(msg)
            self._loop = loop


_Part: TypeAlias = "tuple[Reservation, Sequence[int]]"
"""A reservation in one store, and the places of the budgets that it is for."""


def _by_store(budgets: Sequence[Budget]) -> Sequence[tuple[Store | None, Sequence[int]]]:
    """Tell which budgets can be reserved together, in the order in which everybody does so.

    Who holds something in the last one waits for nobody, so no two wait for each other. In memory
    comes first: what others need too is held only by what can go.
    """
    if all(budget.store is None for budget in budgets):
        return ((None, range(len(budgets))),)
    found: dict[Store | None, list[int]] = {}
    for place, budget in enumerate(budgets):
        shared = None if isinstance(budget.store, MemoryStore) else budget.store
        found.setdefault(shared, []).append(place)
    return sorted(found.items(), key=lambda part: "" if part[0] is None else repr(part[0]))


class _Reserved(NamedTuple):
    """The reservations of one request."""

    parts: list[_Part]
    budgets: Sequence[Budget]
    meta: RequestMeta
    model: str | None
    sent: int
    rates: Sequence[Mapping[str | None, Rate]]
    bounds: Sequence[int | None]

    def release(self, end: RequestEnd) -> Usage | None:
        if not self.parts:
            return None
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
        for reservation, places in reversed(self.parts):
            reservation.settle([charged[place] for place in places], usage.unknown)
        self.parts.clear()
        most = max(charged, key=lambda amount: amount.output_tokens)
        return replace(usage, input_tokens=most.input_tokens, output_tokens=most.output_tokens)


class Budgets:
    """Several budgets as one limit: a request has room in all of them, or takes nothing of any.

    So requests that need the same budgets never wait for each other, in whatever order these are
    given; and a budget that several of them are within is charged once.

    Args:
        *budgets: the budgets, at least one.
    """

    def __init__(self, *budgets: Budget) -> None:
        together = [outer for budget in budgets for outer in budget.chain]
        self.budgets = tuple(dict.fromkeys(together))

    async def acquire(self, request: Request, backend: Backend) -> Permit:
        """Reserve what a request may cost in all of them; see `Budget.acquire`."""
        return await Budget.reserve(self.budgets, request, backend)


def within_budgets(
    backend: Backend, budgets: Sequence[Budget], kind: Callable[..., Budgets] = Budgets
) -> Backend:
    """Return a backend that keeps to budgets, as one limit.

    Those that the backend keeps to by itself are left out: they would be charged twice, and at the
    last request wait for themselves.

    Args:
        backend: the backend.
        budgets: the budgets.
        kind: makes the limit of the budgets.

    Returns:
        A backend around it, or the backend itself if no budget is left.
    """
    outside = kind(*budgets)
    inside: set[Budget] = set()
    around = [backend]
    while around:
        inner: Any = around.pop()
        # A backend that keeps to budgets in a way of its own says so likewise.
        for limit in getattr(inner, "limits", ()):
            if isinstance(limit, Budget):
                inside.update(limit.chain)
            elif isinstance(limit, Budgets):
                inside.update(limit.budgets)
        if isinstance(inner, BackendWrapper):
            around.append(inner.inner)
        elif isinstance(inner, FallbackBackend):
            around += inner.backends
    outside.budgets = tuple(budget for budget in outside.budgets if budget not in inside)
    return LimitedBackend(backend, outside) if outside.budgets else backend


def room_to_restart(backend: Backend, request: Request) -> bool:
    """Tell whether a backend's budgets have room for a request and for another in its place."""
    around: Any = backend
    while isinstance(around, BackendWrapper):
        for limit in around.limits if isinstance(around, LimitedBackend) else ():
            budgets: tuple[Budget, ...] = ()
            if isinstance(limit, Budget):
                budgets = limit.chain
            elif isinstance(limit, Budgets):
                budgets = limit.budgets
            for budget in budgets:
                if not budget._has_room_twice(request, around):  # pyright: ignore[reportPrivateUsage]
                    return False
        around = around.inner
    return True


def _per_token(price: float) -> int:
    return round(Fraction(price) * MONEY / PER)  # Exact, and without an overflow.
