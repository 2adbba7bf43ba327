"""The store that keeps its data in an SQLite file, shared by the processes of one machine."""

# pyright: reportPrivateUsage=false
# Accounts and claims are parts of a store.

from __future__ import annotations

import os
import random
import time
import weakref
from collections import OrderedDict
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from math import inf
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import anyio
from anyio.lowlevel import EventLoopToken, current_token

from mellea_like.errors import StoreError
from mellea_like.limits.bucket import BucketStore
from mellea_like.limits.budget_accounts import Amounts, Denied, beyond
from mellea_like.limits.sqlite_file import NOTHING, FileLocked, OpenFile, errors_named, open_file
from mellea_like.runtime.logs import warn

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from mellea_like.limits.bucket import Levels
    from mellea_like.limits.budget_accounts import Limits, StoreSums
    from mellea_like.limits.store import Reservation, StoreAccount, Take, Turn, Want

__all__ = ["SQLiteStore"]

SHORTEST_POLL, LONGEST_POLL = 0.004, 0.05
"""The shortest and longest time, in seconds, between two checks for room left by other processes.

Within these limits, the time is a twentieth of the time waited so far. It is multiplied by the
number of this process's queues, and varied at random by up to half. A change in the same process
wakes a waiting request immediately.
"""

BUSY_SECONDS = 10.0
"""How long to retry while another process has locked the file."""

REFRESH = 0.5
"""The seconds after which a process renews its place in an account's queue; see `UNSEEN`."""

T = TypeVar("T")

_inherited: list[OpenFile] = []
"""Files that the parent process opened. They stay open, because a fork must not close them."""


