"""LlamaIndex."""

from __future__ import annotations

from typing import Any

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.llms import ChatMessage
from llama_index.core.memory import ChatMemoryBuffer
from llama_index.llms.openai_like import OpenAILike, OpenAILikeResponses
from rows import (
    AGAIN,
    BASE_URL,
    CHECKED,
    EXPECTED,
    KEY,
    PLAIN,
    SENTENCE,
    Asked,
    Weather,
    run,
    same,
    turns,
)


def llm(name: str) -> OpenAILike:
    return OpenAILike(
        model=name,
        api_base=BASE_URL,
        api_key=KEY,
        is_chat_model=True,
        is_function_calling_model=True,
        should_use_structured_outputs=True,
    )


def responses_llm(name: str) -> OpenAILikeResponses:
    return OpenAILikeResponses(
        model=name, api_base=BASE_URL, api_key=KEY, is_function_calling_model=True
    )


def talk(asked: Any, prompt: str, *, stream: bool = False) -> None:
    for messages in turns(prompt, ChatMessage):
        reply = list(asked.stream_chat(messages))[-1] if stream else asked.chat(messages)
        same(reply.message.content, SENTENCE)
        messages.append(reply.message)


async def loop(asked: Any, prompt: str, *, streaming: bool) -> None:
    weather = Asked()
    agent = FunctionAgent(tools=[weather.get_weather], llm=asked, streaming=streaming)
    memory = ChatMemoryBuffer.from_defaults()
    for text in (prompt, AGAIN):
        reply = await agent.run(text, memory=memory)
        same(str(reply), SENTENCE)
    weather.check(times=2)


def typed(asked: Any, prompt: str) -> None:
    for messages in turns(prompt, ChatMessage):
        reply = asked.as_structured_llm(Weather).chat(messages)
        same(reply.raw, EXPECTED)
        messages.append(reply.message)


run(
    "LlamaIndex",
    {
        "chat": {"OpenAILike.chat": lambda prompt: talk(llm(PLAIN), prompt)},
        "stream": {"stream_chat": lambda prompt: talk(llm(PLAIN), prompt, stream=True)},
        "tools": {
            "FunctionAgent": lambda prompt: loop(llm(CHECKED), prompt, streaming=False),
            "FunctionAgent, streaming": lambda prompt: loop(llm(CHECKED), prompt, streaming=True),
        },
        "typed": {"as_structured_llm": lambda prompt: typed(llm(CHECKED), prompt)},
        "responses": {
            "OpenAILikeResponses.chat": lambda prompt: talk(responses_llm(PLAIN), prompt),
            "stream_chat": lambda prompt: talk(responses_llm(PLAIN), prompt, stream=True),
            "FunctionAgent": lambda prompt: loop(responses_llm(CHECKED), prompt, streaming=False),
            "as_structured_llm": lambda prompt: typed(responses_llm(CHECKED), prompt),
        },
    },
)
