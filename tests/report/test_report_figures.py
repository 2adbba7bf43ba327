"""The figures of a run, counted item by item."""

from __future__ import annotations

import math
import tracemalloc
from datetime import timedelta
from statistics import fmean

import pytest
from html_page import HtmlPage
from hypothesis import given
from hypothesis import strategies as st
from report_kit import BEGUN, calls, decision, item, run_of, trace_of

from mellea_like.core.generation import Usage
from mellea_like.core.serialization import usage_to_dict
from mellea_like.report import call_report, call_text, figures_of, run_report, run_text
from mellea_like.report.model_shares import share_rows
from mellea_like.report.run_figures import (
    LISTED,
    MOST_NAMES,
    OTHERS,
    UNREADABLE,
    Distribution,
    Intervals,
    why,
)
from mellea_like.report.run_summary import statuses_of
from mellea_like.report.views import ItemView, SliceView, TraceView


@pytest.fixture(scope="module")
def some():
    return calls(120)


def figures(*items, **more):
    return figures_of(run_of(list(items), **more), items)


# --- counts -----------------------------------------------------------------------------------


def test_items_are_counted_by_how_they_ended():
    made = figures(
        item(0, trace_of(("passed", 1))),
        item(1, trace_of(("failed", 1))),
        item(2, None, {"type": "BackendError", "message": "no"}),
        item(3, None, status="unfinished"),
    )
    assert made.statuses == {"passed": 1, "failed": 1, "errored": 1, "unfinished": 1}
    assert (made.items, made.done, made.passed) == (4, 3, 1)
    assert [i["id"] for i in made.failed] == [1, 2]


def test_all_tokens_of_all_items_go_somewhere(some):
    made = figures(*some)
    assert sum(u.total_tokens for u in made.fates.values()) == made.usage.total_tokens
    assert sum(u.requests for u in made.fates.values()) == made.usage.requests
    assert all(made.fates[fate].total_tokens for fate in ("won", "rejected", "cancelled"))


def test_tokens_of_requests_that_no_iteration_records_are_counted_too():
    usage = {"requests": 3, "input_tokens": 50, "output_tokens": 20, "unknown": 1}
    trace = trace_of(("passed", 5))
    made = figures(item(0, trace, usage=usage), item(1, None, usage=usage))
    assert made.fates["other"] == Usage(5, 99, 35, 2)
    assert made.usage == Usage(6, 100, 40, 2)


def test_requirements_are_counted_by_verdict_the_worst_first_and_undecided_ones_have_no_rate(some):
    made = figures(*some)
    rates = [tally.counts["passed"] / tally.judged for _, tally in made.by_requirement]
    assert rates == sorted(rates)
    assert {name for name, _ in made.by_requirement} == {
        "the reply starts with the word 'passing'",
        "the reply says 'alpha'",
        "the reply says 'beta'",
    }
    judged = sum(len(s["validations"]) for i in some for s in i["trace"]["slices"])
    counted = sum(tally.counts.total() for tally in made.requirements.values())
    assert counted == judged
    trace = trace_of(("failed", 1))
    trace["slices"][0]["validations"] = [verdict("never", "skipped"), verdict("broken", "errored")]
    made = figures(item(0, trace))
    assert made.by_requirement == []
    assert made.requirements["broken"].counts == {"errored": 1}


def test_names_without_end_take_bounded_memory():
    items = []
    for number in range(MOST_NAMES + 50):
        trace = trace_of(("errored", 1), ("failed", 1))
        trace["slices"][0]["error"] = {"type": f"Error{number}", "message": ""}
        trace["slices"][1]["validations"] = [verdict(f"check {number}", "failed")]
        items.append(item(number, trace))
    made = figures(*items)
    assert len(made.requirements) == MOST_NAMES + 1
    assert made.requirements[OTHERS].counts["failed"] == 50
    assert len(made.errors) == MOST_NAMES + 1
    assert made.errors[OTHERS] == 50


def verdict(name, status):
    return {"name": name, "description": name, "status": status, "reason": "", "score": None,
            "weight": 1.0}  # fmt: skip


def test_an_items_error_counts_once_though_its_iterations_had_it():
    trace = trace_of(("errored", 1))
    error = trace["slices"][0]["error"]
    assert figures(item(0, trace, error)).errors == {error["type"]: 1}
    assert figures(item(0, None, error)).errors == {error["type"]: 1}
    other = {"type": "HookError", "message": ""}
    assert figures(item(0, trace, other)).errors == {error["type"]: 1, "HookError": 1}


