"""The conversations of a record, each written as the continuation of an earlier one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mellea_like import Message
from mellea_like.core.prompts import (
    Prompts,
    prompt_at,
    prompt_since,
    read_prompts,
    rewritten,
    with_earlier,
)


def said(*texts: str) -> tuple[Message, ...]:
    """Return messages that are new objects each time."""
    return tuple(Message("user", text) for text in texts)


def plain(*texts: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text} for text in texts]


def written(*conversations: tuple[Message, ...]) -> tuple[list[int], list]:
    prompts = Prompts()
    places = [prompts.place(messages) for messages in conversations]
    return places, prompts.written(Message.as_dict)


@pytest.mark.parametrize(
    ("conversations", "places", "prompts"),
    [
        (["", "a", "a", ""], [0, 1, 1, 0], [plain(), plain("a")]),
        (["a", "ab", "abcd"], [0, 1, 2], ["a", (0, "b"), (1, "cd")]),
        (["a", "abc", "abd", "b"], [0, 1, 2, 3], ["a", (0, "bc"), (0, "bd"), "b"]),
        (["abc", "ab", "abcd"], [0, 1, 2], ["abc", "ab", (0, "d")]),
    ],
)
def test_a_conversation_is_written_as_what_follows_the_longest_one_before(
    conversations, places, prompts
):
    expected = [
        {"after": p[0], "then": plain(*p[1])}
        if isinstance(p, tuple)
        else plain(*p)
        if isinstance(p, str)
        else p
        for p in prompts
    ]
    assert written(*(said(*texts) for texts in conversations)) == (places, expected)


@given(st.lists(st.text("ab", max_size=6), max_size=8))
def test_every_conversation_comes_back(conversations):
    given_ = [said(*texts) for texts in conversations]
    places, prompts = written(*given_)
    read = read_prompts(prompts)
    for place, messages in zip(places, given_, strict=True):
        assert read[place] == messages
        assert prompt_at(prompts, place) == [message.as_dict() for message in messages]
        before, since = prompt_since(prompts, place, range(place))
        assert before is None or prompt_at(prompts, place) == prompt_at(prompts, before) + since
        kept = [p if at in with_earlier(prompts, [place]) else [] for at, p in enumerate(prompts)]
        assert prompt_at(kept, place) == prompt_at(prompts, place)
    for place in range(len(prompts)):
        moved = [[], [], *rewritten(prompts, further=2)]
        assert prompt_at(moved, place + 2) == prompt_at(prompts, place)


@pytest.mark.parametrize("before", [1, 2, -1, True, "0", None])
def test_a_conversation_follows_an_earlier_one_or_the_record_is_damaged(before):
    prompts = [plain("a"), {"after": before, "then": plain("b")}]
    for read in (read_prompts, lambda prompts: prompt_at(prompts, 1)):
        with pytest.raises(
            ValueError, match="the conversation at place 1 can't continue the one at"
        ):
            read(prompts)
