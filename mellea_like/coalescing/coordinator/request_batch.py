"""Send requests together, and give each of them its own reply and its part of the cost."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field, replace
from secrets import token_hex
from typing import TYPE_CHECKING

import anyio

from mellea_like.coalescing.coordinator.audit import REFUSALS
from mellea_like.coalescing.coordinator.joint_prompt import (
    joint_request,
    read_answers,
    until_stop,
    weights_of,
)
from mellea_like.coalescing.ticket import Ticket
from mellea_like.core.backend import checked_reply
from mellea_like.core.generation import Generation, Usage, cost_of
from mellea_like.errors import (
    BackendError,
    BackendUnavailable,
    Expired,
    MissingAnswer,
    ShutdownError,
)
from mellea_like.runtime.event_loops import cancel_requested, foreign, split_cancellation
from mellea_like.runtime.logs import logger, warn
from mellea_like.telemetry.names import BATCH_ID, BATCH_SIZE, RETRY
from mellea_like.telemetry.spans import shared_span

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from opentelemetry.trace import SpanContext

    from mellea_like.core.backend import Backend, Request
    from mellea_like.core.generation import Cost, Meter
    from mellea_like.errors import CoalescingError


LATE = "the deadline passed before the request could be sent"

KEY_BYTES = 8
"""The number of random bytes in a task's key: 64 bits can't be guessed."""


@dataclass(slots=True, eq=False)
class PendingRequest:
    """An accepted request whose caller has neither a reply nor an error yet."""

    request: Request
    task: Request  # The request with the backend's defaults.
    request_id: str
    asked_at: float
    span: SpanContext | None
    left: Callable[[PendingRequest, CoalescingError], None]
    ended: Callable[[PendingRequest, Generation | BaseException], None]
    deadline: float = field(init=False)
    done: bool = False
    batch: RequestBatch | None = None
    part: CostPart | None = None  # In the joint request.
    costs: list[Cost] = field(default_factory=list["Cost"])
    sent: bool = False
    _ticket: Ticket[Generation] = field(init=False)

    def __post_init__(self) -> None:
        deadline = self.request.meta.deadline
        self.deadline = math.inf if deadline is None else deadline
        self._ticket = Ticket(lambda _, error: self.left(self, error), self.deadline, LATE)

    @property
    def usage(self) -> Usage:
        """This request's share of the cost of joint requests so far."""
        return sum((cost.usage for cost in self.costs), Usage())

    async def wait(self) -> Generation:
        """Wait for the reply. Call this only once, because the ticket is dropped afterwards."""
        ticket = self._ticket
        try:
            return await ticket.wait()
        finally:
            # The error's traceback has frames that refer to this request.
            del self._ticket, ticket

    def taken(self, batch: RequestBatch) -> None:
        """Record the request's batch. From now on, the backend enforces the request's deadline."""
        self.batch = batch
        self._ticket.deadline = math.inf

    def begin(self, part: CostPart) -> None:
        """Record that a joint request is being sent, with this request's part of its cost."""
        self.sent = True
        self.part = part
        self.costs.append(part)
        self.request.meter.add(part)

    def answer(self, reply: Generation) -> None:
        """Settle the request with a reply, unless it is already settled."""
        if not self.done:
            self.done = True
            self._ticket.settle(reply)
            self.ended(self, reply)

    def fail(self, error: BaseException) -> None:
        """Settle the request with an error, unless it is already settled."""
        if not self.done:
            self.done = True
            self._ticket.fail(error)
            if not self.sent:
                self.request.meter.sent_nothing()
            self.ended(self, error)


