"""The store in an SQLite file, which the processes of one machine share."""

from __future__ import annotations

import os
import random
import sqlite3
import time
import weakref
from collections import OrderedDict
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import anyio
from anyio.lowlevel import current_token

from mellea_like.errors import StoreError
from mellea_like.limits.bucket import Bucket
from mellea_like.limits.budget_accounts import Amounts, NoRoom, StoreSums, beyond
from mellea_like.limits.memory_store import not_since
from mellea_like.limits.owner_locks import OwnerLocks, owner_locks
from mellea_like.runtime.logs import warn

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from anyio.lowlevel import EventLoopToken

    from mellea_like.limits.budget_accounts import Limits
    from mellea_like.limits.store import Take, Want

__all__ = ["SQLiteStore"]

APPLICATION_ID = 0x4D4C7374
"""What the file says that it is: ``MLst``, at byte 68 (https://sqlite.org/fileformat2.html)."""

FORMAT_VERSION = 1

TABLES = """
CREATE TABLE accounts (
  name TEXT NOT NULL PRIMARY KEY,
  requests NOT NULL,
  input_tokens NOT NULL,
  output_tokens NOT NULL,
  money NOT NULL,
  unknown INTEGER NOT NULL,
  denied INTEGER NOT NULL,
  started REAL
) WITHOUT ROWID;
CREATE TABLE held (
  account TEXT NOT NULL,
  owner INTEGER NOT NULL,
  requests NOT NULL,
  input_tokens NOT NULL,
  output_tokens NOT NULL,
  money NOT NULL,
  PRIMARY KEY (account, owner)
) WITHOUT ROWID;
CREATE TABLE owners (number INTEGER PRIMARY KEY AUTOINCREMENT);
CREATE TABLE waiting (
  number INTEGER PRIMARY KEY AUTOINCREMENT,
  account TEXT NOT NULL,
  owner INTEGER NOT NULL,
  seen REAL NOT NULL
);
CREATE INDEX waiting_for ON waiting (account);
CREATE TABLE buckets (
  name TEXT NOT NULL PRIMARY KEY,
  held REAL NOT NULL,
  at REAL NOT NULL,
  taken REAL NOT NULL
) WITHOUT ROWID;
"""
"""A number that is too large for SQLite's integers is a text."""

BUSY_MILLISECONDS = 200
"""How long an event loop may stand still for another process's transaction, which takes 20 us."""

OPEN_SECONDS = 1.0
"""How long it may stand still when the file is opened, perhaps by many at once."""

BUSY_SECONDS = 10.0
"""How long to go on trying where the file is locked."""

SHORTEST_POLL, LONGEST_POLL = 0.004, 0.05
"""Seconds between two looks of one who waits for other processes; between these it is a twentieth
of the time that it has waited, off by up to half. News of its own process wakes it at once."""

UNSEEN = 2.0
"""Seconds after which a process that waits and hasn't looked loses its place to others."""

REFRESH = 0.5
"""Seconds after which one who waits shows again that it does."""

LAST = 2**63 - 1

NOTHING = Amounts()

_inherited: list[_Open] = []
"""Files that the process had open that forked this one: connections may not even be closed here."""

