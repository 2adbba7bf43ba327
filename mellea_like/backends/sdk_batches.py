"""The common part of the batch APIs: requests through an SDK, downloads, and replies."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from contextlib import aclosing, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

import anyio

from mellea_like.backends.batch_api import JobOutcome, JobResult, JobState
from mellea_like.backends.batch_files import BrokenLineError, json_lines, write_line
from mellea_like.backends.closing import close
from mellea_like.backends.loop_clients import LoopClients
from mellea_like.backends.openai_events import ReplyTooLongError, ServerError
from mellea_like.backends.output_mode import OutputModes
from mellea_like.backends.server_errors import (
    SDK_ERRORS,
    Translator,
    is_a,
    kind_of_status,
    never_sent,
    refuses_preferred,
)
from mellea_like.core.argument_checks import real_number
from mellea_like.core.backend import Options, insisted
from mellea_like.core.generation import RequestMeter, Usage
from mellea_like.errors import (
    BackendError,
    BackendUnavailable,
    InvalidRequest,
    MalformedResponse,
)

if TYPE_CHECKING:
    from collections.abc import (
        AsyncGenerator,
        AsyncIterator,
        Awaitable,
        Iterator,
        Mapping,
        Sequence,
    )
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from mellea_like.backends.batch_api import Intention, JobLimits
    from mellea_like.backends.output_mode import Demand, Mode, OutputTool
    from mellea_like.backends.server_address import Server
    from mellea_like.core.backend import Request
    from mellea_like.core.generation import Generation

T = TypeVar("T")

KEY = "mellea_like_job"
"""The name of the metadata field that has a job's key."""

PAGE = 100
"""The most jobs on a page of a provider's list of jobs."""

REQUEST_TIMEOUT = 408

CLEAN_SECONDS = 10.0
"""The longest time to spend on deleting the file of a refused job, in seconds."""

SHOWN = 200
"""The number of characters to show of a line that can't be read."""

BUGS = (TypeError, AttributeError, LookupError, RuntimeError)
"""Exceptions that an SDK raises for a request that it can't encode, before anything is sent."""


class Listed(NamedTuple):
    """A job in a provider's list, with its key if the provider stores one."""

    state: JobState
    key: str | None = None


