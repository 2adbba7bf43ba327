"""LangChain's ``ChatOpenAI``."""

from __future__ import annotations

from functools import partial
from typing import Any

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from rows import BASE_URL, CHECKED, EXPECTED, KEY, PLAIN, SENTENCE, Weather, run, same


def model(name: str) -> ChatOpenAI:
    return ChatOpenAI(model=name, base_url=BASE_URL, api_key=KEY)


def invoke(prompt: str) -> None:
    same(model(PLAIN).invoke(prompt).content, SENTENCE)


def stream(prompt: str) -> None:
    same("".join(chunk.content for chunk in model(PLAIN).stream(prompt)), SENTENCE)


def structured(prompt: str, **how: Any) -> None:
    typed = model(CHECKED).with_structured_output(Weather, **how)
    same(typed.invoke(prompt), EXPECTED)


def bind_tools(prompt: str) -> None:
    @tool
    def get_weather(city: str, days: int) -> str:
        """Look the weather up."""
        return f"21 degrees in {city} for {days} days"

    message = model(CHECKED).bind_tools([get_weather]).invoke(prompt)
    (call,) = message.tool_calls
    same((call["name"], call["args"]), ("get_weather", {"city": "Paris", "days": 21}))


run(
    "LangChain ChatOpenAI",
    {
        "invoke": invoke,
        "stream": stream,
        "with_structured_output": structured,
        "with_structured_output, function_calling": partial(structured, method="function_calling"),
        "bind_tools": bind_tools,
    },
)
