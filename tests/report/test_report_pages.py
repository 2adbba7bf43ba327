"""Pages load no other files, are complete and small, and let no text act as markup."""

from __future__ import annotations

import re
from base64 import b64encode
from hashlib import sha256

import pytest
from html_page import HtmlPage
from messages import PNG
from report_kit import NASTY, calls, decision, item, many, nasty_run, nasty_trace, run_of, trace_of

from mellea_like import Image, Message
from mellea_like.core import Audio, ToolCall
from mellea_like.core.decision import Answer
from mellea_like.report import call_report, call_text, comparison_text, run_report, run_text
from mellea_like.report.call import cell
from mellea_like.report.draw_details import FULL, MOST_BARS
from mellea_like.report.markup import visible
from mellea_like.report.waterfall import MOST_ROWS


@pytest.fixture(scope="module")
def some():
    return calls(200)


@pytest.fixture(scope="module")
def run_page(some):
    return run_report(run_of(some), some)


@pytest.fixture(scope="module")
def call_page():
    return call_report(trace_of(("failed", 3), ("errored", 2), ("passed", 5), best=2))


def shown(text):
    """Return a call's page, a run's page and a notebook's cell that show a text."""
    trace = nasty_trace(text)
    return [call_report(trace), run_report(*nasty_run(text)), cell(trace)]


# --- it stands alone --------------------------------------------------------------------------


@pytest.mark.parametrize("which", ["run_page", "call_page"])
def test_a_page_refers_to_nothing_outside_and_what_is_inside_is_there_once(which, request):
    page = HtmlPage(request.getfixturevalue(which))
    assert [link for link in page.links if not link.startswith(("#", "data:image/svg+xml,"))] == []
    assert not re.search(r"url\((?!#)|@import", "".join(page.styles))
    assert all(re.fullmatch(r"url\(#[\w-]+\)", v) for n, v in page.attributes if "url(" in v)
    assert not {"iframe", "object", "embed", "base", "form", "img"} & set(page.tags)
    assert not [name for name, _ in page.attributes if name == "style" or name.startswith("on")]
    ids = set(page.ids)
    assert len(ids) == len(page.ids)
    inside = {link[1:] for link in page.links if link.startswith("#")}
    inside |= {v[5:-1] for _, v in page.attributes if v.startswith("url(#")}
    inside |= {v for n, v in page.attributes if n == "aria-labelledby"}
    assert inside <= ids
    assert len(inside) > 5


@pytest.mark.parametrize("which", ["run_page", "call_page"])
def test_the_policy_allows_the_pages_own_style_and_script_and_nothing_else(which, request):
    page = HtmlPage(request.getfixturevalue(which))
    rules = dict(rule.strip().split(" ", 1) for rule in page.policy.split(";"))
    (style,), (script,) = page.styles, page.scripts
    for text, rule in ((style, "style-src"), (script, "script-src")):
        digest = b64encode(sha256(text.encode()).digest()).decode()
        assert rules.pop(rule) == f"'sha256-{digest}'"
    assert rules == {
        "default-src": "'none'",
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }


# --- no text does anything --------------------------------------------------------------------


@pytest.mark.parametrize("text", NASTY)
def test_a_text_adds_no_element_and_no_attribute(text):
    for page, plain in zip(shown(text), shown("plain"), strict=True):
        parsed, expected = HtmlPage(page), HtmlPage(plain)
        assert [t for t in parsed.tags if t != "p"] == [t for t in expected.tags if t != "p"]
        assert [n for n, _ in parsed.attributes] == [n for n, _ in expected.attributes] or (
            len(text) > 1000  # A note says how much is left out.
        )
        assert parsed.scripts == expected.scripts
        assert parsed.styles == expected.styles
        assert parsed.links == expected.links
        page.encode("utf-8")
        assert visible(page) == page


@pytest.mark.parametrize("text", [text for text in NASTY if len(text) < 1000])
def test_a_text_is_there_in_full(text):
    page = HtmlPage(call_report(nasty_trace(text)))
    # A browser drops a line end at the beginning of pre; this parser does not.
    shown = [pre.removeprefix("\n") if text.startswith("\n") else pre for pre in page.pre]
    assert shown.count(visible(text)) >= 3


