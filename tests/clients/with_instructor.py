"""Instructor."""

from __future__ import annotations

from functools import partial

import instructor
import openai
from rows import BASE_URL, CHECKED, EXPECTED, KEY, PLAIN, Weather, run, same, turns


def typed(mode: instructor.Mode, prompt: str) -> None:
    client = instructor.from_openai(openai.OpenAI(base_url=BASE_URL, api_key=KEY), mode=mode)
    for messages in turns(prompt):
        # One request: what is wrong in the first draw is the gateway's to notice, not the client's.
        weather, reply = client.chat.completions.create_with_completion(
            model=PLAIN
            if mode is instructor.Mode.JSON
            else CHECKED,  # It says the schema in words.
            messages=messages,
            response_model=Weather,
            max_retries=0,
        )
        same(weather.model_dump(), EXPECTED.model_dump())
        if mode is instructor.Mode.RESPONSES_TOOLS:
            # It takes messages, and no items.
            messages.append({"role": "assistant", "content": weather.model_dump_json()})
        else:
            message = reply.choices[0].message
            messages.append(message.model_dump())  # It takes no objects.
            messages += [
                {"role": "tool", "tool_call_id": call.id, "content": "noted"}
                for call in message.tool_calls or ()
            ]


run(
    "Instructor",
    {
        "typed": {
            "Mode.TOOLS": partial(typed, instructor.Mode.TOOLS),
            "Mode.JSON": partial(typed, instructor.Mode.JSON),
            "Mode.JSON_SCHEMA": partial(typed, instructor.Mode.JSON_SCHEMA),
        },
        "responses": {"Mode.RESPONSES_TOOLS": partial(typed, instructor.Mode.RESPONSES_TOOLS)},
    },
)
