"""The running cluster: whether it has room; and a small one on this machine."""

from __future__ import annotations

import importlib
import logging
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from mellea_like.batch.ray.capacity import NoRoom, Room, shortage

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

__all__ = ["check_room", "local_cluster", "ray_module"]


def ray_module() -> Any:
    """Import Ray.

    Returns:
        The module ``ray``, with ``ray.data``.

    Raises:
        ImportError: the extra is missing.
    """
    try:  # Its types are partly unknown.
        ray = importlib.import_module("ray")
        importlib.import_module("ray.data")
    except ImportError as exc:
        msg = "sample_dataset needs Ray Data: pip install 'mellea-like[ray]'"
        raise ImportError(msg) from exc
    return ray


def check_room(actors: int, cpus: float, patience: float = 10.0) -> None:
    """Make sure that the running cluster has room.

    Args:
        actors: how many actors.
        cpus: CPUs of each.
        patience: seconds to wait for CPUs that others use; the actors of a dataset that has just
            been read need a moment to leave.

    Raises:
        NoRoom: it has not.
    """
    ray = ray_module()
    until = time.monotonic() + patience
    while True:
        nodes = [node["Resources"].get("CPU", 0.0) for node in ray.nodes() if node["Alive"]]
        missing = shortage(Room(nodes, ray.available_resources().get("CPU", 0.0)), actors, cpus)
        if missing is None:
            return
        if shortage(Room(nodes, sum(nodes)), actors, cpus) or time.monotonic() > until:
            raise NoRoom(missing)
        time.sleep(0.1)


@contextmanager
def local_cluster(
    cpus: int, *, object_store_memory: int | None = None, temp_dir: str | Path | None = None
) -> Generator[None]:
    """Run a Ray cluster on this machine, which listens on 127.0.0.1 only, for a ``with`` block.

    ``ray.init()`` by itself takes the host's address, and what it starts can be reached from
    outside.

    Args:
        cpus: how many CPUs it says it has. Actors whose calls wait may be more than there are CPUs.
        object_store_memory: bytes of memory for blocks; by default what Ray takes.
        temp_dir: where Ray puts its logs and sockets: an absolute path, a short one, since the path
            of a socket has at most 107 bytes. By default Ray's.

    Yields:
        Nothing; ``ray`` is connected to the cluster.

    Raises:
        RuntimeError: Ray is running in this process already.
    """
    ray = ray_module()
    if ray.is_initialized():
        msg = "Ray is running in this process already: use it, or call ray.shutdown() first"
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
