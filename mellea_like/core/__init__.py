"""The library's data types and pure functions, which need no I/O and no event loop."""

from typing import TYPE_CHECKING

from mellea_like.lazy import lazy_exports

if TYPE_CHECKING:
    from mellea_like.core.backend import Options, current_iteration
    from mellea_like.core.conversation import Action
    from mellea_like.core.generation import Usage
    from mellea_like.core.parts import Audio, File, Text
    from mellea_like.core.result import StopReason
    from mellea_like.core.tools import ToolCall
    from mellea_like.core.validation import Verdict

__all__ = [
    "Action",
    "Audio",
    "File",
    "Options",
    "StopReason",
    "Text",
    "ToolCall",
    "Usage",
    "Verdict",
    "current_iteration",
]

__getattr__, __dir__ = lazy_exports(
    globals(),
    {
        "mellea_like.core.backend": "Options current_iteration",
        "mellea_like.core.conversation": "Action",
        "mellea_like.core.generation": "Usage",
        "mellea_like.core.parts": "Audio File Text",
        "mellea_like.core.result": "StopReason",
        "mellea_like.core.tools": "ToolCall",
        "mellea_like.core.validation": "Verdict",
    },
)
