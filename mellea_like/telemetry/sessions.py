"""Sessions: calls that belong to one conversation, so that trace viewers group them."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from mellea_like.core.argument_checks import check_text

if TYPE_CHECKING:
    from collections.abc import Generator

SESSION_ID: ContextVar[str | None] = ContextVar("mellea_like_session", default=None)


@contextmanager
def session(session_id: str) -> Generator[None]:
    """Record the calls in a block as parts of one session, such as a conversation.

    The spans of the calls and of their requests get two attributes: ``session.id`` from
    OpenTelemetry's conventions for sessions, which Phoenix and Langfuse use to group calls, and
    ``gen_ai.conversation.id``.

    Args:
        session_id: identifies the session, such as a conversation's number. Viewers show it, so it
            must not be secret.

    Yields:
        Nothing.

    Raises:
        TypeError: ``session_id`` isn't a str.
    """
    check_text("a session's id", session_id)
    token = SESSION_ID.set(session_id)
    try:
        yield
    finally:
        SESSION_ID.reset(token)
