"""`export`: training files made from journals."""

from __future__ import annotations

import csv
import io
import json
import weakref
from typing import Any

import pyarrow.parquet as pq
import pytest
from export_kit import RunOf, item_of, lines, sampled
from hypothesis import given
from hypothesis import strategies as st

from mellea_like import MultiTurnStrategy, RejectionSamplingStrategy, Requirement
from mellea_like.backends import FunctionBackend
from mellea_like.errors import JournalError
from mellea_like.export import Run, export
from mellea_like.export.formats import COLUMNS, KINDS

MENDED = Requirement("is mended", lambda c: ("good" in c.text, f"{c.text} isn't"), inline=True)


def answer(request: Any) -> str:
    """Fail at first, and pass when asked for a repair."""
    last = request.messages[-1].content
    return "bad" if last.startswith(("Say", "Never")) else "good"


def mending(**more: Any) -> MultiTurnStrategy:
    backend = FunctionBackend(answer)
    return MultiTurnStrategy(
        backend, loop_budget=2, concurrency_budget=1, requirements=[MENDED], **more
    )


@pytest.fixture(scope="module")
def journal(tmp_path_factory):
    return sampled(tmp_path_factory.mktemp("run") / "run.db", mending(), ["Say one.", "Say two."])


def said(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


PROMPT = [said("user", "Say one.\n\nRequirements:\n- is mended")]
CHOSEN, REJECTED = [said("assistant", "good")], [said("assistant", "bad")]


@pytest.mark.parametrize(
    ("format", "expected"),
    [
        ("sft", {"messages": PROMPT + CHOSEN}),
        ("openai", {"messages": PROMPT + CHOSEN}),
        ("prompt-completion", {"prompt": PROMPT, "completion": CHOSEN}),
        ("kto", {"prompt": PROMPT, "completion": CHOSEN, "label": True}),
        ("dpo", {"prompt": PROMPT, "chosen": CHOSEN, "rejected": REJECTED}),
        ("reward", {"chosen": PROMPT + CHOSEN, "rejected": PROMPT + REJECTED}),
        (
            "openai-dpo",
            {
                "input": {"messages": PROMPT},
                "preferred_output": CHOSEN,
                "non_preferred_output": REJECTED,
            },
        ),
    ],
)
def test_each_format_has_its_documented_shape_under_the_items_prompt(
    journal, tmp_path, format, expected
):
    made = export(journal, tmp_path / "out", format=format)
    rows = lines(tmp_path / "out")
    assert rows[0] == expected
    assert made.rows == len(rows) == (4 if format == "kto" else 2)
    assert str(made) == f"{len(rows)} rows from 2 items"


def test_the_conversation_of_a_repair_can_be_kept(journal, tmp_path):
    export(journal, tmp_path / "out", format="sft", keep_repairs=True)
    [first, _] = lines(tmp_path / "out")
    roles = [message["role"] for message in first["messages"]]
    assert roles == ["user", "assistant", "user", "assistant"]
    assert first["messages"][1]["content"] == "bad"
    made = export(journal, tmp_path / "out", format="dpo", keep_repairs=True)
    assert (made.rows, made.left_out) == (0, {"no reply to prefer it to": 2})


def test_what_was_rejected_and_why_can_go_along(journal, tmp_path):
    export(journal, tmp_path / "out", format="dpo", details=True)
    row = lines(tmp_path / "out")[1]
    assert {name: row[name] for name in row if name not in {"prompt", "chosen", "rejected"}} == {
        "item": 1,
        "journal": "run.db",
        "chosen_iteration": 2,
        "rejected_iteration": 1,
        "chosen_model": "answer",
        "rejected_model": "answer",
        "margin": 1.0,
        "reasons": ["is mended: bad isn't"],
    }


@pytest.mark.parametrize(
    ("text", "format", "problem"),
    [
        ("none", "sft", 'keeps no prompts, but sft needs more: sample with text="all" or'),
        ("none", "dpo", 'keeps no prompts, but dpo needs more: sample with text="all" '),
        ("best", "kto", "keeps only the words of each item's best draw, but kto needs more"),
        ("best", "sft", None),
        ("none", "jsonl", None),
    ],
)
def test_a_journal_without_the_words_is_refused(tmp_path, text, format, problem):
    strategy = RejectionSamplingStrategy(FunctionBackend(lambda _: "good"), requirements=[MENDED])
    path = sampled(tmp_path / "run.db", strategy, ["Say one."], text)
    other = sampled(tmp_path / "other.db", strategy, ["Say two."])
    assert Run(other, path).facts["text"] == text
    if problem is None:
        assert export(path, tmp_path / "out", format=format).rows == 1
        return
    with pytest.raises(JournalError, match=problem):
        export(path, tmp_path / "out", format=format)
    assert not (tmp_path / "out").exists()


def test_several_journals_and_directories_are_read_as_one(tmp_path, journal):
    shards = tmp_path / "shards"
    shards.mkdir()
    for name in "ab":
        sampled(shards / f"{name}.db", mending(), [f"Say {name}."])
    run = Run(shards, journal)
    assert [(i["journal"], i["id"]) for i in run.items()] == [
        ("a.db", 0),
        ("b.db", 0),
        ("run.db", 0),
        ("run.db", 1),
    ]
    assert run.facts["counts"] == {"passed": 4, "failed": 0, "errored": 0, "unfinished": 0}
    assert export([shards, Run(journal)], tmp_path / "out", format="dpo").rows == 4
    again = Run(sampled(tmp_path / "other.db", mending(max_iterations=50), ["Say c."]), shards)
    assert again.facts["identity"] == run.facts["identity"]
    other = RejectionSamplingStrategy(FunctionBackend(answer))
    mixed = Run(sampled(tmp_path / "mixed.db", other, ["x"]), shards)
    assert mixed.facts["identity"]["strategy"] == "differs between the 3 journals"
    (tmp_path / "empty").mkdir()
    with pytest.raises(JournalError, match="a directory without a journal"):
        Run(shards, tmp_path / "empty")


def test_a_row_of_every_draw_says_all_that_is_known_of_it(journal, tmp_path):
    export(journal, tmp_path / "all.jsonl", format="jsonl")
    rows = lines(tmp_path / "all.jsonl")
    assert all(list(row) == list(COLUMNS) for row in rows)
    told = [(row["item"], row["depth"], row["outcome"], row["winner"], row["text"]) for row in rows]
    assert told == [
        (0, 0, "failed", False, "bad"),
        (0, 1, "passed", True, "good"),
        (1, 0, "failed", False, "bad"),
        (1, 1, "passed", True, "good"),
    ]
    assert (rows[0]["prompt"], rows[1]["prompt"], rows[0]["repair_prompt"]) == (
        PROMPT,
        PROMPT,
        None,
    )
    assert [m["role"] for m in rows[1]["repair_prompt"]] == ["user", "assistant", "user"]
    assert (rows[0]["met"], rows[0]["reasons"]) == (0.0, ["is mended: bad isn't"])


def test_what_is_there_stays_until_the_new_file_is_whole(journal, tmp_path):
    path = tmp_path / "out"
    path.write_text("as it was")

    def interrupted(done: int, total: int) -> None:
        assert total == 2
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export(journal, path, format="dpo", on_progress=interrupted)
    assert path.read_text() == "as it was"
    assert [file.name for file in tmp_path.iterdir()] == ["out"]
    path.chmod(0o640)
    export(journal, path, format="dpo")
    assert path.stat().st_mode & 0o777 == 0o640
    assert sorted(file.name for file in tmp_path.iterdir()) == ["out", "out.card.md"]


@pytest.mark.parametrize(
    ("arguments", "error", "problem"),
    [
        ({"format": "ppo"}, ValueError, "format must be 'sft', .*, not 'ppo'"),
        ({"pairs": "some"}, ValueError, "pairs must be '"),
        ({"select": "longest"}, ValueError, "select must be '"),
        ({"min_margin": -1.0}, ValueError, "min_margin must be at least 0"),
        ({"max_per_item": 0}, ValueError, "max_per_item must be at least 1"),
        ({"seed": "x"}, TypeError, "seed must be an integer"),
        ({"format": "openai", "details": True}, ValueError, "takes JSONL without extra columns"),
        ({"format": "openai", "output": "x.parquet"}, ValueError, "takes JSONL, not Parquet"),
        ({"format": "csv", "output": "x.parquet"}, ValueError, "its name says Parquet"),
        ({"reasoning": "think"}, ValueError, "reasoning must be 'drop', 'field' or 'inline', not"),
        ({"format": "openai", "reasoning": "field"}, ValueError, "openai has no field for reason"),
        ({"drop": "late"}, ValueError, "drop must be 'incomplete' or 'empty', not 'late'"),
        ({"max_chars": 2.5}, TypeError, "max_chars must be an integer"),
        ({"prompt": "short"}, ValueError, "prompt must be 'sent' or 'bare', not 'short'"),
        ({"prompt": "bare", "keep_repairs": True}, ValueError, "choose one"),
        ({"format": "csv", "drop": ["empty"]}, ValueError, "csv has all draws, to which drop"),
    ],
)
def test_what_makes_no_sense_is_refused(journal, tmp_path, arguments, error, problem):
    given = {"format": "dpo", "output": "out", **arguments}
    output = tmp_path / given.pop("output")
    with pytest.raises(error, match=problem):
        export(journal, output, **given)
    assert list(tmp_path.iterdir()) == []


def test_a_journal_is_not_replaced_by_what_is_made_of_it(journal):
    before = journal.read_bytes()
    with pytest.raises(ValueError, match="would replace it"):
        export(journal, journal, format="dpo")
    with pytest.raises(TypeError, match="from a journal or its path, not from 3"):
        export([3], journal, format="dpo")
    with pytest.raises(ValueError, match="needs at least one journal"):
        export([], journal, format="dpo")
    assert journal.read_bytes() == before


@pytest.mark.parametrize("output", ["out.jsonl", "out.parquet"])
def test_items_are_read_one_by_one_and_let_go(tmp_path, output):
    alive: weakref.WeakSet[Any] = weakref.WeakSet()
    most = 0

    class Held:
        """An object in an item's record that no code reads."""

    def items() -> Any:
        nonlocal most
        for n in range(1_100):
            held = Held()
            alive.add(held)
            most = max(most, len(alive))
            yield {
                **item_of({"text": f"yes {n}"}, {"text": "no", "met": 0.5}, position=n),
                "x": held,
            }

    made = export(RunOf(items, count=1_100), tmp_path / output, format="dpo")
    assert (made.rows, made.items) == (1_100, 1_100)
    assert most < 50  # The card holds the ten slowest, and the first that failed.


# Arrow has no lone surrogates; every other text comes back as it was.
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30)
REPLIES = TEXTS.filter(str.strip)  # White space alone is no reply.


