"""What a multi-provider library costs, and what it does when a request is cancelled.

    python benchmarks/provider_libraries.py pydantic-ai | any-llm | litellm

Run it once for each library, in an environment of its own that has it and trio: they want different
versions of the SDKs. A server in another process speaks OpenAI's chat protocol and Anthropic's
messages, slowly or at once, and counts which of its replies a client left before their ends.
"""

import asyncio
import gc
import json
import os
import select
import subprocess
import sys
import time
import urllib.request
import warnings
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version

PACKAGES = {"pydantic-ai": "pydantic-ai-slim", "any-llm": "any-llm-sdk", "litellm": "litellm"}
IMPORTS = {
    "pydantic-ai": "import pydantic_ai.direct, pydantic_ai.models.openai",
    "any-llm": "import any_llm, any_llm.providers.openai",
    "litellm": "import litellm",
}
CHUNKS = 20
REQUESTS = 200
PAUSE = 0.05
"""Seconds between the chunks of a slow reply, which has no end."""

counts = {"began": 0, "ended": 0, "left": 0}


class Provider(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def do_GET(self):
        body = json.dumps(counts).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        anthropic = self.path.endswith("/messages")
        slow = "slow" in json.dumps(asked["messages"])
        counts["began"] += 1
        with suppress(OSError):
            if asked.get("stream"):
                self.send_response(200)
                self.send_header("content-type", "text/event-stream")
                self.send_header("transfer-encoding", "chunked")
                self.end_headers()
                for event in (anthropic_events if anthropic else openai_events)(slow):
                    if slow and self.client_left(PAUSE):
                        counts["left"] += 1
                        self.close_connection = True
                        return
                    self.wfile.write(f"{len(event):x}\r\n".encode() + event + b"\r\n")
                self.wfile.write(b"0\r\n\r\n")
            else:
                for _ in range(100 if slow else 0):
                    if self.client_left(PAUSE):
                        counts["left"] += 1
                        self.close_connection = True
                        return
                body = json.dumps(whole_reply(anthropic=anthropic)).encode()
                self.send_response(200)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
            counts["ended"] += 1

    def client_left(self, seconds):
        """Wait, and tell whether the client has closed the connection meanwhile."""
        readable, _, _ = select.select([self.connection], [], [], seconds)
        return bool(readable) and self.connection.recv(1) == b""


def openai_events(slow):
    def event(delta, finish=None, **more):
        choices = [{"index": 0, "delta": delta, "finish_reason": finish}]
        chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
        return b"data: " + json.dumps({**chunk, "choices": choices, **more}).encode() + b"\n\n"

    for _ in range(10_000 if slow else CHUNKS):
        yield event({"role": "assistant", "content": "word "})
    yield event({}, "stop")
    usage = {"prompt_tokens": 5, "completion_tokens": CHUNKS, "total_tokens": CHUNKS + 5}
    yield event({}, usage=usage)
    yield b"data: [DONE]\n\n"


def anthropic_events(slow):
    def event(kind, **more):
        return f"event: {kind}\ndata: {json.dumps({'type': kind, **more})}\n\n".encode()

    message = whole_reply(anthropic=True) | {"content": [], "stop_reason": None}
    yield event("message_start", message=message)
    yield event("content_block_start", index=0, content_block={"type": "text", "text": ""})
    for _ in range(10_000 if slow else CHUNKS):
        yield event("content_block_delta", index=0, delta={"type": "text_delta", "text": "word "})
    yield event("content_block_stop", index=0)
    ended = {"stop_reason": "end_turn", "stop_sequence": None}
    yield event("message_delta", delta=ended, usage={"output_tokens": CHUNKS})
    yield event("message_stop")


def whole_reply(*, anthropic):
    if anthropic:
        usage = {"input_tokens": 5, "output_tokens": CHUNKS}
        said = [{"type": "text", "text": "word " * CHUNKS}]
        reply = {"id": "m", "type": "message", "role": "assistant", "model": "claude-sonnet-5-5"}
        return {**reply, "content": said, "stop_reason": "end_turn", "usage": usage}
    message = {"role": "assistant", "content": "word " * CHUNKS}
    usage = {"prompt_tokens": 5, "completion_tokens": CHUNKS, "total_tokens": CHUNKS + 5}
    choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
    reply = {"id": "c", "object": "chat.completion", "created": 1, "model": "m"}
    return {**reply, "choices": choices, "usage": usage}


# --- the libraries: each has a function that reads a streamed reply, and one for a whole ----------


def pydantic_ai_ways(url, provider):
    from pydantic_ai import ModelRequest, direct

    if provider == "openai":
        from pydantic_ai.models.openai import OpenAIChatModel
        from pydantic_ai.providers.openai import OpenAIProvider

        model = OpenAIChatModel("m", provider=OpenAIProvider(base_url=f"{url}/v1", api_key="none"))
    else:
        from pydantic_ai.models.anthropic import AnthropicModel
        from pydantic_ai.providers.anthropic import AnthropicProvider

        here = AnthropicProvider(base_url=url, api_key="none")
        model = AnthropicModel("claude-sonnet-5-5", provider=here)

    async def streamed(text, heard):
        asked = [ModelRequest.user_text_prompt(text)]
        async with direct.model_request_stream(model, asked) as events:
            async for _ in events:
                heard()
        return events.usage.output_tokens

    async def whole(text, heard):
        reply = await direct.model_request(model, [ModelRequest.user_text_prompt(text)])
        return reply.usage.output_tokens

    return streamed, whole


def any_llm_ways(url, provider):
    from any_llm import acompletion

    base = f"{url}/v1" if provider == "openai" else url
    name = "m" if provider == "openai" else "claude-sonnet-5-5"
    said = {"model": name, "provider": provider, "api_base": base, "api_key": "none"}

    async def streamed(text, heard):
        asked = [{"role": "user", "content": text}]
        more = {"stream_options": {"include_usage": True}} if provider == "openai" else {}
        tokens = 0
        async for chunk in await acompletion(**said, messages=asked, stream=True, **more):
            heard()
            tokens = chunk.usage.completion_tokens if chunk.usage else tokens
        return tokens

    async def whole(text, heard):
        reply = await acompletion(**said, messages=[{"role": "user", "content": text}])
        return reply.usage.completion_tokens

    return streamed, whole


def litellm_ways(url, provider):
    import litellm

    litellm.suppress_debug_info = True
    base = f"{url}/v1" if provider == "openai" else url
    name = "openai/m" if provider == "openai" else "anthropic/claude-sonnet-5-5"
    said = {"model": name, "api_base": base, "api_key": "none"}

    async def streamed(text, heard):
        asked = [{"role": "user", "content": text}]
        more = {"stream_options": {"include_usage": True}}
        tokens = 0
        async for chunk in await litellm.acompletion(**said, messages=asked, stream=True, **more):
            heard()
            usage = getattr(chunk, "usage", None)
            tokens = usage.completion_tokens if usage else tokens
        return tokens

    async def whole(text, heard):
        reply = await litellm.acompletion(**said, messages=[{"role": "user", "content": text}])
        return reply.usage.completion_tokens

    return streamed, whole


WAYS = {"pydantic-ai": pydantic_ai_ways, "any-llm": any_llm_ways, "litellm": litellm_ways}


# --- what is measured -----------------------------------------------------------------------------


def seen(url):
    with urllib.request.urlopen(f"{url}/counts") as reply:
        return json.loads(reply.read())


async def cancelled(library, url, provider):
    """Cancel ten requests of each kind; say how many connections were closed within a second."""
    lines = []
    for name, way in zip(("streamed", "whole"), WAYS[library](url, provider), strict=True):
        before = seen(url)
        for _ in range(10):
            arrived = asyncio.Event()
            task = asyncio.create_task(way("slow", arrived.set))
            if name == "streamed":
                await asyncio.wait_for(arrived.wait(), 10)
            else:
                await asyncio.sleep(0.3)
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        await asyncio.sleep(1)
        after = seen(url)
        left, began = (after[name] - before[name] for name in ("left", "began"))
        lines.append(f"{name} {left} of {began}")
    return ", ".join(lines)


async def cpu(library, url):
    streamed, _ = WAYS[library](url, "openai")
    for _ in range(20):
        await streamed("now", int)
    gc.collect()
    began = time.process_time()
    for _ in range(REQUESTS):
        assert await streamed("now", int) == CHUNKS
    return (time.process_time() - began) / REQUESTS * 1000


def on_trio(library, url, provider):
    import trio

    async def both():
        for way in WAYS[library](url, provider):
            with trio.fail_after(10):
                assert await way("now", int) == CHUNKS

    try:
        trio.run(both)
    except BaseException as exc:  # noqa: BLE001 (whatever a library may raise there)
        return f"no ({type(exc).__name__}: {str(exc).splitlines()[0][:80] if str(exc) else ''})"
    return "yes"


def weight(statement):
    """CPU seconds and MB that an import takes, less those of the bare interpreter."""
    code = (
        "import resource, sys\n{}\nuse = resource.getrusage(resource.RUSAGE_SELF)\n"
        "print(use.ru_utime + use.ru_stime, use.ru_maxrss / 1024, len(sys.modules))"
    )
    runs = []
    for _ in range(5):
        pair = []
        for what in ("pass", statement):
            said = subprocess.run(
                [sys.executable, "-c", code.format(what)], capture_output=True, check=True
            )
            pair.append([float(part) for part in said.stdout.split()[-3:]])
        runs.append([with_it - bare for bare, with_it in zip(*pair, strict=True)])
    return sorted(runs)[len(runs) // 2]


def main(library):
    with subprocess.Popen([sys.executable, __file__, "serve"], stdout=subprocess.PIPE) as server:
        url = f"http://127.0.0.1:{server.stdout.readline().decode().strip()}"
        try:
            print(library, version(PACKAGES[library]), "on Python", sys.version.split()[0])
            for package in ("openai", "anthropic"):
                with suppress(Exception):
                    print(f"  with {package} {version(package)}")
            seconds, megabytes, modules = weight(IMPORTS[library])
            print(f"  import: {seconds:.2f} CPU s, {megabytes:.0f} MB, {modules:.0f} modules")
            for provider in ("openai", "anthropic"):
                said = asyncio.run(cancelled(library, url, provider))
                print(f"  {provider}: connections closed on cancel: {said}")
                print(f"  {provider}: on trio: {on_trio(library, url, provider)}")
            spent = asyncio.run(cpu(library, url))
            print(f"  CPU of a request with {CHUNKS} chunks: {spent:.1f} ms")
        finally:
            server.kill()


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        with ThreadingHTTPServer(("127.0.0.1", 0), Provider) as here:
            print(here.server_port, flush=True)
            here.serve_forever()
    else:
        os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "true"
        warnings.simplefilter("ignore")
        main(sys.argv[1])