# --- it holds what it should ------------------------------------------------------------------


def test_a_page_about_a_run_says_how_it_went(some, run_page):
    text = HtmlPage(run_page).text
    passed = sum(i["status"] == "passed" for i in some)
    assert f"{passed / 2:g} %" in text
    for words in (
        "Run of 200 items",
        "simulated-small",
        "How the items ended",
        "Where the tokens went",
        "Pass rate by requirement",
        "the reply says 'alpha'",
        "Attempts to success",
        "Coverage by number of draws",
        "Time per item",
        "Cost per item",
        "BackendUnavailable",
        "Items that failed",
        "Slowest items",
        "harbours.jsonl",
        "95 % at most",
        "p95",
    ):
        assert words in text


def test_a_page_about_a_call_has_each_iteration_as_a_bar_and_as_a_panel(call_page):
    page = HtmlPage(call_page)
    bars = [link for link in page.links if re.fullmatch(r"#it-\d+", link)]
    assert bars == ["#it-1", "#it-2", "#it-3"]
    assert "h-decided" not in call_page, "no selection decided"
    assert page.tags.count("details") == 3
    for words in (
        "Passed: attempt 3",
        "BackendUnavailable: overloaded",
        "it says a word: it is missing",
        "reply 1",
        "Say a word.",
        "Passed after 3 s.",
    ):
        assert words in page.text


def test_a_draw_on_a_borrowed_turn_says_in_which_row_of_the_chart_it_is():
    trace = trace_of(("failed", 1), ("passed", 1))
    trace["slices"][1]["chain"] = 4
    page = call_report(trace)
    assert page.count("in row 5 of the chart") == 1
    assert 'aria-label="lane 5"' in page


def stopped(reason, detail=""):
    return trace_of(("failed", 1)) | {"stop_reason": reason, "stop_detail": detail}


@pytest.mark.parametrize(
    ("trace", "words"),
    [
        (trace_of(("failed", 1)), "No draw passed in 1 s."),
        (
            trace_of(("passed", 1), ("cancelled", 1)),
            "1 s, and the draws still running were cancelled.",
        ),
        (stopped("exhausted"), "Nothing passed: all attempts were used"),
        (stopped("budget", "3 requests are spent"), "a budget is spent (3 requests are spent)"),
        (stopped("something new"), "Stopped: something new"),
    ],
)
def test_a_page_about_a_call_says_how_it_ended_and_why(trace, words):
    assert words in call_report(trace)


def test_a_repair_shows_what_was_sent_for_it():
    trace = trace_of(("failed", 1), ("passed", 1), best=1)
    trace["prompts"].append([{"role": "user", "content": "Say it again."}])
    trace["slices"][1]["prompt"] = 2
    page = HtmlPage(call_report(trace)).text
    assert page.count("What was sent") == 1
    assert "Say it again." in page


def test_a_conversation_that_goes_on_is_shown_from_the_draw_before():
    trace = trace_of(("failed", 1), ("failed", 1), ("passed", 1), best=2)
    for place, s in enumerate(trace["slices"][1:], 2):
        then = [{"role": "user", "content": f"Again, time {place}."}]
        trace["prompts"].append({"after": place - 1, "then": then})
        s["prompt"] = place
    page = HtmlPage(call_report(trace))
    for place, before in ((2, "attempt 1"), (3, "attempt 2")):
        assert page.text.count(f"Again, time {place}.") == 1
        assert f"Everything that {before}" in " ".join(page.text.split())
    assert [page.links.count(f"#it-{n}") for n in (1, 2, 3)] == [2, 2, 1]


# --- the least there can be -------------------------------------------------------------------


