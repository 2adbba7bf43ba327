"""Runs whose requests are answered by jobs of a batch API."""

from __future__ import annotations

import sqlite3
from contextlib import closing, suppress
from copy import copy
from dataclasses import replace
from random import Random

import anyio
import pytest
from batch_kit import into
from journal_kit import items_of
from steps import run_stepped

from mellea_like import (
    BestOf,
    Budget,
    Collect,
    Escalate,
    Generation,
    MultiTurnStrategy,
    RejectionSamplingStrategy,
    RepairTemplateStrategy,
    Requirement,
    Stage,
    Tool,
    Vote,
    judge_score,
    requirement,
)
from mellea_like.backends import (
    FunctionBackend,
    JobError,
    JobLimits,
    JobOutcome,
    JobResult,
    ScriptedBackend,
)
from mellea_like.batch import BatchJobs, Journal, read_items, sample_many
from mellea_like.batch.jobs.overview import cancel_jobs
from mellea_like.core import ToolCall, Usage
from mellea_like.core.prices import Price
from mellea_like.errors import (
    InvalidRequest,
    LimitExceeded,
    MelleaError,
    SamplingTimeout,
)
from mellea_like.selections import Tournament
from tests.support.batch_api import LIMITS, FakeAPI, FakeProvider

PRICES = {"small": Price(2.0, 8.0)}
"""Twice what a job's tokens cost."""


@requirement("is in capitals", inline=True)
def in_capitals(candidate):
    return candidate.text.isupper(), "it has small letters"


def answer(texts):
    """Answer well once the prompt says what was wrong."""
    first = texts[-1].split()[0]
    return first.upper() if "small letters" in texts[-1] else first


def shouting(backend, **given):
    return RepairTemplateStrategy(backend, requirements=[in_capitals], loop_budget=3, **given)


def words(n):
    return [f"word{i} please" for i in range(n)]


def asks(texts):
    """Return the first line of a prompt."""
    return texts[0].splitlines()[0]


def batch(strategy, items, path, **given):
    given = {"concurrency": 8, "breadth_first": True, "journal": Journal(path)} | given
    return sample_many(strategy, items, **given)


async def finish(strategy, items, path, **given):
    async with batch(strategy, items, path, **given) as results:
        return [item async for item in results]


def jobs(provider, model="small", *, limits=LIMITS, keys=True, **settings):
    settings = {"poll": 150.0} | settings  # The fake provider's jobs take 300 s.
    return BatchJobs(FakeAPI(provider, model, limits=limits, keys=keys), **settings)


def cost(found):
    return sum((item.usage for item in found), Usage())


def check_all_paid_once(found, provider):
    """Check that all items passed, each prompt was answered once, and the costs equal the bill."""
    assert [item.status for item in found] == ["passed"] * len(found)
    assert set(provider.asked.values()) == {1}
    assert cost(found) == provider.usage


@pytest.fixture
def provider(virtual_clock):
    return FakeProvider(answer)


# --- rounds


async def test_what_failed_goes_into_the_next_job(provider, path):
    found = await finish(shouting(jobs(provider)), words(20), path)
    check_all_paid_once(found, provider)
    assert [len(job.lines) for job in provider.jobs.values()] == [20, 20]
    assert {s.model for item in found for s in item.result.slices} == {"small:batch"}


async def test_a_run_with_a_relative_path_outlives_a_change_of_the_folder(
    provider, tmp_path, monkeypatch
):
    def moves(texts):
        monkeypatch.chdir("/")
        return answer(texts)

    provider.answer = moves
    tmp_path.joinpath("runs").mkdir()
    monkeypatch.chdir(tmp_path)
    found = await finish(shouting(jobs(provider)), words(2), "runs/run.db")
    check_all_paid_once(found, provider)
    assert len(provider.jobs) == 2


async def test_judges_questions_are_a_round_of_their_own(provider, path):
    provider.answer = verdict
    strategy = RejectionSamplingStrategy(
        jobs(provider), requirements=["it is kind", "it is short"], validate_all=True
    )
    found = await finish(strategy, words(4), path)
    assert all(item.success for item in found), [item.result.slices for item in found]
    assert [len(job.lines) for job in provider.jobs.values()] == [4, 8]
    assert cost(found) == provider.usage


