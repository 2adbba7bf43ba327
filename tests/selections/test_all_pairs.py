"""Every selection with everything else that a call can have: each pair works, by one oracle."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections import Counter

import anyio
import pytest
from engine_kit import Busy
from hypothesis import given
from hypothesis import strategies as st
from selection_kit import yes

from examples import examples
from mellea_like import (
    BestOf,
    Budget,
    Collect,
    Generation,
    MultiTurnStrategy,
    Outcome,
    RejectionSamplingStrategy,
    RepairTemplateStrategy,
    Requirement,
    SyncSampler,
    Vote,
    sample_many,
)
from mellea_like.core import StopReason, Usage, Verdict
from mellea_like.errors import BackendUnavailable
from mellea_like.hooks import hook
from mellea_like.hooks.types import HookType
from mellea_like.limits import Retry
from mellea_like.schedules import (
    Eager,
    Hedged,
    LatencyQuantiles,
    PerRequirement,
    Restart,
    Staggered,
)
from mellea_like.selections import Consensus, Tournament
from mellea_like.testing import run_virtual

WIDTH, LOOPS = 3, 5
N = 4

hasty = Requirement(
    "does not begin with no",
    lambda c: not c.text.startswith("no"),
    inline=True,
    stream=lambda text, _: Verdict.FAIL if text.startswith("no") else Verdict.UNKNOWN,
)
longer = Requirement("is long", lambda c: len(c.text) > 6, inline=True)


def text_of(iteration):
    """What an iteration draws: a third fails, and the lengths of the others differ."""
    bad = iteration % 3 == 2
    return "no" if bad else f"yes {iteration % 4} " + "x" * (iteration * 7 % 16)


def seconds_of(iteration):
    return 1 + iteration * 5 % 7 / 4


class Draws(Busy):
    """Answers by the iteration's id; the fourth fails at first, and the sixth always."""

    model = "draws"

    def __init__(self):
        super().__init__(self.answer)

    async def answer(self, request):
        iteration = request.meta.iteration
        await anyio.sleep(seconds_of(iteration))
        if iteration == 6 or (iteration == 4 and not request.meta.retry):
            raise BackendUnavailable("overloaded")
        return Generation(text_of(iteration), usage=Usage(1, 3, 2))


class Pieces(Draws):
    """The same, in two pieces."""

    @contextlib.asynccontextmanager
    async def stream(self, request):
        async with contextlib.aclosing(self.pieces(request)) as pieces:
            yield pieces

    async def pieces(self, request):
        with self.counter.flight():
            reply = await self.answer(request)
            yield reply.text[:2]
            await anyio.sleep(0.5)
            yield reply.text[2:]
            yield reply


def judge():
    async def generate(request):
        await anyio.sleep(0.5)
        question = request.messages[-1].content
        a, b = (question.split(f"<{x}>")[1].split(f"</{x}>")[0] for x in "ab")
        better = "a" if len(a) > len(b) else "b" if len(b) > len(a) else "neither"
        return Generation(f'{{"better": "{better}"}}', usage=Usage(1, 5, 5))

    return Busy(generate)


def key(candidate):
    return candidate.text.split()[1]


def score(candidate):
    return float(len(candidate.text))


def alike(one, other):
    return -abs(len(one.text) - len(other.text))


SELECTIONS = {
    "best": lambda: BestOf(score, n=N, inline=True),
    "threshold": lambda: BestOf(score, n=N, threshold=15, inline=True),
    "all": lambda: BestOf(score, inline=True),
    "vote": lambda: Vote(key, n=N, confidence=None),
    "collect": lambda: Collect(N),
    "distinct": lambda: Collect(3, distinct=key),
    "consensus": lambda: Consensus(alike, n=N),
    "tournament": lambda: Tournament(judge(), n=N),
}


def keys_of(slices):
    return [s.text.split()[1] for s in slices]


def enough(name, passed):
    """Whether so many passing slices decide the call, as a plain reading of the docs has it."""
    if name == "threshold" and passed and len(passed[-1].text) >= 15:
        return True
    if name == "distinct":
        return len(set(keys_of(passed))) == 3
    if name == "all":
        return len(passed) == WIDTH * LOOPS
    if name == "vote":
        first, second = ([c for _, c in Counter(keys_of(passed)).most_common(2)] + [0, 0])[:2]
        return len(passed) == N or first - second > N - len(passed)
    return len(passed) == N


