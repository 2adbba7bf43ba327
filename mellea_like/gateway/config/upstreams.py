"""The upstreams of a configuration: opened once, shared by all models, and closed at the end."""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import anyio

from mellea_like.core.backend import BackendWrapper, can_judge
from mellea_like.errors import BackendError, RateLimited
from mellea_like.gateway.config.cross_checks import Problem
from mellea_like.gateway.redaction import RedactedBackend
from mellea_like.limits.base import LimitedBackend
from mellea_like.limits.concurrency import StoreConcurrency
from mellea_like.specification.upstream import (
    OpenAIUpstream,
    ProviderUpstream,
    PythonUpstream,
    open_upstream,
)

if TYPE_CHECKING:
    from collections.abc import (
        AsyncGenerator,
        AsyncIterator,
        Callable,
        Generator,
        Mapping,
        Sequence,
    )

    from mellea_like.core.backend import Backend, Request
    from mellea_like.core.generation import Generation, Usage
    from mellea_like.core.prices import Price
    from mellea_like.limits.base import Limit, RequestEnd
    from mellea_like.limits.store import Store
    from mellea_like.specification.upstream import UpstreamSpec

    Spent = Callable[[Usage, Price | None], object]
    """A callback that gets a request's usage, as far as it is known, and the upstream's price."""


logger = logging.getLogger("mellea_like.gateway")


@dataclass(eq=False, slots=True)
class Upstream:
    """An open upstream of the configuration. Its backend applies the upstream's limits."""

    name: str
    spec: UpstreamSpec
    backend: Backend
    judges: bool
    opened: AsyncExitStack
    users: int = 0
    """The number of configurations that use it."""

    @property
    def constrains(self) -> bool:
        """Whether it gets a JSON Schema in ``response_format``."""
        return self.spec.kind in {"openai", "llama"}

    @property
    def official(self) -> bool:
        """Whether it is OpenAI's own server."""
        return isinstance(self.spec, OpenAIUpstream) and self.spec.official


def check_upstreams(specs: Mapping[str, UpstreamSpec]) -> list[Problem]:
    """Find upstreams that can't be opened, as far as this can be known in advance."""
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
                "api_key is missing, and OpenAI's own server requires one: write"
                ' api_key: "${OPENAI_API_KEY}"'
            )
            problems.append(Problem(("upstreams", name), what))
    return problems


class OpenUpstreams:
    """Opens upstreams, and closes those no longer used. Backends that were passed in stay open."""

    def __init__(
        self,
        backends: Mapping[str, Backend],
        *,
        spent: Spent,
        log_errors: bool = False,
        store: Store | None = None,
    ) -> None:
        self._store = store
        self._given = backends
        self._spent = spent
        self._log_errors = log_errors
        self._held: list[Upstream] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        async with AsyncExitStack() as stack:
            for held in self._held:
                stack.push_async_callback(held.opened.aclose)
            self._held.clear()

    async def open(self, specs: Mapping[str, UpstreamSpec]) -> Sequence[Upstream]:
        """Return a configuration's upstreams: opened now, or already open with equal settings."""
        used: list[Upstream] = []
        try:
            for name, spec in specs.items():
                found = [h for h in self._held if (h.name, h.spec) == (name, spec)]
                held = found[0] if found else await self._open(name, spec)
                held.users += 1
                used.append(held)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self.release(used)
            raise
        return used

    async def release(self, used: Sequence[Upstream]) -> None:
        """Stop using upstreams, and close those that no other configuration uses."""
        for held in used:
            held.users -= 1
            if not held.users and held in self._held:
                self._held.remove(held)
                try:
                    await held.opened.aclose()
                except Exception as exc:  # noqa: BLE001 (nobody uses it any more)
                    logger.warning("the upstream %r could not be closed: %s", held.name, exc)

    async def _open(self, name: str, spec: UpstreamSpec) -> Upstream:
        stack = AsyncExitStack()
        if name in self._given:
            backend = self._given[name]
        else:
            backend = await stack.enter_async_context(open_upstream(spec, f"upstreams.{name}."))
        secret = spec.key if isinstance(spec, OpenAIUpstream) else ""
        redacted: Backend = RedactedBackend(backend, name, tell=self._log_errors, secret=secret)
        limits = [*self._limits(name, spec), _Counted(spec.price, self._spent)]
        judges = spec.judges and can_judge(backend)
        held = Upstream(name, spec, LimitedBackend(redacted, *limits), judges, stack)
        self._held.append(held)
        return held

    def _limits(self, name: str, spec: UpstreamSpec) -> list[Limit]:
        named, most = f"upstream {name}", spec.concurrency
        if self._store is None or most is None:
            return spec.make_limits(self._store, named)
        rates = spec.model_copy(update={"concurrency": None}).make_limits(self._store, named)
        return [*rates, StoreConcurrency(most, store=self._store, name=f"{named}: at a time")]


class LastTry(BackendWrapper):
    """Limits a request to ``retries`` retries, because clients retry, too. A 429 ends the lane."""

    def __init__(self, inner: Backend, retries: int) -> None:
        super().__init__(inner)
        self._retries = retries

    async def generate(self, request: Request) -> Generation:
        """Generate a reply; mark an error as already retried if no retries are left."""
        with self._settled(request):
            return await self.inner.generate(request)

    @asynccontextmanager
    async def _stream(self, request: Request) -> AsyncGenerator[AsyncIterator[str | Generation]]:
        with self._settled(request):
            async with super()._stream(request) as pieces:
                yield pieces

    @contextmanager
    def _settled(self, request: Request) -> Generator[None]:
        try:
            yield
        except BackendError as exc:
            if request.meta.retry >= self._retries:
                exc.retried = True
                if isinstance(exc, RateLimited):
                    exc.retryable = False
            raise


class _Counted:
    """A limit that admits every request, and reports the request's cost when it ends."""

    def __init__(self, price: Price | None, spent: Spent) -> None:
        self._price = price
        self._spent = spent

    async def acquire(self, request: Request, backend: Backend) -> Self:  # noqa: ARG002
        return self

    def release(self, end: RequestEnd) -> None:
        self._spent(end.usage, self._price)