@dataclass(slots=True, eq=False)
class RequestBatch:
    """Sends several requests together, and settles each with its own reply or error."""

    batch_id: str
    members: Sequence[PendingRequest]
    backend: Backend
    retry_missing: bool
    on_call: Callable[[], object]
    size: int = field(init=False)
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    closed: anyio.Event = field(default_factory=anyio.Event)
    deserted: bool = False  # Whether all open callers have left.

    def __post_init__(self) -> None:
        self.size = len(self.members)
        for member in self.members:
            member.taken(self)

    async def run(self) -> None:
        """Send requests until each member is settled."""
        try:
            with self.scope, foreign(type(self.backend).__name__, BackendUnavailable):
                await self._serve(self._waiting())
        except BaseException as exc:
            if self._end(*split_cancellation(exc)):
                raise
        finally:
            self.closed.set()
            self.members = ()  # Members refer to their batch.

    def leave(self, member: PendingRequest, error: CoalescingError) -> None:
        """Fail a member whose caller has left. When all callers have left, cancel the batch."""
        if member.part is not None:
            member.part.leave()
        member.fail(error)
        if not self._waiting():
            self.deserted = True
            self.scope.cancel()

    def fail(self, error: BaseException) -> None:
        """Fail all members that are not settled yet, with the same error."""
        for number, member in enumerate(self._waiting()):
            member.fail(own_copy(error) if number else error)

    def _waiting(self) -> list[PendingRequest]:
        return [member for member in self.members if not member.done]

    async def _serve(self, members: list[PendingRequest]) -> None:
        if not members:
            return
        if len(members) == 1:
            (member,) = members
            member.sent = True
            member.answer(await self._send(member.request, members, 0))
            return
        missing = await self._ask(members, 0)
        if missing and self.retry_missing:
            missing = await self._ask_again(missing)
        for member in missing:
            member.fail(self._lacking())

    def _lacking(self) -> MissingAnswer:
        return MissingAnswer(
            f"the joint reply to batch {self.batch_id} of {self.size} requests has no answer to"
            " this one: check whether the model can follow the format, or send such requests"
            " through `coordinator.isolated`"
        )

    async def _send(
        self, request: Request, members: Sequence[PendingRequest], retry: int
    ) -> Generation:
        size = len(members)
        ids = {"batch_id": self.batch_id, "batch_size": size}
        logger.debug("batch %s: %d requests in one", self.batch_id, size, extra=ids)
        attributes: dict[str, str | int] = {BATCH_ID: self.batch_id, BATCH_SIZE: size, RETRY: retry}
        self.on_call()
        with shared_span("coalesced request", attributes, [member.span for member in members]):
            return checked_reply(self.backend, await self.backend.generate(request))

    async def _ask(self, members: list[PendingRequest], retry: int) -> list[PendingRequest]:
        """Send several requests as one, and return the requests whose answers are missing."""
        requests = [member.task for member in members]
        keys = [token_hex(KEY_BYTES) for _ in members]
        request = joint_request(requests, keys, retry=retry)
        cost = SharedCost(request.meter, weights_of(requests))
        for member, part in zip(members, cost.parts(), strict=True):
            member.begin(part)
        try:
            reply = await self._send(request, members, retry)
            answers = read_answers(reply.text, keys)
            cost.answered(reply, [len(answer or "") for answer in answers])
        finally:
            for member in members:
                member.part = None
        for member, answer in zip(members, answers, strict=True):
            own = _own_reply(reply, answer, member)
            if own is not None:
                member.answer(own)
        missing = [member for member in members if not member.done]
        if missing:
            self._complain(missing, len(members), reply)
        return missing

    async def _ask_again(self, missing: list[PendingRequest]) -> list[PendingRequest]:
        now = anyio.current_time()
        for member in missing:
            if member.deadline <= now:
                member.fail(Expired("the deadline passed before the request could be asked again"))
        wanted = [member for member in missing if not member.done]
        if len(wanted) > 1:
            return await self._ask(wanted, 1)
        for member in wanted:
            await self._ask_alone_again(member)
        return []

    async def _ask_alone_again(self, member: PendingRequest) -> None:
        request = member.request
        await request.meter.readmit(request, self._lacking())
        meter = request.meter.attempt()
        member.costs.append(meter)
        meta = replace(request.meta, retry=request.meta.retry + 1)
        try:
            reply = await self._send(replace(request, meta=meta, meter=meter), [member], 1)
        except BaseException:
            meter.finish(None)
            raise
        meter.finish(reply)
        member.answer(replace(reply, usage=member.usage))

    def _end(self, cancellation: BaseException | None, error: BaseException | None) -> bool:
        """Settle members with the batch's error; return whether to raise it again."""
        if cancellation is not None and cancel_requested():
            self.fail(ShutdownError(f"batch {self.batch_id} was cancelled with its coordinator"))
            return True
        if error is None:
            return False  # The backend answered the cancellation with another one.
        if not self._waiting():
            message = "batch %s failed when no one was waiting for it anymore: %s: %s"
            warn(message, self.batch_id, type(error).__name__, error)
            return not isinstance(error, Exception)
        self.fail(error)
        return False

    def _complain(self, missing: Sequence[PendingRequest], size: int, reply: Generation) -> None:
        meta = missing[0].request.meta
        warn(
            "batch %s: %d of %d answers are missing from the joint reply (finish reason %s)",
            self.batch_id,
            len(missing),
            size,
            reply.finish_reason,
            sampling_id=meta.sampling_id,
            iteration=meta.iteration,
            subsample=meta.subsample,
            batch_id=self.batch_id,
            request_ids=tuple(member.request_id for member in missing),
        )


def _own_reply(reply: Generation, answer: str | None, member: PendingRequest) -> Generation | None:
    """Return a member's own reply, made from the joint reply; None if the answer is missing."""
    if answer is not None:
        text = until_stop(answer, member.request.options.stop)
        return Generation(text, None, member.usage, reply.model, "stop")
    if reply.finish_reason == "refusal":
        return Generation(reply.text, None, member.usage, reply.model, reply.finish_reason)
    if reply.finish_reason in REFUSALS:  # A filtered joint reply answers nobody.
        return Generation("", None, member.usage, reply.model, reply.finish_reason)
    return None


