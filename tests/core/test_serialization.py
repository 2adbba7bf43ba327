"""A call's record as plain data, and back again."""

from __future__ import annotations

import copy
import json
import pickle
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import httpx2
import numpy as np
import pytest
from engine_kit import a_slice
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, ValidationError
from typed_values import replies, shown

from mellea_like import (
    Candidate,
    Context,
    Generation,
    Message,
    Outcome,
    RejectionSamplingStrategy,
    RepairTemplateStrategy,
    Requirement,
    SamplingFailed,
    SamplingResult,
    Slice,
    ValidationResult,
    requirement,
)
from mellea_like.backends import FunctionBackend, ScriptedBackend
from mellea_like.core import StopReason, Usage
from mellea_like.core.recorded import RecordedAction, RecordedError, error_from_dict, error_to_dict
from mellea_like.errors import (
    BackendError,
    BackendUnavailable,
    Blocked,
    HookError,
    RateLimited,
    RequirementError,
    ToolError,
)

CONTEXT = Context([Message("system", "Be brief.")])
ASKED = Message("user", "do it")
SHORT = Requirement("it is short", name="short", weight=2.0)


class Invoice(BaseModel):
    number: int
    due: date
    total: Decimal
    tags: frozenset[str] = frozenset()


def cut(outcome: Outcome = Outcome.FAILED, **fields) -> Slice:
    given = {
        "iteration": 3,
        "subsample": 1,
        "depth": 0,
        "chain": 2,
        "context": CONTEXT,
        "messages": (*CONTEXT.messages, ASKED),
        "generation": Generation("text", None, Usage(1, 5, 7), "m", "stop"),
        "requirements": (SHORT,),
        "verdicts": (ValidationResult(outcome is Outcome.PASSED, "why", 0.5),),
        "started_at": 0.25,
        "ended_at": 1.75,
        "usage": Usage(2, 5, 7, 1),
    }
    return replace(a_slice(), outcome=outcome, **{**given, **fields})


def record(*slices: Slice, best: int | None = None) -> SamplingResult:
    started = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    return SamplingResult(slices, best, StopReason.EXHAUSTED, "id7", started, 1.5, 1, "why so")


def through_json(result: SamplingResult) -> dict:
    return json.loads(json.dumps(result.to_dict()))


def test_a_record_comes_back_with_all_that_can_be_written_down():
    failed, passed = cut(reason="no JSON"), cut(Outcome.PASSED, iteration=4)
    original = record(failed, passed, best=1)
    back = SamplingResult.from_dict(through_json(original))
    for name in ("best_index", "stop_reason", "sampling_id", "started", "elapsed", "undelivered"):
        assert getattr(back, name) == getattr(original, name)
    assert back.stop_detail == "why so"
    assert back.usage == original.usage
    assert back.success
    assert back.value == "text"
    for read, written in zip(back.slices, original.slices, strict=True):
        kept = ("iteration", "subsample", "depth", "chain", "context", "messages", "generation")
        for name in (*kept, "outcome", "reason", "started_at", "ended_at", "usage", "problems"):
            assert getattr(read, name) == getattr(written, name)
        (asked, verdict), (_, original_verdict) = read.validations[0], written.validations[0]
        assert (asked.name, asked.description, asked.weight) == ("short", "it is short", 2.0)
        assert (verdict.status, verdict.reason, verdict.score) == (
            original_verdict.status,
            "why",
            0.5,
        )
        assert read.action == RecordedAction("Instruction", "do it")
    assert back.to_dict() == original.to_dict()


def test_the_data_say_what_they_are():
    data = record(cut()).to_dict()
    assert (data["format"], data["version"], data["success"]) == ("mellea_like.trace", 2, False)
    assert data["started"] == "2026-01-02T03:04:05.678901+00:00"
    assert data["usage"] == {"requests": 2, "input_tokens": 5, "output_tokens": 7, "unknown": 1}


def test_a_requirement_of_a_record_can_not_be_checked():
    (slice_,) = SamplingResult.from_dict(record(cut()).to_dict()).slices
    asked = slice_.requirements[0]
    assert not asked.judged
    candidate = Candidate("x", "x", Generation("x"), CONTEXT, slice_.action)
    with pytest.raises(RequirementError, match="'short' was read from a record"):
        asked.validator(candidate)


def test_an_action_of_a_record_can_be_asked_again():
    action = RecordedAction("Haiku", "autumn")
    assert action.render(CONTEXT) == (*CONTEXT.messages, Message("user", "autumn"))
    assert action.parse(" x ") == " x "
    written = record(cut(action=action)).to_dict()
    assert written["slices"][0]["action"] == {"type": "Haiku", "text": "autumn"}


# --- values -----------------------------------------------------------------------------------


def won(value) -> SamplingResult:
    return record(cut(Outcome.PASSED, generation=Generation("{}", value)), best=0)


def test_a_value_of_another_type_is_refused():
    with pytest.raises(ValueError, match="damaged: number:"):
        SamplingResult.from_dict(won({"number": "x"}).to_dict(), Invoice)


