"""DSPy."""

from __future__ import annotations

from functools import partial
from typing import Any

import dspy
from dspy.lm15 import FunctionTool, Message, Request
from rows import (
    AGAIN,
    ARGUMENTS,
    BASE_URL,
    CHECKED,
    EXPECTED,
    FOUND,
    KEY,
    PLAIN,
    SENTENCE,
    WEATHER_TOOL,
    Weather,
    run,
    same,
    turns,
)


class Ask(dspy.Signature):
    """Answer the question."""

    history: dspy.History = dspy.InputField()
    question: str = dspy.InputField()
    degrees: int = dspy.OutputField()


class AskForWeather(dspy.Signature):
    """Answer the question."""

    history: dspy.History = dspy.InputField()
    question: str = dspy.InputField()
    weather: Weather = dspy.OutputField()


def lm(model: str, **how: Any) -> dspy.LM:
    return dspy.LM(f"openai/{model}", api_base=BASE_URL, api_key=KEY, cache=False, **how)


def request(prompt: str, **how: Any) -> None:
    asked = lm(PLAIN, **how)
    for messages in turns(prompt, Message.user):
        reply = asked(Request(asked.model, messages=tuple(messages)))
        same(reply.text, SENTENCE)
        messages.append(reply.message)


def tools(prompt: str, **how: Any) -> None:
    asked = lm(CHECKED, **how)
    function = WEATHER_TOOL["function"]
    tool = FunctionTool(function["name"], function["description"], function["parameters"])
    for messages in turns(prompt, Message.user):
        reply = asked(Request(asked.model, messages=tuple(messages), tools=(tool,)))
        (call,) = reply.tool_calls
        same((call.name, call.input), ("get_weather", ARGUMENTS))
        messages.extend([reply.message, Message.tool(call.id, FOUND)])
        reply = asked(Request(asked.model, messages=tuple(messages), tools=(tool,)))
        same(reply.text, SENTENCE)
        messages.append(reply.message)


def predict(module: Any, signature: Any, field: str, expected: object, prompt: str) -> None:
    seen: list[Any] = []
    with dspy.context(lm=lm(PLAIN)):
        for text in (prompt, AGAIN):
            reply = module(signature)(question=text, history=dspy.History(messages=seen))
            same(reply[field], expected)
            seen.append({"question": text, **reply})


async def stream(prompt: str) -> None:
    seen: list[Any] = []
    with dspy.context(lm=lm(PLAIN)):
        for text in (prompt, AGAIN):
            streamed = dspy.streamify(dspy.Predict(Ask))
            chunks = [
                each async for each in streamed(question=text, history=dspy.History(messages=seen))
            ]
            assert len(chunks) > 1
            same(chunks[-1].degrees, 21)
            seen.append({"question": text, **chunks[-1]})


run(
    "DSPy",
    {
        "chat": {"LM": request, "Predict": partial(predict, dspy.Predict, Ask, "degrees", 21)},
        "stream": {"streamify": stream},
        "tools": {"LM": tools},
        "typed": {
            "Predict": partial(predict, dspy.Predict, AskForWeather, "weather", EXPECTED),
            "ChainOfThought": partial(
                predict, dspy.ChainOfThought, AskForWeather, "weather", EXPECTED
            ),
        },
        "responses": {
            "LM, model_type=responses": partial(request, model_type="responses"),
            "tools": partial(tools, model_type="responses"),
        },
    },
)
