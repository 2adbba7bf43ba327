"""Escalation: a small model gets some attempts, and if they fail, a bigger one gets the next."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypedDict, get_args

from mellea_like.core.argument_checks import check_one_of, check_type, real_number, whole_number
from mellea_like.core.backend import Options
from mellea_like.core.prices import PER, checked_prices, known_price, price_for
from mellea_like.core.slice import Outcome
from mellea_like.plans.stages import StageCosts
from mellea_like.requirements.merging import as_backend, check_requirements
from mellea_like.sampling.base import BaseSamplingStrategy
from mellea_like.sampling.best_failure import best_failure, deepest_failure
from mellea_like.sampling.exclusions import check_together
from mellea_like.sampling.prepare import check_budget
from mellea_like.sampling.strategies import WithNote, followed_up
from mellea_like.schedules.learned import MeanCosts, PassRates, key_of

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence
    from typing import Unpack

    from mellea_like.core.backend import Backend
    from mellea_like.core.conversation import Action, Context
    from mellea_like.core.prices import Price
    from mellea_like.core.requirement import Requirement
    from mellea_like.core.slice import Slice
    from mellea_like.core.spec import Spec
    from mellea_like.hooks.plugins import Pluggable
    from mellea_like.limits.budget import Budget
    from mellea_like.limits.retry import Retry
    from mellea_like.schedules.base import BaseSchedule, CallFacts
    from mellea_like.schedules.learned import RateKey
    from mellea_like.telemetry import Telemetry

__all__ = ["Carry", "Escalate", "ExpectedCost", "Stage", "StageCosts"]

Carry = Literal["nothing", "best", "chat"]
"""How much a stage's model sees of earlier failures; see `Stage`."""


@dataclass(frozen=True, slots=True)
class Stage:
    """The attempts of one model in an escalation.

    Args:
        backend: the model that generates.
        turns: the number of attempts that each lane has with this model, at least 1.
        carry: how much the model sees of earlier failures, in this stage or those before. With
            ``"nothing"``, it sees only the request. With ``"best"``, it sees, below the request,
            the failure that came nearest to passing and its problems. With ``"chat"``, it sees the
            conversation of the last failure, and a message with the problems.
        options: options for generating replies. A call's options take precedence over them, and
            they take precedence over the strategy's.
        requirements: further conditions that its draws must meet.
        judge: the model that judges those requirements that have no validator; by default the
            strategy's judge, or else the stage's own backend.
        budget: a limit on the cost of its requests, including its judge's, within the strategy's
            and the call's budgets. It covers all calls of all strategies that share it. When it is
            spent, the next stage takes over, and the refused attempt is recorded as a cancelled
            draw whose reason names the budget.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: an argument is out of range.
    """

    backend: Backend
    turns: int = 1
    carry: Carry = "nothing"
    options: Options | Mapping[str, Any] | None = None
    requirements: Sequence[Requirement | str] = ()
    judge: Backend | None = None
    budget: Budget | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        as_backend(self.backend, "backend")
        check_budget(self.budget)
        if self.judge is not None:
            as_backend(self.judge, "judge")
        whole_number("a stage's turns", self.turns)
        check_one_of("a stage's carry", self.carry, get_args(Carry))
        Options.of(self.options)
        checked = check_requirements(self.requirements, "a stage's requirements")
        object.__setattr__(self, "requirements", checked)

    def repair(self, inputs: Spec, history: Sequence[Slice]) -> tuple[Action[Any], Context]:
        """Choose the stage's next action and conversation after some failures. Pure.

        Args:
            inputs: the inputs of the stage.
            history: the records of this lane's failed draws, oldest first, at least one.

        Returns:
            The action to ask, and the conversation to ask it in.
        """
        if self.carry == "nothing":
            return inputs.action, inputs.context
        if self.carry == "best":
            best = history[best_failure(history)]
            said = "" if best.generation is None else best.context_after.messages[-1].text
            wrong = "\n".join(f"- {problem}" for problem in best.problems)
            note = f"An earlier attempt:\n{said}\n\nIt was rejected. Put this right:\n{wrong}"
            return WithNote(inputs.action, note), inputs.context
        told = [r if isinstance(r, str) else r.description for r in self.requirements]
        return followed_up(inputs.action, history[-1], told)


