"""Translate errors of servers, SDKs and connections into this library's errors.

The SDKs of OpenAI and Anthropic have exceptions of the same names. This module recognizes them by
their names, so neither SDK has to be installed.

| cause | error |
|---|---|
| 401, 403, no credentials | `AuthenticationFailed` |
| 429 | `RateLimited`; not retryable if the quota is used up |
| 408, no answer in time | `BackendTimeout` |
| 5xx, no connection (in time), a broken connection | `BackendUnavailable` |
| any other status | `InvalidRequest`; retryable for 409, a temporary conflict |
| an answer that is unreadable or cut off | `MalformedResponse` |
"""

from __future__ import annotations

import math
import re
import socket
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit
from urllib.request import getproxies

from mellea_like.backends.openai_events import ServerError, providers_reason
from mellea_like.core.backend import Preferred
from mellea_like.core.display import excerpt
from mellea_like.errors import (
    AuthenticationFailed,
    BackendError,
    BackendTimeout,
    BackendUnavailable,
    InvalidRequest,
    MalformedResponse,
    MelleaError,
    RateLimited,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from mellea_like.core.backend import Options

MAX_RETRY_AFTER = 86_400.0
"""The longest wait that a server can ask for, in seconds; longer waits are cut to this."""

ERROR_STATUSES = range(400, 600)

SPENT = ("insufficient_quota", "billing_hard_limit_reached")
"""The error codes of 429 responses for which waiting doesn't help."""

LONGEST_WORD = 200
"""The most characters of an error code or of a field's name; longer texts are ignored."""

SDK_ERRORS = ("OpenAIError", "AnthropicError")
"""The names of the SDKs' base exceptions. If an exception of such a class isn't also an
``APIError``, nothing was sent."""

SHORTEST_SECRET = 4
"""The least length, in characters, at which a secret is removed from messages. A shorter text may
also be part of ordinary words."""

TRANSPORTS = ("httpx2", "httpcore2", "httpx", "httpcore", "h11", "h2", "anyio", "trio", "botocore")
"""Packages whose exceptions mean that the connection failed."""

UNSENT = (
    "ConnectError",
    "ConnectTimeout",
    "ConnectionRefusedError",
    "EndpointConnectionError",
    "InvalidURL",
    "NotImplementedError",
    "PoolTimeout",
    "UnsupportedProtocol",
    "UserError",
)
"""The names of exceptions that Python, the HTTP libraries and Pydantic AI raise before a request is
sent."""

STATUSES: dict[int, tuple[type[BackendError], bool | None]] = {
    401: (AuthenticationFailed, None),
    403: (AuthenticationFailed, None),
    408: (BackendTimeout, None),
    409: (InvalidRequest, True),  # A temporary conflict.
    429: (RateLimited, None),
}

REDIRECTS = range(300, 400)

NO_POST = (301, 302, 303)
"""The redirects after which clients ask again with GET, which no server of models answers."""

REFUSALS = (400, 422)
"""The HTTP statuses with which a server says that something in the request is wrong."""


def retry_after(headers: Mapping[str, str], now: datetime) -> float | None:
    """Return the wait in seconds from ``retry-after-ms`` or ``Retry-After``; None if unknown."""
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        with suppress(ValueError):
            seconds = float(headers.get(name, "")) * unit
            if math.isfinite(seconds) and seconds >= 0:
                return min(seconds, MAX_RETRY_AFTER)
    with suppress(ValueError, TypeError, OverflowError, IndexError):
        date = parsedate_to_datetime(headers.get("retry-after", ""))
        if date.tzinfo is None:
            date = date.replace(tzinfo=UTC)
        return min(max((date - now).total_seconds(), 0.0), MAX_RETRY_AFTER)
    return None


class Translator:
    """Translates errors into this library's, without chaining: the SDK's may contain the key."""

    def __init__(
        self,
        url: str,
        model: str | None,
        timeout: float | None,
        secrets: Iterable[str],
        total: float | None = None,
        hint: str = "",
    ) -> None:
        self._where = url
        self._hint = hint
        self._model = model
        self._timeout = timeout
        self._total = total
        # The longest come first, in case one secret contains another.
        self._secrets = sorted(
            {s for s in secrets if len(s) >= SHORTEST_SECRET}, key=len, reverse=True
        )

    def clean(self, text: str) -> str:
        """Shorten a text and remove secrets from it."""
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return excerpt(text)

    def of(self, exc: Exception) -> BackendError:
        """Translate the exception of a request."""
        said = f"{type(exc).__name__}: {self.clean(str(exc))}"
        causes = tuple(causes_of(exc))
        match exc:
            case BackendError():
                return exc
            case ServerError():
                return _named(self._of_kind(exc), exc.code, None, exc.kind)
            case _ if is_a(exc, "APIStatusError"):
                answered: Any = exc
                response = _lost_post(answered.response)
                return self.refusal(response.status_code, response.headers, answered.body)
            case _ if is_a(exc, *SDK_ERRORS) and not is_a(exc, "APIError"):
                if "Token" in type(exc).__name__ or "redential" in str(exc):
                    return AuthenticationFailed(f"no credentials for {self._where} ({said})")
                return InvalidRequest(f"the SDK refused the request to {self._where} ({said})")
            case _:
                pass
        unconnected = any(type(cause).__name__ == "ConnectTimeout" for cause in causes)
        late = isinstance(exc, TimeoutError) or is_a(exc, "APITimeoutError", "TimeoutException")
        if late and not unconnected:
            return self.silent()
        if unconnected or is_a(exc, "APIConnectionError") or failed_in_transport(exc):
            return self._of_connection(causes)
        return self.malformed(said)

    def refusal(self, status: int, headers: Mapping[str, str], body: object) -> BackendError:
        """Return the error for an error status; the body is text, parsed JSON or its ``error``."""
        wait = retry_after(headers, datetime.now(UTC))
        errors = cast("list[object]", body) if isinstance(body, list) else [body]
        body = errors[0] if errors else ""  # Google's servers send a list of one error.
        fields = _fields(body)
        if not fields.get("message"):
            fields = _fields(fields.get("error")) or fields
        if wait is None:
            wait = _googles_wait(fields)
        code, kind = fields.get("code"), fields.get("type")
        message = _message(fields, body)
        if status in REDIRECTS and "location" in headers:
            message = f"it redirects to {headers['location']}; check the base URL"
        error = self._by_status(status, message, (code, kind), wait)
        return _named(error, code, fields.get("param"), kind)

    def malformed(self, what: str, body: str = "", *, began: bool = True) -> MalformedResponse:
        """Return the error for an unreadable response, with the ``hint`` if no reply began."""
        shown = f": {self.clean(body)}" if body else ""
        hint = "" if began else self._hint
        return MalformedResponse(f"{self._where} sent {what}{shown}{hint}")

    def silent(self) -> BackendTimeout:
        """Return the error for a server that sent nothing for too long."""
        limit = self._timeout
        within = "in time" if limit is None else f"for {limit:g} s, the backend's timeout"
        return BackendTimeout(f"{self._where} sent nothing {within}")

    def late(self) -> BackendTimeout:
        """Return the error for a request that took too long as a whole."""
        return BackendTimeout(
            f"{self._where} did not finish within {self._total:g} s, the backend's total_timeout"
        )

    def unsendable(self, exc: Exception) -> InvalidRequest:
        """Return the error for a request that JSON or HTTP can't express."""
        return InvalidRequest(
            f"the request to {self._where} can't be encoded:"
            f" {type(exc).__name__}: {self.clean(str(exc))}"
        )

    def _of_kind(self, exc: ServerError) -> BackendError:
        if type(exc.code) is int and exc.code in ERROR_STATUSES:
            return self._by_status(exc.code, exc.message, (exc.kind,), None)
        kinds = f"{exc.code} {exc.kind}"
        if "rate_limit" in kinds or "insufficient_quota" in kinds:
            return self._by_status(429, exc.message, (str(exc.code), exc.kind), None)
        if "invalid_" in kinds:
            return self._by_status(400, exc.message, (), None)
        return BackendUnavailable(
            f"{self._where} ended its reply with an error: {self.clean(exc.message)}"
        )

    def _by_status(
        self, status: int, message: str, codes: Iterable[str | None], wait: float | None
    ) -> BackendError:
        kind, retryable = kind_of_status(status)
        if kind is RateLimited and any(code in SPENT for code in codes):
            retryable = False
        advice = ""
        if status == 404:  # noqa: PLR2004 (not found)
            model = "" if self._model is None else f"the model {self._model!r} and "
            usual = "" if "/v1" in self._where else ", which usually ends in /v1"
            advice = f"; check {model}the base URL{usual}{self._hint}"
        return self.answered(status, message, (kind, retryable), wait, advice)

    def answered(
        self,
        status: int | None,
        message: str,
        error: tuple[type[BackendError], bool | None],
        wait: float | None,
        advice: str = "",
    ) -> BackendError:
        """Return the error for a server's answer, with a kind and whether to retry."""
        kind, retryable = error
        if kind is AuthenticationFailed:
            advice = "; check the API key"
        elif kind is RateLimited and retryable is False:
            advice = "; the quota is used up"
        answered = "failed" if status is None else f"answered {status}"
        said = f"{self._where} {answered}: {self.clean(message)}{advice}"
        return kind(said, status=status, retryable=retryable, retry_after=wait)

    def _of_connection(self, causes: tuple[BaseException, ...]) -> BackendError:
        if any(isinstance(cause, ConnectionRefusedError) for cause in causes):
            proxied = urlsplit(self._where).scheme in getproxies()
            proxy = ", and the environment's proxy, if it is used" if proxied else ""
            why = f"connection refused; is the server running{proxy}?"
        elif any(isinstance(cause, socket.gaierror) for cause in causes):
            why = "the host name can't be resolved; check the base URL and the network"
        elif any(type(cause).__name__ == "ConnectTimeout" for cause in causes):
            why = "the connection timed out; check the base URL and the network"
        else:
            why = next((self.clean(str(c)) for c in reversed(causes) if str(c)), "")
            why = f"the connection failed ({why or type(causes[-1]).__name__})"
        return BackendUnavailable(f"can't reach {self._where}: {why}")


def _message(fields: dict[str, Any], body: object) -> str:
    message = fields.get("message") or fields.get("detail") or fields.get("error") or body
    problems = _fields(fields.get("mellea_like")).get("problems")  # Of this library's gateway.
    if isinstance(problems, list) and problems:
        why = "; ".join(map(str, cast("list[object]", problems)))
        message = f"no reply met all requirements: {why}"
    return f"{str(message or '').strip() or 'no reason given'}{providers_reason(fields)}"


def _googles_wait(fields: dict[str, Any]) -> float | None:
    """Return the seconds to wait in an error of Google's: ``RetryInfo`` with a delay like "34s".

    https://github.com/googleapis/googleapis/blob/master/google/rpc/error_details.proto
    """
    details = fields.get("details")
    for detail in cast("list[object]", details) if isinstance(details, list) else ():
        delay = _fields(detail).get("retryDelay")
        if isinstance(delay, str) and delay.endswith("s"):
            return retry_after({"retry-after": delay[:-1]}, datetime.now(UTC))
    return None


def _lost_post(response: Any) -> Any:
    """Return the redirect that turned a POST into a GET, or else the response itself."""
    for earlier in response.history:
        if earlier.status_code in NO_POST and earlier.request.method == "POST":
            return earlier
    return response


def _named(error: BackendError, code: object, param: object, kind: object) -> BackendError:
    """Return the error with the server's code, parameter and type, for programs to act on."""
    for name, said in (("code", code), ("param", param), ("kind", kind)):
        if isinstance(said, str) and said and len(said) <= LONGEST_WORD:
            setattr(error, name, said)
    return error


def _fields(body: object) -> dict[str, Any]:
    return cast("dict[str, Any]", body) if isinstance(body, dict) else {}


# --- recognizing errors, whatever the provider ----------------------------------------------------


def kind_of_status(status: int) -> tuple[type[BackendError], bool | None]:
    """Return an HTTP status's error class, and whether to retry (None for the class's default)."""
    failed = BackendUnavailable if status >= 500 else InvalidRequest  # noqa: PLR2004
    return STATUSES.get(status, (failed, None))


def refuses_preferred(error: BackendError, options: Options) -> bool:
    """Return whether a server refused a request because of the `Preferred` temperature in it.

    OpenAI says "Unsupported value: 'temperature' does not support 0 with this model" or
    "Unsupported parameter: 'temperature'", and Moonshot says "invalid temperature: only 1 is
    allowed for this model". Other servers use other words, but all of them contain "temperature".
    """
    if error.status not in REFUSALS or not isinstance(options.temperature, Preferred):
        return False
    return re.search(r"\btemperature\b", error.said, re.IGNORECASE) is not None


def refuses_length(error: BackendError) -> bool:
    """Return whether a server refused the name of the field that limits a reply's length.

    OpenAI says "Unsupported parameter: 'max_tokens' is not supported with this model. Use
    'max_completion_tokens' instead", an older Azure "Unrecognized request argument supplied:
    max_completion_tokens", and Mistral "Extra inputs are not permitted".
    """
    if (
        error.status not in REFUSALS
        or re.search(r"\bmax(_completion)?_tokens\b", error.said) is None
    ):
        return False
    unknown = r"not supported|not permitted|extra_forbidden|unrecognized|unknown"
    return re.search(unknown, error.said, re.IGNORECASE) is not None


def failed_in_transport(exc: BaseException) -> bool:
    """Return whether an exception means that the connection failed."""
    package = type(exc).__module__.partition(".")[0]
    return isinstance(exc, OSError | EOFError) or package in TRANSPORTS


def is_a(exc: BaseException, *names: str) -> bool:
    """Return whether an exception's class, or one of its base classes, has one of the names."""
    return any(kind.__name__ in names for kind in type(exc).__mro__)


def causes_of(exc: BaseException) -> Iterator[BaseException]:
    """Yield an exception, its causes and group members, but none of this library's errors."""
    seen: set[int] = set()
    pending: list[BaseException | None] = [exc]
    while pending:
        found = pending.pop(0)
        # Our errors are about other requests, such as an earlier try.
        if found is None or id(found) in seen or isinstance(found, MelleaError):
            continue
        seen.add(id(found))
        yield found
        pending.append(found.__cause__ or found.__context__)
        if isinstance(found, BaseExceptionGroup):
            pending.extend(cast("BaseExceptionGroup[BaseException]", found).exceptions)


def never_sent(exc: BaseException) -> bool:
    """Return whether a request failed before any of it could be sent, so that it costs nothing."""
    return any(is_a(cause, *UNSENT) for cause in causes_of(exc))
