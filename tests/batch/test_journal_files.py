"""Files that aren't journals, or are damaged, are refused with a clear error and aren't changed."""

from __future__ import annotations

import os
import random
import re
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from anyio import to_thread
from journal_kit import IDENTITY, bytes_beside, execute, items_of, run_of, write_item, write_run

from mellea_like.batch import Journal, read_items, read_run
from mellea_like.batch.journal.database import connect, make_durable
from mellea_like.errors import JournalError

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    """Run on one event loop only: files are used in threads, so the loop makes no difference."""
    return "asyncio"


async def refusals(path: Path) -> set[str]:
    """Try to open and read a file that isn't a journal; return the errors. Nothing may change."""
    before = durable(path)
    said: set[str] = set()
    with pytest.raises(JournalError) as refused:
        async with Journal(path).open(IDENTITY):
            pass
    said.add(str(refused.value))
    for read in (run_of, items_of):
        with pytest.raises(JournalError) as refused:
            await read(path)
        said.add(str(refused.value))
    assert durable(path) == before
    assert all(str(path) in message for message in said)
    return said


def durable(path: Path) -> dict[str, bytes]:
    """Return the contents of all files except SQLite's shared memory, which counts readers."""
    return {name: b"" if name == "run.db-shm" else c for name, c in bytes_beside(path).items()}


# --- file modes ---------------------------------------------------------------------------------


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o277])
async def test_only_its_owner_may_read_a_journal_whatever_the_umask(path, umask):
    before = os.umask(umask)
    try:
        async with Journal(path).open(IDENTITY) as store:
            await write_item(store, 0)
            modes = {file.name: file.stat().st_mode & 0o777 for file in path.parent.iterdir()}
    finally:
        os.umask(before)
    assert set(modes) == {"run.db", "run.db-wal", "run.db-shm", "run.db-lock"}
    assert {modes["run.db"], modes["run.db-wal"], modes["run.db-shm"]} == {0o600}
    assert modes["run.db-lock"] & ~0o600 == 0


async def test_names_that_mean_something_in_addresses_are_only_names(tmp_path):
    for name in ("a?mode=memory", "b#c", "d%41", "e f", ":memory:", "ü😀", "file:x", "-x"):
        await write_run(tmp_path / name, 1)
        assert (tmp_path / name).is_file()
        assert len(await items_of(tmp_path / name)) == 1


# --- files that aren't journals -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "empty"),
        (b"x", "an empty file or another application's"),
        (b"SQLite format 3\0", "nor any other SQLite database"),
        (b'{"id": 1}\n' * 2000, "nor any other SQLite database"),
        (b"SQLite format 3\0" * 50, "nor any other SQLite database"),
        (random.Random(1).randbytes(40960), "nor any other SQLite database"),
    ],
)
async def test_a_file_that_is_no_database_is_refused(path, content, words):
    path.write_bytes(content)
    [said] = await refusals(path)
    assert words in said


@pytest.mark.parametrize("application", [0, 0x0F055111, -1])
@pytest.mark.parametrize("wal", [False, True])
async def test_another_application_s_database_is_refused(path, wal, application):
    execute(
        path,
        f"PRAGMA journal_mode = {'WAL' if wal else 'DELETE'}",
        f"PRAGMA application_id = {application}",
        "CREATE TABLE items (x)",
        "INSERT INTO items VALUES (1)",
    )
    [said] = await refusals(path)
    assert "another application" in said


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("PRAGMA user_version = 1", "format version 1.*use an older mellea_like"),
        ("PRAGMA user_version = 6", "format version 6.*use a newer mellea_like"),
        (
            "CREATE TRIGGER t AFTER INSERT ON items BEGIN DELETE FROM items; END",
            "not those of a journal",
        ),
        ("CREATE VIEW v AS SELECT 1", "not those of a journal"),
        ("DROP TABLE slices", "not those of a journal"),
        ("ALTER TABLE items ADD COLUMN more TEXT", "not those of a journal"),
        ("CREATE INDEX i ON items (label)", "not those of a journal"),
    ],
)
async def test_a_journal_of_another_version_or_with_other_tables_is_refused(path, change, words):
    await write_run(path, 1)
    execute(path, change)
    [said] = await refusals(path)
    assert re.search(words, said)


@pytest.mark.parametrize(
    "change", ["DELETE FROM run WHERE name = 'identity'", "UPDATE run SET value = '{'"]
)
async def test_a_journal_that_does_not_say_whose_it_is_is_refused(path, change):
    await write_run(path, 1)
    execute(path, change)
    with pytest.raises(JournalError, match="which run it belongs to"):
        async with Journal(path).open(IDENTITY):
            pass


@pytest.mark.parametrize("where", ["victim", "nowhere"])
async def test_a_symbolic_link_is_not_followed_not_even_a_dangling_one(path, where):
    victim = path.with_name("victim")
    await write_run(victim, 1)
    path.symlink_to(path.with_name(where))
    [said] = await refusals(path)
    assert "symbolic link" in said
    assert not path.with_name("nowhere").exists()


@pytest.mark.parametrize(
    ("make", "words"), [(os.mkdir, "is a folder"), (os.mkfifo, "not a regular file")]
)
async def test_a_folder_or_a_pipe_is_refused(path, make, words):
    make(path)
    assert words in (await refusals(path)).pop()


