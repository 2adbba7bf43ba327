"""One process at a time writes to a journal, and a dead one leaves no lock behind."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import anyio
import pytest
from anyio import to_thread
from journal_kit import HOLD, IDENTITY, bytes_beside, child, items_of, run_of, write_item, write_run

from mellea_like.batch import Journal
from mellea_like.batch.journal.writer import JournalLock
from mellea_like.errors import JournalError

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    """Run on one event loop only: files are used in threads, so the loop makes no difference."""
    return "asyncio"


@pytest.fixture
def lock(path: Path) -> Path:
    return path.with_name("run.db-lock")


async def test_another_process_is_refused_with_the_first_one_s_id_until_that_is_killed(path):
    with child(HOLD, str(path)) as first:
        with pytest.raises(JournalError, match=rf"in use by process {first.pid}:"):
            async with Journal(path).open(IDENTITY):
                pass
        # Reading needs no lock.
        assert (await run_of(path))["ended"] is None
        assert [item["status"] for item in await items_of(path)] == ["passed"]
        first.send_signal(signal.SIGKILL)
        first.wait()
        assert path.with_name("run.db-lock").exists()
        async with Journal(path).open(IDENTITY) as store:
            assert [item.id for item in await store.lookup(0, 9)] == [0]
    assert set(bytes_beside(path)) == {"run.db"}


async def test_a_second_opening_in_the_same_process_is_refused_and_the_first_goes_on(path):
    async with Journal(path).open(IDENTITY) as store:
        for journal in (Journal(path), Journal(path.parent / "." / "run.db", resume=False)):
            with pytest.raises(JournalError, match=rf"by this process \({os.getpid()}\) already"):
                async with journal.open(IDENTITY):
                    pass
        await write_item(store, 0)
        with pytest.raises(JournalError, match="by this process"):
            async with Journal(path).open(IDENTITY):
                pass
    assert len(await items_of(path)) == 1


async def test_a_forked_child_does_not_hold_its_parent_s_lock(path):
    holder = """
        import os, sys
        from pathlib import Path
        from mellea_like.batch.journal.writer import JournalLock

        lock = JournalLock(Path(sys.argv[1]))
        if os.fork():
            os._exit(0)
        lock.release()  # Of a lock that is not its own: nothing happens.
        assert Path(sys.argv[1] + "-lock").exists()
        print("forked", flush=True)
        sys.stdin.readline()
    """
    with child(holder, str(path)) as parent:
        parent.wait()
        await write_run(path, 1)
    assert len(await items_of(path)) == 1


@pytest.mark.parametrize("content", [b"my notes\n", b"\0" * 500, b"mellea_like journal"])
def test_a_file_that_only_happens_to_be_there_is_left_alone(path, lock, content):
    lock.write_bytes(content)
    with pytest.raises(JournalError, match="that is something else"):
        JournalLock(path)
    assert lock.read_bytes() == content


@pytest.mark.parametrize("target", ["victim", "nowhere"])
async def test_a_symbolic_link_in_its_place_is_not_followed(path, lock, target):
    path.with_name("victim").write_bytes(b"")
    lock.symlink_to(path.with_name(target))
    with pytest.raises(JournalError, match=r"symbolic links: .*run\.db-lock"):
        await write_run(path, 1)
    assert not path.with_name("nowhere").exists()
    assert path.with_name("victim").read_bytes() == b""


def test_a_file_whose_holder_removes_it_at_that_moment_is_not_the_lock(path, lock, monkeypatch):
    first = JournalLock(path)
    real = os.open

    def late(*args):
        descriptor = real(*args)
        first.release()
        return descriptor

    monkeypatch.setattr(os, "open", late)
    second = JournalLock(path)
    assert os.path.samestat(lock.stat(), os.fstat(second._descriptor))
    second.release()


async def test_many_who_come_at_once_are_one_writer_and_refusals(path):
    holders: list[JournalLock] = []
    refused: list[JournalError] = []

    def come_and_go() -> None:
        for _ in range(50):
            try:
                held = JournalLock(path)
            except JournalError as exc:
                refused.append(exc)
                continue
            holders.append(held)
            assert len(holders) == 1
            holders.remove(held)
            held.release()

    async with anyio.create_task_group() as tasks:
        for _ in range(4):
            tasks.start_soon(to_thread.run_sync, come_and_go)
    assert not holders
    assert all("in use" in str(exc) for exc in refused)
