"""Batches with real journal files, in real time, that are interrupted and resumed."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from anyio.lowlevel import checkpoint
from batch_kit import agrees, results_of, strategy
from journal_kit import items_of
from trio import TooSlowError
from typed_values import Aliased, Computed, Doubling, Excluded, Login, Stamped, shown

from mellea_like import (
    BestOf,
    Budget,
    Escalate,
    FunctionBackend,
    Generation,
    Journal,
    Request,
    Requirement,
    Stage,
)
from mellea_like.batch.journal.identity import label_of
from mellea_like.core import Usage
from mellea_like.errors import (
    AuthenticationFailed,
    BackendUnavailable,
    InvalidRequest,
    JournalError,
    RequirementError,
    SamplingFailed,
)

pytestmark = pytest.mark.anyio


class Quick:
    """A backend that answers immediately, and counts its requests."""

    model = "quick"

    def __init__(self, replies: dict[str, Any] | None = None) -> None:
        self.asked: list[str] = []
        self.replies = replies or {}

    async def generate(self, request: Request) -> Generation:
        prompt = request.messages[-1].content
        self.asked.append(prompt)
        await checkpoint()
        reply = self.replies.get(prompt, "yes")
        if isinstance(reply, BaseException):
            raise reply
        return Generation(reply, usage=Usage(1, 2, 3))


async def sampled(drawing: Any, path: Path, **arguments: Any) -> Any:
    """Run or resume a batch of the item "x", and return its result."""
    (item,) = await results_of(drawing, ["x"], concurrency=1, journal=path, **arguments)
    return item


async def test_a_finished_run_comes_again_as_it_was(path):
    replies = {"fails": "no", "raises": InvalidRequest("too long", status=400)}
    prompts = ["fine", "fails", "raises"]
    backend = Quick(replies)
    first = await results_of(strategy(backend), prompts, concurrency=2, journal=path, in_order=True)
    again = await results_of(strategy(backend), prompts, concurrency=2, journal=path, in_order=True)
    assert len(backend.asked) == 3
    assert [item.status for item in again] == ["passed", "failed", "errored"]
    assert all(item.replayed for item in again)
    for one, other in zip(first[:2], again, strict=False):
        assert one.result is not None
        assert other.result is not None
        assert one.result.to_dict() == other.result.to_dict()
        assert one.usage == other.usage
    assert first[2].usage == again[2].usage
    assert isinstance(again[2].error, InvalidRequest)
    assert again[2].error.status == 400
    with pytest.raises(SamplingFailed, match="it says no"):
        again[1].unwrap()


TYPED = [
    (Computed, '{"width": 3}'),
    (Aliased, '{"dueDate": 3}'),
    (Excluded, '{"name": "a", "token": "b"}'),
    (Doubling, '{"number": 3}'),
    (Login, '{"user": "a", "password": "b"}'),
    (Stamped, '{"text": "a"}'),
    (Doubling | None, "null"),
]


@pytest.mark.parametrize(("format_", "reply"), TYPED)
async def test_a_value_comes_again_as_it_was_sampled_whatever_its_json_hides(path, format_, reply):
    typed = strategy(Quick({"x": reply}), requirements=[])
    first, again = [await sampled(typed, path, format=format_) for _ in range(2)]
    assert again.replayed
    assert shown(again.unwrap()) == shown(first.unwrap())


async def test_a_value_that_a_function_gave_comes_again_unless_its_text_hides_it(tmp_path):
    async def values(made, format_=None):
        typed = strategy(FunctionBackend(lambda request: made), requirements=[])
        path = tmp_path / f"{made!r}.db"
        return [(await sampled(typed, path, format=format_)).unwrap() for _ in range(2)]

    given, again = await values({"a": [1]})
    assert given == again == {"a": [1]}
    given, again = await values({"user": "a", "password": "b"}, Login)
    assert given == again
    assert again.password.get_secret_value() == "b"
    with pytest.raises(
        JournalError, match="item 0 can't be kept in a journal: a Login would be read back"
    ):
        await values(Login(user="a", password="b"), Login)


class Expiring(Quick):
    """A model that says no to its first request; then its key expires."""

    expired = True

    async def generate(self, request: Request) -> Generation:
        self.replies = dict.fromkeys(["x"], "no" if len(self.asked) != 1 else "yes")
        if self.expired and len(self.asked) >= 1:
            self.replies = {"x": AuthenticationFailed("the key has expired", status=401)}
        return await super().generate(request)


@pytest.mark.parametrize("breadth_first", [False, True], ids=["depth", "breadth"])
@pytest.mark.parametrize("again", ["errors are kept", "errors are not kept", "more turns"])
async def test_an_item_whose_lane_an_error_ended_is_not_done_with(path, again, breadth_first):
    async def run(loop_budget: int = 5):
        arguments = {"keep_errors": again != "errors are not kept", "breadth_first": breadth_first}
        return await sampled(strategy(backend, loop_budget=loop_budget), path, **arguments)

    backend = Expiring()
    item = await run()
    assert (item.status, item.result.stop_reason, len(item.result.slices)) == ("failed", "error", 2)
    (stored,) = await items_of(path)
    assert stored["status"] == ("unfinished" if again == "errors are not kept" else "failed")

    backend.expired, backend.asked = False, ["x"]
    item = await run(6 if again == "more turns" else 5)
    if again == "errors are kept":
        assert (item.replayed, item.status, backend.asked) == (True, "failed", ["x"])
        return
    assert (item.replayed, item.status, item.result.stop_reason) == (False, "passed", "passed")
    # It continues after the earlier draw.
    assert [str(s.outcome) for s in item.result.slices] == ["failed", "passed"]
    assert backend.asked == ["x", "x"]
    assert (await items_of(path))[0]["status"] == "passed"


@pytest.mark.parametrize("breadth_first", [False, True], ids=["depth", "breadth"])
@pytest.mark.parametrize("small", ["no", "", "the key has expired"])
async def test_an_item_whose_last_stage_ended_with_an_error_is_drawn_again(
    path, breadth_first, small
):
    expired = AuthenticationFailed("the key has expired", status=401)
    backends = [Quick({"x": small if small == "no" else expired})] if small else []
    backends.append(Quick({"x": expired}))
    stages = [Stage(backend) for backend in backends]
    escalating = Escalate(stages, requirements=[agrees], retry=None)
    given = {"keep_errors": False, "breadth_first": breadth_first}
    assert not await sampled(escalating, path, **given)
    for backend in backends:
        backend.replies.clear()
    item = await sampled(escalating, path, **given)
    assert (item.status, item.replayed) == ("passed", False)
    # Failures aren't repeated, but all draws that the expired key prevented are.
    assert [len(backend.asked) for backend in backends] == {
        "no": [1, 2],
        "": [2],
        "the key has expired": [2, 1],
    }[small]


@pytest.mark.parametrize("breadth_first", [False, True], ids=["depth", "breadth"])
@pytest.mark.parametrize("interrupt", [KeyboardInterrupt(), SystemExit(1)])
async def test_an_interrupt_takes_no_stage_of_an_escalation(path, interrupt, breadth_first):
    small, big = Quick({"x": interrupt}), Quick()
    stages = [Stage(small), Stage(big)]
    escalating = Escalate(stages, requirements=[agrees], retry=None)
    with pytest.raises(type(interrupt)):
        await sampled(escalating, path, breadth_first=breadth_first)
    small.replies.clear()
    item = await sampled(escalating, path, breadth_first=breadth_first)
    assert [(s.iteration, s.stage) for s in item.result.slices] == [(1, 0)]
    assert (len(small.asked), len(big.asked)) == (2, 0)
    assert item.usage.requests == 1
    [record] = await items_of(path)
    assert record["usage"]["requests"] == 2


class Unfit(Exception):
    """An error of the user's, which a journal can only describe."""


