"""If the disk fails, a run stops with an error, and can be resumed when the disk works again."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
from contextlib import closing, contextmanager
from pathlib import Path

import anyio
import pytest
from anyio.lowlevel import checkpoint
from journal_kit import (
    IDENTITY,
    check_takes_nothing,
    child_code,
    finish,
    integrity,
    run_of,
    sampled,
    write_item,
    write_run,
)
from torn_kit import ITEMS, tear, write

from mellea_like.batch import Journal, read_items
from mellea_like.errors import JournalError

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    """Run on one event loop only: files are used in threads, so the loop makes no difference."""
    return "asyncio"


async def go_on(path: Path, items: int) -> int:
    """Write those of ``items`` items that the journal lacks; return how many it had."""
    async with Journal(path).open(IDENTITY) as store:
        known = {item.id: item for item in await store.lookup(0, items)}
        for item in range(items):
            stored = known.get(item)
            if stored is None or not stored.finished:
                await write_item(store, item, 1 if stored is None else stored.attempts + 1)
    assert integrity(path) == "ok"
    return sum(item.finished for item in known.values())


async def test_after_a_full_disk_every_call_says_so_at_once(path):
    result = await sampled("x")
    heard: list[str] = []
    with pytest.raises(JournalError, match="disk is full"):
        async with Journal(path).open(IDENTITY) as store:
            assert store._file is not None
            store._file._connection.execute("PRAGMA max_page_count = 10")

            async def item(n: int) -> None:
                store.begin(n, 1, "", "x" * 4000, None)
                with pytest.raises(JournalError, match="disk is full"):
                    await finish(store, n, 1, result)
                heard.append("finish")

            async with anyio.create_task_group() as tasks:
                for n in range(20):
                    tasks.start_soon(item, n)
            assert heard == ["finish"] * 20
            await check_takes_nothing(store, result, "disk is full")
    run = await run_of(path)
    assert run["ended"] is None
    assert run["counts"]["passed"] == 0


async def test_slices_that_could_not_be_written_are_heard_of_at_the_end(path, caplog):
    async def fill(error: Exception | None) -> None:
        async with Journal(path).open(IDENTITY) as store:
            assert store._file is not None
            store._file._connection.execute("PRAGMA max_page_count = 1")
            for n in range(20):
                store.begin(n, 1, "", "x" * 4000, None)
            if error is not None:
                raise error

    with pytest.raises(JournalError, match="disk is full"):
        await fill(None)
    assert not caplog.records
    with pytest.raises(LookupError, match="mine"):
        await fill(LookupError("mine"))
    [record] = caplog.records
    assert "this run is not completely recorded" in record.getMessage()
    assert "disk is full" in record.getMessage()


# --- a disk that is really full, and one that really fails ----------------------------------------

RUN = """
    import sys, anyio
    from pathlib import Path
    from journal_kit import IDENTITY, write_item
    from mellea_like.batch import Journal
    from mellea_like.errors import JournalError

    async def main():
        async with Journal(sys.argv[1]).open(IDENTITY) as store:
            known = {item.id for item in await store.lookup(0, 10_000) if item.finished}
            print("known", len(known), flush=True)
            for item in range(int(sys.argv[2])):
                if item not in known:
                    await write_item(store, item, 2)
                    print("finished", item, flush=True)

    try:
        anyio.run(main)
    except JournalError as exc:
        print("failed", exc, flush=True)