class SQLiteStore(BucketStore):
    """Keeps the sums of budgets and rates in an SQLite file: a `Store` for several processes.

    ```python
    store = SQLiteStore("spent.db")
    budget = Budget(money=20, prices=prices, store=store, name="november")
    limiter = RateLimiter(requests_per_minute=600, store=store, name="main")
    ```

    - A reservation counts immediately in all processes, and is released when the process that made
      it dies. Charges survive a restart; after a power cut, those of the last seconds may be
      missing.
    - Requests of all processes wait for room in the order of arrival, as long as their process
      renews its place. A process that is suspended for two seconds loses its place.
    - Rates use the machine's monotonic clock, which setting the time of day does not change. After
      a reboot, buckets are full.
    - The file is for one machine: on a network file system, two machines don't see each other's
      locks and shared memory. The file is opened at its first use, and created with permissions
      for its owner only. Files with the endings ``-wal``, ``-shm`` (both SQLite's) and ``-owners``
      belong to it.
    - A store may be used in several threads and event loops. It can be pickled, and a copy uses
      the same file. A forked child has none of its parent's reservations.

    Args:
        path: the path of the file, which is created if necessary. Its directory must exist.

    Raises:
        TypeError: ``path`` is neither a str nor a Path.
        ValueError: ``path`` names no file.
    """

    def __init__(self, path: str | Path) -> None:
        if not Path(path).name:
            msg = f"a store's path must name a file, and {str(path)!r} doesn't"
            raise ValueError(msg)
        # The path becomes absolute, because the current folder may change; links aren't followed.
        self._path = Path(os.path.abspath(path))  # noqa: PTH100
        self._now: Callable[[], float] = time.monotonic  # This clock is the machine's.
        self._lock = RLock()
        self._open: OpenFile | None = None
        self._owed: dict[str, tuple[Amounts, Amounts, int]] = {}
        """By account: the amounts to release and to charge, and the requests of unknown cost."""
        self._owed_since: float | None = None
        self._told = False
        self._queues: dict[tuple[EventLoopToken, str], OrderedDict[_Claim, None]] = {}
        """The waiting requests of this process, by event loop and account."""

    @property
    def path(self) -> Path:
        """The path of the file."""
        return self._path

    def __repr__(self) -> str:
        return f"SQLiteStore({str(self._path)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return SQLiteStore, (self._path,)

    def check(self) -> None:
        """Make sure that the file can be used; create it if it doesn't exist.

        Raises:
            StoreError: the file can't be opened or written, is locked or damaged, or isn't a store.
        """
        with self._writing():
            pass

    def close(self) -> None:
        """Close the file and release this store's reservations. The next use reopens the file."""
        with self._lock:
            opened, self._open = self._open, None
            if opened is not None:
                opened.finish()

    @contextmanager
    def _reading(self) -> Generator[OpenFile]:
        """Enter a block that reads the file."""
        with self._lock, errors_named(self._path):
            if self._open is None or not self._open.usable:
                if self._open is not None and not self._open.ours:
                    _inherited.append(self._open)
                    self._owed.clear()
                self._open = open_file(self._path)
                weakref.finalize(self, self._open.finish)
            yield self._open

    @contextmanager
    def _writing(self) -> Generator[OpenFile]:
        """Enter a block that is one transaction. It begins with charges that failed earlier."""
        with self._reading() as file:
            file.db.execute("BEGIN IMMEDIATE")
            try:
                file.pay(self._owed)
                yield file
                file.db.execute("COMMIT")
            except BaseException:
                if file.db.in_transaction:
                    file.db.execute("ROLLBACK")
                raise
            self._owed.clear()
            self._owed_since, self._told = None, False

    # --- accounts ------------------------------------------------------------------------------

    def account(self, name: str, limits: Limits) -> StoreAccount:
        """Return the account called ``name``; see `Store.account`."""
        return _Account(self, name, limits)

    def accounts(self) -> list[str]:
        """Return the names of all accounts, sorted.

        Raises:
            StoreError: the file can't be used.
        """
        with self._reading() as file:
            return [name for (name,) in file.db.execute("SELECT name FROM accounts ORDER BY name")]

    def forget(self, *names: str) -> None:
        """Forget the sums of accounts. Accounts with reservations are kept.

        Args:
            *names: the names of the accounts. Unknown names are ignored.

        Raises:
            StoreError: the file can't be used.
        """
        with self._writing() as file:
            for name in names:
                if not file.reserved(name).requests:
                    file.forget(name)

    async def reserve(self, wants: Sequence[Want]) -> Reservation:
        """Reserve in all accounts or in none; see `Store.reserve`.

        Raises:
            Denied: the wanted amounts exceed what is left unspent.
            StoreError: the file can't be used.
        """
        in_file: Any = wants
        claim = _Claim(self, in_file)
        at = await _patiently(claim.decide)
        try:
            while at is not None:
                at = await self._wait(claim, at)
        except BaseException:
            claim.give_up()
            raise
        if claim.denied is not None:
            raise claim.denied
        return claim

    async def _wait(self, claim: _Claim, at: str) -> str | None:
        """Wait in this process's queue for an account; return the account to wait for next, if any.

        Only the request at the head of the queue checks for room.
        """
        key = current_token(), at
        queue = self._queues.setdefault(key, OrderedDict())
        queue[claim] = None
        since, then = anyio.current_time(), cast("str | None", at)
        try:
            while then == at:
                claim.woken = woken = anyio.Event()
                pause = None
                if next(iter(queue)) is claim:
                    pause = min(
                        max((anyio.current_time() - since) / 20, SHORTEST_POLL), LONGEST_POLL
                    )
                    pause *= len(self._queues) * random.uniform(0.5, 1.5)
                with anyio.move_on_after(pause):
                    await woken.wait()
                if next(iter(queue)) is claim:
                    since = anyio.current_time() if pause is None else since
                    then = await _patiently(partial(claim.decide, first=True))
            return then
        finally:
            del queue[claim]
            if queue:
                next(iter(queue)).wake()
            else:
                del self._queues[key]

    def _settle(
        self,
        owner: OpenFile,
        wants: Sequence[tuple[_Account, Amounts]],
        charged: Sequence[Amounts],
        unknown: int,
    ) -> None:
        """Release an owner's reservation and charge what was spent.

        If the file can't be written now, the next transaction does both.
        """
        with self._lock:
            if not owner.ours:
                return  # The parent process settles it.
            reserved = self._open is owner and owner.usable  # Otherwise it was closed.
            for (account, wanted), amounts in zip(wants, charged, strict=True):
                back, spent, before = self._owed.get(account.name, (NOTHING, NOTHING, 0))
                back = back.plus(wanted) if reserved else back
                self._owed[account.name] = back, spent.plus(amounts), before + unknown
            now = time.monotonic()
            self._owed_since = self._owed_since or now
            try:
                self.check()  # This also pays what is owed.
            except StoreError as exc:
                lasts = not isinstance(exc, FileLocked) or now - self._owed_since > BUSY_SECONDS
                if lasts and not self._told:
                    self._told = True
                    warn("%s; the cost of requests will be recorded as soon as possible", exc)

    # --- rates ---------------------------------------------------------------------------------

    @contextmanager
    def _step(self) -> Generator[tuple[Levels, float]]:
        with self._writing() as file:
            yield file.levels, self._now()

    async def take(self, takes: Sequence[Take]) -> Turn:
        """Take from several buckets in one step; see `Store.take`.

        Raises:
            StoreError: the file can't be used.
        """
        return await _patiently(partial(self._take, takes))


