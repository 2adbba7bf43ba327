"""The batch APIs of OpenAI, Azure, Anthropic and Mistral, against fake servers."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import anyio
import httpx2
import pytest
from batch_servers.kit import PROVIDERS, Scene, ask, make_api, scene
from batch_servers.settings import DAY
from batch_servers.world import loop_clock

from mellea_like.backends.batch_api import BatchAPI, Intention, JobOutcome
from mellea_like.core.generation import RequestMeter, Usage
from mellea_like.errors import (
    AuthenticationFailed,
    BackendError,
    BackendUnavailable,
    InvalidRequest,
    MalformedResponse,
    RateLimited,
)

pytestmark = pytest.mark.anyio

every_provider = pytest.mark.parametrize("provider", PROVIDERS)
with_keys = pytest.mark.parametrize("provider", ["openai", "azure", "mistral"])


def fault(on: str, kind: str, **more: object) -> list[dict[str, object]]:
    return [{"on": on, "fault": kind, **more}]


def read(s: Scene, outcomes: dict[str, JobOutcome], custom_id: str):
    return s.api.reply(s.requests[custom_id], outcomes[custom_id], RequestMeter())


# --- a job from its creation to its results -------------------------------------------------------


@every_provider
async def test_a_job_is_created_worked_on_and_collected(provider, tmp_path, virtual_clock):
    async with scene(provider, tmp_path) as s:
        api: BatchAPI = s.api
        state = await s.submit(30)
        assert not state.ended
        assert abs(state.created - s.world.now) < 60
        state = await s.end(state)
        assert (state.total, state.succeeded, state.failed) == (30, 30, 0)
        outcomes = await s.collect(state)
        assert list(outcomes) != [f"run-1-{n}" for n in range(30)], "they come in order"
        assert outcomes.keys() == s.requests.keys()
        for custom_id, outcome in outcomes.items():
            meter = RequestMeter()
            reply = api.reply(s.requests[custom_id], outcome, meter)
            assert reply.text.startswith(("right: ", "wrong: "))
            assert reply.finish_reason == "stop"
            assert meter.usage == reply.usage == api.usage(outcome)
            assert not reply.usage.unknown


@every_provider
async def test_the_bill_says_what_the_replies_do_at_half_the_price(
    provider, tmp_path, virtual_clock
):
    async with scene(provider, tmp_path, error_rate=0.3, cached=0.5) as s:
        outcomes = await s.collect(await s.end(await s.submit(40)))
        cost, bill = s.cost(outcomes), s.world.bill()["jobs"]
        assert cost.requests == 40
        assert bill["requests"] == sum(outcome.reply is not None for outcome in outcomes.values())
        assert cost.input_tokens == bill["input_tokens"]
        assert cost.output_tokens == bill["output_tokens"]
        assert bill["nano"] == cost.input_tokens * 1_000 + cost.output_tokens * 4_000
        if provider != "mistral":  # It says nothing of its cache.
            assert 0 < cost.cached_input_tokens < cost.input_tokens


# --- creation -------------------------------------------------------------------------------------

LOST = [
    pytest.param(fault("create", "lose"), id="the connection breaks"),
    pytest.param(fault("create", "status_after", status=502), id="502"),
    pytest.param(fault("create", "status_after", status=408), id="408"),
]


@every_provider
@pytest.mark.parametrize("faults", LOST)
async def test_a_lost_answer_to_create_is_no_error_and_its_job_is_found(
    provider, faults, tmp_path, virtual_clock
):
    async with scene(provider, tmp_path, faults=faults) as s:
        intention, path = s.intend([ask(f"question {n}") for n in range(5)])
        intention = intention._replace(before=await s.api.known())
        assert await s.create(intention, path) is None
        assert len(s.world.state.jobs) == 1, "the creation was repeated"
        found = await s.api.find(intention)
        if provider == "anthropic":
            assert found == "perhaps"
            await anyio.sleep(3600)
            found = await s.api.find(intention)
        assert found.id == next(iter(s.world.state.jobs))
        outcomes = await s.collect(await s.end(found))
        assert len(outcomes) == 5


@every_provider
async def test_a_creation_whose_answer_never_comes_may_have_a_job(
    provider, tmp_path, virtual_clock
):
    async with scene(provider, tmp_path) as s:

        class Silent(httpx2.AsyncBaseTransport):
            async def handle_async_request(self, request):
                response = await s.transport.handle_async_request(request)
                if s.world.state.calls["create"]:
                    raise httpx2.ReadTimeout("nothing came", request=request)
                return response

        api = make_api(provider, Silent())
        intention, path = s.intend([ask()])
        assert await api.create(intention, await api.upload(intention, path)) is None
        assert len(s.world.state.jobs) == 1


@every_provider
async def test_a_job_is_found_when_the_list_has_it(provider, tmp_path, virtual_clock):
    faults = fault("create", "lose")
    async with scene(provider, tmp_path, faults=faults, list_lag=20.0, work=0.0) as s:
        intention, path = s.intend([ask()])
        assert await s.create(intention, path) is None
        assert await s.api.find(intention) is None
        await anyio.sleep(30)
        assert (await s.api.find(intention)).ended


@every_provider
async def test_jobs_of_others_are_never_found(provider, tmp_path, virtual_clock):
    async with scene(provider, tmp_path) as s:
        for n in range(3):
            await s.submit(5, key=f"other-{n}")
        intention, _ = s.intend([ask(f"question {n}") for n in range(5)], key="mine")
        if provider == "anthropic":
            assert await s.api.find(intention) == "perhaps"
            known = intention._replace(before=await s.api.known())
            assert await s.api.find(known) is None, "they existed before"
            assert await s.api.find(intention._replace(count=6)) is None, "they are smaller"
        await anyio.sleep(3600)
        assert await s.api.find(intention) is None


def add_others(s, count: int) -> None:
    """Add ended jobs of somebody else, two in each second."""
    jobs = s.world.state.jobs
    given = next(iter(jobs.values())).given | {"metadata": {}}
    job = s.world.add_job([("x", {}), ("y", {})], "m", given, lambda seq: f"job-{seq}")
    s.world.advance()
    for each in jobs.values():
        each.ended, each.status = each.created, "completed"
    for n in range(1, count):
        later = {name: getattr(job, name) + n / 2 for name in ("created", "ended", "seen")}
        other = replace(job, seq=job.seq + n, id=f"job-{job.seq + n}", **later)
        jobs[other.id] = other
    s.world.skip(count // 2)


@every_provider
@pytest.mark.parametrize("oldest_first", [True, False])
@pytest.mark.parametrize("skew", [-2 * DAY, 0.0, 2 * DAY])
async def test_a_job_is_found_whatever_the_clocks_and_the_lists_order(
    provider, oldest_first, skew, tmp_path, virtual_clock
):
    clock = loop_clock()
    settings = {"oldest_first": oldest_first, "work": 0.0, "validating": 0.0}
    async with scene(provider, tmp_path, now=lambda: clock() + skew, **settings) as s:
        await s.submit(2, key="an-old-one")
        add_others(s, 130)
        intention, path = s.intend([ask()], key="mine")
        intention = intention._replace(before=await s.api.known())
        mine = await s.create(intention, path)
        add_others(s, 130)
        assert (await s.api.find(intention)).id == mine.id
        assert await s.api.find(intention._replace(key="no", prefix="no-", count=9)) is None


async def test_a_job_of_others_without_results_ends_no_search(tmp_path, virtual_clock):
    faults = fault("download", "status", status=404)
    async with scene("anthropic", tmp_path, work=0.0, validating=0.0, faults=faults) as s:
        await s.end(await s.submit(1, key="other"))
        intention, _ = s.intend([ask()], key="mine")
        assert await s.api.find(intention) is None


async def test_a_job_whose_results_were_cut_short_is_not_taken_for_another(tmp_path, virtual_clock):
    faults = fault("download", "lines")
    async with scene("anthropic", tmp_path, work=0.0, validating=0.0, faults=faults) as s:
        intention, path = s.intend([ask()], key="mine")
        await s.end(await s.create(intention, path))
        with pytest.raises(MalformedResponse, match="0 results of 1"):
            await s.api.find(intention)


@every_provider
async def test_a_list_is_left_at_the_jobs_that_were_there_before(provider, tmp_path, virtual_clock):
    async with scene(provider, tmp_path, work=0.0, validating=0.0) as s:
        await s.submit(2, key="an-old-one")
        add_others(s, 300)
        intention, _ = s.intend([ask()], key="mine")
        intention = intention._replace(before=await s.api.known())
        add_others(s, 120)
        before = s.world.state.calls["list"]
        assert await s.api.find(intention) is None
        assert s.world.state.calls["list"] - before == 2


REFUSED = [
    (400, InvalidRequest, False),
    (401, AuthenticationFailed, False),
    (409, InvalidRequest, True),
    (429, RateLimited, True),
]


@every_provider
@pytest.mark.parametrize(("status", "kind", "retryable"), REFUSED)
async def test_a_refused_creation_is_an_error(
    provider, status, kind, retryable, tmp_path, virtual_clock
):
    faults = fault("create", "status", status=status, message="not like this", retry_after=7)
    async with scene(provider, tmp_path, faults=faults) as s:
        with pytest.raises(kind, match="not like this") as caught:
            await s.submit(2)
        assert caught.value.status == status
        assert caught.value.retryable is retryable
        assert caught.value.retry_after == 7
        assert caught.value.__context__ is None
        assert not s.world.state.jobs
        assert s.world.state.calls["create"] == 1, "it was repeated"
        # Nobody needs the file any more.
        assert not s.world.state.files


@every_provider
async def test_a_server_that_cannot_be_reached_has_no_job(provider, tmp_path):
    class Nobody(httpx2.AsyncBaseTransport):
        async def handle_async_request(self, request):
            raise httpx2.ConnectError("refused") from ConnectionRefusedError()

    async with scene(provider, tmp_path) as s:
        intention, path = s.intend([ask()])
        with pytest.raises(BackendUnavailable, match="is the server running"):
            await make_api(provider, Nobody()).upload(intention, path)
            await make_api(provider, Nobody()).create(intention, str(path))


@every_provider
async def test_a_wrong_key_is_told_without_it(provider, tmp_path):
    async with scene(provider, tmp_path) as s:
        api = make_api(provider, s.transport, key="sk-secret-of-mine")
        intention, path = s.intend([ask()])
        with pytest.raises(AuthenticationFailed) as caught:
            await api.create(intention, await api.upload(intention, path))
        assert "secret" not in str(caught.value)


@pytest.mark.parametrize("provider", ["openai", "anthropic", "mistral"])
async def test_creation_can_be_cancelled(provider, tmp_path):
    async with scene(provider, tmp_path, faults=fault("create", "hang")) as s:
        intention, path = s.intend([ask()])
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(s.create, intention, path)
            while not s.world.state.jobs:  # noqa: ASYNC110 (the server sets no event)
                await anyio.sleep(0.01)
            tasks.cancel_scope.cancel()
        assert len(s.world.state.jobs) == 1


@every_provider
async def test_too_much_in_the_queue_is_told_from_a_mistake(provider, tmp_path, virtual_clock):
    async with scene(provider, tmp_path, enqueued={"*": 40}) as s:
        if provider == "anthropic":  # It refuses the creation.
            s.world.change(faults=fault("create", "status", status=429))
            with pytest.raises(RateLimited):
                await s.submit(5)
            return
        first = await s.submit(5)
        second = await s.submit(5)
        assert not second.full, "nobody has looked at it yet"
        await anyio.sleep(60)
        second = await s.api.look(second.id)
        assert second.ended
        assert second.full
        assert second.errors[0].message
        assert not await s.collect(second)
        await s.end(first)
        assert (await s.end(await s.submit(5))).succeeded == 5
        assert s.world.bill()["jobs"]["requests"] == 10


@with_keys
async def test_a_file_with_mistakes_fails_and_says_where(provider, tmp_path, virtual_clock):
    async with scene(provider, tmp_path) as s:
        intention, path = s.intend([ask(), ask()])
        path.write_text(path.read_text() + "not JSON\n")
        state = await s.end(await s.create(intention, path))
        assert not state.full
        assert state.errors
        if provider != "mistral":
            assert state.errors[0].code == "invalid_json_line"
            assert state.errors[0].line == 3


# --- what comes of a job --------------------------------------------------------------------------


@every_provider
async def test_what_was_finished_when_a_job_expires_is_there(provider, tmp_path, virtual_clock):
    async with scene(provider, tmp_path, work=2 * DAY, window=DAY) as s:
        state = await s.submit(60)
        state = await s.end(state, every=3600)
        outcomes = await s.collect(state)
        done = [outcome for outcome in outcomes.values() if outcome.reply is not None]
        if provider == "azure":
            assert state.expires is None
            assert len(done) == 60
            return
        assert state.expires == pytest.approx(state.created + DAY)
        assert 15 < len(done) < 45
        assert len(done) == s.world.bill()["jobs"]["requests"]
        unrun = [outcome for outcome in outcomes.values() if outcome.reply is None]
        # Mistral doesn't say which they are.
        assert len(unrun) == (0 if provider == "mistral" else 60 - len(done))
        assert {outcome.unrun for outcome in unrun} <= {"expired"}
        assert s.cost(outcomes).requests == len(done)
        for outcome in unrun[:1]:
            meter = RequestMeter()
            with pytest.raises(BackendUnavailable, match="expired") as caught:
                s.api.reply(ask(), outcome, meter)
            assert caught.value.retryable
            assert s.api.usage(outcome) == Usage()


@every_provider
async def test_what_was_finished_when_a_job_is_cancelled_is_there(
    provider, tmp_path, virtual_clock
):
    async with scene(provider, tmp_path, work=3600.0, cancelling=120.0) as s:
        state = await s.submit(60)
        await anyio.sleep(1800)
        state = await s.api.cancel(state.id)
        assert not state.ended
        assert s.world.bill()["jobs"]["requests"] < 60
        state = await s.end(state)
        outcomes = await s.collect(state)
        done = [outcome for outcome in outcomes.values() if outcome.reply is not None]
        assert 15 < len(done) < 45
        assert len(done) == s.world.bill()["jobs"]["requests"]
        rest = {outcome.unrun for outcome in outcomes.values() if outcome.reply is None}
        assert rest == (set() if provider == "mistral" else {"cancelled"})


@every_provider
async def test_a_job_that_has_just_ended_is_too_late_to_cancel(provider, tmp_path, virtual_clock):
    async with scene(provider, tmp_path) as s:
        state = await s.end(await s.submit(3))
        assert await s.api.cancel(state.id) == state


@every_provider
async def test_a_servers_faults_may_be_tried_again_and_cost_nothing(
    provider, tmp_path, virtual_clock
):
    async with scene(provider, tmp_path, error_rate=0.3) as s:
        state = await s.end(await s.submit(40))
        assert state.failed
        assert state.succeeded + state.failed == 40
        outcomes = await s.collect(state)
        bad = {id_: outcome for id_, outcome in outcomes.items() if outcome.reply is None}
        assert len(bad) == state.failed
        for id_, outcome in bad.items():
            assert outcome.status == 500
            assert outcome.retryable
            assert "had an error" in outcome.error
            meter = RequestMeter()
            with pytest.raises(BackendUnavailable, match="had an error"):
                s.api.reply(s.requests[id_], outcome, meter)
            assert meter.usage == s.api.usage(outcome) == Usage(requests=1)


@every_provider
async def test_a_request_that_is_refused_when_it_runs_is_not_tried_again(
    provider, tmp_path, virtual_clock
):
    async with scene(provider, tmp_path) as s:
        strange = ask(extra={"no_such_field": 1})
        outcomes = await s.collect(await s.end(await s.submit([ask(), strange])))
        assert read(s, outcomes, "run-1-0").text
        assert outcomes["run-1-1"].status == 400
        assert not outcomes["run-1-1"].retryable
        with pytest.raises(InvalidRequest, match="no_such_field"):
            read(s, outcomes, "run-1-1")


@with_keys
@pytest.mark.parametrize("missing", [("output",), ("errors",), ("output", "errors")], ids=str)
async def test_a_job_may_be_complete_without_a_file(provider, missing, tmp_path, virtual_clock):
    async with scene(provider, tmp_path, error_rate=0.3, no_files=missing) as s:
        state = await s.end(await s.submit(30))
        written = {"output": state.succeeded, "errors": state.failed}
        there = sum(count for file, count in written.items() if file not in missing)
        assert len(await s.collect(state)) == there


# --- downloads ------------------------------------------------------------------------------------


@every_provider
@pytest.mark.parametrize("kind", ["lines", "half", "broken", "status"])
async def test_a_cut_download_is_an_error_and_can_be_begun_again(
    provider, kind, tmp_path, virtual_clock
):
    async with scene(provider, tmp_path, faults=fault("download", kind)) as s:
        state = await s.end(await s.submit(20))
        found = []
        with pytest.raises(BackendError) as caught:
            async with s.api.results(state) as results:
                async for result in results:
                    found.append(result.custom_id)  # noqa: PERF401 (what came before the error)
        assert caught.value.retryable
        assert caught.value.__context__ is None
        assert len(found) == 0 if kind == "status" else 8 <= len(found) <= 12
        assert len(await s.collect(state)) == 20


@every_provider
async def test_a_download_may_be_left_early(provider, tmp_path, virtual_clock):
    async with scene(provider, tmp_path) as s:
        state = await s.end(await s.submit(20))
        async with s.api.results(state) as results:
            async for _ in results:
                break
        assert len(await s.collect(state)) == 20


@every_provider
async def test_results_are_deleted_after_a_month(provider, tmp_path, virtual_clock):
    async with scene(provider, tmp_path, kept=29 * DAY) as s:
        state = await s.end(await s.submit(3))
        await anyio.sleep(28 * DAY)
        assert len(await s.collect(state)) == 3
        await anyio.sleep(2 * DAY)
        with pytest.raises(InvalidRequest) as caught:
            await s.collect(state)
        if provider == "anthropic":
            assert "29 days" in str(caught.value)
            # What is found has no results, so that it can't be told whose it is.
            intention = Intention("run-1", "run-1-", 3)
            assert await s.api.find(intention) is None
        else:
            assert "gone" in str(caught.value)


async def test_texts_with_unicodes_line_ends_are_read(tmp_path, virtual_clock):
    text = "one\u2028two\u0085three\x1cfour \ud83e\udd50".encode("utf-16", "surrogatepass")
    text = text.decode("utf-16")
    async with scene("openai", tmp_path) as s:
        s.server.answer = lambda *a: {  # type: ignore[method-assign]
            **type(s.server).answer(s.server, *a),
            "choices": [{"index": 0, "message": {"content": text}, "finish_reason": "stop"}],
        }
        outcomes = await s.collect(await s.end(await s.submit(2)))
        assert read(s, outcomes, "run-1-0").text == text


# --- the server's troubles ------------------------------------------------------------------------


@every_provider
@pytest.mark.parametrize("on", ["look", "list", "cancel"])
async def test_trouble_when_asking_is_told_and_not_hidden(provider, on, tmp_path, virtual_clock):
    async with scene(provider, tmp_path) as s:
        state = await s.submit(2)
        s.world.change(faults=fault(on, "status", status=503))
        intention = Intention("run-1", "run-1-", 2)
        asks = {"look": s.api.look, "cancel": s.api.cancel}
        with pytest.raises(BackendUnavailable) as caught:
            await (s.api.find(intention) if on == "list" else asks[on](state.id))
        assert caught.value.retryable
        assert s.world.state.calls[on] <= 2, "it was repeated"


ODD = [
    {"custom_id": "stranger-1", "result": {}, "response": None, "error": None},
    {"custom_id": None},
    {"no": "custom id"},
    {"custom_id": "run-1-0", "result": "x", "response": {"status_code": "x", "body": "x"}},
    {"custom_id": "run-1-0", "result": {"type": 3, "error": "x"}, "response": {"body": 4}},
    {"custom_id": "run-1-0", "result": {"type": "succeeded"}, "response": {"status_code": [1]}},
]


@every_provider
async def test_odd_lines_of_results_are_told_and_break_nothing(provider, tmp_path, virtual_clock):
    async with scene(provider, tmp_path, odd_lines=ODD) as s:
        state = await s.end(await s.submit(2))
        async with s.api.results(state) as results:
            found = [result async for result in results]
    whole = [r.custom_id for r in found if r.outcome.reply is not None]
    assert sorted(whole[:2]) == ["run-1-0", "run-1-1"]
    odd = [r for r in found if r.outcome.reply is None]
    assert {r.custom_id for r in odd} == {"run-1-0", "stranger-1"}
    assert all(r.outcome.error for r in odd)
    assert any("invalid result: {" in r.outcome.error for r in odd)
    assert all(s.api.usage(r.outcome).input_tokens >= 0 for r in found)


# --- memory ---------------------------------------------------------------------------------------


@every_provider
async def test_a_large_file_is_sent_in_little_memory(provider, tmp_path):
    api = make_api(provider)
    line = api.line("x-0", api.body(ask("word " * 2000)))
    path = tmp_path / "large.jsonl"
    with path.open("w") as file:
        for n in range(4000):
            file.write(line.replace("x-0", f"x-{n}") + "\n")
    size = path.stat().st_size
    received = [0]

    class Drain(httpx2.AsyncBaseTransport):
        async def handle_async_request(self, request):
            lines = 0
            async for part in request.stream:
                received[0] += len(part)
                lines += part.count(b'"custom_id"')
            if received[0] > size:
                assert int(request.headers["content-length"]) == received[0]
            return httpx2.Response(400, json={"error": {"message": "enough"}})

    api = make_api(provider, Drain())
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRequest, match="enough"):
            intention = Intention("large", "x-", 4000)
            await api.create(intention, await api.upload(intention, path))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size > 40_000_000
    assert received[0] >= size
    assert peak < 8_000_000
