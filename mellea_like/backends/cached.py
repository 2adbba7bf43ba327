"""Replies kept in an SQLite file, so that no request is sent twice.

Processes and threads can share the file, which is in SQLite's write-ahead-log mode. Each reply is
a row that is written once and never changed.
"""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import aclosing, asynccontextmanager, closing, contextmanager, suppress
from functools import partial
from hashlib import blake2b
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakValueDictionary

import anyio
from anyio.lowlevel import checkpoint

from mellea_like.backends.request_counter import word_pieces
from mellea_like.core.argument_checks import whole_number
from mellea_like.core.backend import BackendWrapper, checked_reply
from mellea_like.core.generation import Generation, Usage
from mellea_like.core.kept_replies import (
    described_backend,
    described_request,
    read_reply,
    written_reply,
)
from mellea_like.errors import CacheError
from mellea_like.runtime.event_loops import running_loop
from mellea_like.runtime.logs import warn
from mellea_like.runtime.threads import run_in_thread

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator
    from collections.abc import Generator as Iter

    from mellea_like.core.backend import Backend, Request

__all__ = ["CacheStatistics", "CachedBackend"]

APPLICATION_ID = 0x4D4C6361
"""The number that marks an SQLite file as a cache of this library: ``MLca`` at byte 68 of the file
(https://sqlite.org/fileformat2.html)."""

FORMAT_VERSION = 1
"""The version of the table, stored in the file's ``user_version``."""

TABLE = "CREATE TABLE replies (key BLOB NOT NULL PRIMARY KEY, reply TEXT NOT NULL)"

BUSY_SECONDS = 10.0
"""How long to wait, in seconds, while another connection writes to the file."""

HIT = Usage(cache_hits=1)
"""The cost of a reply from the file: one cache hit, and no request."""


class CacheStatistics(NamedTuple):
    """The statistics of a `CachedBackend`.

    Attributes:
        hits: the number of requests answered from the file.
        misses: the number of requests passed on to the inner backend.
        kept: the number of replies written to the file.
    """

    hits: int = 0
    misses: int = 0
    kept: int = 0