@pytest.mark.parametrize("selection", [Collect(2), Vote(n=3), BestOf(lambda c: len(c.text), n=3)])
async def test_selections_take_a_draw_a_round(virtual_clock, path, selection):
    replies = iter(["one", "three", "one"] * 2)
    provider = FakeProvider(lambda texts: next(replies))
    strategy = RejectionSamplingStrategy(jobs(provider), loop_budget=3, selection=selection)
    (found,) = await finish(strategy, ["a word"], path)
    assert found.success
    assert len(provider.jobs) == len(found.result.slices)
    assert found.result.text == ("three" if isinstance(selection, BestOf) else "one")
    assert found.usage == provider.usage


async def test_scores_of_a_judge_and_comparisons_are_answered_by_jobs(virtual_clock, tmp_path):
    def reply(texts):
        if "Which one" in texts[-1]:
            return '{"better": "a"}'
        return '{"score": 7, "reason": "well"}' if len(texts) > 1 else "hello"

    backend = jobs(provider := FakeProvider(reply))
    best = BestOf(judge_score("how kind it is", judge=backend), n=2)
    for n, selection in enumerate((best, Tournament(n=2))):
        strategy = RejectionSamplingStrategy(backend, loop_budget=2, selection=selection)
        provider.usage = Usage()
        (found,) = await finish(strategy, ["a word"], tmp_path / f"{n}.db")
        assert found.success, found
        assert found.result.usage == provider.usage


async def test_the_next_stage_is_the_next_rounds_model(virtual_clock, path):
    small, big = FakeProvider(lambda texts: "small"), FakeProvider(lambda texts: "BIG")
    strategy = Escalate(
        [Stage(jobs(small), turns=2), Stage(jobs(big, "big"))], requirements=[in_capitals]
    )
    found = await finish(strategy, words(5), path)
    assert [item.result.text for item in found] == ["BIG"] * 5
    assert len(small.jobs) == 2
    assert len(big.jobs) == 1
    assert cost(found) == small.usage + big.usage


async def test_results_may_be_wanted_in_order_and_unique(virtual_clock, path):
    provider = FakeProvider(
        lambda texts: "SAME" if "same" not in texts[-1] else texts[-1].split()[0]
    )
    strategy = RepairTemplateStrategy(jobs(provider), loop_budget=2)
    found = await finish(strategy, words(3), path, unique=True, in_order=True)
    assert [item.id for item in found] == [0, 1, 2]
    assert len({item.result.text for item in found if item.success}) == 3


async def test_one_models_requests_share_jobs_so_their_settings_must_be_the_same(provider, path):
    settings = {"direct": ScriptedBackend(lambda r: "HELLO"), "direct_below": 5}
    one, other = jobs(provider, **settings), jobs(provider, tries=2)
    differ = r"two BatchJobs .*'small'.* different settings \(direct_below, tries\)"
    for given in (
        {"judge": other, "requirements": ["it is kind"]},
        {"requirements": [Requirement("it is kind", judge=other)]},
    ):
        with pytest.raises(ValueError, match=differ):
            await finish(RejectionSamplingStrategy(one, **given), words(2), path)
    with pytest.raises(ValueError, match=differ):
        await finish(Escalate([Stage(one), Stage(other)]), words(2), path)
    assert await finish(Escalate([Stage(one), Stage(jobs(provider, **settings))]), words(2), path)
    # A selection's judge is known when it is asked.
    best = BestOf(judge_score("how kind it is", judge=other), n=2)
    strategy = RejectionSamplingStrategy(one, loop_budget=2, selection=best)
    found = await finish(strategy, words(2), path.with_name("scored.db"))
    assert "different settings" in str(found[0].result.errors[0].__cause__)


# --- what goes wrong at the provider


@pytest.mark.parametrize("keys", [True, False])
@pytest.mark.parametrize("lost", [["after"], ["before"], ["refused"], ["after", "before", "after"]])
async def test_a_lost_answer_pays_no_job_twice(provider, path, lost, keys):
    provider.lost = list(lost)
    found = await finish(shouting(jobs(provider, keys=keys)), words(6), path)
    check_all_paid_once(found, provider)
    assert len(provider.jobs) == 2


