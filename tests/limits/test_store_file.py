"""The store in a file: other processes, dead ones, and files that are no store."""

from __future__ import annotations

import os
import pickle
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from math import inf
from pathlib import Path

import anyio
import pytest

from mellea_like.errors import MelleaError, StoreError
from mellea_like.limits import Budget, RateLimiter, SQLiteStore, sqlite_file, sqlite_store
from mellea_like.limits.budget_accounts import Amounts
from mellea_like.limits.owner_locks import OwnerLocks

FREE = (inf, inf, inf, inf)
ZERO = Amounts()

HOLDER = """
import sys, time
import anyio
from mellea_like.limits import SQLiteStore
from mellea_like.limits.budget_accounts import Amounts

store = SQLiteStore(sys.argv[1])

async def main():
    account = store.account("a", (float("inf"),) * 4)
    held = await store.reserve([(account, Amounts(1, 0, 10))])
    held.settle([Amounts(1, 0, 7)])
    await store.reserve([(account, Amounts(3, 0, 30))])
    print("ready", flush=True)
    if sys.argv[2] == "waits":
        await store.reserve([(store.account("a", (3, *[float("inf")] * 3)), Amounts(1))])

anyio.run(main)
time.sleep(60)
"""


@pytest.fixture
def store(tmp_path):
    made = SQLiteStore(tmp_path / "store.db")
    yield made
    made.close()


@pytest.fixture
def holder(store):
    """Another process that has reserved something, and keeps it."""
    processes = []

    def start(what="holds"):
        command = [sys.executable, "-c", HOLDER, str(store.path), what]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        processes.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def killed(process) -> None:
    process.kill()
    process.wait()


# --- processes ------------------------------------------------------------------------------------


def test_what_is_reserved_counts_everywhere_until_its_process_dies(store, holder):
    account = store.account("a", FREE)
    process = holder()
    assert account.look()[:2] == (Amounts(1, 0, 7), Amounts(3, 0, 30))
    killed(process)
    assert account.look()[:2] == (Amounts(1, 0, 7), ZERO)


@pytest.mark.anyio
async def test_who_waits_goes_when_the_process_dies_that_holds_the_room(store, holder):
    process = holder()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(store.reserve, [(store.account("a", (4, inf, inf, inf)), Amounts(3))])
        await anyio.sleep(0.3)
        assert store.account("a", FREE).look().waiting == 1
        process.kill()
    assert store.account("a", FREE).look().reserved == Amounts(3)


@pytest.mark.anyio
async def test_the_place_of_a_process_that_died_waiting_holds_up_nobody(store, holder):
    process = holder("waits")
    await anyio.sleep(0.3)  # It takes a place.
    account = store.account("a", (10, inf, inf, inf))
    with anyio.move_on_after(0.3):
        await store.reserve([(account, Amounts(1))])
        pytest.fail("the other one came first")
    process.kill()
    with anyio.fail_after(10):
        await store.reserve([(account, Amounts(1))])


async def _reserved(store, amounts):
    return await store.reserve([(store.account("a", FREE), amounts)])


def test_a_request_that_has_room_tries_no_locks_of_other_processes(store, holder, monkeypatch):
    holder()
    store.check()
    # With 16 processes, trying their locks took as long as everything else.
    monkeypatch.setattr(OwnerLocks, "lives", lambda *_: pytest.fail("a lock was tried"))
    anyio.run(_reserved, store, Amounts(1)).settle([Amounts(1)])


def test_a_forked_child_has_no_reservations_and_ends_none(store):
    held = anyio.run(_reserved, store, Amounts(1))
    child = os.fork()
    if not child:
        held.settle([Amounts(1)])
        in_use = store.account("a", FREE).in_use
        anyio.run(_reserved, store, Amounts(5))
        os._exit(in_use)
    assert os.waitpid(child, 0)[1] == 0
    assert store.account("a", FREE).look()[:2] == (ZERO, Amounts(1))
    held.settle([Amounts(2)])
    assert store.account("a", FREE).look()[:2] == (Amounts(2), ZERO)


def test_a_parent_that_dies_gives_back_what_it_held_though_its_child_lives(store):
    program = """if True:
        import os, sys, time, anyio
        from mellea_like.limits import SQLiteStore
        from mellea_like.limits.budget_accounts import Amounts
        store = SQLiteStore(sys.argv[1])
        anyio.run(store.reserve, [(store.account("a", (float("inf"),) * 4), Amounts(1))])
        if os.fork():
            os.kill(os.getpid(), 9)
        print(os.getpid(), flush=True)
        sys.stdin.read()
    """
    command = [sys.executable, "-c", program, str(store.path)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        assert int(process.stdout.readline())
        process.wait()
        assert store.account("a", FREE).look().reserved == ZERO


def test_a_copy_is_the_same_file_and_two_of_a_process_share_it(store):
    anyio.run(_reserved, store, Amounts(1))
    limiter = pickle.loads(
        pickle.dumps(RateLimiter(requests_per_minute=5, store=store, name="rate"))
    )
    copy = limiter._store
    anyio.run(_reserved, copy, Amounts(2))
    assert store.account("a", FREE).look().reserved == Amounts(3)
    copy.close()  # The locks that the process holds on one file go together.
    code = "import sys; from mellea_like.limits import SQLiteStore as S;"
    code += "print(S(sys.argv[1]).account('a', (9,) * 4).look().reserved.requests)"
    command = [sys.executable, "-c", code, str(store.path)]
    assert subprocess.check_output(command, text=True) == "1\n"


def test_sums_are_read_while_another_thread_begins_to_wait(store):
    class Busy(str):
        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other):  # The other thread's step comes in the middle of the reading.
            store._queues[object(), "b"] = {}
            return False

    store._queues[object(), Busy("c")] = {}
    assert store.account("a", FREE).look().waiting == 0


