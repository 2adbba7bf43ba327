"""``mellea-like plan``: the number of draws needed, estimated from a journal."""

from __future__ import annotations

import json

import pytest


@pytest.fixture(scope="module")
def journal(write_journal):
    return write_journal([f"\x1b[2JHarbour {n}." for n in range(40)], {"loop_budget": 3})


def test_it_says_how_many_draws_and_with_which_budgets(command, journal):
    code, out, err = command("plan", str(journal), "--target", "0.7")
    assert (code, err) == (0, "")
    assert out.startswith("40 items, ")
    assert "For 70 % it takes " in out
    assert "Expected for each item, by attempts x lanes:\n" in out
    assert "<- suggested" in out
    assert "Fails most often: the reply starts with the word 'passing' (" in out
    assert "\x1b" not in out


def test_as_json_it_is_what_python_gives(command, journal):
    from mellea_like.estimate import plan

    code, out, err = command("plan", str(journal), "--json")
    assert (code, err) == (0, "")
    made = plan(journal, 0.95)
    assert json.loads(out) == json.loads(json.dumps(made.to_dict()))
    assert "\x1b" not in out


def test_several_journals_are_one_run(command, journal, write_journal, tmp_path):
    other = write_journal([f"Bay {n}." for n in range(40)], {"loop_budget": 1})
    for path, name in ((journal, "a.db"), (other, "b.db")):
        (tmp_path / name).write_bytes(path.read_bytes())
    code, out, err = command("plan", str(tmp_path), "--target", "0.9", "--json")
    assert (code, err) == (0, "")
    whole = json.loads(out)
    alone = [json.loads(command("plan", str(path), "--json")[1]) for path in (journal, other)]
    assert whole["items"] == 80
    assert whole["draws"] == sum(one["draws"] for one in alone)
    unsolved = {item["id"]: item["label"] for item in whole["unsolved"]}
    assert len(unsolved) == sum(len(one["unsolved"]) for one in alone) > 10
    bay = alone[1]["unsolved"][0]
    assert unsolved[40 + bay["id"]] == f"b.db #{bay['id']}: {bay['label']}"
    text = command("plan", str(journal), str(other), "--target", "0.9")[1]
    assert text.endswith(f"  ... and {len(unsolved) - 10} more\n")


@pytest.mark.parametrize("target", ["0", "1", "95", "nan"])
def test_a_target_out_of_range_is_bad_usage(command, journal, target):
    code, out, err = command("plan", str(journal), "--target", target)
    assert (code, out) == (2, "")
    assert err == f"mellea-like: --target must be between 0 and 1, not {target}\n"


@pytest.mark.parametrize("what", ["plan", "report"])
def test_of_several_journals_the_one_that_is_missing_is_named(command, journal, tmp_path, what):
    gone = tmp_path / "gone.db"
    code, out, err = command(what, str(journal), str(gone))
    assert (code, out) == (3, "")
    assert err == f"mellea-like: journal {gone}: there is no such file\n"


def test_what_is_no_journal_is_an_error(command, tmp_path):
    (tmp_path / "run.db").write_text("no")
    for path in (tmp_path / "run.db", tmp_path / "gone.db", tmp_path):
        code, out, err = command("plan", str(path))
        assert (code, out) == (3, "")
        assert err.startswith("mellea-like: ")
        assert err.count(str(path)) == 1
        assert len(err.splitlines()) == 1


def test_a_run_without_a_draw_is_an_error(command, write_journal):
    path = write_journal([], {})
    code, out, err = command("plan", str(path))
    assert (code, out) == (3, "")
    assert err == f"mellea-like: {path}: there is nothing to plan from: no draw was judged\n"
