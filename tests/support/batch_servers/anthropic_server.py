"""A fake of Anthropic's Message Batches, and of its Messages API, as of version 2026-10-21."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from batch_servers.fields import problems
from batch_servers.replies import Asked, Drawn
from batch_servers.web import Server, jsonl, refuse
from batch_servers.world import Job

MOST_REQUESTS, MOST_BYTES = 100_000, 256_000_000
CUSTOM_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}
BATCHES = "/v1/messages/batches"


class Anthropic(Server):
    """The server."""

    no_job = "Message batch {} not found"
    no_cancel = "Batch {job.id} cannot be canceled because it has ended."

    def allowed(self, request: Request) -> bool:
        headers = request.headers
        given = headers.get("x-api-key") == self.key or super().allowed(request)
        return given and "anthropic-version" in headers

    def routes(self) -> list[Route]:
        route = self.route
        return [
            route(BATCHES, self.create, "POST", on="create"),
            route(BATCHES, self.list, "GET", on="list"),
            route(f"{BATCHES}/{{id}}", self.look, "GET", on="look"),
            route(f"{BATCHES}/{{id}}/cancel", self.cancel, "POST", on="cancel"),
            route(f"{BATCHES}/{{id}}/results", self.results, "GET", on="download"),
            route("/v1/messages", self.message, "POST", on="chat"),
        ]

    # --- jobs -------------------------------------------------------------------------------------

    async def create(self, request: Request) -> Response:
        whole = await request.body()
        if len(whole) > MOST_BYTES:
            refuse(413, "Request exceeds the maximum size")
        given = json.loads(whole)
        if given.keys() != {"requests"}:
            refuse(400, f"unknown fields: {sorted(given.keys() - {'requests'})}")
        requests = given["requests"]
        if not 1 <= len(requests) <= MOST_REQUESTS:
            refuse(400, "requests: List should have 1 to 100000 items")
        seen: set[str] = set()
        for n, each in enumerate(requests):
            if each.keys() != {"custom_id", "params"} or not isinstance(each["params"], dict):
                refuse(400, f"requests.{n}: unexpected fields {sorted(each)}")
            if not CUSTOM_ID.fullmatch(each["custom_id"]):
                refuse(400, f"requests.{n}.custom_id: String should match the pattern")
            if each["custom_id"] in seen:
                refuse(400, f"requests.{n}.custom_id: is not unique")
            seen.add(each["custom_id"])
        world = self.world
        models = {each["params"].get("model", "") for each in requests}
        job = world.add_job(
            ((each["custom_id"], each["params"]) for each in requests),
            *(min(models), {}, lambda seq: world.id_for("msgbatch_", seq)),
        )
        return JSONResponse(self.batch(job))

    async def list(self, request: Request) -> Response:
        limit = int(request.query_params.get("limit", 20))
        if not 1 <= limit <= 1000:
            refuse(400, "limit: Input should be 1 to 1000")
        return JSONResponse(self.page(request, "after_id", limit))

    async def results(self, request: Request) -> Response:
        job = self.job(request)
        if job.ended is None or self.world.results_are_gone(job):
            refuse(404, f"Results for batch {job.id} are not available.")
        return jsonl([*self._lines(job), *self.world.settings.odd_lines])

    def _lines(self, job: Job) -> Iterator[dict[str, Any]]:
        for line in job.shuffled:
            if line.status is None:
                result: Any = {"type": "expired" if job.status == "expired" else "canceled"}
            elif line.status >= 300:
                result = {"type": "errored", "error": line.answer}
            else:
                result = {"type": "succeeded", "message": line.answer}
            yield {"custom_id": line.custom_id, "result": result}

    def batch(self, job: Job) -> dict[str, Any]:
        """The object of a job."""
        counts = dict.fromkeys(("processing", "succeeded", "errored", "canceled", "expired"), 0)
        counts["processing"] = job.total
        gone = self.world.results_are_gone(job)
        status = "canceling" if job.cancelled is not None else "in_progress"
        if job.ended is not None:
            # Until then, all of them count as being processed.
            good, bad = job.counts
            unrun = "expired" if job.status == "expired" else "canceled"
            counts |= {"processing": 0, "succeeded": good, "errored": bad}
            counts[unrun] = job.total - good - bad
            status = "ended"
        url = None
        if job.ended is not None and not gone:
            url = f"{self.base}{BATCHES}/{job.id}/results"
        return {
            "id": job.id,
            "type": "message_batch",
            "processing_status": status,
            "request_counts": counts,
            "ended_at": _time(job.ended),
            "created_at": _time(job.created),
            "expires_at": _time(job.expires),
            "archived_at": _time(job.created + (self.world.settings.kept or 0)) if gone else None,
            "cancel_initiated_at": _time(job.cancelled),
            "results_url": url,
        }

    # --- requests and replies ---------------------------------------------------------------------

    async def message(self, request: Request) -> Response:
        body = await request.json()
        if why := self.refusal(body):
            refuse(400, why)
        number = self.world.state.calls["chat"]
        return JSONResponse(self.world.reply(body, f"direct-{number}", self.world.now))

    def refusal(self, body: dict[str, Any]) -> str:
        from anthropic.types.message_create_params import MessageCreateParamsNonStreaming

        if wrong := problems(MessageCreateParamsNonStreaming, body):
            return wrong[0]
        if body["max_tokens"] < 1 or "speed" in body:
            return "max_tokens: at least 1 in batches, and no speed"
        if any(not text.strip() for text in body.get("stop_sequences") or ()):
            return "stop_sequences: each stop sequence must contain non-whitespace"
        return _of_messages(body["messages"]) or _of_thinking(body)

    def asked(self, body: dict[str, Any]) -> Asked:
        tool = None
        tools = {tool["name"]: tool["input_schema"] for tool in body.get("tools") or ()}
        choice = body.get("tool_choice") or {}
        if choice.get("type") == "tool":
            tool = choice["name"], tools[choice["name"]]
        elif choice.get("type") == "any":
            tool = next(iter(tools.items()))
        form = (body.get("output_config") or {}).get("format")
        schema = form["schema"] if form else None
        texts = [_text(turn["content"]) for turn in body.get("messages") or ()]
        if body.get("system"):
            texts.append(_text(body["system"]))
        thinks = (body.get("thinking") or {}).get("type") in ("enabled", "adaptive")
        most = body.get("max_tokens")
        return Asked(str(body.get("model")), texts, schema, tool, most, thinks)

    def answer(self, body: dict[str, Any], drawn: Drawn, id_: str, now: float) -> dict[str, Any]:
        content: list[dict[str, Any]] = []
        if drawn.thought:
            content.append({"type": "thinking", "thinking": drawn.thought, "signature": id_})
        if drawn.tool is not None:
            call = {"type": "tool_use", "id": f"toolu_{id_}", "name": drawn.tool}
            content.append({**call, "input": drawn.arguments})
        else:
            content.append({"type": "text", "text": drawn.text, "citations": None})
        reason = "max_tokens" if drawn.cut else "tool_use" if drawn.tool else "end_turn"
        cached = int(drawn.input_tokens * self.world.settings.cached)
        return {
            "id": f"msg_{id_}",
            "type": "message",
            "role": "assistant",
            "model": body["model"],
            "content": content,
            "stop_reason": reason,
            "stop_sequence": None,
            "usage": {
                "input_tokens": drawn.input_tokens - cached,
                "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": cached,
                "output_tokens": drawn.output_tokens,
                "output_tokens_details": {"thinking_tokens": len(drawn.thought.split())},
                "service_tier": "batch",
            },
        }

    def failure(
        self, status: int, message: str, code: str | None = None, **more: Any
    ) -> dict[str, Any]:
        kind = code or KINDS.get(status, "api_error")
        return {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_1"}


def _of_messages(turns: list[dict[str, Any]]) -> str:
    if not turns:
        return "messages: at least one message is required"
    if turns[0]["role"] != "user":
        return 'messages: first message must use the "user" role'
    calls: set[str] = set()
    for turn in turns:
        blocks = turn["content"]
        if isinstance(blocks, str):
            blocks = [{"type": "text", "text": blocks}]
        answered = {block["tool_use_id"] for block in blocks if block["type"] == "tool_result"}
        if answered != calls:
            return f"messages: `tool_use` ids were found without `tool_result` blocks: {calls}"
        calls = {block["id"] for block in blocks if block["type"] == "tool_use"}
        if any(block["type"] == "text" and not block["text"].strip() for block in blocks):
            return "messages: text content blocks must contain non-whitespace text"
        if not blocks:
            return "messages: content must not be empty"
    return "messages: the last turn calls tools" if calls else ""


def _of_thinking(body: dict[str, Any]) -> str:
    thinking = body.get("thinking") or {}
    if thinking.get("type") == "enabled":
        if not 1024 <= thinking["budget_tokens"] < body["max_tokens"]:
            return "thinking.budget_tokens: at least 1024 and less than max_tokens"
        if (body.get("tool_choice") or {}).get("type") in ("any", "tool"):
            return "Thinking may not be enabled when tool_choice forces tool use."
    return ""


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return " ".join(str(block.get("text", "[block]")) for block in content)


def _time(at: float | None) -> str | None:
    return None if at is None else datetime.fromtimestamp(at, UTC).isoformat()
