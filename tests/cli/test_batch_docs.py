"""Run the commands of the documentation about files of rows, in their order."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
from command_line import run

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs" / "howto").glob("*.md"))
BLOCK = re.compile(r"<!-- needs: examples/topics\.jsonl.*? -->\n```bash\n(.*?)```", re.DOTALL)


def commands_of(page):
    lines = "".join(BLOCK.findall(page.read_text(encoding="utf-8"))).replace("\\\n", " ")
    return [shlex.split(one) for line in lines.splitlines() for one in line.split(" && ")]


@pytest.mark.parametrize(
    "page", [page for page in PAGES if commands_of(page)], ids=lambda p: p.name
)
def test_the_commands_of_a_page_run_one_after_the_other(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copy(ROOT / "examples" / "topics.jsonl", tmp_path)
    for command in commands_of(page):
        assert command[0] == "mellea-like"
        done = run(*command[1:])
        assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (tmp_path / "sentences.jsonl").read_text().splitlines()]
    assert len(rows) == 8
    assert all(row["success"] for row in rows)
