"""The hooks around each request to a backend."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import anyio

from mellea_like.core.backend import BackendWrapper, Options, Purpose, checked_reply
from mellea_like.core.conversation import Message
from mellea_like.core.generation import Generation, Usage
from mellea_like.hooks.dispatch import failure
from mellea_like.hooks.payload import Is, Payload
from mellea_like.hooks.types import HookType
from mellea_like.kernel.ports import Option

if TYPE_CHECKING:
    from mellea_like.core.backend import Backend, Request
    from mellea_like.hooks.dispatch import Hooks
    from mellea_like.kernel.ports import Sent

__all__ = [
    "GenerationErrorPayload",
    "GenerationPostCallPayload",
    "GenerationPreCallPayload",
]


class GenerationPreCallPayload(Payload):
    """Passed to handlers before each request to a backend.

    Attributes:
        purpose: ``"generate"`` or ``"judge"``.
        retry: how many times this request was tried before.
        messages: the conversation to be sent.
        options: the options for generating; handlers may change them.
        model: the model's name, if it is known.
    """

    hook = HookType.GENERATION_PRE_CALL
    writable = frozenset({"options"})

    purpose: Purpose
    retry: int
    messages: tuple[Is[Message], ...]
    options: Is[Options]
    model: str | None


class GenerationPostCallPayload(Payload):
    """Passed to handlers after each request that was answered.

    Attributes:
        purpose: ``"generate"`` or ``"judge"``.
        retry: how many times this request was tried before.
        generation: the reply.
        usage: the cost of the request.
        duration: how long the request took, in seconds.
    """

    hook = HookType.GENERATION_POST_CALL

    purpose: Purpose
    retry: int
    generation: Is[Generation]
    usage: Is[Usage]
    duration: float


class GenerationErrorPayload(Payload):
    """Passed to handlers after each request that failed.

    Attributes:
        purpose: ``"generate"`` or ``"judge"``.
        retry: how many times this request was tried before.
        error: the error.
        usage: the cost of the request, as far as it is known.
        duration: how long the request took, in seconds.
    """

    hook = HookType.GENERATION_ERROR

    purpose: Purpose
    retry: int
    error: Is[BaseException]
    usage: Is[Usage]
    duration: float


class RequestHooks(Option):
    """Lets plugins see each request, even those of retries and judges, and change its options."""

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks

    def request(self, inner: Backend, sent: Sent) -> Backend:
        """Wrap a backend so that its requests fire hooks."""
        del sent
        return _Heard(inner, self._hooks)


class _Heard(BackendWrapper):
    def __init__(self, inner: Backend, hooks: Hooks) -> None:
        super().__init__(inner)
        self._hooks = hooks

    async def generate(self, request: Request) -> Generation:
        """Answer one request, and fire the hooks before and after it."""
        meta, meter = request.meta, request.meter
        fire = partial(self._hooks.fire, at=meta, purpose=meta.purpose, retry=meta.retry)
        model = request.options.model or self.model
        try:
            changed = await fire(
                GenerationPreCallPayload,
                amend=_only_options,
                messages=request.messages,
                options=request.options,
                model=None if model is None else str(model),
            )
        except BaseException:
            meter.sent_nothing()
            raise
        if changed is not None:
            if self._hooks.decides(HookType.GENERATION_PRE_CALL):
                # Each try may ask another model, which has a price of its own.
                meter = meter.attempt(changed.options.model or self.model)
            request = replace(request, options=changed.options, meter=meter)
        started = anyio.current_time()
        try:
            reply = checked_reply(self.inner, await self.inner.generate(request))
        except BaseException as exc:
            took, cost = anyio.current_time() - started, meter.finish(None)
            if isinstance(exc, Exception):
                await fire(GenerationErrorPayload, error=exc, usage=cost, duration=took)
            raise
        # The reply doesn't leave this method if a handler raises or is cancelled.
        took, cost = anyio.current_time() - started, meter.finish(reply)
        await fire(GenerationPostCallPayload, generation=reply, usage=cost, duration=took)
        return reply


def _only_options(
    _: object, after: GenerationPreCallPayload, plugin: str
) -> GenerationPreCallPayload:
    options: object = after.options  # `model_copy` doesn't check types.
    if not isinstance(options, Options):
        why = f"it set options to {options!r}, which is not an Options object"
        raise failure(plugin, after.hook, why)
    return after