_SPENT = "SELECT started, requests, input_tokens, output_tokens, money FROM accounts WHERE name = ?"
_ALL = "SELECT * FROM accounts WHERE name = ?"
_OTHERS = (
    "SELECT owner, requests, input_tokens, output_tokens, money FROM held"
    " WHERE account = ? AND owner <> ?"
)
_NEW = "INSERT OR IGNORE INTO accounts VALUES (?, 0, 0, 0, 0, 0, 0, NULL)"
_START = "UPDATE accounts SET started = ? WHERE name = ? AND started IS NULL"
_DENY = "UPDATE accounts SET denied = denied + 1 WHERE name = ?"
_CHARGE = (
    "UPDATE accounts SET requests = ?, input_tokens = ?, output_tokens = ?, money = ?,"
    " unknown = unknown + ? WHERE name = ?"
)
_HOLD = "INSERT OR REPLACE INTO held VALUES (?, ?, ?, ?, ?, ?)"
_HOLD_NOTHING = "DELETE FROM held WHERE account = ? AND owner = ?"
_BURY = tuple(
    f"DELETE FROM {table} WHERE {column} = ?"  # noqa: S608 (constants)
    for table, column in (("held", "owner"), ("waiting", "owner"), ("owners", "number"))
)
_BEFORE = "SELECT owner, seen FROM waiting WHERE account = ? AND number < ?"
_BUCKET = "SELECT held, at, taken FROM buckets WHERE name = ?"
_FILL = "INSERT OR REPLACE INTO buckets VALUES (?, ?, ?, ?)"


