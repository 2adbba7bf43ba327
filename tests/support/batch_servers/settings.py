"""How a fake server behaves: times, chances, limits and faults."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, Self

DAY = 86_400.0

Fault = Literal["lose", "status", "status_after", "lines", "half", "broken", "hang", "delay"]
"""What goes wrong with one request:

- ``lose``: it is carried out, and the connection breaks before the answer is whole.
- ``status``: it is answered with an error, and not carried out.
- ``status_after``: it is carried out, and answered with an error.
- ``lines``: a download ends early, after a whole line.
- ``half``: a download ends in the middle of a line.
- ``broken``: the connection of a download breaks.
- ``hang``: it is carried out, and never answered.
- ``delay``: it is answered late.
"""


@dataclass
class Settings:
    """The behaviour of a fake server; plain data, which its file keeps.

    Attributes:
        seed: of everything that looks random.
        pass_rate: the chance that a reply is right.
        draws: whether a reply depends on the body alone, or on the custom id as well.
        error_rate: the chance that a request of a job fails by the server's fault.
        cached: which part of a prompt comes from the cache; it has the price of the rest.
        prices: by model, the price of a token sent and of one received, in nano-dollars; half of it
            in a job. ``"*"`` is for all others.
        validating: seconds until the work on a job begins.
        work: seconds that the work on a job takes.
        window: seconds after which a job expires; None if it doesn't.
        cancelling: seconds that a cancellation takes.
        list_lag: seconds until a new job is in lists.
        oldest_first: whether lists begin with the oldest job.
        kept: seconds after a job's creation for which its results are kept; None for ever.
        enqueued: by model, the tokens that may be queued.
        no_output: whether finished jobs have no file of outputs.
        no_errors: whether finished jobs have no file of errors.
        odd_lines: further lines at the end of downloads.
        faults: what goes wrong with requests to come: dicts with ``on`` (upload, create, look,
            list, download, cancel, chat), ``fault``, and perhaps ``times``, ``after`` (how many of
            them are left alone first), ``status``, ``code`` and ``seconds``.
    """

    seed: int = 0
    pass_rate: float = 0.6
    draws: Literal["custom_id", "body"] = "custom_id"
    error_rate: float = 0.0
    cached: float = 0.0
    prices: dict[str, tuple[int, int]] = field(default_factory=lambda: {"*": (2_000, 8_000)})
    validating: float = 10.0
    work: float = 600.0
    window: float | None = DAY
    cancelling: float = 30.0
    list_lag: float = 0.0
    oldest_first: bool = False
    kept: float | None = None
    enqueued: dict[str, int] = field(default_factory=dict)
    no_output: bool = False
    no_errors: bool = False
    odd_lines: list[Any] = field(default_factory=list)
    faults: list[dict[str, Any]] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Return the settings as plain data."""
        return asdict(self)

    @classmethod
    def of(cls, given: dict[str, Any]) -> Self:
        """Read settings from plain data; unknown names are an error."""
        known = {f.name for f in fields(cls)}
        if unknown := given.keys() - known:
            msg = f"unknown settings: {sorted(unknown)}"
            raise ValueError(msg)
        return cls(**given)
