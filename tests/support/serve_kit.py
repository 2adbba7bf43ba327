"""``mellea-like serve`` in its own process, and requests to it."""

from __future__ import annotations

import contextlib
import re

import httpx2
from command_line import environment, start

CONFIG = """\
upstreams:
  main: {kind: openai, base_url: URL, model: big, api_key: "${MY_KEY}"}
models:
  short: {upstream: main, checks: ["words<=3"], retries: 0}
  other: {upstream: main}
server: {port: 0, stop_seconds: 1}
"""
TOY = "upstreams: {toy: {kind: markov}}\nmodels: {mine: {upstream: toy}}\n"
KEY = "sk-very-secret-key"


@contextlib.contextmanager
def serving(*arguments: str, **env: str):
    """Run the command, and yield its process and the URL that it prints."""
    process = start("serve", *arguments, text=True, env=environment(**env))
    try:
        line = process.stdout.readline()
        found = re.fullmatch(r"Listening on (http://\S+/v1) \(models: (.+)\)\n", line)
        assert found, line + process.stderr.read()
        yield process, found[1]
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def ask(url: str, **fields) -> httpx2.Response:
    body = {"model": "short", "messages": [{"role": "user", "content": "My secret prompt."}]}
    with httpx2.Client(timeout=20, trust_env=False) as client:
        return client.post(f"{url}/chat/completions", json={**body, **fields})
