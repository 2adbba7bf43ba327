"""The backends and the judge that the options select, with their limits and prices."""

from __future__ import annotations

import json
import os
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, Literal

from pydantic_core import core_schema

from mellea_like.cli.exit_codes import Problem, fail, misuse
from mellea_like.cli.option_fields import option_names, read_section
from mellea_like.cli.standard_streams import warn
from mellea_like.core.backend import Options
from mellea_like.core.format import check_format
from mellea_like.core.prices import IN_A_JOB, is_version
from mellea_like.limits.backoff_gate import gate_of
from mellea_like.limits.base import LimitedBackend
from mellea_like.sampling.escalate import ExpectedCost
from mellea_like.specification.upstream import (
    OFFICIAL_URL,
    LlamaUpstream,
    MarkovUpstream,
    OpenAIUpstream,
    ProviderUpstream,
    Upstream,
    open_upstream,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Mapping

    from mellea_like.cli.draw_options import BackendName, DrawOptions
    from mellea_like.cli.jobs import JobsUpstream
    from mellea_like.core.backend import Backend
    from mellea_like.core.prices import Price
    from mellea_like.limits.backoff_gate import BackoffGate
    from mellea_like.limits.budget import Budget
    from mellea_like.limits.store import Store
    from mellea_like.sampling.base import BaseSamplingStrategy

LIMITS = ("price", "requests_per_minute", "tokens_per_minute")


class Backends:
    """Opens the backends and the judge that a command's options select.

    Creating an instance checks the options as far as possible, but opens nothing.
    """

    def __init__(
        self,
        options: DrawOptions,
        *,
        default: BackendName | None = None,
        store: Store | None = None,
    ) -> None:
        self._options = options
        self._store = store  # The shared store of budget and rates.
        self.named = _named(options)
        self.kind = self.named or default
        if self.kind is None:
            misuse(
                "batch needs a backend: add --model NAME, --base-url URL or --gguf FILE (--backend"
                " markov understands nothing and is for trying things out)"
            )
        self._check_options(self.kind)
        self._spec = self._read_spec(self.kind)
        self._judges = self._read_judges()
        self._bigger = [self._read_bigger(bigger.upstream) for bigger in options.bigger]
        self._check_prices()
        self._opened: list[Backend] = []
        """The main backend, those of bigger models, and the judge."""
        self.description = ""
        self.models: list[str | None] = []

    @property
    def price(self) -> Price | None:
        """The price of tokens; None if it is unknown or not the same for all requests."""
        price = None if self._bigger else self._spec.price
        if price is None or self.kind != "jobs":
            return price
        return None if self._spec.asks_directly else price.halved()

    def prices(self, models: Iterable[str | None]) -> dict[str, Price] | None:
        """Map models of known name and price to their prices; return None if there are none."""
        bigger = {str(one.model): one.price for one in self._bigger}
        found: dict[str, Price] = {}
        for model in models:
            if model is not None:
                at = next((b for b in bigger if is_version(model, b)), None)
                price = self._spec.price if at is None else bigger[at]
                if price is not None:
                    found[model] = price
        return found or None

    @property
    def reply_type(self) -> type[Any] | None:
        """The type to pass as ``format`` so that requests include the JSON Schema of ``--schema``.

        The value is None if requests don't include it: there is no schema, the schema contains a
        ``$ref``, or the backend is markov.
        """
        schema = self._options.spec.json_schema
        if schema is None or self.kind == "markov" or '"$ref"' in json.dumps(schema):
            return None
        return _type_of(schema)

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[None]:
        """Open the backends and the judge, and close them when the block ends."""
        options = self._options
        if self.kind == "llama" and not options.quiet:
            warn(f"Starting a llama.cpp server for {options.gguf} ...")
        async with AsyncExitStack() as stack:
            try:
                opened: list[Any] = [
                    await stack.enter_async_context(open_upstream(spec, follow_redirects=True))
                    for spec in (self._spec, *self._bigger, *self._judges)
                ]
            except (OSError, ValueError) as exc:
                if self.kind not in {"markov", "pydantic-ai"}:
                    raise
                msg = f"--corpus: {exc}" if self.kind == "markov" else f"--{exc}"
                raise Problem(msg) from exc
            bigger = opened[1 : 1 + len(self._bigger)]
            further = (f"Then {self._place(one)}." for one in bigger)
            self.description = " ".join([self._describe(opened[0]), *further])
            # A model costs half as much in a job, wherever its price is looked up.
            models = (getattr(one, "model", None) for one in opened)
            self.models = [model and model.removesuffix(IN_A_JOB) for model in models]
            limits = self._spec.make_limits(self._store, "this run")
            self._opened = [LimitedBackend(one, *limits) if limits else one for one in opened]
            if options.cache is not None:
                # Most runs don't need it, so it is imported here.
                from mellea_like.backends.cached import CachedBackend  # noqa: PLC0415

                name = f"markov {options.corpus}" if options.corpus else None
                for at, one in enumerate(self._opened):
                    cached = self._opened[at] = CachedBackend(one, options.cache, name=name)
                    stack.push_async_callback(cached.aclose)
            yield

    @property
    def gates(self) -> list[BackoffGate]:
        """The backoff gates of the open backends, without duplicates."""
        return list(dict.fromkeys(map(gate_of, self._opened)))

    def make_budget(self, whose: str) -> Budget | None:
        """Make the budget of ``--budget``, named ``whose`` in errors; None without that option."""
        spec = self._options.spec
        if spec.budget is not None and spec.budget.money is not None and None in self.models:
            misuse(
                "--budget cost needs to know the model beforehand: add --model NAME"
                " (--judge-model NAME for a judge)"
            )
        return spec.make_budget(self.prices(self.models), name=whose, store=self._store)

    def make_strategy(self, **settings: Any) -> BaseSamplingStrategy:
        """Make the strategy that the options describe."""
        spec = self._options.spec
        backend, *others = self._opened
        bigger, judges = others[: len(self._bigger)], others[len(self._bigger) :]
        judge = judges[0] if judges else None
        stages = [
            stage.make(one, judge=None, options=Options(), early=spec.early)
            for stage, one in zip(spec.escalate, bigger, strict=True)
        ]
        if spec.escalate_when == "cheaper":
            settings["after"] = ExpectedCost(self.prices(self.models) or {})
        return spec.make_strategy(backend, stages, judge=judge, **settings)

    def _place(self, backend: Any) -> str:
        """Return the name and server of a model that ``--escalate`` adds, for a message."""
        place = getattr(backend, "base_url", None) or backend.api.where
        return f"{backend.model} at {place}"

    def _describe(self, backend: Any) -> str:
        """Return a sentence that names the main backend, but none that ``--escalate`` adds."""
        if self.kind == "jobs":
            return f"{self._spec.api}'s batch API, {self._spec.model} at {backend.api.where}."
        match self._spec:
            case OpenAIUpstream():
                model = backend.model or "the server's first model"
                return f"openai, {model} at {backend.base_url}."
            case LlamaUpstream():
                return f"llama, {self._spec.gguf.name} in its own llama.cpp server."
            case ProviderUpstream():
                return f"pydantic-ai, {self._spec.model}."
            case _:
                return (
                    "markov, a small Markov chain text generator that understands nothing;"
                    " for a real model see --backend."
                )

    def _check_options(self, kind: str) -> None:
        options = self._options
        for option, given, only in (
            ("--model", options.model, ("openai", "pydantic-ai", "jobs")),
            ("--base-url", options.base_url, ("openai", "jobs")),
            ("--gguf", options.gguf, ("llama",)),
            ("--corpus", options.corpus, ("markov",)),
        ):
            if given and kind not in only:
                known = " or ".join(one for one in only if one != "jobs")
                misuse(f"{option} is for --backend {known}, not for --backend {kind}")
        if kind == "llama" and options.gguf is None:
            misuse("--backend llama needs a model file: add --gguf FILE")
        if kind == "pydantic-ai" and options.model is None:
            misuse("--backend pydantic-ai needs a provider's model: add --model PROVIDER:MODEL")
        judged = options.judge_model or options.judge_base_url
        wants = options.requirements or options.spec.selection.judged
        if wants and kind == "markov" and not judged:
            what = "--require" if options.requirements else f"--select {options.select}"
            misuse(
                f"{what} needs a model that can judge, and the markov text generator can't: add"
                " --judge-model NAME, or use --backend openai or llama"
            )

    def _read_spec(self, kind: BackendName | Literal["jobs"]) -> Any:
        options, names = self._options, option_names(type(self._options))
        limits = {name: getattr(options, name) for name in LIMITS}
        section: type[Upstream]
        given: dict[str, Any]
        match kind:
            case "jobs":
                return self._read_jobs(options.model, options.base_url, options.price)
            case "openai":
                return openai_upstream(options.model, options.base_url, names, **limits)
            case "llama":
                section, given = LlamaUpstream, {"gguf": options.gguf}
            case "pydantic-ai":
                section, given = ProviderUpstream, {"model": options.model}
            case _:
                section, given = MarkovUpstream, {"corpus": options.corpus}
        return read_section(section, {"kind": kind, **given, **limits}, names)

    def _read_jobs(self, model: Any, base_url: Any, price: Any) -> JobsUpstream:
        from mellea_like.cli.jobs import JobsUpstream  # noqa: PLC0415 (few runs have jobs)

        options: Any = self._options
        names = option_names(type(self._options))
        given = {
            name: getattr(options, name) for name in JobsUpstream.model_fields if name in names
        }
        given |= {"kind": "jobs", "api": options.batch_api}
        given |= {"model": model, "base_url": base_url, "price": price}
        return read_section(JobsUpstream, given, names | {"api": "--batch-api"})

    def _read_bigger(self, given: Mapping[str, Any]) -> OpenAIUpstream | JobsUpstream:
        if self.kind == "jobs":
            url = given.get("base_url", self._options.base_url)
            return self._read_jobs(given["model"], url, given.get("price"))
        names = {one: f"--escalate {given['model']}: {one}" for one in ("model", "price")}
        names["base_url"] = "--base-url"
        url = given.get("base_url", self._options.base_url)
        return openai_upstream(given["model"], url, names, price=given.get("price"))

    def _check_prices(self) -> None:
        """Refuse options that need the prices of all models if one is missing."""
        spec = self._options.spec
        limited = spec.budget is not None and spec.budget.money is not None
        if not self._bigger or not (limited or spec.escalate_when == "cheaper"):
            return
        what = "--budget cost" if limited else "--escalate-when cheaper"
        if getattr(self._spec, "model", None) is None and self.kind == "openai":
            misuse(f"{what} needs to know the model beforehand: add --model NAME")
        currencies = {one.price and one.price.currency for one in (self._spec, *self._bigger)}
        if None in currencies or len(currencies) > 1:
            misuse(
                f"{what} needs the price of each model, in one currency: add --price IN,OUT, and"
                " write --escalate MODEL,price=IN,OUT"
            )

    def _read_judges(self) -> list[OpenAIUpstream]:
        """Return the settings of the judge; an empty list if the main backend judges."""
        options = self._options
        decides = options.requirements or options.spec.selection.judged
        for given, name in (
            (options.judge_option, "--judge-option is for"),
            (options.judge_model, "--judge-model names"),
            (options.judge_base_url, "--judge-base-url names"),
        ):
            if given and not decides:
                misuse(
                    f"{name} a judge, but there is nothing to judge: add --require TEXT, or a"
                    " --select that uses a judge"
                )
        if options.judge_model is None and options.judge_base_url is None:
            return []
        at, url = "--judge-base-url", options.judge_base_url
        if url is None:
            at, url = "--base-url", options.base_url
        names = {"model": "--judge-model", "base_url": at}
        return [openai_upstream(options.judge_model, url, names)]


def _named(options: DrawOptions) -> BackendName | Literal["jobs"] | None:
    """Return the backend that the options or the environment determine; None if neither does."""
    if getattr(options, "batch_api", None) is not None:
        return "jobs"
    if options.backend is not None:
        return options.backend
    if options.gguf is not None:
        return "llama"
    if options.base_url is not None or options.model is not None:
        return "openai"
    if options.corpus:
        return "markov"
    configured = os.environ.get("OPENAI_API_KEY") or os.environ.get("OPENAI_BASE_URL")
    return "openai" if configured else None


def openai_upstream(
    model: str | None, base_url: str | None, names: Mapping[str, str], **limits: Any
) -> OpenAIUpstream:
    """Return a server's checked settings; ``names`` maps them to options, for errors."""
    if base_url is None:
        base_url = os.environ.get("OPENAI_BASE_URL") or OFFICIAL_URL
        names = {**names, "base_url": "OPENAI_BASE_URL"}
    given = {
        "kind": "openai",
        "model": model,
        "base_url": base_url,
        "api_key_env": "OPENAI_API_KEY",
        "trust_env": True,
        **limits,
    }
    spec = read_section(OpenAIUpstream, given, names)
    if spec.official and model is None:
        misuse(
            f"the openai backend needs a model name at {OFFICIAL_URL}: add {names['model']} NAME"
        )
    if spec.official and not spec.key:
        fail(f"no API key for {OFFICIAL_URL}: set OPENAI_API_KEY")
    return spec


def _type_of(schema: dict[str, Any]) -> type[Any]:
    """Make a type that accepts any JSON and has the given JSON Schema."""

    class Reply:
        @classmethod
        def __get_pydantic_core_schema__(cls, _source: Any, _handler: Any) -> Any:
            return core_schema.any_schema()

        @classmethod
        def __get_pydantic_json_schema__(cls, _core: Any, _handler: Any) -> dict[str, Any]:
            return schema

    check_format(Reply)
    return Reply
