"""Scores by a judge's log-probabilities, and votes weighed by those of their tokens."""

from __future__ import annotations

import math
from contextlib import asynccontextmanager

import anyio
import pytest
from engine_kit import by_iteration, votes_of

from mellea_like import BestOf, Generation, RejectionSamplingStrategy, Vote, judge_score
from mellea_like.backends import Reply, ScriptedBackend
from mellea_like.backends.function import FunctionBackend
from mellea_like.core.generation import TokenLogprob
from mellea_like.errors import AuthenticationFailed, InvalidRequest, RequirementError
from mellea_like.limits import ConcurrencyLimiter, FallbackBackend, LimitedBackend
from mellea_like.scoring import expected_score

pytestmark = pytest.mark.anyio


class Whole:
    """A backend that doesn't stream."""

    def __init__(self, inner):
        self.generate = inner.generate


def token(text, p=1.0, **others):
    """A token with its probability and those of others: ``_7=0.5`` is that of "7"."""
    others = {name.removeprefix("_"): q for name, q in others.items()}
    pairs = tuple((text, math.log(q)) for text, q in ({text: p} | others).items())
    return TokenLogprob(text, math.log(p), pairs)


def reply(*tokens):
    text = "".join(t.text for t in tokens)
    return Generation(text, logprobs=tokens)


HEAD = token('{"reason": "a \\"score\\": 2", "score":')
END = token("}")


@pytest.mark.parametrize(
    ("tokens", "said", "scale", "expected"),
    [
        # One token for each score.
        ((HEAD, token(" "), token("7", 0.6, _8=0.4), END), 7, (1, 10), 7.4),
        # What is no number on the scale has no say.
        ((HEAD, token(" 7", 0.5, _8=0.25, _11=0.125, high=0.125), END), 7, (1, 10), 22 / 3),
        # It begins in the middle of a token, as do the others.
        ((token('{"score'), token('": 7', 0.5, **{'": 9': 0.5}), token("}")), 7, (1, 10), 8),
        # 1 may be the beginning of 10: it counts where the judge wrote it, with what follows.
        ((HEAD, token("7", 0.5, _8=0.25, _1=0.25), END), 7, (1, 10), 22 / 3),
        ((HEAD, token("1", 0.5, _9=0.5), token("}", 0.5, _0=0.5)), 1, (1, 10), 7.25),
        ((HEAD, token("1", 0.5, _9=0.5), token("0", 0.5, **{"}": 0.5}), END), 10, (1, 10), 7.25),
        # Digits after the point, each a token.
        (
            (HEAD, token("0", 0.5, _1=0.5), token("."), token("5", 0.5, _7=0.5), END),
            0.5,
            (0, 1),
            0.8,
        ),
        # Below zero; a sign alone is no number.
        ((HEAD, token("-2", 0.5, **{"-4": 0.25, "-": 0.25}), END), -2, (-5, 5), -8 / 3),
        # Not known: no tokens, no such number, no alternatives, a number written in another way.
        ((), 7, (1, 10), 7),
        ((token("7"),), 7, (1, 10), 7),
        ((HEAD, TokenLogprob("7", -0.1), END), 7, (1, 10), 7),
        ((HEAD, token("1", 0.5, _9=0.5), token("e0"), END), 7, (1, 10), 7),
    ],
)
def test_the_mean_of_what_a_judge_might_have_written(tokens, said, scale, expected):
    assert expected_score(reply(*tokens), said, *scale) == pytest.approx(expected)


async def test_a_judge_that_refuses_log_probabilities_is_asked_without_from_then_on():
    asked = []

    async def refusing(request):
        asked.append("logprobs" in request.options.extra)
        if asked[-1]:
            msg = "unknown field logprobs"
            raise InvalidRequest(msg, status=400)
        return '{"reason": "", "score": 3}'

    scorer = judge_score("How nice?", judge=FunctionBackend(refusing))
    for _ in range(2):
        strategy = RejectionSamplingStrategy(
            by_iteration({1: "a", 2: "b"}),
            concurrency_budget=1,
            loop_budget=2,
            selection=BestOf(scorer, n=2),
        )
        result = await strategy.sample("do")
        assert result.decision.scores == {1: 3.0, 2: 3.0}
    assert asked == [True, False, False, False, False]


