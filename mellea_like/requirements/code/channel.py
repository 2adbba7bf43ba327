"""What a program and its tests say to each other: plain data, and stand-ins for the rest.

The tests ask the program's process to call a function, and what comes back is data that only they
compare. So nothing that a program does to its interpreter reaches its tests. Standard library only:
the source is sent to the server.
"""

from __future__ import annotations

import builtins
import collections
import copyreg
import datetime as dt
import decimal
import enum
import fractions
import importlib
import io
import operator
import os
import pickle
import struct
import sys
import traceback
import types
from itertools import groupby
from typing import TYPE_CHECKING, Any, NoReturn, cast

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable


__all__ = [
    "PROGRAM",
    "Peer",
    "ProgramEnded",
    "Reader",
    "Writer",
    "exactly",
    "frame",
    "raised",
    "told",
]

PROGRAM = "program.py"
"""What a program's file is called in tracebacks."""

LARGEST_MESSAGE = 2**26
"""Bytes of one answer of a program to its tests."""

CO_COROUTINE = 0x80
"""The flag of an async function's code; `inspect` has it, too, and takes long to import."""

FRAMES = 5
"""The most frames of a traceback that a reason shows."""


def exactly(descriptor: int, size: int) -> bytes:
    """Read so many bytes; fewer where they end."""
    data = bytearray()
    while len(data) < size:
        more = os.read(descriptor, size - len(data))
        if not more:
            break
        data += more
    return bytes(data)


def frame(descriptor: int) -> bytes:
    """Read bytes that follow their length; none where there are no more."""
    head = exactly(descriptor, 4)
    return exactly(descriptor, int.from_bytes(head, "big")) if len(head) == 4 else b""  # noqa: PLR2004


# --- what was raised -----------------------------------------------------------------------------


def told(exc: BaseException) -> str:
    """Say what was raised, with the last frames of the program's own code."""
    said = traceback.TracebackException.from_exception(exc, compact=True)
    own = [part for part in said.stack if part.filename == PROGRAM]
    lines: list[str] = []
    for _, same in groupby(own, key=lambda part: (part.lineno, part.name)):
        part, *again = same
        line = f"  {PROGRAM}, line {part.lineno}, in {part.name}: {part.line}\n"
        if again:  # As Python shortens them: a recursion without end has a thousand.
            line += f"  [Previous line repeated {len(again)} more times]\n"
        lines.append(line)
    return "".join([*said.format_exception_only(), *lines[-FRAMES:]])


# --- a call from one process to another ----------------------------------------------------------
_PLAIN = (bool, int, float, complex, str, bytes, bytearray, tuple, list, dict, set, frozenset)
_BY_VALUE = (
    *_PLAIN,
    type(None),
    type(...),
    range,
    slice,
    collections.OrderedDict,
    collections.Counter,
    collections.defaultdict,
    collections.deque,
    dt.date,
    dt.datetime,
    dt.time,
    dt.timedelta,
    dt.timezone,
    decimal.Decimal,
    fractions.Fraction,
)
_TYPES: frozenset[object] = frozenset(_BY_VALUE)
_BY_NAME = {(kind.__module__, kind.__qualname__): kind for kind in _BY_VALUE}
_BY_NAME["builtins", "Ellipsis"] = cast("Any", ...)
_EXCEPTIONS = {
    name: value
    for name, value in vars(builtins).items()
    if isinstance(value, type) and issubclass(value, BaseException)
}
_MUTABLE = (
    *(list, dict, set, bytearray),
    *(collections.deque, collections.Counter, collections.defaultdict, collections.OrderedDict),
)
"""What a call may change of its arguments, so that its caller sees it."""

_INNARDS = ("_", "gi_", "cr_", "ag_", "f_", "tb_", "co_")
"""How attributes begin that lead from an object to the interpreter that it lives in."""

_REFLECTED = (
    *("add", "sub", "mul", "matmul", "truediv", "floordiv"),
    *("mod", "pow", "lshift", "rshift", "and", "or", "xor"),
)
_COMPARED = ("eq", "ne", "lt", "le", "gt", "ge")


