"""The data card beside an export."""

from __future__ import annotations

import hashlib

from export_kit import RunOf, item_of

from mellea_like.export import export


def test_a_card_says_where_the_rows_are_from(tmp_path):
    items = [
        item_of({"text": "yes"}, {"text": "no", "met": 0.5}, position=0),
        item_of({"text": "no", "met": 0.5}, position=1),
        item_of({"text": "well", "met": 0.5}, position=2),
    ]
    begun = "2026-01-01T00:00:00+00:00"
    sittings = [[begun, begun], [begun, None], [begun, begun]]
    run = RunOf(items, sittings=sittings)
    made = export(run, tmp_path / "pairs.jsonl", format="dpo", seed=5)
    assert made.card == tmp_path / "pairs.jsonl.card.md"
    card = made.card.read_text("utf-8")
    digest = hashlib.sha256((tmp_path / "pairs.jsonl").read_bytes()).hexdigest()
    for line in (
        "# Data card of pairs.jsonl",
        "| Rows | 1, from 1 item |",
        f"| SHA-256 | {digest} |",
        "| seed | 5 |",
        "4 draws: 3 failed, 1 passed.",
        "- 2 no reply passed",
        "| better | 4 | 3 | 75 % |",
        "| Models | m (4 draws) |",
        "| Resumed | 2 times |",
        "| prompt | Write a line about {harbour}. |",
        "| options | temperature: 0.7, max\\_tokens: 64 |",
    ):
        assert line in card.splitlines()
    assert export(RunOf(items), tmp_path / "x", format="dpo", card=False).card is None
    assert not (tmp_path / "x.card.md").exists()


def test_a_card_says_that_replies_of_a_race_may_be_short(tmp_path):
    item = item_of({"text": "yes"}, {"text": "no", "met": 0.5})
    item["trace"]["slices"][1]["outcome"] = "cancelled"
    card = export(RunOf([item]), tmp_path / "out", format="sft").card
    assert card is not None
    text = card.read_text("utf-8")
    assert "1 cancelled. Draws that are cancelled when another one passes are mostly slow" in text


def test_an_error_before_the_first_draw_leaves_nothing_but_the_number_of_items(tmp_path):
    errored = {**item_of(), "trace": None, "status": "errored"}
    card = export(RunOf([errored]), tmp_path / "out", format="sft").card
    assert card is not None
    for line in ("0 draws.", "- 1 ended in an error"):
        assert line in card.read_text("utf-8").splitlines()


def test_nothing_in_it_is_markup(tmp_path):
    nasty = "a|b\n<script>alert(1)</script> [x](javascript:1) \u202e# `y`"
    item = item_of({"text": "yes"}, {"text": "no", "met": 0.5})
    for s in item["trace"]["slices"]:
        s["validations"][1]["description"] = nasty
        s["model"] = nasty
    run = RunOf([item], identity={"prompt": nasty})
    card = export(run, tmp_path / "out", format="dpo").card
    assert card is not None
    text = card.read_text("utf-8")
    assert "<script" not in text.replace("\\<script", "")
    assert "\u202e" not in text
    [row] = [line for line in text.splitlines() if line.endswith("| 2 | 1 | 50 % |")]
    assert row.startswith("| a\\|b<br>\\<script\\>alert(1)\\</script\\> \\[x\\](javascript:1)")
