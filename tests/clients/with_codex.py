"""Codex's command line, in an empty directory and with its own settings."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from rows import AGAIN, BASE_URL, CHECKED, EXPECTED, KEY, PLAIN, SENTENCE, Weather, run, same

CODEX = Path(os.environ["NODE_PATH"]) / ".bin" / "codex"
SETTINGS = f"""
model_provider = "gateway"
check_for_update_on_startup = false
analytics.enabled = false
[model_providers.gateway]
name = "gateway"
base_url = "{BASE_URL}"
env_key = "GATEWAY_KEY"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0
"""


def codex(home: Path, *arguments: str) -> list[dict[str, Any]]:
    """Run a turn, and return the outcome of each of its items."""
    work = home / "work"
    work.mkdir(exist_ok=True)
    (home / "config.toml").write_text(SETTINGS)
    ran = subprocess.run(
        # The only command that the model runs is an echo.
        [CODEX, "exec", "--json", "--skip-git-repo-check", "-s", "danger-full-access", *arguments],
        env={**os.environ, "CODEX_HOME": str(home), "GATEWAY_KEY": KEY},
        cwd=work,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=60,
        check=False,
    )
    events = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]
    if ran.returncode:
        errors = [event["error"] for event in events if event["type"] == "turn.failed"]
        msg = f"codex: {errors or ran.stderr}"
        raise AssertionError(msg)
    return [event["item"] for event in events if event["type"] == "item.completed"]


def said(items: list[dict[str, Any]]) -> str:
    """Return the last message."""
    return [item["text"] for item in items if item["type"] == "agent_message"][-1]


def turns(prompt: str, *arguments: str, how: str = "Call no tool.") -> list[list[dict[str, Any]]]:
    """Run twice in the same conversation."""
    with tempfile.TemporaryDirectory() as made:
        home = Path(made)
        first = codex(home, *arguments, f"{prompt} {how}")
        return [first, codex(home, *arguments, "resume", "--last", AGAIN)]


def chat(prompt: str) -> None:
    for items in turns(prompt, "-m", PLAIN):
        same(said(items), SENTENCE)


def tools(prompt: str) -> None:
    for items in turns(prompt, "-m", CHECKED, how="Call only exec_command."):
        (ran,) = [item for item in items if item["type"] == "command_execution"]
        same((ran["aggregated_output"], ran["exit_code"]), ("21 degrees\n", 0))
        same(said(items), SENTENCE)


def typed(prompt: str) -> None:
    with tempfile.TemporaryDirectory() as made:
        schema = Path(made) / "schema.json"
        strict = {**Weather.model_json_schema(), "additionalProperties": False}
        schema.write_text(json.dumps(strict))
        for items in turns(prompt, "-m", CHECKED, "--output-schema", str(schema)):
            same(json.loads(said(items)), EXPECTED.model_dump())


run(
    "Codex",
    {
        "responses": {
            "codex exec": chat,
            "a command": tools,
            "--output-schema": typed,
        }
    },
)
