"""DSPy."""

from __future__ import annotations

import dspy
from rows import BASE_URL, EXPECTED, KEY, PLAIN, Weather, run, same


class Ask(dspy.Signature):
    """Answer the question."""

    question: str = dspy.InputField()
    degrees: int = dspy.OutputField()


class AskForWeather(dspy.Signature):
    """Answer the question."""

    question: str = dspy.InputField()
    weather: Weather = dspy.OutputField()


def lm(model: str) -> dspy.LM:
    return dspy.LM(f"openai/{model}", api_base=BASE_URL, api_key=KEY, cache=False)


def predict(prompt: str) -> None:
    with dspy.context(lm=lm(PLAIN)):
        same(dspy.Predict(Ask)(question=prompt).degrees, 21)


def chain_of_thought(prompt: str) -> None:
    with dspy.context(lm=lm(PLAIN)):
        same(dspy.ChainOfThought(Ask)(question=prompt).degrees, 21)


def typed(prompt: str) -> None:
    with dspy.context(lm=lm(PLAIN)):
        same(dspy.Predict(AskForWeather)(question=prompt).weather, EXPECTED)


run(
    "DSPy",
    {"Predict": predict, "ChainOfThought": chain_of_thought, "Predict, typed": typed},
)