def test_parts_are_placeholders_small_images_are_shown_and_tool_calls_can_be_read():
    trace = trace_of(("failed", 3), ("passed", 5), best=1)
    picture = Image(data=PNG)
    asked = Message(
        "user",
        [
            "What is this?",
            picture,
            Image("https://example.org/a.png"),
            Image(data=PNG + b"x" * 90_000),
            Image(data=b"<svg/>", media_type="image/svg+xml"),
            Audio(b"x" * 5000, "wav"),
        ],
    )
    kept_elsewhere = {"url": {"sha256": "0", "bytes": 5_000_000, "before": "data:image/jpeg;x"}}
    calls = ToolCall("1", "look_up", '{"word": "tree"}'), ToolCall("2", "count", "{}")
    called = Message("assistant", "", tool_calls=calls).as_dict()
    trace["prompts"][1] = [
        asked.as_dict(),
        called,
        {"role": "user", "content": [{"type": "image_url", "image_url": kept_elsewhere}]},
    ]
    trace["slices"][0] |= {"tool_calls": called["tool_calls"], "text": ""}
    trace["slices"][1] |= {"tool_calls": called["tool_calls"], "reasoning": "A tree it is."}
    page = HtmlPage(call_report(trace))
    (shown,) = [link for link in page.links if link.startswith("data:image/png")]
    assert shown == picture.as_dict()["image_url"]["url"]
    assert ("alt", picture.placeholder) in page.attributes
    for words in (
        "[image at https://example.org/a.png]",
        "[image/png, 90 KB]",
        "[image/svg+xml, 6 bytes]",
        "[audio/wav, 5 KB]",
        "[image/jpeg, 5.0 MB]",
        "A tree it is.",
    ):
        assert words in page.text
    # In what was sent, in each reply, and above them as the result.
    both = 'calls look_up({"word": "tree"})\ncalls count({})'
    assert [text.strip() for text in page.pre].count(both) == 4
    # A page about a run has many conversations, and shows no images.
    failed = item(0, {**trace, "success": False})
    about_run = run_report(run_of([failed]), [failed])
    assert "data:image/png" not in about_run
    assert "[image/jpeg, 5.0 MB]" in about_run


def test_a_run_without_items_has_a_page():
    assert "<h1>Harbours</h1>" in run_report(run_of([]), [], "Harbours")
    page = HtmlPage(run_report(run_of([]), [])).text
    assert "Run of 0 items" in page
    assert "No requirement was judged." in page
    assert "No item passed." in page


def test_a_call_without_iterations_or_time_has_a_page():
    empty = trace_of(best=None)
    assert "Sampling 0123456789abcdef" in HtmlPage(call_report(empty)).text
    assert "<title>Harbours &amp; more</title>" in call_report(empty, "Harbours & more")
    trace = trace_of(("passed", 1)) | {"elapsed": 0.0}
    trace["slices"][0] |= {"started_at": 0.0, "ended_at": 0.0}
    HtmlPage(call_report(trace))
    items = [item(0, trace)]
    assert "took at most 0 s" in run_report(run_of(items), items)


def test_each_item_that_failed_opens_to_what_was_asked_what_came_and_what_was_wrong():
    items = [item(0, None)]
    for number in range(1, 10):  # More iterations than there is room for.
        trace = trace_of(*[("failed", 1)] * 60, best=40)
        trace["slices"][40] |= {"text": f"reply {number}"}
        trace["slices"][40]["validations"][0] |= {"reason": f"reason {number}"}
        trace["prompts"] = [[{"role": "user", "content": f"prompt {number}"}]] * 60
        items.append(item(number, trace))
    page = run_report(run_of(items), items)
    opened = page[page.index('id="h-failed"') : page.index('id="h-slowest"')]
    opened = opened.split('<details class="item">')[1:]
    assert len(opened) == 10
    assert '<pre dir="auto">nothing passed</pre>' in opened[0]
    for number, inside in enumerate(opened[1:], 1):
        for said in ("prompt", "reply", "reason"):
            assert f"{said} {number}</pre>" in inside
    assert sum('class="waterfall"' in inside for inside in opened) in range(1, 9)


@pytest.mark.parametrize(
    ("failures", "words"), [(0, "passed with the first draw"), (1, "passed with 2 draws")]
)
def test_an_item_that_passed_says_after_how_many(failures, words):
    items = [item(0, trace_of(*[("failed", 1)] * failures, ("passed", 1), best=failures))]
    page = run_report(run_of(items, prices=None), items)
    assert words in page
    assert "No prices were given to the run." in page


