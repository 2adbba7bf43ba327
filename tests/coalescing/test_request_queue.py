"""Which requests may share a batch, who goes next, and when: decisions in tables."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass, replace
from types import MappingProxyType

import pytest
from joint_kit import ask

from mellea_like import Image, Message, Request, Tool
from mellea_like.coalescing.coordinator.joint_prompt import share_key
from mellea_like.coalescing.coordinator.request_queue import RequestQueue
from mellea_like.coalescing.gathering_window import GatheringWindow
from mellea_like.core import ToolCall
from mellea_like.core.backend import RequestMeta

A = ask("a")
CALL = ToolCall("1", "look", "{}")


@dataclass(frozen=True, slots=True)
class Picture(Message):
    """A message that holds more than text."""

    data: bytes = b"..."


# --- who may share --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (A, ask("b")),
        (A, ask("b", system="Be brief.")),
        (A, ask("b", call="another", iteration=3, subsample=1, deadline=7.0)),
        (ask("a", seed=1), ask("b", seed=2)),
        (ask("a", max_tokens=5), ask("b", max_tokens=500)),
        (ask("a", temperature=0), ask("b", temperature=0.0)),
        (ask("a", stop="x"), ask("b", stop=("x",))),
        (ask("a", extra={"x": [1, {"y": 2}]}), ask("b", extra={"x": (1, {"y": 2})})),
        (
            ask("a", extra={"a": 1, "metadata": {"u": "v"}}),
            ask("b", extra=OrderedDict(metadata=MappingProxyType({"u": "v"}), a=1)),
        ),
        (ask("a", extra={"include_context": "none"}), ask("b", extra={"include_context": "none"})),
        (ask("a", extra={"tools": []}), ask("b", extra={"tools": []})),
    ],
)
def test_requests_that_want_the_same_manner_share(one, other):
    assert share_key(one) is not None
    assert share_key(one) == share_key(other)
    assert hash(share_key(one)) == hash(share_key(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (A, ask("b", temperature=0.5)),
        (ask("a", temperature=0.4), ask("b", temperature=0.5)),
        (A, ask("b", top_p=0.5)),
        (A, ask("b", model="another")),
        (A, ask("b", stop="x")),
        (ask("a", stop=("x", "y")), ask("b", stop=("y", "x"))),
        (A, ask("b", max_tokens=5)),
        (A, ask("b", extra={"metadata": {"tenant": "t"}})),
        (ask("a", extra={"m": {"tenant": "t"}}), ask("b", extra={"m": {"tenant": "u"}})),
        (ask("a", extra={"m": True}), ask("b", extra={"m": 1})),
        (ask("a", extra={"m": 1.0}), ask("b", extra={"m": 1})),
        (ask("a", extra={"m": []}), ask("b", extra={"m": {}})),
        (ask("a", extra={"m": None}), ask("b")),
        (A, replace(ask("b"), meta=RequestMeta(purpose="judge"))),
    ],
)
def test_requests_that_differ_in_manner_do_not_share(one, other):
    assert share_key(one) is not None
    assert share_key(other) is not None
    assert share_key(one) != share_key(other)


def test_requests_of_different_scopes_do_not_share():
    assert share_key(A, "alice") == share_key(ask("b"), "alice")
    assert share_key(A, "alice") != share_key(A, "bob")
    assert share_key(A, None) != share_key(A, "bob")


@pytest.mark.parametrize(
    "request_",
    [
        ask("a", format=int),
        ask("a", extra={"tools": [{"name": "t"}]}),
        ask("a", extra={"tool_choice": "auto"}),
        ask("a", extra={"functions": [1]}),
        ask("a", extra={"response_format": {"type": "json_object"}}),
        ask("a", extra={"grammar": "root ::= x"}),
        ask("a", extra={"logprobs": True}),
        ask("a", extra={"include_context": "thisServer"}),
        ask("a", extra={"includeContext": "allServers"}),
        ask("a", extra={"m": object()}),
        ask("a", extra={"m": {1, 2}}),
        ask("a", extra={"m": b"bytes"}),
        ask("lone \ud800 surrogate"),
        ask("a", system="lone \udfff surrogate"),
        Request(()),
        Request((Message("user", "a"), Message("assistant", "Sure:"))),
        Request((Message("system", "a"),)),
        Request((Picture("user", "a"),)),
        Request((Message("user", ["a", "b"]),)),
        Request((Message("user", [Image("https://a/b.png")]),)),
        Request((Message("assistant", "", tool_calls=(CALL,)), Message("user", "a"))),
        Request((Message("tool", "x", tool_call_id="1"), Message("user", "a"))),
        Request((Message("user", "a"),), tools=(Tool("look"),)),
        Request((Message("user", "a"),), tool_choice="none"),
        Request((Picture("user", "a"), Message("user", "b"))),
    ],
)
def test_what_wants_a_reply_of_its_own_never_shares(request_):
    assert share_key(request_) is None


# --- who goes next, and when ----------------------------------------------------------------------


def queue(*, window=5.0, idle=math.inf, items=3, tokens=math.inf) -> RequestQueue[str]:
    return RequestQueue(GatheringWindow(idle, window, items), tokens)


def filled(
    made: RequestQueue[str], *items: str, now: float = 0.0, key: object = "k", tokens: int = 0
):
    """Put items in; the letter is the caller's."""
    for item in items:
        made.add(item, key, item[0], now, tokens=tokens)
    return made