class SQLiteStore:
    """Keeps the sums of budgets and rates in an SQLite file: a `Store` for processes that share it.

    ```python
    store = SQLiteStore("spent.db")
    budget = Budget(money=20, prices=prices, store=store, name="november")
    limiter = RateLimiter(requests_per_minute=600, store=store, name="main")
    ```

    - What is reserved is reserved for all processes at once, and given back when the process that
      reserved it dies. What was charged stays, also over a restart; after a power cut the last
      seconds may be missing.
    - Who waits for room goes before who comes later, in other processes too, as long as it looks
      after its place: a process that stands still for two seconds loses it.
    - A rate has its time from the machine's own clock, which setting the time of day does not move.
      Buckets are full again when the machine has started again.
    - The file is for one machine: on a network's file system, locks and shared memory of two
      machines don't meet. It is opened when it is first used, and made with the permissions of its
      owner only. SQLite's ``-wal`` and ``-shm`` belong to it, and so does ``-owners``.
    - It may be used in several threads and event loops, and pickled: a copy is the same file. A
      forked child has none of its parent's reservations.

    Args:
        path: where; a file that isn't there is made. Its folder has to be there.

    Raises:
        TypeError: the path isn't one.
        ValueError: the path names no file.
    """

    def __init__(self, path: str | Path) -> None:
        if not isinstance(path, str | Path):
            msg = f"a store's path is a str or a Path, not {type(path).__name__}"
            raise TypeError(msg)
        if not Path(path).name or "\0" in str(path):
            msg = f"a store's path names a file, and {str(path)!r} does not"
            raise ValueError(msg)
        self._path = Path(os.path.abspath(path))  # noqa: PTH100 (no links are followed)
        self._lock = RLock()
        self._open: _Open | None = None
        self._now: Callable[[], float] = time.monotonic  # One clock for the whole machine.
        self._owed: dict[str, tuple[Amounts, Amounts, int]] = {}
        self._owed_since: float | None = None
        self._told = False
        self._queues: dict[tuple[EventLoopToken, str], OrderedDict[_Waiter, None]] = {}

    @property
    def path(self) -> Path:
        """Where the file is."""
        return self._path

    def __repr__(self) -> str:
        return f"SQLiteStore({str(self._path)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return SQLiteStore, (self._path,)

    # --- accounts ------------------------------------------------------------------------------

    def account(self, name: str, limits: Limits) -> _Account:
        """Return the account of a name; see `Store.account`."""
        return _Account(self, name, limits)

    def accounts(self) -> list[str]:
        """Return the names of all accounts, in order.

        Raises:
            StoreError: the file can't be used.
        """
        with self._reading() as db:
            return [name for (name,) in db.execute("SELECT name FROM accounts ORDER BY name")]

    def forget(self, *names: str) -> None:
        """Forget accounts, as if nothing had been spent; those with reservations stay.

        Args:
            *names: the accounts; a name that isn't there does nothing.

        Raises:
            StoreError: the file can't be used.
        """
        with self._writing() as file:
            for name in names:
                if not file.reserved(name).requests:
                    file.db.execute("DELETE FROM accounts WHERE name = ?", (name,))
                    file.db.execute("DELETE FROM held WHERE account = ?", (name,))

    def check(self) -> None:
        """Make sure that the file can be used; it is made if it isn't there.

        Raises:
            StoreError: it can't be opened or written, is locked, damaged or no store.
        """
        with self._writing():
            pass

    def close(self) -> None:
        """Close the file until it is used again; what is still reserved is given back."""
        with self._lock:
            opened, self._open = self._open, None
            if opened is not None:
                opened.finish()

    async def reserve(self, wants: Sequence[Want]) -> _Held:
        """Reserve in all accounts or in none; see `Store.reserve`.

        Raises:
            NoRoom: what is wanted does not fit beside what is spent.
            StoreError: the file can't be used.
        """
        waiter = _Waiter(self, cast("Sequence[tuple[_Account, Amounts]]", wants))
        at = await self._patiently(waiter.try_now)
        if at is not None:
            await self._wait(waiter, at)
        if waiter.denied is not None:
            raise waiter.denied
        return _Held(self, waiter.file, list(waiter.wants))

    async def _patiently(self, change: Callable[[], Any]) -> Any:
        """Make a change, and try for some time where the file is locked."""
        until = anyio.current_time() + BUSY_SECONDS
        while True:
            try:
                return change()
            except _Locked as exc:
                if anyio.current_time() > until:
                    raise StoreError(str(exc)) from exc
            await anyio.sleep(LONGEST_POLL)

    async def _wait(self, waiter: _Waiter, at: str | None) -> None:
        """Wait in the queue for an account. Only its first looks, so that waiting costs little."""
        loop = current_token()
        try:
            while at is not None:
                queue = self._queues.setdefault((loop, at), OrderedDict())
                queue[waiter] = None
                there, since = at, anyio.current_time()
                while at == there:
                    waiter.woken = woken = anyio.Event()
                    pause = None
                    if next(iter(queue)) is waiter:
                        pause = self._pause(anyio.current_time() - since)
                    with anyio.move_on_after(pause):
                        await woken.wait()
                    if next(iter(queue)) is waiter:
                        since = anyio.current_time() if pause is None else since
                        at = await self._patiently(waiter.try_first)
                self._leave(loop, there, waiter)
        except BaseException:
            for key in [key for key, queue in self._queues.items() if waiter in queue]:
                self._leave(*key, waiter)
            waiter.give_up()
            raise

    def _pause(self, waited: float) -> float:
        """Return how long to wait until the next look; many queues look more seldom."""
        pause = min(max(waited / 20, SHORTEST_POLL), LONGEST_POLL)
        return pause * len(self._queues) * random.uniform(0.5, 1.5)

    def _leave(self, loop: EventLoopToken, at: str, waiter: _Waiter) -> None:
        queue = self._queues[loop, at]
        del queue[waiter]
        if not queue:
            del self._queues[loop, at]
        else:
            next(iter(queue)).wake()

    def _settle(self, held: _Held, charged: Sequence[Amounts], unknown: int) -> None:
        with self._lock:
            if not held.file.ours:
                return  # The process that forked this one settles it.
            reserved = self._open is held.file and held.file.usable  # Else it was closed.
            for (account, wanted), amounts in zip(held.wants, charged, strict=True):
                back, spent, before = self._owed.get(account.name, (NOTHING, NOTHING, 0))
                back = back.plus(wanted) if reserved else back
                self._owed[account.name] = back, spent.plus(amounts), before + unknown
            now = time.monotonic()
            self._owed_since = self._owed_since or now
            try:
                with self._writing():  # Which pays what is owed.
                    pass
            except StoreError as exc:
                lasts = not isinstance(exc, _Locked) or now - self._owed_since > BUSY_SECONDS
                if lasts and not self._told:
                    self._told = True
                    warn("%s; what requests cost is written down when it can be", exc)
        self._wake({account.name for account, _ in held.wants})

    def _wake(self, names: set[str]) -> None:
        try:
            loop = current_token()
        except anyio.NoEventLoopError:
            return
        for name in names:
            queue = self._queues.get((loop, name))
            if queue:
                next(iter(queue)).wake()

    # --- rates ---------------------------------------------------------------------------------

    def bucket(self, name: str, per_minute: float, capacity: float) -> _Bucket:
        """Return the bucket of a name; see `Store.bucket`."""
        return _Bucket(name, per_minute, capacity)

    async def take(self, takes: Sequence[Take]) -> _Turn:
        """Take from all of some buckets; see `Store.take`.

        Raises:
            StoreError: the file can't be used.
        """
        wanted = cast("Sequence[tuple[_Bucket, float]]", takes)
        turn: _Turn = await self._patiently(lambda: self._take(wanted))
        return turn

    def _take(self, takes: Sequence[tuple[_Bucket, float]]) -> _Turn:
        seconds, taken = 0.0, []
        with self._writing() as file:
            now = self._now()
            for bucket, amount in takes:
                level, before = bucket.as_of(file.db, now)
                seconds = max(seconds, level.delay(now, amount))
                level.take(now, amount)
                bucket.keep(file.db, level, before + amount)
                taken.append((bucket, amount, before + amount))
        return _Turn(self, seconds, taken)

    def correct(self, takes: Sequence[Take]) -> None:
        """Take more from buckets, or put some back; see `Store.correct`."""
        self._correct([(b, n, None) for b, n in cast("Sequence[tuple[_Bucket, float]]", takes)])

    def _correct(self, changes: Sequence[tuple[_Bucket, float, float | None]]) -> None:
        """Take more; or put back what was taken when its bucket had given so much."""
        with suppress(StoreError), self._writing() as file:  # A bucket fills up by itself.
            now = self._now()
            for bucket, amount, at in changes:
                level, taken = bucket.as_of(file.db, now)
                level.take(now, amount if at is None else -not_since(amount, taken - at))
                bucket.keep(file.db, level, taken)

    # --- the file ------------------------------------------------------------------------------

    @contextmanager
    def _reading(self) -> Generator[sqlite3.Connection]:
        with self._lock, _errors(self._path):
            yield self._opened().db

    @contextmanager
    def _writing(self) -> Generator[_Open]:
        """Change the file: all that the block does, with what is owed, or nothing."""
        with self._lock, _errors(self._path):
            file = self._opened()
            db = file.db
            db.execute("BEGIN IMMEDIATE")
            held = file.held
            try:
                file.held = dict(held)
                if self._owed:
                    file.pay(self._owed)
                yield file
                db.execute("COMMIT")
            except BaseException:
                file.held = held
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise
            self._owed.clear()
            self._owed_since, self._told = None, False

    def _opened(self) -> _Open:
        if self._open is None or not self._open.usable:
            if self._open is not None and not self._open.ours:
                _inherited.append(self._open)
                self._owed.clear()
                self._queues.clear()
            self._open = _open(self._path)
            weakref.finalize(self, self._open.finish)
        return self._open


