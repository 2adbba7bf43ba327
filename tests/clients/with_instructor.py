"""Instructor."""

from __future__ import annotations

from functools import partial

import instructor
import openai
from rows import BASE_URL, CHECKED, EXPECTED, KEY, PLAIN, Weather, run, same, user


def typed(mode: instructor.Mode, prompt: str) -> None:
    client = instructor.from_openai(openai.OpenAI(base_url=BASE_URL, api_key=KEY), mode=mode)
    # One request: what is wrong in the first draw is the gateway's to notice, not the client's.
    weather = client.chat.completions.create(
        model=PLAIN if mode is instructor.Mode.JSON else CHECKED,  # It says the schema in words.
        messages=user(prompt),
        response_model=Weather,
        max_retries=0,
    )
    same(weather.model_dump(), EXPECTED.model_dump())


run(
    "Instructor",
    {
        f"Mode.{mode.name}": partial(typed, mode)
        for mode in (
            instructor.Mode.TOOLS,
            instructor.Mode.JSON,
            instructor.Mode.JSON_SCHEMA,
            instructor.Mode.RESPONSES_TOOLS,
        )
    },
)
