"""The exceptions of this library.

```
MelleaError
├── BackendError(status, retryable, retry_after)     a backend could not answer
│   ├── RateLimited             too many requests; try again after ``retry_after`` seconds
│   ├── BackendTimeout          no answer in time
│   ├── BackendUnavailable      5xx, a broken connection, a backend that gave up by itself
│   │   └── CircuitOpen         too many failures in a row, so this request was not sent
│   ├── AuthenticationFailed    401 or 403: the key is missing, wrong or not allowed to do this
│   ├── InvalidRequest          another 4xx: the request itself is at fault
│   ├── MalformedResponse       an answer that can't be read
│   └── CacheError              a `CachedBackend`'s file can't be used
├── SamplingFailed(result)      no draw passed
│   ├── UnansweredToolCalls     the winner calls tools instead of answering
│   ├── SamplingTimeout         time ran out before any draw was judged
│   └── ReplyBroken(text)       a streamed reply failed after some of it had been passed on
├── LimitExceeded(result)       a budget of requests, tokens, cost or time is spent
├── HookError(result)           a plugin failed
│   └── Blocked                 a plugin stopped the call
├── RequirementError            a validator or a judge raised, took too long, or could not run
│   └── BadVerdict              a validator returned no verdict (this is also a TypeError)
├── ToolError(answers)          a tool raised
├── ThreadsExhausted            every worker thread is busy with an abandoned function
├── CoalescingError
│   ├── ShutdownError           the component is closing or closed
│   ├── Refused                 the component would not take the work
│   ├── Stopped                 the work was stopped before it ran
│   ├── MissingAnswer           a joint reply lacked this task's answer
│   ├── QueueFull               no room for more work
│   └── Expired                 the deadline passed in the queue
├── JournalError(differences)   a batch journal can't be used
├── StoreError                  a store of budgets and rates can't be used
└── ClientDisconnected          a web application's client left before its response was ready
```

Wrong arguments raise Python's ``TypeError`` and ``ValueError``. Exceptions of your own backends,
validators and callbacks keep their types.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mellea_like.agent import AgentResult
    from mellea_like.core.conversation import Message
    from mellea_like.core.result import SamplingResult

__all__ = [
    "AuthenticationFailed",
    "BackendError",
    "BackendTimeout",
    "BackendUnavailable",
    "BadVerdict",
    "Blocked",
    "CacheError",
    "CircuitOpen",
    "ClientDisconnected",
    "CoalescingError",
    "Expired",
    "HookError",
    "InvalidRequest",
    "JournalError",
    "LimitExceeded",
    "MalformedResponse",
    "MelleaError",
    "MissingAnswer",
    "QueueFull",
    "RateLimited",
    "Refused",
    "ReplyBroken",
    "RequirementError",
    "SamplingFailed",
    "SamplingTimeout",
    "ShutdownError",
    "Stopped",
    "StoreError",
    "ThreadsExhausted",
    "ToolError",
    "UnansweredToolCalls",
]


class MelleaError(Exception):
    """Base class of all errors of this library."""


class BackendError(MelleaError):
    """A backend could not answer a request.

    Args:
        message: the failure, its place, and the remedy. It never contains an API key.
        status: the HTTP status, if there was one.
        retryable: whether the same request may succeed later; the default depends on the class.
        retry_after: the seconds to wait first, if the server asked for that.

    Attributes:
        retried: whether the request was already retried. If so, callers shouldn't retry it
            again.
        copied: whether this is a copy of an error, for another caller that shared the request. A
            circuit breaker counts only the original.
        code: the error's ``code`` in OpenAI's protocol, if the server gave one.
        param: the field of the request that is wrong, if the server named it.
        kind: the error's ``type`` in OpenAI's protocol, if the server gave one.
    """

    default_retryable: ClassVar[bool] = False
    retried = False
    copied = False
    code: str | None = None
    param: str | None = None
    kind: str | None = None

    def __init__(
        self,
        message: str = "",
        *,
        status: int | None = None,
        retryable: bool | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.retryable = self.default_retryable if retryable is None else retryable
        self.retry_after = retry_after

    @property
    def said(self) -> str:
        """The server's own message, without the prefix that this library adds."""
        return str(self).partition(f" answered {self.status}: ")[2] or str(self)


class RateLimited(BackendError):
    """The backend asks for fewer requests (HTTP 429)."""

    default_retryable = True


class BackendTimeout(BackendError):
    """The backend did not answer in time."""

    default_retryable = True


class BackendUnavailable(BackendError):
    """The backend can't be reached, closed the connection early, or answered with a 5xx."""

    default_retryable = True


class CircuitOpen(BackendUnavailable):
    """Too many requests in a row failed, so this request was not sent. See ``retry_after``."""

    default_retryable = False


class AuthenticationFailed(BackendError):
    """The key is missing, wrong, or not allowed to do this (HTTP 401, 403)."""


class InvalidRequest(BackendError):
    """The request is wrong, such as one for an unknown model (HTTP 400, 404, 422)."""


class MalformedResponse(BackendError):
    """The backend's answer can't be read."""

    default_retryable = True


class CacheError(BackendError):
    """The file of a `CachedBackend` is damaged, is locked, or belongs to another program."""