@pytest.mark.parametrize("fate", ["after", "before"])
async def test_a_job_may_be_listed_late_after_a_slow_upload(provider, path, fate):
    class Slow(FakeAPI):
        async def upload(self, intention, lines):
            await anyio.sleep(3600)
            return await super().upload(intention, lines)

    provider.lost, provider.hidden = [fate], 2
    found = await finish(shouting(BatchJobs(Slow(provider), poll=10)), words(6), path)
    check_all_paid_once(found, provider)
    assert len(provider.jobs) == 2


@pytest.mark.parametrize(
    ("trouble", "settings", "count"),
    [
        pytest.param({"lost": ["after"], "hidden": 1}, {"poll": 10}, 6, id="a job is listed late"),
        pytest.param(
            {"full_from": 1},
            {"limits": JobLimits(4, 10**6), "poll": 300},
            8,
            id="the queue is full",
        ),
        pytest.param({"most": 5}, {"poll": 600}, 20, id="a job is too large by itself"),
        pytest.param({"cut": 3}, {}, 9, id="downloads are cut"),
        pytest.param(
            {"seconds": 10**9},
            {"deadline": 3600, "tries": 20, "poll": 600},
            8,
            id="a late job is cancelled",
        ),
    ],
)
async def test_what_a_provider_does_badly_is_done_again_and_paid_once(
    provider, path, trouble, settings, count
):
    for name, value in trouble.items():
        setattr(provider, name, copy(value))
    found = await finish(shouting(jobs(provider, **settings)), words(count), path)
    check_all_paid_once(found, provider)
    assert all(len(item.result.slices) == 2 for item in found)
    statuses = {job.status for job in provider.jobs.values()}
    assert ("failed" in statuses) is bool({"full_from", "most"} & trouble.keys())
    assert ("cancelled" in statuses) is ("seconds" in trouble)


@pytest.mark.parametrize("trouble", ["its queue is full", "it is away"])
async def test_a_provider_that_takes_no_job_for_hours_is_asked_less_and_less(
    provider, path, trouble
):
    free = anyio.current_time() + 4 * 3600
    if trouble == "it is away":
        provider.down_until = free
    else:
        provider.most = 0

    def looked():
        if anyio.current_time() > free:
            provider.most = None

    provider.looked = looked
    found = await finish(shouting(jobs(provider)), words(1), path)
    assert all(item.success for item in found)
    tries = max(len(provider.jobs), provider.attempts)
    assert tries < 40, "that is one in ten minutes, and a few before"


async def test_a_job_that_a_full_queue_refuses_holds_no_budget(provider, path):
    provider.most, later = 0, anyio.current_time() + 3600
    budget, held = Budget(requests=100), set()

    def looked():
        held.add(budget.statistics().reserved.requests)
        if anyio.current_time() > later:
            provider.most = None

    provider.looked = looked
    strategy = RejectionSamplingStrategy(jobs(provider))
    (item,) = await finish(strategy, words(1), path, budget=budget)
    assert item.success
    assert held == {1}


@pytest.mark.parametrize(("size", "own"), [(600, None), (900, None), (10, 100)])
async def test_a_request_that_fits_into_no_job_ends_its_item_only(provider, path, size, own):
    items = [*words(2), "x" * size, *words(1)]
    backend = jobs(provider, limits=JobLimits(1000, 800), bytes_per_job=own)
    found = {item.id: item for item in await finish(shouting(backend), items, path)}
    fits = "passed" if own is None else "errored"
    assert [found[n].status for n in range(4)] == [fits, fits, "errored", fits]
    assert f"bytes, but a job can have at most {own or 800}" in str(found[2].error)


async def test_results_of_other_jobs_requests_are_ignored(provider, path):
    ours = JobOutcome({"text": "STRANGE", "in": 99, "out": 99})
    provider.odd = [JobResult(i, ours) for i in ("", "x-1", "17", "9" * 30, "x-٣")]

    class Doubling(FakeAPI):
        def results(self, state):
            lines = self.provider.jobs[state.id].lines
            prefix = next(iter(lines)).rpartition("-")[0]
            more = [*lines, f"{prefix}-777", f"{prefix}-{'9' * 30}"]
            self.provider.odd += [JobResult(i, ours) for i in more]
            return super().results(state)

    found = await finish(shouting(BatchJobs(Doubling(provider))), words(3), path, in_order=True)
    assert [item.result.text for item in found] == ["WORD0", "WORD1", "WORD2"]
    assert cost(found) == provider.usage


