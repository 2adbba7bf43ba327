"""Any server with OpenAI's chat protocol, through the official SDK."""

from __future__ import annotations

import math
import ssl
from contextlib import aclosing, asynccontextmanager
from functools import partial
from string import punctuation
from typing import TYPE_CHECKING, Any, Literal, TypeAlias
from urllib.parse import quote, unquote, urlsplit

import anyio

from mellea_like.core.argument_checks import check_one_of, real_number, whole_number
from mellea_like.core.backend import Options, insisted
from mellea_like.errors import AuthenticationFailed, BackendError, InvalidRequest
from mellea_like.lazy import needs_extra

with needs_extra("openai", "OpenAIBackend needs the official SDK"):
    # httpx2 would load httpcore2 at the first request.
    import httpcore2  # noqa: F401  # pyright: ignore[reportUnusedImport]
    import httpx2  # The SDK's HTTP library since version 3.
    import openai

from mellea_like.backends.loop_clients import LoopClients
from mellea_like.backends.openai_chat import LENGTHS, request_body, with_other_length
from mellea_like.backends.openai_connection import GivenClient, Incoming, OwnClient
from mellea_like.backends.openai_reply import Replies, Reply
from mellea_like.backends.openai_responses import Response, responses_body
from mellea_like.backends.openai_server import OpenAIServer
from mellea_like.backends.output_mode import OutputModes
from mellea_like.backends.sending import Sending
from mellea_like.backends.server_address import digest, is_here, without_credentials
from mellea_like.backends.server_errors import refuses_length, refuses_preferred

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Mapping
    from contextlib import AbstractAsyncContextManager

    from mellea_like.backends.output_mode import Demand, OutputMode, OutputTool
    from mellea_like.backends.server_errors import Translator
    from mellea_like.core.backend import Request
    from mellea_like.core.generation import Generation

__all__ = ["OpenAIBackend"]

Client: TypeAlias = "GivenClient | OwnClient"

PATHS = {"chat": "/chat/completions", "responses": "/responses"}

NO_RESPONSES = "; the server may not have the Responses API: use api='chat'"

CONNECT_SECONDS = 10.0


class _Asking(Sending):
    """One request in progress: whom it asks, until when, and what it has cost."""

    client: Client
    model: str

    def __init__(self, request: Request, choices: int | None, total: float | None) -> None:
        super().__init__(request)
        self.choices = choices
        self.ends = anyio.current_time() + (total or math.inf)


