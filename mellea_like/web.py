"""Work on behalf of a web client, cancelled when the client leaves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import anyio

from mellea_like.errors import ClientDisconnected

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

__all__ = ["while_here"]

T = TypeVar("T")


async def while_here(
    receive: Callable[[], Awaitable[Mapping[str, Any]]], work: Callable[[], Awaitable[T]]
) -> T:
    """Run ``work`` to its end, or cancel it when the client of a web request leaves.

    When the client closes its connection, the work is cancelled, along with its requests to
    models. Without `while_here`, a web application would notice the closed connection only when it
    sends its response.

    Args:
        receive: the request's ``receive``, as ASGI defines it. In Starlette and FastAPI, it is
            ``request.receive``. Read the request's body first, because the unread rest of the body
            is discarded.
        work: an async function without arguments.

    Returns:
        The return value of the work.

    Raises:
        ClientDisconnected: the client left before the work was done.
        Exception: the work or ``receive`` raised it.
    """
    done: list[T] = []
    error: Exception | None = None
    # The watch ends inside its own scope. A task that is cancelled from outside keeps its
    # exception, and with it the whole request, in a reference cycle of `TaskGroup`'s
    # ``task_done``.
    watching = anyio.CancelScope()

    async def watch() -> None:
        nonlocal error
        with watching:
            try:
                while (await receive())["type"] != "http.disconnect":
                    pass
            except Exception as exc:  # noqa: BLE001 (raised below, outside of the group)
                error = exc
            tasks.cancel_scope.cancel("the client left")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch, name="waits for the client to leave")
        try:
            done.append(await work())
        except Exception as exc:  # noqa: BLE001 (raised below, outside of the group)
            error = error or exc  # If `receive` failed, that happened first.
        watching.cancel("done")
    if error is not None:
        try:
            raise error
        finally:
            del error  # Break the cycle between frame and exception.
    if not done:
        msg = "the client closed the connection before the response was ready"
        raise ClientDisconnected(msg)
    return done[0]
