"""`check`: requirements are checked on a reply that already exists."""

from __future__ import annotations

import json
import pickle
import threading
from datetime import date
from functools import partial
from types import MappingProxyType

import anyio
import pytest
from engine_kit import by_iteration

from mellea_like import (
    Budget,
    Context,
    FunctionBackend,
    Generation,
    Instruction,
    Journal,
    LimitExceeded,
    Message,
    Price,
    RejectionSamplingStrategy,
    Requirement,
    ValidationResult,
    check,
    check_sync,
    checks,
    requirement,
)
from mellea_like.batch import check_many, sample_many
from mellea_like.checking import CheckResult, GivenReply, strategy_for_checks
from mellea_like.core import Usage
from mellea_like.errors import (
    BackendUnavailable,
    BadVerdict,
    HookError,
    JournalError,
    RequirementError,
)
from mellea_like.hooks import HookType, Plugin, PluginSet, hook

pytestmark = pytest.mark.anyio

short = checks.word_count(at_most=3)
polite = Requirement("is polite")
CALL = {"id": "1", "type": "function", "function": {"name": "look_up", "arguments": "{}"}}
BOOK = {
    "id": "2",
    "type": "function",
    "function": {"name": "book", "arguments": '{"city": "Oslo", "nights": 2, "on": "2026-03-01"}'},
}
CUT = {**BOOK, "function": {"name": "book", "arguments": '{"city": "Oslo", "nig'}}


booked = partial(checks.calls_tool, "book")


def judge(*verdicts: bool | Exception, asked: list[str] | None = None) -> FunctionBackend:
    """Make a judge that gives these verdicts, one after another."""
    left = list(verdicts)

    async def answer(request):
        if asked is not None:
            asked.append(request.messages[-1].text)
        verdict = left.pop(0)
        if isinstance(verdict, Exception):
            raise verdict
        text = json.dumps({"passed": verdict, "reason": "as it says"})
        return Generation(text, usage=Usage(1, 7, 3))

    return FunctionBackend(answer, can_judge=True)


@pytest.mark.parametrize(
    ("reply", "wanted", "status", "problem"),
    [
        ("two words", [short], "passed", ""),
        ("these are four words", [short], "failed", "it has 4 words"),
        ("", [short], "failed", "the reply is empty"),
        ("two words", short, "passed", ""),
        ("two words", short & ~checks.contains("words"), "failed", "contains"),
        (Message("assistant", "four words are these"), [short], "failed", "it has 4 words"),
        (Generation("cut", finish_reason="length"), [short], "failed", "cut off"),
        ({"role": "assistant", "content": "two words"}, [short], "passed", ""),
        ({"content": None, "tool_calls": [CALL]}, [checks.calls_tool("look_up")], "passed", ""),
        ({"content": "two words"}, [checks.calls_tool("look_up")], "failed", "look_up"),
        ({"tool_calls": [BOOK]}, [booked(city="Oslo", on=date(2026, 3, 1))], "passed", ""),
        ({"tool_calls": [BOOK]}, [booked(nights=lambda n: n < 3)], "passed", ""),
        ({"tool_calls": [BOOK]}, [booked(city="Rome")], "failed", "city is 'Oslo', not 'Rome'"),
        ({"tool_calls": [BOOK]}, [booked(guests=2)], "failed", "without guests"),
        ({"tool_calls": [CUT]}, [booked(city="Oslo")], "failed", "without city"),
        ({"role": "assistant", "refusal": "I can't."}, [short], "failed", "refused (I can't.)"),
        ({"content": "No.", "refusal": "I can't."}, [short], "failed", "refused (I can't.)"),
        (
            {"choices": [{"message": {"content": "no"}, "finish_reason": "content_filter"}]},
            [short],
            "failed",
            "withheld",
        ),
        ("any", [], "passed", ""),
    ],
)
async def test_a_reply_of_any_kind_is_checked(reply, wanted, status, problem):
    result = await check(reply, wanted)
    assert (result.status, bool(result), result.passed) == (status, *2 * [status == "passed"])
    assert problem in " ".join(result.problems)
    assert bool(problem) == bool(result.problems)
    assert result.usage == Usage()


