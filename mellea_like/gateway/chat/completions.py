"""``/v1/chat/completions``: from an admitted request to its answer."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from mellea_like.gateway.chat.caller_checks import CallersChecks
from mellea_like.gateway.chat.calls import run_plan, usage_of
from mellea_like.gateway.chat.failures import refusal_of
from mellea_like.gateway.chat.replies import Reply, answerable, failure
from mellea_like.gateway.chat.request import model_of, read_chat
from mellea_like.gateway.chat.streaming import EventStream
from mellea_like.gateway.http.guard import admitted
from mellea_like.gateway.http.refusal import Refusal
from mellea_like.web import while_here

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mellea_like.core.slice import Slice
    from mellea_like.gateway.chat.caller_checks import Workers
    from mellea_like.gateway.chat.calls import Draw
    from mellea_like.gateway.chat.models import Plan, ServedModel
    from mellea_like.gateway.chat.request import ChatRequest
    from mellea_like.gateway.http.guard import Receive, Scope, Send
    from mellea_like.gateway.http.metrics import Metrics

__all__ = ["PASSED", "ChatCompletions", "unknown_model"]

PASSED = "x-mellea-like-passed"
"""The header that says whether all replies of an answer have passed."""


class ChatCompletions:
    """The route's application.

    Args:
        models: all models, by name; may be filled later.
        metrics: where calls are counted.
        keep_alive: seconds between two comments of a stream in which nothing has passed.
        workers: what runs the checks that come with requests.
    """

    def __init__(
        self,
        models: Mapping[str, ServedModel],
        metrics: Metrics,
        keep_alive: float,
        workers: Workers,
    ) -> None:
        self._models = models
        self._workers = workers
        self._metrics = metrics
        self._keep_alive = keep_alive

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, as ASGI wants it.

        Args:
            scope: what is known of it.
            receive: tells when the caller leaves.
            send: takes the answer.

        Raises:
            Refusal: there is no reply, and no answer has begun.
            ClientDisconnected: the caller left before.
        """
        caller = admitted(scope)
        name = model_of(caller.body)
        model = self._models.get(name)
        if model is None:
            raise unknown_model()
        request = read_chat(caller.body, model.config.overrides.pass_on)
        callers = CallersChecks(self._workers, caller.key)

        async def answer() -> None:
            plan = await model.plan(
                request, callers, max_tokens=caller.limits.max_tokens, budget=caller.budget
            )
            if request.stream:
                await self._stream(name, request, plan, send)
            else:
                await self._whole(name, plan, send)

        await while_here(receive, answer)

    async def _whole(self, name: str, plan: Plan, send: Send) -> None:
        draws = self._chosen(plan, await self._run(name, plan))
        body = json.dumps(Reply(name).completion(draws, best=plan.best), ensure_ascii=True).encode(
            "ascii"
        )
        fields = {
            "content-type": "application/json",
            "content-length": str(len(body)),
            **_passed(draws),
        }
        headers = [(k.encode("ascii"), v.encode("ascii")) for k, v in fields.items()]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _stream(self, name: str, request: ChatRequest, plan: Plan, send: Send) -> None:
        events, reply = EventStream(send), Reply(name)

        async def tell(index: int, done: Slice) -> None:
            await events.send(reply.progress(index, done))

        try:
            async with events.kept_alive(self._keep_alive):
                told = tell if request.wishes.progress else None
                draws = await self._run(name, plan, told)
            draws = self._chosen(plan, draws)
        except Refusal as refusal:
            if not events.begun:
                raise
            await events.fail(refusal)
            return
        events.add_headers(_passed(draws))
        chunks = reply.chunks(draws, best=plan.best, include_usage=request.include_usage)
        for chunk in chunks:
            await events.send(chunk)
        await events.end()

    async def _run(self, name: str, plan: Plan, tell: Any = None) -> Sequence[Draw]:
        try:
            draws = await run_plan(plan, tell)
        except BaseException:
            self._count(name, "cancelled")
            raise
        for draw in draws:
            self._count(name, draw.outcome, draw)
        return draws

    def _count(self, name: str, outcome: str, *draws: Draw) -> None:
        usage = usage_of(draws)
        self._metrics.sampled(
            name,
            iterations=sum(len(d.result.slices) for d in draws if d.result is not None),
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            outcome=outcome,
        )

    def _chosen(self, plan: Plan, draws: Sequence[Draw]) -> Sequence[Draw]:
        """Return what is answered with; the draws without a reply stand for what they cost."""
        if not any(answerable(draw, best=plan.best) for draw in draws):
            raise refusal_of(draws, failure(draws), retried=plan.retried)
        return draws


def unknown_model() -> Refusal:
    """Make the answer to a request for a model that there is not.

    Returns:
        The refusal.
    """
    return Refusal(
        404,
        "there is no such model: see /v1/models",
        code="model_not_found",
        param="model",
    )


def _passed(draws: Sequence[Draw]) -> dict[str, str]:
    return {PASSED: "true" if all(draw.passed for draw in draws) else "false"}
