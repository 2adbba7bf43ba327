"""`GateState`: what a gate keeps from one process to the next."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta

import anyio
import pytest

from mellea_like.coalescing import GateState, RerunGate
from mellea_like.errors import CoalescingError

pytestmark = pytest.mark.anyio

LAST = datetime(2026, 5, 4, 3, 2, 1, tzinfo=UTC)
FULL = GateState(
    last_event=LAST,
    last_tick=LAST,
    last_trigger="a.txt",
    ticks=7,
    failed=2,
    submissions=30,
    coalesced=23,
)


async def nothing() -> None:
    pass


# --- files ----------------------------------------------------------------------------------------


def test_a_state_is_read_as_it_was_written(tmp_path):
    FULL.save(tmp_path / "gate.json")
    assert GateState.load(tmp_path / "gate.json") == FULL
    assert GateState.load(str(tmp_path / "gate.json")) == FULL


def test_a_file_that_is_not_there_is_a_fresh_state(tmp_path):
    assert GateState.load(tmp_path / "none.json") == GateState()


@pytest.mark.parametrize(
    ("fields", "state"),
    [
        ({}, GateState()),
        ({"ticks": 3}, GateState(ticks=3)),
        ({"ticks": 3, "added_later": [1, 2]}, GateState(ticks=3)),
        ({"last_tick": None, "last_trigger": "x"}, GateState(last_trigger="x")),
        ({"in_flight": True, "pending": 9, "ticks": 1}, GateState(ticks=1)),
        ({"in_flight": "since noon", "pending": None}, GateState()),
        ({"last_tick": "2026-05-04T03:02:01Z"}, GateState(last_tick=LAST)),
    ],
)
def test_older_and_newer_files_are_read_and_what_is_transient_is_reset(fields, state, tmp_path):
    file = tmp_path / "gate.json"
    file.write_text(json.dumps(fields), encoding="utf-8")
    assert GateState.load(file) == state


def test_what_is_transient_is_never_written(tmp_path):
    file = tmp_path / "gate.json"
    GateState(ticks=1, in_flight=True, pending=3).save(file)
    assert set(json.loads(file.read_text(encoding="utf-8"))) == {
        "last_event",
        "last_tick",
        "last_trigger",
        "ticks",
        "failed",
        "submissions",
        "coalesced",
    }


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "Expecting value"),
        ('{"ticks": 3', "Expecting"),
        ("[1, 2]", "Input should be a valid dictionary"),
        ('{"ticks": -1}', "ticks: Input should be greater than or equal to 0"),
        ('{"ticks": "many"}', "ticks: Input should be a valid integer"),
        ('{"last_tick": "2026-05-04T03:02:01"}', "last_tick: Input should have timezone info"),
        ("[" * 100_000, "recursion"),
        ("\x80{}", "utf-8"),
    ],
)
def test_a_damaged_file_is_a_clear_error(text, says, tmp_path):
    file = tmp_path / "gate.json"
    file.write_text(text, encoding="latin-1")
    with pytest.raises(CoalescingError) as caught:
        GateState.load(file)
    assert str(caught.value).startswith(f"the gate's state in {file} is damaged (")
    assert str(caught.value).endswith("): delete it to start afresh")
    assert says.lower() in str(caught.value).lower()


def test_a_new_file_is_private_and_an_old_one_keeps_its_permissions(tmp_path):
    new, old = tmp_path / "new.json", tmp_path / "old.json"
    FULL.save(new)
    assert new.stat().st_mode & 0o777 == 0o600
    old.write_text("{}", encoding="utf-8")
    old.chmod(0o644)
    FULL.save(old)
    assert old.stat().st_mode & 0o777 == 0o644


def test_a_file_is_written_as_a_whole_or_not_at_all(tmp_path):
    place = tmp_path / "gate.json"
    place.mkdir()  # Nothing can be put in its place.
    with pytest.raises(OSError, match=r"gate\.json"):
        FULL.save(place)
    assert [path.name for path in tmp_path.iterdir()] == ["gate.json"]
    with pytest.raises(FileNotFoundError):
        FULL.save(tmp_path / "no directory" / "gate.json")


def test_a_link_stays_one(tmp_path):
    (tmp_path / "real.json").write_text("{}", encoding="utf-8")
    (tmp_path / "link.json").symlink_to(tmp_path / "real.json")
    FULL.save(tmp_path / "link.json")
    assert (tmp_path / "link.json").is_symlink()
    assert GateState.load(tmp_path / "real.json") == FULL


# --- of a gate ------------------------------------------------------------------------------------


async def test_a_gate_goes_on_from_a_state_and_says_its_own():
    async with RerunGate(nothing, state=FULL) as gate:
        assert gate.status() == (False, 0, 0, 23, 7, "a.txt", LAST, 0)
        gate.poke("b.txt")
        gate.poke("c.txt")
        pending = gate.state()
        assert (pending.pending, pending.in_flight) == (2, False)
        before = datetime.now(UTC)
        await gate.request("c.txt")
    state = gate.state()
    assert state.last_tick is not None
    assert before <= state.last_tick <= datetime.now(UTC)
    assert state == FULL.model_copy(
        update={
            "last_event": state.last_event,
            "last_tick": state.last_tick,
            "last_trigger": "b.txt",
            "ticks": 8,
            "submissions": 33,
            "coalesced": 25,
        }
    )


async def test_the_state_of_a_tick_says_that_it_is_in_flight():
    states = []

    async def tick():
        states.append(gate.state())

    async with RerunGate(tick) as gate:
        await gate.request()
    assert [state.in_flight for state in states] == [True]


async def test_a_gate_keeps_its_state_in_a_file(tmp_path):
    file = tmp_path / "gate.json"
    for number in (1, 2):
        async with RerunGate(nothing, state=file) as gate:
            await gate.request(f"run {number}")
            saved = await anyio.to_thread.run_sync(GateState.load, file)
        assert (saved.ticks, saved.last_trigger) == (number, f"run {number}")
        assert saved.submissions == number


async def test_a_reason_that_is_no_unicode_is_kept_as_far_as_that_goes(tmp_path):
    file = tmp_path / "gate.json"  # Of a file whose name is not UTF-8, say.
    async with RerunGate(nothing, state=file) as gate:
        await gate.request("\udcff.txt")
    saved = await anyio.to_thread.run_sync(GateState.load, file)
    assert (saved.ticks, saved.last_trigger) == (1, "\\udcff.txt")


async def test_a_tick_is_on_record_before_it_begins(tmp_path):
    file = tmp_path / "gate.json"

    async def tick():
        return await anyio.to_thread.run_sync(GateState.load, file)

    async with RerunGate(tick, state=file) as gate:
        saved = await gate.request("a.txt")
    assert saved == gate.state()
    assert (saved.ticks, saved.submissions, saved.last_trigger) == (1, 1, "a.txt")


DEADLY = """
import os, signal, sys
import anyio
from mellea_like.coalescing import RerunGate