async def test_results_that_every_download_lacks_are_drawn_again_in_the_end(provider, path, caplog):
    provider.missing = 1

    def looked():
        if len(provider.jobs) > 1:
            provider.missing = 0

    provider.looked = looked
    found = await finish(shouting(jobs(provider, deadline=7200)), words(3), path)
    assert all(item.success for item in found)
    assert sum(provider.asked.values()) == 7
    assert "missing results of job job_1 go into another job" in caplog.text


async def test_a_request_that_no_job_answers_is_given_up(provider, path):
    provider.fate = lambda custom_id, prompt: JobOutcome(
        error="overloaded", status=529, retryable=True
    )
    (found,) = await finish(shouting(jobs(provider, tries=3)), words(1), path)
    assert found.status == "errored"
    assert "no answer in 3 jobs: overloaded" in str(found.error)
    assert len(provider.jobs) == 3


async def test_a_job_that_is_refused_as_a_whole_ends_the_run(provider, path):
    class Refusing(FakeAPI):
        async def look(self, job):
            self.provider.jobs[job].status = "failed"
            self.provider.jobs[job].errors = (JobError("model_not_found", "no such model"),)
            return await super().look(job)

    with pytest.raises(InvalidRequest, match="no such model"):
        await finish(shouting(BatchJobs(Refusing(provider))), words(3), path)
    found = await finish(shouting(jobs(provider)), words(3), path)
    assert all(item.success for item in found)


@pytest.mark.parametrize("whole", [True, False], ids=["the job", "the line"])
async def test_a_line_that_a_provider_refuses_ends_its_item_only(provider, path, whole):
    class Refusing(FakeAPI):
        async def look(self, job):
            fake = self.provider.jobs[job]
            wrong = [n for n, b in enumerate(fake.lines.values(), 1) if "word1" in b["texts"][0]]
            if wrong:
                fake.status = "failed"
                fake.errors = tuple(JobError("invalid", "not this", line) for line in wrong)
            return await super().look(job)

    provider.fate = lambda custom_id, prompt: (
        JobOutcome(error="not this", status=400) if asks([prompt]) == "word1 please" else None
    )
    backend = BatchJobs((Refusing if whole else FakeAPI)(provider))
    found = await finish(shouting(backend), words(3), path)
    assert {item.id: item.status for item in found} == {0: "passed", 1: "errored", 2: "passed"}
    assert "not this" in str(next(item.error for item in found if item.id == 1))
    assert set(provider.asked.values()) == {1}


# --- limits and budgets


async def test_jobs_are_split_by_their_limits_and_queued(provider, path):
    backend = jobs(provider, limits=JobLimits(5, 10**6), jobs_at_once=2)
    found = await finish(shouting(backend), words(23), path)
    assert all(item.success for item in found)
    assert max(len(job.lines) for job in provider.jobs.values()) == 5
    begun = sorted((job.created, job.ends) for job in provider.jobs.values())
    assert all(sum(start <= at < end for start, end in begun) <= 2 for at, _ in begun)


async def test_enqueued_tokens_are_limited(provider, path):
    backend = jobs(provider, enqueued_tokens=30)
    found = await finish(shouting(backend), words(9), path)
    assert all(item.success for item in found)
    assert max(len(job.lines) for job in provider.jobs.values()) < 9


async def test_a_round_that_cannot_be_paid_is_submitted_in_part(provider, path):
    # A request reserves 15 tokens of input and 10 of output at half of the price.
    one = (15 * 2.0 + 10 * 8.0) / 2 / 10**6
    budget = Budget(money=4.5 * one, prices=PRICES)
    strategy = shouting(jobs(provider), options={"max_tokens": 10})
    with pytest.raises(LimitExceeded, match="money"):
        await finish(strategy, words(9), path, budget=budget, in_order=True)
    first = next(iter(provider.jobs.values()))
    assert [asks(line["texts"]) for line in first.lines.values()] == words(4)
    spent = PRICES["small"].halved().cost(provider.usage)
    assert budget.spent.money == pytest.approx(spent, abs=1e-12)
    assert budget.spent.requests == provider.usage.requests
    assert budget.statistics().reserved.requests == 0
    found = await finish(strategy, words(9), path)
    assert [item.status for item in found] == ["passed"] * 9
    assert set(provider.asked.values()) == {1}
    assert sum(i.usage.input_tokens for i in found) == provider.usage.input_tokens


