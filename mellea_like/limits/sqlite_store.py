"""The store that keeps its data in an SQLite file, shared by the processes of one machine."""

from __future__ import annotations

import os
import random
from collections import OrderedDict
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar, cast

import anyio
from anyio.lowlevel import EventLoopToken, current_token

from mellea_like.errors import StoreError
from mellea_like.limits.bucket import BucketStore
from mellea_like.limits.budget_accounts import Amounts, Denied, beyond
from mellea_like.limits.sqlite_file import BUSY_SECONDS, FileLocked, OpenFile, StoreFile

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

REFRESH = 0.5
"""The seconds after which a process renews its place in an account's queue; see `UNSEEN`."""

T = TypeVar("T")


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
        self._file = StoreFile(Path(os.path.abspath(path)))  # noqa: PTH100
        self._queues: _Queues = {}

    @property
    def path(self) -> Path:
        """The path of the file."""
        return self._file.path

    def __repr__(self) -> str:
        return f"SQLiteStore({str(self._file.path)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return SQLiteStore, (self._file.path,)

    # --- accounts ------------------------------------------------------------------------------

    def account(self, name: str, limits: Limits) -> StoreAccount:
        """Return the account called ``name``; see `Store.account`."""
        return _Account(self._file, self._queues, name, limits)

    def accounts(self) -> list[str]:
        """Return the names of all accounts, sorted.

        Raises:
            StoreError: the file can't be used.
        """
        with self._file.reading() as file:
            return file.names()

    def forget(self, *names: str) -> None:
        """Forget the sums of accounts. Accounts with reservations are kept.

        Args:
            *names: the names of the accounts. Unknown names are ignored.

        Raises:
            StoreError: the file can't be used.
        """
        with self._file.writing() as file:
            for name in names:
                if not file.reserved(name, dead=[]).requests:
                    file.forget(name)

    def check(self) -> None:
        """Make sure that the file can be used; create it if it doesn't exist.

        Raises:
            StoreError: the file can't be opened or written, is locked or damaged, or isn't a store.
        """
        with self._file.writing():
            pass

    def close(self) -> None:
        """Close the file and release all reservations. The file is reopened at its next use."""
        self._file.close()

    async def reserve(self, wants: Sequence[Want]) -> Reservation:
        """Reserve in all accounts or in none; see `Store.reserve`.

        Raises:
            Denied: the wanted amounts exceed what is left unspent.
            StoreError: the file can't be used.
        """
        waiter = _Waiter(self._file, cast("Sequence[tuple[_Account, Amounts]]", wants))
        at = await _patiently(waiter.attempt)
        if at is not None:
            await self._wait(waiter, at)
        if waiter.denied is not None:
            raise waiter.denied
        assert waiter.owner is not None  # noqa: S101 (it was tried)
        return _Held(self._file, self._queues, waiter.owner, list(waiter.wants))

    async def _wait(self, waiter: _Waiter, at: str | None) -> None:
        """Wait in this process's queue for an account until the request is granted or denied.

        Only the request at the head of the queue checks for room.
        """
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
                        at = await _patiently(partial(waiter.attempt, first=True))
                self._leave(loop, there, waiter)
        except BaseException:
            for key in [key for key, queue in self._queues.items() if waiter in queue]:
                self._leave(*key, waiter)
            waiter.give_up()
            raise

    def _pause(self, waited: float) -> float:
        """Return the seconds until a queue's next check for room.

        With more queues, each queue checks less often.
        """
        pause = min(max(waited / 20, SHORTEST_POLL), LONGEST_POLL)
        return pause * len(self._queues) * random.uniform(0.5, 1.5)

    def _leave(self, loop: EventLoopToken, at: str, waiter: _Waiter) -> None:
        queue = self._queues[loop, at]
        del queue[waiter]
        if not queue:
            del self._queues[loop, at]
        else:
            next(iter(queue)).wake()

    # --- rates ---------------------------------------------------------------------------------

    @contextmanager
    def _step(self) -> Generator[tuple[Levels, float]]:
        with self._file.writing() as file:
            yield file.levels, self._file.now()

    async def take(self, takes: Sequence[Take]) -> Turn:
        """Take from several buckets in one step; see `Store.take`.

        Raises:
            StoreError: the file can't be used.
        """
        return await _patiently(partial(self._take, takes))