async def tick():
    print("tick", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

async def main():
    async with RerunGate(tick, min_interval=60, state=sys.argv[1]) as gate:
        gate.poke()
        await anyio.sleep(0.1)
        print("not yet", gate.status().window > 50)
        await gate.abort()

anyio.run(main, backend=sys.argv[2])
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="there is no such signal here")
def test_a_tick_that_kills_its_process_counts_for_the_interval_of_the_next(tmp_path):
    command = (sys.executable, "-c", DEADLY, str(tmp_path / "gate.json"))
    runs = [
        subprocess.run((*command, backend), capture_output=True, text=True, check=False, timeout=50)
        for backend in ("asyncio", "trio", "asyncio")
    ]
    assert [run.stdout for run in runs] == ["tick\n", "not yet True\n", "not yet True\n"]
    assert [run.returncode for run in runs] == [-signal.SIGKILL, 0, 0]


async def test_the_state_is_written_when_a_tick_fails_or_is_cancelled(tmp_path):
    file = tmp_path / "gate.json"
    began = anyio.Event()

    async def tick(tick):
        if tick.number == 1:
            raise ValueError("broken")
        began.set()
        await anyio.sleep_forever()

    async with RerunGate(tick, state=str(file)) as gate:
        with pytest.raises(ValueError, match="broken"):
            await gate.request()
        gate.poke()
        await began.wait()
        saved = await anyio.to_thread.run_sync(GateState.load, file)
        assert (saved.ticks, saved.failed) == (2, 1)
        await gate.abort()
    saved = await anyio.to_thread.run_sync(GateState.load, file)
    assert (saved.ticks, saved.failed, saved.in_flight) == (2, 1, False)


async def test_a_damaged_file_is_told_when_the_gate_is_entered(tmp_path):
    file = tmp_path / "gate.json"
    file.write_text("?", encoding="utf-8")
    gate = RerunGate(nothing, state=file)
    with pytest.raises(CoalescingError, match="delete it to start afresh"):
        await gate.__aenter__()
    file.unlink()
    async with gate:
        await gate.request()


@pytest.mark.parametrize(
    ("place", "why"),
    [("no directory/gate.json", "No such file or directory"), ("", "Is a directory")],
)
async def test_a_place_where_no_state_can_be_kept_is_told_when_the_gate_is_entered(
    place, why, tmp_path
):
    with pytest.raises(CoalescingError, match=rf"state can't be kept in {tmp_path / place}: {why}"):
        await RerunGate(nothing, state=tmp_path / place).__aenter__()


async def test_a_state_that_cannot_be_written_stops_nothing(tmp_path, caplog):
    directory = tmp_path / "gone"
    directory.mkdir()
    async with RerunGate(nothing, state=directory / "gate.json", name="mine") as gate:
        shutil.rmtree(directory)
        await gate.request()
        await gate.request()
    (first,) = caplog.records  # Once, and not for each tick.
    assert first.getMessage().startswith("mine could not write its state: FileNotFoundError")


async def test_the_interval_counts_a_tick_of_an_earlier_process(virtual_clock):
    earlier = datetime.now(UTC) - timedelta(seconds=60)
    async with RerunGate(nothing, min_interval=100, state=GateState(last_tick=earlier)) as gate:
        await gate.request()
    assert virtual_clock.now == pytest.approx(40, abs=5)


@pytest.mark.parametrize("ahead", [-1000, 1000])
async def test_a_clock_that_was_set_does_not_prolong_the_interval(virtual_clock, ahead):
    then = datetime.fromtimestamp(time.time() + ahead, UTC)
    async with RerunGate(nothing, min_interval=100, state=GateState(last_tick=then)) as gate:
        await gate.request()
    assert virtual_clock.now == pytest.approx(100 if ahead > 0 else 0, abs=5)
