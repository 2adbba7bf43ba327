"""A fake of Mistral's files and batch jobs, and of its chat API."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from batch_servers.fields import problems
from batch_servers.openai_server import OpenAI
from batch_servers.web import refuse
from batch_servers.world import Job

CHAT = "/v1/chat/completions"
STATUSES = {
    "validating": "QUEUED",
    "working": "RUNNING",
    "completed": "SUCCESS",
    "failed": "FAILED",
    "expired": "TIMEOUT_EXCEEDED",
    "cancelling": "CANCELLATION_REQUESTED",
    "cancelled": "CANCELLED",
}
CALL_ID = re.compile(r"[A-Za-z0-9]{9}")


class Mistral(OpenAI):
    """The server. Its requests and replies are much like OpenAI's."""

    jobs = "/batch/jobs"
    most_bytes = 512_000_000

    def _uuid(self, kind: str, seq: int) -> str:
        return str(uuid.uuid5(uuid.NAMESPACE_URL, f"{self.world.settings.seed}/{kind}/{seq}"))

    def file_id(self, seq: int) -> str:
        return self._uuid("file", seq)

    def _file(self, id_: str) -> dict[str, Any]:
        file = super()._file(id_) | {"sample_type": "batch_request", "source": "upload"}
        del file["status"]
        return file

    def _lines(self, job: Job, wanted: str) -> Iterator[dict[str, Any]]:
        for line in job.shuffled:
            if line.status is None:
                continue  # Nobody hears of what wasn't run.
            if (line.status < 300) == (wanted == "output"):
                yield {
                    "id": f"{job.seq}-{line.n}",
                    "custom_id": line.custom_id,
                    "response": {"status_code": line.status, "body": line.answer},
                    "error": None,
                }

    # --- jobs -------------------------------------------------------------------------------------

    async def create(self, request: Request) -> Response:
        from mistralai.client.models import CreateBatchJobRequestTypedDict

        given = await request.json()
        if wrong := problems(CreateBatchJobRequestTypedDict, given):
            refuse(422, wrong[0])
        if given["endpoint"] != CHAT or not given.get("model"):
            refuse(422, "endpoint and model")
        if not 1 <= given.get("timeout_hours", 24) <= 168:
            refuse(422, "timeout_hours: 1 to 168")
        (file,) = given["input_files"]
        if file not in self.world.state.files:
            refuse(404, f"File {file} not found")
        requests = []
        errors: list[dict[str, Any]] = []
        for line in self.world.state.files[file].content.splitlines():
            try:
                each = json.loads(line)
                if each.keys() != {"custom_id", "body"} or "model" in each["body"]:
                    errors.append({"message": f"Unexpected fields: {sorted(each)}", "count": 1})
                requests.append((each["custom_id"], each["body"]))
            except (ValueError, KeyError, AttributeError):
                errors.append({"message": "Invalid JSON line", "count": 1})
        if len({custom_id for custom_id, _ in requests}) < len(requests):
            errors.append({"message": "custom_id is not unique", "count": 1})
        job = self.world.add_job(
            *(requests, given["model"], given, lambda seq: self._uuid("job", seq).replace("-", "")),
            errors=errors,
            window=given.get("timeout_hours", 24) * 3600.0,
            full=lambda model, limit: {
                "message": f"Too many pending requests for {model}: at most {limit} tokens",
                "count": 1,
            },
        )
        return JSONResponse(self.batch(job))

    async def list(self, request: Request) -> Response:
        query = request.query_params
        if unknown := set(query) - {"page", "page_size", "order_by", "model"}:
            refuse(422, f"unknown query: {unknown}")
        page, size = int(query.get("page", 0)), int(query.get("page_size", 100))
        data = [self.batch(job) for job in self.world.jobs(size, skip=page * size)]
        return JSONResponse({"object": "list", "total": len(self.world.jobs(10**9)), "data": data})

    def batch(self, job: Job) -> dict[str, Any]:
        """The object of a job."""
        given = job.given
        good, bad = job.counts
        done = job.ended is not None and job.status != "failed"
        lacks = self.world.settings.no_files
        has_output = done and good and "output" not in lacks
        has_errors = done and bad and "errors" not in lacks
        return {
            "id": job.id,
            "object": "batch",
            "input_files": given["input_files"],
            "endpoint": given["endpoint"],
            "model": job.model,
            "metadata": given.get("metadata"),
            "errors": job.errors if job.status == "failed" else [],
            "status": STATUSES[job.status],
            "created_at": int(job.created),
            "started_at": None if job.status == "validating" else int(job.starts),
            "completed_at": None if job.ended is None else int(job.ended),
            "total_requests": job.total,
            "completed_requests": good + bad,
            "succeeded_requests": good,
            "failed_requests": bad,
            "output_file": f"output-{job.id}" if has_output else None,
            "error_file": f"errors-{job.id}" if has_errors else None,
        }

    # --- requests and replies ---------------------------------------------------------------------

    def refusal(self, body: dict[str, Any]) -> str:
        from mistralai.client.models import ChatCompletionRequestTypedDict

        body = json.loads(json.dumps(body))
        form = (body.get("response_format") or {}).get("json_schema")
        if form and "schema" in form:
            form["schema_definition"] = form.pop("schema")  # As the SDK calls it.
        if wrong := problems(ChatCompletionRequestTypedDict, body):
            return wrong[0]
        before = ""
        for message in body["messages"]:
            role = message["role"]
            if before == "tool" and role == "user":
                return "Unexpected role 'user' after role 'tool'"
            for call in message.get("tool_calls") or ():
                if not CALL_ID.fullmatch(call.get("id", "")):
                    return f"Tool call id was {call.get('id')} but must have 9 characters"
            before = role
        if before not in ("user", "tool"):
            return f"Expected last role User or Tool, but got {before}"
        if not 0 <= (body.get("temperature") or 0) <= 1.5:
            return "temperature: Input should be less than or equal to 1.5"
        return ""

    def answer(self, body: dict[str, Any], drawn: Any, id_: str, now: float) -> dict[str, Any]:
        reply = super().answer(body, drawn, id_, now)
        message = reply["choices"][0]["message"]
        del message["refusal"]
        for call in message.get("tool_calls") or ():
            call["id"] = id_[:9]
        if drawn.thought:
            thinking = {"type": "thinking", "thinking": [{"type": "text", "text": drawn.thought}]}
            message["content"] = [thinking, {"type": "text", "text": drawn.text}]
        usage = reply["usage"]
        for name in ("prompt_tokens_details", "completion_tokens_details"):
            del usage[name]
        return reply

    def failure(
        self, status: int, message: str, code: str | None = None, **more: Any
    ) -> dict[str, Any]:
        return {"object": "error", "message": message, "type": "invalid", "code": code, **more}