def test_what_was_run_is_written_for_people():
    items = [item(0, trace_of(("passed", 1)), attempts=2)]
    identity = {
        "strategy": {"class": "some.module.MyStrategy", "loop_budget": 3},
        "model": {"provider": "simulated", "model": "tiny"},
        "requirements": [{"description": "one", "validator": "some.check"}, "two"],
        "options": {},
        "format": None,
    }
    page = run_report(run_of(items, identity=identity), items)
    assert "tiny · MyStrategy · started " in page
    assert ">one\ntwo</dd>" in page
    assert ">MyStrategy, loop_budget: 3</dd>" not in page
    assert ">class: MyStrategy, loop_budget: 3</dd>" in page
    assert "<dt>options</dt>" not in page
    assert "<dt>format</dt>" not in page
    assert '<dt>interrupted and restarted</dt><dd dir="auto">1 item</dd>' in page


# --- it stays small ---------------------------------------------------------------------------


def test_a_page_is_below_300_kb_whatever_the_number_of_items_and_the_length_of_texts(some):
    items = many(some, 1000)
    assert len(run_report(run_of(items), items).encode()) < 300_000

    long = [
        {**i, "trace": {**i["trace"], "slices": [{**s, "text": "語" * 9000} for s in slices]}}
        for i in some
        if (slices := i["trace"]["slices"])
    ]
    items = many(long, 1500)
    assert len(run_report(run_of(items), items).encode()) < 300_000


def test_many_requirements_and_errors_are_cut():
    trace = trace_of(("failed", 1))
    (one,) = trace["slices"][0]["validations"]
    checks = [one | {"description": f"check {number:02}"} for number in range(60)]
    trace["slices"][0]["validations"] = checks
    errors = [{"type": f"Error{number:02}", "message": ""} for number in range(60)]
    items = [item(0, trace), *(item(n, None, error) for n, error in enumerate(errors, 1))]
    page = run_report(run_of(items), items)
    assert "Shown are the 25 of 60 that failed most often." in page
    assert len(set(re.findall(r'scope="row">(Error\d\d)', page))) == 15


def test_a_call_with_very_many_iterations_is_cut_and_says_so():
    trace = trace_of(*[("failed", 1)] * 1200)
    for number, slice_ in enumerate(trace["slices"]):
        slice_ |= {"chain": number % 300, "text": "x" * 5000}
    page = call_report(trace)
    assert f"{1200 - FULL.panels} more draws not shown." in page
    assert f"{300 - MOST_ROWS} more lanes not drawn." in page
    assert len(page) < 4_000_000


# --- what is no record ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "damage",
    [
        {"slices": [{}]},
        {"slices": 3},
        {"elapsed": "long"},
        {"best_index": 7},
        {"usage": {"tokens": 3}},
        {"prompts": []},
    ],
)
def test_a_damaged_trace_is_a_value_error(damage):
    reads = (call_report,) if "prompts" in damage else (call_report, call_text)
    for read in reads:  # A text has no prompts.
        with pytest.raises(ValueError, match="this trace of a call is damaged: "):
            read(trace_of(("passed", 1)) | damage)


@pytest.mark.parametrize(
    "read",
    [
        lambda run: run_report(run, []),
        lambda run: run_text(run, []),
        lambda run: comparison_text((run, []), ({}, [{}])),
    ],
    ids=["a page", "a text", "a comparison"],
)
def test_a_damaged_run_is_a_value_error(read):
    with pytest.raises(
        ValueError, match=r"record of a run is damaged: it lacks '(identity|status)'"
    ):
        read({"prices": None})


# --- what a selection decided -------------------------------------------------------------------


def decided(page):
    return page[page.index('id="h-decided"') : page.index('id="h-outcomes"')]


def test_scores_are_bars_the_winner_first_and_marked_with_their_reasons():
    trace = trace_of(("passed", 1), ("failed", 1), ("passed", 1), ("passed", 1), best=2)
    scores, notes = {1: 2.0, 3: 8.0, 4: -2.0}, {3: "it is <b>polite</b>"}
    trace["decision"] = decision(3, scores=scores, notes=notes, abstentions=1)
    shown = decided(call_report(trace))
    rows = re.findall(r'<li class="(\w+)">.*?>Attempt (\d)<.*?<strong>(.*?)</strong>(.*?)<', shown)
    assert rows == [("won", "3", "8", " won"), ("lost", "1", "2", ""), ("lost", "4", "-2", "")]
    bars = re.findall(r'x="([\d.]+)%" width="([\d.]+)%"', shown)
    assert bars == [("20", "80"), ("20", "20"), ("0", "20")]
    assert "Chosen by score · they passed · 1 draw did not pass" in shown
    assert "it is &lt;b&gt;polite&lt;/b&gt;" in shown


