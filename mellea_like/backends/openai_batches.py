"""The Batch API of OpenAI and of Azure, through the official SDK."""

from __future__ import annotations

import re
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Literal, cast

import anyio

from mellea_like.backends.batch_api import JobError, JobLimits, JobOutcome, JobState
from mellea_like.core.argument_checks import check_one_of
from mellea_like.lazy import needs_extra

with needs_extra("openai", "OpenAIBatches needs the official SDK"):
    from mellea_like.backends.openai_server import OpenAIServer

from mellea_like.backends.batch_files import JSON_LINES, mapped, plain
from mellea_like.backends.openai_chat import request_body
from mellea_like.backends.openai_reply import CHAT_USAGE, Reply, read_usage
from mellea_like.backends.openai_responses import USAGE, Response, responses_body
from mellea_like.backends.sdk_batches import KEY, SDKBatches
from mellea_like.errors import BackendTimeout, InvalidRequest

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping
    from pathlib import Path

    import openai
    from openai.types import Batch, FileObject

    from mellea_like.backends.batch_api import Intention
    from mellea_like.backends.output_mode import Mode, OutputTool
    from mellea_like.backends.server_errors import Translator
    from mellea_like.core.backend import Options, Request
    from mellea_like.core.generation import Generation, RequestMeter

__all__ = ["OpenAIBatches"]

PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses"}

OPENAI = JobLimits(requests=50_000, bytes=200_000_000)
"""OpenAI's limits for a job (https://platform.openai.com/docs/guides/batch)."""

AZURE = JobLimits(requests=100_000, bytes=200_000_000)
"""Azure's limits for a job (https://learn.microsoft.com/azure/ai-services/openai/how-to/batch)."""

ENDED = ("completed", "failed", "expired", "cancelled")

FULL = re.compile(r"token_limit_exceeded|enqueued", re.IGNORECASE)
"""Matches the error codes and messages of a job that was refused because too much is queued."""

UNRUN: dict[str, Literal["expired", "cancelled"]] = {
    "batch_expired": "expired",
    "batch_cancelled": "cancelled",
}

PASSING = ("server_error", "rate_limit_exceeded", "timeout")
"""The codes of temporary errors, after which the same request may succeed."""

FILE_SECONDS = 2.0
"""The interval, in seconds, at which to check whether Azure has processed a file."""


