"""The HTTP side of a fake server: faults, commands of tests, and a transport without a network."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from typing import Any, NoReturn

import anyio
import httpx2
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from batch_servers.world import Job, World

Handler = Callable[[Request], Awaitable[Response]]


class Problem(Exception):
    """An error that the server answers with."""

    def __init__(self, status: int, message: str, **more: Any) -> None:
        super().__init__(message)
        self.status, self.message, self.more = status, message, more


def refuse(status: int, message: str, **more: Any) -> NoReturn:
    """Answer with an error."""
    raise Problem(status, message, **more)


class BrokenOff(Exception):
    """The connection breaks."""


class Server:
    """The common part of the servers. A provider's class adds its routes.

    Attributes:
        world: the state.
        no_job: the error about an unknown job.
        no_cancel: the error about a job that has ended.
    """

    no_job = "No batch found with id '{}'."
    no_cancel = "Cannot cancel a batch with status '{job.status}'."
    key = "sk-test"
    base = ""
    """The URL that the last request came to."""

    def __init__(self, world: World) -> None:
        self.world = world
        world.dialect = self  # type: ignore[assignment]

    def routes(self) -> list[Route]:
        """Return the provider's routes."""
        raise NotImplementedError

    def failure(self, status: int, message: str, **more: Any) -> dict[str, Any]:
        """Write an error."""
        raise NotImplementedError

    def allowed(self, request: Request) -> bool:
        """Return whether a caller has the key."""
        return request.headers.get("authorization") == f"Bearer {self.key}"

    def route(self, path: str, handler: Handler, *methods: str, on: str = "") -> Route:
        """Return a route, with the name by which faults refer to its requests."""

        async def answer(request: Request) -> Response:
            try:
                return await self._answer(request, handler, on)
            except Problem as exc:
                body = self.failure(exc.status, exc.message, **exc.more)
                return JSONResponse(body, exc.status)
            finally:
                self.world.save()

        return Route(path, answer, methods=list(methods) or ["GET"])

    async def _answer(self, request: Request, handler: Handler, on: str) -> Response:
        if not self.allowed(request):
            refuse(401, "Incorrect API key provided")
        self.base = f"{request.url.scheme}://{request.url.netloc}"
        self.world.advance()
        self.world.state.calls[on] += 1
        fault = self.world.fault(on) if on else None
        if fault is None:
            return await handler(request)
        kind, status = fault["fault"], fault.get("status", 500)
        words = fault.get("message", "The server had an error")
        if kind == "status":
            headers = {"retry-after": str(fault["retry_after"])} if "retry_after" in fault else {}
            body = self.failure(status, words, code=fault.get("code"))
            return JSONResponse(body, status, headers=headers)
        if kind == "delay":
            await anyio.sleep(fault["seconds"])
            return await handler(request)
        response = await handler(request)
        if kind == "status_after":
            return JSONResponse(self.failure(status, words, code=fault.get("code")), status)
        if kind == "hang":
            await anyio.sleep_forever()
        if kind == "lose":
            return Lost(b"".join([part async for part in _body(response)]))
        return Cut(kind, b"".join([part async for part in _body(response)]))

    def batch(self, job: Job) -> dict[str, Any]:
        """Write the object of a job."""
        raise NotImplementedError

    def job(self, request: Request) -> Job:
        """Return the job that a path names."""
        id_ = request.path_params["id"]
        return self.world.state.jobs.get(id_) or refuse(404, self.no_job.format(id_))

    async def look(self, request: Request) -> Response:
        return JSONResponse(self.batch(self.job(request)))

    async def cancel(self, request: Request) -> Response:
        job = self.job(request)
        if job.ended is not None:
            refuse(400, self.no_cancel.format(job=job))
        self.world.cancel(job)
        return JSONResponse(self.batch(job))

    def page(self, request: Request, after: str, limit: int) -> dict[str, Any]:
        """Write a page of the list of jobs; a parameter says after which one it begins."""
        last = None
        if given := request.query_params.get(after):
            last = self.world.state.jobs.get(given) or refuse(400, f"{after}: {given}")
        found = self.world.jobs(limit + 1, after=last)
        data = [self.batch(job) for job in found[:limit]]
        ids = [job.id for job in found[:limit]] or [None]
        return {
            "data": data,
            "first_id": ids[0],
            "last_id": ids[-1],
            "has_more": len(found) > limit,
        }

    def app(self) -> ASGIApp:
        """The application."""
        return Starlette(routes=[*self.routes(), *self._admin()])

    def _admin(self) -> list[Route]:
        """What a test may do to a server in another process."""

        async def change(request: Request) -> Response:
            self.world.advance()  # What has happened, happened as it was.
            self.world.change(**(await request.json()))
            return JSONResponse({})

        async def skip(request: Request) -> Response:
            self.world.skip((await request.json())["seconds"])
            return JSONResponse({})

        async def tell(request: Request) -> Response:
            self.world.advance()
            state = self.world.state
            paid = [(charge.job, charge.custom_id) for charge in state.charges]
            told = {"bill": self.world.bill(), "jobs": list(state.jobs), "paid": paid}
            return JSONResponse(told[request.path_params["what"]])

        return [
            Route("/admin/settings", change, methods=["POST"]),
            Route("/admin/skip", skip, methods=["POST"]),
            Route("/admin/{what}", tell),
        ]