def test_votes_are_bars_with_the_winners_share():
    trace = trace_of(("passed", 1), ("passed", 1), ("passed", 1))
    trace["decision"] = decision(
        1, kind="vote", answers=(Answer("7", 2.0, (1, 2)), Answer("8", 1.0, (3,))), share=2 / 3
    )
    shown = decided(call_report(trace))
    rows = re.findall(r'<li class="(\w+)">.*?dir="auto">(.*?)<.*?<strong>(.*?)</strong>', shown)
    assert rows == [("won", "7", "2"), ("lost", "8", "1")]
    assert "Chosen by vote · they passed · 66.7 % of the votes" in shown


def test_what_is_beyond_all_bounds_fills_its_track_and_of_very_many_the_best_are_drawn():
    trace = trace_of(*[("passed", 1)] * 3)
    trace["decision"] = decision(1, scores={1: float("inf"), 2: 4.0, 3: float("-inf")})
    shown = decided(call_report(trace))
    assert re.findall(r'x="(\d+)%" width="(\d+)%"', shown) == [("0", "100"), ("0", "100")]
    assert re.findall("<strong>(.*?)</strong>", shown) == ["inf", "4", "-inf"]

    trace = trace_of(*[("passed", 1)] * 50)
    trace["decision"] = decision(1, scores={n: -float(n) for n in range(1, 51)})
    shown = decided(call_report(trace))
    assert shown.count("<li") == MOST_BARS
    assert "30 more not shown." in shown


def test_all_that_was_collected_has_won():
    trace = trace_of(("passed", 1), ("failed", 1), ("passed", 1), ("passed", 1))
    trace["decision"] = decision(1, 3, kind="collect")
    page = call_report(trace)
    assert re.findall(r'<a class="bar \w+ (\w+)"', page) == ["won", "failed", "won", "passed"]
    assert "Passed: attempt 1; attempt 3" in page
    assert 'class="sign" aria-hidden="true"><rect class="box heard"' in page  # In the legend.
    result = page[page.index('id="h-result"') : page.index('id="h-outcomes"')]
    assert re.findall("<pre.*?>(.*?)</pre>", result) == ["reply 1", "reply 3"]


def test_too_few_that_passed_are_not_nothing():
    trace = trace_of(("passed", 1), ("failed", 1)) | {"success": False, "stop_reason": "exhausted"}
    trace["decision"] = decision(1, kind="collect", complete=False)
    page = call_report(trace)
    assert "Too few passed: all attempts were used" in page
    assert "Too few passed in 2 s." in page
    assert 'id="h-result"' not in page
    assert call_text(trace).splitlines()[:2] == [
        "Too few passed: all attempts were used.",
        "Decided by collect: they passed",
    ]


def test_a_vote_without_a_winner_says_so_and_marks_none():
    answers = (Answer("7", 1.0, (1,)), Answer("8", 1.0, (2,)))
    trace = trace_of(("passed", 1), ("passed", 1)) | {"success": False, "stop_reason": "exhausted"}
    trace["decision"] = decision(kind="vote", answers=answers, share=0.5, complete=False)
    page = call_report(trace)
    assert "No answer won: all attempts were used" in page
    assert "No answer won in 2 s." in page
    assert "2 answers tied for first place" in decided(page)
    assert 'class="won"' not in decided(page)


def test_the_notebook_and_an_items_call_show_it_too():
    trace = trace_of(("passed", 1), ("passed", 1)) | {"success": False}
    trace["decision"] = decision(1, 2, kind="mine", scores={1: 2.0, 2: 1.0}, complete=False)
    items = [item(0, trace)]
    for shown in (cell(trace), run_report(run_of(items), items)):
        assert shown.count('<ul class="decided">') == 1
