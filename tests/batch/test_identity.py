"""Identities of runs and digests of items: which changes count, and which don't."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from command_line import python
from pydantic import BaseModel, create_model

from mellea_like import (
    BestOf,
    Collect,
    Context,
    Instruction,
    Message,
    MultiTurnStrategy,
    RejectionSamplingStrategy,
    Requirement,
    Vote,
    checks,
    judge_score,
)
from mellea_like.backends import ScriptedBackend
from mellea_like.batch.journal.identity import (
    differing_part,
    digest_of,
    identity_of,
    label_of,
    row_of,
)
from mellea_like.core import Options
from mellea_like.core.backend import Backend
from mellea_like.core.conversation import as_action
from mellea_like.limits import Budget, ConcurrencyLimiter, LimitedBackend, Retry
from mellea_like.schedules import BaseSchedule, Hedged, PerRequirement, Staggered
from mellea_like.selections import Tournament


def short(candidate: Any) -> bool:
    return len(candidate.text) < 10


def brief(candidate: Any) -> bool:
    return len(candidate.text) < 10


def text(candidate: Any) -> str:
    return str(candidate.text)


def lower(candidate: Any) -> str:
    return str(candidate.text).lower()


def by(factor: int, candidate: Any) -> float:
    return factor * len(candidate.text)


def longer(factor: int) -> Any:
    return lambda candidate: by(factor, candidate)


def ask(row: Any) -> str:
    return f"say {row}"


def tell(row: Any) -> str:
    return f"tell {row}"


class Row(BaseModel):
    n: int


class Templated(RejectionSamplingStrategy):
    def __init__(self, *args: Any, template: str, **arguments: Any) -> None:
        super().__init__(*args, **arguments)
        self.template = template


def scripted(model: str = "m") -> ScriptedBackend:
    return ScriptedBackend(["x"], model=model)


def identity(
    *,
    kind: type[RejectionSamplingStrategy] | Any = RejectionSamplingStrategy,
    backend: Backend | None = None,
    requirements: Any = (),
    action: Any = None,
    format: Any = None,
    options: Any = None,
    extra: Any = None,
    **settings: Any,
) -> dict[str, Any]:
    strategy = kind(scripted() if backend is None else backend, **settings)
    return identity_of(strategy, requirements, action, format, options, extra)


# --- runs ----------------------------------------------------------------------------------------


def selecting(selection: Any) -> dict[str, Any]:
    return {"selection": selection}


def scheduled(schedule: Any) -> dict[str, Any]:
    return {"schedule": schedule, "concurrency_budget": 2}


def asking(*requirements: Any) -> dict[str, Any]:
    return {"requirements": list(requirements)}


def weighed() -> Vote:
    return Vote(key=text, weight=judge_score("Is it?", judge=scripted()))


LIMITED = LimitedBackend(scripted(), ConcurrencyLimiter(3))
SAME: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("nothing said", {}, {}),
    ("the default options of judges", {}, {"judge_options": {"temperature": 0.0}}),
    ("limits round the backend", {}, {"backend": LIMITED}),
    ("patience", {}, {"timeout": 10.0, "iteration_timeout": 1.0, "cancel_grace": 1.0}),
    ("retries and budgets", {}, {"retry": Retry(attempts=9), "budget": Budget(requests=5)}),
    ("options, wherever they are said", {"options": {"seed": 1}}, {"options": Options(seed=1)}),
    (
        "requirements, whoever's they are",
        asking(Requirement("short", short)),
        {"kind": partial(RejectionSamplingStrategy, **asking(Requirement("short", short)))},
    ),
    ("equal schedules", scheduled(Staggered(0.5)), scheduled(Staggered(0.5))),
    ("equal selections", selecting(weighed()), selecting(weighed())),
    (
        "settings in another order",
        {"extra": {"a": {"x": 1, "y": 2}, "b": 1}},
        {"extra": {"b": 1, "a": {"y": 2, "x": 1}}},
    ),
]


class Check:
    """A validator that is an object with settings."""

    def __init__(self, least: int) -> None:
        self.least = least

    def __call__(self, candidate: Any) -> bool:
        return len(candidate.text) >= self.least


class Hurried(BaseSchedule):
    """A user's own schedule, whose repr describes it."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.pace = seconds

    def begin(self, facts: Any) -> None:
        return None

    def __repr__(self) -> str:
        return f"<Hurried {self.pace} at 0x7f00deadbeef>"


def scored(question: str = "Is it?", judge: str = "m", **more: Any) -> dict[str, Any]:
    return selecting(BestOf(judge_score(question, judge=scripted(judge), **more)))