# --- how many, how long, how much -------------------------------------------------------------


@pytest.mark.parametrize(
    ("outcomes", "best", "attempts"),
    [
        (["failed", "errored", "passed", "cancelled"], 2, [3]),
        (["cancelled", "failed", "passed"], 2, [3]),
        (["passed"], 0, [1]),
        (["passed", "passed"], 0, [1]),
        (["passed", "passed"], 1, [1]),  # The best of those that passed may be a later one.
        (["failed"], 0, []),
    ],
)
def test_attempts_are_the_iterations_that_started_until_one_passed(outcomes, best, attempts):
    trace = trace_of(*[(outcome, 1) for outcome in outcomes], best=best)
    if best == 1:
        trace["decision"] = decision(2)
    assert list(figures(item(0, trace)).until_passed.values) == attempts


def test_of_draws_that_race_all_that_started_count():
    """The first to end is a pass, because passes are quick."""
    trace = trace_of(("passed", 1), *[("cancelled", 1)] * 7)
    for s in trace["slices"]:
        s["started_at"] = 0.0
    made = figures(item(0, trace))
    assert list(made.until_passed.values) == [8]
    assert "0 % of the items that passed had started one draw when one passed" in run_text(
        run_of([item(0, trace)]), [item(0, trace)]
    )


def test_a_run_has_lasted_from_its_first_item_to_its_last():
    items = [item(0, None, begun=1.0, elapsed=2.0), item(1, None, begun=0.5, elapsed=9.0)]
    assert figures(*items, ended=None).elapsed == pytest.approx(9.0)
    assert figures(*items).elapsed == pytest.approx(9.0)
    assert figures(ended=None).elapsed is None
    assert figures(*items, started=None).elapsed is None
    assert figures(item(0, None, started=None), ended=None).elapsed is None


def test_the_night_before_a_run_was_resumed_is_no_part_of_its_time():
    night = 8 * 3600.0
    items = [
        item(0, None, begun=0.0, elapsed=5.0),
        item(1, None, begun=2.0 + night, elapsed=4.0),
        item(2, None, begun=1.0, elapsed=6.0),
        item(3, None, begun=night, elapsed=1.0),
    ]
    ended = (BEGUN + timedelta(seconds=night + 6)).isoformat()
    assert figures(*items, ended=ended).elapsed == pytest.approx(7.0 + 6.0)


def test_a_run_was_at_work_while_its_journal_was_open_whatever_its_last_draws_took():
    def at(seconds):
        return (BEGUN + timedelta(seconds=seconds)).isoformat()

    def told(*sittings):
        run = run_of(items, sittings=sittings)
        [line] = [line for line in run_text(run, items).splitlines() if "  time " in line]
        return " ".join(line.split())

    items = [item(n, trace_of(("passed", 1)), begun=20.0 * n, elapsed=1.0) for n in range(3)]
    assert told([at(0), at(56)]) == "time 56 s 0.0536 items/s"
    assert told([at(0), at(30)], [at(3600), at(3604)], [at(9000), at(8999)]) == (
        "time 35 s 0.0857 items/s"
    )
    # It was killed: of what came after the first minute, only an item's last call is known.
    assert told([at(0), at(15)], [at(39), None]) == "time ≥ 22 s"


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 40)), max_size=20))
def test_intervals_are_the_same_in_any_order(drawn):
    seconds = {at for start, length in drawn for at in range(start, start + length)}
    totals = []
    for order in (drawn, sorted(drawn), drawn[::-1]):
        intervals = Intervals()
        for start, length in order:
            intervals.add(start, start + length)
        totals.append((len(intervals), intervals.total))
    assert totals[0] == totals[1] == totals[2]
    assert totals[0][1] >= len(seconds)


def priced(*draws: tuple[str | None, int]):
    """Make a call whose draws are by the given models, with the given numbers of tokens."""
    trace = trace_of(*[("failed", tokens) for _, tokens in draws])
    for s, (model, _) in zip(trace["slices"], draws, strict=True):
        s["model"] = model
    return trace


M, ONE, TWO = {"m": [1.0, 2.0]}, {"m": [0.0, 1.0]}, {"other": [0.0, 1.0], "n": [0.0, 2.0]}


