"""Tools that a model may call, and its calls of them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from mellea_like.core.display import fields_shown

__all__ = ["Tool", "ToolCall"]

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A model's wish to have a tool run. Calls compare by what the model wrote.

    Args:
        id: what the model, or its server, calls it; the message with what came of it names that.
        name: the tool's name.
        arguments: the arguments, as the JSON text that the model wrote. It need not be right.
        value: the arguments, read and validated, where the call was checked against its `Tool`.

    Raises:
        TypeError: the id, the name or the arguments aren't a ``str``.
        ValueError: the name is empty.
    """

    id: str
    name: str
    arguments: str
    value: Any = field(default=None, compare=False, repr=False)

    __repr__ = fields_shown

    def __post_init__(self) -> None:
        for name in ("id", "name", "arguments"):
            value = getattr(self, name)
            if not isinstance(value, str):
                msg = f"a ToolCall's {name} is a str, not {type(value).__name__}"
                raise TypeError(msg)
        if not self.name:
            msg = "a ToolCall has the name of the tool that it calls, not an empty one"
            raise ValueError(msg)

    def __str__(self) -> str:
        return f"{self.name}({self.arguments})"

    def as_dict(self) -> dict[str, Any]:
        """Return the call as OpenAI's chat protocol has it."""
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "type": "function", "function": function}

    @classmethod
    def from_dict(cls, call: object) -> ToolCall:
        """Read a call of OpenAI's chat protocol.

        Args:
            call: the call. Its arguments may be read already, as some templates have them.

        Returns:
            The call.

        Raises:
            ValueError: it isn't a call of a function.
        """
        try:
            given = cast("Mapping[str, Any]", call)
            function = given["function"]
            arguments = function["arguments"]
            if not isinstance(arguments, str):
                arguments = json.dumps(arguments, ensure_ascii=False)
            return cls(given.get("id") or "", function["name"], arguments)
        except (AttributeError, KeyError, TypeError) as exc:
            what = f"it lacks {exc}" if isinstance(exc, KeyError) else str(exc)
            msg = f"a tool call can't be read: {what}"
            raise ValueError(msg) from exc


@dataclass(frozen=True, slots=True)
class Tool:
    """Something that a model may ask to have run.

    Args:
        name: what the model calls it: 1 to 64 letters, digits, ``_`` and ``-``, the rule of
            OpenAI's servers.
        description: what it does, for the model.
        parameters: the JSON Schema of its arguments, an object's.
        function: what runs when it is called, or None where it is run elsewhere.
        read_only: whether running it changes nothing, so that a draw that may yet lose can.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: the name breaks its rule.
    """

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(
        default_factory=lambda: {"type": "object", "properties": {}}, repr=False
    )
    function: Callable[..., Any] | None = field(default=None, repr=False)
    read_only: bool = False

    def __post_init__(self) -> None:
        if not (isinstance(self.name, str) and isinstance(self.description, str)):
            msg = (
                f"a Tool's name and description are texts, not {self.name!r}, {self.description!r}"
            )
            raise TypeError(msg)
        if not _NAME.fullmatch(self.name):
            msg = f"a Tool's name is 1 to 64 letters, digits, _ and -, not {self.name!r}"
            raise ValueError(msg)
        if not isinstance(self.parameters, Mapping):
            msg = f"a Tool's parameters are a JSON Schema, a dict, not {self.parameters!r}"
            raise TypeError(msg)
        if self.function is not None and not callable(self.function):
            msg = f"a Tool's function can be called, unlike {self.function!r}"
            raise TypeError(msg)

    def as_dict(self) -> dict[str, Any]:
        """Return the tool as OpenAI's chat protocol has it."""
        told = {"description": self.description} if self.description else {}
        function = {"name": self.name, **told, "parameters": dict(self.parameters)}
        return {"type": "function", "function": function}