async def test_a_journal_is_not_made_in_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(JournalError, match=r"no folder .*missing: create it first"):
        async with Journal(tmp_path / "missing" / "run.db").open(IDENTITY):
            pass
    assert not list(tmp_path.iterdir())


async def test_reading_what_is_not_there_makes_nothing(path):
    for read in (run_of, items_of):
        with pytest.raises(JournalError, match="there is no such file"):
            await read(path)
    assert not list(path.parent.iterdir())


async def test_the_log_of_a_journal_that_is_gone_is_not_taken_for_a_new_one_s(path, tmp_path):
    lost = tmp_path / "lost"
    lost.mkdir()
    async with Journal(path).open(IDENTITY) as store:
        await write_item(store, 0)
        shutil.copy(f"{path}-wal", lost / "run.db-wal")
    before = bytes_beside(lost / "run.db")
    with pytest.raises(JournalError, match=r"run\.db does not exist, but run\.db-wal does"):
        async with Journal(lost / "run.db").open(IDENTITY):
            pass
    assert bytes_beside(lost / "run.db") == before
    shutil.copy(path, lost / "run.db")
    assert len(await items_of(lost / "run.db")) == 1


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that everybody may read."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
@pytest.mark.parametrize("mode", [0o755, 0o777])
async def test_who_lacks_the_permission_is_told(public, mode):
    path = public / "run.db"
    await write_run(path, 1)
    before = bytes_beside(path)
    public.chmod(mode)
    said: list[str] = []
    os.seteuid(65534)
    try:
        for use in (run_of, items_of, lambda path: write_run(path, 1)):
            with pytest.raises(JournalError) as refused:
                await use(path)
            said.append(str(refused.value))
    finally:
        os.seteuid(0)
    assert all("ermission" in message or "can't be opened" in message for message in said), said
    assert all(str(path) in message for message in said)
    assert bytes_beside(path) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
async def test_a_journal_in_a_folder_that_nobody_may_write_is_read(public):
    path = public / "run.db"
    await write_run(path, 1)
    path.chmod(0o644)
    os.seteuid(65534)
    try:
        assert len(await items_of(path)) == 1
        with pytest.raises(JournalError, match="Permission denied"):
            await write_run(path, 1)
    finally:
        os.seteuid(0)
    assert set(bytes_beside(path)) == {"run.db"}


# --- damage -------------------------------------------------------------------------------------


def read_all(path: Path) -> list[object]:
    return [read_run(path), *read_items(path)]


async def test_a_flipped_bit_is_no_other_error_than_that_of_a_journal(path, tmp_path):
    async with Journal(path).open(IDENTITY) as store:
        for item in range(4):
            await write_item(store, item, passing=None if item == 2 else 1)
    whole = path.read_bytes()
    rng = random.Random(7)
    (tmp_path / "flipped").mkdir()
    flipped = tmp_path / "flipped" / "run.db"
    refused = 0
    used = [place for place, byte in enumerate(whole) if byte]
    for place in rng.sample(used, 60):
        bits = bytearray(whole)
        bits[place] ^= 1 << rng.randrange(8)
        flipped.write_bytes(bits)
        try:
            await to_thread.run_sync(read_all, flipped)
        except JournalError:
            refused += 1
    assert refused


@pytest.mark.parametrize("table", ["items", "attempts", "slices", "results"])
async def test_a_row_that_flipped_bits_hide_is_missed(path, table):
    await write_run(path, 3)
    with closing(sqlite3.connect(path)) as connection:
        statement = "SELECT rootpage FROM sqlite_schema WHERE name = ?"
        (page,) = connection.execute(statement, (table,)).fetchone()
    whole = bytearray(path.read_bytes())
    number_of_rows = (page - 1) * 4096 + 4  # https://sqlite.org/fileformat2.html#b_tree_pages
    assert whole[number_of_rows] in {3, 6}
    whole[number_of_rows] -= 1
    path.write_bytes(whole)
    for said in await refusals(path):
        assert "is damaged" in said


@pytest.mark.parametrize(
    "change",
    [
        "DELETE FROM slices WHERE item = 1 AND iteration = 1",
        "UPDATE slices SET body = '{' WHERE item = 1",
        "UPDATE items SET data = '{' WHERE id = 1",
        "UPDATE results SET trace = '[]' WHERE item = 1",
    ],
)
async def test_an_item_that_lacks_a_part_is_refused_when_it_is_read(path, change):
    await write_run(path, 3)
    execute(path, change)
    with pytest.raises(JournalError, match="is damaged: items 0 to 2 lack a part"):
        await items_of(path)
    async with Journal(path).open(IDENTITY) as store:
        assert len(await store.lookup(0, 1)) == 1
        with pytest.raises(JournalError, match="is damaged: items 1 to 1 lack a part"):
            await store.lookup(1, 1)


def test_commits_wait_for_the_disk(path):
    execute(path, "CREATE TABLE t (x)")
    with closing(connect(path, "rw")) as connection:
        make_durable(connection, path)
        assert connection.execute("PRAGMA synchronous").fetchone() == (2,)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