@given(replies(), st.booleans())
def test_a_value_comes_back_as_it_was_sampled_whatever_its_json_hides(reply, given_as_data):
    format_, text, data = reply
    if data is None or not given_as_data:
        backend = FunctionBackend(lambda request: text, inline=True)
    else:
        backend = FunctionBackend(lambda request: data, inline=True)
    result = RejectionSamplingStrategy(backend).sample_sync("do", format=format_)
    back = SamplingResult.from_dict(through_json(result), format_)
    assert shown(back.unwrap()) == shown(result.unwrap())
    assert back.to_dict() == result.to_dict()


def test_what_was_read_out_of_prose_comes_back_though_its_json_hides_a_part():
    class Login(BaseModel):
        name: str
        code: str = Field(exclude=True)

    text = 'Here: {"name": "a", "code": "b"} Use it well.'
    backend = FunctionBackend(lambda request: text, inline=True)
    result = RejectionSamplingStrategy(backend).sample_sync("do", format=Login)
    back = SamplingResult.from_dict(through_json(result), Login)
    assert back.unwrap() == result.unwrap() == Login(name="a", code="b")


class Odd:
    def __repr__(self):
        return "<Odd>"


def circular() -> list:
    ring: list = []
    ring.append(ring)
    return ring


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (0, 0),
        (False, False),
        ("", ""),
        ((1, 2), [1, 2]),
        (float("nan"), "NaN"),
        ([float("-inf")], ["-Infinity"]),
        (Odd(), "<Odd>"),
        ({"a": Odd()}, {"a": "<Odd>"}),
        (Path("a/b"), "a/b"),
        (b"\xff", "b'\\xff'"),
        (circular(), "[[...]]"),
    ],
)
def test_any_value_becomes_plain_data(value, written):
    data = through_json(won(value))
    assert data["slices"][0]["value"] == written
    assert SamplingResult.from_dict(data).to_dict() == data


class Unshowable:
    def __repr__(self):
        raise RuntimeError("no")


def nested() -> dict:
    deep: dict = {}
    for _ in range(5000):
        deep = {"a": deep}
    return deep


@pytest.mark.parametrize("value", [Unshowable(), [Unshowable()], {1: Unshowable()}, nested()])
def test_a_value_that_can_not_be_shown_spoils_no_record(value):
    data = through_json(won(value))
    shown = str(data["slices"][0]["value"])
    assert " at 0x" in shown or shown.endswith("}}}}")  # Newer Pythons show a deep value.
    assert SamplingResult.from_dict(data).to_dict() == data


def test_tokens_of_any_kind_of_integer_become_ints():
    usage = Usage(np.int64(1), np.int32(5), np.uint8(7))
    data = through_json(record(cut(usage=usage, generation=Generation("x", usage=usage))))
    assert data["usage"] == {"requests": 1, "input_tokens": 5, "output_tokens": 7, "unknown": 0}


# --- errors -----------------------------------------------------------------------------------


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


def at_line(error: RequirementError, line: str) -> Exception:
    error.line = line
    return error


def noted(error: Exception, note: str) -> Exception:
    error.add_note(note)
    return error


@pytest.mark.parametrize(
    "error",
    [
        RateLimited("slow down", status=429, retry_after=2.0),
        BackendUnavailable("gone", retryable=False),
        SamplingFailed("nothing"),
        HookError("a plugin failed"),
        Blocked("no"),
        ValueError("bad"),
        TimeoutError(),
        OSError("disk"),
        noted(RuntimeError("x"), "tried 3 times"),
        caused(RequirementError("check failed"), ZeroDivisionError("division by zero")),
        at_line(RequirementError("check failed", requirement="short"), "rules.py:12"),
        ToolError("it raised", tool="look_up"),
    ],
)
def test_an_error_of_this_library_or_of_python_comes_back_as_itself(error):
    back = error_from_dict(json.loads(json.dumps(error_to_dict(error))))
    assert type(back) is type(error)
    assert str(back) == str(error)
    assert vars(back) == vars(error)
    assert error_to_dict(back) == error_to_dict(error)
    assert type(back.__cause__) is type(error.__cause__)


class Foreign(Exception):
    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code} {text}")


def not_validated() -> Exception:
    with pytest.raises(ValidationError) as caught:
        Invoice(number="x")
    return caught.value


@pytest.mark.parametrize(
    ("error", "named"),
    [
        (Foreign(3, "x"), f"{Foreign.__module__}.Foreign"),
        (not_validated(), "pydantic_core._pydantic_core.ValidationError"),
        (KeyError("x"), "KeyError"),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), "UnicodeDecodeError"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (ExceptionGroup("two", [ValueError("x")]), "ExceptionGroup"),
    ],
)
def test_another_error_comes_back_as_its_description(error, named):
    back = error_from_dict(error_to_dict(error))
    assert type(back) is RecordedError
    assert (back.type, str(back)) == (named, str(error))
    assert error_to_dict(back) == error_to_dict(error)