@dataclass(frozen=True, slots=True)
class ExpectedCost:
    """Moves to the next stage if a pass is expected to cost less there.

    After each failed draw of a call, its stage is compared with the next one. If a draw of a stage
    costs c, and the stage's pass rate in this call is believed to be Beta(a, b), a pass is expected
    to cost

        c (a + b) / a

    which is the cost of a draw divided by the probability that it passes. If that is lower in the
    next stage, no further attempt of this stage starts in the call. So each stage has at least one
    attempt, and at most its ``turns``.

    - a and b are learned by `PassRates`, for each stage and its model, from the first attempt that
      each lane makes there. Later attempts are made only in hard calls, so they would make the
      rate too low. (If a stage carries failures on, all attempts count, because later ones ask
      something else.) Because calls differ, all this experience counts as at most ``strength``
      draws. Each failed draw of the stage in this call adds 1 to b.
    - c is the average cost of the tokens of the same attempts. It includes the judges' tokens, at
      the price of the judge's model, or of the stage's model if the table has no price for the
      judge's. Until a stage's tokens are known, those of another stage are used, or else one prompt
      token and one reply token.

    Draws that ended in an error, such as a time limit, are left out of both. So a model that often
    has errors seems cheaper than it is.

    The rule works only with one lane: if draws raced, it would see only the quick ones.

    It learns across calls, so share one object among the calls of a strategy.

    Args:
        prices: the price of each stage's model, by the model's name; see `price_for`.
        rates: the pass rates known so far. By default, each rule learns its own.
        key: the key under which the pass rates are kept, in addition to the stage and its model:
            anything hashable, or a function that takes `CallFacts` and returns such a key. By
            default, it is the names of the first stage's requirements.
        strength: how many draws the experience from earlier calls may count as, over 0. The lower
            it is, the sooner a call's own failures matter. The default did best in a replay of
            recorded draws.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: an argument is out of range.
    """

    prices: Mapping[str, Price]
    rates: PassRates = field(default_factory=PassRates)
    key: RateKey = None
    strength: float = 1.0
    _costs: MeanCosts = field(default_factory=MeanCosts, init=False, repr=False)

    def __post_init__(self) -> None:
        if not checked_prices(self.prices):
            msg = "ExpectedCost needs prices={model: Price(input, output)} for each stage's model"
            raise ValueError(msg)
        real_number("ExpectedCost: strength", self.strength, over=0)
        check_type("ExpectedCost: rates", self.rates, PassRates, "a PassRates")

    def begin(self, facts: CallFacts, models: Sequence[str | None]) -> StageCosts:
        """Return the state for a new call.

        Args:
            facts: the known facts of the call.
            models: the model of each stage.

        Returns:
            The state of the call.

        Raises:
            ValueError: one of the models has no price.
        """
        kind = key_of(self.key, facts)
        keys = [(kind, stage, model) for stage, model in enumerate(models)]
        known = [self._costs.mean(key) for key in keys]
        sent, received, _ = next((mean for mean in known if mean is not None), (1.0, 1.0, 0.0))
        costs: list[float] = []
        for model, mean in zip(models, known, strict=True):
            price = known_price(model, self.prices)
            usual = sent * price.input + received * price.output
            costs.append(usual if mean is None else mean[-1] * PER)
        beliefs = [self.rates.parameters(key).at_most(self.strength) for key in keys]
        return StageCosts(self.learn, keys, beliefs, costs)

    def learn(self, key: tuple[Hashable, int, str | None], slice_: Slice) -> None:
        """Learn from a draw.

        Args:
            key: the key under which pass rates are kept: a kind of call, a stage and its model.
            slice_: the draw's record.
        """
        self.rates.learn(key, slice_)
        judged = slice_.outcome in {Outcome.PASSED, Outcome.FAILED}
        if judged and not slice_.usage.unknown and not slice_.usage.cache_hits:
            own = price_for(key[-1], self.prices)
            priced = (
                (price_for(name, self.prices) or own, usage)
                for name, usage in slice_.usage_by_model
            )
            spent = sum(price.cost(usage) for price, usage in priced if price is not None)
            self._costs.observe(key, slice_.usage, spent)


