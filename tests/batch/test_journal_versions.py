"""Journals of earlier versions can be read, continued, exported and used for plans.

``journal_of_version_4.sql`` was written by the code of that version: three conversations of up to
four turns. The first item passed, the second did not, and the run ended while the third was drawn.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path

import anyio
import pytest
from batch_kit import results_of

from mellea_like import FunctionBackend, Journal, MultiTurnStrategy, SamplingResult
from mellea_like.batch import read_items
from mellea_like.core.prompts import prompt_at
from mellea_like.errors import JournalError
from mellea_like.estimate import plan
from mellea_like.export import export
from mellea_like.report import call_report
from mellea_like.requirements.checks import contains

ITEMS = ["A line, soon.", "A line, never.", "A line, slow."]


async def answer(request):
    await anyio.lowlevel.checkpoint()
    turn = (len(request.messages) + 1) // 2
    never = "never" in request.messages[0].content
    return "rain" if turn == 3 and not never else f"sun {turn}"


def run(path: Path | Journal, loop: str = "asyncio", **settings):
    strategy = MultiTurnStrategy(
        FunctionBackend(answer), **{"loop_budget": 4, "concurrency_budget": 1, **settings}
    )
    batch = partial(results_of, strategy, ITEMS, requirements=[contains("rain")], journal=path)
    items = anyio.run(partial(batch, concurrency=2), backend=loop)
    return sorted(items, key=lambda item: item.id)


@pytest.fixture
def old(tmp_path) -> Path:
    path = tmp_path / "old.db"
    script = Path(__file__).with_name("journal_of_version_4.sql").read_text(encoding="utf-8")
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(script)
    return path


def version(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        [(found,)] = connection.execute("PRAGMA user_version")
    return found


def sent(record):
    """Return the messages that each draw was sent, and its context."""
    trace = record["trace"]
    return [
        [prompt_at(trace["prompts"], s[name]) for name in ("context", "prompt")]
        for s in trace["slices"]
    ]


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_a_journal_with_whole_prompts_is_read_and_gone_on_with(old, tmp_path, loop):
    new = tmp_path / "new.db"
    fresh = run(new, loop)
    before, now = list(read_items(old)), list(read_items(new))
    assert [item["status"] for item in before] == ["passed", "failed", "unfinished"]
    assert list(map(sent, before[:2])) == list(map(sent, now[:2]))
    with pytest.raises(JournalError, match="loop_budget"):  # It is another run's, and stays so.
        run(old, loop, loop_budget=3)
    assert version(old) == 4
    resumed = run(old, loop)
    assert [item.replayed for item in resumed] == [True, True, False]
    assert [item.status for item in resumed] == ["passed", "failed", "passed"]
    for again, made in zip(resumed, fresh, strict=True):
        for s, slice_ in zip(again.result.slices, made.result.slices, strict=True):
            assert (s.context, s.messages) == (slice_.context, slice_.messages)
    assert version(old) == version(new) == 5
    assert list(map(sent, read_items(old))) == list(map(sent, now))


def test_exports_plans_and_reports_read_whole_prompts(old, tmp_path):
    new, rows = tmp_path / "new.db", tmp_path / "rows.jsonl"
    run(new)
    made = []
    for path in (old, new):
        export(path, rows, format="kto", keep_repairs=True, card=False)
        made.append(rows.read_text(encoding="utf-8").splitlines())
        assert plan(path).items == 3
    assert made[0] == made[1][: len(made[0])]
    assert len(made[0]) == 7
    for record in list(read_items(old))[:2]:
        whole = record["trace"]
        again = SamplingResult.from_dict(whole).to_dict()
        assert len(str(again["prompts"])) < len(str(whole["prompts"]))
        for trace in (whole, again):
            assert "sun 2" in call_report(trace)


@pytest.mark.parametrize("text", ["all", "best", "none"])
def test_a_conversation_is_kept_if_it_was_sent_for_what_is_kept(path, text):
    made = run(Journal(path, text=text))
    for record, item in zip(read_items(path), made, strict=True):
        trace, slices = record["trace"], item.result.slices
        kept = {"all": slices, "best": [item.result.best], "none": []}[text]
        for s, slice_ in zip(trace["slices"], slices, strict=True):
            found = [m["content"] for m in prompt_at(trace["prompts"], s["prompt"])]
            assert slice_ not in kept or found == [m.content for m in slice_.messages]
        assert bool(kept) == ("A line" in str(trace["prompts"]))