class Overloaded(BackendUnavailable):
    pass


class Silent(TimeoutError):
    pass


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (Overloaded("busy", status=529, retry_after=2.0), BackendError),
        (Silent("no answer"), ConnectionError),
        (httpx2.ConnectError("refused"), ConnectionError),
    ],
)
def test_another_error_that_is_transient_comes_back_as_transient(error, kind):
    back = error_from_dict(json.loads(json.dumps(error_to_dict(error))))
    assert isinstance(back, RecordedError)
    assert isinstance(back, kind)
    assert (back.type, str(back)) == (
        f"{type(error).__module__}.{type(error).__name__}",
        str(error),
    )
    assert error_to_dict(back) == error_to_dict(error)
    assert cut(Outcome.ERRORED, error=pickle.loads(pickle.dumps(back)), verdicts=()).may_continue


def test_a_name_in_a_record_makes_nothing_but_errors():
    for name in ("exit", "MelleaError.__init__", "TYPE_CHECKING", "int", "SystemExit", "print"):
        assert type(error_from_dict({"type": name, "message": "x"})) is RecordedError


def test_errors_of_slices_and_of_validators_come_back():
    broken = ValidationResult.errored(RequirementError("no judge", requirement="short"))
    original = record(cut(Outcome.ERRORED, error=RateLimited("slow"), verdicts=(broken,)))
    back = SamplingResult.from_dict(through_json(original))
    assert isinstance(back.errors[0], RateLimited)
    assert isinstance(back.slices[0].verdicts[0].error, RequirementError)
    assert back.to_dict() == original.to_dict()


# --- bad data ---------------------------------------------------------------------------------

DELETE = object()


def changed(data: dict, path: tuple, value: object) -> dict:
    data = copy.deepcopy(data)
    place = data
    for step in path[:-1]:
        place = place[step]
    if value is DELETE:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return data


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("format",), "mellea_like.run", "not a trace of a call"),
        (("version",), 3, "unsupported trace version 3: this release reads 1 or 2"),
        (("version",), DELETE, "unsupported trace version None"),
        (("slices",), DELETE, "it lacks 'slices'"),
        (("slices", 0, "outcome"), DELETE, "it lacks 'outcome'"),
        (("slices", 0, "outcome"), "won", "'won' is not a valid Outcome"),
        (("slices", 0, "prompt"), 9, "9 isn't an index of a list of 2"),
        (("slices", 0, "context"), -1, "-1 isn't an index"),
        (("slices", 0, "usage"), None, "damaged"),
        (("slices", 0), 5, "damaged"),
        (("stop_reason",), "tired", "'tired'"),
        (("started",), "yesterday", "yesterday"),
        (("best_index",), 1, "1 isn't an index of a list of 1"),
        (("best_index",), -1, "-1 isn't an index of a list of 1"),
        (("best_index",), "0", "'0' isn't an index of a list of 1"),
        (("prompts", 0, 0, "role"), "king", "king"),
        (("prompts", 1, "after"), 1, "place 1 can't continue the one at 1"),
        (("prompts", 1, "then"), DELETE, "it lacks 'then'"),
    ],
)
def test_damaged_data_are_refused(path, value, said):
    with pytest.raises(ValueError, match=said):
        SamplingResult.from_dict(changed(record(cut()).to_dict(), path, value))


@pytest.mark.parametrize("data", [None, [], "x", {}, {"format": None}])
def test_what_is_no_record_is_refused(data):
    with pytest.raises(ValueError, match="not a trace of a call"):
        SamplingResult.from_dict(data)


# --- real calls -------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_the_record_of_a_real_call_comes_back():
    @requirement("exactly two words")
    def two_words(candidate):
        return len(candidate.text.split()) == 2, "count them"

    backend = ScriptedBackend(["one", RateLimited("slow down"), "a b c", "two words"])
    strategy = RepairTemplateStrategy(backend, loop_budget=4, retry=None)
    result = await strategy.sample("Two words.", [two_words])
    data = through_json(result)
    back = SamplingResult.from_dict(data)
    assert back.unwrap() == "two words"
    assert back.ledger().rows == result.ledger().rows
    assert [s.outcome for s in back.slices] == ["failed", "errored", "failed", "passed"]
    assert back.to_dict() == data == through_json(result)


texts = st.text(max_size=20)


@given(
    st.lists(
        st.tuples(texts, texts, st.sampled_from(Outcome), st.booleans(), st.none() | texts),
        max_size=5,
    )
)
def test_whatever_a_model_writes_comes_back(drafts):
    slices = [
        cut(
            outcome,
            generation=Generation(text, model=model) if replied else None,
            verdicts=(ValidationResult(outcome is Outcome.PASSED, reason),),
            error=ValueError(reason) if outcome is Outcome.ERRORED else None,
        )
        for text, reason, outcome, replied, model in drafts
    ]
    original = record(*slices, best=0 if slices else None)
    data = through_json(original)
    assert SamplingResult.from_dict(data).to_dict() == data == original.to_dict()
