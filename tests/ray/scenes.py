"""Scenes to run inside the namespace, on a real cluster of two nodes: ``scenes.py DIRECTORY``.

Each scene returns what happened; the tests judge it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from contextlib import contextmanager, suppress
from pathlib import Path
from unittest import mock

import ray
import ray.data
from ray.cluster_utils import Cluster

from mellea_like.batch.ray import ClusterLimit, NoRoom, local_cluster, sample_dataset
from mellea_like.batch.ray.cluster_limit import LimitKeeper

MEMORY = 100 * 2**20
SESSION = f"{os.environ['RAY_TMPDIR']}/ray"  # Where Ray notes the address of a cluster, too.
ROWS, WORK, ACTORS, CALLS = 2000, 0.25, 2, 14
ONE_A_NODE = {"cpus_per_actor": 2.0}  # Of three; the third is for Ray Data's own tasks.


@contextmanager
def two_nodes():
    node = {"num_cpus": 3, "object_store_memory": MEMORY, "node_ip_address": "127.0.0.1"}
    head = {**node, "include_dashboard": False, "temp_dir": SESSION}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        cluster.add_node(**node)
        ray.init(
            address=cluster.address,
            logging_level="WARNING",
            log_to_driver=False,
            _node_ip_address="127.0.0.1",
        )
        ray.data.DataContext.get_current().enable_progress_bars = False
        yield
    finally:
        ray.shutdown()
        cluster.shutdown()


def maker(log, seconds=WORK):
    """Return a function that makes a strategy whose backend waits, and logs each call in a file."""

    def make(limit=None):
        import anyio

        from mellea_like import RejectionSamplingStrategy
        from mellea_like.backends import FunctionBackend
        from mellea_like.limits import LimitedBackend

        def note(what, prompt):
            line = f"{what} {os.getpid()} {time.time():.4f} {prompt}\n"
            file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            os.write(file, line.encode())
            os.close(file)

        async def reply(request):
            prompt = request.messages[-1].content
            note("begin", prompt)
            await anyio.sleep(seconds)
            note("end", prompt)
            return f"{ray.get_runtime_context().get_node_id()} {os.getpid()}"

        backend = FunctionBackend(reply)
        if limit is not None:
            backend = LimitedBackend(backend, limit)
        return RejectionSamplingStrategy(backend, loop_budget=1)

    return make


def noted(log, what="begin"):
    """Return the calls in a log: process, time, prompt."""
    with suppress(FileNotFoundError):
        whole, _, _ = Path(log).read_text(encoding="utf-8").rpartition("\n")
        # A write across two pages of the file may be seen half done.
        found = [line.split(" ", 3) for line in whole.splitlines()]
        return [(int(pid), float(at), prompt) for kind, pid, at, prompt in found if kind == what]
    return []


def seen(rows, log):
    """Return the outcomes of the rows, and the calls that were made."""
    return {
        "rows": len(rows),
        "ids": len({row["id"] for row in rows}),
        "status": Counter(row["status"] for row in rows),
        "replayed": sum(row["replayed"] for row in rows),
        "nodes": len({row["output"].split()[0] for row in rows if row["output"]}),
        "processes": len({pid for pid, _, _ in noted(log)}),
        "calls": Counter(prompt for _, _, prompt in noted(log)),
    }


def sampled(directory, rows, **more):
    log = f"{directory}/calls"
    settings = {"prompt": "row {{ id }}", "actors": ACTORS, "calls_per_actor": CALLS} | more
    return sample_dataset(ray.data.range(rows), maker(log), **settings), log


# --- scenes -----------------------------------------------------------------------------------


def a_worker_is_killed(directory):
    journals = f"{directory}/journals"
    dataset, log = sampled(directory, ROWS, journal_dir=journals, **ONE_A_NODE)
    killed = {}

    def kill():
        while len(noted(log)) < ROWS // 2:
            time.sleep(0.05)
        pid = noted(log)[-1][0]
        os.kill(pid, signal.SIGKILL)
        killed["pid"] = pid

    killer = threading.Thread(target=kill)
    began = time.monotonic()
    killer.start()
    rows = dataset.take_all()
    took = time.monotonic() - began
    killer.join()
    result = seen(rows, log)
    again = {prompt for prompt, times in result["calls"].items() if times > 1}
    firsts = {}
    for pid, _, prompt in noted(log):
        firsts.setdefault(prompt, pid)
    return result | {
        "took": took,
        "ideal": ROWS * WORK / (ACTORS * CALLS),
        "again": len(again),
        "again_of_others": sum(firsts[prompt] != killed["pid"] for prompt in again),
    }


def a_limit_holds_for_the_cluster(directory):
    limit = ClusterLimit(requests_per_minute=2400, burst_seconds=0.25, requests=360)
    dataset, log = sampled(directory, 400, actors=2, limits=limit, rows_per_shard=30)
    rows = dataset.take_all()
    times = sorted(at for _, at, _ in noted(log))
    most = max(sum(at <= other < at + 4 for other in times) for at in times)
    return seen(rows, log) | {"most_in_4_seconds": most, "took": times[-1] - times[0]}


def the_limits_actor_is_killed(directory):
    limit = ClusterLimit(requests=1000)
    more = {"rows_per_shard": 30, "journal_dir": f"{directory}/journals"}
    dataset, log = sampled(directory, 400, limits=limit, **more)
    killed = {}

    def kill():
        while len(noted(log)) < 150:
            time.sleep(0.05)
        killed["at"] = time.time()
        ray.kill(ray.get_actor(f"mellea-like-limit-{limit.name}"))

    killer = threading.Thread(target=kill)
    killer.start()
    rows = dataset.take_all()
    ended = time.time()
    killer.join()
    first = seen(rows, log)
    again, _ = sampled(directory, 400, limits=ClusterLimit(requests=1000), **more)
    return {
        "first": first,
        "last_call": max(at for _, at, _ in noted(log)) - killed["at"],
        "ended": ended - killed["at"],
        "errors": sorted({row["error"] for row in rows if row["error"]}),
        "again": seen(again.take_all(), log),
    }


class Impatient(LimitKeeper):
    """A `LimitKeeper` that takes a worker for dead sooner."""

    silence = 12.0  # More than two signs of life are missed.


def a_worker_with_a_limit_is_killed(directory):
    limit = ClusterLimit(requests=300)
    journals = f"{directory}/journals"
    with mock.patch("mellea_like.batch.ray.dataset.LimitKeeper", Impatient):
        dataset, log = sampled(directory, 300, limits=limit, journal_dir=journals)

    def kill():
        while len(noted(log)) < 150:
            time.sleep(0.05)
        os.kill(noted(log)[-1][0], signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    rows = dataset.take_all()
    killer.join()
    return seen(rows, log)


def said_so():
    import anyio

    from mellea_like import RejectionSamplingStrategy
    from mellea_like.backends import FunctionBackend

    async def reply(request):
        await anyio.sleep(0.2)
        return f"{os.environ['SAID']} {os.getpid()}"

    return RejectionSamplingStrategy(FunctionBackend(reply))


def small_matters(directory):
    said = {}

    def refused(name, kind, **more):
        try:
            sampled(directory, 10, **more)
        except kind as exc:
            said[name] = str(exc)

    refused("too many", NoRoom, actors=6)
    refused("key", ValueError, key="no such column")
    refused("both", TypeError, action=str)
    refused("arguments", TypeError, limits=ClusterLimit(requests=1), actors="2")
    lock = threading.Lock()
    refused("pickle", TypeError, requirements=[lock])
    refused("requirements", TypeError, requirements={"short": 1})
    for name, factory, more in (
        ("pickled factory", lambda: lock, {}),
        ("no factory", "strategy", {}),
        ("factory without limit", lambda: None, {"limits": ClusterLimit(requests=1)}),
        ("factory with argument", lambda x: None, {}),
    ):
        try:
            sample_dataset(ray.data.range(3), factory, prompt="{{ id }}", actors=1, **more)
        except TypeError as exc:
            said[name] = str(exc)

    def broken():
        raise LookupError("no model of that name")

    try:
        sample_dataset(ray.data.range(3), broken, prompt="{{ id }}", actors=1).take_all()
    except ray.exceptions.RayError as exc:
        said["factory fails"] = str(exc)

    # The same rows again come from the journals; so they do in one large block.
    journals = f"{directory}/small"
    kept, log = sampled(directory, 50, actors=1, journal_dir=journals)
    said["first"] = seen(kept.take_all(), log)
    said["again"] = seen(kept.take_all(), log)
    log = f"{directory}/equal"
    journals = f"{directory}/equal-journals"
    equal = ray.data.from_items([{"id": 7, "output": "mine"}] * 90, override_num_blocks=1)
    rows = sample_dataset(
        equal, maker(log, 0.01), prompt="{{ id }}", actors=2, journal_dir=journals
    ).take_all()
    said["equal"] = [len(rows), len(noted(log)), len(list(Path(journals).glob("*.db")))]
    said["columns"] = list(rows[0])
    refused("too few", NoRoom, actors=(1, 2), num_gpus=0.5)
    refused("none of them", NoRoom, actors=1, resources={"licence": 1})
    refused("fewer than least", ValueError, actors=(2, 1))
    env = {"env_vars": {"SAID": "so"}}
    rows = sample_dataset(
        ray.data.range(400),
        said_so,
        prompt="{{ id }}",
        actors=(1, 2),
        calls_per_actor=4,
        runtime_env=env,
    ).take_all()
    said["variable"] = sorted({row["output"].split()[0] for row in rows})
    said["grown to"] = len({row["output"] for row in rows})
    empty, log = sampled(f"{directory}/none", 0, actors=1)
    said["empty"] = len(empty.take_all())

    @ray.remote(num_cpus=2)
    class Other:
        def there(self):
            return True

    others = [Other.remote() for _ in range(2)]
    ray.get([other.there.remote() for other in others])
    refused("taken", NoRoom, actors=2)
    said["not checked"] = sampled(directory, 10, actors=2, check_cluster=False)[0] is not None
    for other in others:
        ray.kill(other)
    return said


def a_local_cluster(directory):
    said = {}
    with local_cluster(2, object_store_memory=MEMORY, temp_dir=SESSION):
        dataset, log = sampled(directory, 20, actors=2, cpus_per_actor=0.5)
        said["rows"] = seen(dataset.take_all(), log)["rows"]
        said["listening"] = listening()
        try:
            with local_cluster(2):
                pass
        except RuntimeError as exc:
            said["twice"] = str(exc)
    said["initialized"] = ray.is_initialized()
    try:
        sample_dataset(dataset, maker(log), prompt="{{ id }}")
    except RuntimeError as exc:
        said["no ray"] = str(exc)
    return said


def listening():
    """Return the addresses at which something in this namespace listens, as /proc has them."""
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text(encoding="ascii").splitlines()[1:]:
            address, state = line.split()[1], line.split()[3]
            if state == "0A":
                found.add(address.partition(":")[0])
    return sorted(found)


ON_TWO_NODES = (
    a_worker_is_killed,
    a_limit_holds_for_the_cluster,
    the_limits_actor_is_killed,
    a_worker_with_a_limit_is_killed,
    small_matters,
)


def played(scene, where):
    directory = Path(where, scene.__name__)
    directory.mkdir()
    began = time.monotonic()
    try:
        outcome = scene(str(directory))
    except Exception:  # noqa: BLE001 (the other scenes go on)
        outcome = {"failed": traceback.format_exc()}
    sys.stdout.write(f"{scene.__name__}: {time.monotonic() - began:.1f} s\n")
    return outcome


if __name__ == "__main__":
    where = sys.argv[1]
    with two_nodes():
        outcomes = {scene.__name__: played(scene, where) for scene in ON_TWO_NODES}
    outcomes["a_local_cluster"] = played(a_local_cluster, where)
    Path(where, "outcome.json").write_text(json.dumps(outcomes), encoding="utf-8")
