"""What generates: each backend lives in a module of its own.

What needs an extra is imported when first named.
"""

from typing import TYPE_CHECKING, Any

from mellea_like.backends.function import FunctionBackend
from mellea_like.backends.markov import MarkovBackend
from mellea_like.backends.scripted import Reply, ScriptedBackend
from mellea_like.backends.simulated import SimulatedBackend

if TYPE_CHECKING:
    from mellea_like.backends.llama import LlamaCppBackend
    from mellea_like.backends.mcp import MCPSamplingBackend
    from mellea_like.backends.mcp_rounds import SamplingRounds
    from mellea_like.backends.openai import OpenAIBackend

__all__ = [
    "FunctionBackend",
    "LlamaCppBackend",
    "MCPSamplingBackend",
    "MarkovBackend",
    "OpenAIBackend",
    "Reply",
    "SamplingRounds",
    "ScriptedBackend",
    "SimulatedBackend",
]

_NEEDS_AN_EXTRA = {
    "LlamaCppBackend": "mellea_like.backends.llama",
    "MCPSamplingBackend": "mellea_like.backends.mcp",
    "OpenAIBackend": "mellea_like.backends.openai",
    "SamplingRounds": "mellea_like.backends.mcp_rounds",
}


def __getattr__(name: str) -> Any:
    if name in _NEEDS_AN_EXTRA:
        from importlib import import_module  # noqa: PLC0415

        return getattr(import_module(_NEEDS_AN_EXTRA[name]), name)
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
