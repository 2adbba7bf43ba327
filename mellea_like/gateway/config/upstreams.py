"""The upstreams of a configuration: opened once, shared by all models, closed at the end."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mellea_like.core.backend import can_judge
from mellea_like.gateway.redaction import RedactedBackend
from mellea_like.limits.base import LimitedBackend
from mellea_like.specification.upstream import OpenAIUpstream, PythonUpstream, open_upstream

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from mellea_like.core.backend import Backend
    from mellea_like.core.prices import Price
    from mellea_like.specification.upstream import UpstreamSpec

__all__ = ["Upstream", "check_upstreams", "open_upstreams"]


@dataclass(frozen=True, slots=True)
class Upstream:
    """One upstream, ready to be asked within its limits."""

    name: str
    backend: Backend
    judges: bool
    constrains: bool  # Whether it is told a reply's JSON Schema by ``response_format``.
    price: Price | None


def check_upstreams(specs: Mapping[str, UpstreamSpec]) -> None:
    """Raise a ValueError for an upstream that can't be opened, as far as that shows beforehand."""
    for name, spec in specs.items():
        if isinstance(spec, PythonUpstream):
            spec.find(f"upstreams.{name}.")
        elif isinstance(spec, OpenAIUpstream) and spec.official and not spec.key:
            msg = (
                f"upstreams.{name}.api_key is missing, and OpenAI's own server wants one: write"
                ' api_key: "${OPENAI_API_KEY}"'
            )
            raise ValueError(msg)


@asynccontextmanager
async def open_upstreams(
    specs: Mapping[str, UpstreamSpec], backends: Mapping[str, Backend] | None = None
) -> AsyncGenerator[dict[str, Upstream]]:
    """Open all upstreams; backends that are handed over take their places, and stay open."""
    given = backends or {}
    async with AsyncExitStack() as stack:
        opened: dict[str, Upstream] = {}
        for name, spec in specs.items():
            if name in given:
                backend = given[name]
            else:
                backend = await stack.enter_async_context(open_upstream(spec, f"upstreams.{name}."))
            limits = spec.make_limits()
            redacted: Backend = RedactedBackend(backend, name)
            opened[name] = Upstream(
                name,
                LimitedBackend(redacted, *limits) if limits else redacted,
                spec.judges and can_judge(backend),
                spec.kind in {"openai", "llama"},
                spec.price,
            )
        yield opened