async def test_the_first_of_several_judges_that_refuses_log_probabilities_is_the_judge_still():
    asked = []

    async def first(request):
        asked.append("logprobs" in request.options.extra)
        if asked[-1]:
            msg = "unknown field logprobs"
            raise InvalidRequest(msg, status=400)
        return '{"reason": "", "score": 3}'

    other = FunctionBackend(lambda _: pytest.fail("the first answers"))
    judge = FallbackBackend(FunctionBackend(first), other)
    scorer = judge_score("How nice?", judge=judge)
    strategy = RejectionSamplingStrategy(
        by_iteration({}, "a"), loop_budget=2, concurrency_budget=1, selection=BestOf(scorer, n=2)
    )
    result = await strategy.sample("do")
    assert result.decision.scores == {1: 3.0, 2: 3.0}
    assert asked == [True, False, False]


async def test_a_judge_that_refuses_whatever_it_is_asked_is_not_taken_to_mind_log_probabilities():
    asked = []

    async def refusing(request):
        asked.append("logprobs" in request.options.extra)
        msg = "too long"
        raise InvalidRequest(msg, status=400)

    scorer = judge_score("How nice?", judge=FunctionBackend(refusing))
    strategy = RejectionSamplingStrategy(
        by_iteration({}, "a"), concurrency_budget=1, selection=BestOf(scorer, n=1)
    )
    for _ in range(2):
        with pytest.raises(RequirementError, match="too long"):
            await strategy.sample("do")
    assert asked == [True, False, True, False]


async def test_an_error_of_the_judges_server_is_not_said_to_come_from_a_line_of_code():
    class Refusing:
        @asynccontextmanager  # Its frame would be the line.
        async def stream(self, request):
            yield await self.generate(request)

        async def generate(self, request):
            message = "no"
            raise AuthenticationFailed(message)

    scorer = judge_score("How nice?", judge=Refusing())
    backend = by_iteration({}, "a")
    strategy = RejectionSamplingStrategy(backend, loop_budget=1, selection=BestOf(scorer))
    with pytest.raises(RequirementError) as caught:
        await strategy.sample("do")
    assert isinstance(caught.value.__cause__, AuthenticationFailed)
    assert not any("raised at" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("streams", [True, False])
async def test_a_limiter_lets_the_judge_of_a_score_go_before_draws(streams, virtual_clock):
    asked = []

    def reply(request):
        asked.append(request.meta.purpose)
        return Reply('{"reason": "", "score": 3}' if asked[-1] == "judge" else "a", delay=1)

    backend = ScriptedBackend(reply)
    one_at_a_time = ConcurrencyLimiter(1)
    limited = LimitedBackend(backend if streams else Whole(backend), one_at_a_time)
    scorer = judge_score("How nice?", judge=limited)
    strategy = RejectionSamplingStrategy(limited, loop_budget=1, selection=BestOf(scorer, n=1))
    async with anyio.create_task_group() as calls:
        for _ in range(3):
            calls.start_soon(strategy.sample, "do")
    draw, judge = "generate", "judge"
    # The second draw gets the place that the first one leaves.
    assert asked == [draw, draw, judge, judge, draw, judge]
    assert virtual_clock.now == 6


async def test_votes_weigh_as_much_as_their_tokens_are_likely():
    def drawn(text, *probabilities):
        tokens = tuple(TokenLogprob("x", math.log(p)) for p in probabilities)
        return Generation(text, logprobs=tokens)

    draws = [drawn("42", 0.9, 0.4), drawn("41", 0.2), drawn("41", 0.3)]
    strategy = RejectionSamplingStrategy(
        by_iteration(dict(enumerate(draws, 1))),
        concurrency_budget=1,
        loop_budget=3,
        selection=Vote(key=lambda c: int(c.value), n=3, weight="logprob"),
    )
    result = await strategy.sample("six times seven", format=int)
    assert votes_of(result.decision) == pytest.approx({"42": 0.6, "41": 0.5})
    assert result.value == 42
    assert draws[0].mean_logprob == pytest.approx(math.log(0.6))


async def test_a_vote_by_likelihood_says_what_it_needs():
    strategy = RejectionSamplingStrategy(
        by_iteration({}, "42"), concurrency_budget=1, selection=Vote(n=2, weight="logprob")
    )
    with pytest.raises(RequirementError, match=r"options=\{'extra': \{'logprobs': True\}\}"):
        await strategy.sample("do")
    with pytest.raises(TypeError, match="or 'logprob', not 'likely'"):
        Vote(weight="likely")
