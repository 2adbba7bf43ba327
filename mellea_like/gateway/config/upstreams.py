"""The upstreams of a configuration: opened once, shared by all models, closed at the end."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mellea_like.core.backend import can_judge
from mellea_like.gateway.config.cross_checks import Problem
from mellea_like.gateway.redaction import RedactedBackend
from mellea_like.limits.base import LimitedBackend
from mellea_like.specification.upstream import (
    OpenAIUpstream,
    ProviderUpstream,
    PythonUpstream,
    open_upstream,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping
    from typing import Self

    from mellea_like.core.backend import Backend, Request
    from mellea_like.core.generation import Usage
    from mellea_like.core.prices import Price
    from mellea_like.limits.base import RequestEnd
    from mellea_like.specification.upstream import UpstreamSpec

    Spent = Callable[[Usage, Price | None], object]
    """Is told what a request has cost, as far as it is known, and the upstream's price."""

__all__ = ["Upstream", "check_upstreams", "open_upstreams"]


@dataclass(frozen=True, slots=True)
class Upstream:
    """One upstream, ready to be asked within its limits."""

    name: str
    backend: Backend
    judges: bool
    constrains: bool  # Whether it is told a reply's JSON Schema by ``response_format``.
    official: bool  # Whether it is OpenAI's own server.
    price: Price | None


def check_upstreams(specs: Mapping[str, UpstreamSpec | None]) -> list[Problem]:
    """Find the upstreams that can't be opened, as far as that shows beforehand."""
    problems: list[Problem] = []
    for name, spec in specs.items():
        place = f"upstreams.{name}."
        try:
            if isinstance(spec, PythonUpstream):
                spec.find(place)
            elif isinstance(spec, ProviderUpstream):
                spec.make(place)
        except ValueError as exc:
            what = str(exc).removeprefix(place)
            problems.append(Problem(("upstreams", name), what))
        if isinstance(spec, OpenAIUpstream) and spec.official and not spec.key:
            what = (
                "api_key is missing, and OpenAI's own server wants one: write"
                ' api_key: "${OPENAI_API_KEY}"'
            )
            problems.append(Problem(("upstreams", name), what))
    return problems


@asynccontextmanager
async def open_upstreams(
    specs: Mapping[str, UpstreamSpec],
    backends: Mapping[str, Backend] | None = None,
    *,
    spent: Spent | None = None,
    log_errors: bool = False,
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
            if spent is not None:
                limits.append(_Counted(spec.price, spent))
            secret = spec.key if isinstance(spec, OpenAIUpstream) else ""
            redacted: Backend = RedactedBackend(backend, name, tell=log_errors, secret=secret)
            opened[name] = Upstream(
                name,
                LimitedBackend(redacted, *limits) if limits else redacted,
                spec.judges and can_judge(backend),
                spec.kind in {"openai", "llama"},
                isinstance(spec, OpenAIUpstream) and spec.official,
                spec.price,
            )
        yield opened


class _Counted:
    """A limit that lets everything pass, and tells what it has cost."""

    def __init__(self, price: Price | None, spent: Spent) -> None:
        self._price = price
        self._spent = spent

    async def acquire(self, request: Request, backend: Backend) -> Self:  # noqa: ARG002
        return self

    def release(self, end: RequestEnd) -> None:
        self._spent(end.usage, self._price)
