"""Parse JSON objects of requests strictly: unknown fields are refused, or handled by a rule."""

from __future__ import annotations

from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    LiteralString,
    NoReturn,
    TypeVar,
    cast,
)

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from pydantic_core import PydanticCustomError

from mellea_like.gateway.fields import (
    UNKNOWN,
    UNSUPPORTED,
    FieldRules,
    is_kept_back,
    says_nothing,
    why_kept_out,
)
from mellea_like.gateway.refusal import LONGEST_PARAM, Refusal
from mellea_like.specification.section import why_renamed

if TYPE_CHECKING:
    from collections.abc import Mapping


def reject(message: str, kind: LiteralString = "wrong", field: str = "") -> NoReturn:
    """Raise pydantic's error: the value is wrong, or its part at the path ``field``."""
    raise PydanticCustomError(kind, "{message}", {"message": message, "field": field})


def of_type(kinds: tuple[str, ...], what: str, *, or_text: bool = False) -> BeforeValidator:
    """Return a validator that requires a ``type`` in ``kinds``; ``or_text`` also allows strings."""

    def check(given: Any) -> Any:
        return given if or_text and isinstance(given, str) else check_type(given, kinds, what)

    return BeforeValidator(check)


def check_type(given: Any, kinds: tuple[str, ...], what: str, hint: str = "") -> Any:
    """Return a JSON object if its ``type`` is in ``kinds``, and reject anything else."""
    kind = type_of(given)
    known = " or ".join(kinds)
    if kind is None:
        reject(f"must be a JSON object whose type is {known}")
    if kind not in kinds:
        what = f"{kind[:40]!r} isn't supported: {what} must be of type {known}{hint}"
        reject(what, UNSUPPORTED)
    return given


def type_of(given: Any) -> str | None:
    """Return the ``type`` of a JSON object; None if it has none, or isn't an object."""
    kind = cast("dict[str, Any]", given).get("type") if isinstance(given, dict) else None
    return kind if isinstance(kind, str) else None


def _tag(given: Any) -> str:
    if isinstance(given, str):
        return "<word>"
    return f"<{cast('dict[str, Any]', given)['type'] if isinstance(given, dict) else given.type}>"


BY_TYPE = Discriminator(_tag)
"""Tags a string with ``<word>``, and an object with its ``type`` in angle brackets."""


def _not_blank(text: str) -> str:
    if not text.strip():
        reject("must not be blank")
    return text


def _as_list(given: Any) -> Any:
    return [given] if isinstance(given, str) else given


NotBlank = Annotated[str, AfterValidator(_not_blank)]
Texts = Annotated[
    list[Annotated[NotBlank, Field(max_length=4000)]],
    BeforeValidator(_as_list),
    Field(max_length=100),
]
Stops = Annotated[
    list[Annotated[str, Field(min_length=1)]], BeforeValidator(_as_list), Field(max_length=4)
]
Positive = Annotated[int, Field(ge=1)]
Penalty = Annotated[float, Field(ge=-2, le=2)]


class Fields(BaseModel):
    """The base class of the JSON objects in a request. A field that is None counts as missing."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True, strict=True)

    @model_validator(mode="before")
    @classmethod
    def _given(cls, data: Any, info: ValidationInfo) -> Any:
        if not isinstance(data, dict):
            reject("must be a JSON object")
        known = {field.alias or name for name, field in cls.model_fields.items()}
        given: dict[str, Any] = {}
        for name, value in cast("dict[str, Any]", data).items():
            if name in known:
                if value is not None:
                    given[name] = value
            elif not says_nothing(value):
                if renamed := why_renamed(name, known):
                    reject(renamed, UNKNOWN, name)
                if cls._keeps(name, rules_of(info)):
                    given[name] = value
        return given

    @classmethod
    def _keeps(cls, name: str, rules: FieldRules) -> bool:  # noqa: ARG003
        """Return True to keep an unknown field, and False to drop it; otherwise reject it."""
        reject("there is no such field here", UNKNOWN, name)

    @property
    def sent(self) -> dict[str, Any]:
        """The fields as the caller sent them, without those that count as missing."""
        return self.model_dump(by_alias=True, exclude_unset=True)


class OpenFields(Fields):
    """An object that may have extra fields for the upstream, if the model's rules allow them."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="allow")
    place: ClassVar[str] = ""
    """The kind of object (``message``, ``part``, ``tool`` or none of these), for `why_kept_out`."""

    @classmethod
    def _keeps(cls, name: str, rules: FieldRules) -> bool:
        if why := why_kept_out(cls.place, name):
            reject(f"the gateway doesn't support this: {why}", UNSUPPORTED, name)
        if rules.inside == "refuse" or is_kept_back(name):
            super()._keeps(name, rules)
        return rules.inside == "forward"

    @property
    def extra(self) -> dict[str, Any]:
        """The object's extra fields, with those of the objects in its fields under their names."""
        found = dict(self.model_extra or {})
        for name in type(self).model_fields:
            inside = getattr(self, name)
            if isinstance(inside, OpenFields) and (further := inside.extra):
                found[name] = further
        return found


def rules_of(info: ValidationInfo) -> FieldRules:
    """Return the rules under which `read_as` parses a request."""
    return cast("FieldRules", info.context)


F = TypeVar("F", bound=Fields)


def read_as(kind: type[F], given: Mapping[str, Any], rules: FieldRules) -> F:
    """Parse an object as ``kind``; raise a `Refusal` if it is invalid."""
    try:
        return kind.model_validate(given, context=rules)
    except ValidationError as exc:
        refusal = _refusal(exc)
    raise refusal


def _refusal(error: ValidationError) -> Refusal:
    first = error.errors(include_url=False, include_input=False)[0]
    steps = (*first["loc"], first.get("ctx", {}).get("field"))
    # Pydantic adds the tag of a union's member.
    place = ".".join(str(step) for step in steps if step not in (None, "") and str(step)[0] != "<")
    param = place[:LONGEST_PARAM]
    code = first["type"] if first["type"] in (UNKNOWN, UNSUPPORTED) else None
    message = first["msg"].removeprefix("Value error, ")
    return Refusal(400, f"{param}: {message}", param=param, code=code)
