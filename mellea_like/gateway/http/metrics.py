"""Metrics in Prometheus's format: names from the configuration and numbers, nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

try:
    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
    from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
except ImportError as exc:  # pragma: no cover
    msg = "the gateway needs starlette, uvicorn and more: pip install 'mellea-like[serve]'"
    raise ImportError(msg) from exc

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["OTHER", "Metrics"]

OTHER = "other"
"""Stands for every model, key, status and outcome that is not known: labels must be few."""

STATUSES = frozenset(
    {200, 400, 401, 403, 404, 405, 408, 413, 415, 422, 429, 431, 499, 500, 502, 503, 504, 505}
)
OUTCOMES = ("passed", "failed", "errored", "cancelled")

SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
ITERATIONS = (1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 32.0)


class Metrics:
    """The counters of one gateway, in a registry of their own.

    Args:
        models: the names of the configured models.
        keys: the names of the configured keys.
    """

    def __init__(self, models: Iterable[str], keys: Iterable[str]) -> None:
        self._models = frozenset(models)
        self._keys = frozenset(keys)
        self.registry = CollectorRegistry()
        start = "mellea_like_gateway"
        self._requests = Counter(
            f"{start}_requests",
            "Requests answered; 499 is a caller that left before.",
            ("model", "key", "status"),
            registry=self.registry,
        )
        self._seconds = Histogram(
            f"{start}_request_seconds",
            "From a request's headers to the end of its answer.",
            ("model",),
            buckets=SECONDS,
            registry=self.registry,
        )
        self._in_flight = Gauge(
            f"{start}_in_flight",
            "Requests that are being worked on.",
            ("key",),
            registry=self.registry,
        )
        self._waiting = Gauge(
            f"{start}_waiting", "Requests that wait their turn.", ("key",), registry=self.registry
        )
        self._calls = Counter(
            f"{start}_calls",
            "Sampling calls, by how they ended.",
            ("model", "outcome"),
            registry=self.registry,
        )
        self._iterations = Histogram(
            f"{start}_iterations",
            "Iterations of a sampling call.",
            ("model",),
            buckets=ITERATIONS,
            registry=self.registry,
        )
        self._tokens = Counter(
            f"{start}_tokens",
            "Tokens that upstreams counted.",
            ("model", "kind"),
            registry=self.registry,
        )

    def requested(self, model: object, key: str | None, status: int, seconds: float) -> None:
        """Count a request that has ended.

        Args:
            model: the model's name as the request has it, whatever that is.
            key: the caller's key, or None where it is not known.
            status: the answer's status.
            seconds: how long it took.
        """
        name = self.model_name(model)
        shown = str(status) if status in STATUSES else OTHER
        self._requests.labels(name, self._key(key), shown).inc()
        self._seconds.labels(name).observe(seconds)

    def occupied(self, key: str, inside: int, waiting: int) -> None:
        """Tell how many requests of a key there are now.

        Args:
            key: the key's name.
            inside: those that are being worked on.
            waiting: those that wait their turn.
        """
        self._in_flight.labels(self._key(key)).set(inside)
        self._waiting.labels(self._key(key)).set(waiting)

    def sampled(
        self,
        model: str,
        *,
        iterations: int,
        input_tokens: int,
        output_tokens: int,
        outcome: str,
    ) -> None:
        """Count a sampling call that has ended.

        Args:
            model: the model's name in the configuration.
            iterations: how many iterations it took.
            input_tokens: the tokens of its prompts.
            output_tokens: the tokens of its replies.
            outcome: ``passed``, ``failed``, ``errored`` or ``cancelled``.
        """
        name = self.model_name(model)
        self._calls.labels(name, outcome if outcome in OUTCOMES else OTHER).inc()
        self._iterations.labels(name).observe(iterations)
        self._tokens.labels(name, "input").inc(max(0, input_tokens))
        self._tokens.labels(name, "output").inc(max(0, output_tokens))

    def render(self) -> tuple[bytes, str]:
        """Return the metrics as text, and the text's content type."""
        return generate_latest(self.registry), CONTENT_TYPE_LATEST

    def model_name(self, model: object) -> str:
        """Return a configured model's name, or ``other`` for anything else.

        Args:
            model: the model's name as a request has it, whatever that is.
        """
        return model if isinstance(model, str) and model in self._models else OTHER

    def _key(self, key: str | None) -> str:
        return key if key is not None and key in self._keys else OTHER