def _enter(target: Any) -> Any:
    return cast("Any", type)(target).__enter__(target)


def _exit(target: Any) -> Any:
    return cast("Any", type)(target).__exit__(target, None, None, None)


def _instance(target: Any, value: Any) -> bool:
    return isinstance(value, target)


def _subclass(target: Any, value: Any) -> bool:
    return issubclass(value, target)


_OPERATIONS: dict[str, Callable[..., Any]] = {
    **{f"__{n}__": getattr(operator, f"__{n}__") for n in (*_REFLECTED, *_COMPARED)},
    **{f"__i{n}__": getattr(operator, f"__i{n}__") for n in _REFLECTED},
    **{f"__{n}__": getattr(operator, f"__{n}__") for n in ("neg", "pos", "invert", "index")},
    "__abs__": abs,
    "__bool__": bool,
    "__contains__": operator.contains,
    "__delitem__": operator.delitem,
    "__divmod__": divmod,
    "__enter__": _enter,
    "__exit__": _exit,
    "__float__": float,
    "__format__": format,
    "__getitem__": operator.getitem,
    "__hash__": hash,
    "__instancecheck__": _instance,
    "__int__": int,
    "__iter__": iter,
    "__len__": len,
    "__next__": next,
    "__repr__": repr,
    "__reversed__": reversed,
    "__round__": round,
    "__setitem__": operator.setitem,
    "__str__": str,
    "__subclasscheck__": _subclass,
}


class ProgramEnded(BaseException):
    """The process of the program has ended, or says what isn't an answer."""


class Peer:
    """One end of a connection; both may ask, and each answers what comes while it waits."""

    def __init__(self, connection: socket.socket, *, guarded: bool = False) -> None:
        self.connection = connection
        self.guarded = guarded  # Whether the other end isn't trusted.
        self.ended = False
        self.known: list[object] = []
        self.numbers: dict[int, int] = {}
        self.exceptions: dict[object, type[BaseException]] = {}  # Of the other end's own classes.

    def send(self, message: object) -> None:
        """Send a message."""
        self._transmit(self.written(message))

    def _transmit(self, data: bytes) -> None:
        try:
            self.connection.sendall(struct.pack(">I", len(data)) + data)
        except OSError:
            self.end()

    def receive(self) -> tuple[Any, ...]:
        """Wait for a message."""
        try:
            head = exactly(self.connection.fileno(), 4)
            size = int.from_bytes(head, "big")
            if len(head) < 4 or size > LARGEST_MESSAGE:  # noqa: PLR2004
                self.end()
            data = io.BytesIO(exactly(self.connection.fileno(), size))
            message: Any = Reader(data, self).load()
        except ProgramEnded:
            raise
        except Exception:  # noqa: BLE001 (of bytes that are no message)
            self.end()
        if not isinstance(message, tuple):
            self.end()
        return cast("tuple[Any, ...]", cast("Any", message))

    def end(self) -> NoReturn:
        """Give the other end up."""
        self.ended = True
        raise ProgramEnded

    def written(self, message: object) -> bytes:
        """Return a message as bytes."""
        with io.BytesIO() as file:
            Writer(file, self).dump(message)
            return file.getvalue()

    def number(self, thing: object) -> int:
        """Return the number by which the other end knows an object."""
        if id(thing) not in self.numbers:
            self.numbers[id(thing)] = len(self.known)
            self.known.append(thing)
        return self.numbers[id(thing)]

    def ask(self, what: str, *details: Any) -> Any:
        """Ask the other end for something, and wait for the answer."""
        self.send(("ask", what, details))
        while True:
            kind, *rest = self.receive()
            if kind == "ask":
                self.serve(("ask", *rest))
            elif kind == "answer":
                if rest[1] is not None:
                    self._update(_given(what, details), rest[1])
                return rest[0]
            elif kind == "raise":
                raise self._exception(*rest)
            else:
                self.end()

    def serve(self, message: tuple[Any, ...]) -> None:
        """Answer what the other end asks."""
        _, what, details = message
        try:
            given = _given(what, details)
            before = self.written(given)
            answer = self._do(what, *details)
            changed = given if given and before != self.written(given) else None
            data = self.written(("answer", answer, changed))
        except ProgramEnded:
            raise
        except BaseException as exc:  # noqa: BLE001 (told to the other end)
            data = self.written(raised(exc))
        self._transmit(data)

    def _do(self, what: str, target: Any, *rest: Any) -> Any:
        if self.guarded and not any(target is known for known in self.known):
            raise TypeError(what)
        if what == "call":
            return target(*rest[0], **rest[1])
        if what == "await":
            import asyncio  # noqa: PLC0415, TID251 (this process is the program's own)

            return asyncio.run(target(*rest[0], **rest[1]))
        if what == "get":
            if self.guarded and rest[0].startswith(_INNARDS):
                raise AttributeError(rest[0])
            return getattr(target, rest[0])
        if what == "reflected":
            return _OPERATIONS[rest[0]](rest[1], target)
        if what == "set" and not self.guarded:
            return setattr(target, *rest)
        return _OPERATIONS[what](target, *rest)

    def _update(self, given: list[Any], changed: Any) -> None:
        """Let a call's arguments have changed as they did where it ran."""
        for mine, theirs in zip(given, changed, strict=True):
            if isinstance(mine, list | bytearray):
                mine[:] = theirs
            else:
                mine.clear()
                (mine.update if hasattr(mine, "update") else mine.extend)(theirs)

    def _exception(self, names: Any, arguments: Any, said: Any) -> BaseException:
        kinds = (_EXCEPTIONS.get(name) or self.exceptions.get(name) for name in names)
        kind: Any = next((kind for kind in kinds if kind is not None), RuntimeError)
        try:
            exc: BaseException = kind(*arguments)
        except Exception:  # noqa: BLE001 (its arguments are others)
            exc = RuntimeError(str(said))
        exc.__dict__["told"] = str(said)
        return exc


