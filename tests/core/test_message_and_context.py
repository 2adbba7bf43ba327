"""Messages, and conversations that share their past."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

from mellea_like.core.conversation import Context, Message

A, B, C = Message("system", "a"), Message("user", "b"), Message("assistant", "c")


@pytest.mark.parametrize("role", ["developer", "", None, 3])
def test_a_role_is_one_of_four(role):
    with pytest.raises(ValueError, match="role must be one of system, user, assistant, tool"):
        Message(role, "x")


@pytest.mark.parametrize("content", [None, 3, b"x", {"type": "text"}])
def test_a_content_is_a_text_or_parts(content):
    with pytest.raises(TypeError, match=f"a sequence of parts, not {type(content).__name__}"):
        Message("user", content)
    with pytest.raises(TypeError, match=f"Audio and File parts, not {type(content).__name__}"):
        Message("user", [content])


def test_a_message_is_immutable_and_compares_by_value():
    message = Message("user", "x")
    with pytest.raises(FrozenInstanceError):
        message.content = "y"
    assert message == Message("user", "x")
    assert len({message, Message("user", "x"), Message("assistant", "x")}) == 2


def test_a_context_has_a_length_and_can_be_iterated():
    context = Context().add(A).add(B)
    assert len(context) == 2
    assert list(context) == [A, B]
    assert repr(context) == "<Context of 2 messages>"
    assert not len(Context())


def test_contexts_compare_by_their_messages():
    assert Context([A, B]) == Context([A]).add(B)
    assert hash(Context([A, B])) == hash(Context([A]).add(B))
    assert Context([A, B]) != Context([B, A])
    assert Context([A]) != (A,)


@pytest.mark.parametrize("wrong", ["text", ("user", "x"), None])
def test_a_context_holds_messages_only(wrong):
    with pytest.raises(TypeError, match="messages must be a list of messages, not"):
        Context(Message("user", "x"))
    with pytest.raises(TypeError, match="must be Message objects"):
        Context([wrong])
    with pytest.raises(TypeError, match="must be Message objects"):
        Context().add(wrong)
