"""The code that calls Ray: a cluster's capacity, local clusters, the actor of a `ClusterLimit`."""

from __future__ import annotations

import importlib
import logging
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from mellea_like.lazy import needs_extra

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping
    from pathlib import Path

    from mellea_like.batch.ray.cluster_limit import Ask, ClusterLimit, LimitKeeper
    from mellea_like.limits.base import RequestEnd

ONE_TASK = 1.0
"""The CPUs that a Ray Data task needs to read or split blocks."""

PATIENCE = 10.0
"""The seconds to wait for CPUs. The actors of a dataset that was just read need a moment to end."""

SLACK = 1e-6
"""The tolerance for rounding errors in sums of resources, which Ray counts in ten-thousandths."""


class NoRoom(RuntimeError):
    """The cluster lacks CPUs, GPUs or custom resources. Ray Data would wait for them silently."""


def ray_module() -> Any:
    """Import and return Ray, including ``ray.data``; an ImportError names the missing extra."""
    with needs_extra("ray", "sample_dataset needs Ray Data"):  # Its types are partly unknown.
        importlib.import_module("ray.data")
        return importlib.import_module("ray")


def check_room(actors: int, cpus: float, others: Mapping[str, float]) -> None:
    """Raise `NoRoom` if the running cluster has too little capacity for the actors."""
    ray = ray_module()
    until = time.monotonic() + PATIENCE
    while True:
        alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        nodes = [resources.get("CPU", 0.0) for resources in alive]
        for name, each in others.items():
            there = sum(resources.get(name, 0.0) for resources in alive)
            if there + SLACK < actors * each:
                msg = (
                    f"the cluster has {there:g} of {name}, but {actors} actors with {each:g} each"
                    f" need {actors * each:g}: Ray Data would wait forever; use fewer actors or a"
                    " larger cluster"
                )
                raise NoRoom(msg)
        total, free = sum(nodes), ray.available_resources().get("CPU", 0.0)
        missing = _shortage(total, free, actors, cpus)
        if missing is None:
            return
        if _shortage(total, total, actors, cpus) or time.monotonic() > until:
            raise NoRoom(missing)
        time.sleep(0.1)


def _shortage(total: float, free: float, actors: int, cpus: float) -> str | None:
    """Return the reason why the actors and one task need more CPUs; None if there are enough."""
    needed = actors * cpus + ONE_TASK
    wanted = (
        f"{needed:g} are needed ({cpus:g} for each of {actors} actors, and one for Ray Data's own"
        " tasks)"
    )
    if total + SLACK < needed:
        return (
            f"the cluster has {total:g} CPUs, but {wanted}: Ray Data would wait forever; use"
            " fewer actors, a smaller cpus_per_actor (calls mostly wait, and hardly compute), or a"
            " larger cluster"
        )
    if free + SLACK < needed:
        return (
            f"only {free:g} of the cluster's {total:g} CPUs are free, but {wanted}: others are"
            " using the rest; wait for them, use fewer actors, or pass check_cluster=False if they"
            " will end"
        )
    return None


@contextmanager
def local_cluster(
    cpus: int, *, object_store_memory: int | None = None, temp_dir: str | Path | None = None
) -> Generator[None]:
    """Run a Ray cluster on this machine during a ``with`` block. It listens on 127.0.0.1 only.

    ``ray.init()`` alone would use the host's address, and other machines could reach the cluster.

    Args:
        cpus: the number of CPUs that the cluster claims to have. It can be more than the machine
            has if calls mostly wait.
        object_store_memory: the bytes of memory for blocks of data; by default, Ray chooses.
        temp_dir: the folder for Ray's logs and sockets; by default, Ray chooses. It must be an
            absolute path, and a short one, because a socket's path has at most 107 bytes.

    Yields:
        Nothing; ``ray`` is connected to the cluster.

    Raises:
        RuntimeError: Ray is already running in this process.
    """
    ray = ray_module()
    if ray.is_initialized():
        msg = "Ray is already running in this process: use it, or call ray.shutdown() first"
        raise RuntimeError(msg)
    ray.init(
        address="local",
        num_cpus=cpus,
        object_store_memory=object_store_memory,
        include_dashboard=False,
        logging_level=logging.WARNING,
        _node_ip_address="127.0.0.1",
        _temp_dir=None if temp_dir is None else str(temp_dir),
    )
    try:
        yield
    finally:
        ray.shutdown()


# --- the actor of a cluster's limit --------------------------------------------------------------


class KeeperGone(Exception):
    """The actor that holds a `ClusterLimit` is dead, or can't be reached."""


class RayKeeper:
    """A handle of a `ClusterLimit`'s actor, with the methods of the `LimitKeeper` in that actor."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    async def acquire(self, name: str, ask: Ask) -> Exception | None:
        """Wait until a request may be sent and return None, or return the error that forbids it."""
        return cast("Exception | None", await self._answer(self._actor.acquire.remote(name, ask)))

    async def alive(self, name: str) -> None:
        """Report that the worker called ``name`` is alive."""
        await self._answer(self._actor.alive.remote(name))

    def settle(self, name: str, number: int, end: RequestEnd) -> None:
        """Report how a request ended, without waiting for an answer."""
        self._actor.settle.remote(name, number, end)

    async def _answer(self, answer: Any) -> Any:
        try:
            return await answer
        except ray_module().exceptions.RayError as exc:
            raise KeeperGone(str(exc).strip().partition("\n")[0]) from exc


def open_limit_actor(keeper: type[LimitKeeper], limit: ClusterLimit) -> Any:
    """Return the limit's actor; create it on the driver's node if there is none yet."""
    ray = ray_module()
    strategies: Any = importlib.import_module("ray.util.scheduling_strategies")
    here = ray.get_runtime_context().get_node_id()
    return (
        # By default, Ray admits 1,000 concurrent calls, so waiting calls would block `settle`.
        ray.remote(num_cpus=0, max_restarts=0, max_concurrency=100_000)(keeper)
        .options(
            name=f"mellea-like-limit-{limit.name}",
            get_if_exists=True,
            scheduling_strategy=strategies.NodeAffinitySchedulingStrategy(here, soft=True),
        )
        .remote(limit)
    )
