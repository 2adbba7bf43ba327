"""The record of one iteration, and of a whole call."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from engine_kit import a_slice

from mellea_like.core.conversation import Context, Message
from mellea_like.core.generation import Generation, Usage
from mellea_like.core.requirement import Requirement
from mellea_like.core.result import SamplingResult, StopReason
from mellea_like.core.slice import Outcome, Slice
from mellea_like.core.tools import ToolCall
from mellea_like.core.validation import ValidationResult
from mellea_like.errors import RateLimited, SamplingFailed

SHORT, GOOD = Requirement("it is short"), Requirement("it is good")
ASKED = Message("user", "do it")


def cut(outcome: Outcome = Outcome.FAILED, **fields) -> Slice:
    context = fields.setdefault("context", Context())
    given = {
        "messages": (*context.messages, ASKED),
        "generation": Generation("text"),
        "usage": Usage(),
    }
    return a_slice(outcome=outcome, **{**given, **fields})


def result(*slices: Slice, best: int | None = None, reason=StopReason.EXHAUSTED, **fields):
    started = datetime(2026, 1, 1, tzinfo=UTC)
    return SamplingResult(slices, best, reason, "id7", started, 1.5, **fields)


# --- slices -----------------------------------------------------------------------------------


def test_a_slice_without_an_output_has_neither_text_nor_value():
    empty = cut(generation=None)
    assert (empty.text, empty.value) == ("", None)


def test_failures_are_the_failed_requirements_in_order():
    error = Requirement("it works")
    verdicts = (
        (SHORT, ValidationResult(False, "it is long")),
        (error, ValidationResult.errored(ValueError("x"))),
        (GOOD, ValidationResult(False)),
        (Requirement("fine"), ValidationResult(True)),
        (Requirement("later"), ValidationResult.skipped("x")),
    )
    it = cut(verdicts=verdicts)
    assert [requirement for requirement, _ in it.failures] == [SHORT, GOOD]
    assert it.problems == ("it is short: it is long", "it is good")


def test_the_context_after_has_the_prompt_and_the_output():
    reply = Message("assistant", "text")
    assert cut().context_after == Context([ASKED, reply])
    past = Context([Message("user", "hello"), Message("assistant", "hi")])
    after = cut(context=past).context_after
    assert after == past.add(ASKED, reply)
    assert len(past) == 2


def test_without_an_output_the_context_stays_as_it_was():
    past = Context([Message("user", "hello")])
    assert cut(context=past, generation=None).context_after is past


def test_the_context_after_is_what_was_sent_where_an_action_rewrites_the_past():
    past = Context([Message("user", "long"), Message("assistant", "story")])
    sent = (Message("system", "be brief"), ASKED)
    after = cut(context=past, messages=sent).context_after
    assert after.messages == (*sent, Message("assistant", "text"))


CALLS = Message("assistant", "", tool_calls=[ToolCall("c", "look", "{}")])
TOLD = Message("tool", "3", tool_call_id="c")


@pytest.mark.parametrize(
    ("past", "sent", "rounds"),
    [
        ([], [ASKED], 0),
        ([], [ASKED, CALLS, TOLD], 2),
        ([], [ASKED, CALLS, TOLD, TOLD, CALLS, TOLD], 5),
        ([ASKED, CALLS], [ASKED, CALLS, TOLD], 0),  # The prompt is a tool's answer.
        ([ASKED, CALLS], [ASKED, CALLS, TOLD, TOLD], 0),
        ([ASKED, CALLS], [ASKED, CALLS, TOLD, CALLS, TOLD], 2),
        ([ASKED, CALLS, TOLD], [Message("system", "be brief"), ASKED], 0),  # A rewritten past.
        ([ASKED], [TOLD, TOLD], 0),
        ([], [], 0),
    ],
)
def test_the_rounds_are_what_tools_said_behind_the_prompt(past, sent, rounds):
    it = cut(context=Context(past), messages=tuple(sent))
    assert it.rounds == tuple(sent[len(sent) - rounds :])


# --- results ----------------------------------------------------------------------------------


def test_a_failure_has_a_best_slice_but_no_value():
    lost = result(cut(), best=0)
    assert not lost.success
    assert not lost
    assert lost.best.value == "text"
    assert lost.value is None


def test_unwrapping_a_failure_says_what_the_best_one_lacked():
    error = RateLimited("slow down")
    lost = result(
        cut(Outcome.ERRORED, error=error),
        cut(iteration=2, verdicts=((SHORT, ValidationResult(False, "it is long")),)),
        best=1,
    )
    with pytest.raises(SamplingFailed) as caught:
        lost.unwrap()
    assert str(caught.value) == (
        "none of 2 draws passed (stopped: exhausted); the best, attempt 2:"
        " it is short: it is long; 1 ended in an error, the first: slow down"
    )
    assert caught.value.result is lost
    assert caught.value.__cause__ is error


def test_a_record_without_a_judged_slice_has_no_best_one():
    record = result(cut(Outcome.CANCELLED), reason=StopReason.CANCELLED)
    assert not record.success
    assert record.value is None
    with pytest.raises(ValueError, match="sampling id7: no draw was judged"):
        _ = record.best
    with pytest.raises(SamplingFailed, match=r"stopped: cancelled\)$"):
        record.unwrap()


def test_a_draw_is_named_as_an_attempt_of_its_lane():
    third = cut(iteration=18, subsample=2, depth=1, generation=Generation("so long"))
    assert (third.attempt, third.lane) == (2, 3)
    assert repr(third) == "<Slice: attempt 2, lane 3, failed, 'so long'>"
    alone = cut(iteration=2, depth=1)
    with pytest.raises(SamplingFailed, match="the best, attempt 2:"):
        result(cut(), alone, best=1).unwrap()
    with pytest.raises(SamplingFailed, match="; the best, attempt 2 of 8, lane 3:"):
        result(cut(), third, best=1).unwrap()


def test_the_text_is_the_winners():
    won = cut(Outcome.PASSED, generation=Generation('{"n": 1}', {"n": 1}))
    assert result(cut(), won, best=1).text == '{"n": 1}'
    lost = result(cut(generation=Generation("no")), best=0)
    assert (lost.text, lost.value, lost.best.text) == (None, None, "no")
    assert result(cut(outcome=Outcome.ERRORED)).text is None


def test_draws_are_counted_by_an_outcome_or_its_text():
    made = result(cut(), cut(Outcome.PASSED), cut())
    assert (made.count(Outcome.FAILED), made.count("failed"), made.count("passed")) == (2, 2, 1)
