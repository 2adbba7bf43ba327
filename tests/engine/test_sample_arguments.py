"""What the constructor and `sample` take, and what they refuse, naming it."""

from __future__ import annotations

import dataclasses
import inspect
import itertools

import pytest
from engine_kit import by_iteration, yes

from mellea_like import (
    BaseSamplingStrategy,
    Context,
    Instruction,
    Message,
    MultiTurnStrategy,
    RejectionSamplingStrategy,
    RepairTemplateStrategy,
    Requirement,
    SamplingResult,
)
from mellea_like.backends.function import FunctionBackend
from mellea_like.backends.scripted import ScriptedBackend
from mellea_like.core import Options
from mellea_like.hooks import PluginSet
from mellea_like.requirements.checks import word_count
from mellea_like.sampling import escalate
from mellea_like.sampling.prepare import Settings
from mellea_like.testing import RecordingPlugin

pytestmark = [pytest.mark.anyio]

STRATEGIES = [
    BaseSamplingStrategy,
    RejectionSamplingStrategy,
    RepairTemplateStrategy,
    MultiTurnStrategy,
]
SECONDS = ["iteration_timeout", "timeout", "cancel_grace"]
COUNTS = ["loop_budget", "concurrency_budget", "max_iterations"]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_defaults(strategy):
    settings = strategy().settings
    assert (settings.loop_budget, settings.concurrency_budget) == (3, 1)
    assert (settings.max_iterations, settings.selection) == (1000, "first")
    assert (settings.timeout, settings.iteration_timeout, settings.cancel_grace) == (None, None, 5)
    assert settings.options == Options()
    assert settings.judge_options == Options(temperature=0.0)
    assert (settings.requirements, settings.handlers) == ((), ())
    assert settings.validate_all is None


COUNT, NUMBER = r"must be an integer, not", "must be a number of seconds, not"
LEAST, FINITE = "must be at least 1, not", "must be greater than 0 seconds and finite, not"


@pytest.mark.parametrize(
    ("names", "values", "error", "why"),
    [
        (COUNTS, [0], ValueError, LEAST),
        (COUNTS, [None], TypeError, COUNT),
        (SECONDS, [0], ValueError, FINITE),
        (SECONDS, ["3"], TypeError, NUMBER),
    ],
)
def test_counts_are_whole_and_seconds_finite_and_both_over_0(names, values, error, why):
    for name, value in itertools.product(names, values):
        with pytest.raises(error, match=f"{name} {why}"):
            RejectionSamplingStrategy(**{name: value})


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"backend": 3}, TypeError, "backend must be a backend"),
        ({"cancel_grace": None}, TypeError, "cancel_grace must be a number of seconds"),
        ({"validate_all": "no"}, TypeError, "validate_all must be a bool or None, not 'no'"),
        ({"backend": ScriptedBackend}, TypeError, "backend must be a backend"),
        ({"backend": print}, TypeError, r"wrap it in FunctionBackend"),
        ({"judge": "gpt"}, TypeError, "judge must be a backend"),
        ({"requirements": "lone"}, TypeError, "requirements must be a list, not a single str"),
        ({"requirements": yes}, TypeError, "not a single Requirement"),
        (
            {"requirements": [3]},
            TypeError,
            "must contain only Requirement objects and texts, not 3",
        ),
        ({"requirements": [""]}, ValueError, "has an empty text"),
        ({"selection": "best"}, ValueError, "selection must be 'first', 'ordered' or an object"),
        ({"options": {"temprature": 1}}, ValueError, "unknown option temprature"),
        ({"options": {"temperature": "hot"}}, TypeError, "temperature must be a number"),
        ({"judge_options": {"tokens": 1}}, ValueError, "unknown option tokens"),
        ({"plugins": [3]}, TypeError, "3 isn't a plugin"),
        (
            {"plugins": RecordingPlugin()},
            TypeError,
            "plugins must be a list, not a single Recording",
        ),
        ({"plugins": PluginSet("s", [])}, TypeError, "not a single PluginSet: put it in a list"),
        ({"plugins": RecordingPlugin}, TypeError, "put it in a list"),
        ({"plugins": 3}, TypeError, "not a single int: put it in a list"),
        ({"telemetry": True}, TypeError, "telemetry must be a Telemetry, not True"),
    ],
    ids=lambda value: str(value).split(" at 0x")[0],
)
def test_what_the_constructor_refuses(arguments, error, message):
    with pytest.raises(error, match=message):
        RejectionSamplingStrategy(**arguments)


@pytest.mark.parametrize("kind", [RejectionSamplingStrategy, MultiTurnStrategy])
def test_a_mistyped_argument_is_named_with_the_class_that_was_called(kind):
    with pytest.raises(TypeError) as caught:
        kind(None, loop_buget=3)
    said = f"{kind.__name__}() got an unexpected keyword argument 'loop_buget'."
    assert str(caught.value) == f"{said} Did you mean 'loop_budget'?"


def test_a_strategy_is_immutable():
    strategy = RejectionSamplingStrategy(loop_budget=2)
    with pytest.raises(AttributeError):
        strategy.settings = None
    with pytest.raises(AttributeError):
        strategy.settings.loop_budget = 5


