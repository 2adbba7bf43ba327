"""Batches on a real Ray cluster of two nodes, in a separate network namespace."""

from __future__ import annotations

import re

import pytest

pytestmark = [pytest.mark.ray, pytest.mark.timeout(500)]

ROWS, CALLS = 2000, 14


def test_with_a_killed_worker_two_thousand_rows_are_done_once_and_in_time(scene):
    said = scene("a_worker_is_killed")
    assert (said["rows"], said["ids"]) == (ROWS, ROWS)
    assert said["status"] == {"passed": ROWS}
    assert len(said["calls"]) == ROWS
    assert max(said["calls"].values()) <= 2
    assert said["again"] <= CALLS
    assert said["again_of_others"] == 0
    assert said["nodes"] == 2
    assert said["processes"] == 3  # Two actors, and the one in place of the dead one.
    assert said["took"] <= 8.0 * said["ideal"]  # Twice, on a quiet machine.


def test_a_limit_holds_for_the_whole_cluster(scene):
    said = scene("a_limit_holds_for_the_cluster")
    assert (said["rows"], said["ids"]) == (400, 400)
    assert said["status"] == {"passed": 360, "unfinished": 40}
    assert sum(said["calls"].values()) == 360
    # 40 a second, and a burst; a busy machine sends some a quarter of a second after their grant.
    assert said["most_in_4_seconds"] <= 160 + 10 + 10
    assert said["took"] <= 4 * 9


def test_a_killed_limits_actor_stops_the_cluster_and_the_rest_can_be_sampled_later(scene):
    said = scene("the_limits_actor_is_killed")
    first, again = said["first"], said["again"]
    assert (first["rows"], first["ids"]) == (400, 400)
    assert set(first["status"]) == {"passed", "unfinished"}
    assert said["last_call"] < 5
    assert said["ended"] < 30
    assert len(said["errors"]) == 1
    assert "LimitExceeded: the actor that keeps the cluster's limit is gone" in said["errors"][0]
    assert again["status"] == {"passed": 400}
    assert again["replayed"] == first["status"]["passed"]


def test_what_a_killed_worker_had_under_way_counts_and_the_others_go_on(scene):
    said = scene("a_worker_with_a_limit_is_killed")
    assert (said["rows"], said["ids"]) == (300, 300)
    lost = said["status"]["unfinished"]
    assert 0 < lost <= CALLS
    assert said["status"]["passed"] == 300 - lost
    # As many as the budget has; what was allowed when the worker died was perhaps never sent.
    assert 300 - CALLS <= sum(said["calls"].values()) <= 300


def test_what_is_wrong_is_said_before_anything_runs_and_what_is_done_is_not_done_again(scene):
    said = scene("small_matters")
    assert "the cluster has 6 CPUs, but 7 are needed (1 for each of 6 actors" in said["too many"]
    assert re.match(r"only [12] of the cluster's 6 CPUs are free, but 3 are needed", said["taken"])
    assert said["not checked"]
    assert "the rows have no column 'no such column', only: id" in said["key"]
    assert "either prompt=" in said["both"]
    assert "actors" in said["arguments"]
    assert "an argument can't be sent to an actor" in said["pickle"]
    assert said["requirements"].startswith("requirements must be a list of Requirement objects")
    assert (
        "create what holds connections, locks or threads inside make_strategy"
        in said["pickled factory"]
    )
    assert "make_strategy must be a function that returns a strategy" in said["no factory"]
    assert (
        "make_strategy must be a function that takes one argument" in said["factory without limit"]
    )
    assert (
        "make_strategy must be a function that takes no arguments" in said["factory with argument"]
    )
    failed = "make_strategy failed in a Ray actor: LookupError: no model of that name"
    assert failed in said["factory fails"]
    assert said["first"]["status"] == {"passed": 50}
    assert said["first"]["replayed"] == 0
    assert said["again"]["status"] == {"passed": 50}
    assert said["again"]["replayed"] == 50
    assert set(said["again"]["calls"].values()) == {1}
    assert said["equal"] == [90, 90, 3]  # Equal rows are sampled each; one block is cut in three.
    assert said["columns"][:3] == ["id", "output", "result_output"]
    assert "the cluster has 0 of GPU, but 2 actors with 0.5 each need 1" in said["too few"]
    assert "the cluster has 0 of licence" in said["none of them"]
    assert "actors" in said["fewer than least"]
    assert said["variable"] == ["so"]
    assert said["grown to"] == 2
    assert said["empty"] == 0


def test_a_local_cluster_listens_on_the_loopback_device_only(scene):
    said = scene("a_local_cluster")
    assert said["rows"] == 20
    mapped = "0000000000000000FFFF00000100007F"
    assert said["listening"]
    assert set(said["listening"]) <= {"0100007F", mapped, "0" * 24 + "01000000"}
    assert "Ray is already running in this process" in said["twice"]
    assert said["initialized"] is False
    assert "Ray is not running in this process" in said["no ray"]
