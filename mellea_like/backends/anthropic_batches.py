"""Anthropic's Message Batches, through the official SDK."""

from __future__ import annotations

from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from mellea_like.backends.batch_api import JobLimits, JobOutcome, JobState
from mellea_like.lazy import needs_extra

with needs_extra("anthropic", "AnthropicBatches needs the official SDK"):
    import anthropic
    from anthropic.types.messages import MessageBatch

from mellea_like.backends.anthropic_messages import MessageReply, count_message, messages_body
from mellea_like.backends.batch_files import JoinedLines, mapped, plain
from mellea_like.backends.sdk_batches import SDKBatches
from mellea_like.backends.server_address import Server
from mellea_like.backends.server_errors import Translator, kind_of_status
from mellea_like.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator, Mapping

    from mellea_like.backends.batch_api import Intention
    from mellea_like.backends.output_mode import Mode, OutputTool
    from mellea_like.backends.sdk_batches import Listed
    from mellea_like.core.backend import Options, Request
    from mellea_like.core.generation import Generation, RequestMeter

__all__ = ["AnthropicBatches"]

BEFORE, AFTER = b'{"requests":[', b"]}"
"""The JSON before and after the requests in the body that creates a job."""

LIMITS = JobLimits(requests=100_000, bytes=256_000_000 - len(BEFORE + AFTER))
"""Anthropic's limits for a job
(https://platform.claude.com/docs/en/build-with-claude/batch-processing#batch-limitations)."""

WITH_SAMPLING = "2023-06-01"
"""The last version of Anthropic's API that accepts temperatures. A client can ask for this version
in its headers."""

STATUSES = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "api_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}
"""The HTTP status of each type of error (https://platform.claude.com/docs/en/api/errors)."""

UNRUN: dict[str, Literal["expired", "cancelled"]] = {"expired": "expired", "canceled": "cancelled"}


class _Server(Server[anthropic.AsyncAnthropic]):
    client_type = anthropic.AsyncAnthropic
    client_name = "an anthropic.AsyncAnthropic"
    official_url = "https://api.anthropic.com"
    url_variable = "ANTHROPIC_BASE_URL"
    key_variable = "ANTHROPIC_API_KEY"


