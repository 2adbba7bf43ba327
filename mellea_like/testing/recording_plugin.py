"""A plugin that records the payloads of all hooks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, overload

from mellea_like.hooks.payload import Payload
from mellea_like.hooks.plugins import Plugin, hook
from mellea_like.hooks.types import HookMode, HookType

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

P = TypeVar("P", bound=Payload)
R = TypeVar("R", bound="Callable[..., Awaitable[None]]")


def _every_hook(function: R) -> R:
    for hook_type in HookType:
        function = hook(hook_type, mode=HookMode.OBSERVE)(function)
    return function


class RecordingPlugin(Plugin):
    """Records the payloads of all hooks, in the order in which they arrive. It changes nothing.

    ```python
    recording = RecordingPlugin()
    strategy = RejectionSamplingStrategy(backend, plugins=[recording])
    await strategy.sample("Write a haiku.", [three_lines])
    assert len(recording.of(HookType.SAMPLING_LOOP_END)) == 1
    ```

    Attributes:
        payloads: all payloads so far, the oldest first.
    """

    def __init__(self) -> None:
        self.payloads: list[Payload] = []

    @_every_hook
    async def record(self, payload: Payload) -> None:
        """Record a payload.

        Args:
            payload: the payload of any hook.
        """
        self.payloads.append(payload)

    @overload
    def of(self, kind: type[P]) -> list[P]: ...
    @overload
    def of(self, kind: HookType) -> list[Payload]: ...
    def of(self, kind: HookType | type[Payload]) -> list[Any]:
        """Return the payloads of one hook.

        Args:
            kind: the hook type, or the class of its payloads, which works better with type
                checkers.

        Returns:
            The payloads of that hook, the oldest first.
        """
        if isinstance(kind, HookType):
            return [payload for payload in self.payloads if payload.hook is kind]
        return [payload for payload in self.payloads if isinstance(payload, kind)]