class SDKBatches(ABC):
    """A base class for implementations of `BatchAPI` that use a provider's SDK."""

    name: str
    limits: JobLimits
    _kept = ""
    """How long the provider keeps results, for an error message."""

    def __init__(
        self,
        model: str,
        server: Server[Any],
        *,
        options: Options | Mapping[str, Any] | None,
        can_judge: bool,
        output: Mode,
        timeout: float | None,
    ) -> None:
        kind = type(self).__name__
        if not isinstance(model, str) or not model:
            msg = f"{kind} needs the model's name, not {model!r}"
            raise TypeError(msg)
        self._modes = OutputModes(output)
        if self._modes.output == "auto":
            msg = f"{kind} can't try output modes, so output can't be 'auto': choose a mode"
            raise ValueError(msg)
        if timeout is not None:
            real_number("timeout", timeout, over=0, unit="seconds")
        self.model = model
        self.defaults = Options.of(options)
        self.can_judge = can_judge
        self._timeout = timeout
        self._refuses_temperature = False
        self._server = server
        self._clients: LoopClients[Any] = LoopClients(self._make_client, close=server.given is None)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.model!r} at {self.where}>"

    @property
    def where(self) -> str:
        """The server's URL, without credentials."""
        return self._server.shown_url.rstrip("/")

    @abstractmethod
    def body(self, request: Request) -> dict[str, Any]:
        """Return the body of a request; see `BatchAPI.body`."""

    # --- requests and replies ---------------------------------------------------------------------

    def line(self, custom_id: str, body: Mapping[str, Any]) -> str:
        """Return one request of a job as a line of JSON; see `BatchAPI.line`."""
        return write_line(self._entry(custom_id, body))

    def reply(self, request: Request, outcome: JobOutcome, meter: RequestMeter) -> Generation:
        """Read the reply to a request; see `BatchAPI.reply`."""
        if outcome.reply is None:
            meter.settle(input_tokens=0, output_tokens=0)
            raise self._failure(request, outcome)
        demand = self._demand(request, request.options.over(self.defaults))
        translator = Translator(self.where, self.model, self._timeout, ())
        error: BackendError
        try:
            return self._read(outcome.reply, meter, None if demand is None else demand.tool)
        except (ServerError, ReplyTooLongError) as exc:
            error = translator.of(exc)
        except (ValueError, TypeError, AttributeError, LookupError) as exc:
            error = translator.malformed(f"an invalid reply ({translator.clean(str(exc))})")
        self._count(outcome.reply, meter)
        raise error

    def usage(self, outcome: JobOutcome) -> Usage:
        """Return the cost of a request; see `BatchAPI.usage`."""
        if outcome.unrun:
            return Usage()
        meter = RequestMeter()
        if outcome.reply is None:
            meter.settle(input_tokens=0, output_tokens=0)
        else:
            self._count(outcome.reply, meter)
        return meter.usage

    def _options(self, request: Request) -> Options:
        """Return a request's options, without a temperature that the model refuses."""
        options = insisted(request.options) if self._refuses_temperature else request.options
        options = options.over(self.defaults)
        for name in ("stream", "background"):
            if options.extra.get(name):
                msg = f"requests in a batch can't set {name}: leave it out of options.extra"
                raise InvalidRequest(msg)
        return options

    def _one_model(self, options: Options) -> None:
        if options.model not in (None, self.model):
            msg = (
                f"all requests of a job must use the same model: this one uses {options.model!r},"
                f" the batch API {self.model!r}"
            )
            raise InvalidRequest(msg)

    def _demand(self, request: Request, options: Options) -> Demand | None:
        if request.format is None:
            return None
        return self._modes.begin(request, options.model or self.model, options).demand

    def _failure(self, request: Request, outcome: JobOutcome) -> BackendError:
        """Return the error of a request without a reply."""
        if outcome.unrun:
            what = "expired" if outcome.unrun == "expired" else "was cancelled"
            return BackendUnavailable(f"{self.where}: the job {what} before this request's turn")
        status, retryable = outcome.status, outcome.retryable
        if status is None:
            unknown = BackendUnavailable if retryable else InvalidRequest
            return unknown(f"{self.where} failed: {outcome.error}", retryable=retryable)
        kind, _ = kind_of_status(status)
        said = f"{self.where} answered {status}: {outcome.error}"
        error = kind(said, status=status, retryable=retryable)
        if refuses_preferred(error, request.options):  # The next job does without it.
            self._refuses_temperature = error.retryable = True
        return error

    @abstractmethod
    def _entry(self, custom_id: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return a job's entry for one request: the custom id and the body."""

    @abstractmethod
    def _read(
        self, reply: dict[str, Any], meter: RequestMeter, tool: OutputTool | None
    ) -> Generation:
        """Convert a provider's reply to a `Generation`, and settle the meter with its usage."""

    @abstractmethod
    def _count(self, reply: Mapping[str, Any], meter: RequestMeter) -> None:
        """Settle the meter with the usage that a reply reports."""

    # --- jobs -------------------------------------------------------------------------------------

    async def upload(self, intention: Intention, lines: Path) -> str:
        """Upload the requests of a job; see `BatchAPI.upload`."""
        async with self._clients.hold() as client:
            return await self._ask(client, self._upload(client, intention, lines))

    async def create(self, intention: Intention, uploaded: str) -> JobState | None:
        """Submit a job; see `BatchAPI.create`."""
        async with self._clients.hold() as client:
            try:
                return await self._submit(client, intention, uploaded)
            except Exception as exc:
                if may_have_arrived(exc):
                    return None
                if isinstance(exc, BUGS):
                    raise
                error = self._translator(client).of(exc)
            with anyio.move_on_after(CLEAN_SECONDS), suppress(Exception):
                await self._discard(client, uploaded)
            # Outside the handler, so that the SDK's exception does not hang on as the context.
            raise error

    async def known(self) -> Sequence[str]:
        """Return the ids of the newest jobs; see `BatchAPI.known`."""
        async with (
            self._clients.hold() as client,
            aclosing(self._pages(client)) as pages,
        ):
            async for page in pages:
                return [listed.state.id for listed in page]
        return []

    async def find(self, intention: Intention) -> JobState | Literal["perhaps"] | None:
        """Search for a job that may or may not have been created; see `BatchAPI.find`."""
        perhaps = False
        async with (
            self._clients.hold() as client,
            aclosing(_newer(self._pages(client), intention.before)) as jobs,
        ):
            async for listed in jobs:
                is_it = await self._is_it(client, listed, intention)
                if is_it:
                    return listed.state
                perhaps |= is_it is None
        return "perhaps" if perhaps else None

    async def look(self, job: str) -> JobState:
        """Return the present state of a job; see `BatchAPI.look`."""
        async with self._clients.hold() as client:
            return self._state(await self._ask(client, self._jobs(client).retrieve(job)))

    async def cancel(self, job: str) -> JobState:
        """Ask the provider to cancel a job; see `BatchAPI.cancel`."""
        async with self._clients.hold() as client:
            with suppress(InvalidRequest):  # It has just ended, or is about to.
                return self._state(await self._ask(client, self._jobs(client).cancel(job)))
            return self._state(await self._ask(client, self._jobs(client).retrieve(job)))

    @asynccontextmanager
    async def results(self, state: JobState) -> AsyncGenerator[AsyncIterator[JobResult]]:
        """Iterate over the results of an ended job; see `BatchAPI.results`."""
        async with (
            self._clients.hold() as client,
            aclosing(self._results(client, state)) as results,
        ):
            yield results

    async def aclose(self) -> None:
        """Close the running event loop's connections."""
        await self._clients.aclose()

    async def _ask(self, client: Any, answer: Awaitable[T]) -> T:
        """Await an SDK's answer, and translate its exceptions into this library's errors."""
        try:
            return await answer
        except BUGS:
            raise
        except Exception as exc:  # noqa: BLE001 (nothing but the SDK's code runs in there)
            error = self._translator(client).of(exc)
        raise error

    async def _results(self, client: Any, state: JobState) -> AsyncGenerator[JobResult]:
        for file, least in self._files(state):
            body = self._content(client, file)
            async with aclosing(self._download(client, body, least)) as results:
                async for result in results:
                    yield result

    def _files(self, state: JobState) -> Iterator[tuple[str, int]]:
        """Yield the files with a job's results, and how many results each has at least."""
        # A job may have no file of outputs, none of errors, or neither, whatever its status.
        for file, least in zip(state.outputs, (state.succeeded, state.failed), strict=True):
            if file:
                yield file, least

    async def _download(
        self, client: Any, body: AbstractAsyncContextManager[Any], least: int
    ) -> AsyncGenerator[JobResult]:
        """Yield the results in a download; raise an error if it has fewer lines than ``least``."""
        count = 0
        try:
            async with body as response:
                chunks = response.aiter_bytes()
                try:
                    async with aclosing(json_lines(chunks)) as lines:
                        async for line in lines:
                            count += 1
                            if (result := self._result(line)) is not None:
                                yield result
                finally:
                    await close(response, chunks)
            if count >= least:
                return
            error: BackendError = self._cut(f"{count:,} results of {least:,}")
        except BrokenLineError as exc:
            error = self._cut(self._translator(client).clean(str(exc)))
        except BUGS:
            raise
        except Exception as exc:  # noqa: BLE001 (nothing but HTTP happens in there)
            error = self._gone(self._translator(client).of(exc))
        raise error

    def _result(self, line: Mapping[str, Any]) -> JobResult | None:
        """Return the result on a line, or None if the line has no custom id."""
        custom_id = line.get("custom_id")
        if not isinstance(custom_id, str):
            return None
        try:
            return JobResult(custom_id, self._outcome(line))
        except (ValueError, TypeError, AttributeError, LookupError):
            shown = json.dumps(line)[:SHOWN]
            return JobResult(custom_id, JobOutcome(error=f"invalid result: {shown}"))

    def _outcome(self, line: Mapping[str, Any]) -> JobOutcome:
        """Return the outcome that a line of results reports."""
        if not isinstance(line.get("response"), dict):
            return self._failed(line.get("error"))
        response: dict[str, Any] = line["response"]
        status, body = int(response.get("status_code") or 0), response.get("body")
        if 200 <= status < 300 and isinstance(body, dict):  # noqa: PLR2004
            return JobOutcome(reply=body)
        # Some lines have the status 0: the provider has lost them.
        error = Translator("", None, None, ()).refusal(status or 500, {}, body)
        return JobOutcome(error=error.said, status=status or None, retryable=error.retryable)

    def _gone(self, error: BackendError) -> BackendError:
        """Return an error about deleted results if the server answered 404 or 410."""
        if error.status not in (404, 410):
            return error
        msg = f"the job's results are gone{self._kept}: its requests must be sent again ({error})"
        return InvalidRequest(msg, status=error.status)

    def _cut(self, what: str) -> MalformedResponse:
        return MalformedResponse(f"{self.where} cut a download short: it sent {what}")

    @abstractmethod
    async def _upload(self, client: Any, intention: Intention, lines: Path) -> str:
        """Upload a job's file; return its id, or the path if requests are sent with the job."""

    @abstractmethod
    async def _discard(self, client: Any, uploaded: str) -> None:
        """Delete the uploaded file of a job that was refused."""

    def _make_client(self) -> Any:
        """Return the client for an event loop: the user's client, or a new one."""
        server = self._server
        if server.given is not None:
            return server.given.with_options(max_retries=0)
        server.parts()
        return server.client_type(
            api_key=server.api_key, base_url=server.url, timeout=self._timeout, max_retries=0
        )

    @abstractmethod
    def _translator(self, client: Any) -> Translator:
        """Return a translator of the client's errors."""

    @abstractmethod
    async def _submit(self, client: Any, intention: Intention, uploaded: str) -> JobState:
        """Send the one request that creates a job."""

    @abstractmethod
    def _jobs(self, client: Any) -> Any:
        """Return the part of a client that lists, retrieves and cancels jobs."""

    @abstractmethod
    def _state(self, job: Any) -> JobState:
        """Convert a job of the SDK to its state."""

    async def _pages(self, client: Any) -> AsyncGenerator[Sequence[Listed]]:
        """Yield the pages of the provider's list of jobs."""
        page = await self._ask(client, self._jobs(client).list(limit=PAGE))
        while page.data:
            yield [self._listed(job) for job in page.data]
            if not page.has_next_page():
                return
            page = await self._ask(client, page.get_next_page())

    def _listed(self, job: Any) -> Listed:
        metadata: Any = getattr(job, "metadata", None) or {}
        return Listed(self._state(job), metadata.get(KEY))

    async def _is_it(self, client: Any, listed: Listed, intention: Intention) -> bool | None:  # noqa: ARG002
        """Return whether a job in the list is the intended one; None if that isn't known yet."""
        return listed.key == intention.key

    @abstractmethod
    def _content(self, client: Any, file: str) -> AbstractAsyncContextManager[Any]:
        """Open a file of results, and yield the HTTP response with its body still unread."""

    @abstractmethod
    def _failed(self, error: Any) -> JobOutcome:
        """Return the outcome of a request that got the error ``error`` instead of a response."""


async def _newer(
    pages: AsyncGenerator[Sequence[Listed]], before: Sequence[str]
) -> AsyncGenerator[Listed]:
    """Yield the listed jobs whose ids are not in ``before``."""
    # No provider promises an order. If the jobs' times, compared with each other, show that the
    # newest jobs come first, the rest of the list is not read.
    times: list[float] = []
    met = False
    async with aclosing(pages):
        async for page in pages:
            for listed in page:
                times.append(listed.state.created)
                if listed.state.id in before:
                    met = True
                else:
                    yield listed
            if met and times[0] > times[-1] and times == sorted(times, reverse=True):
                return


def may_have_arrived(exc: Exception) -> bool:
    """Return whether a request may have been carried out although its answer was lost."""
    status = getattr(exc, "status_code", getattr(exc, "status", None))
    if isinstance(status, int):
        return status >= 500 or status in (200, 201, REQUEST_TIMEOUT)  # noqa: PLR2004
    if isinstance(exc, (BackendError, *BUGS)) or never_sent(exc):
        return False
    # An SDK's own refusal, such as for a missing key, is no error of the API.
    return is_a(exc, "APIError") or not is_a(exc, *SDK_ERRORS)
