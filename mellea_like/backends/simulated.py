"""A backend that behaves like a model server, but with seeded random numbers instead of a model."""

from __future__ import annotations

import math
import random
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import anyio
from anyio.lowlevel import checkpoint

from mellea_like.backends.request_counter import RequestCounter, RequestStatistics, count_words
from mellea_like.core.argument_checks import real_number
from mellea_like.core.generation import Generation
from mellea_like.core.requirement import Requirement
from mellea_like.core.validation import Verdict
from mellea_like.errors import BackendUnavailable, RateLimited

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from mellea_like.core.backend import Request
    from mellea_like.core.generation import RequestMeter
    from mellea_like.core.validation import Candidate
    from mellea_like.errors import BackendError

__all__ = ["SimulatedBackend", "gives_itself_away", "passes"]

PASSING = "passing"
FAILING = "failing"
GIVEAWAY = "wrong"
FILLER = ("alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta")


def _passes(candidate: Candidate) -> tuple[bool, str]:
    passed = candidate.text.split(" ", 1)[0] == PASSING
    return passed, "" if passed else f"the reply does not start with {PASSING!r}"


passes = Requirement(
    f"the reply starts with the word {PASSING!r}", _passes, name="passes", inline=True
)
"""The requirement that a `SimulatedBackend`'s reply meets with the probability ``pass_rate``."""


def gives_itself_away(text: str, delta: str) -> tuple[Verdict, str]:  # noqa: ARG001
    """Return FAIL as soon as a `SimulatedBackend`'s reply is sure to fail (see ``giveaway_rate``).

    This is an incremental check, for a requirement's ``stream=``.

    Args:
        text: the reply so far.
        delta: the reply's newest piece.

    Returns:
        ``FAIL`` if the newest piece contains the word that gives the reply away, otherwise
        ``UNKNOWN``; and the reason.
    """
    if GIVEAWAY in delta.split():
        return Verdict.FAIL, f"the reply says {GIVEAWAY!r}"
    return Verdict.UNKNOWN, ""


@dataclass(frozen=True, slots=True)
class _Draw:
    """All random decisions about one request."""

    latency: float
    error: BackendError | None
    words: tuple[str, ...]
    finish_reason: str

    @property
    def text(self) -> str:
        return " ".join(self.words)


