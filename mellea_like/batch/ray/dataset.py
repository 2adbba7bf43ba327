"""`sample_dataset`: sample the rows of a Ray dataset."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mellea_like.batch.api import check_takes_one
from mellea_like.batch.ray.cluster import check_room, open_limit_actor, ray_module
from mellea_like.batch.ray.cluster_limit import LimitKeeper
from mellea_like.batch.ray.shards import POSITION, ShardSampler, ShardWork, prompt_maker
from mellea_like.core.argument_checks import real_number, takes, whole_number
from mellea_like.core.requirement import Requirement

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ray.data import Dataset

    from mellea_like.batch.ray.cluster_limit import ClusterLimit
    from mellea_like.core.backend import Options
    from mellea_like.core.conversation import Action
    from mellea_like.sampling.base import BaseSamplingStrategy

SHARDS_AT_A_TIME = 3
"""The number of shards that an actor works on at a time, so that it stays busy when one ends."""


def sample_dataset(
    dataset: Dataset,
    make_strategy: Callable[..., BaseSamplingStrategy],
    *,
    prompt: str | None = None,
    action: Callable[[Mapping[str, Any]], str | Action[Any]] | None = None,
    requirements: Iterable[Requirement | str] = (),
    format: Any = None,
    options: Options | Mapping[str, Any] | None = None,
    actors: int | tuple[int, int] = 2,
    calls_per_actor: int = 16,
    cpus_per_actor: float = 1.0,
    num_gpus: float | None = None,
    resources: Mapping[str, float] | None = None,
    runtime_env: Mapping[str, Any] | None = None,
    rows_per_shard: int | None = None,
    key: str | None = None,
    journal_dir: str | Path | None = None,
    limits: ClusterLimit | None = None,
    check_cluster: bool = True,
) -> Dataset:
    """Sample each row of a Ray dataset, on several actors that each make many calls at a time.

    Like all Ray datasets, the result is lazy: its rows are sampled each time that it is read. To
    sample them only once, use ``journal_dir`` or call ``materialize()``. A row that fails never
    stops the dataset; its ``status`` shows the failure.

    The rows are divided into shards. If an actor dies, Ray restarts it with the same shards. With
    ``journal_dir``, the actor skips finished rows, and repeats at most the calls that were running.
    Without ``journal_dir``, it samples the whole shard again.

    The output has the columns of the input and the columns of `RowOutcome`: ``output``, ``value``,
    ``success``, ``status``, ``reasons``, ``error``, ``iterations``, ``elapsed``, ``requests``,
    ``input_tokens``, ``output_tokens``, ``unknown`` and ``replayed``.

    Args:
        dataset: the rows.
        make_strategy: a function that makes the strategy. It is called once in each actor, so that
            connections are opened there. With ``limits``, it takes the limit as its argument, and
            must put it around each backend with `LimitedBackend`.
        prompt: a Jinja template of a row's prompt, as on the command line. ``{{ question }}`` is
            the value of a column.
        action: a function that makes the prompt of a row, instead of ``prompt``. If it raises, the
            row is ``errored`` with that error.
        requirements: the requirements of each reply, in addition to the strategy's.
        format: the type to parse replies to. The column ``value`` has the values as JSON.
        options: options for generating; the default is the strategy's options.
        actors: the number of actors, each in its own process. With ``(min, max)``, Ray Data adapts
            the number to the work.
        calls_per_actor: the number of calls that each actor makes at a time, on one event loop.
        cpus_per_actor: the CPUs that Ray counts for an actor. Calls mostly wait, so a fraction of
            a CPU is often enough.
        num_gpus: the GPUs that Ray counts for an actor, for models that ``make_strategy`` loads. A
            fraction is allowed.
        resources: the custom resources that Ray counts for an actor, by name.
        runtime_env: Ray's runtime environment for the actors: packages, variables, files.
        rows_per_shard: the number of rows in a shard. An actor gets them together, and they share
            a journal. The default is twice ``calls_per_actor``.
        key: a column that identifies each row. By default, rows are identified by their contents
            and positions.
        journal_dir: a directory for the shards' journals, one file each. With several machines,
            all of them must share it, and it must support file locks. Otherwise, an actor that is
            restarted on another machine starts its shards from the beginning. A different dataset
            or prompt needs a different directory.
        limits: the limits that all actors share: rates, a budget, or both.
        check_cluster: whether to check first that the cluster has enough free capacity. Pass False
            if the cluster grows by itself, or if other jobs will end and make room.

    Returns:
        The dataset of results.

    Raises:
        NoRoom: the cluster lacks GPUs, custom resources or free CPUs for all actors (``max`` of
            them), or the one further CPU that Ray Data's own tasks need. Without this error, Ray
            Data would wait forever without a message.
        TypeError: an argument is of the wrong type or can't be sent to an actor, or ``prompt`` and
            ``action`` are both given or both missing.
        ValueError: a number is out of range, the prompt isn't a template, or a column is missing.
        RuntimeError: Ray isn't running in this process.
    """
    ray = ray_module()
    fewest, most = actors if isinstance(actors, tuple) else (actors, actors)
    whole_number("sample_dataset: actors", fewest)
    whole_number("sample_dataset: actors", most, least=fewest)
    if num_gpus is not None:
        real_number("sample_dataset: num_gpus", num_gpus, least=0)
    whole_number("sample_dataset: calls_per_actor", calls_per_actor)
    real_number("sample_dataset: cpus_per_actor", cpus_per_actor, least=0)
    rows = 2 * calls_per_actor if rows_per_shard is None else rows_per_shard
    whole_number("sample_dataset: rows_per_shard", rows)
    if not isinstance(dataset, ray.data.Dataset):
        msg = f"dataset must be a ray.data.Dataset, not {type(dataset).__name__}"
        raise TypeError(msg)
    _check_factory(make_strategy, limits)
    arguments = {
        "action": _row_action(prompt, action),
        "requirements": _listed(requirements),
        "format": format,
        "options": options,
        "settings": None if prompt is None else {"prompt": prompt},
    }
    directory = None if journal_dir is None else os.fspath(Path(journal_dir).absolute())
    work = ShardWork(make_strategy, arguments, calls_per_actor, key, directory)
    _check_sendable(work, limits)
    if not ray.is_initialized():
        msg = (
            "Ray is not running in this process: connect with ray.init(address=...), or use"
            " mellea_like.batch.ray.local_cluster, which listens on 127.0.0.1 only (ray.init()"
            " alone listens on the host's address)"
        )
        raise RuntimeError(msg)
    if key is not None:
        _check_column(dataset, key)
    if check_cluster:
        check_room(most, cpus_per_actor, {"GPU": num_gpus or 0.0, **(resources or {})})
    if limits is not None:
        work.limit_actor = open_limit_actor(LimitKeeper, limits)
    shards: Any = dataset
    if key is None:
        expressions: Any = importlib.import_module("ray.data.expressions")
        shards = shards.with_column(POSITION, expressions.monotonically_increasing_id())
    shards = shards.repartition(target_num_rows_per_block=rows)
    pool = ray.data.ActorPoolStrategy(
        min_size=fewest,
        max_size=most,
        max_concurrent_calls_per_actor=SHARDS_AT_A_TIME,
        # Ray Data adds an actor if the existing ones have more shards waiting than they work on.
        max_tasks_in_flight_per_actor=SHARDS_AT_A_TIME * (1 if fewest == most else 2),
    )
    of_ray = {"resources": resources, "runtime_env": runtime_env}
    sampled: Dataset = shards.map_batches(
        ShardSampler,
        fn_constructor_args=(work,),
        # A block is a shard. With GPUs, Ray Data requires a number, and may merge remainders.
        batch_size=rows if num_gpus else None,
        batch_format="pyarrow",
        compute=pool,
        num_cpus=cpus_per_actor,
        num_gpus=num_gpus,
        **{name: dict(value) for name, value in of_ray.items() if value is not None},
        udf_modifying_row_count=False,
    )
    return sampled


def _row_action(
    prompt: str | None, action: Callable[[Mapping[str, Any]], Any] | None
) -> Callable[[Mapping[str, Any]], Any]:
    if (prompt is None) == (action is None):
        msg = "sample_dataset takes either prompt='… {{ column }} …' or action=function_of_a_row"
        raise TypeError(msg)
    check_takes_one("action", action, "a row")
    if action is not None:
        return action
    if not isinstance(prompt, str):
        msg = f"prompt must be a template with column names in double braces, not {prompt!r}"
        raise TypeError(msg)
    return prompt_maker(prompt)


def _listed(requirements: Iterable[Requirement | str]) -> tuple[Requirement | str, ...]:
    if isinstance(requirements, str | Requirement | Mapping):
        msg = f"requirements must be a list of Requirement objects and texts, not {requirements!r}"
        raise TypeError(msg)
    return tuple(requirements)


def _check_factory(make_strategy: Any, limits: Any) -> None:
    if not callable(make_strategy):
        msg = (
            "make_strategy must be a function that returns a strategy, because each actor needs its"
            f" own: pass lambda: {type(make_strategy).__name__}(…)"
        )
        raise TypeError(msg)
    if not takes(make_strategy, 0 if limits is None else 1):
        given = "no arguments (without limits=)" if limits is None else "one argument, the limit"
        msg = f"make_strategy must be a function that takes {given}, not {make_strategy!r}"
        raise TypeError(msg)


def _check_sendable(work: ShardWork, limits: ClusterLimit | None) -> None:
    cloudpickle: Any = importlib.import_module("ray.cloudpickle")
    try:
        cloudpickle.dumps((work, limits))
    except Exception as exc:
        msg = (
            f"sample_dataset: an argument can't be sent to an actor ({type(exc).__name__}: {exc}):"
            " create what holds connections, locks or threads inside make_strategy"
        )
        raise TypeError(msg) from exc


def _check_column(dataset: Dataset, key: str) -> None:
    names = dataset.columns(fetch_if_missing=False)
    if names is not None and key not in names:
        msg = f"key: the rows have no column {key!r}, only: {', '.join(names)}"
        raise ValueError(msg)
