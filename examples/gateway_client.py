"""Ask a gateway for validated replies with the official OpenAI client.

The only change to a program that talks to OpenAI is the base URL; what a reply must meet stands in
the gateway's configuration. What a request wants besides goes into ``extra_body``.

Needs the extra `openai`, and the gateway of ``examples/gateway.yaml``:
``mellea-like serve --config examples/gateway.yaml``
Run it: ``python examples/gateway_client.py --base-url http://127.0.0.1:8080/v1``
"""

# needs: a gateway

from __future__ import annotations

import argparse
import sys

import openai

MESSAGES = [{"role": "user", "content": "Write a sentence about strings."}]


def plain(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(model="short", messages=MESSAGES)
    told = reply.model_extra["mellea_like"]
    print(f"reply: {reply.choices[0].message.content}")
    print(f"it took {told['iterations']} draws and {reply.usage.total_tokens} tokens")


def streamed(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="short",
        messages=MESSAGES,
        stream=True,
        extra_body={"mellea_like": {"checks": ["contains:string"], "attempts": 50}},
    )
    text = ""
    for chunk in stream:
        text += "".join(choice.delta.content or "" for choice in chunk.choices)
    print(f"streamed: {text}")


def impossible(client: openai.OpenAI) -> None:
    try:
        client.chat.completions.create(
            model="short",
            messages=MESSAGES,
            extra_body={"mellea_like": {"checks": ["contains:zebra"], "attempts": 2}},
        )
    except openai.UnprocessableEntityError as error:
        told = error.body["mellea_like"]
        print(f"nothing passed in {told['iterations']} draws: {told['problems'][-1]}")
        print(f"the best was: {told['best']['content']}")


def best(client: openai.OpenAI) -> None:
    answer = client.chat.completions.with_raw_response.create(
        model="short-or-best", messages=MESSAGES
    )
    print(f"passed: {answer.headers['x-mellea-like-passed']}")


def main() -> int:
    parser = argparse.ArgumentParser(description="Ask a gateway for validated replies.")
    parser.add_argument("--base-url", default="http://127.0.0.1:8080/v1")
    arguments = parser.parse_args()
    try:
        with openai.OpenAI(base_url=arguments.base_url, api_key="none-needed") as client:
            print("models:", ", ".join(model.id for model in client.models.list()))
            for show in (plain, streamed, impossible, best):
                show(client)
    except openai.APIError as error:
        print(f"No reply: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