def winners(name, passed):
    """Which iterations win, the best first."""
    by_rank = sorted(passed, key=lambda s: s.rank)
    if name == "collect":
        return tuple(s.iteration for s in passed)
    if name == "distinct":
        firsts = {k: s for s, k in reversed(list(zip(passed, keys_of(passed), strict=True)))}
        return tuple(s.iteration for s in passed if firsts[s.text.split()[1]] is s)
    if name == "vote":
        counts = Counter(keys_of(passed))
        return (max(by_rank, key=lambda s: counts[s.text.split()[1]]).iteration,)
    if name == "consensus":
        return (max(by_rank, key=lambda s: sum(alike(s, o) for o in passed)).iteration,)
    return (max(by_rank, key=lambda s: len(s.text)).iteration,)


def check(name, result, *, requests, extra=0, compared=True, grace=1e-6):
    """Hold a result against the oracle, and its record against what was asked."""
    slices = result.slices
    ids = [s.iteration for s in slices]
    assert len(set(ids)) == len(ids) <= WIDTH * LOOPS
    assert result.usage.requests == requests
    heard, decided = [], None
    for slice_ in slices:
        if slice_.passed and decided is None:
            heard.append(slice_)
            if enough(name, heard):
                decided = slice_
    if decided is not None:
        late = slices[slices.index(decided) + 1 :]
        assert all(s.started_at <= decided.ended_at for s in slices)
        assert all(s.ended_at <= decided.ended_at + grace for s in late)
        assert result.stop_reason is StopReason.PASSED
    if name not in {"distinct", "all"}:
        for slice_ in slices:
            now = slice_.started_at
            running = sum(s.started_at <= now < s.ended_at for s in slices)
            passed = sum(s.passed and s.ended_at <= now for s in heard)
            assert running <= max(0, N - passed) + extra, "started though it could not be needed"
    decision = result.decision
    if not heard:
        assert (decision.winners, decision.complete) == ((), False)
        return
    assert decision.reason
    assert decision.complete == (decided is not None or name not in {"collect", "distinct"})
    assert result.success == decision.complete
    if compared or name != "tournament":
        assert decision.winners == winners(name, heard)
    assert result.best.iteration == decision.winners[0]
    errors = {Outcome.FAILED, Outcome.ERRORED}
    before = slices if decided is None else slices[: slices.index(decided)]
    assert decision.abstentions == sum(s.outcome in errors for s in before)


async def played(name, *, draws=None, strategy=RejectionSamplingStrategy, extra=0, **more):
    """Sample, check, and return the result."""
    selection = SELECTIONS[name]()
    backend = Draws() if draws is None else draws
    budget, requirements = more.pop("budget", None), more.pop("requirements", [yes])
    compared = more.pop("compared", True)
    before = len(anyio.get_running_tasks())
    chosen = strategy(
        backend,
        loop_budget=LOOPS,
        concurrency_budget=WIDTH,
        selection=selection,
        retry=more.pop("retry", None),
        **more,
    )
    result = await chosen.sample("do", requirements, budget=budget)
    assert len(anyio.get_running_tasks()) == before
    counts = [backend.statistics()]
    assert counts[0].max_in_flight <= WIDTH + extra
    if name == "tournament":
        counts.append(selection.judge.statistics())
    assert not any(count.in_flight for count in counts)
    asked = sum(count.started for count in counts)
    check(name, result, requests=asked, extra=extra, compared=compared)
    return result


def objecting():
    @hook(HookType.VALIDATION_POST_CHECK)
    async def object_to_threes(payload):
        if payload.passed and payload.candidate.text.startswith("yes 3"):
            return payload.model_copy(update={"passed": False, "reason": "no threes"})
        return None

    return object_to_threes


seen = LatencyQuantiles(least=1)
for tenths in range(10, 26):
    seen.observe(tenths / 10, "draws")

SURROUNDINGS = {
    "nothing": dict,
    "eager": lambda: {"schedule": Eager()},
    "pooled": lambda: {"schedule": Eager(pool=True)},
    "staggered": lambda: {"schedule": Staggered(0.75)},
    "hedged": lambda: {"schedule": Hedged(extra=2), "extra": 2},
    "restart": lambda: {"schedule": Restart(schedule=Hedged(extra=2), latency=seen), "extra": 2},
    "give up": lambda: {"give_up": PerRequirement(0.9, 0.6)},
    "a timeout": lambda: {"timeout": 3.1, "compared": False},
    "an iteration timeout": lambda: {"iteration_timeout": 2.0},
    "a budget of requests": lambda: {"budget": Budget(requests=5), "compared": False},
    "a budget of time": lambda: {"budget": Budget(seconds=3.1), "compared": False},
    "repairs": lambda: {"strategy": RepairTemplateStrategy},
    "a conversation": lambda: {"strategy": MultiTurnStrategy},
    "repairs, staggered": lambda: {"strategy": RepairTemplateStrategy, "schedule": Staggered(0.75)},
    "all checks": lambda: {"validate_all": True, "requirements": [yes, longer]},
    "early rejection": lambda: {"draws": Pieces(), "requirements": [hasty, yes]},
    "hooks that decide": lambda: {"plugins": [objecting()]},
    "retries": lambda: {"retry": Retry(attempts=2, initial=0.1)},
}


