"""Mistral's batch jobs, with the official SDK's types and HTTP library.

The SDK's asynchronous methods call `asyncio.to_thread`, so they don't run on trio. Therefore this
module sends requests with httpx2, the SDK's HTTP library. From the SDK itself, it uses the types of
requests and answers.
"""

from __future__ import annotations

import json
import re
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, NoReturn, cast

from mellea_like.backends.batch_api import JobError, JobLimits, JobOutcome, JobState
from mellea_like.lazy import needs_extra

with needs_extra("mistral", "MistralBatches needs the official SDK"):
    import httpx2
    from mistralai.client import Mistral
    from mistralai.client.models import (
        BatchJob,
        CreateBatchJobRequest,
        CreateFileResponse,
        ListBatchJobsResponse,
    )

from mellea_like.backends.batch_files import JSON_LINES, mapped, plain
from mellea_like.backends.openai_chat import request_fields
from mellea_like.backends.openai_reply import Reply, read_usage
from mellea_like.backends.sdk_batches import KEY, PAGE, SDKBatches
from mellea_like.backends.server_address import Server
from mellea_like.backends.server_errors import Translator
from mellea_like.core.argument_checks import whole_number
from mellea_like.core.parts import Audio, File, Image, Text
from mellea_like.errors import AuthenticationFailed, InvalidRequest

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from mellea_like.backends.batch_api import Intention
    from mellea_like.backends.output_mode import Demand, Mode, OutputTool
    from mellea_like.backends.sdk_batches import Listed
    from mellea_like.core.backend import Options, Request
    from mellea_like.core.conversation import Message
    from mellea_like.core.generation import Generation, RequestMeter
    from mellea_like.core.parts import Part

__all__ = ["MistralBatches"]

ENDPOINT: Final = "/v1/chat/completions"
JOBS = "/v1/batch/jobs"

LIMITS = JobLimits(requests=1_000_000, bytes=512_000_000)
"""Mistral's limits for a job (https://docs.mistral.ai/capabilities/batch)."""

MOST_HOURS = 168

ENDED = ("SUCCESS", "FAILED", "TIMEOUT_EXCEEDED", "CANCELLED")

FULL = re.compile(r"pending requests|quota|too many|limit", re.IGNORECASE)
"""Matches the error messages of a job that failed because too much is queued."""

CALL_ID = re.compile(r"[A-Za-z0-9]{9}")
"""The ids of tool calls that Mistral accepts. It answers any other id with 400 "Tool call id has to
be defined" or "was ... but must be a-z, A-Z, 0-9, with a length of 9"."""

MOST_TEMPERATURE = 1.5


class _Server(Server[Mistral]):
    client_type = Mistral
    client_name = "a mistralai.client.Mistral"
    official_url = "https://api.mistral.ai"
    key_variable = "MISTRAL_API_KEY"

    def _client_url(self, client: Mistral) -> str:
        return client.sdk_configuration.get_server_details()[0]