@pytest.mark.parametrize(
    ("trace", "tokens", "unknown", "prices", "money"),
    [
        (priced(("m", 1000), ("m", 500_000)), None, 0, M, ((2 * 1.0 + 501_000 * 2.0) / 1e6, True)),
        # A draw without a model costs what the call's other ones do.
        (priced((None, 1000), ("m", 1000)), None, 0, ONE | {"n": [7.0, 7.0]}, (0.002, True)),
        # Where a price or a cost is not known, it is a lower bound.
        (priced(("m", 5)), None, 0, TWO, (0.0, False)),
        (None, 1000, 0, ONE, (0.001, True)),
        (None, 1000, 0, TWO, (0.0, False)),
        (None, 0, 1, TWO, (0.0, False)),
        (None, 0, 0, TWO, (0.0, True)),
    ],
)
def test_money_is_tokens_times_price_as_far_as_both_are_known(
    trace, tokens, unknown, prices, money
):
    usage = {"requests": 1, "input_tokens": 0, "output_tokens": tokens, "unknown": unknown}
    more = {} if tokens is None else {"usage": usage}
    made = figures(item(0, trace, **more), prices=prices)
    assert made.money == pytest.approx(money)
    if made.money.complete:
        assert sum(made.costs.values) == pytest.approx(made.money.known)


def test_models_without_a_price_are_named_beside_the_cost():
    items = [item(0, priced(("m", 1000), ("x-2", 5), ("x-1", 5), (None, 5)))]
    text = run_text(run_of(items, prices=M | {"typo": [1.0, 2.0]}), items)
    assert "no price for x-1, x-2\n" in text
    for prices in (M | {"x-1": [0.0, 1.0], "x-2": [0.0, 1.0]}, {"any model": [0.0, 1.0]}, None):
        assert "no price for" not in run_text(run_of(items, prices=prices), items)


