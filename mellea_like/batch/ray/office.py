"""The office of a cluster's limit: a named Ray actor, and how workers find or make it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import anyio.to_thread

from mellea_like.batch.ray.cluster import ray_module
from mellea_like.batch.ray.leases import LeaseBook
from mellea_like.batch.ray.lessee import Lessee, OfficeGone

if TYPE_CHECKING:
    from mellea_like.batch.ray.leases import Answer, Ask
    from mellea_like.batch.ray.limit import ClusterLimit

__all__ = ["RayOffice", "leased_limit", "office_name", "open_office"]


def office_name(limit: ClusterLimit) -> str:
    """Return what the office is called in the cluster.

    Args:
        limit: the limit.

    Returns:
        The name of the actor.
    """
    return f"mellea-like-office-{limit.name}"


class OfficeActor:
    """What runs in the office's process.

    Args:
        limit: the cluster's limit.
        workers: how many workers are expected.
        first: whether there was no office before.
    """

    def __init__(self, limit: ClusterLimit, workers: int, first: bool) -> None:  # noqa: FBT001
        now = time.monotonic()
        self._book = LeaseBook(limit.total, limit.lease_seconds, workers, now, first=first)

    async def answer(self, ask: Ask) -> Answer:
        """Answer a worker.

        Args:
            ask: what it says.

        Returns:
            The answer.
        """
        return self._book.answer(time.monotonic(), ask)


def open_office(limit: ClusterLimit, workers: int) -> OpenOffice:
    """Make the office, or find it where another dataset has made it.

    Args:
        limit: the limit.
        workers: how many workers there will be.

    Returns:
        Its handle: there is an office as long as someone has one.
    """
    return OpenOffice(_actor(limit, workers, first=True), workers)


class OpenOffice:
    """An office that was made.

    Args:
        actor: its handle.
        workers: how many workers there will be.
    """

    def __init__(self, actor: Any, workers: int) -> None:
        self.actor = actor
        self.workers = workers


def _actor(limit: ClusterLimit, workers: int, *, first: bool) -> Any:
    made = ray_module().remote(num_cpus=0, max_restarts=0)(OfficeActor)
    return made.options(name=office_name(limit), get_if_exists=True).remote(limit, workers, first)


def leased_limit(limit: ClusterLimit, opened: OpenOffice) -> Lessee:
    """Make the limit that stands in this actor for the cluster's.

    Args:
        limit: the cluster's limit.
        opened: the office.

    Returns:
        The limit.
    """
    actor_id = ray_module().get_runtime_context().get_actor_id()
    office = RayOffice(limit, opened)
    return Lessee(
        limit,
        office,
        worker=actor_id or uuid4().hex,
        holder=uuid4().hex,
        workers=opened.workers,
    )


class RayOffice:
    """The way to the office; where it is gone, the next question goes to a new one.

    Args:
        limit: the limit.
        opened: the first office.
    """

    def __init__(self, limit: ClusterLimit, opened: OpenOffice) -> None:
        self._limit = limit
        self._workers = opened.workers
        self._actor: Any = opened.actor

    async def exchange(self, ask: Ask) -> Answer:
        """Ask the office.

        Args:
            ask: what the worker says.

        Returns:
            What the office says.

        Raises:
            OfficeGone: it is dead, or none can be made.
        """
        ray = ray_module()
        try:
            if self._actor is None:
                # Asks the cluster, and waits for it.
                self._actor = await anyio.to_thread.run_sync(self._found, abandon_on_cancel=True)
            answer: Answer = await self._actor.answer.remote(ask)
        except ray.exceptions.RayError as exc:
            self._actor = None
            raise OfficeGone(str(exc).partition("\n")[0]) from exc
        except (ValueError, RuntimeError) as exc:
            self._actor = None
            msg = f"no office can be made: {exc}"
            raise OfficeGone(msg) from exc
        return answer

    def _found(self) -> Any:
        return _actor(self._limit, self._workers, first=False)
