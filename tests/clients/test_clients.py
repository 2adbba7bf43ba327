"""Unmodified clients of OpenAI's protocol against a gateway; only the base URL is changed.

``nox -s clients`` installs them into environments of their own and runs this. Each is a script that
runs in such an environment and says of each of its calls whether it works.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.clients, pytest.mark.timeout(600)]

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "howto" / "gateway-clients.md"
TABLE = re.compile(r"(?<=<!-- made by nox -s clients -->\n\n).*?(?=\n\n<!-- end -->)", re.DOTALL)
SCRIPTS = (
    "with_openai.py",
    "with_openai_node.cjs",
    "with_openai_agents.py",
    "with_openai_agents_node.cjs",
    "with_codex.py",
    "with_pydantic_ai.py",
    "with_instructor.py",
    "with_litellm.py",
    "with_langchain.py",
    "with_langchain_node.cjs",
    "with_llama_index.py",
    "with_haystack.py",
    "with_dspy.py",
    "with_smolagents.py",
    "with_ai_sdk_node.cjs",
)
"""In the order of the table."""

NEEDS_NODE = re.compile(r"_codex|_node")
MODES = {
    "chat": "chat",
    "stream": "streams",
    "tools": "tools",
    "typed": "typed replies",
    "responses": "Responses API",
}
CONFIG = """
server: {{port: 0, log_upstream_errors: true}}
upstreams:
  main: {{kind: openai, base_url: "http://127.0.0.1:{port}/v1", model: steady}}
models:
  plain: {{upstream: main, overrides: {{hosted_tools: drop}}}}  # Codex brings one.
  checked:
    {{upstream: main, upstream_model: careless, attempts: 3, overrides: {{hosted_tools: drop}}}}
"""
IN_PARALLEL = 2
Rows = list[dict[str, Any]]


@contextlib.contextmanager
def process(log: Path, *command: str | Path) -> Iterator[str]:
    """Run a server during the block, and yield the first line that it prints."""
    with (
        log.open("w", encoding="utf-8") as errors,
        subprocess.Popen(
            [sys.executable, *command], stdout=subprocess.PIPE, stderr=errors, text=True
        ) as running,
    ):
        assert running.stdout is not None
        try:
            yield running.stdout.readline()
        finally:
            running.terminate()


def command_of(script: str, pythons: dict[str, str], node: str | None) -> list[str | Path] | str:
    """Return the command that runs a script, or the reason why it can't run."""
    if NEEDS_NODE.search(script) and node is None:
        return "there is no Node.js with npm on this machine"
    if script.endswith(".cjs"):
        return [shutil.which("node") or "node", HERE / script]
    return [pythons.get(script, pythons[""]), HERE / script]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory) -> dict[str, Rows | str]:
    """Return the rows that each client's script printed, or the reason why it did not run."""
    if "CLIENTS_PYTHON" not in os.environ:
        pytest.skip("the clients are not installed: run nox -s clients")
    llama_index = os.environ["CLIENTS_LLAMA_INDEX_PYTHON"]
    pythons = {"": os.environ["CLIENTS_PYTHON"], "with_llama_index.py": llama_index}
    node = os.environ.get("CLIENTS_NODE_MODULES")
    home = tmp_path_factory.mktemp("clients")
    with process(home / "upstream.log", HERE / "upstream.py") as its_port:
        port = int(its_port)
        (home / "gateway.yaml").write_text(CONFIG.format(port=port))
        serve = ["-m", "mellea_like", "serve", "--config", home / "gateway.yaml"]
        with process(home / "gateway.log", *serve) as printed:
            found = re.search(r"http://\S+/v1", printed)
            assert found is not None, (home / "gateway.log").read_text()
            environ = {
                **{name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ},
                "HOME": str(home),
                "GATEWAY_URL": found[0],
                "UPSTREAM_URL": f"http://127.0.0.1:{port}",
                "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # It would download one.
                "NODE_PATH": node or "",
            }

            def run(script: str) -> Rows | str:
                command = command_of(script, pythons, node)
                if isinstance(command, str):
                    return command
                ran = subprocess.run(
                    command, env=environ, capture_output=True, text=True, timeout=240, check=False
                )
                sys.stderr.write(ran.stderr)
                # What some of them print besides isn't about a call.
                lines = [line for line in ran.stdout.splitlines() if line.startswith('{"client"')]
                assert ran.returncode == 0, ran.stderr
                return [json.loads(line) for line in lines]

            with ThreadPoolExecutor(IN_PARALLEL) as pool:
                said = dict(zip(SCRIPTS, pool.map(run, SCRIPTS), strict=True))
        sys.stderr.write((home / "gateway.log").read_text())
    return said


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_client_works_unchanged_for_two_turns(script, outcomes):
    rows = outcomes[script]
    if isinstance(rows, str):
        pytest.skip(rows)
    assert rows
    assert not {f"{row['mode']}, {row['call']}": row["problems"] for row in rows if row["problems"]}


def test_every_script_is_run():
    assert set(SCRIPTS) == {path.name for path in HERE.glob("with_*")}


def test_the_table_in_the_docs_is_made_of_these_calls(outcomes):
    if any(isinstance(rows, str) for rows in outcomes.values()):
        pytest.skip("not all clients are installed")
    rows = [row for rows in outcomes.values() for row in rows]
    assert not [row for row in rows if row["problems"]]
    lines = [f"| client | {' | '.join(MODES.values())} |", f"|---|{'---|' * len(MODES)}"]
    for client in dict.fromkeys(row["client"] for row in rows):
        calls = {
            mode: [
                f"`{row['call']}`{' ↻' * row['redrawn']}"
                for row in rows
                if (row["client"], row["mode"]) == (client, mode)
            ]
            for mode in MODES
        }
        lines.append(f"| {client} | {' | '.join('; '.join(each) for each in calls.values())} |")
    table = "\n".join(lines)
    page = PAGE.read_text("utf-8")
    if os.environ.get("CLIENTS_WRITE"):
        PAGE.write_text(TABLE.sub(lambda _: table, page), "utf-8")
    else:
        assert TABLE.findall(page) == [table], "renew it: nox -s clients -- --write"
