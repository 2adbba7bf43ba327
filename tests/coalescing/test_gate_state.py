"""The state that a gate keeps from one process to the next."""

from __future__ import annotations

import json
import shutil
import signal
import time
from datetime import UTC, datetime

import pytest
from command_line import python

from mellea_like.coalescing import RerunGate
from mellea_like.coalescing.rerun.gate_state import GateState
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


@pytest.fixture
def file(tmp_path):
    return tmp_path / "gate.json"


# --- files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "state"),
    [
        ({}, GateState()),
        ({"ticks": 3, "added_later": [1, 2]}, GateState(ticks=3)),
        ({"last_tick": None, "last_trigger": "x"}, GateState(last_trigger="x")),
        ({"in_flight": True, "pending": 9, "ticks": 1}, GateState(ticks=1)),
        ({"last_tick": "2026-05-04T03:02:01Z"}, GateState(last_tick=LAST)),
        (json.loads(FULL.model_dump_json()), FULL),
    ],
)
def test_older_and_newer_files_are_read_and_written(fields, state, file):
    file.write_text(json.dumps(fields), encoding="utf-8")
    assert GateState.load(file) == state
    state.save(file)
    assert GateState.load(file) == state
    # A crash can't block the next process.
    assert not {"in_flight", "pending"} & set(json.loads(file.read_text(encoding="utf-8")))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "Expecting value"),
        ("[1, 2]", "Input should be a valid dictionary"),
        ('{"ticks": -1}', "ticks: Input should be greater than or equal to 0"),
        ('{"last_tick": "2026-05-04T03:02:01"}', "last_tick: Input should have timezone info"),
        ("[" * 100_000, "while decoding"),
        ("\x80{}", "utf-8"),
    ],
)
async def test_a_damaged_file_is_told_when_the_gate_is_entered(text, says, file):
    file.write_text(text, encoding="latin-1")
    gate = RerunGate(nothing, state=file)
    with pytest.raises(CoalescingError) as caught:
        await gate.__aenter__()
    assert str(caught.value).startswith(f"the gate's state in {file} is damaged (")
    assert str(caught.value).endswith("): delete it to start afresh")
    assert says.lower() in str(caught.value).lower()
    file.unlink()
    async with gate:
        await gate.request()


def test_a_new_file_is_private_and_an_old_one_keeps_its_permissions_and_links(tmp_path):
    new, old, link = tmp_path / "new.json", tmp_path / "old.json", tmp_path / "link.json"
    FULL.save(new)
    assert new.stat().st_mode & 0o777 == 0o600
    old.write_text("{}", encoding="utf-8")
    old.chmod(0o644)
    link.symlink_to(old)
    FULL.save(link)
    assert old.stat().st_mode & 0o777 == 0o644
    assert link.is_symlink()
    assert GateState.load(old) == FULL


def test_a_file_is_written_as_a_whole_or_not_at_all(file, tmp_path):
    file.mkdir()  # Nothing can be put in its place.
    with pytest.raises(OSError, match=r"gate\.json"):
        FULL.save(file)
    assert [path.name for path in tmp_path.iterdir()] == ["gate.json"]


# --- of a gate ------------------------------------------------------------------------------------


@pytest.mark.allow_blocking
async def test_a_gate_goes_on_from_a_state(file):
    FULL.save(file)
    async with RerunGate(nothing, state=str(file)) as gate:
        assert gate.status() == (False, 0, 0, 23, 7, "a.txt", LAST, 0, 2)
        gate.poke("b.txt")
        gate.poke("c.txt")
        before = datetime.now(UTC)
        await gate.request("c.txt")
    state = GateState.load(file)
    assert state.last_tick is not None
    assert before <= state.last_tick <= datetime.now(UTC)
    assert (state.ticks, state.submissions, state.coalesced) == (8, 33, 25)
    assert (state.last_trigger, state.failed) == ("b.txt", 2)


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
        await anyio.sleep(float(sys.argv[3]))
        print("not yet", gate.status().window > 50)
        await gate.abort()

anyio.run(main, backend=sys.argv[2])
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="there is no such signal here")
def test_a_tick_that_kills_its_process_counts_for_the_interval_of_the_next(file):
    ways = (("asyncio", "30"), ("trio", "0.1"))
    runs = [python(DEADLY, str(file), *way) for way in ways]
    assert [run.stdout for run in runs] == ["tick\n", "not yet True\n"]
    assert [run.returncode for run in runs] == [-signal.SIGKILL, 0]


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


# A clock that was set doesn't prolong the interval.
@pytest.mark.allow_blocking
@pytest.mark.parametrize(("ago", "waits"), [(60, 40), (1000, 0), (-1000, 100)])
async def test_the_interval_counts_a_tick_of_an_earlier_process(virtual_clock, file, ago, waits):
    GateState(last_tick=datetime.fromtimestamp(time.time() - ago, UTC)).save(file)
    async with RerunGate(nothing, min_interval=100, state=file) as gate:
        await gate.request()
    assert virtual_clock.now == pytest.approx(waits, abs=5)
