"""Options of a model call."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from mellea_like.core.argument_checks import real_number, whole_number

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Options"]


@dataclass(frozen=True, slots=True)
class Options:
    """How the model should generate. What is None is left to the backend.

    Args:
        model: the model's name, where one call wants another than the backend's own.
        temperature: 0 for the most likely text, higher for more variety.
        top_p: nucleus sampling: the share of probability to draw from, over 0 and at most 1.
        max_tokens: the longest reply, in tokens, at least 1.
        stop: texts that end the reply and are not part of it; a lone string counts as one.
        seed: makes the draw repeatable where the backend can. The engine derives another seed from
            it for each iteration.
        extra: further fields for the backend, sent as they are.

    Raises:
        TypeError: an option is of the wrong type.
        ValueError: a number is out of its range.
    """

    model: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None
    extra: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    def __post_init__(self) -> None:
        if self.temperature is not None:
            real_number("option temperature", self.temperature, least=0)
        if self.top_p is not None:
            real_number("option top_p", self.top_p, least=0, most=1)
        if self.max_tokens is not None:
            whole_number("option max_tokens", self.max_tokens)
        if self.seed is not None:
            whole_number("option seed", self.seed, least=-math.inf)
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        if not all(isinstance(text, str) and text for text in stop):
            msg = f"option stop takes non-empty texts, not {stop!r}"
            raise ValueError(msg)
        object.__setattr__(self, "stop", stop)
        object.__setattr__(self, "extra", MappingProxyType(dict(self.extra)))

    def __reduce__(self) -> tuple[Any, ...]:
        given = [getattr(self, f.name) for f in fields(self)]
        return type(self), (*given[:-1], dict(self.extra))

    def over(self, defaults: Options) -> Options:
        """Return these options and, for what they leave open, the defaults.

        Args:
            defaults: what holds where these say nothing.

        Returns:
            The options; ``extra`` fields of both. These options themselves where there are no
            defaults.
        """
        if defaults == _OPEN:
            return self
        return Options(
            model=self.model or defaults.model,
            temperature=defaults.temperature if self.temperature is None else self.temperature,
            top_p=defaults.top_p if self.top_p is None else self.top_p,
            max_tokens=self.max_tokens or defaults.max_tokens,
            stop=self.stop or defaults.stop,
            seed=defaults.seed if self.seed is None else self.seed,
            extra={**defaults.extra, **self.extra},
        )

    def with_seed(self, seed: int | None) -> Options:
        """Return the same options with another seed.

        Args:
            seed: the new seed, or None for none.

        Returns:
            The changed copy, or these options when nothing changes.
        """
        return self if seed == self.seed else replace(self, seed=seed)

    @classmethod
    def of(
        cls, options: Options | Mapping[str, Any] | None, defaults: Options | None = None
    ) -> Options:
        """Make options from what a user gives.

        Args:
            options: options, a mapping with the names of the fields, or None for all defaults.
            defaults: what holds for the fields that are left open, as in `over`. A field that a
                mapping names with None is left to the backend, whatever the defaults say.

        Returns:
            The options.

        Raises:
            TypeError: it is none of these.
            ValueError: the mapping has an unknown name; provider-specific ones go into ``extra``.
        """
        if options is None:
            return cls() if defaults is None else defaults
        if isinstance(options, Options):
            return options if defaults is None else options.over(defaults)
        try:
            given = dict(options)
        except (TypeError, ValueError):
            msg = f"options are an Options or a mapping, not {type(options).__name__}"
            raise TypeError(msg) from None
        known = [f.name for f in fields(cls)]
        unknown = sorted(str(name) for name in given if name not in known)
        if unknown:
            msg = (
                f"unknown option {', '.join(unknown)}: the options are {', '.join(known)};"
                " fields of one provider go into extra={...}"
            )
            raise ValueError(msg)
        made = cls(**{name: value for name, value in given.items() if value is not None})
        if defaults is None:
            return made
        unset = {name: getattr(_OPEN, name) for name, value in given.items() if value is None}
        return made.over(replace(defaults, **unset))


_OPEN = Options()
