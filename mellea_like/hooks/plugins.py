"""Write plugins and register them."""

from __future__ import annotations

import inspect
import math
from contextvars import ContextVar
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from mellea_like.core.argument_checks import check_one_of, real_number, takes, whole_number
from mellea_like.hooks.types import HookMode, HookType

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable
    from typing import Self

    from mellea_like.hooks.payload import Payload

__all__ = [
    "DEFAULT_PRIORITY",
    "DEFAULT_TIMEOUT",
    "Handler",
    "Pluggable",
    "Plugin",
    "PluginSet",
    "hook",
    "register",
    "unregister",
]

DEFAULT_PRIORITY = 50
"""The default priority of a handler. Handlers of lower priority run earlier."""

DEFAULT_TIMEOUT = 5.0
"""The default time limit of a handler, in seconds."""

_MARK = "_mellea_like_hooks"

F = TypeVar("F", bound="Callable[..., Awaitable[Any]]")


@dataclass(frozen=True, slots=True)
class Handler:
    """A function that runs at one hook, with its plugin's name, and how the function runs."""

    plugin: str
    hook: HookType
    function: Callable[[Any], Awaitable[Payload | None]]
    mode: HookMode
    priority: int
    timeout: float


def hook(
    hook_type: HookType | str,
    *,
    mode: HookMode | str = HookMode.SEQUENTIAL,
    priority: int = DEFAULT_PRIORITY,
    timeout: float = DEFAULT_TIMEOUT,
) -> Callable[[F], F]:
    """Mark an async function, or a method of a `Plugin`, as a handler of a hook.

    The handler takes the payload as its only argument. In sequential mode, it may return a changed
    copy of the payload, or raise `Blocked`.

    Args:
        hook_type: when the handler runs.
        mode: how the handler runs.
        priority: handlers of lower priority run earlier, and those of equal priority in the order
            in which they were registered.
        timeout: the longest the handler may take, in seconds.

    Returns:
        A decorator that returns the function itself.

    Raises:
        ValueError: the hook type or the mode is unknown, or the timeout is not over 0.
        TypeError: the priority isn't an int, the timeout isn't a number, or the decorated object
            isn't an async function.
    """
    whole_number("a hook's priority", priority, least=-math.inf)
    real_number("a hook's timeout", timeout, over=0, unit="seconds")
    check_one_of("hook: the type", hook_type, HookType)
    check_one_of("hook: the mode", mode, HookMode)
    when, how = HookType(hook_type), HookMode(mode)

    def decorate(function: F) -> F:
        given: object = function  # iscoroutinefunction would narrow F.
        if not inspect.iscoroutinefunction(given):
            msg = f"hook {when}: {function!r} isn't an async function"
            raise TypeError(msg)
        # The plugin's name and the bound method are filled in when the plugin is checked.
        handler = Handler("", when, function, how, priority, timeout)
        setattr(function, _MARK, (*getattr(function, _MARK, ()), handler))
        return function

    return decorate


class Plugin:
    """Base class of plugins with state. Their handlers are async methods marked with `hook`.

    If a subclass overrides a handler without marking it again, the new method runs at the same
    hooks in the same way. With a new mark, it runs as that mark says. If a subclass sets a handler
    to None, the handler doesn't run.

    Attributes:
        name: the plugin's name in errors and logs; the default is the class's name.
    """

    name: str = ""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" not in cls.__dict__:
            cls.name = cls.__name__


class PluginSet:
    """Several plugins under one name; a set may contain further sets.

    As a context manager, a set activates its plugins for every call that starts inside the block.
    This holds only in the current task and in tasks that are started in the block.

    Args:
        name: the set's name in errors.
        plugins: plugins, marked functions, and further sets.
        priority: the priority of all handlers in the set; by default, each handler keeps its own.

    Raises:
        TypeError: an item isn't a plugin, a marked function or a set, a handler isn't async or does
            not take exactly one argument, or the priority isn't an int.
        ValueError: a plugin has no handler.
    """

    def __init__(
        self, name: str, plugins: Iterable[Pluggable], *, priority: int | None = None
    ) -> None:
        self.name = name
        handlers = handlers_in(plugins)
        if priority is not None:
            whole_number("a set's priority", priority, least=-math.inf)
            handlers = tuple(replace(handler, priority=priority) for handler in handlers)
        self.handlers: tuple[Handler, ...] = handlers

    def __enter__(self) -> Self:
        _scoped.set((*_scoped.get(), self))
        return self

    def __exit__(self, *exc_info: object) -> None:
        latest_first = list(reversed(_scoped.get()))
        if self in latest_first:
            latest_first.remove(self)
        _scoped.set(tuple(reversed(latest_first)))

    def __repr__(self) -> str:
        return f"<PluginSet {self.name!r} of {len(self.handlers)} handlers>"


