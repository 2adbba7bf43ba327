"""How many tokens a request may cost, guessed before it is sent."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mellea_like.core.backend import Request

__all__ = ["estimate_input_tokens", "output_bound"]

BYTES_PER_TOKEN = 4
"""English text has about four characters a token (OpenAI, "What are tokens and how to count them").

Bytes of UTF-8 are counted instead of characters: tokenisers merge bytes, and a text in another
script has more tokens a character than English has.
"""

TOKENS_PER_MESSAGE = 4
"""What a chat template puts around a message; three and the role's name in OpenAI's own
("How to count tokens with tiktoken", OpenAI Cookbook)."""


def estimate_input_tokens(request: Request) -> int:
    """Guess how many tokens a request's messages are, from their length.

    Args:
        request: the request.

    Returns:
        A quarter of the bytes, rounded up, and four tokens a message; at least 1.
    """
    size = sum(_bytes(message.content) for message in request.messages)
    tokens = -(-size // BYTES_PER_TOKEN) + TOKENS_PER_MESSAGE * len(request.messages)
    return max(1, tokens)


def output_bound(request: Request, assumed: int | None) -> int | None:
    """Return the most tokens that the reply to a request may have."""
    bound = request.options.max_tokens
    return assumed if bound is None else bound


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