async def test_small_rounds_are_answered_directly(provider, path):
    direct = ScriptedBackend(["DIRECT"] * 3, model="small")

    def mostly(texts):
        word = texts[-1].split()[0]
        return word.upper() if int(word[4:]) >= 3 else word

    provider.answer = mostly
    backend = jobs(provider, direct=direct, direct_below=4)
    found = await finish(shouting(backend), words(10), path)
    assert all(item.success for item in found)
    assert len(provider.jobs) == 1
    assert sum(item.result.text == "DIRECT" for item in found) == 3


def says(text):
    """Return a backend that replies after a while, and the costs of its replies."""
    asked = []

    async def generate(request):
        asked.append(Usage(1, sum(len(m.text.split()) for m in request.messages), 2))
        usage = asked[-1]
        await anyio.sleep(30)
        return Generation(text, usage=usage, model="ordinary")

    return FunctionBackend(generate, model="ordinary", can_judge=True), asked


PASSED = '{"passed": true, "reason": ""}'


def verdict(texts):
    return PASSED if "passed" in texts[0] else answer(texts)


def kind(judge):
    return requirement("it is kind", judge=judge)


@pytest.mark.parametrize(
    ("text", "build"),
    [
        pytest.param(
            "hello",
            lambda ordinary, by_jobs: RejectionSamplingStrategy(
                ordinary, requirements=[kind(by_jobs)]
            ),
            id="draws wait for a judge",
        ),
        pytest.param(
            PASSED,
            lambda ordinary, by_jobs: RejectionSamplingStrategy(
                by_jobs, requirements=["it is short", kind(ordinary)], validate_all=True
            ),
            id="verdicts wait for another judge's",
        ),
        pytest.param(
            "hello",
            lambda ordinary, by_jobs: RejectionSamplingStrategy(
                jobs(FakeProvider(verdict), "asked", direct=ordinary, direct_below=10),
                requirements=[kind(by_jobs)],
            ),
            id="direct draws wait for a judge",
        ),
        pytest.param(
            "BIG",
            lambda ordinary, by_jobs: Escalate(
                [Stage(by_jobs, turns=1), Stage(ordinary)],
                requirements=[in_capitals, kind(by_jobs)],
            ),
            id="draws of a stage wait for a judge",
        ),
    ],
)
async def test_an_ordinary_backend_is_asked_once_for_what_waits_for_a_job(
    provider, path, text, build
):
    provider.answer = verdict
    ordinary, asked = says(text)
    budget = Budget(requests=100)
    found = await finish(build(ordinary, jobs(provider)), words(4), path, budget=budget)
    assert all(item.success for item in found)
    assert len(asked) == 4
    assert text == PASSED or {item.result.text for item in found} == {text}
    assert cost(found) == provider.usage + sum(asked, Usage())
    assert budget.spent.requests == cost(found).requests


async def test_a_resumed_run_makes_no_ordinary_draw_twice(provider, path):
    backend, asked = says("hello")
    provider.answer = verdict
    strategy = RejectionSamplingStrategy(backend, requirements=[kind(jobs(provider))])
    with anyio.CancelScope() as scope:
        provider.looked = scope.cancel
        await finish(strategy, words(4), path)
    assert scope.cancelled_caught
    assert len(provider.jobs) == 1
    provider.looked = lambda: None
    found = await finish(strategy, words(4), path)
    assert all(item.success for item in found)
    assert len(asked) == 4
    assert len(provider.jobs) == 1
    assert cost(found) == provider.usage + sum(asked, Usage())


class CallingAPI(FakeAPI):
    """A model whose reply "look up" calls this tool."""

    def reply(self, request, outcome, meter):
        made = super().reply(request, outcome, meter)
        calls = (ToolCall("call", "look_up", "{}"),) if made.text == "look up" else ()
        return replace(made, tool_calls=calls)