class _Open:
    """The file in use by one owner: this process, until it closes it."""

    def __init__(self, db: sqlite3.Connection, locks: OwnerLocks, owner: int) -> None:
        self.db = db
        self.locks = locks
        self.owner = owner
        self.held: dict[str, Amounts] = {}  # By this owner, of each account.
        self._process = os.getpid()
        self._finished = False

    @property
    def ours(self) -> bool:
        """Whether this process has opened it."""
        return self._process == os.getpid()

    @property
    def usable(self) -> bool:
        """Whether it is open, and this process has opened it."""
        return self.ours and not self._finished

    def finish(self) -> None:
        """Give back what is reserved, and close the file."""
        if not self.usable:
            return
        self._finished = True
        with suppress(sqlite3.Error), closing(self.db):
            self.bury(self.owner)
        self.locks.release(self.owner)

    def bury(self, owner: int) -> None:
        """Forget an owner, and all that it has reserved."""
        for statement in _BURY:
            self.db.execute(statement, (owner,))

    def spent(self, name: str) -> tuple[bool, Amounts]:
        """Return whether anything was ever reserved, and what was charged."""
        row = self.db.execute(_SPENT, (name,)).fetchone()
        return (False, NOTHING) if row is None else (row[0] is not None, _amounts(row[1:]))

    def reserved(self, name: str, *, dead: list[int] | None = None) -> Amounts:
        """Return what is reserved by all owners; by living ones only, with a list for the dead."""
        total = self.held.get(name, NOTHING)
        for owner, *row in self.db.execute(_OTHERS, (name, self.owner)).fetchall():
            amounts = _amounts(row)
            if dead is not None and amounts != NOTHING and not self.locks.lives(owner):
                dead.append(owner)
            else:
                total = total.plus(amounts)
        return total

    def hold(self, name: str, amounts: Amounts) -> None:
        """Write down what this owner has reserved."""
        if amounts == NOTHING:
            self.held.pop(name, None)
            self.db.execute(_HOLD_NOTHING, (name, self.owner))
        else:
            self.held[name] = amounts
            self.db.execute(_HOLD, (name, self.owner, *map(_column, amounts)))

    def pay(self, owed: dict[str, tuple[Amounts, Amounts, int]]) -> None:
        """Charge what requests cost, and give back what was reserved for them."""
        for name, (back, charged, unknown) in owed.items():
            self.hold(name, self.held.get(name, NOTHING).minus(back))
            spent = self.spent(name)[1].plus(charged)
            self.db.execute(_CHARGE, (*map(_column, spent), unknown, name))

    def waits(self, name: str, number: int, now: float) -> bool:
        """Tell whether somebody waits for an account who came before a number."""
        return any(
            now - UNSEEN < seen <= now + UNSEEN and self.locks.lives(owner)
            for owner, seen in self.db.execute(_BEFORE, (name, number)).fetchall()
        )


