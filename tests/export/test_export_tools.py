"""Training data with tool calls and parts, in the formats that trainers document."""

from __future__ import annotations

import json
from functools import partial

import anyio
import pyarrow.parquet as pq
import pytest
from batch_kit import results_of
from export_kit import lines
from messages import PNG

from mellea_like import (
    FunctionBackend,
    Generation,
    Image,
    Message,
    RejectionSamplingStrategy,
    Requirement,
)
from mellea_like.core import ToolCall
from mellea_like.core.tools import Tool
from mellea_like.export import export

GOOD = Requirement("is good", lambda c: "good" in c.text, inline=True)


def look(word: str) -> str:
    """Look a word up.

    Args:
        word: which.
    """
    return f"{word}: a tall plant"


def model(request):
    """Call the tool first; answer badly in the first draw, and well in the second."""
    if request.messages[-1].role == "tool":
        return "bad" if request.meta.iteration == 1 else "good"
    arguments = json.dumps({"word": f"tree {request.meta.iteration}"})
    call = ToolCall("call_1", "look", arguments)
    return Generation("", tool_calls=(call,), reasoning="I'd better look.")


@pytest.fixture(scope="module")
def journal(tmp_path_factory):
    path = tmp_path_factory.mktemp("run") / "run.db"
    strategy = RejectionSamplingStrategy(
        FunctionBackend(model, inline=True), loop_budget=2, concurrency_budget=1
    )
    asked = Message("user", ["What is a tree?", Image(data=PNG)], name="Ann")
    arguments = {"requirements": [GOOD], "tools": [Tool.of(look, read_only=True)], "journal": path}
    (item,) = anyio.run(partial(results_of, strategy, [asked], concurrency=1, **arguments))
    assert item.success
    return path


CONTENT = Message("user", ["What is a tree?", Image(data=PNG)]).as_dict()["content"]


def rounds(iteration: int, *, openai: bool):
    arguments = {"word": f"tree {iteration}"}
    call = {"type": "function", "function": {"name": "look", "arguments": arguments}}
    answer = {"role": "tool", "content": f"tree {iteration}: a tall plant"}
    if openai:
        call["function"]["arguments"] = json.dumps(arguments)
        call["id"] = answer["tool_call_id"] = "call_1"
        thoughts = {}
    else:
        answer["name"] = "look"
        thoughts = {"reasoning_content": "I'd better look."}
    reply = {"role": "assistant", "content": "bad" if iteration == 1 else "good"}
    return [{"role": "assistant", "content": "", "tool_calls": [call], **thoughts}, answer, reply]


@pytest.mark.parametrize("format", ["sft", "prompt-completion", "dpo", "reward", "openai"])
def test_a_reply_is_its_rounds_of_calls_and_what_it_said_in_the_end(journal, tmp_path, format):
    export(journal, tmp_path / "rows.jsonl", format=format, card=False)
    (row,) = lines(tmp_path / "rows.jsonl")
    user = {"role": "user", "content": CONTENT}
    good, bad = rounds(2, openai=format == "openai"), rounds(1, openai=False)
    assert (
        row
        == {
            "sft": {"messages": [user, *good]},
            "prompt-completion": {"prompt": [user], "completion": good},
            "dpo": {"prompt": [user], "chosen": good, "rejected": bad},
            "reward": {"chosen": [user, *good], "rejected": [user, *bad]},
            "openai": {"messages": [user | {"name": "Ann"}, *good]},
        }[format]
    )


def test_parquet_for_training_refuses_what_it_has_no_room_for(journal, tmp_path):
    with pytest.raises(ValueError, match=r"no room for tool calls and parts: write JSON Lines"):
        export(journal, tmp_path / "rows.parquet", format="sft")


def test_a_table_for_people_has_placeholders(journal, tmp_path):
    export(journal, tmp_path / "rows.parquet", format="parquet", card=False)
    first, _ = pq.read_table(tmp_path / "rows.parquet").to_pylist()
    (asked,) = first["prompt"]
    assert asked["content"] == f"What is a tree?\n[image/png, {len(PNG)} bytes]"
    assert (first["text"], first["tool_calls"]) == ("bad", None)