async def test_a_completion_of_an_sdk_is_a_reply_and_its_calls_are_no_part_of_the_text():
    class Completion:
        def model_dump(self, *, exclude_none):
            assert exclude_none
            message = {"role": "assistant", "content": "two words"}
            return {"choices": [{"message": message}], "model": "m", "usage": {"prompt_tokens": 3}}

    result = await check(Completion(), [short])
    assert result
    assert (result.slice.model, result.slice.generation.usage) == ("m", Usage(1, 3, 0))
    assert result.usage == Usage()  # The reply was paid for before.
    result = await check({"content": None, "tool_calls": [CALL]}, [])
    assert result.slice.text == ""
    assert [call.name for call in result.slice.tool_calls] == ["look_up"]
    # A server that counts no tokens.
    usage = {"prompt_tokens": None, "completion_tokens": 2}
    reply = {"choices": [{"message": {"content": "two words"}}], "usage": usage}
    assert (await check(reply, [short])).slice.generation.usage == Usage(1, 0, 2)


async def test_a_function_for_an_argument_that_gives_no_bool_never_passes_a_call():
    async def few(nights):
        return nights < 2

    for wrong in (few, partial(few)):
        with pytest.raises(TypeError, match="calls_tool: nights must be a plain function"):
            booked(nights=wrong)
    result = await check({"tool_calls": [BOOK]}, booked(nights=lambda n: (n < 2, "too many")))
    assert result.status == "errored"
    assert "the function for nights must return True or False" in result.problems[0]


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (7, TypeError),
        ({"prompt": "Two words, please.", "reply": "two words"}, TypeError),
        ({"output": [{"type": "message", "content": "two words"}]}, TypeError),
        (Message("user", "hi"), ValueError),
        ({"role": "user", "content": "hi"}, ValueError),
        ({"choices": []}, ValueError),
        ({"choices": [{"text": "a legacy completion"}]}, ValueError),
    ],
)
async def test_what_is_no_reply_is_refused(reply, error):
    with pytest.raises(error):
        await check(reply, [short])


async def test_a_format_gives_a_typed_value():
    assert (await check("12", format=int)).value == 12
    wrong = await check("twelve", format=int)
    assert (wrong.status, wrong.value, wrong.verdicts, wrong.score) == ("failed", None, (), 0.0)
    assert "valid int" in wrong.problems[0]
    # As in a draw, a reply that calls tools isn't parsed.
    calling = await check({"tool_calls": [BOOK]}, [booked(nights=2)], format=int)
    assert (calling.status, calling.value, calling.score) == ("passed", None, 1.0)


async def test_verdicts_scores_and_stages_are_those_of_a_draw():
    half = Requirement("half", lambda _: ValidationResult(False, "half", 0.5), weight=3)
    asked = []
    result = await check("a b", [half, polite], judge=judge(asked=asked))
    assert [v.status for v in result.verdicts] == ["failed", "skipped"]
    assert (asked, result.score) == ([], None)
    result = await check("a b", [half, short, polite], judge=judge(True), validate_all=True)
    assert result.score == pytest.approx((3 * 0.5 + result.verdicts[1].score + 1) / 5)
    assert [r.description for r, _ in result.validations][-1] == "is polite"
    assert result.usage == Usage(1, 7, 3)
    threads = []
    slow = Requirement("slow", lambda _: threads.append(threading.current_thread()) or True)
    assert await check("x", [slow])
    assert threads[0] is not threading.current_thread()


async def test_a_judge_sees_the_task_and_the_conversation():
    asked = []
    before = Context([Message("user", "Hello."), Message("assistant", "Yes?")])
    await check("Go.", [polite], action="Say no.", context=before, judge=judge(True, asked=asked))
    assert all(text in asked[0] for text in ("Hello.", "Yes?", "Say no.", "<text>Go.</text>"))
    task = Instruction("Say no.", requirements=[checks.starts_with("No")])
    assert (await check("Go.", [], action=task)).status == "failed"


async def test_what_cannot_be_decided_is_errored_and_has_no_score(caplog):
    def bug(candidate):
        raise ZeroDivisionError("oops")

    result = await check("x", [Requirement("buggy", bug, inline=True)])
    assert (result.status, bool(result), result.score) == ("errored", False, None)
    assert isinstance(result.error, RequirementError)
    assert isinstance(result.error.__cause__, ZeroDivisionError)
    assert "oops" in result.problems[0]
    assert repr(result).startswith("<CheckResult: errored: ")
    assert caplog.records == []
    down = await check("x", [polite], judge=judge(*[BackendUnavailable("down")] * 9))
    assert down.status == "errored"