class SamplingFailed(MelleaError):
    """No draw passed all its requirements, or the selection's decision isn't complete.

    Args:
        message: the failure and its reason.
        result: the unsuccessful result, with every draw.
    """

    def __init__(self, message: str = "", result: SamplingResult[Any] | None = None) -> None:
        super().__init__(message)
        self.result = result


class UnansweredToolCalls(SamplingFailed):
    """The winner calls tools instead of answering. `run_agent` and a result's ``value`` raise it.

    Args:
        message: the tools, and what to do.
        result: the result, which has the calls in ``tool_calls``.
        agent: the record of all rounds, if `run_agent` reached its limit of rounds; else None.
    """

    def __init__(
        self,
        message: str = "",
        result: SamplingResult[Any] | None = None,
        agent: AgentResult[Any] | None = None,
    ) -> None:
        super().__init__(message, result)
        self.agent = agent


class SamplingTimeout(SamplingFailed):
    """The call's time ran out before any draw was judged."""


class ReplyBroken(SamplingFailed):
    """A streamed reply failed after a part of it had been passed on.

    Args:
        message: the failure and its reason.
        result: the unsuccessful result, if there is one.
        text: the text that had been passed on.
    """

    def __init__(
        self, message: str = "", result: SamplingResult[Any] | None = None, text: str = ""
    ) -> None:
        super().__init__(message, result)
        self.text = text


class Shortage(NamedTuple):
    """A budget's limit that was too low for a request.

    Attributes:
        what: the limit's name: ``requests``, ``input_tokens``, ``output_tokens`` or ``money``.
        allowed: the limit's total.
        spent: the amount that finished requests have used.
        wanted: the most that the request could use.
    """

    what: str
    allowed: float
    spent: float
    wanted: float


class LimitExceeded(MelleaError):
    """A budget of requests, tokens, cost or time is spent.

    Args:
        message: the budget, and how much of it the request needed.
        result: the record of the call, if a call raised this error.

    Attributes:
        stage: the stage of an escalation, 0-based, if the budget is that of a stage; else None.
        shortage: the limit that was too low for the request; None if no request was refused.
    """

    stage: int | None = None
    shortage: Shortage | None = None

    def __init__(self, message: str = "", result: SamplingResult[Any] | None = None) -> None:
        super().__init__(message)
        self.result = result


class HookError(MelleaError):
    """A plugin's hook failed, which ended the call.

    Args:
        message: the plugin, the hook, and what happened.
        plugin: the plugin's name; None if the error isn't raised by a call.
        hook: the hook's name; None in the same case.
        result: the record of the call so far; None if the hook failed before there was one.
    """

    def __init__(
        self,
        message: str = "",
        *,
        plugin: str | None = None,
        hook: str | None = None,
        result: SamplingResult[Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.plugin = plugin
        self.hook = hook
        self.result = result


class Blocked(HookError):
    """A hook stopped the call, as with ``raise Blocked("no customer names in prompts")``."""


class RequirementError(MelleaError):
    """A validator or a judge raised, took too long, or could not run.

    Args:
        message: the requirement, and what happened.
        requirement: the requirement's name.

    Attributes:
        result: the record of the call, if a call raised this error.
        line: the line of the validator's file at which it raised an exception, as
            ``"rules.py:12"`` with the file's full path; empty if there is none.
    """

    result: SamplingResult[Any] | None = None
    line: str = ""

    def __init__(self, message: str = "", *, requirement: str | None = None) -> None:
        super().__init__(message)
        self.requirement = requirement


class BadVerdict(RequirementError, TypeError):
    """A validator returned something that isn't a verdict."""


class ThreadsExhausted(MelleaError):
    """Every worker thread still runs a function whose result nobody waits for any more."""


class ToolError(MelleaError):
    """A tool raised an exception, which is the cause of this one.

    Args:
        message: the tool, and what happened.
        tool: the tool's name.

    Attributes:
        answers: the messages that answer the tool calls run by `SamplingResult.run_tools`; the last
            message answers the failed call.
    """

    answers: tuple[Message, ...] = ()

    def __init__(self, message: str = "", *, tool: str | None = None) -> None:
        super().__init__(message)
        self.tool = tool


class CoalescingError(MelleaError):
    """A component that merges or queues the work of several callers could not serve one of them."""


class ShutdownError(CoalescingError):
    """The component that should do the work is closing or closed."""


class Refused(CoalescingError):
    """The component did not accept the work, for example because it is busy."""


class Stopped(CoalescingError):
    """The work was stopped before it ran."""


class MissingAnswer(CoalescingError):
    """Several requests were sent as one, and the reply had no answer to this request."""


class QueueFull(CoalescingError):
    """There is no room for more work."""


class Expired(CoalescingError):
    """The deadline passed while the work waited in the queue."""


class StoreError(MelleaError):
    """A store of budgets and rates can't be read or written. The message names the store."""


class JournalError(MelleaError):
    """A batch journal can't be read, written or resumed.

    Args:
        message: the problem and the remedy.
        differences: if the journal belongs to another run, a triple for each setting that differs:
            the setting's name, its old value and its new value, both shortened. A value is None if
            the setting is missing.
    """

    def __init__(
        self, message: str, differences: Sequence[tuple[str, str | None, str | None]] = ()
    ) -> None:
        super().__init__(message)
        self.differences = differences


class ClientDisconnected(MelleaError):
    """A web application's client closed its connection before its response was ready."""