@pytest.mark.anyio
@pytest.mark.usefixtures("virtual_clock")
@pytest.mark.parametrize("around", SURROUNDINGS)
@pytest.mark.parametrize("name", SELECTIONS)
async def test_every_selection_works_with(name, around):
    result = await played(name, **SURROUNDINGS[around]())
    if around in {"nothing", "eager", "pooled", "staggered", "hedged"}:
        assert result.success


class Scripted(Draws):
    """Answers each iteration as a script says."""

    def __init__(self, script):
        super().__init__()
        self.script = script

    async def answer(self, request):
        text, seconds = self.script[request.meta.iteration - 1]
        await anyio.sleep(seconds)
        if text == "error":
            raise BackendUnavailable("overloaded")
        return Generation(text, usage=Usage(1, 3, 2))


TEXTS = st.sampled_from(["no", "error", *(f"yes {k} {'x' * n}" for k in "012" for n in (0, 5, 15))])
# No two draws end at one instant, which leaves it to the loop who is first.
SCRIPTS = st.tuples(
    st.lists(TEXTS, min_size=WIDTH * LOOPS, max_size=WIDTH * LOOPS),
    st.permutations([1.0 + 0.0137 * i**2 for i in range(WIDTH * LOOPS)]),
).map(lambda script: list(zip(*script, strict=True)))
SCHEDULES = st.sampled_from(["nothing", "pooled", "staggered", "hedged", "repairs", "give up"])


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@examples(20, 500)
@given(SCRIPTS, st.sampled_from(sorted(SELECTIONS)), SCHEDULES)
def test_whatever_comes_the_winner_and_the_requests_are_what_the_oracle_says(
    backend, script, name, around
):
    async def main():
        try:
            result = await played(name, draws=Scripted(script), **SURROUNDINGS[around]())
        except BackendUnavailable:
            assert not any(text.startswith("yes") for text, _ in script)
            return
        passed = result.candidates
        if not any(enough(name, passed[:n]) for n in range(1, len(passed) + 1)):
            spent = len(result.slices) == WIDTH * LOOPS
            assert spent or result.stop_reason is StopReason.HOPELESS or around == "give up"

    run_virtual(main, backend=backend)


class Instant(Draws):
    """The same, without waiting."""

    async def answer(self, request):
        await anyio.lowlevel.checkpoint()
        return Generation(text_of(request.meta.iteration), usage=Usage(1, 3, 2))


@pytest.mark.parametrize("name", SELECTIONS)
def test_every_selection_works_for_threads(name):
    chosen = RejectionSamplingStrategy(
        Instant(), loop_budget=LOOPS, concurrency_budget=WIDTH, selection=SELECTIONS[name]()
    )
    results = [chosen.sample_sync("do", [yes])]
    with SyncSampler(chosen) as sampler:
        results.append(sampler.sample("do", [yes]))
    for result in results:
        check(name, result, requests=result.usage.requests, grace=math.inf)
        assert result.success


@pytest.mark.anyio
@pytest.mark.parametrize("name", SELECTIONS)
async def test_every_selection_works_in_batches(name, tmp_path):
    backend = Instant()
    chosen = RejectionSamplingStrategy(
        backend, loop_budget=LOOPS, concurrency_budget=WIDTH, selection=SELECTIONS[name]()
    )
    items, journal = ["one", "two", "three"], tmp_path / "run.db"
    seen = []
    for _ in range(2):  # The second time, all is in the journal.
        async with sample_many(
            chosen, items, requirements=[yes], journal=journal, concurrency=2
        ) as results:
            seen.append([item.result async for item in results])
    for result in itertools.chain(*seen):
        assert result.success
        check(name, result, requests=result.usage.requests, grace=math.inf)
    winners_of = [sorted(r.decision.winners for r in run) for run in seen]
    assert winners_of[0] == winners_of[1]
