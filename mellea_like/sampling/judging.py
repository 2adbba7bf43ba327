"""Asking a judge about a candidate, on behalf of an iteration."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from anyio.lowlevel import checkpoint_if_cancelled

from mellea_like.core.backend import Request, checked_reply
from mellea_like.core.generation import INCOMPLETE, Meter, why_incomplete
from mellea_like.errors import LimitExceeded
from mellea_like.limits.retry import gate_before, send_with_retries
from mellea_like.requirements.judge import judge_messages, read_verdict
from mellea_like.sampling.turns import derive_seed

if TYPE_CHECKING:
    from mellea_like.core.generation import Generation
    from mellea_like.core.requirement import Requirement
    from mellea_like.core.validation import Candidate, ValidationResult
    from mellea_like.sampling.call import Call
    from mellea_like.sampling.iteration import Iteration

__all__ = ["ask_judge"]


async def ask_judge(
    iteration: Iteration, requirement: Requirement, candidate: Candidate
) -> ValidationResult:
    """Ask a judge whether a candidate meets a requirement.

    Args:
        iteration: whose candidate it is; it notes what the question costs.
        requirement: has no validator.
        candidate: what is judged.

    Returns:
        The verdict.

    Raises:
        BackendError: the judge did not answer.
        LimitExceeded: a budget is spent.
        ValueError: its reply is no verdict.
    """
    # A backend that ignores its cancellation may reply after a sibling has won.
    await checkpoint_if_cancelled()
    call = iteration.call
    options, seed = call.judge_options, call.plan.options.seed
    if seed is not None:
        purpose = f"judge {requirement.name}"
        options = options.with_seed(derive_seed(seed, iteration.turn.iteration, purpose))
    meter = Meter()
    meta = replace(iteration.meta, purpose="judge")
    # What was sent, also by an action that renders otherwise the next time.
    sent = iteration.messages if call.plan.validation_context is None else ()
    messages = judge_messages(requirement, candidate, sent)
    request = Request(messages, options, None, meta, meter)
    if iteration.judged is None:
        iteration.judged = []
    position = len(iteration.judged)
    iteration.judged.append((meter, None))
    reply = await _ask(requirement, request, call)
    iteration.judged[position] = (meter, reply)
    if reply.finish_reason in INCOMPLETE and (why := why_incomplete(reply)):
        msg = f"the judge gave no verdict: {why}"
        raise ValueError(msg)
    return read_verdict(reply.text)


async def _ask(requirement: Requirement, request: Request, call: Call) -> Generation:
    judge = call.plan.judge if requirement.judge is None else requirement.judge
    backend = call.surrounded_judge(judge)
    try:
        reply = await send_with_retries(
            backend.generate,
            request,
            call.strategy.settings.retry,
            gate_before(judge),
            call.race.out_of_budget,
        )
    except LimitExceeded as exc:
        if exc.result is None:
            call.race.out_of_budget(exc)
        raise
    return checked_reply(judge, reply)