A, B = Requirement("a", short), Requirement("b", short)
SHORT = asking(Requirement("short", short))
DIFFERENT: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("strategy", {}, {"kind": MultiTurnStrategy}),
    ("strategy", {}, {"loop_budget": 7}),
    ("strategy", {}, {"concurrency_budget": 7}),
    ("strategy", {}, selecting("ordered")),
    ("strategy", {}, selecting(Vote())),
    ("strategy", selecting(Vote()), selecting(Vote(n=5))),
    ("strategy", selecting(Collect(2)), selecting(Collect(3))),
    ("strategy", selecting(Vote(key=text)), selecting(Vote(key=lower))),
    ("strategy", selecting(BestOf(longer(1))), selecting(BestOf(longer(2)))),
    ("strategy", selecting(BestOf(partial(by, 1))), selecting(BestOf(partial(by, 2)))),
    ("strategy", selecting(Tournament(scripted("m"))), selecting(Tournament(scripted("n")))),
    ("strategy", scored(), scored("Is it so?")),
    ("strategy", scored(), scored(judge="n")),
    ("strategy", scored(), scored(scale=(0, 5))),
    ("strategy", {}, {"validate_all": True}),
    ("strategy", {}, {"give_up": PerRequirement()}),
    ("strategy", {}, {"accept_incomplete": True}),
    ("strategy", scheduled(Staggered(0.5)), scheduled(Staggered(0.6))),
    ("strategy", scheduled(Staggered(0.5)), scheduled(Hedged())),
    ("strategy", scheduled(Hurried(0.5)), scheduled(Hurried(0.6))),
    (
        "strategy",
        {"kind": partial(Templated, template="{a}")},
        {"kind": partial(Templated, template="{b}")},
    ),
    ("requirements", {}, asking("short")),
    ("requirements", asking("short"), asking("brief")),
    ("requirements", SHORT, asking(Requirement("short", brief))),
    ("requirements", SHORT, asking(~Requirement("short", short))),
    (
        "requirements",
        asking(checks.at_least(1, "short", "kind")),
        asking(checks.at_least(2, "short", "kind")),
    ),
    ("requirements", asking(A & B), asking(A | B)),
    (
        "requirements",
        asking(Requirement("short", partial(short))),
        asking(Requirement("short", Check(3))),
    ),
    (
        "requirements",
        asking(Requirement("a", judge=scripted("m"))),
        asking(Requirement("a", judge=scripted("n"))),
    ),
    ("requirements", asking("a", "b"), asking("b", "a")),
    ("model", {}, {"backend": scripted("another")}),
    ("model", {}, {"options": {"model": "another"}}),
    ("model", {}, {"judge": scripted("another")}),
    ("options", {}, {"options": {"temperature": 0.5}}),
    ("options", {"options": {"seed": 1}}, {"options": {"seed": 2}}),
    ("options", {"options": {"extra": {"a": 1}}}, {"options": {"extra": {"a": 2}}}),
    ("judge_options", {"judge_options": {"temperature": 0.5}}, {}),
    ("judge_options", {"judge_options": {"seed": 1}}, {"judge_options": {"seed": 2}}),
    ("format", {}, {"format": int}),
    ("format", {"format": list[int]}, {"format": list[str]}),
    ("prompt", {"action": ask}, {"action": tell}),
    ("prompt", {"extra": {"prompt": "{a}"}}, {"extra": {"prompt": "{b}"}}),
    ("input", {"extra": {"input": "sha256:1"}}, {"extra": {"input": "sha256:2"}}),
    ("mine", {"extra": {"mine": [1]}}, {"extra": {"mine": [2]}}),
]


@pytest.mark.parametrize(("one", "other"), [pytest.param(*c[1:], id=c[0]) for c in SAME])
def test_what_does_not_matter(one, other):
    assert identity(**one) == identity(**other)


@pytest.mark.parametrize(("key", "one", "other"), DIFFERENT)
def test_what_matters(key, one, other):
    first, second = identity(**one), identity(**other)
    keys = {name for name in first if first[name] != second.get(name)}
    assert key in keys
    assert keys <= {key, "options"}, "and nothing else differs"


def test_a_model_of_another_shape_is_another_format():
    kinds = [create_model("Same", n=(kind, ...)) for kind in (int, int, str)]
    schema = [identity(format=kind)["format"].partition(" ")[2] for kind in kinds]
    assert schema[0] == schema[1] != schema[2]


# --- items ---------------------------------------------------------------------------------------


class Colour(enum.Enum):
    RED = 1


@dataclass
class Point:
    x: int
    y: Any


class Opaque:
    pass


def digest(item: Any, prompt: str = "the same") -> str:
    return digest_of(item, as_action(prompt))