@pytest.mark.parametrize(
    ("made", "at"),
    [
        (queue(), math.inf),
        (filled(queue(), "a1"), 5.0),
        (filled(filled(queue(), "a1"), "a2", now=4.0), 5.0),
        (filled(filled(queue(), "a1", now=2.0), "b1", now=1.0, key="other"), 6.0),
        (filled(queue(), "a1", "a2", "a3"), -math.inf),
        (filled(queue(), "a1", key=None), -math.inf),
        (filled(queue(idle=1.0), "a1"), 1.0),
        (filled(filled(queue(idle=1.0), "a1"), "a2", now=0.9), 1.9),
        (filled(filled(queue(idle=1.0), "a1"), "a2", now=4.9), 5.0),
        (filled(queue(tokens=10), "a1", "a2", tokens=5), 5.0),
        (filled(queue(tokens=9), "a1", "a2", tokens=5), -math.inf),
        (filled(queue(tokens=9), "a1", tokens=10), -math.inf),
    ],
)
def test_when_the_next_batch_goes(made, at):
    assert made.due_at() == at


@pytest.mark.parametrize(
    ("made", "batches"),
    [
        (queue(), []),
        (filled(queue(), "a1"), [["a1"]]),
        (filled(queue(), "a1", "a2", "a3", "a4"), [["a1", "a2", "a3"], ["a4"]]),
        (filled(queue(), "a1", "a2", "a3", "b1", "c1"), [["a1", "b1", "c1"], ["a2", "a3"]]),
        (filled(queue(), "a1", "a2", "a3", "a4", "b1"), [["a1", "b1", "a2"], ["a3", "a4"]]),
        (
            filled(queue(items=2), "a1", "a2", "a3", "b1", "b2", "c1"),
            [["a1", "b1"], ["c1", "a2"], ["b2", "a3"]],
        ),
        (filled(queue(), "a1", "a2", "b1", key=None), [["a1"], ["b1"], ["a2"]]),
        (filled(queue(tokens=9), "a1", "a2", "a3", tokens=4), [["a1", "a2"], ["a3"]]),
        (filled(filled(queue(tokens=9), "a1", tokens=10), "a2", "a3"), [["a1"], ["a2", "a3"]]),
        (
            # An item that is too long for the rest of the room waits, and so do those behind it.
            filled(filled(filled(queue(tokens=9), "a1", tokens=5), "b1", tokens=6), "a2", "b2"),
            [["a1", "a2"], ["b1", "b2"]],
        ),
        (
            # Keys take turns.
            filled(filled(queue(items=1), "a1", "a2"), "b1", "b2", key="other"),
            [["a1"], ["b1"], ["a2"], ["b2"]],
        ),
    ],
)
def test_who_goes_together(made, batches):
    taken = []
    while batch := made.take(0.0, at_once=True):
        taken.append(batch)
    assert taken == batches
    assert len(made) == 0
    assert made.due_at() == math.inf
