"""How plugins are written, registered and scoped."""

from __future__ import annotations

import functools

import anyio
import pytest
from engine_kit import by_iteration, yes

from mellea_like import RejectionSamplingStrategy
from mellea_like.hooks import HookMode, HookType, Plugin, PluginSet, hook, register, unregister
from mellea_like.hooks.plugins import handlers_of, snapshot

END = HookType.SAMPLING_LOOP_END
START = HookType.SAMPLING_LOOP_START


class Recorder(Plugin):
    def __init__(self, name="", log=None):
        if name:
            self.name = name
        self.log = [] if log is None else log

    @hook(START)
    async def start(self, payload):
        self.log.append(self.name)


@hook(END)
async def at_the_end(payload):
    """A plain function as a plugin."""


def strategy(**settings):
    return RejectionSamplingStrategy(by_iteration({}), loop_budget=1, **settings)


@pytest.fixture
def registered():
    """Registers, and takes everything back at the end."""
    plugins = []

    def add(plugin):
        register(plugin)
        plugins.append(plugin)

    yield add
    for plugin in plugins:
        unregister(plugin)


# --- the decorator ----------------------------------------------------------------------------


def test_a_marked_function_is_given_back_as_it_was_with_defaults():
    async def function(payload):
        pass

    assert hook(END)(function) is function
    [handler] = handlers_of(function)
    assert (handler.mode, handler.priority, handler.timeout) == (HookMode.SEQUENTIAL, 50, 5.0)
    assert handler.plugin.endswith("function")
    assert handler.function is function


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("no_such_hook",), ValueError, "hook: the type must be 'sampling_loop_start', "),
        (
            (END, "now"),
            ValueError,
            "the mode must be 'sequential', 'observe' or 'background', not 'now'",
        ),
        ((END, "observe", "high"), TypeError, "a hook's priority must be an integer, not 'high'"),
        ((END, "observe", True), TypeError, "priority"),
        (
            (END, "observe", 1, 0),
            ValueError,
            "timeout must be greater than 0 seconds and finite, not 0",
        ),
        ((END, "observe", 1, -1), ValueError, "timeout"),
        ((END, "observe", 1, float("inf")), ValueError, "timeout"),
        ((END, "observe", 1, float("nan")), ValueError, "timeout"),
    ],
)
def test_wrong_arguments_of_the_decorator(arguments, error, message):
    names = ("mode", "priority", "timeout")
    with pytest.raises(error, match=message):
        hook(arguments[0], **dict(zip(names, arguments[1:], strict=False)))


@pytest.mark.parametrize(
    "thing",
    [lambda payload: None, print, 3, functools.partial(print)],
    ids=["lambda", "builtin", "int", "partial"],
)
def test_a_handler_is_an_async_function(thing):
    with pytest.raises(TypeError, match=r"hook sampling_loop_end: .* isn't an async function"):
        hook(END)(thing)


# --- plugins ----------------------------------------------------------------------------------


def test_a_plugin_is_called_after_its_class_unless_it_says_otherwise():
    class Mine(Recorder):
        pass

    class Named(Recorder):
        name = "said so"

    class Child(Named):
        pass

    assert [p().name for p in (Mine, Named, Child)] == ["Mine", "said so", "Child"]
    assert Recorder("of one object").name == "of one object"


def test_a_handler_that_is_overridden_without_a_mark_keeps_its_base_classes():
    class Base(Plugin):
        @hook(START, mode="observe", priority=7)
        @hook(END)
        async def note(self, payload):
            pass

    class Child(Base):
        async def note(self, payload):
            return payload

    class Grandchild(Child):
        async def note(self, payload):
            return None

    plugin = Grandchild()
    before, after = handlers_of(Base()), handlers_of(plugin)
    assert [(h.hook, h.mode, h.priority) for h in after] == [
        (h.hook, h.mode, h.priority) for h in before
    ]
    assert all(h.function == plugin.note for h in after)


def test_a_handler_may_be_left_out_but_not_be_overridden_by_what_is_not_async():
    class Without(Recorder):
        start = None

    with pytest.raises(ValueError, match="plugin Without has no handler"):
        handlers_of(Without())

    class Sync(Recorder):
        def start(self, payload):
            pass

    with pytest.raises(
        TypeError, match="plugin Sync: 'start' overrides a handler, so it must be an async"
    ):
        handlers_of(Sync())


class TwoArguments(Plugin):
    @hook(END)
    async def ok(self, payload):
        pass

    @hook(END)
    async def wrong(self, payload, more):
        pass


class NoArgument(Plugin):
    @hook(END)
    async def wrong(self):
        pass


class Empty(Plugin):
    pass


async def unmarked(payload):
    pass


