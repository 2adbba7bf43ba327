"""How a fake server behaves: times, chances, limits and faults."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

DAY = 86_400.0


@dataclass
class Settings:
    """The behaviour of a fake server; plain data, which its file keeps.

    ``faults`` of requests to come are dicts with ``on`` (upload, create, look, list, download,
    cancel, chat), ``fault``, and perhaps ``times``, ``after`` (how many of them are left alone
    first), ``status``, ``code`` and ``seconds``. A request is carried out and then ``lose``s its
    answer, is answered with an error (``status_after``) or never (``hang``); it is only answered
    with an error (``status``), or late (``delay``); or a download ends after a line (``lines``), in
    one (``half``) or ``broken`` off.
    """

    seed: int = 0
    pass_rate: float = 0.6  # The chance that a reply is right.
    error_rate: float = 0.0  # The chance that a request of a job fails by the server's fault.
    cached: float = 0.0  # Part of a prompt that comes from the cache; it has the price of the rest.
    # By model, the nano-dollars of a token sent and of one received; half of it in a job.
    prices: dict[str, tuple[int, int]] = field(default_factory=lambda: {"*": (2_000, 8_000)})
    validating: float = 10.0  # Seconds until the work on a job begins.
    work: float = 600.0  # Seconds that the work on a job takes.
    window: float | None = DAY  # Seconds after which a job expires.
    cancelling: float = 30.0  # Seconds that a cancellation takes.
    list_lag: float = 0.0  # Seconds until a new job is in lists.
    oldest_first: bool = False  # Whether lists begin with the oldest job.
    kept: float | None = None  # Seconds after a job's creation for which its results are kept.
    enqueued: dict[str, int] = field(default_factory=dict)  # By model, the tokens that may queue.
    no_files: tuple[str, ...] = ()  # The files that finished jobs lack: "output" and "errors".
    odd_lines: list[Any] = field(default_factory=list)  # At the end of downloads.
    faults: list[dict[str, Any]] = field(default_factory=list)