"""


def environment() -> dict[str, str]:
    support = str(Path(__file__).parents[1] / "support")
    hindering = ("COVERAGE_", "COV_CORE_")
    environ = {k: v for k, v in os.environ.items() if not k.startswith(hindering)}
    return environ | {"PYTHONPATH": support}


def lines_of(command: list[str]) -> list[str]:
    done = subprocess.run(
        command,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


def namespaces_work() -> bool:
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return False
    tried = subprocess.run(
        ["unshare", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"], check=False
    )
    return tried.returncode == 0


@pytest.mark.skipif(not namespaces_work(), reason="this machine can't mount a file system")
def test_on_a_small_file_system_that_is_really_full(tmp_path):
    script = """
        set -e
        mount -t tmpfs -o size=300k none "$1"
        "$2" -c "$3" "$1/run.db" 100000
        mount -o remount,size=30m "$1"
        "$2" -c "$3" "$1/run.db" 200
        "$2" -c "$4" "$1/run.db"
        ls "$1"
    """
    python, _, code = child_code(RUN)
    check = "import sys; from journal_kit import integrity; print(integrity(sys.argv[1]))"
    unshared = ["unshare", "--mount", "bash", "-c", script, "bash"]
    command = [*unshared, str(tmp_path), python, code, check]
    lines = lines_of(command)
    failures = [line for line in lines if line.startswith("failed")]
    known = [int(line.split()[1]) for line in lines if line.startswith("known")]
    assert "disk is full" in failures[0]
    assert len(failures) == 1
    first = [line for line in lines[: lines.index(failures[0])] if line.startswith("finished")]
    assert len(first) > 5
    assert known[0] == 0
    assert all(number >= len(first) for number in known[1:])
    assert "finished 199" in lines
    assert lines[-2:] == ["ok", "run.db"]


@contextmanager
def watched_syscalls(call: str, error: str, when: int):
    """Yield the command that makes a program's system call fail from the ``when``th time on."""
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("there is no strace to make system calls fail")
    fault = f"inject={call}:error={error}:when={when}+"
    command = [strace, "-f", "-qqq", "-o", "/dev/null", "-e", f"trace={call}", "-e", fault]
    if subprocess.run([strace, "-o", "/dev/null", "true"], check=False).returncode:
        pytest.skip("strace is not allowed to trace here")
    yield command


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        ("pwrite64", "EIO", "reading or writing it failed"),
        ("pwrite64", "ENOSPC", "the disk is full"),
        ("fdatasync", "EIO", "reading or writing it failed"),
    ],
)
def test_a_write_that_fails_is_no_result_and_the_run_goes_on_later(path, call, error, words):
    anyio.run(write_run, path, 1)
    with watched_syscalls(call, error, 20 if call == "fdatasync" else 50) as prefix:
        lines = lines_of([*prefix, *child_code(RUN), str(path), "1000"])
    assert words in lines[-1]
    finished = len(lines) - 2
    assert finished > 0
    assert anyio.run(go_on, path, 40) >= 1 + finished


# --- a journal that is taken away ---------------------------------------------------------------

TAKEN = r"was moved, deleted or replaced|lock was removed"


@pytest.mark.parametrize("end", ["", "-wal", "-lock"])
@pytest.mark.parametrize("how", ["moved", "deleted", "replaced"])
async def test_a_journal_that_is_taken_away_acknowledges_nothing_more(path, end, how):
    taken = path.with_name(f"run.db{end}")
    result = await sampled("x")
    with pytest.raises(JournalError, match=TAKEN):
        async with Journal(path).open(IDENTITY) as store:
            await write_item(store, 0)
            taken.rename(path.with_name("elsewhere"))
            if how != "moved":
                path.with_name("elsewhere").unlink()
            if how == "replaced":
                taken.write_bytes(b"")
            store.begin(1, 1, "", "", None)
            with pytest.raises(JournalError, match=TAKEN):
                await finish(store, 1, 1, result)


async def test_a_journal_with_a_relative_path_stays_where_it_is(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    async with Journal(path.name).open(IDENTITY) as store:
        await write_item(store, 0)
        monkeypatch.chdir("/")
        await write_item(store, 1)
    assert [file.name for file in tmp_path.iterdir()] == ["run.db"]


async def test_another_program_that_locks_the_database_is_named(path):
    result = await sampled("x")
    with pytest.raises(JournalError, match="another program has locked it"):
        async with Journal(path).open(IDENTITY) as store:
            await write_item(store, 0)
            assert store._file is not None
            store._file._connection.execute("PRAGMA busy_timeout = 50")
            with closing(sqlite3.connect(path, isolation_level=None)) as other:
                other.execute("BEGIN IMMEDIATE")
                store.begin(1, 1, "", "", None)
                with pytest.raises(JournalError, match="another program has locked it"):
                    await finish(store, 1, 1, result)
    assert await go_on(path, 2) == 1


async def test_a_reader_in_the_way_of_tidying_up_does_no_harm(path):
    async with Journal(path).open(IDENTITY) as store:
        for n in range(3):
            await write_item(store, n)
        items = read_items(path)
        await anyio.to_thread.run_sync(next, items)
    assert (await run_of(path))["counts"]["passed"] == 3
    await anyio.to_thread.run_sync(items.close)
    await checkpoint()
    assert await go_on(path, 4) == 3


def test_a_journal_torn_at_any_byte_has_all_that_was_committed_before_and_goes_on(tmp_path):
    seen = tear(write(tmp_path), tmp_path, 97 * 80)
    assert set(seen) == set(range(ITEMS))
