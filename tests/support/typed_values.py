"""Types whose values do not come back from their JSON, and replies that they are read from."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Annotated, Any

from hypothesis import strategies as st
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, computed_field


class Computed(BaseModel):
    model_config = ConfigDict(extra="forbid")
    width: int
    height: int = 1

    @computed_field
    @property
    def area(self) -> int:
        return self.width * self.height


class Aliased(BaseModel):
    due: int = Field(validation_alias="dueDate", serialization_alias="due-date")


class Excluded(BaseModel):
    name: str
    token: str = Field(exclude=True)
    hint: str = Field(default="none", exclude=True)


class Doubling(BaseModel):
    number: Annotated[int, AfterValidator(lambda number: 2 * number)]


class Login(BaseModel):
    user: str
    password: SecretStr


class Stamped(BaseModel):
    text: str
    read_at: datetime = Field(default_factory=lambda: datetime.now(UTC))


class Nested(BaseModel):
    parts: list[Computed | Aliased | Login]
    number: float | None = None


WORDS = st.text("ab*1 ", max_size=4)
NUMBERS = st.integers(-5, 5)
FIELDS: dict[Any, st.SearchStrategy[dict[str, Any]]] = {
    Computed: st.fixed_dictionaries({"width": NUMBERS}, optional={"height": NUMBERS}),
    Aliased: st.fixed_dictionaries({"dueDate": NUMBERS}),
    Excluded: st.fixed_dictionaries({"name": WORDS, "token": WORDS}, optional={"hint": WORDS}),
    Doubling: st.fixed_dictionaries({"number": NUMBERS}),
    Login: st.fixed_dictionaries({"user": WORDS, "password": WORDS}),
    Stamped: st.fixed_dictionaries({"text": WORDS}),
}
FIELDS[Nested] = st.fixed_dictionaries(
    {"parts": st.lists(st.one_of(FIELDS[Computed], FIELDS[Aliased], FIELDS[Login]), max_size=2)},
    optional={"number": st.none() | st.floats(allow_nan=False, allow_infinity=False)},
)


def shown(value: Any) -> Any:
    """Everything that there is to compare, secrets and excluded fields too."""
    if isinstance(value, BaseModel):
        return type(value).__name__, {name: shown(part) for name, part in value}
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    return [shown(part) for part in value] if isinstance(value, list) else value


def replies() -> st.SearchStrategy[tuple[Any, str, Any]]:
    """Draw a format, a reply that it reads, and the same reply as plain data."""

    def drawn(format_: Any) -> st.SearchStrategy[tuple[Any, str, Any]]:
        one = FIELDS[format_].map(lambda said: (format_, json.dumps(said), said))
        none = st.just((format_ | None, "null", None))
        several = st.lists(FIELDS[format_], max_size=2).map(
            lambda said: (list[format_], json.dumps(said), said)
        )
        return st.one_of(one, none, several)

    return st.sampled_from(list(FIELDS)).flatmap(drawn)