@given(good=REPLIES, bad=REPLIES, label=TEXTS)
def test_any_text_comes_back_from_every_format(good, bad, label):
    item = {**item_of({"text": good}, {"text": bad, "met": 0.5}), "label": label, "data": [label]}
    run = RunOf([item])

    def exported(format: Any) -> bytes:
        file = io.BytesIO()
        assert export(run, file, format=format).card is None
        return file.getvalue()

    if good != bad:
        for format, read in {
            "dpo": lambda row: (row["chosen"][0]["content"], row["rejected"][0]["content"]),
            "reward": lambda row: (row["chosen"][1]["content"], row["rejected"][1]["content"]),
            "openai-dpo": lambda row: tuple(
                row[name][0]["content"] for name in ("preferred_output", "non_preferred_output")
            ),
        }.items():
            assert read(json.loads(exported(format))) == (good, bad)
    for format in ("sft", "openai"):
        assert json.loads(exported(format))["messages"][-1]["content"] == good
    assert json.loads(exported("prompt-completion"))["completion"][0]["content"] == good
    labelled = [json.loads(line) for line in exported("kto").splitlines()]
    told = [(row["completion"][0]["content"], row["label"]) for row in labelled]
    assert told == ([] if good == bad else [(good, True), (bad, False)])
    table = pq.read_table(io.BytesIO(exported("parquet"))).to_pylist()
    plain = [json.loads(line) for line in exported("jsonl").splitlines()]
    cells = list(csv.DictReader(io.StringIO(exported("csv").decode(), newline="")))
    assert len(table) == len(plain) == len(cells) == 2
    for row, line, cell in zip(table, plain, cells, strict=True):
        assert row["text"] == line["text"] == cell["text"]
        assert row["label"] == line["label"] == cell["label"] == label
        assert json.loads(row["data"]) == line["data"] == json.loads(cell["data"]) == [label]
        assert json.loads(cell["prompt"]) == line["prompt"] == row["prompt"]
        assert (row["met"], row["seconds"]) == (line["met"], line["seconds"])
    assert [row["text"] for row in plain] == [good, bad]