class OpenAIBackend:
    """A model behind OpenAI's protocols: OpenAI, Azure, vLLM, llama.cpp, Ollama and others.

    Replies are always streamed over the network, so that the server stops generating when a
    request is cancelled. This backend never retries, even with a client that would. It works on
    asyncio and trio, and in one event loop after another.

    A refusal is a reply: its text and its ``refusal`` are the model's words, and its
    ``finish_reason`` is ``"refusal"``. A reply that a content filter cut short is also a reply, and
    its ``finish_reason`` is ``"content_filter"``. If a reply calls tools, these calls are in
    ``tool_calls``, and the ``finish_reason`` is ``"tool_calls"``. The model's thoughts, if the
    server sends them (``reasoning_content`` or ``reasoning``), are in ``reasoning``.

    Args:
        model: the model's name. With None, the backend asks the server once for its models and
            takes the first one. OpenAI's own server has too many models and needs a name.
        base_url: the server's URL. The default is ``OPENAI_BASE_URL``, or else OpenAI's own
            server.
        api_key: the key. The default is ``OPENAI_API_KEY``; without a key, servers other than
            OpenAI's get a placeholder. Both environment variables are read when first needed.
        client: an `openai.AsyncOpenAI` instead of the URL and the key, or an object of a subclass
            such as `openai.AsyncAzureOpenAI`, whose deployment is the default model. Its retries
            are turned off for this backend's requests. Its HTTP client gets an event hook that
            notices when these requests are sent, and does nothing for others. The client belongs
            to one event loop, and is never closed here.
        timeout: how long the server may send nothing, in seconds; None for no limit. Bytes that
            aren't part of a reply, such as keep-alive comments, don't count.
        options: defaults for the options that a request leaves open.
        can_judge: whether the model may judge requirements.
        total_timeout: the time limit of a whole request, in seconds; None for no limit.
        max_characters: the length limit of a reply with its reasoning, in characters. A longer
            reply is abandoned and raises a `MalformedResponse`.
        trust_env: whether to use the environment's proxy settings. It has no effect with
            ``client``.
        keep_alive: whether connections stay open between requests. With None, they stay open,
            except those to servers on this machine: there a new connection costs nothing, and
            llama.cpp's server sometimes closes an old one just as the next request is sent.
        max_connections: the largest number of open connections of an event loop, 1 or more.
            Further requests wait for a free connection, and only ``total_timeout`` limits this
            wait. With None, the SDK's limit applies, which is 1,000.
        follow_redirects: whether to follow redirects (such as HTTP 307), even to another server,
            which gets the request without the key. If false, a redirect is an error. This argument
            has no effect with ``client``.
        output: how to ask the server for a reply in a ``format``. With ``"json_schema"``, the
            server enforces the schema. With ``"tool"``, the model must call a tool with the reply
            as its arguments. With ``"json_object"``, the server enforces only that the reply is a
            JSON object, and the prompt contains the schema. With ``"prompt"``, only the prompt
            asks for the format. ``"auto"`` tries these modes in this order, and skips those that
            the server is known to lack. If the server refuses a mode, the request is sent again in
            the next mode, within the same draw. This backend remembers the outcome for each model.
        api: ``"chat"`` for chat completions, which most servers have, or ``"responses"`` for
            OpenAI's Responses API. The latter stores replies on the server only if
            ``options.extra`` has ``store``. It ignores seeds, refuses stop texts, audio and
            several choices, and leaves out the names and the reasoning of messages.

    Attributes:
        provider: the name for telemetry: ``"openai"``, or ``"azure.ai.openai"`` with an Azure
            client.
        can_judge: as given.
        defaults: ``options``, as given.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: ``base_url`` isn't an HTTP URL, ``client`` is combined with a URL, a key or
            ``max_connections``, ``output``, ``api`` or an option is unknown, or a number is out of
            range.
    """

    provider: str = "openai"

    def __init__(
        self,
        model: str | None = None,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        client: openai.AsyncOpenAI | None = None,
        timeout: float | None = 600.0,
        options: Options | Mapping[str, Any] | None = None,
        can_judge: bool = True,
        total_timeout: float | None = 3600.0,
        max_characters: int = 4 * 2**20,
        trust_env: bool = True,
        keep_alive: bool | None = None,
        max_connections: int | None = None,
        follow_redirects: bool = True,
        output: OutputMode = "auto",
        api: Literal["chat", "responses"] = "chat",
    ) -> None:
        check_one_of("api", api, PATHS)
        self._address = OpenAIServer(base_url, api_key, client)
        if client is not None and max_connections is not None:
            msg = (
                "client can't be combined with max_connections: the client already has a connection"
                " pool"
            )
            raise ValueError(msg)
        self.can_judge = can_judge
        self._model = model
        self._api = api
        if self._address.has_azure_client:
            self.provider = "azure.ai.openai"
            self._model = model or self._address.deployment
        for name, seconds in (("timeout", timeout), ("total_timeout", total_timeout)):
            if seconds is not None:
                real_number(name, seconds, over=0, most=math.inf, unit="seconds")
        whole_number("max_characters", max_characters)
        self._timeout = timeout
        self._total_timeout = total_timeout
        self._max_characters = max_characters
        self.defaults = Options.of(options)
        self._trust_env = trust_env
        self._keep_alive = keep_alive
        self._follow_redirects = follow_redirects
        self._limits = openai.DEFAULT_CONNECTION_LIMITS
        if max_connections is not None:
            whole_number("max_connections", max_connections)
            kept = self._limits.max_keepalive_connections
            self._limits = httpx2.Limits(
                max_connections=max_connections, max_keepalive_connections=kept
            )
        self._outputs = OutputModes(output)
        self._refuse_temperature = set[str]()
        self._other_length = set[str]()
        """The models that know the other name of the field that limits a reply's length."""
        self._clients = LoopClients(self._make_client, close=client is None)

    @property
    def model(self) -> str | None:
        """The model's name; None if the server decides and hasn't been asked yet."""
        return self._model

    @property
    def _where(self) -> OpenAIServer:
        return self._address

    @property
    def base_url(self) -> str:
        """The URL that requests are sent to, without credentials.

        Raises:
            ValueError: ``OPENAI_BASE_URL`` isn't a URL.
        """
        return self._where.shown_url

    @property
    def limit_key(self) -> tuple[str, bytes] | None:
        """The key under which the server counts requests; equal keys share a `BackoffGate`.

        The key consists of the URL and a digest of the API key, which is meaningless outside this
        process. Azure counts by deployment, so an Azure client's key has the deployment's URL and
        no API key. If the API key is unknown, this property is None. That is the case if the client
        fetches an API key for each request, or if no valid API key is set yet.
        """
        try:
            url = self.base_url.rstrip("/")  # The SDK's clients put one there.
            if self._where.has_azure_client:
                return (url if "/deployments/" in url else f"{url}/deployments/{self._model}", b"")
            given = self._where.given
            key = self._where.api_key if given is None else given.api_key
        except (AuthenticationFailed, RuntimeError, ValueError):
            return None
        return (url, digest(key)) if key else None

    def __repr__(self) -> str:
        try:
            where = self.base_url
        except ValueError:
            where = "no URL"
        return f"<{type(self).__name__} {self._model!r} at {where}>"

    async def generate(self, request: Request) -> Generation:
        """Answer one request; see `Backend.generate`."""
        async with self._open(request) as incoming:
            whole: Generation = await incoming.whole()
            return whole

    def stream(
        self, request: Request
    ) -> AbstractAsyncContextManager[AsyncIterator[str | Generation]]:
        """Answer one request piece by piece; see `StreamingBackend.stream`."""
        return self._stream(request)

    def stream_choices(
        self, request: Request, choices: int
    ) -> AbstractAsyncContextManager[AsyncIterator[tuple[int, str | Generation]]]:
        """Ask for several replies in one request (``n``), so that the prompt is paid for only once.

        Servers may refuse ``n``, or ignore it and send one reply; `ChoicesBackend` notices that.

        Args:
            request: the request.
            choices: the number of replies, at least 1.

        Returns:
            An async context manager. Entering it gives an iterator over pairs. Each pair has a
            reply's index, from 0, and a piece of that reply's text, which is empty if the reply
            begins or continues with reasoning. The last pair of each reply has the whole
            `Generation` instead of a piece. A generation's usage is that of all replies together,
            as far as this is known by then. Leaving the block early closes the request.

        Raises:
            InvalidRequest: this backend uses the Responses API, which gives one reply.
            BackendError: there is no reply. It may be raised on entering, or while iterating.
            TypeError: ``choices`` isn't an int.
            ValueError: ``choices`` is below 1.
        """
        whole_number("choices", choices)
        if self._api == "responses":
            msg = "the Responses API gives one reply per request: use api='chat' for several"
            raise InvalidRequest(msg)
        return self._stream(request, choices)

    @asynccontextmanager
    async def _stream(
        self, request: Request, choices: int | None = None
    ) -> AsyncGenerator[AsyncIterator[Any]]:
        async with (
            self._open(request, choices) as incoming,
            aclosing(incoming.pieces()) as pieces,
        ):
            yield pieces

    @asynccontextmanager
    async def _open(self, request: Request, choices: int | None = None) -> AsyncGenerator[Incoming]:
        """Send a request, and yield its reply; close the reply after the block."""
        asking = _Asking(request, choices, self._total_timeout)
        named = request.options.model or self.defaults.model
        try:
            async with self._clients.hold() as client:
                asking.client = client
                asking.model = named or self._model or await self._first_model(client)
                incoming = await self._ask(asking)
                try:
                    yield incoming
                finally:
                    await incoming.close()
        except BackendError as exc:
            asking.failed(exc)
            raise
        finally:
            asking.ended()

    async def aclose(self) -> None:
        """Close the running event loop's connections. The backend may be used again.

        A request in progress keeps its connection until it ends.
        """
        await self._clients.aclose()

    def _body(self, asking: _Asking, options: Options, output: Demand | None) -> dict[str, Any]:
        if "stream" in options.extra:
            msg = (
                "option extra can't set stream: this backend always streams, so that requests can"
                " be cancelled"
            )
            raise InvalidRequest(msg)
        asked, official = (asking.request, options, asking.model), self._where.is_official
        if self._api == "responses":
            return responses_body(*asked, official=official, output=output)
        return request_body(*asked, official=official, choices=asking.choices, output=output)

    async def _ask(self, asking: _Asking) -> Incoming:
        """Send a request, if necessary in another way, and return the reply that has begun."""
        request, model = asking.request, asking.model
        given = request.options
        if model in self._refuse_temperature:
            given = insisted(given)
        output = None
        if request.format is not None:
            host = urlsplit(self._where.url).hostname or ""
            output = self._outputs.begin(request, model, given.over(self.defaults), host)
        while True:
            demand = None if output is None else output.demand
            body = self._body(asking, given.over(self.defaults), demand)
            try:
                response = await self._post(asking, body)
            except BackendError as exc:
                if refuses_preferred(exc, given):
                    given = insisted(given)
                elif output is None or not output.refused(exc):
                    raise
                asking.again()
                await request.meter.readmit(request, exc)
            else:
                if given is not request.options:
                    self._refuse_temperature.add(model)
                if output is not None:
                    output.accepted()
                return self._incoming(asking, response, None if demand is None else demand.tool)

    async def _post(self, asking: _Asking, body: dict[str, Any]) -> Any:
        """Send a request, if necessary with the other name of the limit of a reply's length."""
        if asking.model in self._other_length:
            return await self._send(asking, with_other_length(body))
        try:
            return await self._send(asking, body)
        except BackendError as exc:
            if not (LENGTHS.keys() & body.keys() and refuses_length(exc)):
                raise
            asking.again()
            await asking.request.meter.readmit(asking.request, exc)
        response = await self._send(asking, with_other_length(body))
        self._other_length.add(asking.model)
        return response

    async def _send(self, asking: _Asking, body: dict[str, Any]) -> Any:
        error: BackendError
        with anyio.CancelScope(deadline=asking.ends):
            try:
                return await asking.client.post(body, asking)
            except (TypeError, ValueError, RuntimeError) as exc:
                error = self._translator(asking.client, asking.model).unsendable(exc)
            except Exception as exc:  # noqa: BLE001 (nothing but the SDK's code runs in there)
                error = self._translator(asking.client, asking.model).of(exc)
            # Raising outside the handler keeps the SDK's exception from becoming the context.
            raise error
        raise self._translator(asking.client, asking.model).late()

    def _incoming(self, asking: _Asking, response: Any, tool: OutputTool | None) -> Incoming:
        reply: Reply | Response | Replies
        expected = (asking.sent(), asking.model, self._max_characters, tool)
        if asking.choices is not None:
            reply = Replies(*expected, asking.choices)
        else:
            reply = (Response if self._api == "responses" else Reply)(*expected)
            reply.call_pieces = [] if asking.request.shows_calls else None
        translator = partial(self._translator, asking.client, asking.model)
        silence = self._timeout or math.inf
        return Incoming(response, reply, translator, ends=asking.ends, silence=silence)

    async def _first_model(self, client: Client) -> str:
        if self._where.is_official:
            msg = f"OpenAIBackend needs a model name for {self.base_url}: pass model='...'"
            raise InvalidRequest(msg)
        async with client.lock:
            return self._model or await self._ask_for_models(client)

    async def _ask_for_models(self, client: Client) -> str:
        error: BackendError
        try:
            name = await client.first_model()
        except (AttributeError, LookupError, TypeError, ValueError):
            what = "an invalid list of models"
            error = self._translator(client, None).malformed(what)
        except Exception as exc:  # noqa: BLE001 (nothing but the SDK's code runs in there)
            error = self._translator(client, None).of(exc)
        else:
            if isinstance(name, str) and name:
                self._model = name
                return name
            error = InvalidRequest(
                f"{self.base_url} lists no models: pass model='...' to OpenAIBackend"
            )
        raise error

    def _make_client(self) -> Client:
        path = PATHS[self._api]
        if self._where.given is not None:
            return GivenClient(self._where.given, path=path, headers=self._headers())
        url = self._where.parts()
        key = self._where.api_key
        connect = min(self._timeout or CONNECT_SECONDS, CONNECT_SECONDS)
        timeout = openai.Timeout(self._timeout, connect=connect, pool=None)
        credentials = (unquote(url.username or ""), unquote(url.password or ""))
        http_client = openai.DefaultAsyncHttpxClient(
            timeout=timeout,
            trust_env=self._trust_env,
            limits=self._limits,
            auth=credentials if any(credentials) else None,
            # Loading certificates takes longer than a request to a server on this machine. Without
            # them, no TLS connection is trusted.
            verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            if url.scheme == "http" and is_here(url)
            else True,
        )
        base_url = without_credentials(url._replace(query=""))
        sdk = openai.AsyncOpenAI(api_key=key, base_url=base_url, http_client=http_client)
        return OwnClient(
            sdk,
            http_client,
            path=path,
            query=quote(url.query, safe=punctuation),
            headers=self._headers(),
            follow_redirects=self._follow_redirects,
        )

    def _headers(self) -> dict[str, str]:
        # Compression would delay pieces of the reply.
        headers = {"Accept-Encoding": "identity"}
        keep = self._keep_alive
        if keep is None:
            keep = not is_here(urlsplit(self._where.url))
        return headers if keep else {**headers, "Connection": "close"}

    def _translator(self, client: Client, model: str | None) -> Translator:
        hint = NO_RESPONSES if self._api == "responses" and not self._where.is_official else ""
        # A given client has its own timeouts, too, so the error can't name the one that it was.
        timeout = self._timeout if self._where.given is None else None
        return self._where.translator(client.sdk, model, timeout, self._total_timeout, hint)
