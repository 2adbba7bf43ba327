"""Reading the fields of a request: each of its type and range, or a refusal that names it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn, cast

from mellea_like.gateway.http.refusal import Refusal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Fields", "checked_text", "refuse", "wrong"]


def wrong(param: str, message: str, code: str | None = None) -> Refusal:
    """Make the refusal of a request with a wrong field.

    Args:
        param: the field.
        message: what belongs there.
        code: for programs.

    Returns:
        A refusal with status 400.
    """
    return Refusal(400, f"{param}: {message}", param=param, code=code)


def refuse(param: str, message: str, code: str | None = None) -> NoReturn:
    """Refuse a request with a wrong field.

    Args:
        param: the field.
        message: what belongs there.
        code: for programs.

    Raises:
        Refusal: with status 400.
    """
    raise wrong(param, message, code)


class Fields:
    """The fields of one JSON object. None counts as left out.

    Args:
        data: the object.
        path: where it stands in the request; empty for the request itself.

    Raises:
        Refusal: it is no object.
    """

    def __init__(self, data: object, path: str = "") -> None:
        if not isinstance(data, dict):
            refuse(path or "body", "this is a JSON object")
        self._data = cast("Mapping[str, Any]", data)
        self._path = path
        self._read: set[str] = set()

    def at(self, name: str) -> str:
        """Return where a field stands in the request."""
        return f"{self._path}.{name}" if self._path else name

    def take(self, name: str) -> Any:
        """Return a field as it is; None where it is left out."""
        self._read.add(name)
        return self._data.get(name)

    def text(self, name: str, *, empty: bool = False) -> str | None:
        """Return a text.

        Args:
            name: the field.
            empty: whether it may be empty.

        Returns:
            The text; None where it is left out.

        Raises:
            Refusal: it is none, or one that no upstream can be sent.
        """
        value = self.take(name)
        return None if value is None else checked_text(value, self.at(name), empty=empty)

    def texts(self, name: str, most: int, *, blank: bool = False) -> tuple[str, ...]:
        """Return texts; a lone one counts as a list of one.

        Args:
            name: the field.
            most: how many there may be.
            blank: whether one may be white space alone.

        Returns:
            The texts; empty where they are left out.

        Raises:
            Refusal: something is no text or empty, or there are too many.
        """
        value = self.take(name)
        if value is None:
            return ()
        if not isinstance(value, str | list):
            refuse(self.at(name), "this is a list of texts")
        items = [value] if isinstance(value, str) else cast("Sequence[Any]", value)
        if len(items) > most:
            refuse(self.at(name), f"{most} are the most here, not {len(items)}")
        return tuple(
            checked_text(item, f"{self.at(name)}.{position}", empty=blank and item != "")
            for position, item in enumerate(items)
        )

    def whole(self, name: str, *, least: int = 1, most: int | None = None) -> int | None:
        """Return a whole number.

        Args:
            name: the field.
            least: the lowest.
            most: the highest; None for no limit.

        Returns:
            The number; None where it is left out.

        Raises:
            Refusal: it is none, or out of its range.
        """
        value = self.take(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            refuse(self.at(name), "this is a whole number")
        if value < least or (most is not None and value > most):
            bounds = f"at least {least}" if most is None else f"from {least} to {most}"
            refuse(self.at(name), f"this is a whole number {bounds}")
        return value

    def real(self, name: str, *, least: float, most: float) -> float | None:
        """Return a number.

        Args:
            name: the field.
            least: the lowest.
            most: the highest.

        Returns:
            The number; None where it is left out.

        Raises:
            Refusal: it is none, or out of its range.
        """
        value = self.take(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            refuse(self.at(name), "this is a number")
        if not least <= value <= most:
            refuse(self.at(name), f"this is a number from {least:g} to {most:g}")
        return float(value)

    def flag(self, name: str) -> bool | None:
        """Return true or false.

        Args:
            name: the field.

        Returns:
            The value; None where it is left out.

        Raises:
            Refusal: it is neither.
        """
        value = self.take(name)
        if value is not None and not isinstance(value, bool):
            refuse(self.at(name), "this is true or false")
        return value

    def choice(self, name: str, *allowed: str) -> str | None:
        """Return one of some words.

        Args:
            name: the field.
            *allowed: the words.

        Returns:
            The word; None where it is left out.

        Raises:
            Refusal: it is none of them.
        """
        value = self.take(name)
        if value is not None and value not in allowed:
            refuse(self.at(name), f"this is one of {', '.join(allowed)}")
        return cast("str | None", value)

    def rest(self) -> dict[str, Any]:
        """Return the fields that were not read, those that are left out or empty aside."""
        empty: tuple[Any, ...] = (None, [], {})
        return {
            name: value
            for name, value in self._data.items()
            if name not in self._read and value not in empty
        }

    def finish(self) -> None:
        """Make sure that all fields were read.

        Raises:
            Refusal: there is another one.
        """
        for name in self.rest():
            known = ", ".join(sorted(self._read))
            refuse(self.at(name), f"there is no such field here; there is: {known}")


def checked_text(value: object, param: str, *, empty: bool = False) -> str:
    """Make sure that something is a text that can be sent on.

    Args:
        value: what was given.
        param: the field.
        empty: whether it may be empty.

    Returns:
        The text.

    Raises:
        Refusal: it is none, empty, or has half a character in it.
    """
    if not isinstance(value, str):
        refuse(param, "this is a text")
    if not value.strip() and not empty:
        refuse(param, "this is a text that says something")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise wrong(param, "half a character (a lone surrogate) can't be sent") from None
    return value
