"""A backend whose requests the call's hooks and telemetry see."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import anyio

from mellea_like.core.backend import Backend, Request, can_judge, checked_reply
from mellea_like.core.generation import cost_of
from mellea_like.core.options import Options
from mellea_like.errors import HookError
from mellea_like.hooks.types import HookType

if TYPE_CHECKING:
    from mellea_like.core.generation import Generation
    from mellea_like.sampling.call import Call

__all__ = ["ObservedBackend", "observed"]


_REQUEST_HOOKS = (
    HookType.GENERATION_PRE_CALL,
    HookType.GENERATION_POST_CALL,
    HookType.GENERATION_ERROR,
)


def observed(backend: Backend, call: Call) -> Backend:
    """Return the backend as the call's producers use it.

    Args:
        backend: the user's.
        call: the call.

    Returns:
        The backend itself where nobody looks, else one that tells of each request.
    """
    looked_at = call.telemetry is not None or any(hook in call.hooks for hook in _REQUEST_HOOKS)
    return ObservedBackend(backend, call) if looked_at else backend


class ObservedBackend:
    """A backend round another that tells a call's hooks and telemetry of each request."""

    def __init__(self, inner: Backend, call: Call) -> None:
        self.inner = inner
        self.can_judge = can_judge(inner)
        self._call = call

    async def generate(self, request: Request) -> Generation:
        """Answer one request, and tell of it.

        Args:
            request: what is wanted.

        Returns:
            The inner backend's reply.

        Raises:
            Exception: what the inner backend raised.
            HookError: a hook failed or stopped the call.
        """
        call = self._call
        if HookType.GENERATION_PRE_CALL in call.hooks:
            request = await self._before(request)
        started = anyio.current_time()
        try:
            generation = await self._ask(request, started)
        except Exception as exc:
            await self._failed(request, exc, anyio.current_time() - started)
            raise
        if HookType.GENERATION_POST_CALL in call.hooks:
            from mellea_like.hooks.payloads import GenerationPostCallPayload  # noqa: PLC0415

            await call.fire(
                GenerationPostCallPayload(
                    **self._ids(request),
                    generation=generation,
                    usage=cost_of(request.meter, generation),
                    duration=anyio.current_time() - started,
                )
            )
        return generation

    async def _ask(self, request: Request, started: float) -> Generation:
        telemetry = self._call.telemetry
        if telemetry is None:
            return checked_reply(self.inner, await self.inner.generate(request))
        error: BaseException | None = None
        generation: Generation | None = None
        with telemetry.chat(self.inner, request) as span:
            try:
                generation = checked_reply(self.inner, await self.inner.generate(request))
                telemetry.answered(span, generation)
                return generation  # noqa: TRY300 (here it is no longer None)
            except BaseException as exc:
                error = exc
                raise
            finally:
                usage = cost_of(request.meter, generation)
                duration = anyio.current_time() - started
                telemetry.requested(span, self.inner, request, usage, duration, error)
                error = None  # A frame that holds its own exception waits for the collector.

    async def _before(self, request: Request) -> Request:
        from mellea_like.hooks.payloads import GenerationPreCallPayload  # noqa: PLC0415

        model = request.options.model or getattr(self.inner, "model", None)
        payload = GenerationPreCallPayload(
            **self._ids(request),
            messages=request.messages,
            options=request.options,
            model=None if model is None else str(model),
        )
        try:
            payload = await self._call.fire(payload, _only_options)
        except BaseException:
            request.meter.sent_nothing()
            raise
        return replace(request, options=payload.options)

    async def _failed(self, request: Request, error: Exception, duration: float) -> None:
        if HookType.GENERATION_ERROR in self._call.hooks:
            from mellea_like.hooks.payloads import GenerationErrorPayload  # noqa: PLC0415

            await self._call.fire(
                GenerationErrorPayload(
                    **self._ids(request),
                    error=error,
                    usage=cost_of(request.meter, None),
                    duration=duration,
                )
            )

    def _ids(self, request: Request) -> dict[str, Any]:
        meta = request.meta
        return {
            **self._call.ids(meta.iteration, meta.subsample),
            "purpose": meta.purpose,
            "retry": meta.retry,
        }


def _only_options(_: Any, after: Any, plugin: str) -> Any:
    if not isinstance(after.options, Options):
        msg = f"plugin {plugin} set options to {after.options!r}, which is no Options"
        raise HookError(msg, plugin=plugin, hook=HookType.GENERATION_PRE_CALL)
    return after
