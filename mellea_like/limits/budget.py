"""Budgets: how much a call, a batch or a tenant may spend."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import anyio
from anyio.lowlevel import EventLoopToken, current_token

from mellea_like.core.estimate import estimate_input_tokens
from mellea_like.errors import LimitExceeded
from mellea_like.limits.allowance import Allowance, amounts, in_money
from mellea_like.limits.budget_stats import BudgetLimits, BudgetStatistics
from mellea_like.limits.charging import charged_tokens
from mellea_like.limits.ledger import Claim, Standing
from mellea_like.runtime.timeline import Timeline

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mellea_like.core.backend import Backend, Request
    from mellea_like.core.options import Options
    from mellea_like.core.prices import Price
    from mellea_like.limits.allowance import Rate
    from mellea_like.limits.base import Permit, RequestEnd
    from mellea_like.limits.ledger import Account, Amounts

__all__ = ["Budget"]

TICK = 1e-9
"""Seconds that count as none: what may be left when a timer has run for all the time left."""


class Budget(Allowance):
    """How much may be spent: the sum of all requests that it is used for, whoever makes them.

    Before a request, what it may cost is reserved: one request, the prompt's tokens as
    `estimate_input_tokens` guesses them, as many tokens of output as ``options.max_tokens`` allows,
    and the price of both. When it has ended, what it did cost is charged instead. So requests made
    together can't spend more than there is.

    - What does not fit beside what is spent is denied with `LimitExceeded`.
    - What does not fit only beside what is reserved waits, in the order of arrival, until requests
      under way have ended. That goes for the number of requests, too: one that waits for a limiter
      has a reservation, and is never sent if its call ends before.
    - A backend that makes requests of its own for each request needs another budget for them: in
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
            the budget round this one. A request is priced by the model that it asks for.
        assume_output_tokens: the longest reply to reserve for where the options have no
            ``max_tokens``; by default that of the budget round this one.
        within: the budget round this one: each request needs room in both. A budget within another
            one may have no limit of its own, and counts what is spent through it.
        name: the budget's name in errors.

    Raises:
        TypeError: a limit is no number, ``prices`` is no price table, or ``within`` no budget.
        ValueError: a limit is not above 0 and finite, there is none, or money is limited without
            prices.
    """

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
            msg = f"within takes the Budget round this one, not {type(within).__name__}"
            raise TypeError(msg)
        limits = BudgetLimits(requests, input_tokens, output_tokens, money, seconds)
        if within is not None:
            prices = within._prices if prices is None else prices
            assumed = within._assumed if assume_output_tokens is None else assume_output_tokens
        elif limits == BudgetLimits():
            msg = (
                "a budget needs a limit: requests, input_tokens, output_tokens, money or seconds;"
                " only one within another may go without"
            )
            raise ValueError(msg)
        else:
            assumed = assume_output_tokens
        super().__init__(limits, prices, assumed, name)
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
    def within(self) -> Budget | None:
        """The budget round this one, or None."""
        return self._chain[1] if len(self._chain) > 1 else None

    @property
    def chain(self) -> tuple[Budget, ...]:
        """This budget, the one round it, and so on."""
        return self._chain

    @property
    def remaining(self) -> BudgetLimits:
        """What is neither spent nor reserved, here and in the budgets round this one."""
        left = BudgetLimits()
        for budget in self._chain:
            left = left.least(budget._left(budget._own_seconds_left()))
        return left

    def seconds_left(self) -> float | None:
        """Return how long requests are still admitted.

        Returns:
            The seconds left, here or in a budget round this one, whichever are fewer; all of them
            before the first request; None where no time limit is set.
        """
        left = [left for b in self._chain if (left := b._own_seconds_left()) is not None]
        return min(left, default=None)

    def statistics(self) -> BudgetStatistics:
        """Return what is spent and reserved.

        Returns:
            The numbers of this moment.
        """
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
        """Make a budget within this one, with its prices and assumptions.

        Args:
            requests: the most requests.
            input_tokens: the most tokens of prompts.
            output_tokens: the most tokens of replies.
            money: the most money.
            seconds: how long requests are admitted, from the first one that was.
            name: the new budget's name in errors.

        Returns:
            The new budget.
        """
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
        """Reserve what a request may cost, here and in all budgets round this one.

        Args:
            request: the request.
            backend: what will answer it; requests for no special model are priced as its.

        Returns:
            The reservation; to be released.

        Raises:
            LimitExceeded: there is no room, and requests under way can't make any.
            ValueError: what it may cost can't be told, as `check` says.
            RuntimeError: the budget is in use in another event loop.
        """
        return await Budget.reserve(self._chain, request, backend)

    @staticmethod
    async def reserve(budgets: Sequence[Budget], request: Request, backend: Backend) -> Permit:
        """Reserve what a request may cost in all of several budgets, or nothing in any.

        Args:
            budgets: each budget once, and with each of them those round it.
            request: the request.
            backend: what will answer it.

        Returns:
            The reservation; to be released.

        Raises:
            LimitExceeded: there is no room, and requests under way can't make any.
            ValueError: what it may cost can't be told, as `check` says.
            RuntimeError: a budget is in use in another event loop.
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
        if claim.standing is Standing.IN_LINE:
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
            while claim.standing is Standing.IN_LINE:
                woken = anyio.Event()
                claim.wake = woken.set
                left = [left for b in budgets if (left := b._own_seconds_left()) is not None]
                with anyio.move_on_after(min(left, default=None)):
                    await woken.wait()
                if claim.standing is Standing.IN_LINE:
                    for budget in budgets:
                        budget._require_time()
        except BaseException:
            claim.leave()
            raise
        finally:
            for root in roots:
                root._claims.discard(claim)

    def _time_changed(self) -> None:
        for claim in self._root._claims:
            claim.wake()

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
