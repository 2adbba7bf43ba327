"""LangChain's ``ChatOpenAI``."""

from __future__ import annotations

from functools import partial
from typing import Any

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from rows import (
    ARGUMENTS,
    BASE_URL,
    CHECKED,
    EXPECTED,
    FOUND,
    KEY,
    PLAIN,
    SENTENCE,
    Asked,
    Weather,
    run,
    same,
    turns,
)


def model(name: str, **how: Any) -> ChatOpenAI:
    return ChatOpenAI(model=name, base_url=BASE_URL, api_key=KEY, **how)


def streamed(asked: Any, messages: list[Any]) -> Any:
    """Add up the chunks of a reply, as in LangChain's guide."""
    first, *others = asked.stream(messages)
    return sum(others, start=first)


def chat(prompt: str, *, stream: bool = False, **how: Any) -> None:
    asked = model(PLAIN, **how)
    for messages in turns(prompt, HumanMessage):
        reply = streamed(asked, messages) if stream else asked.invoke(messages)
        same(reply.text, SENTENCE)
        messages.append(reply)


def tools(prompt: str, *, stream: bool = False, **how: Any) -> None:
    asked = Asked()
    asked_model = model(CHECKED, **how).bind_tools([tool(asked.get_weather)])
    for messages in turns(prompt, HumanMessage):
        for _ in range(2):
            reply = streamed(asked_model, messages) if stream else asked_model.invoke(messages)
            messages.append(reply)
            for call in reply.tool_calls:
                same((call["name"], call["args"]), ("get_weather", ARGUMENTS))
                messages.append(
                    ToolMessage(asked.get_weather(**call["args"]), tool_call_id=call["id"])
                )
        same(reply.text, SENTENCE)
    asked.check(times=2)


def typed(prompt: str, method: str = "json_schema", **how: Any) -> None:
    asked = model(CHECKED, **how).with_structured_output(Weather, method=method, include_raw=True)
    for messages in turns(prompt, HumanMessage):
        reply = asked.invoke(messages)
        same(reply["parsed"], EXPECTED)
        messages.append(reply["raw"])
        messages += [ToolMessage(FOUND, tool_call_id=c["id"]) for c in reply["raw"].tool_calls]


RESPONSES: dict[str, Any] = {"use_responses_api": True}
run(
    "LangChain",
    {
        "chat": {"invoke": chat},
        "stream": {"stream": partial(chat, stream=True)},
        "tools": {"bind_tools": tools, "bind_tools, stream": partial(tools, stream=True)},
        "typed": {
            "with_structured_output": typed,
            "with_structured_output, function_calling": partial(typed, method="function_calling"),
        },
        "responses": {
            "use_responses_api=True": partial(chat, **RESPONSES),
            "stream": partial(chat, stream=True, **RESPONSES),
            "bind_tools": partial(tools, **RESPONSES),
            "with_structured_output": partial(typed, **RESPONSES),
        },
    },
)