class _Account(NamedTuple):
    """An account in the file, as one budget sees it."""

    file: StoreFile
    queues: _Queues
    name: str
    limits: Limits

    @property
    def in_use(self) -> bool:
        """Whether this process has reservations in the account."""
        return self.file.holds(self.name)

    def look(self) -> StoreSums:
        waiting = sum(len(queue) for (_, at), queue in self.queues.items() if at == self.name)
        with self.file.reading() as file:
            return file.sums(self.name, waiting)


@dataclass(slots=True, eq=False)
class _Waiter:
    """A request that wants a reservation, until it is granted or denied."""

    _file: StoreFile
    wants: Sequence[tuple[_Account, Amounts]]
    denied: Denied | None = None
    owner: OpenFile | None = None
    woken: anyio.Event | None = None
    _number: int | None = None  # Its number among all processes.
    _place: str | None = None  # The account it waits for.
    _shown: float = -inf

    def wake(self) -> None:
        """Wake the waiting request so that it checks for room immediately."""
        if self.woken is not None:
            self.woken.set()

    def attempt(self, *, first: bool = False) -> str | None:
        """Try to reserve; return None if the request is granted or denied, as ``denied`` tells.

        Otherwise, return the name of the account to wait for. If this is the ``first`` request in
        this process's queue for that account, also keep the process's place among all processes.
        """
        with self._file.writing() as file:
            self.owner = file
            so_far = [file.spent(account.name) for account, _ in self.wants]
            for (account, wanted), (_, spent) in zip(self.wants, so_far, strict=True):
                lacking = beyond(account.limits, spent, wanted)
                if lacking is not None:
                    file.deny(account.name)
                    self.denied = Denied(account, lacking, spent)
                    self._lose_place(file)
                    return None
            for (account, wanted), (_, spent) in zip(self.wants, so_far, strict=True):
                name = account.name
                has_room = _has_room(file, account, spent.plus(wanted))
                if not has_room or file.is_before(name, self._number):
                    if self._place != name:
                        self._lose_place(file)
                    if first and anyio.current_time() - self._shown > REFRESH:
                        self._number = file.take_place(name, self._number)
                        self._shown, self._place = anyio.current_time(), name
                    return name
            for (account, wanted), (begun, _) in zip(self.wants, so_far, strict=True):
                if not begun:
                    file.begin(account.name)
                file.hold(account.name, file.held(account.name).plus(wanted))
            self._lose_place(file)
        return None

    def _lose_place(self, file: OpenFile) -> None:
        """Give up the place in an account's queue, but keep its number for the next account."""
        if self._place is not None and self._number is not None:
            file.leave_place(self._number)
        self._shown, self._place = -inf, None

    def give_up(self) -> None:
        if self._place is not None:
            with suppress(StoreError), self._file.writing() as file:
                self._lose_place(file)


def _has_room(file: OpenFile, account: _Account, wanted: Amounts) -> bool:
    """Return whether ``wanted``, which includes what is spent, fits beside all reservations.

    If there seems to be no room, dead owners are removed first.
    """
    if beyond(account.limits, file.reserved(account.name), wanted) is None:
        return True
    dead: list[int] = []
    living = file.reserved(account.name, dead=dead)
    for owner in dead:
        file.bury(owner)
    return bool(dead) and beyond(account.limits, living, wanted) is None


_Queues: TypeAlias = dict[tuple[EventLoopToken, str], OrderedDict[_Waiter, None]]
"""The waiting requests of this process, by event loop and account."""


class _Held(NamedTuple):
    """The reservation of one request."""

    file: StoreFile
    queues: _Queues
    owner: OpenFile
    wants: list[tuple[_Account, Amounts]]

    def settle(self, charged: Sequence[Amounts], unknown: int = 0) -> None:
        """Release the reservation and charge what was spent; see `Reservation.settle`."""
        if not self.wants:
            return
        wants = [(account.name, wanted) for account, wanted in self.wants]
        self.wants.clear()
        self.file.settle(self.owner, wants, charged, unknown)
        with suppress(anyio.NoEventLoopError):
            loop = current_token()
            for name, _ in wants:
                if queue := self.queues.get((loop, name)):
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
