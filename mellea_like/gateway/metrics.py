"""Metrics in Prometheus's format. They contain only numbers and names from the configuration."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, cast

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, multiprocess, values
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mellea_like.core.generation import Usage
    from mellea_like.core.prices import Price
    from mellea_like.gateway.http.key_state import KeyState

OTHER = "other"
"""The label for unknown models and for requests without a key, so that callers add no labels."""

SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
ITERATIONS = (1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 32.0)


_shared_in: str | None = None
"""The directory in which a gateway's workers keep their counters, if there are several workers."""


def share_metrics(directory: str, worker: int) -> None:
    """Share counters with the other workers. Call this in a worker before making `Metrics`."""
    global _shared_in  # noqa: PLW0603 (prometheus_client keeps it for the process, too)
    _shared_in = os.environ["PROMETHEUS_MULTIPROC_DIR"] = directory
    values.ValueClass = cast("Any", values).MultiProcessValue(lambda: worker)


def forget_worker(directory: str, worker: int) -> None:
    """After a worker has ended, subtract its requests under way from the gauges."""
    cast("Any", multiprocess).mark_process_dead(worker, directory)


class Metrics:
    """Counts a gateway's requests, calls and costs, in a Prometheus registry for this gateway."""

    def __init__(self, models: Iterable[str] = ()) -> None:
        self.models = set(models)
        """The models that are counted by name rather than as ``other``."""
        self.registry = CollectorRegistry()
        common: dict[str, Any] = {"namespace": "mellea_like_gateway", "registry": self.registry}
        said = "Requests answered; 499 is a caller that left before."
        self._requests = Counter("requests", said, ("model", "key", "status"), **common)
        said = "From a request's headers to the end of its answer."
        self._seconds = Histogram("request_seconds", said, ("model",), buckets=SECONDS, **common)
        gauge: dict[str, Any] = {**common, "multiprocess_mode": "livesum"}
        self._in_flight = Gauge("in_flight", "Requests being worked on.", ("key",), **gauge)
        self._waiting = Gauge("waiting", "Requests waiting their turn.", ("key",), **gauge)
        said = "Sampling calls, by how they ended."
        self._calls = Counter("calls", said, ("model", "outcome"), **common)
        said = "Draws of a sampling call."
        self._iterations = Histogram("iterations", said, ("model",), buckets=ITERATIONS, **common)
        said = "Tokens that upstreams counted, of judges and losers too."
        self._tokens = Counter("tokens", said, ("model", "key", "kind"), **common)
        said = "What those tokens cost, where the upstream has a price."
        self._cost = Counter("cost", said, ("model", "key", "currency"), **common)

    def requested(self, model: object, key: str, status: int, seconds: float) -> None:
        """Count a request that has ended; an unknown model or no key counts as ``other``."""
        name = self.model_name(model)
        self._requests.labels(name, key or OTHER, status).inc()
        self._seconds.labels(name).observe(seconds)

    def show(self, key: KeyState) -> None:
        """Update the gauges of a key's running and waiting requests."""
        self._in_flight.labels(key.name).set(key.in_flight)
        self._waiting.labels(key.name).set(key.waiting)

    def sampled(self, model: str, outcome: str, iterations: int | None = None) -> None:
        """Count a finished sampling call of a configured model, and its draws, if known."""
        self._calls.labels(model, outcome).inc()
        if iterations is not None:
            self._iterations.labels(model).observe(iterations)

    def spent(self, model: object, key: str, usage: Usage, price: Price | None) -> None:
        """Count the cost of a request to an upstream, as far as it is known."""
        labels = self.model_name(model), key or OTHER
        self._tokens.labels(*labels, "input").inc(usage.input_tokens)
        self._tokens.labels(*labels, "output").inc(usage.output_tokens)
        if price is not None:
            self._cost.labels(*labels, price.currency).inc(price.cost(usage))

    def render(self) -> tuple[bytes, str]:
        """Return the metrics as text, and the content type."""
        registry = self.registry
        if _shared_in is not None:
            registry = CollectorRegistry()
            cast("Any", multiprocess).MultiProcessCollector(registry, _shared_in)
        return generate_latest(registry), CONTENT_TYPE_LATEST

    def model_name(self, model: object) -> str:
        """Return a configured model's name, or ``other`` for anything else."""
        return model if isinstance(model, str) and model in self.models else OTHER
