"""``/v1/chat/completions``: from an admitted request to its answer."""

from __future__ import annotations

import json
import secrets
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio

from mellea_like.core.generation import Usage
from mellea_like.errors import (
    BackendError,
    CircuitOpen,
    InvalidRequest,
    LimitExceeded,
    RateLimited,
    RequirementError,
    SamplingTimeout,
)
from mellea_like.gateway.chat.caller_checks import TooCostly
from mellea_like.gateway.chat.request import model_of, read_chat
from mellea_like.gateway.chat.served_model import CALL
from mellea_like.gateway.current import CURRENT
from mellea_like.gateway.http.keys import admitted
from mellea_like.gateway.redaction import disclosure_of
from mellea_like.gateway.refusal import NO_RETRY, Refusal, budget_spent, retry_after, too_many
from mellea_like.web import while_here

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence

    from mellea_like.core.slice import Slice
    from mellea_like.gateway.chat.caller_checks import Workers
    from mellea_like.gateway.chat.served_model import (
        Choice,
        PlannedRequest,
        ReplyOutcome,
        ServedModel,
    )
    from mellea_like.gateway.http.guard import Receive, Scope, Send
    from mellea_like.gateway.http.metrics import Metrics

__all__ = ["Answer", "ChatCompletions", "EventStream", "event_of", "refusal_of", "unknown_model"]

PASSED = "x-mellea-like-passed"
"""The header that says whether all replies of an answer have passed."""

FINISHED = frozenset({"stop", "length", "content_filter"})
REFUSED = "refusal"

MOST_PROBLEMS = 20
"""Reasons that are told, at most."""

CALLERS_FAULT = frozenset({400, 413, 422})
"""What an upstream answers to a request that is at fault itself: a prompt that is too long."""


class ChatCompletions:
    """The route's application. The models may be filled in later."""

    def __init__(
        self,
        models: Mapping[str, ServedModel],
        metrics: Metrics,
        keep_alive: float,
        workers: Workers,
    ) -> None:
        self._models = models
        self._metrics = metrics
        self._keep_alive = keep_alive
        self._workers = workers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, as ASGI wants it."""
        caller = admitted(scope)
        name = model_of(caller.body)
        model = self._models.get(name)
        if model is None:
            raise unknown_model()
        request = read_chat(caller.body, model.config.overrides.pass_on)

        async def answer() -> None:
            plan = await model.plan(request, caller, self._workers)
            if request.stream:
                usage = request.stream_options.include_usage
                await self._stream(name, plan, send, include_usage=usage)
            else:
                await self._whole(name, plan, send)

        await while_here(receive, answer)

    async def _whole(self, name: str, plan: PlannedRequest, send: Send) -> None:
        answer = Answer(name, plan, await self._sample(name, plan))
        body = json.dumps(answer.completion()).encode("ascii")
        fields = {"content-type": "application/json", "content-length": str(len(body))}
        await _start(send, {**fields, **answer.headers})
        await send({"type": "http.response.body", "body": body})

    async def _stream(
        self, name: str, plan: PlannedRequest, send: Send, *, include_usage: bool
    ) -> None:
        events = EventStream(send)
        async with events.kept_alive(self._keep_alive):
            outcomes = await self._sample(name, plan)
        try:
            answer = Answer(name, plan, outcomes)
        except Refusal as refusal:
            if not events.begun:
                raise
            await events.write(b"data: " + refusal.body() + b"\n\n", more=False)
            return
        events.headers |= answer.headers
        for chunk in answer.chunks(include_usage=include_usage):
            await events.write(event_of(chunk))
        await events.write(b"data: [DONE]\n\n", more=False)

    async def _sample(self, name: str, plan: PlannedRequest) -> Sequence[ReplyOutcome]:
        try:
            outcomes = await plan.sample()
        except BaseException:
            self._metrics.sampled(name, "cancelled")
            raise
        for outcome in outcomes:
            result = outcome.result
            self._metrics.sampled(name, outcome.status, 0 if result is None else len(result.slices))
            current = CURRENT.get()
            if current is not None and result is not None:
                current.sampling_ids.append(result.sampling_id)
        return outcomes


def unknown_model() -> Refusal:
    """Make the answer to a request for a model that doesn't exist."""
    message = "there is no such model: see /v1/models"
    return Refusal(404, message, code="model_not_found", param="model")


