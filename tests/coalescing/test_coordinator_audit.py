"""Audit records of requests, through a callback and as hook events."""

from __future__ import annotations

import anyio
import pytest
from joint_kit import Person, ask, asks, entry, gather, text_of

from mellea_like.coalescing import AuditRecord, RequestStatus, SamplingCoordinator
from mellea_like.coalescing.coordinator.audit import status_of
from mellea_like.core.generation import Generation, Usage
from mellea_like.errors import BackendUnavailable, Expired, MissingAnswer, ShutdownError, Stopped

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("virtual_clock")]


@pytest.mark.parametrize(
    ("result", "status"),
    [
        (Generation("x"), "ok"),
        (Generation("x", finish_reason="length"), "ok"),
        (Generation("x", finish_reason="refusal"), "refused"),
        (Generation("x", finish_reason="content_filter"), "refused"),
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
        await anyio.sleep(1)  # So that no request was made at 0.
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