def _given(what: str, details: tuple[Any, ...]) -> list[Any]:
    """Return the arguments of a call that it may change."""
    if what not in ("call", "await"):
        return []
    _, positional, named = details
    return [value for value in (*positional, *named.values()) if type(value) in _MUTABLE]


def raised(exc: BaseException) -> tuple[Any, ...]:
    """Return what tells the other end of an exception."""
    names = [kind.__qualname__ for kind in type(exc).__mro__ if issubclass(kind, BaseException)]
    plain = [value if type(value) in _TYPES else str(value) for value in exc.args]
    return "raise", names, plain, getattr(exc, "told", None) or told(exc)


def _as_integers(value: fractions.Fraction) -> tuple[Any, ...]:
    return fractions.Fraction, (value.numerator, value.denominator)


class Writer(pickle.Pickler):
    """Writes plain data as it is, and a number for everything else."""

    # Before Python 3.12, a fraction is written in digits, of which there may not be many.
    dispatch_table = {**copyreg.dispatch_table, fractions.Fraction: _as_integers}  # noqa: RUF012

    def __init__(self, file: io.BytesIO, peer: Peer) -> None:
        super().__init__(file, protocol=4)
        self.peer = peer

    def persistent_id(self, obj: Any) -> Any:  # noqa: C901, PLR0911
        """Return what stands for an object that isn't plain data."""
        kind = cast("Any", type)(obj)
        if kind in _TYPES:
            return None
        if kind is Proxy:
            return "yours", _part(obj, "number")
        if isinstance(obj, type) and obj in _TYPES:  # Of a fraction, the type's type is another.
            return None
        if kind is types.BuiltinFunctionType:
            name: str = getattr(obj, "__name__")  # noqa: B009 (a type checker's doubt)
            if getattr(builtins, name, None) is obj:
                return "builtin", name
        if isinstance(obj, types.ModuleType):
            return "module", obj.__name__, None if self.peer.guarded else self.peer.number(obj)
        number = self.peer.number(obj)
        if isinstance(obj, type):
            if issubclass(obj, BaseException):
                return (
                    "exception",
                    obj.__qualname__,
                    [base.__qualname__ for base in obj.__mro__[1:]],
                )
            return "mine", number, None
        if isinstance(obj, types.FunctionType) and obj.__code__.co_flags & CO_COROUTINE:
            return "async", number
        for base in cast("tuple[Any, ...]", _PLAIN):
            if isinstance(obj, base):
                plain: Any = base(obj)
                whole = not isinstance(obj, enum.Enum) and base in (int, float, complex, str, bytes)
                return ("value", plain) if whole else ("mine", number, (plain,))
        return "mine", number, None