class CachedBackend(BackendWrapper):
    """Keeps replies in a file, and answers repeated requests from it.

    This is for development, tests and evaluations: a program that runs again sends no request
    twice. The key of a reply covers everything that shapes it: the backend, the conversation, the
    options with their seed, the format, the tools, whether the reply is a verdict, and the
    iteration. So the draws of a call stay different from each other, and the next run of the
    program gets the same draws. A retry has the same key as the failed attempt.

    Two equal calls get the same draws, even within one run. If they run at the same time on one
    event loop, one waits for the other's replies. (Streams don't wait: each call gets its own
    reply, and the first one to end is kept.) If the calls should differ, as in an evaluation that
    samples each task several times, give each its own ``seed``.

    A reply from the file costs nothing. Its usage is ``Usage(cache_hits=1)``. Budgets and rate
    limits around this backend charge nothing for it, but must have room for the request. Such a
    reply streams word by word if the inner backend streams.

    Errors, replies that were cancelled or rejected while they arrived, and values that JSON can't
    express aren't kept. A reply that ``max_tokens`` cut off is kept. If a reply can't be written,
    for example because the disk is full, it is still returned, and a warning is logged.

    Args:
        inner: the backend inside.
        path: the file. If necessary, it is created, readable only by its owner.
        name: identifies the inner backend, because other backends may have replies in the same
            file. The default consists of its provider, model and URL. Pass a name if the inner
            backend is a function or has no model name. Then choose a new name whenever the function
            or the model changes.

    Raises:
        TypeError: ``inner`` isn't a backend, or ``path`` isn't a path.
    """

    def __init__(
        self, inner: Backend, path: str | os.PathLike[str], *, name: str | None = None
    ) -> None:
        super().__init__(inner)
        self.path = Path(path)
        self._name = described_backend(inner) if name is None else name
        self._file = _File(self.path)
        self._hits = self._misses = self._kept = 0

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.inner!r} in {self.path}>"

    def apart(self, name: str) -> CachedBackend:
        """Return a backend that uses the same file, but not the replies of this backend.

        Args:
            name: distinguishes the requests to the returned backend from others. It may be the
                number of an evaluation's sample, for example. Names of nested calls are joined by
                spaces: ``apart("a").apart("b")`` has the replies of ``apart("a b")``.

        Returns:
            The backend. Its statistics start at 0.
        """
        other = CachedBackend(self.inner, self.path, name=f"{self._name} {name}")
        other._file = self._file
        return other

    def statistics(self) -> CacheStatistics:
        """Return the numbers of hits, misses and kept replies."""
        return CacheStatistics(self._hits, self._misses, self._kept)

    async def generate(self, request: Request) -> Generation:
        """Answer one request from the file, or else with the inner backend.

        Raises:
            CacheError: the file can't be used.
        """
        key = self._key(request)
        lock = self._file.locks.setdefault((running_loop(), key), anyio.Lock())
        is_first = not lock.locked()
        try:
            await lock.acquire()
        except BaseException:
            request.meter.sent_nothing()
            raise
        if not is_first:
            lock.release()  # The first one has ended. If it has failed, all others are sent now.
            return await self._answer(key, request)
        try:
            return await self._answer(key, request)
        finally:
            lock.release()

    async def _answer(self, key: bytes, request: Request) -> Generation:
        reply = await self._find(key, request)
        if reply is None:
            reply = checked_reply(self.inner, await self.inner.generate(request))
            await self._keep(key, request, reply)
        return reply

    @asynccontextmanager
    async def _stream(self, request: Request) -> AsyncGenerator[AsyncIterator[str | Generation]]:
        key = self._key(request)
        found = await self._find(key, request)
        if found is not None:
            async with aclosing(_pieces(found)) as pieces:
                yield pieces
            return
        async with (
            super()._stream(request) as arriving,
            aclosing(self._passed_on(key, request, arriving)) as pieces,
        ):
            yield pieces

    async def _passed_on(
        self, key: bytes, request: Request, arriving: AsyncIterator[str | Generation]
    ) -> AsyncGenerator[str | Generation]:
        async for piece in arriving:
            if isinstance(piece, Generation):
                await self._keep(key, request, piece)
            yield piece

    async def clear(self) -> int:
        """Delete all replies, including those of other backends and processes.

        Returns:
            The number of deleted replies.

        Raises:
            CacheError: the file can't be used.
        """
        return await self.prune(0)

    async def prune(self, keep: int) -> int:
        """Delete all but the newest replies, regardless of which backend or process wrote them.

        The newest replies are those written last. A hit does not make a reply newer.

        Args:
            keep: the number of replies to keep, at least 0.

        Returns:
            The number of deleted replies. Their disk space is freed.

        Raises:
            CacheError: the file can't be used.
            TypeError: ``keep`` isn't a whole number.
            ValueError: ``keep`` is less than 0.
        """
        whole_number("CachedBackend.prune: keep", keep, least=0)
        return await run_in_thread(self._file.prune, keep)

    async def close_file(self) -> None:
        """Close the file, but not the inner backend. The file is reopened when it is next used."""
        await run_in_thread(self._file.close)

    async def aclose(self) -> None:
        """Close the file and the inner backend's idle connections. Both can be used again."""
        await run_in_thread(self._file.close)
        await super().aclose()

    async def _find(self, key: bytes, request: Request) -> Generation | None:
        try:
            reply = await run_in_thread(self._file.find, key)
        except BaseException:
            request.meter.sent_nothing()
            raise
        if reply is None:
            self._misses += 1
            return None
        self._hits += 1
        request.meter.assume(HIT, None)
        return reply

    async def _keep(self, key: bytes, request: Request, reply: Generation) -> None:
        request.meter.finish(reply)  # It isn't returned if this is cancelled.
        written = written_reply(reply)
        if written is None:
            return
        try:
            await run_in_thread(self._file.keep, key, written)
        except CacheError as exc:  # The reply has been paid for.
            warn("a reply could not be cached: %s", exc)
        else:
            self._kept += 1

    def _key(self, request: Request) -> bytes:
        asked = {
            "backend": self._name,
            "iteration": request.meta.iteration,
            **described_request(request, self.defaults),
        }
        plain = json.dumps(asked, sort_keys=True, default=repr)
        return blake2b(plain.encode(), digest_size=20).digest()