class MistralBatches(SDKBatches):
    """A model behind Mistral's batch jobs: answers within a day, at half the price.

    A job's key is in its ``metadata``, under ``"mellea_like_job"``. This class works on asyncio and
    trio, and in one event loop after another. It retries nothing.

    Args:
        model: the model's name.
        base_url: the server's URL, without ``/v1``; by default Mistral's own server.
        api_key: the key; by default ``MISTRAL_API_KEY``, which is read when first needed.
        client: a ready `mistralai.client.Mistral`, instead of ``base_url`` and ``api_key``. Its
            URL, its key and its ``async_client`` are used. It belongs to one event loop, and is
            never closed here.
        options: defaults for the options that a request leaves open.
        can_judge: whether the model may judge requirements.
        output: how to ask for a reply in a ``format``, as in `OpenAIBackend`, but not ``"auto"``.
        timeout: how long the server may send nothing, in seconds; None for no limit.
        timeout_hours: the number of hours after which a job expires, 1 to 168.

    Attributes:
        name: ``"mistral"``.
        model: as given.
        limits: a million requests and 512 MB per job.
        defaults: ``options``, as given.
        can_judge: as given.

    Raises:
        TypeError: an argument is of the wrong type, or the model's name is empty.
        ValueError: ``base_url`` isn't an HTTP URL, ``client`` is combined with a key or a URL,
            ``output`` is ``"auto"``, ``output`` or an option is unknown, or a number is out of
            range.
    """

    name = "mistral"
    limits = LIMITS
    _server: _Server

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        client: Mistral | None = None,
        options: Options | Mapping[str, Any] | None = None,
        can_judge: bool = True,
        output: Mode = "json_schema",
        timeout: float | None = 600.0,
        timeout_hours: int = 24,
    ) -> None:
        whole_number("timeout_hours", timeout_hours, most=MOST_HOURS)
        self._hours = timeout_hours
        super().__init__(
            model,
            _Server(base_url, api_key, client),
            options=options,
            can_judge=can_judge,
            output=output,
            timeout=timeout,
        )

    # --- requests and replies ---------------------------------------------------------------------

    def body(self, request: Request) -> dict[str, Any]:
        """Return the body of a request, without the model, which is set for the whole job."""
        options = self._options(request)
        self._one_model(options)
        return plain(mistral_body(request, options, output=self._demand(request, options)))

    def _entry(self, custom_id: str, body: Mapping[str, Any]) -> dict[str, Any]:
        return {"custom_id": custom_id, "body": body}

    def _read(
        self, reply: dict[str, Any], meter: RequestMeter, tool: OutputTool | None
    ) -> Generation:
        reader = Reply(meter, self.model, output=tool)
        reader.take_whole(readable(reply))
        return reader.generation()

    def _count(self, reply: Mapping[str, Any], meter: RequestMeter) -> None:
        read_usage(meter, reply.get("usage"), final=True)

    # --- jobs -------------------------------------------------------------------------------------

    async def _pages(self, client: _Client) -> AsyncGenerator[Sequence[Listed]]:
        number = seen = 0
        while True:
            page = await self._ask(client, client.page(number))
            jobs = page.data or ()
            if not jobs:
                return
            yield [self._listed(job) for job in jobs]
            number, seen = number + 1, seen + len(jobs)
            if len(jobs) < PAGE and seen >= page.total:
                return

    def _jobs(self, client: _Client) -> Any:
        return client

    async def _upload(self, client: _Client, intention: Intention, lines: Path) -> str:
        async with mapped(lines) as content:
            answer = await client.send(
                "POST",
                "/v1/files",
                data={"purpose": "batch"},
                files={"file": (f"{intention.key}.jsonl", content, JSON_LINES)},
            )
        return CreateFileResponse.model_validate_json(answer.content).id

    async def _discard(self, client: _Client, uploaded: str) -> None:
        await client.send("DELETE", f"/v1/files/{uploaded}")

    async def _submit(self, client: _Client, intention: Intention, uploaded: str) -> JobState:
        asked = CreateBatchJobRequest(
            endpoint=ENDPOINT,
            input_files=[uploaded],
            model=self.model,
            metadata={KEY: intention.key},
            timeout_hours=self._hours,
        )
        answer = await client.send("POST", JOBS, json=asked.model_dump(mode="json"))
        return self._state(BatchJob.model_validate_json(answer.content))

    def _state(self, job: BatchJob) -> JobState:
        errors = tuple(JobError("", error.message) for error in job.errors)
        failed = job.status == "FAILED"
        return JobState(
            job.id,
            str(job.status),
            job.status in ENDED,
            total=job.total_requests,
            succeeded=job.succeeded_requests,
            failed=job.failed_requests,
            created=float(job.created_at),
            expires=job.created_at + self._hours * 3600.0,
            full=failed and any(FULL.search(error.message) for error in errors),
            errors=errors,
            outputs=(job.output_file or "", job.error_file or ""),
        )

    def _content(self, client: _Client, file: str) -> AbstractAsyncContextManager[httpx2.Response]:
        return client.open(f"/v1/files/{file}/content")

    def _failed(self, error: Any) -> JobOutcome:
        told = cast("dict[str, Any]", error) if isinstance(error, dict) else {"message": error}
        said: object = told.get("message") or told.get("detail") or told
        return JobOutcome(error=str(said))

    # --- the client -------------------------------------------------------------------------------

    def _make_client(self) -> _Client:
        url = self._server.url.rstrip("/")
        if self._server.given is not None:
            return _of_sdk(self._server.given, url)
        http = httpx2.AsyncClient(timeout=self._timeout, follow_redirects=True)
        return _Client(http, url, self._server.api_key)

    def _translator(self, client: _Client) -> Translator:
        return Translator(self.where, None, self._timeout, (client.key,))


