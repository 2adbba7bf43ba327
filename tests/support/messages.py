"""Messages of every kind, for properties that hold for all of them."""

from __future__ import annotations

import base64

from hypothesis import strategies as st

from mellea_like.core.conversation import Message
from mellea_like.core.parts import Audio, File, Image, Text
from mellea_like.core.tools import ToolCall

PNG_BASE64 = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC"
)
PNG = base64.b64decode(PNG_BASE64)

WORDS = st.text(max_size=8)
SOME = st.text(min_size=1, max_size=8)
DATA = st.binary(max_size=8)

PARTS = st.one_of(
    st.builds(Text, WORDS),
    st.builds(Image, SOME.map("https://{}".format), detail=st.sampled_from([None, "low"])),
    st.builds(Image, data=DATA, media_type=st.just("image/png")),
    st.builds(Audio, DATA, st.sampled_from(["wav", "mp3"])),
    st.builds(File, data=DATA, filename=st.none() | SOME, media_type=st.just("text/plain")),
    st.builds(File, file_id=SOME, filename=st.none() | SOME),
)
CALLS = st.builds(ToolCall, WORDS, SOME, WORDS)
CONTENTS = WORDS | st.lists(PARTS, max_size=3)

MESSAGES = st.one_of(
    st.builds(Message, st.sampled_from(["system", "user"]), CONTENTS, st.none() | SOME),
    st.builds(
        Message,
        st.just("assistant"),
        CONTENTS,
        tool_calls=st.lists(CALLS, max_size=2),
        reasoning=st.none() | SOME,
    ),
    st.builds(Message, st.just("tool"), CONTENTS, tool_call_id=WORDS),
)
"""Messages of all roles, with what each may have."""
