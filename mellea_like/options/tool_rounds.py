"""Run read-only tools in a draw, and ask the model again with their answers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mellea_like.core.backend import BackendWrapper, checked_reply
from mellea_like.core.conversation import reply_message
from mellea_like.core.display import error_text
from mellea_like.core.generation import REJECTED
from mellea_like.core.tools import resendable
from mellea_like.kernel.ports import NotAnAnswer, Option

if TYPE_CHECKING:
    from mellea_like.core.backend import Backend, Request
    from mellea_like.core.generation import Generation
    from mellea_like.kernel.ports import Sent


class ToolRounds(Option):
    """Offers tools in each draw's requests, checks tool calls, and runs read-only tools."""

    def request(self, inner: Backend, sent: Sent) -> Backend:
        """Wrap a backend that generates, so that its replies may call tools."""
        if sent.purpose != "generate":
            return inner
        return _ToolLoop(inner, sent, self)


class _ToolLoop(BackendWrapper):
    def __init__(self, inner: Backend, sent: Sent, option: ToolRounds) -> None:
        super().__init__(inner)
        self._box: Any = sent.spec.tools
        self._backend = sent.backend
        self._option = option

    async def generate(self, request: Request) -> Generation:
        """Ask the model; while its reply calls only read-only tools, run them and ask again."""
        box, meter, rounds = self._box, request.meter, 0
        reply: Generation
        draw = self._option.call.draw_of(request)
        request = replace(request, tools=box.tools, tool_choice=box.choice)
        messages = request.messages
        reply = checked_reply(self._backend, await self.inner.generate(request))
        meter.finish(reply)
        while True:
            ids = {call.id for call in reply.tool_calls}
            if "" in ids or len(ids) < len(reply.tool_calls):  # Servers omit or repeat it.
                named = (
                    replace(c, id=f"call_{rounds}_{i}") for i, c in enumerate(reply.tool_calls)
                )
                reply = replace(reply, tool_calls=tuple(named))
            draw.generation = reply
            if draw.why_incomplete(reply) or reply.finish_reason == REJECTED:
                return reply
            try:
                reply = draw.generation = box.checked(reply, rounds)
            except ValueError as exc:
                raise NotAnAnswer(error_text(exc), reply) from exc
            if not box.runs(reply.tool_calls):
                return reply
            if rounds == box.rounds:
                names = ", ".join(dict.fromkeys(call.name for call in reply.tool_calls))
                msg = (
                    f"tools have run {rounds} times (tool_rounds={rounds}), and it calls {names}"
                    " again: answer with what they said"
                )
                raise NotAnAnswer(msg, reply)
            rounds += 1
            asked = replace(
                reply_message(reply), tool_calls=tuple(map(resendable, reply.tool_calls))
            )
            meter.answered = True
            draw.rounds += (asked, *await box.answers(reply.tool_calls))
            meter.answered = False
            draw.generation = None
            draw.messages = messages + draw.rounds
            again = replace(
                request,
                messages=draw.messages,
                meter=meter.attempt(),
                # If it were required again, the model could never answer.
                tool_choice=None if box.choice is None else "auto",
            )
            replied: Generation | None = None
            try:
                reply = replied = checked_reply(self._backend, await self.inner.generate(again))
            finally:
                again.meter.finish(replied)