class OpenAIBatches(SDKBatches):
    """A model behind the Batch API of OpenAI or Azure: answers within a day, at half the price.

    On Azure, a job may take longer, and doesn't expire. A job's key is in its ``metadata``, under
    ``"mellea_like_job"``. This class works on asyncio and trio, and in one event loop after
    another. It retries nothing.

    Args:
        model: the model's name; on Azure, the name of a deployment for batches.
        base_url: the server's URL; by default ``OPENAI_BASE_URL``, else OpenAI's own server.
        api_key: the key; by default ``OPENAI_API_KEY``. Both environment variables are read when
            first needed.
        client: a ready `openai.AsyncOpenAI`, such as an `openai.AsyncAzureOpenAI`, instead of
            ``base_url`` and ``api_key``. It is used unchanged, except that its retries are turned
            off. It belongs to one event loop, and is never closed here.
        options: defaults for the options that a request leaves open.
        can_judge: whether the model may judge requirements.
        output: how to ask for a reply in a ``format``, as in `OpenAIBackend`, but not ``"auto"``,
            because a job can't try one mode after another.
        api: ``"chat"`` for chat completions, or ``"responses"`` for the Responses API. The latter
            has no seeds, stop texts or audio; requests with any of these are refused.
        timeout: how long the server may send nothing, in seconds; None for no limit.

    Attributes:
        name: ``"openai"``, or ``"azure"`` on Azure.
        model: as given.
        limits: 50,000 requests (on Azure 100,000) and 200 MB per job.
        defaults: ``options``, as given.
        can_judge: as given.

    Raises:
        TypeError: an argument is of the wrong type, or the model's name is empty.
        ValueError: ``base_url`` isn't an HTTP URL, ``client`` is combined with a key or a URL,
            ``output`` is ``"auto"``, ``output``, ``api`` or an option is unknown, or a number is
            out of range.
    """

    _server: OpenAIServer

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        client: openai.AsyncOpenAI | None = None,
        options: Options | Mapping[str, Any] | None = None,
        can_judge: bool = True,
        output: Mode = "json_schema",
        api: Literal["chat", "responses"] = "chat",
        timeout: float | None = 600.0,
    ) -> None:
        check_one_of("api", api, PATHS)
        super().__init__(
            model,
            OpenAIServer(base_url, api_key, client),
            options=options,
            can_judge=can_judge,
            output=output,
            timeout=timeout,
        )
        self._api: Literal["chat", "responses"] = api
        azure = self._server.is_azure
        self.name = "azure" if azure else "openai"
        self.limits = AZURE if azure else OPENAI
        self._path = PATHS[api].removeprefix("/v1") if azure else PATHS[api]

    # --- requests and replies ---------------------------------------------------------------------

    def body(self, request: Request) -> dict[str, Any]:
        """Return the body of a request; see `BatchAPI.body`."""
        options = self._options(request)
        self._one_model(options)
        output = self._demand(request, options)
        official = self._server.is_official
        if self._api == "responses":
            if options.seed is not None:
                msg = "the Responses API has no seed: leave the option out, or use api='chat'"
                raise InvalidRequest(msg)
            body = responses_body(request, options, self.model, official=official, output=output)
        else:
            body = request_body(request, options, self.model, official=official, output=output)
        for name in ("stream", "stream_options"):
            body.pop(name, None)
        return plain(body)

    def _entry(self, custom_id: str, body: Mapping[str, Any]) -> dict[str, Any]:
        return {"custom_id": custom_id, "method": "POST", "url": self._path, "body": body}

    def _read(
        self, reply: dict[str, Any], meter: RequestMeter, tool: OutputTool | None
    ) -> Generation:
        kind = Response if self._api == "responses" else Reply
        reader = kind(meter, self.model, output=tool)
        reader.take_whole(reply)
        return reader.generation()

    def _count(self, reply: Mapping[str, Any], meter: RequestMeter) -> None:
        names = USAGE if self._api == "responses" else CHAT_USAGE
        read_usage(meter, reply.get("usage"), final=True, names=names)

    # --- jobs -------------------------------------------------------------------------------------

    def _jobs(self, client: openai.AsyncOpenAI) -> Any:
        return client.batches

    async def _upload(self, client: openai.AsyncOpenAI, intention: Intention, lines: Path) -> str:
        async with mapped(lines) as content:
            named: Any = (f"{intention.key}.jsonl", content, JSON_LINES)
            file = await client.files.create(file=named, purpose="batch")
        return await self._read_by_azure(client, file)

    async def _read_by_azure(self, client: openai.AsyncOpenAI, file: FileObject) -> str:
        """Wait until Azure has processed an uploaded file, and return the file's id."""
        with anyio.move_on_after(self._timeout):
            while cast("str", file.status) in ("pending", "running"):
                await anyio.sleep(FILE_SECONDS)
                file = await client.files.retrieve(file.id)
            if file.status == "error":
                msg = f"{self.where} can't read the file of requests: {file.status_details}"
                raise InvalidRequest(msg)
            return file.id
        msg = f"{self.where} did not read the file of requests within {self._timeout:g} s"
        raise BackendTimeout(msg)

    async def _submit(
        self, client: openai.AsyncOpenAI, intention: Intention, uploaded: str
    ) -> JobState:
        endpoint: Any = self._path
        batch = await client.batches.create(
            input_file_id=uploaded,
            endpoint=endpoint,
            completion_window="24h",
            metadata={KEY: intention.key},
        )
        return self._state(batch)

    def _state(self, job: Batch) -> JobState:
        counts = job.request_counts
        told = (job.errors and job.errors.data) or ()
        errors = tuple(JobError(e.code or "", e.message or "", e.line) for e in told)
        full = any(FULL.search(f"{error.code} {error.message}") for error in errors)
        expires = None if self._server.is_azure else job.expires_at
        return JobState(
            job.id,
            job.status,
            job.status in ENDED,
            total=counts.total if counts else 0,
            succeeded=counts.completed if counts else 0,
            failed=counts.failed if counts else 0,
            created=float(job.created_at),
            expires=None if expires is None else float(expires),
            full=job.status == "failed" and full,
            errors=errors,
            # Some servers say that there is no file with an empty id.
            outputs=(job.output_file_id or "", job.error_file_id or ""),
        )

    async def _discard(self, client: openai.AsyncOpenAI, uploaded: str) -> None:
        await client.files.delete(uploaded)

    @asynccontextmanager
    async def _content(self, client: openai.AsyncOpenAI, file: str) -> AsyncGenerator[Any]:
        async with client.files.with_streaming_response.content(file) as response:
            yield response.http_response

    def _failed(self, error: Any) -> JobOutcome:
        told = cast("dict[str, Any]", error) if isinstance(error, dict) else {}
        code, message = str(told.get("code") or ""), str(told.get("message") or "")
        if code in UNRUN:
            return JobOutcome(error=message, unrun=UNRUN[code])
        return JobOutcome(error=message or code or "no reason given", retryable=code in PASSING)

    # --- the client -------------------------------------------------------------------------------

    def _translator(self, client: openai.AsyncOpenAI) -> Translator:
        return self._server.translator(client, None, self._timeout)
