"""The base class of payloads: the frozen models that handlers get, one class for each hook."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict
from pydantic_core import CoreSchema, core_schema

from mellea_like.hooks.types import HookType

__all__ = ["Payload"]

T = TypeVar("T")


class _Instance:
    """Makes pydantic check only the class of an object in a field, and not copy it."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, _handler: Any) -> CoreSchema:
        return core_schema.is_instance_schema(source)


Is = Annotated[T, _Instance]
"""The type of a field that takes an instance of a class as it is."""


class Payload(BaseModel):
    """Base class of the payloads that handlers get, with the fields that all of them have.

    A sequential handler may return ``payload.model_copy(update={...})`` with new values for the
    fields that the class names in ``writable``; a change of any other field is an error.

    Attributes:
        sampling_id: the call's id.
        strategy: the name of the strategy's class.
        iteration: the draw's id, 1-based; None outside a draw. Ids aren't monotonic in time: with
            several lanes, iteration 4 may end before iteration 1.
        subsample: the index of the lane, 0-based; None outside a draw.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    hook: ClassVar[HookType]
    writable: ClassVar[frozenset[str]] = frozenset()

    sampling_id: str
    strategy: str
    iteration: int | None = None
    subsample: int | None = None
