"""`reward`: requirements as a reward function of completions."""

from __future__ import annotations

import json
import logging
import pickle

import anyio
import pytest

from mellea_like import (
    Budget,
    FunctionBackend,
    Generation,
    LimitExceeded,
    Requirement,
    ValidationResult,
    checks,
    requirement,
)
from mellea_like.core import Usage
from mellea_like.errors import RequirementError
from mellea_like.requirements import code
from mellea_like.rewards import Reward, reward

pytestmark = pytest.mark.anyio

short = checks.word_count(at_most=3)


@requirement("names an hour", inline=True)
def names_an_hour(candidate):
    hour = candidate.text.split()[-1]
    return 1 / (int(hour) + 1 if hour.isdigit() else 0) > 0  # Other words have no number: a bug.


def judge(asked: list[str], verdict: bool = True) -> FunctionBackend:
    async def answer(request):
        asked.append(request.messages[-1].text)
        reply = json.dumps({"passed": verdict, "reason": "as it says"})
        return Generation(reply, usage=Usage(1, 100, 10), model="judge")

    return FunctionBackend(answer, can_judge=True)


async def test_a_reward_is_the_mean_of_the_scores_by_weight():
    polite = Requirement("is polite", lambda c: ValidationResult(False, "curt", 0.5), weight=3)
    rewards = await reward([checks.contains("noon"), polite])(["at noon", "soon"])
    assert rewards == [(1 + 3 * 0.5) / 4, 3 * 0.5 / 4]


async def test_without_partial_rewards_or_a_value_all_is_met_or_none():
    assert await reward([], format=int)(["41", "many", ""]) == [1.0, 0.0, 0.0]
    polite = Requirement("is polite", lambda c: ValidationResult(False, "curt", 0.5))
    assert await reward([short, polite], partial=False)(["Noon."]) == [0.0]
    assert await reward([short], partial=False)(["Noon.", "a b c d"]) == [1.0, 0.0]


@pytest.mark.parametrize("partial", [True, False])
async def test_a_checkers_error_is_none_and_not_zero(partial, caplog):
    both = reward([names_an_hour, short], name="hours", partial=partial)
    with caplog.at_level(logging.WARNING):
        assert await both(["at 12", "at noon", ""]) == [1.0, None, 0.0]
    [line] = [r.getMessage() for r in caplog.records if "no reward" in r.getMessage()]
    assert "hours: no reward for 1 of 3 completions" in line
    assert "ZeroDivisionError" in line
    with pytest.raises(RequirementError, match="ZeroDivisionError"):
        await both.one("at noon")


async def test_requirements_may_depend_on_the_row():
    seen = []

    def of(row):
        seen.append(dict(row))
        return checks.contains(row["answer"])

    found = await reward(of)(
        ["It is 4.", "It is 5."],
        ["2 + 2?", "2 + 3?"],
        answer=["4", "6"],
        trainer_state=object(),
        other=[1, 2, 3],
    )
    assert found == [1.0, 0.0]
    assert sorted(seen, key=str) == [
        {"prompt": "2 + 2?", "answer": "4"},
        {"prompt": "2 + 3?", "answer": "6"},
    ]


async def test_a_conversation_is_scored_by_its_last_reply_and_judges_see_the_rest():
    asked = []
    prompt = [{"role": "user", "content": "When is high tide?"}]
    call = {"type": "function", "function": {"name": "tides", "arguments": {"day": "today"}}}
    completion = [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "name": "tides", "content": "12:00"},
        {"role": "assistant", "content": "At noon."},
    ]
    scored = reward(["names the hour"], judge=judge(asked))
    assert await scored([completion, completion[:2]], [prompt, prompt]) == [1.0, 0.0]
    called = reward(checks.calls_tool("tides", day="today"))
    assert await called([completion[:1], completion]) == [1.0, 0.0]
    [question] = asked
    for part in ("When is high tide?", "tides", "12:00", "At noon."):
        assert part in question


async def test_media_in_trls_form_and_fields_filled_with_none_are_read():
    asked = []
    call = {"id": None, "type": "function", "function": {"name": "tides", "arguments": {}}}
    prompt = [
        {
            "role": "user",
            "content": [{"type": "image", "image": object()}, {"type": "text", "text": "When?"}],
            "tool_calls": None,
        },
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "12:00", "tool_call_id": None, "tool_calls": None},
    ]
    completion = [{"role": "assistant", "content": [{"type": "text", "text": "At noon."}]}]
    assert await reward(["names the hour"], judge=judge(asked))([completion], [prompt]) == [1.0]
    [question] = asked
    for part in ("[image]", "When?", "12:00", "At noon."):
        assert part in question


