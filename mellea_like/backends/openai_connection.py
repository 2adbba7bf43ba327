"""Send a request and count it, read the reply within its time limit, and always close it."""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any

import anyio
import httpx2
import openai
from pydantic import BaseModel
from pydantic_core import from_json

from mellea_like.backends.closing import close
from mellea_like.backends.openai_events import EventDecoder, ReplyTooLongError, ServerError
from mellea_like.backends.sending import notify_when_sent
from mellea_like.core.backend import CallPiece
from mellea_like.core.generation import Generation
from mellea_like.errors import BackendError, BackendUnavailable
from mellea_like.runtime.event_loops import clock

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping, Sequence

    from mellea_like.backends.openai_reply import Replies, Reply
    from mellea_like.backends.openai_responses import Response
    from mellea_like.backends.sending import Sending
    from mellea_like.backends.server_errors import Translator

# --- the client -----------------------------------------------------------------------------------


class OwnClient:
    """Posts bodies to one path of one server with httpx2, at a quarter of the SDK's CPU time."""

    def __init__(
        self,
        sdk: openai.AsyncOpenAI,
        http_client: httpx2.AsyncClient,
        *,
        path: str,
        query: str,
        headers: Mapping[str, str],
        follow_redirects: bool,
    ) -> None:
        self.sdk = sdk
        self.lock = anyio.Lock()
        self._client = http_client
        self._follow = follow_redirects
        self._query = f"?{query}" if query else ""
        self._url = self._at(path)
        given = {**sdk.default_headers, **sdk.auth_headers, **headers}
        known = {name: value for name, value in given.items() if isinstance(value, str)}
        self._headers = http_client.build_request("GET", self._url, headers=known).headers

    def _at(self, path: str) -> httpx2.URL:
        base = self.sdk.base_url  # It ends with a slash.
        added = path.removeprefix("/") + self._query
        return base.copy_with(raw_path=base.raw_path + added.encode("ascii"))

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def post(self, body: Mapping[str, Any], sending: Sending) -> httpx2.Response:
        """Post a body, which may contain pydantic models; return the response before it is read."""
        return await self._send("POST", self._url, _encode(body).encode(), {"trace": sending.trace})

    async def first_model(self) -> Any:
        """Return the id of the first model in the server's list; None if the list is empty."""
        found = from_json(await _bounded(await self._send("GET", self._at("models"), b"", {})))
        return next((model["id"] for model in found["data"] or ()), None)

    async def _send(
        self, method: str, url: httpx2.URL, content: bytes, extensions: dict[str, Any]
    ) -> httpx2.Response:
        http = self._client
        # httpx2's build_request would merge and encode the headers again for each request.
        request = httpx2.Request(
            method,
            url,
            headers=self._headers,
            content=content,
            cookies=http.cookies,
            extensions=extensions,
        )
        response = await http.send(request, stream=True, follow_redirects=self._follow)
        if not response.is_success:
            raise await _refusal(response)
        return response


class GivenClient:
    """Posts bodies to one path with a client of the SDK that the user passed."""

    def __init__(self, sdk: openai.AsyncOpenAI, *, path: str, headers: Mapping[str, str]) -> None:
        self.sdk = sdk.with_options(max_retries=0)
        self.lock = anyio.Lock()
        self._path = path
        self._headers = headers
        notify_when_sent(self.sdk._client)  # pyright: ignore[reportPrivateUsage]

    async def close(self) -> None:
        """Do nothing: the client belongs to the user."""

    async def post(self, body: Mapping[str, Any], sending: Sending) -> httpx2.Response:
        """Post a body, which may contain pydantic models; return the response before it is read."""
        # This is what client.chat.completions.create does in the end, but without its typed copy
        # of the body, which takes as long as reading a reply's events.
        post: Any = self.sdk.post
        with sending.noticed():
            response: httpx2.Response = await post(
                self._path,
                body=body,
                options={"headers": self._headers},
                cast_to=httpx2.Response,
                stream=True,
            )
        return response

    async def first_model(self) -> Any:
        """Return the id of the first model in the server's list; None if the list is empty."""
        page: Any = await self.sdk.models.list()
        return next((model.id for model in page.data or ()), None)


async def _refusal(response: httpx2.Response) -> openai.APIStatusError:
    text = (await _bounded(response)).decode(errors="replace").strip()
    try:
        body: Any = json.loads(text)
    except ValueError:
        body = text
    return openai.APIStatusError(
        f"Error code: {response.status_code}", response=response, body=body
    )


MAX_OTHER_BODY = 2**20
"""The most bytes to read of a response that isn't a reply, such as an error or a model list."""


async def _bounded(response: httpx2.Response) -> bytes:
    """Return at most ``MAX_OTHER_BODY`` bytes of a response's body, and close the response."""
    body = b""
    chunks = response.aiter_bytes()
    try:
        while len(body) < MAX_OTHER_BODY and (chunk := await anext(chunks, None)) is not None:
            body += chunk
    finally:
        await close(response, chunks)
    return body[:MAX_OTHER_BODY]


def _plain(value: object) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", by_alias=True, exclude_unset=True)
    msg = f"{type(value).__name__} isn't JSON"
    raise TypeError(msg)


_encode = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_plain
).encode


# --- the reply ------------------------------------------------------------------------------------

SLACK = 0.01
"""By how much a silence may exceed its limit, as a fraction of the limit. This tolerance makes it
unnecessary to set a new deadline after each event."""

DRAIN_SECONDS = 0.1
"""How many seconds to wait for the end of the body, after the reply is complete. The connection can
stay open only if the body is read to its end."""


