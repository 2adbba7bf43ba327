"""`watch`: a function runs again when files change. Real files, real time."""

from __future__ import annotations

import sys
import time
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from mellea_like.coalescing import Changes, watch

pytestmark = [pytest.mark.anyio, pytest.mark.allow_blocking]

QUIET = 0.2


class Ticks:
    """Notes what each tick was run for, and that none overlaps another."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.hold: anyio.Event | None = None
        self.changes: list[Changes] = []
        self.ended = 0
        self.running = False
        self.fail = 0
        self._changed = anyio.Event()

    async def __call__(self, changes: Changes) -> None:
        assert not self.running
        self.running = True
        self.changes.append(changes)
        self._note()
        try:
            await anyio.sleep(self.seconds)
            if self.hold is not None:
                await self.hold.wait()
            if len(self.changes) <= self.fail:
                raise ValueError("broken")
        finally:
            self.running = False
            self.ended += 1
            self._note()

    def _note(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    async def until(self, number: int, *, began: bool = False) -> Changes:
        """Wait for the end of a tick, or its beginning."""
        with anyio.fail_after(20):
            while (len(self.changes) if began else self.ended) < number:
                await self._changed.wait()
        return self.changes[number - 1]


@asynccontextmanager
async def watching(paths, tick: Ticks, **more):
    """Watch in the background while the block runs, and stop at its end."""
    stop = anyio.Event()
    options = {"quiet": QUIET, "at_start": True, "stop": stop, **more}
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: watch(paths, tick, **options))
        await tick.until(1)
        yield stop
        stop.set()


def names(changes: Changes) -> dict[str, str]:
    return {change.path.name: change.kind for change in changes.files}


def write(path: Path, text: str = "text") -> None:
    path.write_text(text, encoding="utf-8")


async def test_a_tick_at_the_start_and_one_for_each_burst_of_changes(tmp_path):
    write(tmp_path / "a.txt")
    write(tmp_path / "b.txt")
    tick = Ticks()
    async with watching(tmp_path, tick):
        assert tick.changes == [Changes((), rescan=True)]
        write(tmp_path / "a.txt", "changed")
        write(tmp_path / "c.txt")
        (tmp_path / "b.txt").unlink()
        changes = await tick.until(2)
        assert set(names(changes)) == {"a.txt", "b.txt", "c.txt"}
        assert names(changes)["b.txt"] == "deleted"
        assert all(change.path.is_absolute() for change in changes.files)
        assert not changes.rescan
    assert len(tick.changes) == 2


async def test_a_thousand_changes_one_after_the_other_give_one_tick_or_two(tmp_path):
    tick = Ticks()
    async with watching([tmp_path], tick):

        def many() -> int:
            pauses, before = 0, time.monotonic()
            for number in range(1000):
                write(tmp_path / f"{number}.txt")
                if number % 20 == 0:
                    time.sleep(0.015)
                now = time.monotonic()
                pauses += now - before > QUIET / 2
                before = now
            return pauses

        pauses = await anyio.to_thread.run_sync(many)
    seen = {change.path for changes in tick.changes[1:] for change in changes.files}
    assert len(seen) == 1000
    assert 1 <= len(tick.changes) - 1 <= 2 + pauses  # A busy machine makes some.


async def test_changes_during_a_tick_give_one_more_after_it(tmp_path):
    tick = Ticks()
    async with watching(tmp_path, tick):
        tick.hold = anyio.Event()
        write(tmp_path / "first")
        await tick.until(2, began=True)
        for name in ("second", "third", "fourth"):
            write(tmp_path / name)
            await anyio.sleep(1.5 * QUIET)
        await anyio.sleep(1)  # The last of them has arrived by then.
        tick.hold.set()
        assert set(names(await tick.until(3))) == {"second", "third", "fourth"}
    assert len(tick.changes) == 3


async def test_a_named_file_is_followed_when_an_editor_replaces_it(tmp_path):
    file = tmp_path / "prompt.txt"
    write(file)
    write(tmp_path / "beside.txt")
    tick = Ticks()
    async with watching(file, tick):
        for number in (2, 3):
            write(tmp_path / "temporary", f"version {number}")
            (tmp_path / "temporary").replace(file)
            assert set(names(await tick.until(number))) == {"prompt.txt"}
            await anyio.sleep(QUIET)
        write(file, "written in place")
        assert names(await tick.until(4)) == {"prompt.txt": "modified"}
        write(tmp_path / "beside.txt", "not watched")
        await anyio.sleep(3 * QUIET)
    assert len(tick.changes) == 4


async def test_a_directory_that_vanishes_and_comes_back_is_watched_again(tmp_path):
    place = tmp_path / "prompts"
    place.mkdir()
    write(place / "a.txt")
    tick = Ticks()
    async with watching(place, tick):
        (place / "a.txt").unlink()
        place.rmdir()
        assert names(await tick.until(2)) == {"a.txt": "deleted", "prompts": "deleted"}
        await anyio.sleep(0.7)
        place.mkdir()
        write(place / "b.txt")
        assert names(await tick.until(3)) == {"prompts": "added", "b.txt": "added"}
        await anyio.sleep(0.7)
        write(place / "c.txt")
        assert "c.txt" in names(await tick.until(4))


@pytest.mark.parametrize("seconds", [0.3, 0.9])
async def test_the_last_change_before_the_stop_is_dealt_with(tmp_path, seconds):
    tick = Ticks()
    async with watching(tmp_path, tick) as stop:
        await anyio.sleep(seconds)  # Before and after the first look at what changed meanwhile.
        write(tmp_path / "last.txt")
        stop.set()  # Before the system's notice can have arrived.
    assert [set(names(changes)) for changes in tick.changes] == [set(), {"last.txt"}]


async def test_ignore_forgets_what_changes_during_a_tick(tmp_path):
    tick = Ticks()
    async with watching(tmp_path, tick, on_busy="ignore"):
        tick.seconds = 1
        write(tmp_path / "first.txt")
        await tick.until(2, began=True)
        write(tmp_path / "missed.txt")
        await tick.until(2)
        tick.seconds = 0
        write(tmp_path / "later.txt")
        assert set(names(await tick.until(3))) == {"later.txt"}


async def test_without_a_quiet_time_a_change_is_told_at_once(tmp_path):
    tick = Ticks()
    async with watching(tmp_path, tick, quiet=0, max_wait=60):
        while len(tick.changes) == 1:  # It is never quiet for long before it is told.
            write(tmp_path / "a.txt")
            await anyio.sleep(0.02)
        assert "a.txt" in names(await tick.until(2))


async def test_it_keeps_its_state_beside_the_files_and_tells_its_status(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link.json").symlink_to(tmp_path / "real" / "gate.json")
    tick, told = Ticks(), []
    kept = {"state": tmp_path / "link.json", "on_status": told.append}
    async with watching(tmp_path, tick, **kept):
        write(tmp_path / "a.txt")
        await tick.until(2)
        await anyio.sleep(3 * QUIET + 0.2)
    assert len(tick.changes) == 2  # Its own state file does not count as changed.
    assert [status.in_flight for status in told] == [False, True, False] * 2
    assert told[-1].last_trigger == "a.txt added"
    again = Ticks()
    with anyio.move_on_after(0.5):
        await watch(tmp_path, again, at_start=True, min_interval=60, **kept)
    assert not again.changes
    assert (told[-1].ticks, round(told[-1].window, -1)) == (2, 60)


async def test_what_cannot_be_watched_is_told_at_once(tmp_path, caplog):
    with pytest.raises(FileNotFoundError, match=r"can't watch .*/missing: there is no such file"):
        await watch(tmp_path / "missing", Ticks())
    with pytest.raises(ValueError, match="at least one path"):
        await watch([], Ticks())
    with pytest.raises(TypeError, match="tick must be an async function, not 3"):
        await watch(tmp_path, 3)  # type: ignore[arg-type]
    stop = anyio.Event()
    await watch(tmp_path, stop.set, at_start=True, stop=stop)  # type: ignore[arg-type]
    assert "the tick of watch must be an async function; it returned None" in caplog.text
    with pytest.raises(ValueError, match="quiet must be at least 0 seconds and finite, not -1"):
        await watch(tmp_path, Ticks(), quiet=-1)


async def test_without_watchfiles_it_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "watchfiles", None)
    with pytest.raises(
        ImportError, match=r"^watch needs watchfiles: pip install 'mellea-like.watch"
    ):
        await watch(tmp_path, Ticks())
