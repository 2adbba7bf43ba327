"""Telling of requests: one record for each, through a callback and as hook events."""

from __future__ import annotations

import anyio
import pytest
from joint_kit import Person, ask, entry, gather, text_of

from mellea_like import HookMode, HookType, Plugin, PluginSet, hook, register, unregister
from mellea_like.coalescing import AuditRecord, RequestStatus, SamplingCoordinator
from mellea_like.coalescing.coordinator.audit import MAX_RUNS, status_of
from mellea_like.core.generation import Generation, Usage
from mellea_like.errors import (
    BackendUnavailable,
    Expired,
    MissingAnswer,
    QueueFull,
    Refused,
    ShutdownError,
    Stopped,
)
from mellea_like.testing import RecordingPlugin

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("virtual_clock")]


def asks(count: int, **more):
    return [ask(f"t{number}", **more) for number in range(count)]


@pytest.mark.parametrize(
    ("result", "status"),
    [
        (Generation("x"), "ok"),
        (Generation("x", finish_reason="length"), "ok"),
        (Generation("x", finish_reason="refusal"), "refused"),
        (Generation("x", finish_reason="content_filter"), "refused"),
        (Refused(), "refused"),
        (QueueFull(), "refused"),
        (MissingAnswer(), "missing"),
        (Expired(), "expired"),
        (Stopped(), "cancelled"),
        (ShutdownError(), "cancelled"),
        (BackendUnavailable(), "error"),
        (KeyboardInterrupt(), "error"),
    ],
)
def test_what_became_of_a_request(result, status):
    assert status_of(result) == status


class Written:
    """An audit callback that keeps what it is told, by request."""

    def __init__(self) -> None:
        self.records: list[AuditRecord] = []

    def __call__(self, record: AuditRecord) -> None:
        self.records.append(record)

    def of(self, request_id: str) -> list[AuditRecord]:
        return [record for record in self.records if record.request_id == request_id]

    def stories(self) -> list[list[str]]:
        ids = dict.fromkeys(record.request_id for record in self.records)
        return [[str(record.status) for record in self.of(each)] for each in ids]


async def test_each_request_is_told_of_twice_and_no_batch_is():
    written = Written()
    person = Person(lambda tasks: [entry(t, "ok") for t in tasks if text_of(t) != "t1"], delay=1)
    requests = asks(3, call="call", iteration=2, subsample=1)
    async with SamplingCoordinator(person, audit=written, retry_missing=False) as coordinator:
        await gather(coordinator, *requests)
    assert sorted(written.stories()) == [["asked", "missing"], ["asked", "ok"], ["asked", "ok"]]
    asked, ended = written.records[:3], written.records[3:]
    assert {(r.batch_id, r.batch_size, r.waited, r.usage) for r in asked} == {
        (None, 0, 0.0, Usage())
    }
    assert len({record.batch_id for record in ended}) == 1
    assert {record.batch_size for record in ended} == {3}
    assert {record.waited for record in ended} == {6.0}
    assert {(r.meta.sampling_id, r.meta.iteration, r.meta.subsample) for r in ended} == {
        ("call", 2, 1)
    }
    assert sum((record.usage for record in ended), Usage()) == Usage(1, 100, 50)
    missing = next(record for record in ended if record.status is RequestStatus.MISSING)
    assert isinstance(missing.error, MissingAnswer)


