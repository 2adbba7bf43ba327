"""Extra fields of protocol objects are kept unchanged, are immutable, and count in comparisons."""

from __future__ import annotations

import copy
import json
import pickle

import pytest

from mellea_like import Image, Message
from mellea_like.core import Audio, File, Text, ToolCall
from mellea_like.core.extra import Extra, with_extra
from mellea_like.core.prompts import recorded_message
from mellea_like.core.tools import recorded_call

CACHED = {"cache_control": {"type": "ephemeral"}}

EACH = {
    "Text": lambda **more: Text("a", **more),
    "Image": lambda **more: Image("https://example.org/a.png", **more),
    "Audio": lambda **more: Audio(b"a", "wav", **more),
    "File": lambda **more: File(file_id="f", **more),
    "ToolCall": lambda **more: ToolCall("c", "f", "{}", **more),
    "Message": lambda **more: Message("user", "a", **more),
}

each = pytest.mark.parametrize("made", EACH.values(), ids=EACH)


@each
def test_it_is_written_with_the_rest_and_makes_objects_differ(made):
    one, same, plain = made(extra=CACHED), made(extra=dict(CACHED)), made()
    assert one == same
    assert hash(one) == hash(same)
    assert one != plain
    assert one.as_dict() == {**plain.as_dict(), **CACHED}
    assert pickle.loads(pickle.dumps(one)) == copy.deepcopy(one) == one


@each
def test_it_can_not_be_changed_and_is_a_mapping(made):
    given = dict(CACHED)
    one = made(extra=given)
    given["more"] = 1
    assert one.extra == CACHED
    with pytest.raises(TypeError):
        one.extra["more"] = 1
    with pytest.raises(TypeError, match="extra must be a mapping of further fields"):
        made(extra=["a"])


def test_fields_inside_are_added_inside_and_none_takes_the_place_of_an_objects_own():
    call = ToolCall("c", "f", "{}", extra={"function": {"strict": True, "name": "g"}, "id": "d"})
    function = {"name": "f", "arguments": "{}", "strict": True}
    assert call.as_dict() == {"id": "c", "type": "function", "function": function}
    known = {"a": {"b": 1}}
    assert with_extra(known, Extra({"a": {"c": 2}})) == {"a": {"b": 1, "c": 2}}


def test_the_fields_of_a_call_come_back_from_a_record():
    extra = {"extra_content": {"google": {"thought_signature": "s"}}, "function": {"strict": True}}
    call = ToolCall("c", "f", "{}", extra=extra)
    asked = Message("assistant", "", tool_calls=[call, ToolCall("d", "f", "{}")])
    written = json.loads(json.dumps(asked.as_dict()))
    assert recorded_message(written) == asked
    assert recorded_call(written["tool_calls"][0]) == call


def test_thoughts_keep_the_name_that_a_server_gave_them():
    thought = Message("assistant", "a", reasoning="Hm.")
    assert thought.as_dict()["reasoning_content"] == "Hm."
    named = Message("assistant", "a", reasoning="Hm.", extra={"reasoning": "Hm."})
    assert named.as_dict() == {"role": "assistant", "content": "a", "reasoning": "Hm."}