@dataclass(kw_only=True, eq=False)
class SimulatedBackend:
    """Answers like a real server: late, sometimes very late, and sometimes wrongly or not at all.

    The random numbers for a request depend on the backend's seed, the request's own seed, and the
    request's iteration, purpose and retry. A request without a seed (``options.seed``) uses its
    number in the order of arrival instead. So a run whose requests have seeds can be repeated, and
    gives the same replies whatever their timing.

    A reply consists of the word ``passing`` or ``failing``, followed by filler words. The
    requirement `passes` accepts replies that start with ``passing``. A judge's question gets a JSON
    verdict, which is positive with the probability ``pass_rate``. Each word counts as a token. The
    words of a reply come at even intervals over its latency.

    Latencies are lognormal: half of them are below ``median`` seconds, and their logarithm has the
    standard deviation ``sigma``.

    Args:
        seed: the seed of the random numbers.
        median: the median latency in seconds. With 0, replies come after one checkpoint.
        sigma: the spread of the latency's logarithm. With 0, all latencies are equal.
        straggler_rate: the share of stragglers, which are requests that take much longer.
        straggler_factor: how many times as long a straggler takes, at least 1.
        pass_rate: the share of answered requests whose replies pass.
        giveaway_rate: the share of failing replies that can be recognized at a quarter of their
            length, by a word that no other reply has. `gives_itself_away` looks for it.
        error_rate: the share of requests that end with a 503, at some time within their latency.
        rate_limit_rate: the share of requests that are immediately refused with a 429. Together
            with ``error_rate``, this is at most 1.
        retry_after: the wait in seconds that a 429 asks for; None if a 429 asks for no wait.
        output_tokens: the mean number of words in a reply. Each reply has 0.5 to 1.5 times as
            many, but at most ``options.max_tokens``.
        model: the model's name, for records.

    Raises:
        TypeError: an argument that must be a number isn't one.
        ValueError: a number is out of range.
    """

    seed: int | str = 0
    median: float = 1.0
    sigma: float = 0.5
    straggler_rate: float = 0.0
    straggler_factor: float = 10.0
    pass_rate: float = 0.5
    giveaway_rate: float = 0.0
    error_rate: float = 0.0
    rate_limit_rate: float = 0.0
    retry_after: float | None = 1.0
    output_tokens: int = 20
    model: str | None = "simulated"

    provider: ClassVar[str] = "simulated"
    can_judge: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name in ("straggler", "pass", "giveaway", "error", "rate_limit"):
            share = getattr(self, f"{name}_rate")
            real_number(f"SimulatedBackend: {name}_rate", share, least=0, most=1)
        both = self.error_rate + self.rate_limit_rate
        real_number("SimulatedBackend: error_rate + rate_limit_rate", both, least=0, most=1)
        for name, least in (
            ("median", 0),
            ("sigma", 0),
            ("straggler_factor", 1),
            ("output_tokens", 1),
        ):
            real_number(f"SimulatedBackend: {name}", getattr(self, name), least=least)
        if self.retry_after is not None:
            real_number("SimulatedBackend: retry_after", self.retry_after, least=0)
        self._counter = RequestCounter()

    @property
    def requirement(self) -> Requirement:
        """The requirement that replies meet with the probability ``pass_rate``: `passes`."""
        return passes

    def statistics(self) -> RequestStatistics:
        """Return the numbers of requests and tokens so far."""
        return self._counter.statistics()

    async def generate(self, request: Request) -> Generation:
        """Answer one request, whatever it asks for, after a random latency.

        Raises:
            RateLimited: the random numbers decide so.
            BackendUnavailable: the random numbers decide so.
        """
        with self._counter.flight():
            draw, meter = self._begin(request)
            began = anyio.current_time()
            try:
                await _sleep(draw.latency)
            finally:
                share = (anyio.current_time() - began) / draw.latency if draw.latency else 1.0
                tokens = 0 if draw.error else math.floor(len(draw.words) * min(share, 1.0))
                self._arrived(meter, tokens)
            return self._end(draw, meter)

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncGenerator[AsyncIterator[str | Generation]]:
        """Answer one request word by word; see `StreamingBackend.stream`."""
        async with aclosing(self._pieces(request)) as pieces:
            yield pieces

    async def _pieces(self, request: Request) -> AsyncGenerator[str | Generation]:
        with self._counter.flight():
            draw, meter = self._begin(request)
            if draw.error is not None:
                await _sleep(draw.latency)
            else:
                for number, word in enumerate(draw.words, 1):
                    await _sleep(draw.latency / len(draw.words))
                    self._arrived(meter, number)
                    yield word if number == len(draw.words) else word + " "
            whole = self._end(draw, meter)
        yield whole

    def _begin(self, request: Request) -> tuple[_Draw, RequestMeter]:
        meter = request.meter.start()
        tokens = count_words(request.messages)
        meter.update(input_tokens=tokens)
        self._counter["input_tokens"] += tokens
        return self._draw(request), meter

    def _arrived(self, meter: RequestMeter, tokens: int) -> None:
        self._counter["output_tokens"] += tokens - meter.output_tokens
        meter.update(output_tokens=tokens)

    def _end(self, draw: _Draw, meter: RequestMeter) -> Generation:
        if draw.error is not None:
            raise draw.error
        self._arrived(meter, len(draw.words))
        meter.settle(input_tokens=meter.input_tokens, output_tokens=len(draw.words))
        return Generation(
            draw.text, usage=meter.usage, model=self.model, finish_reason=draw.finish_reason
        )

    def _draw(self, request: Request) -> _Draw:
        meta, options = request.meta, request.options
        own = f"#{self._counter['started']}" if options.seed is None else options.seed
        key = f"{self.seed}/{own}/{meta.iteration}/{meta.purpose}/{meta.retry}"
        chance = random.Random(key)
        # Every number is drawn even if it isn't needed, so that changing one rate doesn't change
        # others.
        latency = self.median * math.exp(self.sigma * chance.gauss(0.0, 1.0))
        straggles = chance.random() < self.straggler_rate
        fate, moment = chance.random(), chance.random()
        passed = chance.random() < self.pass_rate
        length = max(1, round(self.output_tokens * chance.uniform(0.5, 1.5)))
        if straggles:
            latency *= self.straggler_factor
        if fate < self.rate_limit_rate:
            limited = RateLimited(
                "simulated: too many requests", status=429, retry_after=self.retry_after
            )
            return _Draw(0.0, limited, (), "error")
        if fate < self.rate_limit_rate + self.error_rate:
            broken = BackendUnavailable("simulated: the server is overloaded", status=503)
            return _Draw(latency * moment, broken, (), "error")
        if meta.purpose == "judge":
            words = f'{{"passed": {str(passed).lower()}, "reason": "drawn by chance"}}'.split(" ")
            return _Draw(latency, None, tuple(words), "stop")
        words = [PASSING if passed else FAILING, *chance.choices(FILLER, k=length - 1)]
        if not passed and length > 1 and chance.random() < self.giveaway_rate:
            words[max(1, math.ceil(length / 4) - 1)] = GIVEAWAY
        most = length if options.max_tokens is None else options.max_tokens
        return _Draw(latency, None, tuple(words[:most]), "length" if most < length else "stop")


async def _sleep(seconds: float) -> None:
    await (anyio.sleep(seconds) if seconds > 0 else checkpoint())