class AnthropicBatches(SDKBatches):
    """A model behind Anthropic's Message Batches: answers within a day, at half the price.

    Anthropic checks a job's requests only when they run, so `body` raises an error for a request
    that Anthropic is known to refuse. Anthropic's jobs can't store a key, so ``find`` recognizes a
    job by the custom ids of its results, once the job has ended. Results are kept for 29 days. This
    class works on asyncio and trio, and in one event loop after another. It retries nothing.

    Args:
        model: the model's name. A request's options may name another one.
        base_url: the server's URL; by default ``ANTHROPIC_BASE_URL``, else Anthropic's own server.
        api_key: the key; by default ``ANTHROPIC_API_KEY``. Both environment variables are read when
            first needed.
        client: a ready `anthropic.AsyncAnthropic`, instead of ``base_url`` and ``api_key``. It is
            used unchanged, except that its retries are turned off. It belongs to one event loop,
            and is never closed here.
        options: defaults for the options that a request leaves open. Anthropic needs ``max_tokens``
            and has no ``seed``. For ``temperature`` and ``top_p``, pass a ``client`` whose header
            ``anthropic-version`` is ``2023-06-01``, because later versions refuse them. ``extra``
            may have ``thinking`` or ``output_config``, for example.
        can_judge: whether the model may judge requirements.
        output: how to ask for a reply in a ``format``: ``"json_schema"`` (the API's structured
            outputs), ``"tool"`` or ``"prompt"``; see `OpenAIBackend`.
        timeout: how long the server may send nothing, in seconds; None for no limit.

    Attributes:
        name: ``"anthropic"``.
        model: as given.
        limits: 100,000 requests and 256 MB per job.
        defaults: ``options``, as given.
        can_judge: as given.

    Raises:
        TypeError: an argument is of the wrong type, or the model's name is empty.
        ValueError: ``base_url`` isn't an HTTP URL, ``client`` is combined with a key or a URL,
            ``output`` is ``"auto"``, ``output`` or an option is unknown, or a number is out of
            range.
    """

    name = "anthropic"
    limits = LIMITS
    _kept = " (Anthropic keeps them for 29 days after a job's creation)"
    _server: _Server

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        client: anthropic.AsyncAnthropic | None = None,
        options: Options | Mapping[str, Any] | None = None,
        can_judge: bool = True,
        output: Mode = "json_schema",
        timeout: float | None = 600.0,
    ) -> None:
        super().__init__(
            model,
            _Server(base_url, api_key, client),
            options=options,
            can_judge=can_judge,
            output=output,
            timeout=timeout,
        )
        given = "" if client is None else client.default_headers.get("anthropic-version", "")
        self._sampling = given == WITH_SAMPLING
        self._refuses_temperature = not self._sampling

    # --- requests and replies ---------------------------------------------------------------------

    def body(self, request: Request) -> dict[str, Any]:
        """Return the body of one request of a job; see `BatchAPI.body`."""
        options = self._options(request)
        body = messages_body(
            request,
            options,
            options.model or self.model,
            output=self._demand(request, options),
            sampling=self._sampling,
            narrowed=_narrowed,
        )
        return plain(body)

    def _entry(self, custom_id: str, body: Mapping[str, Any]) -> dict[str, Any]:
        return {"custom_id": custom_id, "params": body}

    def _read(
        self, reply: dict[str, Any], meter: RequestMeter, tool: OutputTool | None
    ) -> Generation:
        reader = MessageReply(meter, self.model, output=tool)
        reader.take_whole(reply)
        return reader.generation()

    def _count(self, reply: Mapping[str, Any], meter: RequestMeter) -> None:
        count_message(reply, meter)

    # --- jobs -------------------------------------------------------------------------------------

    def _jobs(self, client: anthropic.AsyncAnthropic) -> Any:
        return client.messages.batches

    async def _is_it(self, client: Any, listed: Listed, intention: Intention) -> bool | None:
        state = listed.state  # Jobs carry no key, but their results have custom ids.
        if state.total != intention.count:
            return False
        if not state.ended:
            return None
        if state.outputs:
            with suppress(InvalidRequest):  # Its results are deleted, so it could be of no use.
                async with aclosing(self._results(client, state)) as results:
                    async for result in results:
                        return result.custom_id.startswith(intention.prefix)
        return False

    async def _upload(self, client: Any, intention: Intention, lines: Path) -> str:  # noqa: ARG002
        return str(lines)  # The requests are part of what creates the job.

    async def _discard(self, client: Any, uploaded: str) -> None:
        pass  # The caller's file is the caller's.

    async def _submit(
        self,
        client: anthropic.AsyncAnthropic,
        intention: Intention,  # noqa: ARG002 (there is no place for its key)
        uploaded: str,
    ) -> JobState:
        async with mapped(Path(uploaded)) as content:
            joined = JoinedLines(content, BEFORE, AFTER)
            length = str(joined.length)
            # As `client.messages.batches.create`, but without all requests in memory.
            batch = await client.post(
                "/v1/messages/batches",
                cast_to=MessageBatch,
                content=joined,
                options={"headers": {"Content-Type": "application/json", "Content-Length": length}},
            )
        return self._state(batch)

    def _state(self, job: MessageBatch) -> JobState:
        counts = job.request_counts
        unrun = counts.processing + counts.canceled + counts.expired
        return JobState(
            job.id,
            job.processing_status,
            job.processing_status == "ended",
            total=counts.succeeded + counts.errored + unrun,
            succeeded=counts.succeeded,
            failed=counts.errored,
            created=job.created_at.timestamp(),
            expires=job.expires_at.timestamp(),
            outputs=(job.results_url,) if job.results_url else (),
        )

    def _files(self, state: JobState) -> Iterator[tuple[str, int]]:
        yield state.id, state.total

    @asynccontextmanager
    async def _content(self, client: anthropic.AsyncAnthropic, file: str) -> AsyncGenerator[Any]:
        try:
            async with client.messages.batches.with_streaming_response.results(file) as response:
                yield response.http_response
        except anthropic.AnthropicError as exc:
            # The SDK raises its base class if the job has no results, or none any more.
            if isinstance(exc, anthropic.APIError):
                raise
            msg = (
                f"{self.where}: the job {file} has no results: it hasn't ended, or they are"
                f" gone{self._kept}"
            )
            raise InvalidRequest(msg) from None

    def _outcome(self, line: Mapping[str, Any]) -> JobOutcome:
        result: dict[str, Any] = line["result"]
        kind = str(result.get("type"))
        if kind in UNRUN:
            return JobOutcome(unrun=UNRUN[kind])
        message = result.get("message")
        if kind == "succeeded" and isinstance(message, dict):
            return JobOutcome(reply=cast("dict[str, Any]", message))
        error: Any = result.get("error") or {}
        return self._failed(error.get("error") or error)

    def _failed(self, error: Any) -> JobOutcome:
        status = STATUSES.get(str(error.get("type")), 500)
        found, retryable = kind_of_status(status)
        retryable = found.default_retryable if retryable is None else retryable
        said = str(error.get("message") or error.get("type") or "no reason given")
        return JobOutcome(error=said, status=status, retryable=retryable)

    # --- the client -------------------------------------------------------------------------------

    def _translator(self, client: anthropic.AsyncAnthropic) -> Translator:
        secrets = filter(None, (client.api_key, client.auth_token))
        return Translator(self.where, None, self._timeout, secrets)


def _narrowed(schema: dict[str, Any]) -> dict[str, Any]:
    try:
        return anthropic.transform_schema(schema)
    except ValueError as exc:
        msg = f"Anthropic doesn't support this type's schema ({exc}): use output='tool'"
        raise InvalidRequest(msg) from None