class Reader(pickle.Unpickler):  # noqa: S301 (it finds no class but the plain ones)
    """Reads what a `Writer` wrote, and makes nothing else, whoever wrote it."""

    def __init__(self, file: io.BytesIO, peer: Peer) -> None:
        super().__init__(file)
        self.peer = peer

    def find_class(self, module: str, name: str) -> Any:
        """Return a type of plain data."""
        return _BY_NAME[module, name]

    def persistent_load(self, pid: Any) -> Any:
        """Return the object that something stands for."""
        kind, *rest = pid
        if kind == "yours":
            return self.peer.known[rest[0]]
        if kind == "value":
            return rest[0]
        if kind == "builtin":
            return (
                getattr(builtins, rest[0]) if not self.peer.guarded else Proxy(self.peer, -1, None)
            )
        if kind == "module":
            if rest[0] in sys.stdlib_module_names or not self.peer.guarded:
                return importlib.import_module(rest[0])
            return Proxy(self.peer, rest[1], None)
        if kind == "exception":
            return self._exception(*rest)
        if kind == "async":
            return self._awaited(Proxy(self.peer, rest[0], None))
        return Proxy(self.peer, *rest)

    def _exception(self, name: str, bases: list[str]) -> type[BaseException]:
        if name in _EXCEPTIONS:
            return _EXCEPTIONS[name]
        known = self.peer.exceptions
        if name not in known:
            kinds = (known.get(base) or _EXCEPTIONS.get(base) for base in bases)
            base = next((kind for kind in kinds if kind is not None), Exception)
            made: Any = type(name, (base,), {})
            known[name] = made
        return known[name]

    def _awaited(self, target: Proxy) -> Callable[..., Any]:
        async def call(*args: Any, **settings: Any) -> Any:  # noqa: RUF029
            return self.peer.ask("await", target, args, settings)

        return call


class Proxy:
    """An object that lives in the other process; plain data is equal to none but plain data."""

    __slots__ = ("number", "peer", "plain")

    def __init__(self, peer: Peer, number: int, plain: tuple[object] | None) -> None:
        for name, value in (("peer", peer), ("number", number), ("plain", plain)):
            object.__setattr__(self, name, value)

    def __getattribute__(self, name: str) -> Any:
        if name == "__class__":
            return Proxy
        return _part(self, "peer").ask("get", self, name)

    def __setattr__(self, name: str, value: object) -> None:
        _part(self, "peer").ask("set", self, name, value)

    def __call__(self, *args: Any, **settings: Any) -> Any:
        try:
            return _part(self, "peer").ask("call", self, args, settings)
        except StopIteration as exc:  # Else `all(map(test, ...))` would end there, and hold.
            msg = "the function raised StopIteration"
            raise RuntimeError(msg) from exc


def _part(proxy: Proxy, name: str) -> Any:
    return object.__getattribute__(proxy, name)


def _forward(name: str) -> None:
    def operate(self: Proxy, *args: Any) -> Any:
        other = args[0] if args else None
        if name[2:-2] in _COMPARED and type(other) is not Proxy:
            plain = _part(self, "plain")
            if plain is not None:
                return _OPERATIONS[name](plain[0], other)
            if name in ("__eq__", "__ne__"):
                return name == "__ne__"
        if name == "__exit__":
            args = ()
        return _part(self, "peer").ask(name, self, *args)

    setattr(Proxy, name, operate)


def _reflect(name: str) -> None:
    def operate(self: Proxy, other: Any) -> Any:
        return _part(self, "peer").ask("reflected", self, f"__{name}__", other)

    setattr(Proxy, f"__r{name}__", operate)


for _name in _OPERATIONS:
    _forward(_name)
for _name in _REFLECTED:
    _reflect(_name)
