"""smolagents."""

from __future__ import annotations

from typing import Any

from rows import AGAIN, BASE_URL, CHECKED, EXPECTED, KEY, PLAIN, SENTENCE, Asked, Weather, run, same
from smolagents import OpenAIModel, ToolCallingAgent, tool
from smolagents.models import ChatMessage, MessageRole, agglomerate_stream_deltas


def model(name: str) -> OpenAIModel:
    return OpenAIModel(name, api_base=BASE_URL, api_key=KEY)


def question(text: str) -> ChatMessage:
    return ChatMessage(MessageRole.USER, [{"type": "text", "text": text}])


def chat(prompt: str) -> None:
    messages: list[Any] = []
    for text in (prompt, AGAIN):
        messages.append(question(text))
        reply = model(PLAIN).generate(messages)
        same(reply.content, SENTENCE)
        messages.append(reply)


def stream(prompt: str) -> None:
    messages: list[Any] = []
    for text in (prompt, AGAIN):
        messages.append(question(text))
        reply = agglomerate_stream_deltas(list(model(PLAIN).generate_stream(messages)))
        same(reply.content, SENTENCE)
        messages.append(reply)


def tools(prompt: str) -> None:
    asked = Asked()

    @tool
    def get_weather(city: str, days: int) -> str:
        """Look the weather up.

        Args:
            city: where.
            days: for how long.
        """
        return asked.get_weather(city, days)

    agent = ToolCallingAgent(
        tools=[get_weather], model=model(CHECKED), max_steps=4, verbosity_level=0
    )
    for text in (prompt, AGAIN):
        # It ends a run by calling a tool of its own with an answer.
        same(agent.run(text, reset=text == prompt), "clear")
    asked.check(times=2)


def typed(prompt: str) -> None:
    messages: list[Any] = []
    schema = {"name": "weather", "schema": Weather.model_json_schema(), "strict": True}
    for text in (prompt, AGAIN):
        messages.append(question(text))
        form = {"type": "json_schema", "json_schema": schema}
        reply = model(CHECKED).generate(messages, response_format=form)
        same(Weather.model_validate_json(reply.content), EXPECTED)
        messages.append(reply)


run(
    "smolagents",
    {
        "chat": {"OpenAIModel.generate": chat},
        "stream": {"OpenAIModel.generate_stream": stream},
        "tools": {"ToolCallingAgent": tools},
        "typed": {"response_format": typed},
    },
)