def staged(*models: str | None, outcome="failed"):
    trace = trace_of(*((outcome, 1000),) * len(models), best=0)
    for stage, (s, model) in enumerate(zip(trace["slices"], models, strict=True)):
        s |= {"model": model, "stage": stage // 2, "asked": "ab"[stage // 2]}
    return trace


PRICED = {"a": [0.0, 1.0], "b": [0.0, 10.0]}


def test_a_models_pass_rate_is_that_of_its_judged_draws():
    raced = staged("a", "a", "b", "b")
    raced["slices"][0] |= {"outcome": "passed"}
    raced["slices"][1] |= {"outcome": "cancelled"}
    rows = share_rows(figures(item(0, raced)).models)
    assert rows[0][:3] == ("stage 0: a", "2", "1 (100 % of 1 judged)")
    assert "2 draws, 1 (100 % of 1 judged) passed" in call_text(raced)


def test_each_stage_and_model_has_its_draws_passes_tokens_and_cost():
    first = staged("a", None, "b", "b")
    first["slices"][3] |= {"outcome": "passed"}
    made = figures(item(0, first), item(1, staged("a", "a", None)), prices=PRICED)
    shares = {
        key: (share.draws, share.passed, share.usage.output_tokens, share.money.known)
        for key, share in made.models.items()
    }
    assert shares == {
        (0, "a"): (4, 0, 4000, pytest.approx(0.004)),
        (1, "b"): (3, 1, 3000, pytest.approx(0.03)),
    }
    assert made.money.known == pytest.approx(0.034)
    rows = share_rows(made.models, "EUR")
    assert [row[:3] for row in rows] == [
        ("stage 0: a", "4", "0 (0 %)"),
        ("stage 1: b", "3", "1 (33.3 %)"),
    ]
    assert all(row[4].endswith("EUR") for row in rows)
    items = [item(0, first)]
    run = run_of(items, prices=PRICED)
    for page in (run_report(run, items), call_report(first)):
        assert "What each model did" in page
        assert "stage 1: b" in page
        assert "stage 1" in page
    for text in (run_text(run, items), call_text(first)):
        assert "stage 0: a" in text
    assert "2 draws, 1 (50 %) passed" in run_text(run, items)
    items = [item(0, staged("a", "a", "b"))]
    assert " 1 draw, 0 (0 %) passed" in run_text(run_of(items, prices=PRICED), items)


def test_one_model_has_no_table_of_its_own():
    assert "What each model did" not in call_report(trace_of(("passed", 1)))


def test_requests_of_unknown_cost_make_a_lower_bound_and_without_prices_there_is_no_money(some):
    made = figures(*some)
    assert made.usage.unknown
    assert not made.money.complete
    made = figures(*some, prices=None)
    assert made.prices is None
    assert not made.costs.values


# --- lists ------------------------------------------------------------------------------------


def test_the_slowest_are_listed_slowest_first_and_earlier_first_among_equals():
    times = [3.0, 9.0, 1.0, 9.0, *([2.0] * 30)]
    items = [item(n, None, elapsed=t) for n, t in enumerate(times)]
    slowest = figures(*items).slowest
    assert [i["id"] for i in slowest] == [1, 3, 0, *range(4, 4 + LISTED - 3)]


@given(st.lists(st.floats(0, 1e11), min_size=1, max_size=50), st.floats(0, 1))
def test_a_quantile_is_the_least_value_that_so_many_do_not_exceed(values, share):
    found = Distribution()
    for value in values:
        found.add(value)
    quantile = found.quantile(share)
    assert quantile in values
    assert sum(value <= quantile for value in values) >= share * len(values) - 1e-9
    assert sum(value < quantile for value in values) <= max(0, share * len(values))


def test_nothing_has_no_quantile_and_what_is_no_number_is_left_out():
    found = Distribution()
    assert (found.quantile(0.5), found.most) == (0.0, 0.0)
    for value in (math.nan, math.inf, -3.0, 2.0):
        found.add(value)
    assert list(found.values) == [0.0, 2.0]
    assert found.quantile(0.95 * 20 / 20) == 2.0


def test_more_items_take_little_more_memory():
    few = calls(20)

    def peak(number):
        def stream():
            for n in range(number):
                yield {**few[n % len(few)], "id": n, "elapsed": n % 977 / 10}

        tracemalloc.start()
        try:
            figures_of(run_of([]), stream())
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(500)  # Fills the free lists of the interpreter.
    assert peak(500) < peak(100) + 45_000


def test_of_many_that_failed_a_random_sample_is_listed_which_a_seed_repeats():
    items = [item(n, None, status="failed") for n in range(60)]
    run = run_of(items)

    def listed(seed):
        return [i["id"] for i in figures_of(run, items, seed=seed).failed]

    assert listed(0) == listed(0) == sorted(listed(0))
    assert listed(0) != listed(1)
    assert len(listed(0)) == LISTED
    found = [number for seed in range(300) for number in listed(seed)]
    assert len(set(found)) == 60, "each can be among them"
    assert fmean(found) == pytest.approx(29.5, abs=1), "early ones are no likelier than late ones"
    assert "10 of the items that failed, at random (seed 7)" in run_text(run, items, seed=7)
    assert "60 items, 10 of them at random (seed 7)." in run_report(run, items, seed=7)


def test_what_the_best_replies_lacked_is_told_of_items_that_failed():
    def failed(*lacked, reason=""):
        trace = trace_of(("failed", 1), best=0)
        first = trace["slices"][0]
        first["validations"] = [verdict(n, "failed" if n in lacked else "passed") for n in "ab"]
        return trace | {"slices": [first | {"reason": reason}]}

    passed = failed("a") | {"success": True}
    few = trace_of(("passed", 1)) | {"success": False, "decision": decision(complete=False)}
    items = [
        item(0, failed("a")),
        item(1, failed("a", "b")),
        item(2, failed("a")),
        item(3, failed(reason="no JSON")),
        item(4, passed),
        item(5, few),
        item(6, None, {"type": "HookError", "message": "no"}),
    ]
    found = figures(*items).by_final_failure
    assert [(name, c.items, c.alone) for name, c in found] == [
        ("a", 3, 2), (UNREADABLE, 1, 1), ("b", 1, 0)
    ]  # fmt: skip
    text = run_text(run_of(items), items)
    assert "3 a (2 of them failed only this)" in text
    page = HtmlPage(run_report(run_of(items), items)).text
    assert "Unmet requirements of failed items" in page
    assert "best replies to 4 failed items did not meet." in page


def test_repairs_are_told_by_their_depth_and_draws_made_anew_are_none():
    def chain(*shares, anew=False):
        trace = trace_of(*[("passed" if share == 1 else "failed", 1) for share in shares])
        for depth, (s, share) in enumerate(zip(trace["slices"], shares, strict=True)):
            s["prompt"] = 0 if anew else depth
            if share < 1:
                s["validations"] = [
                    verdict("a", "passed") | {"weight": share},
                    verdict("b", "failed") | {"weight": 1 - share},
                ]
        return trace | {"prompts": [[], [], []]}

    items = [
        item(0, chain(0.2, 0.5, 1)),
        item(1, chain(0.5, 0.2)),
        item(2, chain(0.5, 0.5)),
        item(3, chain(0.5, 1, anew=True)),
    ]
    made = figures(*items)
    depths = [(depth, d.judged, d.passed, d.more, d.same, d.less) for depth, d in made.by_depth]
    assert depths == [(0, 4, 0, 0, 0, 0), (1, 3, 0, 1, 1, 1), (2, 1, 1, 1, 0, 0)]
    assert "100 % of 1 second repairs passed; 100 % met more" in run_text(run_of(items), items)
    assert "Do repairs help?" in run_report(run_of(items), items)
    assert figures(items[3]).by_depth == []


# --- a call -----------------------------------------------------------------------------------


def test_why_an_item_failed():
    trace = trace_of(("failed", 1))

    def reason(*parts):
        return why(ItemView(item(0, *parts)))

    assert reason(trace) == "it says a word: it is missing"
    assert reason(trace, {"type": "E", "message": "m"}) == "E: m"
    assert reason(None) == "nothing passed"
    assert reason({**trace, "stop_detail": "the budget is spent"}) == "the budget is spent"
    assert reason({**trace, "best_index": None}) == "stopped: exhausted"


def test_problems_are_errors_what_did_not_parse_and_what_was_not_met():
    slice_ = trace_of(("failed", 1))["slices"][0]
    slice_ |= {"reason": "no JSON", "error": {"type": "E", "message": "m"}}
    slice_["validations"].append({**verdict("terse", "failed"), "description": "it is terse"})
    assert SliceView(slice_).problems == [
        "E: m",
        "no JSON",
        "it says a word: it is missing",
        "it is terse",
    ]


def test_a_cut_trace_keeps_its_best():
    trace = trace_of(*[("failed", 1)] * 9, ("passed", 1), best=9)
    whole = TraceView(trace)
    cut_down = whole.cut(3)
    assert [s.iteration for s in cut_down.slices] == [1, 2, 10]
    assert cut_down.winners == [cut_down.slices[2]]
    assert cut_down.best_index == 2
    assert len(whole.slices) == 10
    assert whole.cut(10) is whole
    assert TraceView({**trace, "best_index": None}).cut(3).best_index is None


def test_losers_that_had_a_say_and_comparisons_have_a_share_of_their_own():
    drawn = ("passed", 10), ("passed", 20), ("passed", 40), ("failed", 80), ("errored", 160)
    trace = trace_of(*drawn, best=1)
    spent = Usage(2, 5, 5)
    trace["decision"] = decision(2, scores={1: 0.0, 2: 1.0}, usage=spent, model="m")
    trace["usage"] = usage_to_dict(Usage(**trace["usage"]) + spent)
    made = figures(item(0, trace), prices={"m": [1.0, 1.0]})
    found = {fate: u.output_tokens for fate, u in made.fates.items() if u.requests}
    assert found == {
        "won": 20, "heard": 10, "late": 40, "rejected": 80, "errored": 160, "compared": 5
    }  # fmt: skip
    assert made.money == (pytest.approx((315 + 10) / 1e6), True)


def test_too_few_passes_are_why_an_item_failed():
    trace = trace_of(("passed", 1), ("failed", 1)) | {"success": False, "stop_reason": "exhausted"}
    trace["decision"] = decision(1, kind="collect", complete=False, reason="1 of 2 passed: time")
    made = figures(item(0, trace))
    assert why(ItemView(made.failed[0])) == "1 of 2 passed: time"
    assert statuses_of(made) == [("failed", "failed: too few draws passed", 1)]
    made.add(item(1, trace_of(("failed", 1)) | {"success": False}))
    assert statuses_of(made)[0][1] == "failed: no draw, or too few draws, passed"
    assert {fate for fate, u in made.fates.items() if u.requests} == {"heard", "rejected"}