EQUAL = [
    ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    ([1, 2], (1, 2)),
    ({"x", "y", "z"}, {"z", "y", "x"}),
    (Point(1, 2), Point(1, 2)),
    (Row(n=1), Row(n=1)),
    (Opaque(), Opaque()),
    (datetime(2020, 1, 1, tzinfo=UTC), datetime(2020, 1, 1, tzinfo=UTC)),
]
UNEQUAL = [
    ({"a": 1}, {"a": 2}),
    ({"a": 1}, {"b": 1}),
    ([1, 2], [2, 1]),
    ("1", 1),
    (1, True),
    (None, "None"),
    (b"a", b"b"),
    (Point(1, 2), Point(1, 3)),
    (Row(n=1), Row(n=2)),
    (date(2020, 1, 1), date(2020, 1, 2)),
    (Path("a"), Path("b")),
    (frozenset([1]), frozenset([2])),
    ("\ud800", "\ud801"),
    (float("nan"), 0.0),
    (Row, Point),
    (Colour.RED, "RED"),
]


@pytest.mark.parametrize(("one", "other"), EQUAL)
def test_equal_items_have_equal_digests(one, other):
    assert digest(one) == digest(other)


@pytest.mark.parametrize(("one", "other"), UNEQUAL)
def test_other_items_have_other_digests(one, other):
    assert digest(one) != digest(other)
    assert differing_part(digest(one), digest(other)) == "item"


def test_an_action_is_its_prompt():
    assert digest_of("x", as_action("x")) != digest_of("y", as_action("y"))
    plain, strict = Instruction("x"), Instruction("x", requirements=("be brief",))
    checked = Instruction("x", requirements=(Requirement("be brief", short),))
    assert digest(strict) != digest(checked), "where it is the item of an action of one's own"
    again = Instruction("x")
    assert digest_of(plain, plain) == digest_of(again, again)
    assert digest_of(plain, plain) != digest_of(strict, strict)
    message = Message("user", "x")
    assert differing_part(digest_of(plain, plain), digest_of(message, message)) == "prompt"


def test_what_can_not_be_read_is_told_by_its_prompt():
    loop: list[Any] = []
    loop.append(loop)

    class Raises(BaseModel):
        def model_dump(self, **arguments: Any) -> Any:
            raise OSError

    class NoPrompt:
        def render(self, context: Context) -> Any:
            raise LookupError

        def parse(self, text: str) -> str:
            return text

    assert digest(loop) == digest(loop)
    assert digest(loop, "a") != digest(loop, "b")
    assert digest(Raises()) == digest(Raises())
    assert digest_of(NoPrompt(), NoPrompt()) == digest_of(NoPrompt(), NoPrompt())
    assert row_of(loop) is None
    assert label_of(loop) == "list"


def test_a_digest_is_the_same_in_every_process(tmp_path):
    program = """
        from mellea_like.batch.journal.identity import digest_of, identity_of
        from mellea_like import RejectionSamplingStrategy, Instruction, Requirement
        from mellea_like.backends import ScriptedBackend
        from mellea_like.schedules import BaseSchedule, Hedged, PerRequirement, Staggered
        item = {"a": {"x", "y", "z"}, "b": [1, 2.5, None]}
        print(digest_of(item, Instruction("x")))
        backend = ScriptedBackend(["x"])
        s = RejectionSamplingStrategy(backend, concurrency_budget=2, schedule=Hedged())
        known = Requirement("is known", lambda c: c.text in {"x", "y", "z"} or f"{c!r}")
        print(identity_of(s, ["a", known]))
    """
    one, other = (python(program, PYTHONHASHSEED=seed) for seed in "12")
    assert one.returncode == 0, one.stderr
    assert one.stdout == other.stdout
    assert " at 0x" not in one.stdout


@pytest.mark.parametrize(
    ("item", "label"),
    [
        ("Write a haiku.", "Write a haiku."),
        ("two\nlines\tand  blanks", "two lines and blanks"),
        ("x" * 200, "x" * 79 + "…"),
        ("x" * 80, "x" * 80),
        ("bell\a and \u202eright to left", "bell\ufffd and \ufffdright to left"),
        (Instruction("do it"), "do it"),
        (Message("user", "say it"), "say it"),
        ({"id": 7, "name": "Ada"}, '{"id": 7, "name": "Ada"}'),
        ({"id": "ü"}, '{"id": "ü"}'),
        (Row(n=3), '{"n": 3}'),
        (12, "12"),
        (Opaque(), "Opaque"),
    ],
)
def test_a_label_is_a_short_line(item, label):
    assert label_of(item) == label


@pytest.mark.parametrize(
    ("item", "row"),
    [
        ("text", "text"),
        ({"a": [1, None]}, {"a": [1, None]}),
        (Row(n=1), {"n": 1}),
        (Point(1, "a"), {"x": 1, "y": "a"}),
        (Opaque(), None),
        (Instruction("do it"), None),
    ],
)
def test_a_row_is_the_items_data(item, row):
    assert row_of(item) == row
