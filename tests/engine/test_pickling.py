"""Results and strategies go to other processes: what of them pickles, and what comes back."""

from __future__ import annotations

import copy
import pickle

import pytest

from mellea_like import (
    Context,
    Instruction,
    Outcome,
    RejectionSamplingStrategy,
    Requirement,
    requirement,
)
from mellea_like.backends import FunctionBackend, MarkovBackend, OpenAIBackend, ScriptedBackend
from mellea_like.core.recorded import RecordedAction, RecordedError
from mellea_like.errors import InvalidRequest
from mellea_like.limits import (
    AdaptiveLimiter,
    Budget,
    ConcurrencyLimiter,
    LimitedBackend,
    RateLimiter,
    Retry,
)
from mellea_like.requirements import checks
from mellea_like.schedules import Eager, Hedged, Restart, Staggered

pytestmark = pytest.mark.anyio


def answer(request):
    return "yes"


@requirement("is yes")
def is_yes(candidate):
    return candidate.text == "yes"


def is_short(candidate):
    return len(candidate.text) < 9


def there_and_back(thing):
    return pickle.loads(pickle.dumps(thing))


@pytest.mark.parametrize("copied", [there_and_back, copy.deepcopy])
async def test_a_result_at_the_end_of_a_long_conversation_is_copied(copied):
    strategy = RejectionSamplingStrategy(FunctionBackend(answer, inline=True))
    context = Context()
    for n in range(400):
        result = await strategy.sample(f"question {n}", [is_yes], context=context)
        context = result.best.context_after
    again = copied(result)
    assert again.best.context_after == context
    assert len(again.best.context) == 798
    assert again.value == "yes"
    assert again.best.requirements == (is_yes,)


class Twofold(Exception):
    def __init__(self, code, *, why):
        super().__init__(f"{code}: {why}")


class Doubled(Exception):
    def __init__(self, code):
        super().__init__(f"code {code}")


@pytest.mark.parametrize(
    "error", [Twofold(3, why="x"), Doubled(3), InvalidRequest("x", status=400)]
)
async def test_whatever_does_not_pickle_in_a_result_is_described(error):
    class Local(Instruction):
        pass

    error.add_note("a note")
    calls = iter(["no", error, "yes"])

    def reply(request):
        said = next(calls)
        if isinstance(said, Exception):
            raise said
        return said

    brief = Requirement("is short", is_short)
    fits = Requirement("fits", lambda c: c.text == "yes", inline=True, weight=2.0)
    strategy = RejectionSamplingStrategy(
        FunctionBackend(reply, inline=True), loop_budget=3, concurrency_budget=2
    )
    result = await strategy.sample(Local("do"), [fits, brief])
    again = there_and_back(result)
    assert again.to_dict() == result.to_dict()
    assert {s.outcome for s in result.slices} == {Outcome.FAILED, Outcome.ERRORED, Outcome.PASSED}
    asked = {s.requirements[0] for s in again.slices if s.requirements}
    assert len(asked) == 1
    assert again.best.requirements[1].validator is is_short
    assert again.best.requirements[0].weight == 2.0
    assert again.best.action == RecordedAction("Local", again.best.action.text)
    [raised] = again.errors
    assert type(raised) is (InvalidRequest if isinstance(error, InvalidRequest) else RecordedError)
    assert str(raised) == str(error)
    assert "a note" in raised.__notes__
    for copied in (copy.copy(result), copy.deepcopy(result)):
        assert copied.best.requirements == result.best.requirements


async def test_a_pickled_results_errors_keep_their_causes():
    root, middle = KeyError("root"), Twofold(3, why="x")
    middle.__cause__ = root
    first, lost = InvalidRequest("x", status=400), Doubled(5)
    first.__cause__ = lost.__cause__ = middle
    first.add_note("a note")

    def broken(candidate):
        raise ValueError("a bug") from root

    calls = iter([first, lost, "no", "yes"])

    def reply(request):
        said = next(calls)
        if isinstance(said, Exception):
            raise said
        return said

    strategy = RejectionSamplingStrategy(
        FunctionBackend(reply, inline=True), loop_budget=1, concurrency_budget=4
    )
    checks = [is_yes, Requirement("fine", lambda c: c.text == "yes" or broken(c), inline=True)]
    result = await strategy.sample("do", checks)
    again = there_and_back(result)
    assert again.to_dict() == result.to_dict()
    assert len(again.errors) == len(result.errors) >= 2
    raised = again.errors[0]
    assert type(raised) is InvalidRequest
    assert raised.__notes__ == first.__notes__
    assert str(raised.__cause__) == str(middle)
    assert type(raised.__cause__.__cause__) is KeyError
    assert again.errors[1].__cause__ is raised.__cause__
    middle.__cause__ = first  # In a circle.
    assert [str(e) for e in there_and_back(result).errors] == [str(e) for e in result.errors]


def strategies():
    backend = FunctionBackend(answer)
    limiters = [
        AdaptiveLimiter(),
        RateLimiter(requests_per_minute=60),
        ConcurrencyLimiter(2),
        Budget(requests=10),
    ]
    for limiter in limiters:
        yield RejectionSamplingStrategy(LimitedBackend(backend, limiter), loop_budget=2)
    yield RejectionSamplingStrategy(backend, budget=Budget(requests=10), retry=Retry(attempts=2))
    for schedule in (Eager(pool=True), Hedged(), Restart(), Staggered(1)):
        yield RejectionSamplingStrategy(backend, schedule=schedule, concurrency_budget=2)
    yield RejectionSamplingStrategy(
        backend,
        requirements=[
            is_yes & ~checks.contains("no", ignore_case=True),
            checks.word_count(at_most=3, name="brief"),
            checks.one_of(["yes", "no"]),
            checks.json_schema({"type": "string"}) | Requirement("is short", is_short),
            checks.matches("y"),
        ],
    )
    yield RejectionSamplingStrategy(ScriptedBackend(["yes"], cycle=True))
    yield RejectionSamplingStrategy(MarkovBackend(), requirements=[checks.char_count(at_least=1)])


def test_a_strategy_made_of_importable_parts_goes_to_another_process():
    for strategy in strategies():
        used = there_and_back(strategy)
        assert used.sample_sync("do").success
        assert there_and_back(used).sample_sync("do").success


def test_a_backend_that_has_open_connections_leaves_them_behind():
    backend = OpenAIBackend("m", base_url="http://127.0.0.1:1/v1", api_key="k", timeout=3)
    again = there_and_back(RejectionSamplingStrategy(backend)).settings.backend
    assert (again.model, again.base_url, repr(again)) == ("m", backend.base_url, repr(backend))
    assert again._clients is not backend._clients