async def _start(send: Send, fields: Mapping[str, str]) -> None:
    headers = [(name.encode("ascii"), value.encode("ascii")) for name, value in fields.items()]
    await send({"type": "http.response.start", "status": 200, "headers": headers})


# --- streams -------------------------------------------------------------------------------------


def event_of(data: Mapping[str, Any]) -> bytes:
    """Write an event."""
    # JSON in ASCII has no line break of any kind: nothing in it ends an event or begins one.
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return b"data: " + text.encode("ascii") + b"\n\n"


class EventStream:
    """The events of one answer, which begins with the first of them: no status is sent before."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.begun = False
        self.headers = {
            "content-type": "text/event-stream; charset=utf-8",
            "cache-control": "no-store",
            # Asks proxies such as nginx not to hold anything back.
            "x-accel-buffering": "no",
        }

    @asynccontextmanager
    async def kept_alive(self, seconds: float) -> AsyncGenerator[None]:
        """Send a comment now and then while the block runs."""
        lock = anyio.Lock()

        async def comment() -> None:
            while True:
                await anyio.sleep(seconds)
                async with lock:
                    await self.write(b": keep-alive\n\n")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(comment, name="keeps a stream alive")
            yield
            async with lock:  # Not in the middle of a comment.
                tasks.cancel_scope.cancel("the reply is there")

    async def write(self, data: bytes, *, more: bool = True) -> None:
        """Send an event, or a comment; the last one ends the answer."""
        if not self.begun:
            self.begun = True
            await _start(self._send, self.headers)
        await self._send({"type": "http.response.body", "body": data, "more_body": more})


# --- what OpenAI calls a completion --------------------------------------------------------------


class Answer:
    """The replies to one request, as OpenAI writes them."""

    # Raises a Refusal where there is none to show.
    def __init__(self, model: str, plan: PlannedRequest, outcomes: Sequence[ReplyOutcome]) -> None:
        most = plan.n if plan.collects else 1
        self._shown = [
            choice for outcome in outcomes for choice in outcome.choices(most, failures=plan.best)
        ]
        if not self._shown:
            raise refusal_of(outcomes, retried=plan.retried)
        self._summary = _summary(outcomes)
        self._usage = _usage(outcomes)
        self._frame = {
            "id": f"chatcmpl-{secrets.token_hex(12)}",
            "created": int(time.time()),
            "model": model,
        }
        self.headers = {PASSED: "true" if self._summary["passed"] else "false"}

    def completion(self) -> dict[str, Any]:
        """Write a completion."""
        choices = [
            {
                "index": index,
                "message": {"role": "assistant", **_message(choice.reply)},
                "logprobs": None,
                "finish_reason": _finish_reason(choice.reply),
                "mellea_like": _told(choice),
            }
            for index, choice in enumerate(self._shown)
        ]
        told = {"usage": self._usage, "mellea_like": self._summary}
        return {"object": "chat.completion", **self._frame, "choices": choices, **told}

    def chunks(self, *, include_usage: bool) -> Iterator[dict[str, Any]]:
        """Write the chunks of a streamed completion."""
        for index, choice in enumerate(self._shown):
            yield self._chunk(index, {"role": "assistant", "content": ""})
            delta = {kind: text for kind, text in _message(choice.reply).items() if text}
            if delta:
                yield self._chunk(index, delta)
            last = self._chunk(index, {}, _finish_reason(choice.reply))
            last["choices"][0]["mellea_like"] = _told(choice)
            if index == len(self._shown) - 1:
                last["mellea_like"] = self._summary
            yield last
        if include_usage:
            yield {**self._chunk(0, {}), "choices": [], "usage": self._usage}

    def _chunk(
        self, index: int, delta: dict[str, Any], finish_reason: str | None = None
    ) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return {"object": "chat.completion.chunk", **self._frame, "choices": [choice]}


def _summary(outcomes: Sequence[ReplyOutcome]) -> dict[str, Any]:
    results = [outcome.result for outcome in outcomes if outcome.result is not None]
    usage = _spent(outcomes)
    return {
        "passed": all(outcome.passed for outcome in outcomes),
        "sampling_id": results[0].sampling_id if results else None,
        "iterations": sum(len(result.slices) for result in results),
        "requests": usage.requests,
        "requests_of_unknown_cost": usage.unknown,
    }


def _spent(outcomes: Sequence[ReplyOutcome]) -> Usage:
    # By those without a reply too.
    return sum(
        (outcome.result.usage for outcome in outcomes if outcome.result is not None), Usage()
    )


def _usage(outcomes: Sequence[ReplyOutcome]) -> dict[str, Any]:
    usage = _spent(outcomes)
    written: dict[str, Any] = {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.total_tokens,
    }
    if cached := usage.cached_input_tokens:
        written["prompt_tokens_details"] = {"cached_tokens": cached}
    if thought := usage.reasoning_tokens:
        written["completion_tokens_details"] = {"reasoning_tokens": thought}
    return written


def _told(choice: Choice) -> dict[str, Any]:
    result, reply = choice
    shown: dict[str, Any] = {
        "passed": reply.passed,
        "sampling_id": result.sampling_id,
        "iterations": len(result.slices),
        "iteration": reply.iteration,
        "stop_reason": result.stop_reason.value,
    }
    return shown if reply.passed else {**shown, "problems": _problems(reply)}


def _message(reply: Slice) -> dict[str, str | None]:
    text, refused = reply.text, _reason(reply) == REFUSED
    return {"content": None, "refusal": text} if refused else {"content": text, "refusal": None}


def _finish_reason(reply: Slice) -> str:
    reason = _reason(reply)
    return reason if reason in FINISHED else "stop"


def _reason(reply: Slice) -> str:
    assert reply.generation is not None  # noqa: S101 (what was judged was generated)
    return reply.generation.finish_reason or "stop"


def _problems(reply: Slice) -> list[str]:
    return list(reply.problems[:MOST_PROBLEMS])


# --- why there is no reply -----------------------------------------------------------------------


def refusal_of(outcomes: Sequence[ReplyOutcome], *, retried: bool) -> Refusal:
    """Say why there is no reply: 422 where replies were judged, else what the first error says."""
    judged = [
        outcome.result
        for outcome in outcomes
        if outcome.error is None and outcome.result is not None
    ]
    if not judged:
        error = next(outcome.error for outcome in outcomes if outcome.error is not None)
        return _of_error(error, retried=retried)
    result = judged[0]
    failure = {
        **_summary(outcomes),
        "problems": _problems(result.best),
        "best": {**_message(result.best), "finish_reason": _finish_reason(result.best)},
        "stop_reason": result.stop_reason.value,
        "stop_detail": result.stop_detail,
        "usage": _usage(outcomes),
    }
    message = "no reply met all requirements: error.mellea_like says why, and has the best one"
    code = "nothing_passed"
    return Refusal(422, message, kind=code, code=code, more={"mellea_like": failure})


def _of_error(error: Exception, *, retried: bool) -> Refusal:
    match error:
        case BackendError():
            return _of_upstream(error, retried=retried)
        case TooCostly():
            message = "the request's checks take too long on a reply: make its patterns simpler"
            return Refusal(422, message, code="checks_too_costly")
        case LimitExceeded():
            # The first words of the message name the budget.
            if f"budget {CALL!r}" not in str(error):
                return budget_spent()
            message = "what one call of this model may spend is too little for this request"
            return Refusal(422, message, kind="budget_exceeded", code="budget_exceeded")
        case SamplingTimeout():
            status, code, message = 504, "timeout", "time was up before any reply was judged"
        case RequirementError():
            status, code, message = 502, "not_judged", "the replies could not be judged"
        case _:
            raise error  # A mistake in the gateway: its guard logs where.
    headers = NO_RETRY if retried else {}
    return Refusal(status, message, kind="upstream_error", code=code, headers=headers)


def _of_upstream(error: BackendError, *, retried: bool) -> Refusal:
    words, status, code = disclosure_of(error)
    message = f"the upstream {words}"
    if isinstance(error, RateLimited):
        refusal = too_many(f"{message}: try again later", error.retry_after or 1.0, code)
        refusal.headers |= {} if error.retryable else NO_RETRY
        return refusal
    if isinstance(error, InvalidRequest) and error.status in CALLERS_FAULT:
        message = f"the upstream refuses the request (HTTP {error.status}): is it too long?"
        return Refusal(400, message, code=code)
    headers: dict[str, str] = {}
    if isinstance(error, CircuitOpen):
        headers = retry_after(error.retry_after or 1.0)
    elif retried or not error.retryable:
        # Where the gateway has tried again by itself, clients needn't: their tries would multiply.
        headers = NO_RETRY
    return Refusal(status, message, kind="upstream_error", code=code, headers=headers)
