"""Clients of OpenAI's protocol, as they are but for the base URL, against a gateway.

``nox -s clients`` installs them into an environment of their own and runs this. Each is a script
that runs in that environment and says of each of its rows whether it works.
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

pytestmark = [pytest.mark.clients, pytest.mark.timeout(300)]

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "howto" / "gateway-clients.md"
TABLE = re.compile(r"(?<=<!-- made by nox -s clients -->\n\n).*?(?=\n\n<!-- end -->)", re.DOTALL)
CLIENTS = ("openai", "openai_node", "pydantic_ai", "instructor", "litellm", "langchain", "dspy")
CONFIG = """
server: {{port: 0, log_upstream_errors: true}}
upstreams:
  main: {{kind: openai, base_url: "http://127.0.0.1:{port}/v1", model: steady}}
models:
  plain: {{upstream: main}}
  checked: {{upstream: main, upstream_model: careless, loop: 3}}
"""
IN_PARALLEL = 2
Rows = list[dict[str, Any]]


@contextlib.contextmanager
def process(log: Path, *command: str | Path) -> Iterator[str]:
    """Run a server while the block runs; gives the first line that it prints."""
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


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory) -> dict[str, Rows | str]:
    """What each client's script said: its rows, or why it did not run."""
    python, node = os.environ.get("CLIENTS_PYTHON"), os.environ.get("CLIENTS_NODE_MODULES")
    if python is None:
        pytest.skip("the clients are not installed: run nox -s clients")
    home = tmp_path_factory.mktemp("clients")
    with process(home / "upstream.log", HERE / "upstream.py") as its_port:
        port = int(its_port)
        (home / "gateway.yaml").write_text(CONFIG.format(port=port))
        serve = ["-m", "mellea_like.cli.main", "serve", "--config", home / "gateway.yaml"]
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

            def run(client: str) -> Rows | str:
                if client.endswith("_node"):
                    if node is None:
                        return "there is no Node.js with npm on this machine"
                    command = [shutil.which("node") or "node", HERE / f"with_{client}.cjs"]
                else:
                    command = [python, HERE / f"with_{client}.py"]
                ran = subprocess.run(
                    command, env=environ, capture_output=True, text=True, timeout=240, check=False
                )
                sys.stderr.write(ran.stderr)
                # What some of them print besides isn't JSON.
                lines = [line for line in ran.stdout.splitlines() if line.startswith("{")]
                assert ran.returncode == 0, ran.stderr
                return [json.loads(line) for line in lines]

            with ThreadPoolExecutor(IN_PARALLEL) as pool:
                said = dict(zip(CLIENTS, pool.map(run, CLIENTS), strict=True))
        sys.stderr.write((home / "gateway.log").read_text())
    return said


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_works_unchanged(client, outcomes):
    rows = outcomes[client]
    if isinstance(rows, str):
        pytest.skip(rows)
    assert rows
    assert {row["row"]: row["problem"] for row in rows} == {row["row"]: None for row in rows}


def test_the_table_in_the_docs_is_made_of_these_rows(outcomes):
    if any(isinstance(rows, str) for rows in outcomes.values()):
        pytest.skip("not all clients are installed")
    lines = ["| client | call | the upstream's first draw |", "|---|---|---|"]
    for row in (row for rows in outcomes.values() for row in rows):
        assert row["problem"] is None
        first = "is wrong, and the gateway draws again" if row["draws"] > 1 else "is right"
        lines.append(f"| {row['client']} | `{row['row']}` | {first} |")
    table = "\n".join(lines)
    page = PAGE.read_text("utf-8")
    if os.environ.get("CLIENTS_WRITE"):
        PAGE.write_text(TABLE.sub(lambda _: table, page), "utf-8")
    else:
        assert TABLE.findall(page) == [table], "renew it: nox -s clients -- --write"