class Incoming:
    """Receives the reply to one request, or several replies to it, within the time limits."""

    def __init__(
        self,
        response: Any,
        reply: Reply | Response | Replies,
        translator: Callable[[], Translator],
        *,
        ends: float,
        silence: float,
    ) -> None:
        self._response = response
        self._chunks: AsyncGenerator[bytes] = _body(response)
        self._reply = reply
        self._calls = getattr(reply, "call_pieces", None)
        self._translator = translator
        self._decoder = EventDecoder()
        self._ends = ends
        self._silence = silence
        self._now = clock()
        self._silent_at = self._now() + silence
        self._event = b""
        self._error: BackendError | None = None
        self._over = False

    async def pieces(self) -> AsyncGenerator[Any]:
        """Yield the pieces of the reply as they arrive, and the whole reply at the end."""
        while not (self._over or self._reply.done):
            for found in await self._more():
                for piece in _each(found):
                    yield piece
        await self._finish()
        for whole in _each(self._reply.generation()):
            yield whole

    async def whole(self) -> Any:
        """Return the whole reply."""
        while not (self._over or self._reply.done):
            await self._more(everything=True)
        await self._finish()
        return self._reply.generation()

    async def close(self) -> None:
        """Close the response and, if its body wasn't read to the end, the connection."""
        if not (self._over and self._response.is_closed):
            await close(self._response, self._chunks)

    async def _more(self, *, everything: bool = False) -> list[Any]:
        """Return the next pieces of the reply or, with ``everything``, all that are left."""
        if self._error is not None:
            raise self._error
        found: list[Any] = []
        error: BackendError | None = None
        self._silent_at = self._now() + self._silence  # Time that the caller takes isn't silence.
        with anyio.CancelScope(deadline=min(self._silent_at, self._ends)) as time_left:
            try:
                while not (self._over or self._reply.done or (found and not everything)):
                    if self._take(await anext(self._chunks, None), found):
                        self._postpone(time_left)
            except Exception as exc:  # noqa: BLE001 (nothing but HTTP and parsing happens in there)
                self._over = True
                error = self._error_of(exc)
        if time_left.cancelled_caught and self._reply.whole:
            self._over = True  # If the rest is late, only the usage is lost.
        elif time_left.cancelled_caught:
            translator = self._translator()
            error = translator.late() if self._silent_at > self._ends else translator.silent()
        if error is not None and found and not everything:
            self._error, self._over = error, False  # Earlier pieces come first.
        elif error is not None:
            # Raising outside the handler keeps foreign exceptions from becoming the context.
            raise error
        return found

    def _take(self, chunk: bytes | None, found: list[Any]) -> bool:
        """Add the pieces in a part of the body to ``found``; return whether an event ended."""
        self._over = chunk is None
        events = self._decoder.finish() if chunk is None else self._decoder.feed(chunk)
        for self._event in events:
            if piece := self._reply.read(self._event):
                found.append(piece)
            if self._calls:
                found += self._calls
                self._calls.clear()
        return bool(events)

    def _postpone(self, time_left: anyio.CancelScope) -> None:
        """Extend the time limit after an event. Bytes that end no event don't extend it."""
        self._silent_at = self._now() + self._silence
        if time_left.deadline < min(self._silent_at, self._ends):
            # Setting it takes as long as reading an event, so it is set rarely and a little late.
            time_left.deadline = min(self._silent_at + self._silence * SLACK, self._ends)

    async def _finish(self) -> None:
        """Read the rest of the body; raise `MalformedResponse` if the reply is incomplete."""
        if not self._over:
            with anyio.move_on_after(DRAIN_SECONDS), suppress(Exception):
                async for _ in self._chunks:
                    pass
                self._over = True
        if not self._reply.whole:
            what = "an incomplete reply" if self._reply.began else "a response without a reply"
            head = self._decoder.head.decode("utf-8", "replace")
            if head.lstrip().startswith("{"):
                what = "JSON, not the stream of events that was requested"
            raise self._translator().malformed(what, head, began=self._reply.began)
        if self._reply.failure is not None:
            raise self._translator().of(self._reply.failure)

    def _error_of(self, exc: Exception) -> BackendError | None:
        """Translate an error; return None if the reply is complete despite the error."""
        translator = self._translator()
        match exc:
            case ReplyTooLongError():
                return translator.malformed(str(exc))
            case ServerError():
                return translator.of(exc)
            case _ if self._reply.whole:
                return None  # After the reply's end, only the usage can be lost.
            case ValueError():
                why = f"an invalid event ({translator.clean(str(exc))})"
                event = self._event.decode("utf-8", "replace")
                return translator.malformed(why, event, began=self._reply.began)
            case _:
                error = translator.of(exc)
        if self._reply.began and isinstance(error, BackendUnavailable):
            # The reply has cost its tokens, so this isn't a broken connection that is worth a
            # retry.
            why = translator.clean(str(exc)) or type(exc).__name__
            return translator.malformed(f"an incomplete reply ({why})")
        return error


def _body(response: Any) -> AsyncGenerator[bytes]:
    # If nothing needs decoding, the library's decoder would only take time for each part.
    plain = "content-encoding" not in response.headers and not response.is_stream_consumed
    body: AsyncGenerator[bytes] = _as_it_comes(response) if plain else response.aiter_bytes()
    return body


async def _as_it_comes(response: Any) -> AsyncGenerator[bytes]:
    """Yield the parts of a body like ``aiter_raw``, but without the overhead of its chunker."""
    stream: Any = aiter(response.stream)
    try:
        async for part in stream:
            yield part
    finally:
        await stream.aclose()
        await response.aclose()


def _each(found: str | Generation | Sequence[Any]) -> Sequence[Any]:
    """Return the new pieces as a sequence, whether they belong to one reply or to several."""
    if isinstance(found, (str, Generation)):
        return [found] if found or isinstance(found, CallPiece) else []
    return found