async def test_what_a_draw_raises_is_raised():
    def bug(candidate):
        raise ZeroDivisionError("oops")

    with pytest.raises(ZeroDivisionError):
        await check("x", [Requirement("buggy", bug, inline=True, on_error="raise")])
    with pytest.raises(BadVerdict):
        await check("x", [Requirement("says nothing", lambda _: None, inline=True)])
    with pytest.raises(RequirementError, match="needs a judge"):
        await check("x", [polite])
    with pytest.raises(TypeError, match="must be a list of Requirement objects and texts, not"):
        await check("x", MappingProxyType({"is short": short}))
    with pytest.raises(LimitExceeded):
        spent = Budget(requests=1)
        await check("x", [polite], judge=judge(True, True), budget=spent)
        await check("x", [polite], judge=judge(True, True), budget=spent)


async def test_a_budget_of_money_needs_no_price_of_the_reply_itself():
    money = Budget(money=1, prices={"answer": Price(1000, 1000)})
    assured = {"judge_options": {"max_tokens": 5}, "budget": money, "concurrency": 1}
    async with check_many(["x", "y"], [polite], judge=judge(True, True), **assured) as results:
        assert [item.success async for item in results] == [True, True]
    assert money.spent.money == pytest.approx(0.02)
    bounded = Budget(money=1, prices=money.prices, assume_output_tokens=5)
    assert await check("x", [polite], judge=judge(True), budget=bounded)
    with pytest.raises(ValueError, match="set max_tokens in the options"):
        await check("x", [polite], judge=judge(True), budget=money)


async def test_hooks_of_validation_run_and_those_of_requests_do_not():
    heard = []

    class Listener(Plugin):
        @hook(HookType.GENERATION_PRE_CALL)
        async def request(self, payload):
            heard.append(payload.purpose)

        @hook(HookType.VALIDATION_PRE_CHECK)
        async def before(self, payload):
            heard.append("check")
            return payload.model_copy(update={"requirements": (*payload.requirements, short)})

    with PluginSet("mine", [Listener()]):
        result = await check("these are four words", [polite], judge=judge(True))
        assert result.status == "failed"
        assert await check("two words", [polite], judge=judge(True))
    assert heard == ["check", "check", "judge"]

    class Broken(Plugin):
        @hook(HookType.VALIDATION_POST_CHECK)
        async def after(self, payload):
            raise OSError("disk")

    with PluginSet("broken", [Broken()]), pytest.raises(HookError):
        await check("x", [short])


async def test_a_cancelled_check_leaves_nothing_behind(virtual_clock):
    async def never(request):
        await anyio.sleep_forever()

    with anyio.move_on_after(3) as scope:
        await check("x", [polite], judge=FunctionBackend(never, can_judge=True))
    assert scope.cancelled_caught


async def test_requirements_of_a_generator_are_all_checked_for_each_reply():
    wanted = (checks.word_count(at_most=most) for most in (1, 2))
    async with check_many(["a b", "a", "b a"], wanted, concurrency=1, in_order=True) as results:
        assert [item.status async for item in results] == ["failed", "passed", "failed"]
    wanted = (checks.word_count(at_most=most) for most in (1, 2))
    strategy = RejectionSamplingStrategy(by_iteration({1: "a b"}), loop_budget=1)
    async with sample_many(strategy, ["x"], requirements=wanted, concurrency=1) as results:
        assert [item.status async for item in results] == ["failed"]


def test_without_await():
    assert check_sync("two words", [short])
    wanted = (checks.word_count(at_most=most) for most in (1, 2))
    assert not check_sync("two words", wanted)
    asked = Requirement("asks its own judge", judge=judge(True, False))
    assert check_sync("x", [asked]).usage == Usage(1, 7, 3)
    assert not check_sync("x", asked)


async def test_any_strategy_takes_a_given_reply_and_draws_nothing():
    backend = by_iteration({})
    strategy = RejectionSamplingStrategy(backend, loop_budget=1)
    result = await strategy.sample(GivenReply("two words"), [short])
    assert result.value == "two words"
    assert backend.statistics().started == 0
    assert isinstance(CheckResult(result.best), CheckResult)
    assert strategy_for_checks().settings.loop_budget == 1