Pluggable: TypeAlias = "Plugin | PluginSet | Callable[[Any], Awaitable[Any]]"
"""Anything that can be registered: a plugin, a set, or a function marked with `hook`."""

_scoped: ContextVar[tuple[PluginSet, ...]] = ContextVar("mellea_like_plugins", default=())
RUNNING: ContextVar[tuple[object, ...]] = ContextVar("mellea_like_running_handlers", default=())
"""The functions of the handlers that are running here, which don't run for their own calls."""

_process_wide: dict[int, tuple[Pluggable, tuple[Handler, ...]]] = {}
"""Maps the ``id()`` of each registered plugin to the plugin and its handlers."""


def register(plugin: Pluggable) -> None:
    """Activate a plugin in this process, for every call that starts from now on.

    Args:
        plugin: a plugin, a set, or a marked function. If any part of it is invalid, nothing is
            registered.

    Raises:
        TypeError: ``plugin`` isn't a plugin, a set or a marked function, or a handler isn't async
            or does not take exactly one argument.
        ValueError: the plugin has no handler, or is already registered.
    """
    handlers = handlers_of(plugin)
    if id(plugin) in _process_wide:
        msg = f"{plugin!r} is already registered"
        raise ValueError(msg)
    _process_wide[id(plugin)] = (plugin, handlers)


def unregister(plugin: Pluggable) -> None:
    """Deactivate a plugin that `register` activated. Calls that are running keep it.

    Args:
        plugin: the same object that was registered.

    Raises:
        ValueError: the plugin is not registered.
    """
    if _process_wide.pop(id(plugin), None) is None:
        msg = f"{plugin!r} is not registered"
        raise ValueError(msg)


def snapshot(plugins: Iterable[Handler]) -> tuple[Handler, ...]:
    """Return the active plugins' handlers and those in ``plugins``, in the order they run in.

    A handler that makes a call isn't one of that call's, because it would call itself forever.
    """
    running = RUNNING.get()
    process_wide = (handlers for _, handlers in _process_wide.values())
    scoped = (plugin_set.handlers for plugin_set in _scoped.get())
    unique: dict[tuple[object, HookType], Handler] = {}
    for handler in chain(*process_wide, *scoped, plugins):
        if handler.function not in running:
            unique.setdefault((handler.function, handler.hook), handler)
    return tuple(sorted(unique.values(), key=lambda handler: handler.priority))


def handlers_in(plugins: Iterable[Pluggable]) -> tuple[Handler, ...]:
    """Check several plugins and return their handlers."""
    several = hasattr(plugins, "__iter__") and not isinstance(plugins, Plugin | PluginSet | str)
    if not several or callable(plugins):
        msg = f"plugins must be a list, not a single {type(plugins).__name__}: put it in a list"
        raise TypeError(msg)
    return tuple(handler for item in plugins for handler in handlers_of(item))


def handlers_of(item: Pluggable) -> tuple[Handler, ...]:
    """Check a plugin and return its handlers."""
    if isinstance(item, PluginSet):
        return item.handlers
    if isinstance(item, type):
        msg = f"plugin {item.__name__} is a class: pass an instance of it"
        raise TypeError(msg)
    if isinstance(item, Plugin):
        marked = {
            name: getattr(member, _MARK)
            for cls in reversed(type(item).__mro__)
            for name, member in vars(cls).items()
            if hasattr(member, _MARK)
        }
        handlers = [
            handler
            for name, marks in marked.items()
            if (function := getattr(item, name)) is not None
            for handler in _bound(item.name, function, marks)
        ]
        if not handlers:
            msg = f"plugin {item.name} has no handler: mark its async methods with @hook(...)"
            raise ValueError(msg)
        return tuple(handlers)
    if hasattr(item, _MARK):
        return _bound(getattr(item, "__qualname__", repr(item)), item, getattr(item, _MARK))
    msg = (
        f"{item!r} isn't a plugin: pass an instance of a Plugin subclass, a PluginSet,"
        " or an async function marked with @hook(...)"
    )
    raise TypeError(msg)


def _bound(
    plugin: str, function: Callable[[Any], Awaitable[Any]], marks: tuple[Handler, ...]
) -> tuple[Handler, ...]:
    """Check a plugin's function, and return a handler for each of the function's marks."""
    name = getattr(function, "__name__", repr(function))
    if not inspect.iscoroutinefunction(function):
        msg = f"plugin {plugin}: {name!r} overrides a handler, so it must be an async function"
        raise TypeError(msg)
    if not takes(function, 1):
        msg = f"plugin {plugin}: handler {name!r} must take exactly one argument, the payload"
        raise TypeError(msg)
    # Now, since the first call would read files on its event loop. Only plugins need pydantic.
    hooks = import_module("mellea_like.hooks")
    for exported in hooks.__all__:
        getattr(hooks, exported)
    return tuple(replace(mark, plugin=plugin, function=function) for mark in marks)