async def test_a_resumed_run_finds_the_answers_to_a_repair_that_continues_rounds_of_tools(
    virtual_clock, path
):
    def look_up():
        return "found"

    def answer(texts):
        first = len(texts) < 5  # The first draw, whose answer is in small letters.
        return "look up" if texts[-1] != "found" else "found" if first else "FOUND"

    provider = FakeProvider(answer)
    tools = [Tool.of(look_up, read_only=True)]
    strategy = MultiTurnStrategy(BatchJobs(CallingAPI(provider)), requirements=[in_capitals])
    with anyio.CancelScope() as scope:
        provider.looked = lambda: len(provider.jobs) == 3 and scope.cancel()
        await finish(strategy, words(1), path, tools=tools)
    assert scope.cancelled_caught
    provider.looked = lambda: None
    found = await finish(strategy, words(1), path, tools=tools)
    check_all_paid_once(found, provider)
    assert len(provider.jobs) == 4


async def test_half_of_a_surrogate_pair_goes_into_a_job(provider, path):
    (found,) = await finish(shouting(jobs(provider)), ["wo\ud800rd please"], path)
    assert found.success


async def test_an_item_in_flight_when_the_budget_is_spent_is_finished(provider, path):
    class Judge:
        model = provider = "judge"
        asked = 0

        async def generate(self, request):
            self.asked += 1
            if self.asked > 1:
                raise LimitExceeded("the budget is spent")
            await anyio.sleep(60)
            return Generation('{"passed": true, "reason": ""}', usage=Usage(1, 1, 1))

    strategy = RejectionSamplingStrategy(jobs(provider), requirements=["it is kind"], judge=Judge())
    seen = []
    with pytest.raises(LimitExceeded):
        await into(seen, batch(strategy, words(2), path, concurrency=2))
    assert [item.status for item in seen] == ["passed"]


class LeftWhileCreating(FakeAPI):
    """Cancels ``scope`` when the job exists, before its id is known."""

    scope: anyio.CancelScope

    async def create(self, intention, uploaded):
        await super().create(intention, uploaded)
        self.scope.cancel()
        await anyio.sleep_forever()


async def test_a_run_that_is_left_while_a_job_is_created_tells_of_the_job(provider, path):
    api = LeftWhileCreating(provider, limits=LIMITS)
    run = batch(RejectionSamplingStrategy(BatchJobs(api)), words(2), path)
    with anyio.CancelScope() as api.scope:
        await into([], run)
    assert [(job.total, job.ended) for job in run.progress.jobs] == [(2, False)]


@pytest.mark.parametrize("requests", [2, 5])
async def test_a_run_that_has_collected_its_jobs_tells_of_none(provider, path, requests):
    budget = Budget(requests=requests)
    run = batch(shouting(jobs(provider)), words(3), path, concurrency=2, budget=budget)
    with suppress(LimitExceeded):
        await into([], run)
    assert len(provider.jobs) == requests // 2
    assert run.progress.jobs == ()


async def test_cancelling_a_run_finds_a_job_that_is_listed_late(provider, path):
    api = LeftWhileCreating(provider)
    with anyio.CancelScope() as api.scope:
        await finish(shouting(BatchJobs(api)), words(2), path)
    with closing(sqlite3.connect(f"{path}-jobs")) as db, db:
        db.execute("UPDATE jobs SET noted = 0")  # Its upload took long.
    provider.hidden = 2
    await cancel_jobs(path, lambda place: FakeAPI(provider), poll=10)
    assert [job.status for job in provider.jobs.values()] == ["cancelled"]
    found = await finish(shouting(jobs(provider)), words(2), path)
    check_all_paid_once(found, provider)


async def test_a_run_that_is_left_during_an_upload_gives_its_reservation_back(provider, path):
    class Left(FakeAPI):
        async def upload(self, intention, lines):
            scope.cancel()
            await anyio.sleep_forever()

    budget = Budget(requests=2)
    with anyio.CancelScope() as scope:
        backend = BatchJobs(Left(provider))
        await finish(RejectionSamplingStrategy(backend), words(2), path, budget=budget)
    assert scope.cancelled_caught
    assert budget.statistics().reserved.requests == 0


