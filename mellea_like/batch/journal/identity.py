"""The identity of a batch run (a description of its settings), and the digest of an item.

All functions are pure. An identity contains nothing that varies between processes, such as
addresses or the order of sets. So a run can be compared with one that another process recorded.
"""

from __future__ import annotations

import dis
import hashlib
import inspect
import json
import re
import sys
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import fields, is_dataclass
from datetime import date, time
from enum import Enum
from functools import partial
from pathlib import PurePath
from types import CodeType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from mellea_like.core.backend import JUDGE_DEFAULTS, Options, innermost, is_backend
from mellea_like.core.conversation import (
    Context,
    Message,
    as_action,
    is_action,
    reply_message,
)
from mellea_like.core.format import json_schema
from mellea_like.core.given import GivenReply
from mellea_like.core.prices import IN_A_JOB
from mellea_like.core.requirement import Requirement

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from mellea_like.core.backend import Backend
    from mellea_like.core.conversation import Action
    from mellea_like.sampling.base import BaseSamplingStrategy

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"

LABEL = 80
"""The maximum number of characters in a label."""

HEX = 24
"""The number of hexadecimal digits in a digest. 96 bits rule out accidental collisions."""

OPAQUE = "<class>"
"""The only key in the description of an object that isn't data. Its value is the class name."""

OWN = ("strategy", "requirements", "model", "options", "format")
"""The names in an identity that the library sets, so that ``extra`` can't contain them."""

REBINDING = frozenset({"STORE_GLOBAL", "DELETE_GLOBAL", "STORE_DEREF", "DELETE_DEREF"})
"""The bytecode operations by which a function rebinds names outside of it."""

CALLED: tuple[type, ...] = (FunctionType, partial)

_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_EMPTY = Context()


def identity_of(
    strategy: BaseSamplingStrategy,
    requirements: Iterable[Requirement | str] = (),
    action: Callable[[Any], object] | None = None,
    format: Any = None,
    options: Options | Mapping[str, Any] | None = None,
    extra: Mapping[str, Any] | None = None,
    *,
    backend: Backend | None = None,
) -> dict[str, Json]:
    """Return the settings that affect the results of a run, for comparison with another run."""
    settings = strategy.settings
    asked = Options.of(options, settings.options)
    generator = settings.backend if backend is None else backend
    model: dict[str, Json] = {} if generator is None else _model(generator)
    if asked.model is not None:
        model["model"] = asked.model
    if settings.judge is not None:
        model["judge"] = _model(settings.judge)
    identity: dict[str, Json] = {
        "strategy": _strategy(strategy),
        "requirements": [_requirement(r) for r in (*settings.requirements, *requirements)],
        "model": model,
        "options": _options(asked),
        "format": None if format is None else _format(format),
        "prompt": None if action is None else _name(action),
        "input": None,
    }
    if settings.judge_options != JUDGE_DEFAULTS:
        identity["judge_options"] = _options(settings.judge_options)
    return identity | _settings(extra or {})


def digest_of(item: object, action: Action[Any] | None) -> str:
    """Return the digests of an item and of its prompt, joined by a hyphen."""
    own: Json
    asked: Json
    try:
        asked = None if action is None else _asked(action)
    except Exception as exc:  # noqa: BLE001 (sampling the item raises the same error)
        asked = [f"no prompt: {type(exc).__name__}"]
    try:
        own = asked if item is action else _plain(item)
    except Exception:  # noqa: BLE001 (circular or unreadable; the prompt identifies it)
        own = {OPAQUE: _name(type(item))}
    return f"{_digest(own)}-{_digest(asked)}"


def _asked(action: Action[Any]) -> list[Json]:
    """Return an action's messages as plain data; a `GivenReply` adds its reply and requirements."""
    asked: list[Json] = [_message(message) for message in action.render(_EMPTY)]
    if isinstance(action, GivenReply):
        asked.append(reply_message(action.reply).as_dict())
        asked.append(action.reply.finish_reason)
        if action.requirements:
            asked.append([_requirement(requirement) for requirement in action.requirements])
    return asked


def _message(message: object) -> Json:
    """Return a message as plain data, as `_plain` does, but in a tenth of the time."""
    if type(message) is Message:
        if message.tool_calls or message.tool_call_id or not isinstance(message.content, str):
            return message.as_dict()
        return {"role": message.role, "content": message.content}
    return _plain(message)


def differing_part(before: str, now: str) -> str:
    """Return where two digests differ: ``"item"``, or ``"prompt"`` if only the prompts differ."""
    return "prompt" if before.partition("-")[0] == now.partition("-")[0] else "item"


def row_of(item: object) -> Json:
    """Return an item's data as JSON values; None if the item isn't data."""
    if is_action(item):
        return None
    try:
        plain = _plain(item)
    except Exception:  # noqa: BLE001 (the item contains itself, or can't be read)
        return None
    return None if _is_opaque(plain) else plain


