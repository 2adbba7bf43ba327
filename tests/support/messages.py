"""Messages of every kind, for properties that hold for all of them."""

from __future__ import annotations

import struct
import zlib

from hypothesis import strategies as st

from mellea_like.core.conversation import Message
from mellea_like.core.parts import Audio, File, Image, Text
from mellea_like.core.tools import ToolCall


def png(width: int = 1, height: int = 1, color: tuple[int, int, int] = (255, 0, 0)) -> bytes:
    """Return a picture of one colour."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + check

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    rows = (b"\0" + bytes(color) * width) * height
    return b"".join(
        [
            b"\x89PNG\r\n\x1a\n",
            chunk(b"IHDR", header),
            chunk(b"IDAT", zlib.compress(rows)),
            chunk(b"IEND", b""),
        ]
    )


PNG = png()

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
