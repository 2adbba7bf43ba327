"""What type checkers make of the sampling coordinator; nothing here is run."""

from __future__ import annotations

from typing import assert_type

from mellea_like import Backend, Generation, RejectionSamplingStrategy, Request
from mellea_like.coalescing import AuditRecord, CoordinatorStatistics, SamplingCoordinator


async def coordinate(inner: Backend, request: Request) -> None:
    ledger: list[AuditRecord] = []
    async with SamplingCoordinator(
        inner, idle=0.01, scope=lambda request: request.meta.sampling_id, audit=ledger.append
    ) as coordinator:
        assert_type(coordinator, SamplingCoordinator)
        assert_type(await coordinator.generate(request), Generation)
        assert_type(coordinator.statistics(), CoordinatorStatistics)
        backend: Backend = coordinator.isolated
        strategy = RejectionSamplingStrategy(coordinator)
        assert_type((await strategy.sample("x", backend=backend)).unwrap(), str)
        SamplingCoordinator(inner, scope="me")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