WRONG = [
    (
        TwoArguments(),
        TypeError,
        "plugin TwoArguments: handler 'wrong' must take exactly one argument",
    ),
    (NoArgument(), TypeError, "plugin NoArgument: handler 'wrong' must take exactly one argument"),
    (Empty(), ValueError, r"plugin Empty has no handler: mark its async methods with @hook\(...\)"),
    (Recorder, TypeError, "plugin Recorder is a class: pass an instance of it"),
    (unmarked, TypeError, "isn't a plugin: pass an instance of a Plugin subclass"),
    (3, TypeError, "3 isn't a plugin"),
    (None, TypeError, "None isn't a plugin"),
]


@pytest.mark.parametrize(("item", "error", "message"), WRONG, ids=[m for _, _, m in WRONG])
@pytest.mark.parametrize(
    "way",
    [register, lambda item: PluginSet("set", [item]), lambda item: strategy(plugins=[item])],
    ids=["register", "PluginSet", "strategy"],
)
def test_a_wrong_plugin_is_refused_when_it_is_registered(way, item, error, message):
    with pytest.raises(error, match=message):
        way(item)
    assert snapshot(()) == ()


@pytest.mark.parametrize(
    "way",
    [
        lambda items: PluginSet("set", items),
        lambda items: strategy(plugins=items),
        lambda items: register(PluginSet("set", items)),
    ],
    ids=["PluginSet", "strategy", "register"],
)
def test_a_set_registers_all_or_nothing(way):
    with pytest.raises(TypeError, match="TwoArguments"):
        way([Recorder(), at_the_end, TwoArguments()])
    assert snapshot(()) == ()


# --- process-wide -----------------------------------------------------------------------------


def test_registering_twice_and_unregistering_a_stranger_are_errors(registered):
    plugin = Recorder()
    registered(plugin)
    with pytest.raises(ValueError, match="is already registered"):
        register(plugin)
    assert len(snapshot(())) == 1
    with pytest.raises(ValueError, match="is not registered"):
        unregister(Recorder())


@pytest.mark.anyio
async def test_order_is_by_priority_then_process_then_scope_then_strategy(
    virtual_clock, registered
):
    log = []
    first = PluginSet("first", [Recorder("priority 1", log)], priority=1)
    registered(Recorder("process", log))
    with PluginSet("scope", [Recorder("scope", log)]):
        plugins = [Recorder("strategy", log), first]
        await strategy(plugins=plugins).sample("do", [yes])
    assert log == ["priority 1", "process", "scope", "strategy"]


# --- sets and scopes --------------------------------------------------------------------------


def test_sets_nest_and_a_priority_overrides_those_inside():
    @hook(END, priority=99)
    async def late(payload):
        pass

    inner = PluginSet("inner", [late, Recorder()])
    assert [h.priority for h in inner.handlers] == [99, 50]
    assert [h.priority for h in PluginSet("outer", [inner]).handlers] == [99, 50]
    assert [h.priority for h in PluginSet("outer", [inner], priority=7).handlers] == [7, 7]
    outermost = PluginSet("outermost", [PluginSet("outer", [inner], priority=7)], priority=1)
    assert [h.priority for h in outermost.handlers] == [1, 1]
    assert repr(outermost) == "<PluginSet 'outermost' of 2 handlers>"


@pytest.mark.parametrize("priority", ["high", 1.5, True])
def test_a_wrong_priority_of_a_set_is_refused_at_once(priority):
    with pytest.raises(TypeError, match="a set's priority must be an integer, not"):
        PluginSet("set", [Recorder()], priority=priority)


@pytest.mark.anyio
async def test_scopes_nest_and_one_set_may_be_entered_twice(virtual_clock):
    log = []
    outer, inner = PluginSet("o", [Recorder("o", log)]), PluginSet("i", [Recorder("i", log)])
    with outer, inner, outer:
        assert len(snapshot(())) == 2
    with outer:
        with outer, inner:
            pass
        await strategy().sample("do", [yes])  # the inner block took only its own entry away
    assert log == ["o"]
    assert snapshot(()) == ()


@pytest.mark.anyio
async def test_scopes_left_in_another_order_take_only_their_own(virtual_clock):
    a, b = PluginSet("a", [Recorder("a")]), PluginSet("b", [Recorder("b")])
    a.__enter__()
    b.__enter__()
    a.__exit__(None, None, None)
    try:
        assert [h.plugin for h in snapshot(())] == ["b"]
    finally:
        b.__exit__(None, None, None)
    assert snapshot(()) == ()


@pytest.mark.anyio
async def test_one_set_entered_in_two_tasks_at_once_is_active_in_each_and_left_by_each(
    virtual_clock,
):
    log = []
    shared = PluginSet("shared", [Recorder("shared", log)])
    active = {}

    async def task(name, enter, leave):
        await anyio.sleep(enter)
        with shared:
            await anyio.sleep(leave - enter)
            active[f"{name} inside"] = len(snapshot(()))
            await strategy().sample("do", [yes])
        active[f"{name} outside"] = len(snapshot(()))
        await strategy().sample("do", [yes])

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(task, "a", 0, 2)
        tasks.start_soon(task, "b", 1, 3)
    assert active == {"a inside": 1, "a outside": 0, "b inside": 1, "b outside": 0}
    assert log == ["shared", "shared"]