def label_of(item: object) -> str:
    """Return a readable label: one line with the beginning of an item's text or data."""
    for name in ("description", "content", "text"):
        text = getattr(item, name, None)
        if is_action(item) and isinstance(text, str):
            return _line(text)
    if isinstance(item, str):
        return _line(item)
    several: Any = item
    if isinstance(several, Mapping | list | tuple):
        with suppress(TypeError, ValueError):  # The item is neither a message nor a list of them.
            *_, last = as_action(cast("Any", several)).render(_EMPTY)
            return _line(last.text)
    row = row_of(item)
    if row is None:
        return _line(type(item).__name__)
    return _line(json.dumps(row, ensure_ascii=False))


# --- parts of an identity ----------------------------------------------------------------------


def _options(options: Options) -> Json:
    return {n: v for n, v in _fields(options).items() if v not in (None, [], {})}


def _strategy(strategy: BaseSamplingStrategy) -> Json:
    settings = strategy.settings
    described: dict[str, Json] = {}
    for setting in fields(settings):
        value = getattr(settings, setting.name)
        if "left_out" in setting.metadata and value is not setting.metadata["left_out"]:
            shown = _selection if setting.name == "selection" else _shown
            described[setting.name] = shown(value)
    # Add the attributes of a user's own strategy, such as its template.
    own = {name: value for name, value in vars(strategy).items() if value is not settings}
    described |= {name: _shown(value) for name, value in sorted(own.items())}
    return {
        "class": _name(type(strategy)),
        **{name: value for name, value in described.items() if value is not None},
    }


def _selection(selection: object) -> Json:
    """Return a description of a selection: its class, numbers, functions and judges."""
    if isinstance(selection, str) or not is_dataclass(selection):
        return _shown(selection)
    settings = {f.name: getattr(selection, f.name) for f in fields(selection) if f.repr}
    return {
        "class": _name(type(selection)),
        "is": {name: _setting(value) for name, value in settings.items()},
    }


def _setting(value: object) -> Json:
    if is_backend(value):
        return dict(_model(value))
    if not callable(value):
        return _plain(value)
    decided = _function(value)
    if is_dataclass(value) and not isinstance(value, type):  # A scorer with settings.
        decided["is"] = {f.name: _setting(getattr(value, f.name)) for f in fields(value) if f.repr}
    return decided


def _function(function: Any, version: str | None = None) -> dict[str, Json]:
    """Return a function's name and, for a user's function, its version or else its code."""
    name = _name(function)
    if version is not None:
        return {"function": name, "version": version}
    code = None if name.startswith("mellea_like.") else _code_of(function)
    if code is None:  # This library's descriptions are complete.
        return {"function": name}
    # Bytecode differs between versions of Python.
    return {"function": name, "code": f"{sys.implementation.cache_tag} {_digest(code)[:8]}"}


def _requirement(requirement: Requirement | str) -> Json:
    if isinstance(requirement, str):
        return requirement
    if requirement.parts:
        how = str(requirement.operator)
        if how == "at least":
            how += f" {requirement.needed}"
        return {how: [_requirement(part) for part in requirement.parts]}
    decided: dict[str, Json] = {"description": requirement.description}
    if requirement.validator is not None:
        function = _function(requirement.validator, requirement.version)
        decided |= {"validator": function.pop("function"), **function}
    if requirement.judge is not None:
        decided["judge"] = _model(requirement.judge)
    return decided


def _model(backend: Backend) -> dict[str, Json]:
    inner = innermost(backend)
    provider = getattr(inner, "provider", None)
    model = getattr(inner, "model", None)
    return {
        "provider": str(provider) if provider is not None else _name(type(inner)),
        # A run may be continued through another API of the same provider.
        "model": None if model is None else str(model).removesuffix(IN_A_JOB),
    }


def _format(format: Any) -> str:
    digest = _digest(cast("Json", json_schema(format)))
    return f"{_name(format) if isinstance(format, type) else format} (schema {digest[:8]})"


def _settings(extra: Mapping[str, Any]) -> dict[str, Json]:
    own = [name for name in OWN if name in extra]
    if own:
        msg = f"settings can't contain {', '.join(own)}: a batch records that by itself"
        raise ValueError(msg)
    try:
        plain: dict[str, Json] = json.loads(json.dumps(dict(extra)))
    except (TypeError, ValueError) as exc:
        msg = f"settings must be JSON, because they are compared when a run is resumed: {exc}"
        raise TypeError(msg) from exc
    return plain


# --- what a validator does ----------------------------------------------------------------------