def test_a_store_that_was_closed_charges_what_is_settled_later_and_goes_on(store):
    held = anyio.run(_reserved, store, Amounts(5))
    store.close()
    store.close()
    assert store.account("a", FREE).look().reserved == ZERO
    held.settle([Amounts(2)])
    assert store.account("a", FREE).look()[:2] == (Amounts(2), ZERO)


def test_a_bucket_is_full_when_the_machine_has_started_again(store):
    bucket = store.bucket("b", 60, 10)
    store._now = lambda: 1e6
    anyio.run(store.take, [(bucket, 10)])
    assert anyio.run(store.take, [(bucket, 1)]).seconds == pytest.approx(1)
    store._now = lambda: 5.0
    assert anyio.run(store.take, [(bucket, 10)]).seconds == 0


def test_a_reservation_with_its_settlement_takes_at_most_300_us(store):
    async def main():
        account = store.account("a", FREE)
        await _reserved(store, ZERO)
        took = []
        for _ in range(5):
            began = time.thread_time()
            for _ in range(200):
                held = await store.reserve([(account, Amounts(1, 5, 10, 20))])
                held.settle([Amounts(1, 5, 10, 20)])
            took.append((time.thread_time() - began) / 200)
        return min(took)

    assert anyio.run(main) <= 300e-6


# --- files that can't be used ---------------------------------------------------------------------


def database(path, *statements):
    with closing(sqlite3.connect(path)) as db:
        for statement in statements:
            db.execute(statement)
        db.commit()


FAULTS = {
    "another application's": (
        lambda path: database(path, "CREATE TABLE t (x)"),
        "isn't a store: use another path",
    ),
    "of a later version": (
        lambda path: database(
            path,
            "CREATE TABLE t (x)",
            f"PRAGMA application_id = {sqlite_file.APPLICATION_ID}",
            "PRAGMA user_version = 99",
        ),
        "has format version 99",
    ),
    "a text": (
        lambda path: path.write_text("hello " * 500),
        "neither a store nor any other SQLite database",
    ),
    "a folder": (lambda path: path.mkdir(), "can't be opened|unable to open"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_file_that_is_no_store_is_named_and_left_as_it_is(tmp_path, fault):
    make, says = FAULTS[fault]
    path = tmp_path / "other.db"
    make(path)
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(StoreError, match=rf"store {path}: .*({says})"):
        SQLiteStore(path).check()
    shown = repr(Budget(requests=5, store=SQLiteStore(path), name="a"))
    assert shown == "<Budget 'a': requests=5; its store can't be read>"
    with pytest.raises(MelleaError, match=r"other\.db"):
        anyio.run(_reserved, SQLiteStore(path), Amounts(1))
    assert before is None or path.read_bytes() == before


def test_a_damaged_file_is_named(store):
    anyio.run(_reserved, store, Amounts(1))
    store.close()
    with store.path.open("r+b") as file:
        file.seek(1024)
        file.write(b"\xff" * 20_000)
    with pytest.raises(StoreError, match=r"store\.db: it is damaged"):
        anyio.run(_reserved, store, Amounts(1))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_file_that_can_not_be_written_is_named(store):
    store.check()
    store.close()
    store.path.chmod(0o400)
    with pytest.raises(StoreError, match="it can't be written"):
        store.check()


@pytest.mark.anyio
async def test_a_file_that_is_locked_is_waited_for(store, monkeypatch):
    store.check()
    with closing(sqlite3.connect(store.path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_reserved, store, Amounts(1))
            await anyio.sleep(0.2)
            other.execute("ROLLBACK")
        other.execute("BEGIN EXCLUSIVE")
        monkeypatch.setattr(sqlite_store, "BUSY_SECONDS", 0.1)
        with pytest.raises(StoreError, match=r"store\.db: another program has locked it"):
            await _reserved(store, Amounts(1))
    assert store.account("a", FREE).look().reserved == Amounts(1)


def test_what_can_not_be_settled_now_is_settled_later_and_told_once(store, caplog, monkeypatch):
    monkeypatch.setattr(sqlite_store, "BUSY_SECONDS", 0.1)
    held = [anyio.run(_reserved, store, Amounts(1)) for _ in range(4)]
    with closing(sqlite3.connect(store.path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        for n, one in enumerate(held):
            one.settle([Amounts(n)], n == 3)
        other.execute("ROLLBACK")
    assert [record.message.count(str(store.path)) for record in caplog.records] == [1]
    anyio.run(_reserved, store, Amounts(7))
    assert store.account("a", FREE).look()[:3] == (Amounts(6), Amounts(7), 1)


def test_the_file_is_its_owners_only(store):
    store.check()
    for suffix in ("", "-owners"):
        assert Path(f"{store.path}{suffix}").stat().st_mode & 0o777 == 0o600