class _Account(NamedTuple):
    """An account of the file, as one budget sees it."""

    store: SQLiteStore
    name: str
    limits: Limits

    @property
    def in_use(self) -> bool:
        """Whether this process has reservations in it."""
        file = self.store._open
        return file is not None and file.usable and self.name in file.held

    def look(self) -> StoreSums:
        """Return what it has come to."""
        store = self.store
        with store._reading() as db:
            row = db.execute(_ALL, (self.name,)).fetchone()
            if row is None:
                return StoreSums()
            file = store._opened()
            reserved = file.reserved(self.name, dead=[])
        _, *spent, unknown, denied, started = row
        waiting = sum(len(q) for (_, at), q in store._queues.items() if at == self.name)
        age = None if started is None else max(0.0, time.time() - started)
        return StoreSums(_amounts(spent), reserved, unknown, denied, waiting, age)


class _Waiter:
    """A request that asks for a reservation, until it has an answer."""

    __slots__ = ("_number", "_place", "_shown", "_store", "denied", "file", "wants", "woken")

    def __init__(self, store: SQLiteStore, wants: Sequence[tuple[_Account, Amounts]]) -> None:
        self._store = store
        self.wants = wants
        self.denied: NoRoom | None = None
        self.file: Any = None
        self.woken: anyio.Event | None = None
        self._number: int | None = None  # Its place among those who wait, of all processes.
        self._place: str | None = None  # The account where it has that place.
        self._shown = 0.0

    def wake(self) -> None:
        """Have it look again, at once."""
        if self.woken is not None:
            self.woken.set()

    def try_now(self) -> str | None:
        """Reserve, or find that it can't; or return the account for which it has to wait."""
        return self._try(first=False)

    def try_first(self) -> str | None:
        """Do the same as the first of its process, which has a place among those of all."""
        return self._try(first=True)

    def _try(self, *, first: bool) -> str | None:
        store = self._store
        with store._writing() as file:
            db = file.db
            self.file = file
            so_far = [file.spent(account.name) for account, _ in self.wants]
            for (account, wanted), (_, spent) in zip(self.wants, so_far, strict=True):
                lacking = beyond(account.limits, spent, wanted)
                if lacking is not None:
                    db.execute(_NEW, (account.name,))
                    db.execute(_DENY, (account.name,))
                    self.denied = NoRoom(account, lacking, spent)
                    self._lose_place(db)
                    return None
            now = time.monotonic()
            for (account, wanted), (_, spent) in zip(self.wants, so_far, strict=True):
                number = self._number or LAST
                if file.waits(account.name, number, now) or not self._has_room(
                    file, account, spent.plus(wanted)
                ):
                    if self._place != account.name:
                        self._lose_place(db)
                    if first and now - self._shown > REFRESH:
                        self._take_place(file, account.name, now)
                    return account.name
            for (account, wanted), (begun, _) in zip(self.wants, so_far, strict=True):
                if not begun:
                    db.execute(_NEW, (account.name,))
                    db.execute(_START, (time.time(), account.name))
                file.hold(account.name, file.held.get(account.name, NOTHING).plus(wanted))
            self._lose_place(db)
        return None

    def _has_room(self, file: _Open, account: _Account, wanted: Amounts) -> bool:
        if beyond(account.limits, file.reserved(account.name), wanted) is None:
            return True
        dead: list[int] = []
        living = file.reserved(account.name, dead=dead)
        for owner in dead:
            file.bury(owner)
        return bool(dead) and beyond(account.limits, living, wanted) is None

    def _take_place(self, file: _Open, at: str, now: float) -> None:
        """Get a place among those who wait, or show that it still waits."""
        place = "INSERT OR REPLACE INTO waiting VALUES (?, ?, ?, ?)"
        self._number = file.db.execute(place, (self._number, at, file.owner, now)).lastrowid
        self._shown, self._place = now, at

    def _lose_place(self, db: sqlite3.Connection) -> None:
        """Wait for no account any more; its number is kept for the next one."""
        if self._place is not None:
            db.execute("DELETE FROM waiting WHERE number = ?", (self._number,))
        self._shown, self._place = 0.0, None

    def give_up(self) -> None:
        """Want nothing any more."""
        if self._place is not None:
            with suppress(StoreError), self._store._writing() as file:
                self._lose_place(file.db)