def _code_of(validator: Any, seen: frozenset[Any] = frozenset()) -> Json:
    """Return data that distinguishes a validator from others with the same name.

    The data is the validator's bytecode and the outside values that it uses: numbers, texts, and
    functions of the same module. Comments, docstrings, annotations, layout and decorators don't
    count. Return None if there is no bytecode, as for functions written in C.
    """
    if isinstance(validator, partial):
        given = {str(n): value for n, value in enumerate(validator.args)} | validator.keywords
        return [_code_of(validator.func, seen), _values(given, seen)]
    if isinstance(validator, MethodType):
        return _code_of(validator.__func__, seen)
    if not isinstance(validator, FunctionType):
        kind = cast("type[object]", type(validator))
        called = inspect.getattr_static(kind, "__call__", None)
        return _code_of(called, seen) if isinstance(called, FunctionType) else None
    if validator in seen:
        return None
    seen |= {validator}
    around = inspect.getclosurevars(validator)
    changed = {i.argval for i in dis.get_instructions(validator) if i.opname in REBINDING}
    own = {
        name: value
        for name, value in {**around.globals, **around.nonlocals}.items()
        if name not in changed
        and (not isinstance(value, FunctionType) or value.__module__ == validator.__module__)
    }
    defaults = dict(enumerate(validator.__defaults__ or ())) | (validator.__kwdefaults__ or {})
    return [
        _bytecode(validator.__code__),
        _values(own, seen),
        _values({str(name): value for name, value in defaults.items()}, seen),
    ]


def _bytecode(code: CodeType) -> Json:
    instructions: list[Json] = [
        [i.opname, _bytecode(i.argval) if isinstance(i.argval, CodeType) else _constant(i.argval)]
        for i in dis.get_instructions(code)
    ]
    return [*instructions, code.co_exceptiontable.hex()]


def _constant(value: object) -> str:
    if isinstance(value, frozenset):
        return str(sorted(map(repr, cast("frozenset[object]", value))))
    return _ADDRESS.sub("", repr(value))


def _values(around: Mapping[str, Any], seen: frozenset[Any]) -> Json:
    return {
        name: repr(value) if _is_constant(value) else _code_of(value, seen)
        for name, value in sorted(around.items())
        if isinstance(value, CALLED) or _is_constant(value)
    }


def _is_constant(value: object) -> bool:
    """Return whether a value never changes and has the same repr in every process."""
    if isinstance(value, tuple):
        return all(map(_is_constant, cast("tuple[object, ...]", value)))
    return value is None or type(value) in {str, bytes, bool, int, float, complex}


# --- anything as plain data --------------------------------------------------------------------


def _plain(value: Any) -> Json:
    """Return a value as plain data; equal values give equal data, in any process."""
    if type(value) is str:
        return value
    if isinstance(value, Enum | PurePath):
        return str(value)
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, bytes | bytearray):
        return value.hex()
    if isinstance(value, date | time):  # This includes datetimes.
        return value.isoformat()
    return _plain_parts(value)


def _plain_parts(value: Any) -> Json:
    if isinstance(value, Mapping):
        mapping = cast("Mapping[object, object]", value)
        return {str(key): _plain(part) for key, part in mapping.items()}
    if isinstance(value, Sequence):
        return [_plain(part) for part in cast("Sequence[object]", value)]
    if isinstance(value, AbstractSet):
        return sorted(map(_plain, cast("AbstractSet[object]", value)), key=_encode)
    if isinstance(value, Requirement):
        return _requirement(value)
    if isinstance(value, type):
        return _name(cast("Any", value))
    if is_backend(value):  # A stage's backend.
        return _model(value)
    if hasattr(value, "model_dump"):  # A pydantic model.
        return _plain(value.model_dump(mode="json"))
    return _fields(value) if is_dataclass(value) else {OPAQUE: _name(type(value))}


def _fields(value: Any) -> dict[str, Json]:
    return {f.name: _plain(getattr(value, f.name)) for f in fields(value) if f.repr}


def _shown(value: object) -> Json:
    """Return an object's class and settings as plain data; plain data stays as it is."""
    plain = _plain(value)
    if _is_opaque(plain):
        plain = _ADDRESS.sub("", repr(value))
    elif not is_dataclass(value):
        return plain
    return {"class": _name(type(value)), "is": plain}


def _is_opaque(plain: Json) -> bool:
    return isinstance(plain, dict) and plain.keys() == {OPAQUE}


def _name(thing: Any) -> str:
    while isinstance(thing, partial):
        thing = cast("Any", thing).func
    if not hasattr(thing, "__qualname__"):
        thing = cast("Any", type(thing))
    return f"{thing.__module__}.{thing.__qualname__}"


def _digest(plain: Json) -> str:
    return hashlib.sha256(_encode(plain).encode("ascii")).hexdigest()[:HEX]


def _line(text: str) -> str:
    """Return the beginning of a text on one line, without control characters."""
    words = " ".join(text[: 8 * LABEL].split())
    line = words
    if not words.isprintable():
        line = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in words)
    return line if len(line) <= LABEL else f"{line[: LABEL - 1]}…"
