"""Parts of messages, tool calls, and the dicts of OpenAI's chat protocol."""

from __future__ import annotations

import base64
import pickle

import pytest
from hypothesis import given

from mellea_like.core.backend import Request, texts_only
from mellea_like.core.conversation import Context, Conversation, Message, as_action
from mellea_like.core.generation import Generation, why_incomplete
from mellea_like.core.parts import Audio, File, Image, Text, part_from_dict
from mellea_like.core.tools import Tool, ToolCall
from mellea_like.errors import InvalidRequest
from tests.support.messages import MESSAGES, PNG

URL = f"data:image/png;base64,{base64.b64encode(PNG).decode()}"


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: Text(3), TypeError, "a Text's text must be str, not int"),
        (Image, ValueError, "exactly one of url and data"),
        (lambda: Image("https://a/b", PNG), ValueError, "exactly one of url and data"),
        (lambda: Image(PNG), TypeError, "an Image's url must be str, not bytes"),
        (lambda: Image(data="x"), TypeError, "an Image's data must be bytes, not str"),
        (lambda: Image(data=b"x"), ValueError, "the type of .*data is unknown"),
        (lambda: Image(data=b"x", media_type="png"), ValueError, 'like "image/png"'),
        (
            lambda: Image("https://a/b", media_type="image/png"),
            ValueError,
            "can't have a media_type",
        ),
        (
            lambda: Image("photo.png"),
            ValueError,
            r"not 'photo.png': to send a file, pass its bytes",
        ),
        (lambda: Image(r"C:\photo.png"), ValueError, "to send a file, pass its bytes"),
        (lambda: Image("data:image/png,x"), ValueError, "a data: URL must look like"),
        (lambda: Image("data:image/png;base64,?"), ValueError, "the data isn't base64"),
        (lambda: Image("data:a" + ";" * 10**6 + ","), ValueError, "a data: URL must look like"),
        (lambda: Audio("x", "wav"), TypeError, "an Audio's data must be bytes"),
        (lambda: Audio(b"x", ""), ValueError, "can't be empty"),
        (File, ValueError, "exactly one of data and file_id"),
        (lambda: File(b"x", "id"), ValueError, "exactly one of data and file_id"),
        (lambda: File(b"x", filename="odd.zzz9"), ValueError, "the type of .*data is unknown"),
        (lambda: File(file_id="a", media_type="text/plain"), ValueError, "can't have a media_type"),
        (lambda: ToolCall("a", "f", {}), TypeError, "arguments must be a str, not dict"),
        (lambda: ToolCall("a", "", "{}"), ValueError, "needs the name of the tool"),
        (lambda: Tool("no spaces"), ValueError, "1 to 64 letters"),
        (lambda: Tool("f", parameters=[]), TypeError, "a JSON Schema as a dict"),
        (lambda: Tool("f", function=3), TypeError, "must be callable, not 3"),
        (lambda: Request((), tools=[print]), TypeError, "must be Tool objects, not <built-in"),
        (lambda: Request((), tool_choice="f"), ValueError, "or 'none', not 'f'"),
        (lambda: Message("tool", "x"), ValueError, "needs the tool_call_id"),
        (lambda: Message("user", "x", 3), TypeError, "a message's name must be a str"),
        (
            lambda: Message("user", "x", tool_call_id="a"),
            ValueError,
            "only messages with the role 'tool'",
        ),
        (
            lambda: Message("user", "x", tool_calls=[ToolCall("", "f", "")]),
            ValueError,
            "only messages with the role 'a",
        ),
        (
            lambda: Message("assistant", "x", tool_calls=["f"]),
            TypeError,
            "must be ToolCall objects",
        ),
        (lambda: Message("assistant", "x", reasoning=3), TypeError, "reasoning must be a str"),
    ],
)
def test_what_can_t_be_is_refused(make, error, words):
    with pytest.raises(error, match=words):
        make()


def test_the_type_of_data_is_told_by_its_beginning_or_by_its_name():
    assert Image(data=PNG).media_type == "image/png"
    assert Image(data=b"RIFF1234WEBPVP8 ").media_type == "image/webp"
    assert Image(URL) == Image(data=PNG)
    assert File(b"%PDF-1.7").media_type == "application/pdf"
    assert File(b"a,b", filename="t.csv").media_type == "text/csv"


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (Message("user", "plain"), "plain"),
        (Message("user", ["What?", Image(data=PNG)]), f"What?\n[image/png, {len(PNG)} bytes]"),
        (Message("user", [Image("https://a/" + "b" * 90)]), None),
        (Message("user", [Audio(b"x" * 12_345, "wav")]), "[audio/wav, 12 KB]"),
        (
            Message("user", [File(b"x" * 2_500_000, filename="a.txt")]),
            "[text/plain, 2.5 MB, a.txt]",
        ),
        (Message("user", [File(file_id="file-7")]), "[file file-7]"),
        (
            Message("assistant", "Let me see.", tool_calls=[ToolCall("1", "look", '{"at": 3}')]),
            'Let me see.\n[calls look({"at": 3})]',
        ),
        (Message("assistant", "", tool_calls=[ToolCall("1", "look", "")]), "[calls look()]"),
    ],
)
def test_a_text_has_placeholders_for_what_is_none(message, text):
    if text is None:
        assert message.text.endswith("(20 more characters)]")
    else:
        assert message.text == text


