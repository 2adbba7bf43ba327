"""What the tests of the coordinator share: backends that answer joint requests, and requests."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Sequence
from typing import Any

import anyio
from anyio.lowlevel import checkpoint

from mellea_like.core.backend import Options, Request, RequestMeta
from mellea_like.core.conversation import Message
from mellea_like.core.generation import Generation


def ask(text: str, *, system: str = "", call: str = "", **more: Any) -> Request:
    """Make a request; what is no field of `Request` or its meta goes into its options."""
    messages = (Message("system", system),) if system else ()
    meta = {name: more.pop(name) for name in ("deadline", "iteration", "subsample") if name in more}
    format_ = more.pop("format", None)
    return Request(
        (*messages, Message("user", text)),
        Options(**more),
        format_,
        RequestMeta(sampling_id=call, **meta),
    )


def asks(count: int, **more: Any) -> list[Request]:
    return [ask(f"t{number}", **more) for number in range(count)]


def tasks_of(request: Request) -> list[dict[str, Any]]:
    """Return the tasks of a joint request; an empty list for any other."""
    system, user = request.messages[0], request.messages[-1]
    if system.role != "system" or not system.content.startswith("You are given "):
        return []
    return json.loads(user.content)["tasks"]


def text_of(task: dict[str, Any]) -> str:
    return task["messages"][-1]["content"]


def entry(task: dict[str, Any], response: object) -> dict[str, object]:
    return {"task_index": task["task_index"], "key": task["key"], "response": response}


def echo(tasks: Sequence[dict[str, Any]]) -> list[dict[str, object]]:
    """Answer every task with its own text in capitals."""
    return [entry(task, text_of(task).upper()) for task in tasks]


Reply = str | BaseException | Generation | Callable[[list[dict[str, Any]]], object]


class Person:
    """Answers requests, joint ones as well, and keeps what it was asked.

    ``replies`` says how joint requests are answered, one after the other, the last one for all
    further ones: with what a function of the tasks returns (as JSON unless it is a text), or a
    text, a `Generation` or an exception. Single requests are answered with their text in capitals.
    """

    model = "person"
    provider = "test"
    defaults = Options()

    def __init__(self, *replies: Reply, delay: float = 0.0) -> None:
        self.replies = list(replies) or [echo]
        self.delay = delay
        self.requests: list[Request] = []
        self.in_flight = 0
        self.cancelled = 0

    @property
    def sizes(self) -> list[int]:
        return [len(tasks_of(request)) or 1 for request in self.requests]

    @property
    def texts(self) -> list[list[str]]:
        return [
            [text_of(task) for task in tasks_of(request)] or [request.messages[-1].content]
            for request in self.requests
        ]

    async def generate(self, request: Request) -> Generation:
        self.requests.append(request)
        meter = request.meter.start()
        meter.update(input_tokens=100)
        self.in_flight += 1
        try:
            await (anyio.sleep(self.delay) if self.delay else checkpoint())
            reply = self._reply(request)
            if inspect.isawaitable(reply):
                reply = await reply
        except anyio.get_cancelled_exc_class():
            self.cancelled += 1
            raise
        finally:
            self.in_flight -= 1
        if isinstance(reply, BaseException):
            raise reply
        meter.settle(input_tokens=100, output_tokens=50)
        if isinstance(reply, Generation):
            return reply
        text = reply if isinstance(reply, str) else json.dumps(reply)
        return Generation(text, None, meter.usage, self.model, "stop")

    def _reply(self, request: Request) -> Any:
        tasks = tasks_of(request)
        if not tasks:
            return request.messages[-1].text.upper()
        reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        return reply(tasks) if callable(reply) else reply


async def gather(backend: Any, *requests: Request) -> list[Any]:
    """Ask for all at once; return for each its reply, or the exception."""
    results: list[Any] = [None] * len(requests)

    async def one(index: int) -> None:
        try:
            results[index] = await backend.generate(requests[index])
        except Exception as exc:  # noqa: BLE001 (the test looks at it)
            results[index] = exc

    async with anyio.create_task_group() as tasks:
        for index in range(len(requests)):
            tasks.start_soon(one, index)
    return results
