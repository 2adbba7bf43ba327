"""Whether a cluster has room for actors and one task beside them, in a table."""

from __future__ import annotations

import pytest

from mellea_like.batch.ray.cluster import shortage


@pytest.mark.parametrize(
    ("nodes", "available", "actors", "cpus", "says"),
    [
        ([4], 4, 3, 1.0, None),
        ([4], 4, 4, 1.0, "the cluster has 4 CPUs, and 4 actors of 1 CPU and the one CPU"),
        ([2], 2, 2, 0.5, None),
        ([2], 2, 3, 0.5, "are 2.5: Ray Data would wait forever"),
        ([1], 1, 8, 0.0, None),
        ([0.5], 0.5, 8, 0.0, "the cluster has 0.5 CPUs"),
        ([], 0, 1, 1.0, "the cluster has 0 CPUs"),
        ([2, 2], 4, 3, 1.0, None),
        ([2, 2], 4, 1, 2.0, None),
        ([2, 2, 2], 6, 2, 2.0, None),
        ([3, 3], 6, 2, 2.0, None),
        ([2, 2, 1], 5, 2, 2.0, None),
        ([3, 1, 1], 5, 2, 2.0, "nodes have 3, 1, 1 CPUs, and 2 actors of 2 CPU"),
        ([0.5, 0.5, 0.5], 1.5, 1, 0.5, "nodes have 0.5, 0.5, 0.5 CPUs"),
        ([8], 2, 2, 1.0, "of the cluster's 8 CPUs, only 2 are free"),
        ([8], 3, 2, 1.0, None),
        ([8], 2.9999999, 2, 1.0, None),
    ],
)
def test_a_cluster_without_room_says_what_is_missing(nodes, available, actors, cpus, says):
    found = shortage(nodes, available, actors, cpus)
    if says is None:
        assert found is None
    else:
        assert says in found