async def test_a_judge_waits_for_budget_no_longer_than_the_job_that_holds_it(provider, path):
    async def judge(request):
        return '{"passed": true, "reason": "ok"}'

    def looked():  # The second job takes longer than the first.
        for number, job in enumerate(provider.jobs.values()):
            job.ends = job.created + (10 if number == 0 else 1000)

    provider.looked = looked
    strategy = RejectionSamplingStrategy(
        jobs(provider, requests_per_job=1),
        requirements=["is kind"],
        judge=FunctionBackend(judge, can_judge=True),
    )
    with pytest.raises(LimitExceeded):
        await finish(strategy, words(2), path, budget=Budget(requests=2))


@pytest.mark.parametrize("scored", [False, True], ids=["a verdict", "a score"])
async def test_a_draw_whose_judge_a_budget_refused_is_repeated_and_paid_once(
    provider, path, scored
):
    given = {}
    if scored:
        backend, asked = says('{"score": 7, "reason": "well"}')
        given["selection"] = BestOf(judge_score("how kind it is", judge=backend), n=1)
    else:
        backend, asked = says(PASSED)
        given |= {"requirements": ["it is kind"], "judge": backend}
    judged = RejectionSamplingStrategy(jobs(provider), loop_budget=1, **given)
    for requests in (2, 1):  # Each run lacks a request for one verdict.
        with pytest.raises(LimitExceeded):
            await finish(judged, words(2), path, budget=Budget(requests=requests), concurrency=1)
    found = await finish(judged, words(2), path)
    assert [len(item.result.slices) for item in found] == [1, 1]
    assert all(item.success for item in found)
    assert (set(provider.asked.values()), len(asked)) == ({1}, 2)
    paid, costs = provider.usage + sum(asked, Usage()), [i["usage"] for i in await items_of(path)]
    assert sum(cost["requests"] for cost in costs) == paid.requests
    assert sum(cost["output_tokens"] for cost in costs) == paid.output_tokens


async def test_a_canary_finds_what_the_provider_refuses(provider, path):
    direct = ScriptedBackend([InvalidRequest("temperature is not supported")], model="small")
    with pytest.raises(InvalidRequest, match="temperature"):
        await finish(shouting(jobs(provider, direct=direct, canary=True)), words(5), path)
    assert not provider.jobs


async def test_the_last_item_that_direct_answers_is_no_canary(provider, path):
    direct = ScriptedBackend([InvalidRequest("too long")], model="small")
    (found,) = await finish(shouting(jobs(provider, direct=direct, direct_below=4)), words(1), path)
    assert found.status == "errored"
    assert "too long" in str(found.error)


async def test_a_canary_that_takes_too_long_ends_the_run_with_its_timeout(provider, path):
    strategy = shouting(jobs(provider, direct=says("slowly")[0], canary=True), timeout=10)
    with pytest.raises(SamplingTimeout, match="time ran out"):
        await finish(strategy, words(5), path)
    assert not provider.jobs


# --- what is refused


@pytest.mark.parametrize(
    ("given", "strategy", "why"),
    [
        ({"breadth_first": False}, {}, "breadth_first=True"),
        ({"journal": None}, {}, "journal"),
        ({}, {"concurrency_budget": 2}, "concurrency_budget"),
    ],
)
async def test_what_cannot_be_is_refused_at_once(virtual_clock, path, given, strategy, why):
    backend = jobs(FakeProvider(answer))
    with pytest.raises(ValueError, match=why):
        await finish(RejectionSamplingStrategy(backend, **strategy), words(1), path, **given)


@pytest.mark.parametrize(
    ("given", "error", "why"),
    [
        ({"direct": "small"}, TypeError, "direct must be a backend"),
        ({"canary": True}, ValueError, "canary needs direct="),
        ({"direct_below": 1}, ValueError, "direct_below needs direct="),
        ({"jobs_at_once": None}, TypeError, "jobs_at_once must be an integer"),
        ({"tries": 0}, ValueError, "tries must be at least 1"),
        ({"bytes_per_job": "all"}, TypeError, "bytes_per_job must be an integer"),
        ({"deadline": 0}, ValueError, "deadline must be greater than 0"),
    ],
)
def test_settings_that_cannot_be_are_refused(given, error, why):
    with pytest.raises(error, match=why):
        jobs(None, **given)


async def test_a_single_call_is_refused(virtual_clock):
    backend = jobs(FakeProvider(answer))
    with pytest.raises(InvalidRequest, match="sample_many"):
        await RejectionSamplingStrategy(backend).sample("hello")


