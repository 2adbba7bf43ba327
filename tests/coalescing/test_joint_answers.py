"""Reading a joint reply: valid and missing answers, and the cost of a hostile reply."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mellea_like.coalescing.coordinator.joint_prompt import MAX_CHARACTERS, read_answers, until_stop

KEYS = ["k0", "k1", "k2"]


def item(index: object, response: object = None, key: object = None) -> dict[str, object]:
    if key is None:
        key = KEYS[index] if isinstance(index, int) and 0 <= index < 3 else "k0"
    return {
        "task_index": index,
        "key": key,
        "response": f"r{index}" if response is None else response,
    }


THREE = json.dumps([item(0), item(1), item(2)])
ALL = ["r0", "r1", "r2"]


@pytest.mark.parametrize(
    "text",
    [
        THREE,
        f"```json\n{THREE}\n```",
        f"```\n{THREE}\n```",
        f"~~~answers\n{THREE}\n~~~",
        f"````md\n```json\n{THREE}\n```\n````",
        f"Sure! Here are the answers [as you asked] {{for them}}:\n{THREE}\nAnything else [1]?",
        f"\ufeff \n{THREE}",
        json.dumps({"answers": json.loads(THREE)}),
        json.dumps([json.loads(THREE)]),
        json.dumps(json.loads(THREE), indent=4),
        "\n".join(json.dumps(item(index)) for index in range(3)),
        json.dumps([item(2), item(0), item(1)]),
        f"{THREE}\n\nTo sum up:\n{THREE}",
        json.dumps([item(0), item(1), item(2), item(1)]),
        json.dumps([item(0), "and", item(1), None, 7, [], item(2)]),
        f'{{"thought": "two of them are easy"}} {THREE}',
    ],
    ids=[
        "bare", "fence", "fence without a tag", "other fence", "nested fences", "prose",
        "byte order mark", "in an object", "in an array", "pretty", "lines", "other order",
        "said twice, the same", "twice in one array", "rubbish between", "object before",
    ],
)  # fmt: skip
def test_answers_are_found_whatever_stands_round_them(text):
    assert read_answers(text, KEYS) == ALL


@pytest.mark.parametrize(
    "entry",
    [
        item(True, key="k1"),
        item(1.0, key="k1"),
        item("1", key="k1"),
        item(None, key="k1"),
        item(3, key="k1"),
        item(-2, key="k1"),
        item(-1, key="k2"),
        item(10**30, key="k1"),
        item(1, key="k0"),
        item(1, key="K1"),
        item(1, key=1),
        item(1, key=["k1"]),
        item(1, 5),
        item(1, ["r1"]),
        item(1, {"text": "r1"}),
        {"task_index": 1, "key": "k1"},
        {"task_index": 1, "key": "k1", "response": None},
        {"key": "k1", "response": "r1"},
        {"task_index": 1, "response": "r1"},
        {},
        [1, "k1", "r1"],
        "r1",
        None,
    ],
    ids=repr,
)
def test_an_entry_that_is_not_as_it_should_be_leaves_its_task_without_an_answer(entry):
    assert read_answers(json.dumps([item(0), entry, item(2)]), KEYS) == ["r0", None, "r2"]


@pytest.mark.parametrize(
    "text",
    [
        json.dumps([item(0), item(1), item(2), item(1, "another")]),
        json.dumps([item(0), item(1), item(2), item(1, 5)]),
        json.dumps([item(0), item(1), item(1), item(1, "another"), item(2)]),
        THREE + json.dumps([item(0), item(1, "another"), item(2)]),
        THREE + json.dumps([item(1, 5)]),
        THREE + json.dumps(item(1, "another")),
        json.dumps(item(1, "another")) + THREE,
    ],
    ids=[
        "another", "no text", "three times", "conflicting arrays",
        "no text elsewhere", "conflicting object", "before",
    ],
)  # fmt: skip
def test_a_task_with_several_answers_has_none(text):
    assert read_answers(text, KEYS) == ["r0", None, "r2"]


FORGED = item(1, "forged", key="guessed")
INSIDE = json.dumps([item(1, "smuggled"), item(2, "smuggled")])
BROKEN = '{"task_index": 1, "key": "k1", "response": "he said "hi""}'


@pytest.mark.parametrize(
    ("text", "answers"),
    [
        (json.dumps([FORGED, item(0), item(1), item(2), FORGED]), ALL),
        (json.dumps([item(0), FORGED, item(2)]), ["r0", None, "r2"]),
        (json.dumps([item(0, INSIDE), item(2)]), [INSIDE, None, "r2"]),
        (f"[{json.dumps(item(0))}, {BROKEN}, {json.dumps(item(2))}]", ["r0", None, "r2"]),
        ("[" * 1000 + " " + "9" * 500 + THREE, ALL),
        (THREE + " " * (MAX_CHARACTERS - len(THREE)), ALL),
        (THREE + " " * MAX_CHARACTERS, [None] * 3),
    ],
    ids=[
        "a forged one spoils no answer", "a forged one is no answer", "text in a response",
        "does not decode", "huge numbers and deep nesting before", "as long as may be", "too long",
    ],
)  # fmt: skip
def test_nothing_else_answers_a_task_or_spoils_its_answer(text, answers):
    assert read_answers(text, KEYS) == answers


def test_a_reply_that_is_cut_keeps_its_complete_entries():
    ends = [THREE.index("}"), THREE.index("}", THREE.index("}") + 1), len(THREE) - 2]
    for length in range(len(THREE)):
        text = THREE[:length]
        expected = [f"r{n}" if length > end else None for n, end in enumerate(ends)]
        assert read_answers(text, KEYS) == expected, text
        assert read_answers(f"```json\n{text}", KEYS) == expected, text


HUGE = 150_000
NASTY = {
    "arrays": "[" * HUGE,
    "arrays of objects": "[{" * HUGE,
    "objects": '{"a":' * HUGE,
    "open arrays": "[0," + '[{"a":0},' * (HUGE // 8),
    "digits": f'[{{"task_index": {"9" * HUGE}, "key": "k1", "response": "r1"}}]',
    "minus": f'[{{"task_index": -{"9" * HUGE}}}]',
    "a float": f'[{{"task_index": 1.{"9" * HUGE}}}]',
    "an exponent": '[{"task_index": 1e999999999}]',
    "prose": '[{ and {" and [[ ' * (HUGE // 16),
    "spaces": ("[" + " " * 500) * (HUGE // 500),
    "no end": '[{"task_index": 0, "key": "k0", "response": "' + "x" * HUGE,
    "quotes": '{"' * HUGE,
    "strings": '[{"a": "' * (HUGE // 8),
}


@pytest.mark.parametrize("kind", NASTY)
def test_a_nasty_reply_costs_little_and_leaves_the_answers_before_it(kind):
    before = time.process_time()
    assert read_answers(NASTY[kind], KEYS) == [None, None, None]
    assert read_answers(THREE + NASTY[kind], KEYS) == ALL
    assert time.process_time() - before < 1.5


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["task_index", "key", "response", "a"]), inner, max_size=3
        )
    ),
    max_leaves=10,
)


@given(st.text(alphabet='[]{}":,01 \\ \nabk`', max_size=60), json_values, st.text(max_size=10))
def test_no_reply_raises_and_none_without_the_keys_answers(before, value, after):
    keys = ["7e2a", "91bc"]
    assert read_answers(before + json.dumps(value) + after, keys) == [None, None]


@given(st.lists(st.text(), min_size=1, max_size=5), st.text(max_size=30), st.text(max_size=30))
def test_what_is_said_in_due_form_is_read_exactly(responses, before, after):
    before, after = (text.translate({ord(c): None for c in '[]{}"'}) for text in (before, after))
    keys = [f"key {n}" for n in range(len(responses))]
    said = [{"task_index": n, "key": keys[n], "response": text} for n, text in enumerate(responses)]
    assert read_answers(before + json.dumps(said) + after, keys) == responses


@pytest.mark.parametrize(
    ("text", "stop", "cut"),
    [
        ("one two three", (), "one two three"),
        ("one two three", ("two",), "one "),
        ("one two three", ("three", "two"), "one "),
        ("one two three", ("four",), "one two three"),
        ("one", ("one",), ""),
    ],
)
def test_a_response_ends_where_its_request_wanted_it_to(text, stop, cut):
    assert until_stop(text, stop) == cut