@pytest.mark.parametrize("format", [f for f in KINDS if f != "parquet"])
def test_halves_of_characters_are_replaced_and_their_rows_counted(tmp_path, format):
    # A reader of lines, such as that of `datasets`, refuses a whole file for one of them.
    whole = "\U0001f600"
    halves = f"\ud83d half, {whole[0]} {chr(0xD83D)}{chr(0xDE00)}"
    items = [
        item_of({"text": "yes"}, {"text": "no", "met": 0.5}),
        item_of({"text": halves}, {"text": "\udc00 no", "met": 0.5}, position=1),
    ]
    made = export(RunOf(items), tmp_path / "out", format=format)
    written = (tmp_path / "out").read_text("utf-8")
    assert f"\ufffd half, {whole} {whole}" in written
    assert "\\ud" not in written
    expected = 2 if format in {"kto", "jsonl", "csv"} else 1
    assert made.notes == {"rows with halves of characters, replaced by U+FFFD": expected}
    assert str(made).endswith(f"; rows with halves of characters, replaced by U+FFFD ({expected})")


THINKING = {"text": "yes", "reasoning": "Let me see."}


def plain(text: str, thoughts: str) -> dict[str, str]:
    return said("assistant", text)


def in_a_field(text: str, thoughts: str) -> dict[str, str]:
    return {"role": "assistant", "content": text, "reasoning_content": thoughts}


