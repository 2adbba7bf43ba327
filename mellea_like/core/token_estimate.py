"""Estimates of the tokens that a request costs, before it is sent."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from mellea_like.core.parts import Audio, File, Image, Text

if TYPE_CHECKING:
    from mellea_like.core.backend import Request
    from mellea_like.core.parts import Part

BYTES_PER_TOKEN = 4
"""English text has about four characters per token (OpenAI, "What are tokens and how to count
them").

UTF-8 bytes are counted instead of characters, because tokenizers merge bytes. Text in other
scripts has more tokens per character than English.
"""

TOKENS_PER_MESSAGE = 4
"""The tokens that a chat template adds to each message ("How to count tokens with tiktoken")."""

TOKENS_PER_IMAGE = 765
"""The tokens of a picture of 1024 by 1024 pixels on GPT-4o: 85, plus 170 for each of four tiles
("Images and vision", OpenAI's guide). The real size isn't looked up. Other models take between a
third and twice as many.
"""

TOKENS_PER_SMALL_IMAGE = 85
"""The tokens of a picture whose ``detail`` is ``"low"``."""

BYTES_PER_AUDIO_TOKEN = {"wav": 4800, "pcm16": 4800}
"""The bytes of sound per token, by format: a tenth of a second at 24 kHz with 16 bits a sample.

A token is a tenth of a second ("Managing costs", OpenAI's guide to its realtime API).
"""

BYTES_PER_COMPRESSED_AUDIO_TOKEN = 1600
"""The bytes of sound per token in other formats: a tenth of a second at 128 kbit/s, as in MP3."""

BYTES_PER_PAGE = 65536
"""The assumed number of bytes per page of a PDF. Models read each page as an image."""


def estimate_input_tokens(request: Request) -> int:
    """Estimate the number of tokens in a request's messages and tools from their length.

    An image counts as 765 tokens, or 85 if its ``detail`` is ``"low"``. A tenth of a second of
    sound is one token. A text file counts as its text, and any other file as one image per 64 KiB.

    Args:
        request: the request.

    Returns:
        A quarter of the text's bytes, rounded up, plus four for each message, plus the tokens of
        parts and tools; at least 1.
    """
    size = more = 0
    for message in request.messages:
        content = message.content
        if isinstance(content, str):
            size += _bytes(content)
        else:
            for part in content:
                if isinstance(part, Text):
                    size += _bytes(part.text)
                else:
                    more += _part_tokens(part)
        for call in message.tool_calls:
            size += _bytes(call.name) + _bytes(call.arguments)
    for tool in request.tools:
        size += _bytes(json.dumps(tool.as_dict(), ensure_ascii=False, default=str))
    tokens = -(-size // BYTES_PER_TOKEN) + TOKENS_PER_MESSAGE * len(request.messages) + more
    return max(1, tokens)


def _part_tokens(part: Part) -> int:
    """Guess the number of tokens in a part that isn't text."""
    if isinstance(part, Image):
        return TOKENS_PER_SMALL_IMAGE if part.detail == "low" else TOKENS_PER_IMAGE
    data = getattr(part, "data", None) or b""
    if isinstance(part, Audio):
        each = BYTES_PER_AUDIO_TOKEN.get(part.format, BYTES_PER_COMPRESSED_AUDIO_TOKEN)
        return -(-len(data) // each)
    if isinstance(part, File) and (part.media_type or "").startswith("text/"):
        return -(-len(data) // BYTES_PER_TOKEN)
    return TOKENS_PER_IMAGE * max(1, -(-len(data) // BYTES_PER_PAGE))


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
