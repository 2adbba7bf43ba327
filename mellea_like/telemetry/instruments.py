"""The metrics' instruments."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mellea_like.telemetry.names import (
    DURATION_BUCKETS,
    OPERATION_DURATION,
    REQUIREMENT_FAILURES,
    SLICES,
    TOKEN_BUCKETS,
    TOKEN_USAGE,
)

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter

__all__ = ["Instruments"]


class Instruments:
    """The instruments of one meter provider."""

    def __init__(self, meter: Meter) -> None:
        self.duration = meter.create_histogram(
            OPERATION_DURATION,
            unit="s",
            description="Duration of one request to a backend",
            explicit_bucket_boundaries_advisory=DURATION_BUCKETS,
        )
        self.tokens = meter.create_histogram(
            TOKEN_USAGE,
            unit="{token}",
            description="Tokens of one request to a backend",
            explicit_bucket_boundaries_advisory=TOKEN_BUCKETS,
        )
        self.slices = meter.create_counter(
            SLICES, unit="{slice}", description="Iterations by outcome"
        )
        self.failures = meter.create_counter(
            REQUIREMENT_FAILURES,
            unit="{failure}",
            description="Verdicts against a slice, by requirement",
        )