async def test_every_way_to_end_is_told():
    written = Written()
    person = Person(BackendUnavailable("gone"), delay=10)
    async with (
        SamplingCoordinator(
            person, audit=written, max_batch=2, concurrency=1, max_pending=2, full="raise"
        ) as coordinator,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(gather, coordinator, *asks(2))
        await anyio.sleep(1)
        tasks.start_soon(gather, coordinator, ask("late", deadline=3.0))
        with anyio.move_on_after(1):
            await coordinator.generate(ask("gone"))
        tasks.start_soon(gather, coordinator, ask("at the end"))
        await anyio.sleep(0.5)
        await gather(coordinator, ask("full"))
        await anyio.sleep(1)
        await coordinator.abort()
    assert sorted(written.stories()) == [
        ["asked", "cancelled"],
        ["asked", "cancelled"],
        ["asked", "cancelled"],
        ["asked", "cancelled"],
        ["asked", "expired"],
        ["asked", "refused"],
    ]
    errors = [type(record.error) for record in written.records if record.status != "asked"]
    assert sorted(error.__name__ for error in errors) == [
        "Expired",
        "QueueFull",
        "ShutdownError",
        "ShutdownError",
        "ShutdownError",
        "Stopped",
    ]


async def test_errors_and_refusals_are_told_for_each_member():
    written = Written()
    refusal = Generation("no", finish_reason="refusal")
    async with SamplingCoordinator(
        Person(BackendUnavailable("gone"), refusal), audit=written, max_batch=2
    ) as coordinator:
        await gather(coordinator, *asks(2))
        await gather(coordinator, *asks(2))
    assert written.stories() == [["asked", "error"]] * 2 + [["asked", "refused"]] * 2


async def test_a_callback_that_fails_is_logged_and_changes_nothing(caplog):
    def broken(record):
        raise LookupError("disk full")

    async with SamplingCoordinator(Person(), window=0, audit=broken) as coordinator:
        assert (await coordinator.generate(ask("x"))).text == "X"
    assert caplog.text.count("the audit callback failed at request") == 2
    assert "LookupError: disk full" in caplog.text


async def test_what_comes_too_late_is_on_record_too():
    written = Written()
    coordinator = SamplingCoordinator(Person(), audit=written)
    with pytest.raises(ShutdownError):
        await coordinator.generate(ask("early"))
    async with coordinator:
        await coordinator.drain()
        with pytest.raises(ShutdownError):
            await coordinator.generate(ask("late"))
    assert written.stories() == [["asked", "cancelled"]] * 2


async def test_the_cost_of_a_backend_without_a_meter_is_on_record():
    class Bare:
        async def generate(self, request):
            return Generation("x", usage=Usage(1, 7, 3))

    written = Written()
    async with SamplingCoordinator(Bare(), window=0, audit=written) as coordinator:
        await coordinator.generate(ask("x"))
    assert [record.usage for record in written.records] == [Usage(), Usage(1, 7, 3)]


# --- hooks ----------------------------------------------------------------------------------------


def told(plugin: RecordingPlugin) -> list[str]:
    return [payload.status for payload in plugin.of(HookType.COALESCED_REQUEST)]


async def test_plugins_of_the_process_hear_of_it():
    recording = RecordingPlugin()
    register(recording)
    try:
        async with SamplingCoordinator(Person()) as coordinator:
            await gather(coordinator, *asks(2, call="call", iteration=7, subsample=2))
    finally:
        unregister(recording)
    assert sorted(told(recording)) == ["asked", "asked", "ok", "ok"]
    first, last = recording.payloads[0], recording.payloads[-1]
    assert (first.sampling_id, first.iteration, first.subsample) == ("call", 7, 2)
    assert (first.strategy, first.purpose, first.batch_id, first.batch_size) == (
        "",
        "generate",
        None,
        0,
    )
    assert (last.batch_size, last.waited, last.error) == (2, 5.0, None)
    assert last.usage.input_tokens == 50


async def test_plugins_of_a_scope_and_of_the_coordinator_hear_of_it():
    scoped, own = RecordingPlugin(), RecordingPlugin()
    async with SamplingCoordinator(Person(), window=0, plugins=[own]) as coordinator:
        with PluginSet("scope", [scoped]):
            await coordinator.generate(ask("inside"))
        await coordinator.generate(ask("outside"))
    assert told(scoped) == ["asked", "ok"]
    assert told(own) == ["asked", "ok"] * 2


@pytest.mark.parametrize("later", [0, 0.75])
async def test_handlers_run_in_order_and_never_in_the_way(later):
    heard = []

    @hook(HookType.COALESCED_REQUEST, timeout=60)
    async def slow(payload):
        await anyio.sleep(0.5)
        heard.append(payload.status)

    async with SamplingCoordinator(Person(), window=0, plugins=[slow]) as coordinator:
        await coordinator.generate(ask("x"))
        assert anyio.current_time() == 0
        assert heard == []
        await anyio.sleep(later)
    assert heard == ["asked", "ok"]
    assert anyio.current_time() == pytest.approx(1)


async def test_closing_waits_for_hooks_two_seconds_at_most(caplog):
    @hook(HookType.COALESCED_REQUEST, timeout=60)
    async def endless(payload):
        await anyio.sleep_forever()

    @hook(HookType.COALESCED_REQUEST, timeout=60, mode=HookMode.BACKGROUND)
    async def behind(payload):
        await anyio.sleep_forever()

    for plugin, says in ((endless, "2 records not delivered"), (behind, "2 background hooks cut")):
        began = anyio.current_time()
        async with SamplingCoordinator(Person(), window=0, plugins=[plugin]) as coordinator:
            await coordinator.generate(ask("x"))
        assert anyio.current_time() - began == pytest.approx(2)
        assert says in caplog.text


async def test_hooks_hear_of_those_who_are_settled_at_the_end():
    recording = RecordingPlugin()
    async with anyio.create_task_group() as tasks:
        with pytest.raises(LookupError):
            async with SamplingCoordinator(Person(), plugins=[recording]) as coordinator:
                tasks.start_soon(gather, coordinator, *asks(2))
                await anyio.sleep(1)
                raise LookupError("mine")
    assert told(recording) == ["asked", "asked", "cancelled", "cancelled"]


async def test_what_a_handler_raises_is_logged(caplog):
    class Broken(Plugin):
        @hook(HookType.COALESCED_REQUEST)
        async def first(self, payload):
            raise LookupError("bug")

        @hook(HookType.COALESCED_REQUEST, mode=HookMode.OBSERVE)
        async def second(self, payload):
            raise LookupError("another bug")

    async with SamplingCoordinator(Person(), window=0, plugins=[Broken()]) as coordinator:
        assert (await coordinator.generate(ask("x"))).text == "X"
    assert caplog.text.count("plugin Broken failed at coalesced_request") == 4


@pytest.mark.parametrize("mode", list(HookMode))
async def test_an_interrupt_in_a_hook_is_raised_at_the_end(mode):
    class Interrupt(KeyboardInterrupt):
        pass

    @hook(HookType.COALESCED_REQUEST, mode=mode)
    async def interrupted(payload):
        raise Interrupt

    with pytest.raises(Interrupt):
        async with SamplingCoordinator(Person(), window=0, plugins=[interrupted]) as coordinator:
            assert (await coordinator.generate(ask("x"))).text == "X"


async def test_an_interrupt_of_plugins_that_are_gone_is_raised_at_the_end():
    class Interrupt(KeyboardInterrupt):
        pass

    @hook(HookType.COALESCED_REQUEST)
    async def interrupted(payload):
        raise Interrupt

    with pytest.raises(Interrupt):
        async with SamplingCoordinator(Person(), window=0) as coordinator:
            with PluginSet("first", [interrupted]):
                await coordinator.generate(ask("x"))
            for number in range(MAX_RUNS):
                with PluginSet(f"set {number}", [RecordingPlugin()]):
                    await coordinator.generate(ask("x"))
            await anyio.sleep(0.1)


async def test_nothing_is_kept_of_plugins_that_are_gone():
    async with SamplingCoordinator(Person(), window=0) as coordinator:
        for number in range(MAX_RUNS + 8):

            @hook(HookType.COALESCED_REQUEST, mode=HookMode.BACKGROUND, timeout=60)
            async def behind(payload):
                await anyio.sleep_forever()

            with PluginSet(f"set {number}", [behind]):
                await coordinator.generate(ask("x"))
        await anyio.sleep(0.1)
        assert len(coordinator._auditor._runs) == MAX_RUNS
    assert anyio.current_time() == pytest.approx(2.1)


async def test_a_coordinator_that_is_entered_again_tells_again():
    heard = []

    @hook(HookType.COALESCED_REQUEST, mode=HookMode.BACKGROUND)
    async def behind(payload):
        heard.append(payload.status)

    recording = RecordingPlugin()
    coordinator = SamplingCoordinator(Person(), window=0, plugins=[recording, behind])
    for _ in range(2):
        async with coordinator:
            await coordinator.generate(ask("x"))
    assert told(recording) == heard == ["asked", "ok"] * 2


async def test_an_interrupt_is_raised_once():
    class Interrupt(KeyboardInterrupt):
        pass

    strikes = [Interrupt()]

    @hook(HookType.COALESCED_REQUEST)
    async def interrupted(payload):
        if strikes:
            raise strikes.pop()

    coordinator = SamplingCoordinator(Person(), window=0, plugins=[interrupted])
    with pytest.raises(Interrupt):
        async with coordinator:
            await coordinator.generate(ask("x"))
    async with coordinator:
        await coordinator.generate(ask("x"))