def inline(text: str, thoughts: str) -> dict[str, str]:
    return said("assistant", f"<think>\n{thoughts}\n</think>\n\n{text}")


@pytest.mark.parametrize(
    ("format", "reasoning", "reply", "name"),
    [
        ("dpo", None, in_a_field, "out.jsonl"),
        ("dpo", None, in_a_field, "out.parquet"),
        ("dpo", "drop", plain, "out.parquet"),
        ("dpo", "inline", inline, "out.jsonl"),
        ("openai-dpo", None, plain, "out.jsonl"),
        ("openai-dpo", "inline", inline, "out.jsonl"),
    ],
)
def test_thoughts_go_where_they_are_wanted(tmp_path, format, reasoning, reply, name):
    run = RunOf([item_of(THINKING, {"text": "no", "met": 0.5, "reasoning": "Hm."})])
    made = export(run, tmp_path / name, format=format, reasoning=reasoning)
    if name.endswith("parquet"):
        [row] = pq.read_table(tmp_path / name).to_pylist()
    else:
        [row] = lines(tmp_path / name)
    names = ("chosen", "rejected")
    if format == "openai-dpo":
        names = ("preferred_output", "non_preferred_output")
    replies = [[reply("yes", "Let me see.")], [reply("no", "Hm.")]]
    assert [row[name] for name in names] == replies
    lost = format == "openai-dpo" and reasoning is None
    assert bool(made.notes) == lost
    if lost:
        assert "replies whose thoughts were left out, as the format has no field" in str(made)


def test_replies_that_differ_in_their_thoughts_alone_count_once(tmp_path):
    other = {"text": "yes", "reasoning": "Another way."}
    run = RunOf([item_of(THINKING, other, {"text": "no", "met": 0.5})])
    assert export(run, tmp_path / "out", format="dpo", pairs="all").rows == 1


@pytest.mark.parametrize(
    ("format", "rows"), [("kto", 2), ("dpo", 0), ("openai-dpo", 0), ("sft", 2)]
)
def test_one_text_under_one_prompt_has_one_label(tmp_path, format, rows):
    # A judge called "yes" good in one item and bad in another, which asks the same.
    run = RunOf(
        [
            item_of({"text": "yes"}, {"text": "no", "met": 0.5}),
            item_of({"text": "maybe"}, {"text": "yes", "met": 0.5}, position=1),
        ]
    )
    made = export(run, tmp_path / "out", format=format)
    assert made.rows == rows
    if format == "kto":
        told = [(r["completion"][0]["content"], r["label"]) for r in lines(tmp_path / "out")]
        assert told == [("no", False), ("maybe", True)]
    assert made.notes == ({} if format == "sft" else {"replies that both passed and failed": 2})


CUT_OFF = {"text": "yes, and", "finish_reason": "length"}


@pytest.mark.parametrize(
    ("how", "kept"),
    [
        ({}, ["yes, and", "a long reply", "ok"]),
        ({"drop": ["incomplete"]}, ["a long reply", "ok"]),
        ({"drop": ["incomplete", "empty"]}, ["a long reply", "ok"]),
        ({"max_chars": 8}, ["yes, and", "ok"]),
        ({"min_chars": 3, "max_chars": 8}, ["yes, and"]),
    ],
)
def test_filters_leave_replies_out_of_the_file_alone(tmp_path, how, kept):
    drawn = [CUT_OFF, {"text": "  "}, {"text": "a long reply"}, {"text": "ok"}]
    export(RunOf([item_of(*drawn)]), tmp_path / "out", format="sft", max_per_item=9, **how)
    assert [row["messages"][-1]["content"] for row in lines(tmp_path / "out")] == kept


@pytest.mark.parametrize(
    ("drawn", "how", "why"),
    [
        ([CUT_OFF], {"format": "sft", "drop": ["incomplete"]}, "the filters leave no reply"),
        (
            [{"text": "yes"}, {"text": "yes", "met": 0.5}, {"text": "no", "met": 0}],
            {"format": "dpo"},
            "the replies that passed also failed",
        ),
    ],
)
def test_an_item_of_which_nothing_is_left_is_counted(tmp_path, drawn, how, why):
    assert export(RunOf([item_of(*drawn)]), tmp_path / "out", **how).left_out == {why: 1}


@pytest.mark.parametrize("format", ["sft", "dpo", "kto", "openai"])
def test_a_bare_prompt_lacks_the_list_of_requirements(journal, tmp_path, format):
    export(journal, tmp_path / "out", format=format, prompt="bare")
    asked = [row["messages" if "messages" in row else "prompt"] for row in lines(tmp_path / "out")]
    assert {prompt[0]["content"] for prompt in asked} == {"Say one.", "Say two."}