@requirement("mentions its number", inline=True)
def numbered(candidate):
    return candidate.text[-1].isdigit()


async def checked(items, wanted, **more):
    async with check_many(items, wanted, **{"concurrency": 1} | more) as results:
        return [item async for item in results]


async def test_many_replies_with_a_journal(tmp_path):
    rows = [{"task": f"Write {i}.", "out": f"text {i}" if i % 3 else "text"} for i in range(30)]
    given = {"reply": lambda row: row["out"], "action": lambda row: row["task"]}
    for replayed in (False, True):
        kept = Journal(tmp_path / "run.db")
        items = await checked(rows, [numbered], concurrency=4, journal=kept, **given)
        assert {item.id: (item.status, item.replayed) for item in items} == {
            i: ("passed" if i % 3 else "failed", replayed) for i in range(30)
        }


async def test_a_journal_tells_given_replies_apart(tmp_path):
    """The reply is part of what identifies an item, also where the item is the action itself."""

    async def run(*replies):
        items = [GivenReply(reply, "Write.") for reply in replies]
        many = sample_many(
            strategy_for_checks(),
            items,
            requirements=[numbered],
            concurrency=1,
            journal=Journal(tmp_path / "run.db"),
        )
        async with many as results:
            return [item.status async for item in results]

    assert await run("one 1", "two") == ["passed", "failed"]
    assert await run("one 1", "two") == ["passed", "failed"]
    with pytest.raises(JournalError, match="item 0 differs from the one in the journal"):
        await run("two", "one 1")


async def test_a_journal_tells_the_requirements_of_an_item_apart(tmp_path):
    """Those that a function gives each item: other ones may decide otherwise."""

    async def run(word):
        path = tmp_path / "run.db"
        items = await checked(["red", "green"], lambda _: [checks.contains(word)], journal=path)
        return [(item.status, item.replayed) for item in items]

    assert await run("red") == [("passed", False), ("failed", False)]
    assert await run("red") == [("passed", True), ("failed", True)]
    with pytest.raises(JournalError, match="in its prompt or its requirements"):
        await run("green")


async def test_many_texts_from_an_async_source_and_wrong_arguments():
    async def source():
        for text in ("a 1", "b", "", 4):
            yield text

    items = await checked(source(), numbered, concurrency=2, in_order=True)
    assert [item.status for item in items] == ["passed", "failed", "failed", "errored"]
    with pytest.raises(TypeError, match="reply must be a plain function"):
        check_many([], numbered, concurrency=1, reply="out")
    with pytest.raises(RequirementError, match="needs a judge, but there is none: pass"):
        check_many([], "is polite", concurrency=1)


async def test_each_item_may_have_its_own_requirements(tmp_path):
    rows = [{"reply": "It is 4.", "answer": "4"}, {"reply": "It is 6.", "answer": "5"}, {}]

    def right(row):
        return checks.contains(row["answer"])

    given = {"reply": lambda row: row.get("reply", ""), "journal": tmp_path / "run.db"}
    found = await checked(rows, right, concurrency=2, in_order=True, settings={"right": 1}, **given)
    assert [item.status for item in found] == ["passed", "failed", "errored"]
    assert found[2].result is None
    with pytest.raises(JournalError, match="right"):
        await checked(rows, right, settings={"right": 2}, **given)
    with pytest.raises(TypeError, match="requirements must be a plain function"):
        check_many([], lambda row, more: [], concurrency=1)


async def test_an_item_that_is_undecided_has_its_record(tmp_path):
    def breaks(candidate):
        raise ZeroDivisionError

    wanted = [short, Requirement("can't be decided", breaks)]
    for replayed in (False, True):
        [item] = await checked(["a b"], wanted, validate_all=True, journal=tmp_path / "run.db")
        assert (item.status, item.replayed) == ("errored", replayed)
        result = CheckResult(item.result.slices[0])
        assert [verdict.status.value for verdict in result.verdicts] == ["passed", "errored"]
        assert (result.status, result.score) == ("errored", None)
        again = pickle.loads(pickle.dumps(item))
        assert len(again.result.slices[0].verdicts) == 2
    with pytest.raises(RequirementError) as caught:
        await strategy_for_checks().sample(GivenReply("a b"), wanted)
    assert len(caught.value.result.slices) == 1