class _Held:
    """What is reserved for one request."""

    __slots__ = ("_store", "file", "wants")

    def __init__(
        self, store: SQLiteStore, file: _Open, wants: list[tuple[_Account, Amounts]]
    ) -> None:
        self._store = store
        self.file = file
        self.wants = wants

    def settle(self, charged: Sequence[Amounts], unknown: int = 0) -> None:
        """Give back what is reserved, and charge what was spent; see `Reservation.settle`."""
        if self.wants:
            self._store._settle(self, charged, unknown)
            self.wants.clear()


class _Bucket(NamedTuple):
    """A bucket of the file, as one limiter sees it."""

    name: str
    per_minute: float
    capacity: float

    def as_of(self, db: sqlite3.Connection, now: float) -> tuple[Bucket, float]:
        """Return what is in it, and how much was ever taken."""
        held, at, taken = db.execute(_BUCKET, (self.name,)).fetchone() or (None, now, 0.0)
        if at > now:  # The machine has started again, and its clock with it.
            held, at = None, now
        return Bucket(self.per_minute, self.capacity, held, at), taken

    def keep(self, db: sqlite3.Connection, level: Bucket, taken: float) -> None:
        """Write down what is in it."""
        db.execute(_FILL, (self.name, level.held, level.at, taken))