def own_check(most: int) -> Requirement:
    return Requirement(f"has at most {most} words", lambda c: len(c.text.split()) <= most)


class Demanding:
    """An action whose own requirements are no list."""

    requirements = "lone"

    def render(self, context):
        return context.messages

    def parse(self, text):
        return text


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"requirements": "lone"}, TypeError, "must be a list, not a single str: put it in a list"),
        ({"requirements": yes}, TypeError, "not a single Requirement: put it in a list"),
        (
            {"requirements": [3]},
            TypeError,
            "must contain only Requirement objects and texts, not 3",
        ),
        ({"requirements": [word_count]}, TypeError, r"call it, as in word_count\(\.\.\.\)"),
        ({"requirements": [own_check]}, TypeError, r"call it, as in own_check\(\.\.\.\)"),
        ({"requirements": [print]}, TypeError, r"wrap it, as in Requirement\("),
        ({"requirements": [" "]}, ValueError, "has an empty text"),
        ({"requirements": 5}, TypeError, "must be a list of Requirement objects and texts, not 5"),
        ({"action": Demanding()}, TypeError, "the action's requirements must be a list"),
        ({"context": "hi"}, TypeError, r"not str: pass Context\(\[Message\(\.\.\.\), \.\.\.\]\)"),
        ({"validation_context": 3}, TypeError, "validation_context must be a Context or a list of"),
        ({"backend": 3}, TypeError, "backend must be a backend, with generate"),
        ({"backend": FunctionBackend}, TypeError, "backend must be a backend"),
        ({"backend": print}, TypeError, r"wrap it in FunctionBackend\(\.\.\.\)"),
        ({"options": {"sede": 1}}, ValueError, "unknown option sede"),
        ({"options": 3}, TypeError, "options must be an Options or a mapping"),
        ({"format": 3}, TypeError, "format must be a pydantic model"),
        (
            {"action": 3},
            TypeError,
            "an action must be a str, an Instruction, a Message, an OpenAI-style",
        ),
        ({"action": Instruction}, TypeError, "an action must be a str"),
        ({"strategy": RejectionSamplingStrategy()}, ValueError, "there is no backend: pass one to"),
    ],
    ids=lambda value: str(value).split(" at 0x")[0],
)
async def test_what_sample_refuses_before_the_first_request(arguments, error, message):
    backend = by_iteration({})
    given = {"action": "do", "strategy": RejectionSamplingStrategy(backend), **arguments}
    with pytest.raises(error, match=message):
        await given.pop("strategy").sample(**given)
    assert backend.requests == []


async def test_the_calls_backend_options_and_context_come_before_the_strategys(virtual_clock):
    standing, given = by_iteration({}), by_iteration({})
    strategy = RejectionSamplingStrategy(
        standing, options={"temperature": 0.1, "max_tokens": 5}, loop_budget=1
    )
    context = Context([Message("user", "earlier")])
    await strategy.sample("do", [yes], backend=given, options={"seed": 1}, context=context)
    assert standing.requests == []
    [request] = given.requests
    assert (request.options.temperature, request.options.max_tokens) == (0.1, 5)
    assert request.options.seed is not None
    assert request.messages[0].content == "earlier"


async def test_an_option_that_a_mapping_names_with_none_is_left_to_the_backend(virtual_clock):
    backend = by_iteration({})
    standing = {"max_tokens": 5, "stop": "x", "temperature": 0.5, "extra": {"a": 1}}
    strategy = RejectionSamplingStrategy(backend, options=standing, loop_budget=1)
    await strategy.sample("do", [yes], options={"max_tokens": None, "stop": None, "extra": None})
    assert backend.requests[0].options == Options(temperature=0.5)


class NullIsNone(Instruction):  # A subclass keeps its own parse where requirements are given.
    def parse(self, text):
        return None if text == "null" else text


@pytest.mark.parametrize(
    ("action", "format_"), [("do", int | None), (NullIsNone("do"), None)], ids=["format", "parse"]
)
async def test_none_is_a_value(action, format_, virtual_clock):
    seen = []
    check = Requirement("look", lambda c: seen.append(c.value) or True, inline=True)
    strategy = RejectionSamplingStrategy(ScriptedBackend(["null"]))
    result = await strategy.sample(action, [check], format=format_)
    for known in (result, SamplingResult.from_dict(result.to_dict(), format_)):
        assert known.success
        assert known.value is None
        assert known.unwrap() is None
        assert known.best.text == "null"
    assert seen == [None]
    assert result.to_dict()["slices"][0]["value"] is None


def test_settings_and_escalate_have_every_argument_of_a_strategy():
    init = inspect.signature(BaseSamplingStrategy.__init__).parameters
    arguments = {name: init[name].annotation for name in init if name != "self"}
    settings = {field.name for field in dataclasses.fields(Settings)}
    assert set(arguments) - settings == {"plugins"}  # The settings have their handlers.
    annotations = escalate._Arguments.__annotations__
    of_escalate = {name: hint.__forward_arg__ for name, hint in annotations.items()}
    assert set(arguments) - set(of_escalate) == {"backend", "loop_budget", "give_up"}
    differing = {name for name, hint in of_escalate.items() if hint != arguments[name]}
    assert differing == {"selection"}  # An object would choose among draws of different models.