class Stopped(Quick):
    """Stops the program at its second request."""

    async def generate(self, request: Request) -> Generation:
        reply = await super().generate(request)
        if len(self.asked) == 2:
            raise SystemExit
        return reply


@pytest.mark.parametrize("breadth_first", [False, True], ids=["depth", "breadth"])
@pytest.mark.parametrize("error", [ZeroDivisionError, Unfit])
async def test_a_bug_of_a_validator_that_an_earlier_run_met_counts(path, error, breadth_first):
    def broken(candidate):
        raise error("bug")

    backend = Stopped()
    checks = [Requirement("can be checked", broken, inline=True)]
    drawing = strategy(backend, requirements=checks, loop_budget=5)
    with pytest.raises(SystemExit):
        await sampled(drawing, path, breadth_first=breadth_first)
    item = await sampled(drawing, path, breadth_first=breadth_first)
    assert isinstance(item.error, RequirementError)
    assert item.error.requirement == "broken"
    assert len(backend.asked) == 3  # The second draw was made again, and had the same bug.


class Overloaded(BackendUnavailable):
    """A retryable error of the user's own backend."""


class Silent(TimeoutError):
    """A timeout of the user's own backend."""


class Faltering(Quick):
    """Fails at its first request, says no to the second, and stops the program at the third."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.errors = {1: error, 3: SystemExit()}

    async def generate(self, request: Request) -> Generation:
        number = len(self.asked) + 1
        self.replies = {"x": self.errors.get(number, "yes" if number > 3 else "no")}
        return await super().generate(request)


@pytest.mark.parametrize("broad", [False, True])
@pytest.mark.parametrize("error", [Overloaded("busy"), Silent(), TooSlowError()])
async def test_an_item_continues_after_a_transient_error_of_a_foreign_class(path, error, broad):
    drawing = strategy(Faltering(error), loop_budget=5)
    with pytest.raises(SystemExit):
        await sampled(drawing, path, breadth_first=broad)
    item = await sampled(drawing, path, breadth_first=broad)
    assert [str(s.outcome) for s in item.result.slices] == ["errored", "failed", "passed"]


async def test_an_answer_that_a_budget_cut_short_is_kept(path):
    drawing = strategy(Quick(), loop_budget=5, selection=BestOf(lambda _: 1, n=5, inline=True))
    for replayed in (False, True):
        item = await sampled(drawing, path, budget=Budget(requests=3))
        assert (item.status, item.replayed, len(item.result.candidates)) == ("passed", replayed, 3)
        assert item.result.stop_reason == "budget"


# --- parts that rows leave out --------------------------------------------------------------------


class Twice(Quick):
    """A model that says no, then yes; for one prompt always no, and for another its own text."""

    async def generate(self, request: Request) -> Generation:
        prompt = request.messages[0].content
        self.replies[prompt] = "no" if prompt not in self.asked or prompt == "never" else "yes"
        if prompt.startswith("echo"):
            self.replies[prompt] = prompt
        return await super().generate(request)


TEXTS = ["plain", "never", "", "echo", 'ü😀\n"quoted"', "a lone \udc80 surrogate"]


@pytest.mark.parametrize("text", ["all", "best", "none"])
async def test_what_a_row_leaves_out_comes_back(path, text):
    journal = Journal(path, text=text)
    tries = strategy(Twice(), loop_budget=2)
    items = await results_of(tries, [*TEXTS, {"a": 1}], concurrency=2, action=str, journal=journal)
    results = {item.id: item.result.to_dict() for item in items}
    for record in await items_of(path):
        was = results[record["id"]]
        trace = record["trace"]
        assert record["label"] == label_of([*TEXTS, {"a": 1}][record["id"]])
        assert record["usage"] == trace["usage"] == was["usage"]
        if text != "all":
            hide_words(was, text)
        assert trace == was


def hide_words(trace: dict[str, Any], text: str) -> None:
    """Remove from a trace what a journal without all texts leaves out."""
    best = None if text == "none" and not trace["success"] else trace["best_index"]
    for at, slice_ in enumerate(trace["slices"]):
        if at != best:
            slice_["text"] = None
            slice_["action"]["text"] = ""
    kept = {trace["slices"][best][name] for name in ("context", "prompt")} if text == "best" else {}
    trace["prompts"] = [p if at in kept else [] for at, p in enumerate(trace["prompts"])]


async def test_a_journal_of_the_version_before_is_read_and_gone_on_with(path):
    backend = Twice()
    tries = strategy(backend, loop_budget=2)
    await results_of(tries, TEXTS[:3], concurrency=2, journal=path)
    before = await items_of(path)
    with closing(sqlite3.connect(path)) as old:  # As that version wrote it.
        [(sql,)] = old.execute("SELECT sql FROM sqlite_schema WHERE name = 'slices'")
        rows = {(row[0], row[2]): row[:-1] for row in old.execute("SELECT * FROM slices")}
        old.execute("DROP TABLE slices")
        old.execute(f"{sql} WITHOUT ROWID")
        for item in before:
            trace = dict(item["trace"])
            slices = [dict(slice_) for slice_ in trace.pop("slices")]
            places = [[s["iteration"], s.pop("context"), s.pop("prompt")] for s in slices]
            trace = json.dumps({**trace, "places": places})
            old.execute("UPDATE results SET trace = ? WHERE item = ?", (trace, item["id"]))
            old.execute("UPDATE items SET label = ? WHERE id = ?", (item["label"], item["id"]))
            for slice_ in slices:
                row = (*rows[item["id"], slice_["iteration"]], json.dumps(slice_))
                old.execute("INSERT INTO slices VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
        old.execute("DROP TABLE parts")
        old.execute("PRAGMA user_version = 2")
        old.commit()
    assert await items_of(path) == before
    asked = len(backend.asked)
    items = await results_of(tries, TEXTS, concurrency=2, journal=path)
    assert sorted(item.id for item in items if item.replayed) == [0, 1, 2]
    assert len(backend.asked) > asked
    assert (await items_of(path))[:3] == before
    with closing(sqlite3.connect(path)) as now:
        assert now.execute("PRAGMA user_version").fetchone() == (5,)