async def test_what_the_format_lacks_is_refused_before_anything_is_submitted(provider, path):
    strategy = shouting(jobs(provider), options={"stop": ["x"]})
    found = await finish(strategy, words(2), path)
    assert {item.status for item in found} == {"errored"}
    assert "stop" in str(found[0].error)
    assert not provider.jobs


# --- leaving and resuming


def recorded(path):
    """Return the costs of a journal's items."""
    return [i["usage"] for i in read_items(path)]


def left_and_resumed(loop, random, provider, steps, path, strategy, **given):
    """Leave and resume a run at random steps; return its items and the number of sittings."""
    provider.lost = random.choices(["", "after", "before"], k=8)

    async def run(stepper):
        for n, most in enumerate([*steps, *[10**6] * 9], 1):
            backend = jobs(provider, limits=JobLimits(7, 10**6), poll=7, **given)
            with anyio.CancelScope() as scope:
                stepper.arm({random.randrange(1, most): scope.cancel})
                found = await finish(strategy(backend), words(17), path)
            stepper.disarm()
            if not scope.cancelled_caught:
                return found, n
        return pytest.fail("it never ends")

    return run_stepped(run, loop)


STORMS = [pytest.param(seed, marks=pytest.mark.storm) for seed in range(1, 6)]


@pytest.mark.parametrize("keys", [True, False])
@pytest.mark.parametrize("seed", [0, *STORMS])
@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_a_run_that_is_left_at_any_step_is_resumed(path, loop, seed, keys):
    random = Random(seed)
    provider = FakeProvider(answer, seconds=1000)
    steps = [300, 500, 800, 1200, 2000, 3000]
    found, sittings = left_and_resumed(loop, random, provider, steps, path, shouting, keys=keys)
    assert [item.status for item in found] == ["passed"] * 17
    assert set(provider.asked.values()) == {1}
    assert sum(u["requests"] for u in recorded(path)) == provider.usage.requests
    assert sum(u["output_tokens"] for u in recorded(path)) == provider.usage.output_tokens
    assert sittings > 2


@pytest.mark.parametrize("ordinary", [True, False])
@pytest.mark.parametrize("seed", [0, *STORMS])
@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_a_run_with_a_judge_that_is_left_at_any_step_pays_each_job_once(path, loop, seed, ordinary):
    random = Random(seed)
    provider = FakeProvider(verdict, seconds=1000)
    ended = []

    async def generate(request):
        await anyio.sleep(random.uniform(0, 20))
        ended.append(1)
        return Generation("hello", usage=Usage(1, 5, 1), model="ordinary")

    def judged(jobs):
        return RejectionSamplingStrategy(
            FunctionBackend(generate, model="ordinary") if ordinary else jobs,
            requirements=[requirement("it is kind", judge=jobs)],
        )

    steps = [500, 900, 1500, 2500]
    found, _ = left_and_resumed(loop, random, provider, steps, path, judged)
    assert [item.status for item in found] == ["passed"] * 17
    assert set(provider.asked.values()) == {1}
    # Only a reply that arrives in the very step of a cancellation is asked for again.
    assert len(ended) <= 17 + 4
    kept = provider.usage + (Usage(17, 17 * 5, 17) if ordinary else Usage())
    assert sum(u["requests"] for u in recorded(path)) == kept.requests
    assert sum(u["output_tokens"] for u in recorded(path)) == kept.output_tokens


async def test_another_runs_jobs_are_not_taken_up(provider, path):
    await finish(shouting(jobs(provider)), words(2), path)
    path.unlink()
    with pytest.raises(MelleaError, match="another run"):
        await finish(shouting(jobs(provider)), words(2), path)


async def test_a_run_with_paid_jobs_is_not_asked_again_directly(virtual_clock, path):
    class Direct(ScriptedBackend):
        provider = "fake"

    provider = FakeProvider(answer, seconds=10**9)
    with anyio.CancelScope() as scope:
        provider.looked = scope.cancel
        await finish(shouting(jobs(provider)), words(2), path)
    direct = shouting(Direct(["WORD"] * 2, model="small"))
    with pytest.raises(MelleaError, match="1 job of this run"):
        async with sample_many(direct, words(2), concurrency=1, journal=Journal(path)) as results:
            await anext(results)