async def _pieces(reply: Generation) -> AsyncGenerator[str | Generation]:
    for piece in word_pieces(reply.text):
        await checkpoint()
        yield piece
    yield reply


class _File:
    """The SQLite file with the replies. All methods block their thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = Lock()
        self._connection: sqlite3.Connection | None = None
        self.locks: WeakValueDictionary[tuple[object, bytes], anyio.Lock] = WeakValueDictionary()
        """Locks of requests in progress, by event loop and key. Equal requests wait for them."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _File, (self._path,)

    def find(self, key: bytes) -> Generation | None:
        """Return the reply that is kept under a key, or None if there is none."""
        with self._opened() as db:
            row = db.execute("SELECT reply FROM replies WHERE key = ?", (key,)).fetchone()
            return None if row is None else read_reply(row[0], HIT)

    def keep(self, key: bytes, reply: str) -> None:
        """Write a reply under a key, unless the file already has one."""
        with self._opened() as db, db:
            db.execute("INSERT OR IGNORE INTO replies VALUES (?, ?)", (key, reply))

    def prune(self, keep: int) -> int:
        """Delete all but the ``keep`` newest replies, and return how many were deleted."""
        forget = (
            "DELETE FROM replies WHERE rowid NOT IN"
            " (SELECT rowid FROM replies ORDER BY rowid DESC LIMIT ?)"
        )
        with self._opened() as db:
            with db:
                forgotten = db.execute(forget, (keep,)).rowcount
            db.execute("VACUUM")
            return forgotten

    def close(self) -> None:
        """Close the file. It is reopened when it is next used."""
        with self._lock:
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.close()

    @contextmanager
    def _opened(self) -> Iter[sqlite3.Connection]:
        try:
            with self._lock:
                if self._connection is None:
                    self._connection = self._open()
                yield self._connection
        except (sqlite3.Error, OSError, KeyError, TypeError, ValueError) as exc:
            msg = f"cache {self._path}: {_why(exc)}"
            raise CacheError(msg) from exc

    def _open(self) -> sqlite3.Connection:
        with suppress(FileExistsError):
            os.close(os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        connect = partial(sqlite3.connect, timeout=BUSY_SECONDS, check_same_thread=False)
        with closing(connect(self._path)) as db:
            with db:
                db.execute("BEGIN IMMEDIATE")  # Another process may be about to create it.
                kind = db.execute("PRAGMA application_id").fetchone()[0]
                version = db.execute("PRAGMA user_version").fetchone()[0]
                if not db.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]:
                    db.execute(TABLE)
                    db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                    db.execute(f"PRAGMA user_version = {FORMAT_VERSION}")
                elif (kind, version) != (APPLICATION_ID, FORMAT_VERSION):
                    whose = f"has version {version}" if kind == APPLICATION_ID else "isn't a cache"
                    msg = f"the existing database {whose}: use another path"
                    raise ValueError(msg)
            db.execute("PRAGMA journal_mode = WAL")
        db = connect(self._path)
        # Replies lost in a power cut can be requested again.
        db.execute("PRAGMA synchronous = NORMAL")
        return db


def _why(error: Exception) -> str:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_NOTADB:
        return "it is neither a cache nor any other SQLite database: use another path"
    if code == sqlite3.SQLITE_CORRUPT or isinstance(error, (KeyError, TypeError)):
        return f"it is damaged ({error}): delete it (a new one is created automatically)"
    if code == sqlite3.SQLITE_BUSY:
        return "another process has locked it"
    if isinstance(error, OSError):
        return f"it can't be opened ({error.strerror})"
    return str(error)