class _Turn(NamedTuple):
    """What was taken for one request, and when it may go."""

    store: SQLiteStore
    seconds: float
    taken: list[tuple[_Bucket, float, float]]

    def give_back(self) -> None:
        """Put back what was taken; see `Turn.give_back`."""
        self.store._correct(self.taken)
        self.taken.clear()


# --- the file, opened ----------------------------------------------------------------------------


class _Locked(StoreError):
    """Another process has the file locked, perhaps for a moment."""


def _amounts(row: Sequence[Any]) -> Amounts:
    return Amounts(*map(int, row))


def _column(number: float) -> int | str:
    """Write a whole number, which may be too large for SQLite's."""
    return int(number) if -LAST <= number <= LAST else str(int(number))


def _open(path: Path) -> _Open:
    """Open the file, or make it; what dead owners have left is given back."""
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    db = sqlite3.connect(
        f"{path.as_uri()}?mode=rw",
        uri=True,
        isolation_level=None,
        check_same_thread=False,
        timeout=OPEN_SECONDS,
    )
    locks, number = None, 0
    try:
        _begin(db)
        locks = owner_locks(path.with_name(f"{path.name}-owners"))
        db.execute("BEGIN IMMEDIATE")
        number = db.execute("INSERT INTO owners VALUES (NULL)").lastrowid or 0
        locks.hold(number)  # Before anybody can see that there is such an owner.
        file = _Open(db, locks, number)
        for (other,) in db.execute("SELECT number FROM owners").fetchall():
            if not locks.lives(other):
                file.bury(other)
        db.execute("COMMIT")
        db.execute(f"PRAGMA busy_timeout = {BUSY_MILLISECONDS}")
    except BaseException:
        db.close()
        if locks is not None:
            locks.release(number)
        raise
    return file


def _begin(db: sqlite3.Connection) -> None:
    """Make the tables in a file that is empty, or make sure that it is a store."""
    db.execute("PRAGMA page_size = 1024")  # Of an empty file: a change writes whole pages.
    db.execute("BEGIN IMMEDIATE")
    (kind,) = db.execute("PRAGMA application_id").fetchone()
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if not db.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]:
        for statement in TABLES.split(";"):
            db.execute(statement)
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        db.execute(f"PRAGMA user_version = {FORMAT_VERSION}")
    elif (kind, version) != (APPLICATION_ID, FORMAT_VERSION):
        whose = f"of format version {version}" if kind == APPLICATION_ID else "no store"
        msg = f"the database that is there is {whose}: give another path"
        raise ValueError(msg)
    db.execute("COMMIT")
    db.execute("PRAGMA journal_mode = WAL")
    # What a process wrote survives its death; a power cut may take the last commits.
    db.execute("PRAGMA synchronous = NORMAL")
    db.execute("PRAGMA wal_autocheckpoint = 4000")


@contextmanager
def _errors(path: Path) -> Generator[None]:
    """Turn errors of SQLite and of the system into a store's, which name the file."""
    try:
        yield
    except (sqlite3.Error, OSError, ValueError) as exc:
        code = getattr(exc, "sqlite_errorcode", 0) & 0xFF
        kind = _Locked if code == sqlite3.SQLITE_BUSY else StoreError
        msg = f"store {path}: {_why(exc, code)}"
        raise kind(msg) from exc


def _why(error: Exception, code: int) -> str:
    match code:
        case sqlite3.SQLITE_NOTADB:
            return "it is no store, nor any SQLite database: give another path"
        case sqlite3.SQLITE_CORRUPT:
            return f"it is damaged ({error}): remove it, and what was spent is forgotten"
        case sqlite3.SQLITE_BUSY:
            return "another program has locked it"
        case sqlite3.SQLITE_FULL:
            return "the disk is full"
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM:
            return "it can't be written"
        case _:
            pass
    if isinstance(error, OSError):
        return f"it can't be opened ({error.strerror})"
    return str(error)