class _Client:
    """Sends requests to Mistral's server, with an SDK client's HTTP client or with a new one."""

    def __init__(self, http: httpx2.AsyncClient, url: str, key: str) -> None:
        self._http = http
        self._url = url
        self.key = key

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def send(self, method: str, path: str, **content: Any) -> httpx2.Response:
        """Send a request, and return the response with its body read."""
        response = await self._http.request(
            method, self._url + path, headers=self._headers, **content
        )
        self._check(response)
        return response

    async def page(self, number: int) -> ListBatchJobsResponse:
        """Return a page of the list of jobs, the newest jobs first."""
        asked = {"page": number, "page_size": PAGE, "order_by": "-created"}
        answer = await self.send("GET", JOBS, params=asked)
        return ListBatchJobsResponse.model_validate_json(answer.content)

    async def retrieve(self, job: str) -> BatchJob:
        """Return a job."""
        answer = await self.send("GET", f"{JOBS}/{job}")
        return BatchJob.model_validate_json(answer.content)

    async def cancel(self, job: str) -> BatchJob:
        """Ask for a job to be cancelled, and return it."""
        answer = await self.send("POST", f"{JOBS}/{job}/cancel")
        return BatchJob.model_validate_json(answer.content)

    @asynccontextmanager
    async def open(self, path: str) -> AsyncGenerator[httpx2.Response]:
        """Request a file, and yield the response with its body still unread."""
        async with self._http.stream("GET", self._url + path, headers=self._headers) as response:
            if not response.is_success:
                await response.aread()
            self._check(response)
            yield response

    @property
    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"}

    def _check(self, response: httpx2.Response) -> None:
        if response.is_success:
            return
        try:
            body = response.json()
        except ValueError:
            body = response.text
        translator = Translator(self._url, None, None, (self.key,))
        raise translator.refusal(response.status_code, response.headers, body)


def _of_sdk(sdk: Mistral, url: str) -> _Client:
    """Make a client that uses the key and the HTTP client of an SDK client."""
    given = sdk.sdk_configuration
    security = given.security() if callable(given.security) else given.security
    if security is None or not security.api_key:
        msg = f"the client for {url} has no API key"
        raise AuthenticationFailed(msg)
    http = given.async_client
    if not isinstance(http, httpx2.AsyncClient):
        msg = f"the SDK's client must use an httpx2.AsyncClient, not {type(http).__name__}"
        raise InvalidRequest(msg)
    return _Client(http, url, security.api_key)


# --- the chat API as plain data, converted from and to OpenAI's form ------------------------------


def _refuse(what: str) -> NoReturn:
    msg = f"Mistral would refuse this request when its job runs: {what}"
    raise InvalidRequest(msg)


def mistral_body(
    request: Request, options: Options, *, output: Demand | None = None
) -> dict[str, Any]:
    """Return the body of a request, without the model; refuse what the API would refuse."""
    messages = request.messages if output is None else output.messages
    if options.temperature is not None and options.temperature > MOST_TEMPERATURE:
        _refuse(f"temperature must be at most {MOST_TEMPERATURE}, not {options.temperature}")
    _check(messages)
    fields = request_fields(request, options, official=False, output=output)
    if "seed" in fields:
        fields["random_seed"] = fields.pop("seed")
    return {**fields, **options.extra, "messages": [_message(message) for message in messages]}


def _check(messages: tuple[Message, ...]) -> None:
    """Raise `InvalidRequest` for a sequence of messages that the API would refuse."""
    if not messages:
        _refuse("it has no messages")
    for number, (message, following) in enumerate(
        zip(messages, (*messages[1:], None), strict=True), 1
    ):
        where = f"message {number} ({message.role})"
        for call in message.tool_calls:
            if not CALL_ID.fullmatch(call.id):
                _refuse(
                    f"{where} has a call with the id {call.id!r}; ids must be 9 letters or digits"
                )
        if message.role == "tool" and following is not None and following.role == "user":
            _refuse(f"{where} can't be followed by a message with the role 'user'")
    if messages[-1].role == "assistant":
        _refuse("the last message can't have the role 'assistant'")


def _message(message: Message) -> dict[str, Any]:
    """Return a message in Mistral's form, without reasoning; only tool messages keep their name."""
    written: dict[str, Any] = {"role": message.role, "content": message.content}
    if not isinstance(message.content, str):
        written["content"] = [_part(part) for part in message.content]
    if message.tool_calls:
        written["tool_calls"] = [call.as_dict() for call in message.tool_calls]
    if message.role == "tool":
        written["tool_call_id"] = message.tool_call_id
        if message.name is not None:
            written["name"] = message.name
    return {**message.extra, **written}


def _part(part: Part) -> dict[str, Any]:
    match part:
        case Text() | Image():
            return part.as_dict()
        case Audio():
            return {"type": "input_audio", "input_audio": part.as_dict()["input_audio"]["data"]}
        case File(data=None):
            return {"type": "file", "file_id": part.file_id}
        case File():
            url = part.as_dict()["file"]["file_data"]
            named = {"document_name": part.filename} if part.filename else {}
            return {"type": "document_url", "document_url": url, **named}


def readable(completion: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a completion to OpenAI's form, whose calls have an index and texts as arguments."""
    choices: list[dict[str, Any]] = []
    for choice in completion["choices"]:
        message = dict(choice["message"])
        if message.get("tool_calls"):
            message["tool_calls"] = [
                _call(number, call) for number, call in enumerate(message["tool_calls"])
            ]
        choices.append({**choice, "message": message})
    return {**completion, "choices": choices}


def _call(number: int, call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    arguments = function["arguments"]
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return {**call, "index": number, "function": {**function, "arguments": arguments}}
