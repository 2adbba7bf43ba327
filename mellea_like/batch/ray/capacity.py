"""Whether a cluster has room for actors, and for the one CPU beside them that Ray Data needs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["NoRoom", "Room", "shortage"]

ONE_TASK = 1.0
"""CPUs that a task of Ray Data takes: one that reads or cuts blocks."""

SLACK = 1e-6
"""CPUs that count as none; Ray counts in ten-thousandths."""


class NoRoom(RuntimeError):
    """The cluster has too few CPUs; Ray Data would wait for them without a word."""


class Room(NamedTuple):
    """The CPUs of a cluster.

    Attributes:
        nodes: those of each node that is alive.
        available: those of all nodes that nobody uses.
    """

    nodes: Sequence[float]
    available: float


def shortage(room: Room, actors: int, cpus: float) -> str | None:
    """Say why a cluster has no room for actors and for one task beside them.

    Args:
        room: the cluster's CPUs.
        actors: how many actors.
        cpus: CPUs of each.

    Returns:
        A sentence that says what is missing and what to do; None where there is room.
    """
    total = sum(room.nodes)
    needed = actors * cpus + ONE_TASK
    wanted = f"{actors} actors of {cpus:g} CPU and the one CPU that Ray Data's own tasks need"
    if total + SLACK < needed:
        return (
            f"the cluster has {total:g} CPUs, and {wanted} are {needed:g}: Ray Data would wait for"
            f" ever; use fewer actors, a smaller cpus_per_actor (calls wait, they hardly compute),"
            " or a larger cluster"
        )
    if cpus > 0:
        places = [_fitting(node, cpus) for node in room.nodes]
        lost = [
            place - _fitting(node - ONE_TASK, cpus)
            for node, place in zip(room.nodes, places, strict=True)
            if node + SLACK >= ONE_TASK
        ]
        if not lost or sum(places) - min(lost) < actors:
            sizes = ", ".join(f"{node:g}" for node in room.nodes)
            return (
                f"the cluster's nodes have {sizes} CPUs, and {wanted} do not fit on them: an actor"
                " and a task each stand on one node; use fewer actors or a smaller cpus_per_actor"
            )
    if room.available + SLACK < needed:
        return (
            f"of the cluster's {total:g} CPUs, only {room.available:g} free, and {wanted} are"
            f" {needed:g}: others use the rest; wait for them, use fewer actors, or pass"
            " check_cluster=False if they will end"
        )
    return None


def _fitting(node: float, cpus: float) -> int:
    return math.floor((node + SLACK) / cpus)