class _Arguments(TypedDict, total=False):
    concurrency_budget: int
    requirements: Sequence[Requirement | str]
    judge: Backend | None
    plugins: Iterable[Pluggable]
    selection: Literal["first", "ordered"]
    options: Options | Mapping[str, Any] | None
    judge_options: Options | Mapping[str, Any] | None
    iteration_timeout: float | None
    timeout: float | None
    validate_all: bool | None
    max_iterations: int
    cancel_grace: float
    retry: Retry | None
    schedule: BaseSchedule | None
    budget: Budget | None
    accept_incomplete: bool
    telemetry: Telemetry | None


class Escalate(BaseSamplingStrategy):
    """Draws from a small model first, and from bigger ones if its draws fail.

    Each lane goes through the stages one after another. It moves to the next stage when its
    attempts in the current one are spent, or when the backend has a permanent error (for outages,
    use a `FallbackBackend`). A stage ends for all lanes when its budget is spent, or when the rule
    ``after`` ends it. The record of each draw names its ``stage`` and ``model``.

    Args:
        stages: the stages in order, at least one; each has its own backend.
        after: a rule by which the next stage may take over before a stage's attempts are spent.
            With `ExpectedCost`, it takes over if a pass is expected to cost less there. None for
            no rule.
        **arguments: those of `BaseSamplingStrategy`, except ``backend``, ``loop_budget`` (which is
            the sum of the stages' ``turns``) and ``give_up``. If any ``carry`` isn't
            ``"nothing"``, ``validate_all`` is True by default.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: an argument is out of range, or can't be combined with an escalation: a
            selection that is an object, because it would choose among draws of different models;
            ``give_up``; ``loop_budget``; or ``after`` with ``selection="ordered"`` or with several
            lanes.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        *,
        after: ExpectedCost | None = None,
        **arguments: Unpack[_Arguments],
    ) -> None:
        self._stages = tuple(stages) if isinstance(stages, Iterable) else ()
        if not self._stages or not all(isinstance(stage, Stage) for stage in self._stages):
            msg = f"Escalate needs a list of stages, as in [Stage(small, turns=3)], not {stages!r}"
            raise TypeError(msg)
        for name in ("backend", "loop_budget"):
            if name in arguments:
                check_together({"stages": "Escalate", name: name})
        otherwise = "None for the stages' turns, as in Stage(small, turns=3)"
        allowed = f"a rule, such as ExpectedCost(prices), or {otherwise}"
        check_type("after", after, ExpectedCost | None, allowed)
        self._after = after
        if arguments.get("validate_all") is None:
            arguments["validate_all"] = any(stage.carry != "nothing" for stage in self._stages)
        turns = sum(stage.turns for stage in self._stages)
        super().__init__(self._stages[0].backend, loop_budget=turns, **arguments)

    def repair(self, history: Sequence[Slice]) -> tuple[Action[Any], Context]:
        """Repeat the first draw's action and conversation. Calls use `Stage.repair` instead."""
        return history[0].action, history[0].context

    def select_from_failure(self, slices: Sequence[Slice]) -> int:
        """Choose the draw nearest to passing; in a tie, the highest ``depth`` (biggest model)."""
        return deepest_failure(slices)