def own_copy(error: BaseException) -> BaseException:
    """Copy an error so that each caller can add its own notes; if that fails, return the error."""
    try:
        twin: Any = copy.copy(error)
        if type(twin) is not type(error) or twin.args != error.args:
            return error
        if isinstance(twin, BackendError):
            twin.copied = True
    except Exception:  # noqa: BLE001 (an error of somebody else's, which takes other arguments)
        return error
    if hasattr(error, "__notes__"):
        twin.__notes__ = list(error.__notes__)
    twin.__cause__ = error.__cause__
    twin.__context__ = error.__context__
    twin.__suppress_context__ = error.__suppress_context__
    copied: BaseException = twin.with_traceback(error.__traceback__)
    return copied


# --- what a joint request costs each -----------------------------------------------------------


def split(total: int, weights: Sequence[int]) -> list[int]:
    """Split a whole number in proportion to weights; the parts add up to the number."""
    # Hare's method of largest remainders: each part is rounded down, and those that lost most get
    # one more.
    if not any(weights):
        weights = [1] * len(weights)
    whole = sum(weights)
    parts = [total * weight // whole for weight in weights]
    lost = [total * weight % whole for weight in weights]
    most = sorted(range(len(weights)), key=lambda index: -lost[index])
    for index in most[: total - sum(parts)]:
        parts[index] += 1
    return parts


@dataclass(slots=True, eq=False)
class CostPart:
    """One member's part of the cost of a joint request."""

    _cost: SharedCost
    _index: int

    @property
    def usage(self) -> Usage:
        """The member's part of the cost, as far as it is known."""
        return self._cost.usages()[self._index]

    def leave(self) -> None:
        """Fix the part at its current value, as the member leaves; the others bear the rest."""
        self._cost.leave(self._index)


class SharedCost:
    """The cost of a joint request, and its distribution among members."""

    # Weights split the tokens of the prompt and of the reply: the lengths of the members' own
    # prompts, and of their answers, once these are known. Requests, including those of
    # unknown cost, go to the first remaining members. A member that leaves early bears the tokens
    # known by then, and the last member bears the rest. If the split itself is an estimate, a
    # shared request has unknown cost for each member.

    def __init__(self, meter: Meter, weights: Sequence[int], *, estimated: bool = False) -> None:
        self._meter = meter
        self._estimated = estimated
        self._reply: Generation | None = None
        self.input_weights = weights
        self.output_weights: Sequence[int] = [0] * len(weights)
        self._left: dict[int, Usage] = {}

    def parts(self) -> list[CostPart]:
        """Return each member's part, in order."""
        return [CostPart(self, index) for index in range(len(self.input_weights))]

    def answered(self, reply: Generation, lengths: Sequence[int]) -> None:
        """Record the joint reply, and the lengths of the members' answers in it."""
        self._reply, self.output_weights = reply, lengths

    def leave(self, index: int) -> None:
        """Fix a member's part at its current value; the part of the last member stays open."""
        if len(self._left) < len(self.input_weights) - 1:
            usage = self.usages()[index]
            self._left[index] = Usage(0, usage.input_tokens, usage.output_tokens)

    def usages(self) -> list[Usage]:
        """Return each member's part as far as it is known. The parts add up to the total usage."""
        total = cost_of(self._meter, self._reply)
        parts = [Usage()] * len(self.input_weights)
        inputs, outputs = total.input_tokens, total.output_tokens
        for index, left in self._left.items():
            # The server may count less than was assumed when the member left.
            mine = min(left.input_tokens, inputs), min(left.output_tokens, outputs)
            inputs, outputs = inputs - mine[0], outputs - mine[1]
            parts[index] = Usage(0, *mine)
        here = [index for index in range(len(parts)) if index not in self._left]
        equal = [1] * len(here)
        shares = zip(
            here,
            split(total.requests, equal),
            split(inputs, [self.input_weights[index] for index in here]),
            split(outputs, [self.output_weights[index] for index in here]),
            split(total.unknown, equal),
            strict=True,
        )
        for index, *numbers in shares:
            parts[index] = Usage(*numbers)
        if total.cached_input_tokens or total.reasoning_tokens:
            cached = split(total.cached_input_tokens, [part.input_tokens for part in parts])
            thought = split(total.reasoning_tokens, [part.output_tokens for part in parts])
            parts = [
                replace(part, cached_input_tokens=c, reasoning_tokens=r)
                for part, c, r in zip(parts, cached, thought, strict=True)
            ]
        if self._estimated and sum(bool(part.total_tokens) for part in parts) > 1:
            parts = [replace(part, unknown=part.requests) for part in parts]
        return parts