class _Account(NamedTuple):
    """An account in the file, as one budget sees it."""

    store: SQLiteStore
    name: str
    limits: Limits

    @property
    def in_use(self) -> bool:
        """Whether this process has reservations in the account."""
        with self.store._lock, errors_named(self.store.path):
            opened = self.store._open
            return opened is not None and opened.usable and opened.held(self.name) != NOTHING

    def look(self) -> StoreSums:
        queues = self.store._queues.copy().items()  # Other threads may change it.
        waiting = sum(len(queue) for (_, at), queue in queues if at == self.name)
        with self.store._reading() as file:
            sums = file.sums(self.name)
            return sums._replace(reserved=file.reserved(self.name), waiting=waiting)


@dataclass(slots=True, eq=False)
class _Claim:
    """The amounts that one request wants to reserve, and its reservation once it is granted."""

    store: SQLiteStore
    wants: Sequence[tuple[_Account, Amounts]]
    denied: Denied | None = None
    owner: OpenFile | None = None  # Holds the reservation.
    woken: anyio.Event | None = None
    _number: int | None = None  # Its number among all processes.
    _place: str | None = None  # The account it waits for.
    _shown: float = -inf

    def wake(self) -> None:
        """Wake the waiting request so that it checks for room immediately."""
        if self.woken is not None:
            self.woken.set()

    def decide(self, *, first: bool = False) -> str | None:
        """Grant or deny the claim; return None, or the name of the account that has no room.

        If this is the ``first`` request in this process's queue for that account, also keep the
        process's place among all processes.
        """
        with self.store._writing() as file:
            wants = [(*want, file.sums(want[0].name)) for want in self.wants]
            for account, wanted, sums in wants:
                lacking = beyond(account.limits, sums.spent, wanted)
                if lacking is not None:
                    file.deny(account.name)
                    self.denied = Denied(account, lacking, sums.spent)
                    self._lose_place(file)
                    return None
            for account, wanted, sums in wants:
                name, limits, total = account.name, account.limits, sums.spent.plus(wanted)
                full = beyond(limits, file.reserved(name, by_dead=True), total)
                if full:  # Perhaps only beside what dead owners have reserved.
                    full = beyond(limits, file.reserved(name), total)
                if full or file.is_before(name, self._number):
                    if self._place != name:
                        self._lose_place(file)
                    if first and anyio.current_time() - self._shown > REFRESH:
                        self._number = file.take_place(name, self._number)
                        self._shown, self._place = anyio.current_time(), name
                    return name
            for account, wanted, sums in wants:
                if sums.age is None:
                    file.begin(account.name)
                file.hold(account.name, wanted)
            self._lose_place(file)
        self.owner = file
        return None

    def _lose_place(self, file: OpenFile) -> None:
        """Give up the place in an account's queue, but keep its number for the next account."""
        if self._place is not None and self._number is not None:
            file.leave_place(self._number)
        self._shown, self._place = -inf, None

    def give_up(self) -> None:
        if self._place is not None:
            with suppress(StoreError), self.store._writing() as file:
                self._lose_place(file)

    def settle(self, charged: Sequence[Amounts], unknown: int = 0) -> None:
        """Release the reservation and charge what was spent; see `Reservation.settle`."""
        owner, self.owner = self.owner, None
        if owner is None:
            return
        self.store._settle(owner, self.wants, charged, unknown)
        with suppress(anyio.NoEventLoopError):
            loop = current_token()
            for account, _ in self.wants:
                if queue := self.store._queues.get((loop, account.name)):
                    next(iter(queue)).wake()


async def _patiently(change: Callable[[], T]) -> T:
    """Make a change and return its result; retry up to `BUSY_SECONDS` while the file is locked."""
    until = anyio.current_time() + BUSY_SECONDS
    while True:
        try:
            return change()
        except FileLocked as exc:
            if anyio.current_time() > until:
                raise StoreError(str(exc)) from exc
        await anyio.sleep(LONGEST_POLL)
