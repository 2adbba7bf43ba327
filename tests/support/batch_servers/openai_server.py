"""A fake of OpenAI's Files, Batches and chat APIs, and of Azure's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from batch_servers.fields import problems
from batch_servers.replies import Asked, Drawn
from batch_servers.web import Server, jsonl, refuse, uploaded
from batch_servers.world import Job, World

MOST_REQUESTS = 50_000
STATUSES = {"working": "in_progress"}
CODES = {"expired": "batch_expired", "cancelled": "batch_cancelled"}
CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
READ_SECONDS = 5.0


class OpenAI(Server):
    """The server.

    Args:
        world: its state.
        azure: whether it is Azure's: its paths, its header, files that are read first, no expiry.
    """

    jobs = "/batches"
    most_bytes = 200_000_000

    def __init__(self, world: World, *, azure: bool = False) -> None:
        super().__init__(world)
        self.azure = azure
        if azure:
            world.change(window=None)

    def allowed(self, request: Request) -> bool:
        if self.azure:
            return (
                request.headers.get("api-key") == self.key and "api-version" in request.query_params
            )
        return super().allowed(request)

    def routes(self) -> list[Route]:
        at = "/openai" if self.azure else "/v1"
        route, jobs = self.route, at + self.jobs
        chat = f"{at}/deployments/{{model}}/chat/completions" if self.azure else CHAT
        return [
            route(f"{at}/files", self.upload, "POST", on="upload"),
            route(f"{at}/files/{{id}}", self.file, "GET", "DELETE", on="file"),
            route(f"{at}/files/{{id}}/content", self.content, on="download"),
            route(jobs, self.create, "POST", on="create"),
            route(jobs, self.list, "GET", on="list"),
            route(f"{jobs}/{{id}}", self.look, "GET", on="look"),
            route(f"{jobs}/{{id}}/cancel", self.cancel, "POST", on="cancel"),
            route(chat, self.chat, "POST", on="chat"),
        ]

    @property
    def endpoints(self) -> dict[str, str]:
        """Return the endpoints of jobs, by their API."""
        cut = len("/v1") if self.azure else 0
        return {CHAT[cut:]: "chat", RESPONSES[cut:]: "responses"}

    # --- files ------------------------------------------------------------------------------------

    async def upload(self, request: Request) -> Response:
        name, content = await uploaded(request)
        if len(content) > self.most_bytes:
            refuse(413, "File is too large")
        return JSONResponse(self._file(self.world.add_file(name, content, self.file_id)))

    def file_id(self, seq: int) -> str:
        return self.world.id_for("file-", seq, 22)

    async def file(self, request: Request) -> Response:
        id_ = request.path_params["id"]
        files = self.world.state.files
        if id_ not in files:
            refuse(404, f"No such File object: {id_}")
        if request.method == "DELETE":
            del files[id_]
            return JSONResponse({"id": id_, "object": "file", "deleted": True})
        return JSONResponse(self._file(id_))

    def _file(self, id_: str) -> dict[str, Any]:
        name, created, content = self.world.state.files[id_]
        read = not self.azure or self.world.now >= created + READ_SECONDS
        return {
            "id": id_,
            "object": "file",
            "bytes": len(content),
            "created_at": int(created),
            "filename": name,
            "purpose": "batch",
            "status": "processed" if read else "pending",
        }

    async def content(self, request: Request) -> Response:
        id_ = request.path_params["id"]
        kind, _, job_id = id_.removeprefix("file-").partition("-")
        job = self.world.state.jobs.get(job_id)
        if job is None or self.world.results_are_gone(job) or job.ended is None:
            refuse(404, f"No such File object: {id_}")
        return jsonl([*self._lines(job, wanted=kind), *self.world.settings.odd_lines])

    def _lines(self, job: Job, wanted: str) -> Iterator[dict[str, Any]]:
        for line in job.shuffled:
            response: dict[str, Any] | None = None
            error = None
            if line.status is None:
                code = CODES.get(job.status)
                words = "This request could not be executed before the completion window expired."
                error = {"code": code, "message": words}
            else:
                response = {"status_code": line.status, "request_id": f"req_{job.seq}_{line.n}"}
                response["body"] = line.answer
            good = line.status is not None and line.status < 300
            if good == (wanted == "output"):
                yield {
                    "id": f"batch_req_{job.seq}_{line.n}",
                    "custom_id": line.custom_id,
                    "response": response,
                    "error": error,
                }

    # --- jobs -------------------------------------------------------------------------------------

    async def create(self, request: Request) -> Response:
        from openai.types.batch_create_params import BatchCreateParams

        given = await request.json()
        if wrong := [p for p in problems(BatchCreateParams, given) if not self._of_azure(p)]:
            refuse(400, f"Invalid request: {wrong[0]}")
        if given["endpoint"] not in self.endpoints:
            refuse(400, f"Invalid value for endpoint: {given['endpoint']!r}")
        for key, value in (given.get("metadata") or {}).items():
            if len(key) > 64 or len(value) > 512:
                refuse(400, "Invalid 'metadata': too long")
        file = given["input_file_id"]
        if file not in self.world.state.files:
            refuse(400, f"Invalid file id: {file}")
        if self._file(file)["status"] != "processed":
            refuse(400, f"The file {file} is still being processed")
        content = self.world.state.files[file].content
        requests, model, errors = self._read(content, given["endpoint"])
        world = self.world
        job = world.add_job(
            *(requests, model, given, lambda seq: world.id_for("batch_", seq)),
            errors=errors,
            full=self._full,
        )
        return JSONResponse(self.batch(job))

    def _of_azure(self, problem: str) -> bool:
        return self.azure and problem.startswith("endpoint")

    def _full(self, model: str, limit: int) -> dict[str, Any]:
        words = f"Enqueued token limit reached for {model} in organization org-1. Limit: {limit}"
        words += " enqueued tokens. Please try again once some in_progress batches are completed."
        return {"code": "token_limit_exceeded", "message": words, "line": None, "param": None}

    def _read(
        self, content: bytes, endpoint: str
    ) -> tuple[list[tuple[str, dict[str, Any]]], str, list[dict[str, Any]]]:
        """Read a file of requests; return the requests, their model and the file's mistakes."""
        requests: list[tuple[str, dict[str, Any]]] = []
        errors: list[dict[str, Any]] = []
        seen: set[str] = set()
        models: set[str] = set()

        def wrong(code: str, message: str, line: int | None) -> None:
            errors.append({"code": code, "message": message, "line": line, "param": None})

        for number, line in enumerate(content.splitlines(), 1):
            try:
                each = json.loads(line)
            except ValueError:
                wrong("invalid_json_line", "This line is not parseable as valid JSON.", number)
                continue
            if each.keys() != {"custom_id", "method", "url", "body"}:
                wrong("invalid_line", f"Unexpected fields: {sorted(each)}", number)
            elif each["method"] != "POST" or each["url"] != endpoint:
                wrong("mismatched_url", "The URL does not match the batch's endpoint.", number)
            elif each["custom_id"] in seen:
                wrong("duplicate_custom_id", "The custom_id is not unique.", number)
            else:
                seen.add(each["custom_id"])
                models.add(each["body"].get("model"))
                requests.append((each["custom_id"], each["body"]))
        if not content.strip():
            wrong("empty_file", "The input file is empty.", None)
        if len(models) > 1:
            wrong("mismatched_model", "All requests must have the same model.", None)
        if len(requests) > MOST_REQUESTS * (1 + self.azure):
            wrong("too_many_requests", "The file has too many requests.", None)
        return requests, str(min(models, default="")), errors

    async def list(self, request: Request) -> Response:
        limit = int(request.query_params.get("limit", 20))
        return JSONResponse({"object": "list", **self.page(request, "after", limit)})

    def batch(self, job: Job) -> dict[str, Any]:
        """The object of a job."""
        given = job.given
        good, bad = job.counts
        unrun = job.total - good - bad if job.ended and job.status != "failed" else 0
        done = job.ended is not None and job.status != "failed"
        lacks = self.world.settings.no_files
        has_output = done and good and "output" not in lacks
        has_errors = done and (bad or unrun) and "errors" not in lacks
        shown = job.status != "validating"
        at = {f"{name}_at": None for name in ("cancelled", "cancelling", "completed", "expired")}
        if job.cancelled is not None:
            at["cancelling_at"] = int(job.cancelled)
        if job.ended is not None and job.status != "failed":
            at[f"{job.status}_at"] = int(job.ended)
        return {
            "id": job.id,
            "object": "batch",
            "endpoint": given["endpoint"],
            "model": job.model,
            "errors": {"object": "list", "data": job.errors} if job.status == "failed" else None,
            "input_file_id": given["input_file_id"],
            "completion_window": given["completion_window"],
            "status": STATUSES.get(job.status, job.status),
            "output_file_id": f"file-output-{job.id}" if has_output else None,
            "error_file_id": f"file-errors-{job.id}" if has_errors else None,
            "created_at": int(job.created),
            "in_progress_at": int(job.starts) if shown and job.status != "failed" else None,
            "expires_at": None if job.expires is None else int(job.expires),
            "finalizing_at": int(job.ended) if done and job.ended else None,
            "failed_at": int(job.ended) if job.ended and job.status == "failed" else None,
            **at,
            "request_counts": {
                "total": 0 if job.status in ("validating", "failed") else job.total,
                "completed": good,
                "failed": bad,
            },
            "metadata": given.get("metadata"),
        }

    # --- requests and replies ---------------------------------------------------------------------

    async def chat(self, request: Request) -> Response:
        body = await request.json()
        streams = body.pop("stream", False)
        body.pop("stream_options", None)
        if why := self.refusal(body):
            refuse(400, why)
        number = self.world.state.calls["chat"]
        reply = self.world.reply(body, f"direct-{number}", self.world.now)
        if not streams:
            return JSONResponse(reply)
        choice = reply["choices"][0]
        delta = choice.pop("message")
        for n, call in enumerate(delta.get("tool_calls") or ()):
            call["index"] = n
        usage = reply.pop("usage")
        reply["object"] = "chat.completion.chunk"
        first = {**reply, "choices": [{**choice, "delta": delta}]}
        last = {**reply, "choices": [], "usage": usage}

        async def events() -> Any:
            for each in (json.dumps(first), json.dumps(last), "[DONE]"):
                yield f"data: {each}\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")

    def refusal(self, body: dict[str, Any]) -> str:
        from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming
        from openai.types.responses.response_create_params import ResponseCreateParamsNonStreaming

        if body.get("stream"):
            return "Streaming is not supported in batches"
        kind: Any = CompletionCreateParamsNonStreaming
        if "input" in body:
            kind = ResponseCreateParamsNonStreaming
        if wrong := problems(kind, body):
            return f"Invalid request: {wrong[0]}"
        if not (body.get("messages") or body.get("input")):
            return "Invalid 'messages': empty array."
        if not 0 <= (body.get("temperature") or 0) <= 2:
            return "Invalid 'temperature': decimal above maximum value."
        if len(body.get("stop") or ()) > 4:
            return "Invalid 'stop': array too long."
        return ""

    def asked(self, body: dict[str, Any]) -> Asked:
        most = body.get("max_completion_tokens") or body.get("max_tokens")
        most = most or body.get("max_output_tokens")
        thinks = bool(body.get("reasoning_effort") or body.get("reasoning"))
        schema = None
        form = body.get("response_format") or (body.get("text") or {}).get("format") or {}
        if form.get("type") == "json_schema":
            schema = form.get("json_schema", form)["schema"]
        elif form.get("type") == "json_object":
            schema = {}
        texts = [_text(m.get("content", m.get("output", ""))) for m in _messages(body)]
        return Asked(body.get("model", ""), texts, schema, _forced(body), most, thinks)

    def answer(self, body: dict[str, Any], drawn: Drawn, id_: str, now: float) -> dict[str, Any]:
        if "input" in body:
            return self._response(body, drawn, id_, now)
        message: dict[str, Any] = {"role": "assistant", "content": drawn.text, "refusal": None}
        reason = "length" if drawn.cut else "stop"
        if drawn.tool is not None:
            message["content"] = None
            message["tool_calls"] = [
                {
                    "id": f"call_{id_}",
                    "type": "function",
                    "function": {"name": drawn.tool, "arguments": json.dumps(drawn.arguments)},
                }
            ]
            reason = "tool_calls"
        thought = len(drawn.thought.split())
        cached = int(drawn.input_tokens * self.world.settings.cached)
        return {
            "id": f"chatcmpl-{id_}",
            "object": "chat.completion",
            "created": int(now),
            "model": body["model"],
            "choices": [
                {"index": 0, "message": message, "logprobs": None, "finish_reason": reason}
            ],
            "usage": {
                "prompt_tokens": drawn.input_tokens,
                "completion_tokens": drawn.output_tokens,
                "total_tokens": drawn.input_tokens + drawn.output_tokens,
                "prompt_tokens_details": {"cached_tokens": cached},
                "completion_tokens_details": {"reasoning_tokens": thought},
            },
        }

    def _response(self, body: dict[str, Any], drawn: Drawn, id_: str, now: float) -> dict[str, Any]:
        output: list[dict[str, Any]] = []
        if drawn.thought:
            summary = [{"type": "summary_text", "text": drawn.thought}]
            output.append({"id": f"rs_{id_}", "type": "reasoning", "summary": summary})
        if drawn.tool is not None:
            call = {"type": "function_call", "id": f"fc_{id_}", "call_id": f"call_{id_}"}
            call |= {"name": drawn.tool, "arguments": json.dumps(drawn.arguments)}
            output.append(call)
        else:
            text = {"type": "output_text", "text": drawn.text, "annotations": []}
            message: dict[str, Any] = {"type": "message", "id": f"msg_{id_}", "role": "assistant"}
            output.append(message | {"status": "completed", "content": [text]})
        thought = len(drawn.thought.split())
        cached = int(drawn.input_tokens * self.world.settings.cached)
        return {
            "id": f"resp_{id_}",
            "object": "response",
            "created_at": int(now),
            "model": body["model"],
            "status": "incomplete" if drawn.cut else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if drawn.cut else None,
            "error": None,
            "output": output,
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "usage": {
                "input_tokens": drawn.input_tokens,
                "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
                "output_tokens": drawn.output_tokens,
                "output_tokens_details": {"reasoning_tokens": thought},
                "total_tokens": drawn.input_tokens + drawn.output_tokens,
            },
        }

    def failure(
        self, status: int, message: str, code: str | None = None, **more: Any
    ) -> dict[str, Any]:
        kind = "server_error" if status >= 500 else "invalid_request_error"
        return {"error": {"message": message, "type": kind, "param": None, "code": code, **more}}


def _messages(body: dict[str, Any]) -> list[dict[str, Any]]:
    given = body.get("messages", body.get("input", []))
    return [{"content": given}] if isinstance(given, str) else given


def _text(content: Any) -> str:
    if isinstance(content, list):
        return " ".join(str(part.get("text", "[part]")) for part in content)
    return str(content or "")


def _forced(body: dict[str, Any]) -> tuple[str, dict[str, Any]] | None:
    """Return the tool that must be called."""
    choice = body.get("tool_choice")
    tools = [tool.get("function", tool) for tool in body.get("tools") or ()]
    if choice in ("required", "any"):
        return tools[0]["name"], tools[0]["parameters"]
    if isinstance(choice, dict):
        name = choice.get("function", choice)["name"]
        return next((t["name"], t["parameters"]) for t in tools if t["name"] == name)
    return None
