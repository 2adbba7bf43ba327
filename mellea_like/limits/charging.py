"""What a request is charged when it has ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mellea_like.core.estimate import BYTES_PER_TOKEN
from mellea_like.errors import BackendError, BackendTimeout, MalformedResponse

if TYPE_CHECKING:
    from mellea_like.limits.base import RequestEnd

__all__ = ["charged_tokens"]


def charged_tokens(end: RequestEnd, estimated: int) -> tuple[int, int]:
    """Return the tokens that a request is charged.

    Where the cost is known, that is all. Where it is not, what is known of it is charged, and:

    - the prompt as it was estimated, where its tokens are not known and the request may have been
      worked on: it was cancelled, timed out or broke off, but the server did not refuse it;
    - the reply by its length, where it is whole and its tokens are not known.

    Args:
        end: how the request ended.
        estimated: its prompt's tokens, as they were estimated.

    Returns:
        The tokens of the prompt, and those of the reply.
    """
    usage = end.usage
    sent, received = usage.input_tokens, usage.output_tokens
    if not usage.requests:
        return 0, 0
    if not usage.unknown:
        return sent, received
    if not sent and not _refused(end):
        sent = estimated
    if not received and end.generation is not None:
        size = len(end.generation.text.encode("utf-8", "surrogatepass"))
        received = -(-size // BYTES_PER_TOKEN)
    return sent, received


def _refused(end: RequestEnd) -> bool:
    """Tell whether the server did no work: it said so, or it was not reached."""
    return (
        isinstance(end.error, BackendError)
        and not isinstance(end.error, BackendTimeout | MalformedResponse)
        and not end.usage.output_tokens
    )