async def test_requirements_of_a_generator_are_checked_for_each_completion():
    def of_row(row):
        yield checks.contains(row["answer"])
        yield checks.word_count(at_most=2)

    rewards = reward(of_row)
    assert await rewards(["4", "5", "6"], answer=["4", "5", "7"]) == [1.0, 1.0, 0.5]
    rewards = reward(checks.contains(text) for text in ("4", "5"))
    assert await rewards(["4", "", "5 or 4"]) == [0.5, 0.0, 1.0]
    with pytest.raises(ValueError, match="forge"):
        reward(iter([code.passes_tests("def test(): pass")]))


async def test_metrics_go_to_the_trainer():
    logged = {}
    rewards = reward([names_an_hour], name="hours")
    await rewards(["1", "x", "2", "3"], log_metric=logged.__setitem__)
    assert logged == {"hours/undecided": 0.25, "hours/passed": 0.75}


async def test_so_many_completions_are_checked_at_a_time():
    now = most = 0

    async def slow(candidate):
        nonlocal now, most
        now += 1
        most = max(most, now)
        await anyio.sleep(0.001)
        now -= 1
        return True

    assert await reward([Requirement("slow", slow)], concurrency=3)(list("abcdefgh")) == [1.0] * 8
    assert most == 3


async def test_a_spent_budget_ends_it_and_each_result_has_its_costs():
    asked = []
    budget = Budget(requests=2)
    scored = reward(["is polite"], judge=judge(asked), budget=budget, concurrency=1)
    with pytest.raises(LimitExceeded):
        await scored(["a", "b", "c", "d"])
    assert len(asked) == 2
    first, second = await reward(["is polite"], judge=judge([])).results(["a", "b"])
    assert first.usage.requests == second.usage.requests == 1


@pytest.mark.parametrize("wrap", [lambda r: r, lambda r: r & short, lambda r: ~(short | r)])
async def test_a_forgeable_check_of_code_is_refused(wrap):
    forgeable = wrap(code.passes_tests("assert add(1, 2) == 3"))
    with pytest.raises(ValueError, match=r"a pass of 'is P.*', because.*code\.returns"):
        reward([forgeable])
    with pytest.raises(ValueError, match="can forge a pass"):
        await reward(lambda row: forgeable)(["x"])


async def test_code_is_scored_outside_its_own_process():
    adds = reward(code.returns("add", [((1, 2), 3), ((0, 0), 0)]))
    good = "def add(a, b): return a + b"
    bad = "def add(a, b): return 0"
    forged = "class Same(int):\n    __eq__ = lambda *_: True\ndef add(a, b): return Same()"
    assert await adds([good, bad, forged]) == [1.0, 0.5, 0.5]


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"concurrency": 0}, ValueError, "concurrency"),
        ({"requirements": lambda: [short]}, TypeError, "synchronous function"),
    ],
)
def test_wrong_arguments_of_reward(arguments, error, words):
    with pytest.raises(error, match=words):
        reward(**{"requirements": [short], **arguments})


async def test_wrong_completions():
    with pytest.raises(TypeError, match="one\\(\\)"):
        await reward([short])("Noon.")
    with pytest.raises(ValueError, match="2 prompts for 1 completions"):
        await reward([short])(["Noon."], ["a", "b"])
    with pytest.raises(RequirementError, match="judge"):
        await reward(["is polite"])(["Noon."])
    assert await reward([short])([]) == []


def test_it_needs_no_event_loop_and_pickles_with_its_name():
    scored = reward([short], name="short")
    again = pickle.loads(pickle.dumps(scored))
    assert isinstance(again, Reward)
    for function in (scored.sync, again.sync, pickle.loads(pickle.dumps(scored.sync))):
        assert function.__name__ == scored.__name__ == "short"
        assert function(completions=["Noon.", ""], prompts=["When?", "When?"]) == [1.0, 0.0]


@pytest.mark.parametrize("wrong", [None, 3, b"x", ["a", "b"], [["a"]]])
async def test_what_is_no_completion_is_named(wrong):
    with pytest.raises(TypeError, match="a completion must be a text or a list of messages"):
        await reward(short)(["Noon.", wrong])


async def test_a_row_must_have_requirements():
    def forgets(row):
        pass

    with pytest.raises(TypeError, match="returned None, not the requirements of its row"):
        await reward(forgets)(["Noon."])