async def _body(response: Response) -> AsyncIterator[bytes]:
    if isinstance(response, StreamingResponse):
        async for part in response.body_iterator:
            yield part if isinstance(part, bytes) else bytes(str(part), "utf-8")
    else:
        yield bytes(response.body)


class Lost(Response):
    """An answer whose connection breaks before its end."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        whole = bytes(self.body)
        length = [(b"content-length", b"%d" % len(whole)), (b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": length})
        half = whole[: len(whole) // 2]
        await send({"type": "http.response.body", "body": half, "more_body": True})
        # The application ends without the rest: servers close the connection then.


class Cut(Response):
    """A download that ends early."""

    def __init__(self, kind: str, body: bytes) -> None:
        super().__init__(body)
        self.kind = kind

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        whole = bytes(self.body)
        lines = whole.splitlines(keepends=True)
        half = b"".join(lines[: len(lines) // 2])
        if self.kind == "half" and lines:
            cut = lines[len(lines) // 2]
            half += cut[: len(cut) // 2]
        broken = self.kind == "broken"
        length = len(whole) if broken else len(half)
        headers = [(b"content-length", b"%d" % length), (b"content-type", b"application/jsonl")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": half, "more_body": broken})


async def uploaded(request: Request) -> tuple[str, bytes]:
    """Return the name and the bytes of a file that was uploaded for a batch."""
    async with request.form(max_part_size=2**30) as form:
        if unknown := set(form) - {"file", "purpose"}:
            refuse(400, f"Unknown parameter: '{min(unknown)}'.")
        if form.get("purpose") != "batch":
            refuse(400, f"Invalid value for purpose: {form.get('purpose')!r}.")
        file: Any = form.get("file")
        if file is None or isinstance(file, str):
            refuse(400, "Missing required parameter: 'file'.")
        return file.filename, await file.read()


def jsonl(objects: Iterable[dict[str, Any]]) -> Response:
    """Return a response with lines of JSON."""

    def parts() -> Iterator[bytes]:
        for each in objects:
            yield json.dumps(each, ensure_ascii=False).encode() + b"\n"

    async def streamed() -> AsyncIterator[bytes]:
        for part in parts():
            yield part

    return StreamingResponse(streamed(), media_type="application/jsonl")


# --- without sockets ------------------------------------------------------------------------------


class Transport(httpx2.AsyncBaseTransport):
    """Hands a client's requests to an application, in the same event loop and in virtual time.

    Unlike httpx2's own, it runs the application in a task of its own, streams, and breaks the
    connection where the application does.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        body = b"".join([part async for part in request.stream])  # type: ignore[union-attr]
        status, headers, chunks = 0, [], list[bytes]()
        done = sent = False

        async def receive() -> dict[str, Any]:
            nonlocal sent
            if sent:
                await anyio.sleep_forever()
            sent = True
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            nonlocal status, headers, done
            if message["type"] == "http.response.start":
                status, headers = message["status"], list(message.get("headers", ()))
            else:
                chunks.append(message.get("body", b""))
                done = not message.get("more_body", False)

        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": request.method,
            "headers": [(k.lower(), v) for k, v in request.headers.raw],
            "scheme": request.url.scheme,
            "path": request.url.path,
            "raw_path": request.url.raw_path.split(b"?")[0],
            "query_string": request.url.query,
            "server": (request.url.host, request.url.port or 80),
            "client": ("127.0.0.1", 1),
            "root_path": "",
        }
        async with anyio.create_task_group() as tasks:
            # The watches for blocking calls look at the stack: the server's isn't the client's.
            tasks.start_soon(self.app, scope, receive, send)
        if not status:
            msg = "Server disconnected without sending a response."
            raise httpx2.RemoteProtocolError(msg, request=request)
        return httpx2.Response(status, headers=headers, stream=_Chunks(chunks, done=done))


class _Chunks(httpx2.AsyncByteStream):
    def __init__(self, chunks: list[bytes], *, done: bool) -> None:
        self._chunks, self._done = chunks, done

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self._chunks:
            yield chunk
        if not self._done:
            msg = "peer closed connection without sending complete message body"
            raise httpx2.RemoteProtocolError(msg)
