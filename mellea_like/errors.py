"""Every exception that this library raises on its own account.

```
MelleaError
├── BackendError(status, retryable, retry_after)     what the backend said
│   ├── RateLimited             too many requests; come back after ``retry_after`` seconds
│   ├── BackendTimeout          no answer in time
│   ├── BackendUnavailable      5xx, a broken connection, a backend that gave up by itself
│   │   └── CircuitOpen         ... so often in a row that this request was not sent
│   ├── AuthenticationFailed    401 or 403: the key is missing, wrong or not allowed to do this
│   ├── InvalidRequest          another 4xx: the request itself is at fault
│   ├── MalformedResponse       an answer that can't be read
│   └── CacheError              a `CachedBackend`'s file can't be used
├── SamplingFailed(result)      no slice passed
│   ├── UnansweredToolCalls     ... as an answer: the winner calls tools
│   ├── SamplingTimeout         time ran out before any slice was judged
│   └── ReplyBroken(text)       a reply failed after some of it had been handed on
├── LimitExceeded(result)       a budget of requests, tokens, cost or time is spent
├── HookError(result)           a plugin failed
│   └── Blocked                 a plugin stopped the call
├── RequirementError            a validator failed to do its job
│   └── BadVerdict              ... by returning something that isn't a verdict (a TypeError too)
├── ToolError(answers)          a tool raised
├── ThreadsExhausted            every worker thread runs a function that was left behind
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

Wrong arguments raise Python's own ``TypeError`` and ``ValueError``. An exception raised by a user's
backend, validator or callback keeps its type on its way out.
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
        message: what failed, where, and what to do about it; never contains a key.
        status: the HTTP status, where there was one.
        retryable: whether the same request may succeed later; by default what the class says.
        retry_after: seconds to wait first, as the server asked, or None.

    Attributes:
        retried: whether a call inside this one has tried again already, so that nobody else should.
        code: the error's code, in the words of a server of OpenAI's protocol; None if it said none.
        param: the field that is at fault, as the server named it, or None.
        kind: the error's ``type``, or None.
    """

    default_retryable: ClassVar[bool] = False
    retried = False
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


class RateLimited(BackendError):
    """The backend asks for fewer requests (HTTP 429)."""

    default_retryable = True


class BackendTimeout(BackendError):
    """The backend did not answer in time."""

    default_retryable = True


class BackendUnavailable(BackendError):
    """The backend can't be reached, broke off, or answered with a 5xx."""

    default_retryable = True


class CircuitOpen(BackendUnavailable):
    """So many requests in a row have failed that this one was not sent; see ``retry_after``."""

    default_retryable = False


class AuthenticationFailed(BackendError):
    """The key is missing, wrong, or not allowed to do this (HTTP 401, 403)."""


class InvalidRequest(BackendError):
    """The request itself is at fault: an unknown model, a bad option (HTTP 400, 404, 422)."""


class MalformedResponse(BackendError):
    """The backend's answer can't be read."""

    default_retryable = True


class CacheError(BackendError):
    """The file of a `CachedBackend` can't be used: it is damaged, another program's, or locked."""


class SamplingFailed(MelleaError):
    """No slice passed all its requirements.

    Args:
        message: what failed, and why.
        result: the unsuccessful result, with every slice.
    """

    def __init__(self, message: str = "", result: SamplingResult[Any] | None = None) -> None:
        super().__init__(message)
        self.result = result


class UnansweredToolCalls(SamplingFailed):
    """The winner is no answer yet: it calls tools.

    Args:
        message: which tools, and what to do.
        result: the result, whose ``tool_calls`` they are.
        agent: all rounds, if `run_agent` has run tools as often as it may.
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
    """The call's time ran out before any slice was judged."""


class ReplyBroken(SamplingFailed):
    """A streamed reply failed after some of it had been handed on: what was shown is incomplete.

    Args:
        message: what failed, and why.
        result: the unsuccessful result, where there is one.
        text: what had been handed on.
    """

    def __init__(
        self, message: str = "", result: SamplingResult[Any] | None = None, text: str = ""
    ) -> None:
        super().__init__(message, result)
        self.text = text


class Shortage(NamedTuple):
    """What a budget lacks for a request.

    Attributes:
        what: the limit: ``requests``, ``input_tokens``, ``output_tokens`` or ``money``.
        allowed: how much of it there is in all.
        spent: what requests that have ended were charged of it.
        wanted: what the request may take of it.
    """

    what: str
    allowed: float
    spent: float
    wanted: float


class LimitExceeded(MelleaError):
    """A budget of requests, tokens, cost or time is spent.

    Args:
        message: which budget, and how much of it was wanted.
        result: the record of the call, where one raised it.

    Attributes:
        stage: which stage of an escalation it is that the budget is of, 0-based; else None.
        shortage: what a request lacked, where a budget denied one; else None.
    """

    stage: int | None = None
    shortage: Shortage | None = None

    def __init__(self, message: str = "", result: SamplingResult[Any] | None = None) -> None:
        super().__init__(message)
        self.result = result


class HookError(MelleaError):
    """A plugin's hook failed, and the call with it.

    Args:
        message: names the plugin and the hook, and says what happened.
        plugin: the plugin's name.
        hook: the hook's name.
        result: the record of the call so far, where there is one.
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
    """Raised by a hook to stop the call: ``raise Blocked("no customer names in prompts")``."""


class RequirementError(MelleaError):
    """A validator or a judge failed to do its job: it raised, hung, or can't run at all.

    Args:
        message: names the requirement, and says what happened.
        requirement: the requirement's name.
    """

    def __init__(self, message: str = "", *, requirement: str | None = None) -> None:
        super().__init__(message)
        self.requirement = requirement


class BadVerdict(RequirementError, TypeError):
    """A validator returned something that isn't a verdict."""


class ThreadsExhausted(MelleaError):
    """Every worker thread runs a function that never ended and that nobody waits for any more."""


class ToolError(MelleaError):
    """A tool raised; what it raised is the cause.

    Args:
        message: names the tool, and says what happened.
        tool: the tool's name.

    Attributes:
        answers: the messages of the calls that `SamplingResult.run_tools` made, the failed one's
            last.
    """

    answers: tuple[Message, ...] = ()

    def __init__(self, message: str = "", *, tool: str | None = None) -> None:
        super().__init__(message)
        self.tool = tool


class CoalescingError(MelleaError):
    """A coalescer could not serve a submission."""


class ShutdownError(CoalescingError):
    """The component is closing or closed."""


class Refused(CoalescingError):
    """The component would not take the work."""


class Stopped(CoalescingError):
    """The work was stopped before it ran."""


class MissingAnswer(CoalescingError):
    """A joint reply lacked this task's answer."""


class QueueFull(CoalescingError):
    """There is no room for more work."""


class Expired(CoalescingError):
    """The deadline passed while the work waited in the queue."""


class StoreError(MelleaError):
    """A store of budgets and rates can't be read or written; the message names it."""


class JournalError(MelleaError):
    """A batch journal can't be read, written or resumed.

    Args:
        message: what is wrong, and what to do.
        differences: where the journal belongs to another run, each part that differs: its name,
            what it was and what it is now, in short; None for what was not there, or is gone.
    """

    def __init__(
        self, message: str, differences: Sequence[tuple[str, str | None, str | None]] = ()
    ) -> None:
        super().__init__(message)
        self.differences = differences


class ClientDisconnected(MelleaError):
    """A web application's client closed its connection before its response was ready."""
