"""`sample_in_processes`: several processes share the items of a list."""

from __future__ import annotations

import anyio
import process_kit
import pytest
from forked_command import can_fork, stand_in

from mellea_like.batch import processes, read_run, sample_in_processes
from mellea_like.errors import JournalError, LimitExceeded, MelleaError
from mellea_like.limits import Budget, SQLiteStore

ITEMS = [{"text": f"number {n}"} for n in range(11)]


def outcomes(items=ITEMS, make=process_kit.make, library="asyncio", **arguments):
    arguments = {"processes": 2, "concurrency": 4, "action": process_kit.ask} | arguments

    async def main():
        found = {}
        async with sample_in_processes(make, items, **arguments) as results:
            async for id_, item, outcome in results:
                assert item == items[id_]
                found[id_] = outcome
        with pytest.raises(RuntimeError, match="is not open: use `async with"):
            await anext(results)
        return found

    return anyio.run(main, backend=library)


@pytest.fixture
def forked(tmp_path_factory, monkeypatch):
    """Fork the processes."""
    if can_fork():
        script = tmp_path_factory.mktemp("script") / "script.py"
        script.write_text(processes.COMMAND[-1], encoding="utf-8")
        monkeypatch.setattr(processes, "COMMAND", stand_in(script))


@pytest.mark.parametrize("library", ["asyncio", "trio"])
def test_each_item_is_done_once_and_a_run_goes_on_with_its_journals(
    tmp_path, library, capfd, request
):
    if library == "trio":  # On asyncio, they are started as in a user's program.
        request.getfixturevalue("forked")
    folder = tmp_path / "run"
    found = outcomes(library=library, journal=folder)
    assert sorted(found) == list(range(11))
    assert {n: one.output for n, one in found.items()} == {n: f"re number {n}" for n in range(11)}
    assert [read_run(path)["counts"]["passed"] for path in sorted(folder.glob("*.db"))] == [6, 5]
    again = outcomes(library=library, journal=folder)
    assert sorted(again) == list(range(11))
    assert all(one.replayed for one in again.values())
    assert capfd.readouterr() == ("", "made\n" * 4)
    with pytest.raises(ValueError, match="started with a different number of processes"):
        outcomes(journal=folder, processes=3)
    with pytest.raises(JournalError, match="items"):
        outcomes([{"text": "else"}] * 11, journal=folder)


def test_a_file_in_place_of_the_folder_of_journals_is_told(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(JournalError, match="file: File exists"):
        outcomes(journal=tmp_path / "file")


@pytest.mark.usefixtures("forked")
def test_a_budget_in_a_store_is_for_all(tmp_path):
    store = SQLiteStore(tmp_path / "limits")
    with pytest.raises(LimitExceeded, match="'all': 5 of 5"):
        outcomes(budget=Budget(requests=5, store=store, name="all"))
    assert Budget(requests=5, store=store, name="all").spent.requests == 5
    store.close()


@pytest.mark.usefixtures("forked")
def test_a_budget_spent_after_a_process_died_does_not_hide_that():
    async def main():
        parts = [None, 0.2]
        async with processes.Processes(process_kit.die_or_spend, parts, print, "rows") as running:
            return [number async for number, _ in running]

    with pytest.raises(processes.Lost, match="process 1 of 2"):
        anyio.run(main)


@pytest.mark.usefixtures("forked")
def test_a_process_that_dies_is_told_of_when_the_others_have_ended(tmp_path):
    items = [{"text": "die" if n == 3 else f"number {n}"} for n in range(11)]
    with pytest.raises(MelleaError, match=r"process 2 of 2 was killed \(SIGKILL\)"):
        outcomes(items, journal=tmp_path)
    passed = [read_run(path)["counts"]["passed"] for path in sorted(tmp_path.glob("*.db"))]
    assert passed[0] == 6
    assert passed[1] < 5


@pytest.mark.usefixtures("forked")
def test_a_function_that_fails_ends_all():
    with pytest.raises(MelleaError, match="TypeError: make_strategy returned 'no strategy'"):
        outcomes(make=process_kit.make_badly)


@pytest.mark.parametrize(
    ("more", "error", "says"),
    [
        ({"processes": 0}, ValueError, "processes"),
        ({"concurrency": 1}, ValueError, "at least 2"),
        ({"unique": True}, TypeError, "does not support unique"),
        ({"action": lambda item: item}, TypeError, "can't be pickled"),
        ({"items": iter(ITEMS)}, TypeError, "items must be a list, so that it can be divided, not"),
    ],
)
def test_wrong_arguments_are_told_before_a_process_starts(more, error, says):
    with pytest.raises(error, match=says):
        outcomes(**more)