@given(MESSAGES)
def test_a_message_comes_back_from_its_dict(message):
    again = Message.from_dict(message.as_dict())
    assert again == message
    assert hash(again) == hash(message)
    assert pickle.loads(pickle.dumps(message)) == message


@pytest.mark.parametrize(
    ("given_", "read"),
    [
        ({"role": "developer", "content": "x"}, Message("system", "x")),
        ({"role": "assistant", "content": None, "refusal": "No."}, Message("assistant", "No.")),
        ({"role": "user", "content": ["a"]}, Message("user", [Text("a")])),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": URL}], "x": 1},
            Message("user", [Image(data=PNG)]),
        ),
        (
            {"role": "assistant", "content": "4", "reasoning": "2 + 2"},
            Message("assistant", "4", reasoning="2 + 2"),
        ),
        (
            {
                "role": "assistant",
                "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}],
            },
            Message("assistant", "", tool_calls=[ToolCall("", "f", '{"a": 1}')]),
        ),
    ],
)
def test_dicts_are_read_as_clients_write_them(given_, read):
    assert Message.from_dict(given_) == read


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("x", "a message must be a dict"),
        ({"role": [], "content": "x"}, "invalid message: "),
        ({"role": "user", "content": 3}, "invalid message: "),
        ({"role": "user", "content": {"type": "text", "text": "x"}}, "not a dict: put it in"),
        ({"role": "user", "content": [3]}, "a content part must be a dict"),
        ({"role": "user", "content": [{"type": "video"}]}, "one of text, image_url, input_audio"),
        ({"role": "user", "content": [{"type": "image_url"}]}, "it lacks 'image_url'"),
        ({"role": "user", "content": [{"type": "input_audio", "input_audio": 3}]}, "input_audio"),
        ({"role": "assistant", "tool_calls": [{"type": "custom"}]}, "it lacks 'function'"),
        ({"role": "tool", "content": "x"}, "needs the tool_call_id"),
        ({"role": "user", "contents": "x"}, "with the role 'user' must have 'content'"),
    ],
)
def test_dicts_that_are_no_messages_are_refused(wrong, words):
    with pytest.raises(ValueError, match=words):
        Message.from_dict(wrong)


TEXTS = Message("user", ["a", "b"])
TOLD = Message("assistant", "", tool_calls=[ToolCall("1", "look", "{}")])


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (
            Request((TEXTS, Message("user", [Image(data=PNG)]))),
            r"message 2 \(user\) contains \[image/png",
        ),
        (
            Request((Message("user", [File(file_id="f")]),)),
            r"message 1 \(user\) contains \[file f\]",
        ),
        (Request((TEXTS, TOLD)), r"message 2 \(assistant\) contains a tool call"),
        (
            Request((Message("tool", "x", tool_call_id="1"),)),
            r"message 1 \(tool\) contains a tool call",
        ),
        (Request((TEXTS,), tools=(Tool("look"), Tool("find"))), "the request offers look, find"),
    ],
)
def test_what_a_backend_can_t_take_is_refused_by_name_and_not_tried_again(request_, words):
    with pytest.raises(InvalidRequest, match=f"^Mine .*{words}") as caught:
        texts_only(request_, "Mine")
    assert not caught.value.retryable


def test_a_file_s_data_may_be_bare_base64():
    part = part_from_dict({"type": "file", "file": {"file_data": "YSxi", "filename": "a.csv"}})
    assert part == File(b"a,b", filename="a.csv")


SYSTEM, ASKED = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi!"}


def test_several_messages_are_one_action():
    action = as_action([SYSTEM, ASKED])
    assert isinstance(action, Conversation)
    before = Context([Message("user", "0")])
    assert [m.text for m in action.render(before)] == ["0", "Be brief.", "Hi!"]
    assert action.parse("x") == "x"


CALLS = (ToolCall("a", "look", "{}"), ToolCall("b", "look", "{}"))


@pytest.mark.parametrize("ended", ["stop", "tool_calls", None])
def test_calls_are_no_answer_whatever_the_server_says_of_its_end(ended):
    reply = Generation("", finish_reason=ended, tool_calls=CALLS)
    assert "calls a tool" in why_incomplete(reply)
    assert not why_incomplete(reply, tools=True)


def test_a_refusal_says_what_the_model_said():
    assert "refused (I can't.)" in why_incomplete(Generation("", refusal="I can't."))
    assert "refused:" in why_incomplete(Generation("", refusal=""), tools=True)
