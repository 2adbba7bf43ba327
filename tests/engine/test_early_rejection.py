"""Rejecting a reply while it is still arriving."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import pytest
from engine_kit import outcomes, yes
from pydantic import AfterValidator, BaseModel, Field

from mellea_like import RejectionSamplingStrategy, RepairTemplateStrategy, Requirement
from mellea_like.backends.scripted import Reply, ScriptedBackend
from mellea_like.core.backend import BackendWrapper
from mellea_like.core.validation import Verdict
from mellea_like.errors import BadVerdict
from mellea_like.limits import ConcurrencyLimiter, LimitedBackend

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("virtual_clock")]


def no_rant(text: str, delta: str) -> Any:
    return (Verdict.FAIL, "it rants") if "rant" in text else Verdict.UNKNOWN


def polite(stream: Any = no_rant, **settings: Any) -> Requirement:
    return Requirement(
        "be polite", lambda c: "rant" not in c.text, inline=True, stream=stream, **settings
    )


LONG = Reply("a rant that goes on and on for ten words", delay=10.0)


def strategy(backend: Any, **settings: Any) -> RejectionSamplingStrategy:
    return RejectionSamplingStrategy(backend, **{"loop_budget": 2, **settings})


async def test_the_first_fail_closes_the_request_and_the_slice_has_failed():
    backend = ScriptedBackend([LONG, "yes"])
    result = await strategy(backend).sample("do", [polite(), yes])
    assert outcomes(result) == {1: "failed", 2: "passed"}
    rejected = result.slices[0]
    assert rejected.text == "a rant "
    assert rejected.problems == ("be polite: it rants",)
    assert [str(v.status) for v in rejected.verdicts] == ["failed", "skipped"]
    assert rejected.duration == pytest.approx(2.0)
    assert backend.statistics().cancelled == 1


class Doubled(BackendWrapper):
    """Changes each reply, and leaves streams to its base class."""

    async def generate(self, request):
        reply = await self.inner.generate(request)
        return replace(reply, text=reply.text * 2)


async def test_a_wrapper_that_overrides_only_generate_is_not_bypassed_by_a_stream():
    backend = Doubled(ScriptedBackend(["yes"]))
    with pytest.raises(AttributeError, match="Doubled does not stream: it overrides generate, but"):
        _ = backend.stream
    assert (await strategy(backend).sample("do", [polite()])).value == "yesyes"


class DoubledLimited(LimitedBackend):
    """The same, around the stream of another wrapper."""

    generate = Doubled.generate


def test_a_class_derived_from_a_wrapper_that_streams_is_not_bypassed_either():
    assert hasattr(LimitedBackend(ScriptedBackend(["yes"]), ConcurrencyLimiter(8)), "stream")
    assert not hasattr(DoubledLimited(ScriptedBackend(["yes"]), ConcurrencyLimiter(8)), "stream")


async def test_the_tokens_that_arrived_are_counted_and_the_ledger_shows_those_saved():
    result = await strategy(ScriptedBackend([LONG, "yes and three more"])).sample(
        "do", [polite(), yes]
    )
    assert result.slices[0].usage.output_tokens == 2
    assert result.slices[0].usage.unknown == 1
    row = result.ledger().rows[0]
    assert row.wasted_tokens >= 2
    assert row.saved_tokens == pytest.approx(2)


async def test_a_pass_of_the_stream_never_replaces_the_final_check():
    eager = polite(lambda text, delta: Verdict.PASS)
    result = await strategy(ScriptedBackend(["a rant", "a rant"])).sample("do", [eager])
    assert outcomes(result) == {1: "failed", 2: "failed"}


async def test_each_iteration_has_a_fresh_copy_of_a_check_that_remembers():
    class Counts:
        def __init__(self) -> None:
            self.words = 0

        def __call__(self, text: str, delta: str) -> Verdict:
            self.words += 1
            return Verdict.FAIL if self.words > 3 else Verdict.UNKNOWN

    check = Counts()
    short = Requirement("short", lambda c: True, inline=True, stream=check)
    backend = ScriptedBackend(["one two three yes", "one two yes"])
    result = await strategy(backend, loop_budget=3).sample("do", [short, yes])
    assert outcomes(result) == {1: "failed", 2: "passed"}
    assert check.words == 0


@pytest.mark.parametrize(
    ("settings", "answer", "raised"),
    [({"on_error": "raise"}, None, ZeroDivisionError), ({}, "fail", BadVerdict)],
)
async def test_what_must_end_the_call_ends_it(settings, answer, raised):
    def breaks(text: str, delta: str) -> Any:
        return answer or 1 // 0

    backend = ScriptedBackend([LONG, LONG], cycle=True)
    with pytest.raises(raised):
        await strategy(backend, concurrency_budget=2).sample("do", [polite(breaks, **settings)])
    assert backend.statistics().in_flight == 0


# --- the format as a check ----------------------------------------------------------------------


class Order(BaseModel):
    items: int = Field(ge=1)
    note: str = ""


WRONG = Reply('{"items": 0, "note": "a b c d e f"}', delay=10.0)
WHY = "the reply isn't a valid Order: items: Input should be greater than or equal to 1 (it is 0)"


async def test_a_typed_reply_is_closed_at_its_first_wrong_field():
    backend = ScriptedBackend([WRONG, '{"items": 1}'])
    result = await strategy(backend).sample("do", [yes], format=Order)
    rejected = result.slices[0]
    assert outcomes(result) == {1: "failed", 2: "failed"}
    assert rejected.text == '{"items": 0, '
    assert rejected.problems == (WHY,)
    assert rejected.verdicts == ()
    assert (rejected.usage.output_tokens, rejected.usage.unknown) == (2, 1)
    assert backend.statistics().cancelled == 1


@pytest.mark.parametrize(
    ("kind", "settings", "early"),
    [
        (RepairTemplateStrategy, {}, False),
        (RepairTemplateStrategy, {"validate_all": False}, True),
        (RejectionSamplingStrategy, {"validate_all": True}, False),
    ],
)
async def test_where_all_reasons_are_wanted_the_reply_is_read_to_its_end(kind, settings, early):
    call = kind(ScriptedBackend([WRONG]), loop_budget=1, **settings)
    result = await call.sample("do", format=Order)
    assert result.slices[0].problems == (WHY,)
    assert result.slices[0].text.endswith("}") is not early


async def test_a_validator_that_breaks_is_left_to_the_end_of_the_reply():
    def broken(value: int) -> int:
        raise KeyError(value)

    class Odd(BaseModel):
        items: Annotated[int, AfterValidator(broken)]
        rest: str

    backend = ScriptedBackend(['{"items": 0, "rest": "and more"}'])
    with pytest.raises(KeyError):
        await strategy(backend, loop_budget=1).sample("do", format=Odd)
    assert backend.statistics().cancelled == 0
