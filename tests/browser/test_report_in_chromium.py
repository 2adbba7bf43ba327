"""Reports in a real browser: quiet, readable for everyone, and steered by mouse and keyboard."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from report_kit import NASTY, calls, decision, many, nasty_run, nasty_trace, run_of, trace_of

from mellea_like.report import call_report, comparison_report, run_report
from mellea_like.report.call import cell

pytestmark = pytest.mark.browser

AXE = (Path(__file__).parent / "axe.js").read_text(encoding="utf-8")
ALL_NASTY = "\n".join(NASTY)


@pytest.fixture(scope="module")
def some():
    # Playwright has an event loop of its own in this thread.
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(calls, 200).result()


@pytest.fixture(scope="module")
def trace():
    made = trace_of(
        ("failed", 3), ("errored", 2), ("failed", 4), ("passed", 5), ("cancelled", 1), best=3
    )
    # Three subsamples: 1 and 4; 2 and 5; 3.
    for place, (chain, start, end) in enumerate(
        [(0, 0, 1.5), (1, 0, 1), (2, 0, 2.8), (0, 1.5, 3), (1, 1, 3)]
    ):
        made["slices"][place] |= {"chain": chain, "started_at": start, "ended_at": end}
    return made | {"elapsed": 3.0}


def decided():
    made = trace_of(("passed", 3), ("failed", 2), ("passed", 4), ("passed", 5), best=2)
    for place, slice_ in enumerate(made["slices"]):
        slice_ |= {"chain": place, "started_at": 0.5 * place}
    notes = {1: "curt", 3: "it says please, twice", 4: "w" * 200}
    scores = {1: -1.5, 3: 8.0, 4: 2.0}
    return made | {"decision": decision(3, scores=scores, notes=notes, abstentions=1)}


@pytest.fixture(scope="module")
def pages(some, trace):
    return {
        "run": run_report(run_of(some), some),
        "call": call_report(trace),
        "decided": call_report(decided()),
        "nasty-run": run_report(*nasty_run(ALL_NASTY)),
        "comparison": comparison_report(
            nasty_run(ALL_NASTY), (run_of(some), some), names=(ALL_NASTY, "b.db")
        ),
        "nasty-call": call_report(nasty_trace(ALL_NASTY)),
    }


PAGES = ("run", "call", "decided", "nasty-run", "comparison", "nasty-call")


def open_all(page):
    page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    # The last click opens a panel of a waterfall, too.
    if page.locator("a.bar").count():
        page.locator("a.bar").first.click()


# --- quiet, readable --------------------------------------------------------------------------


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_quiet_and_readable(opened, keep, pages, name):
    page = opened(pages[name])
    colours = []
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        colours.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        keep(page, f"report-{name}-{scheme}")
    assert colours == ["rgb(245, 246, 248)", "rgb(16, 22, 29)"]
    open_all(page)
    axe = page.evaluate_handle(AXE)
    assert axe.evaluate("axe => axe.structure()") == []
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        assert axe.evaluate("axe => axe.lowText()") == []
        assert axe.evaluate("axe => axe.lowSigns()") == []


def test_the_contrast_check_sees_too_little_contrast(opened, pages):
    page = opened(pages["call"])
    page.evaluate("document.querySelector('h1').style.setProperty('color', '#aaa')")
    page.evaluate("document.querySelector('.box').style.setProperty('stroke', '#eee')")
    axe = page.evaluate_handle(AXE)
    assert [low[:4] for low in axe.evaluate("axe => axe.lowText()")] == ["2.15"]
    assert len(axe.evaluate("axe => axe.lowSigns()")) == 1


@pytest.mark.parametrize("name", PAGES)
def test_all_that_can_be_used_or_is_a_picture_has_a_name(opened, pages, name):
    page = opened(pages[name])
    open_all(page)
    session = page.context.new_cdp_session(page)
    nodes = session.send("Accessibility.getFullAXTree")["nodes"]
    need = {"button", "link", "image", "img", "region", "DisclosureTriangle", "table"} - {"table"}
    seen = [node for node in nodes if not node["ignored"] and node["role"]["value"] in need]
    nameless = [node for node in seen if not node.get("name", {}).get("value", "").strip()]
    assert nameless == []
    assert len(seen) > (3 if name == "comparison" else 10)


@pytest.mark.parametrize("name", PAGES)
def test_nothing_needs_scrolling_sideways(opened, keep, pages, name):
    page = opened(pages[name], viewport={"width": 360, "height": 740}, has_touch=True)
    keep(page, f"report-{name}-phone")
    open_all(page)
    wide = """[...document.querySelectorAll('main *')].filter((e) =>
        !(e instanceof SVGElement) && e.getBoundingClientRect().right > innerWidth + 1)
        .map((e) => e.className)"""
    for width in (320, 360, 768):
        page.set_viewport_size({"width": width, "height": 740})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(wide) == []


def test_no_words_of_a_drawing_are_cut_off(opened, some):
    prices = {name: [4e-5, 1.6e-4, "USD"] for name in run_of(some)["prices"]}
    items = many(some, 3_000)  # Long figures at every axis.
    page = opened(run_report(run_of(items) | {"prices": prices}, items))
    cut = """[...document.querySelectorAll(".chart text")].filter((words) => {
        const [inner, outer] = [words, words.ownerSVGElement].map((e) => e.getBoundingClientRect());
        return inner.left < outer.left || inner.right > outer.right
            || inner.top < outer.top || inner.bottom > outer.bottom;
    }).map((words) => words.textContent)"""
    assert page.locator(".chart text").count() > 20
    assert page.evaluate(cut) == []


def test_outcomes_differ_by_more_than_their_colour(opened, trace):
    page = opened(call_report(trace))
    signs = page.locator("a.bar").evaluate_all(
        """(bars) => bars.map((bar) => [
          [...bar.classList].at(-1),
          bar.querySelector(".mark").getAttribute("d"),
          bar.querySelector(".pattern")?.getAttribute("fill") ?? "",
          getComputedStyle(bar.querySelector(".box")).strokeDasharray,
        ])"""
    )
    by_outcome = {outcome: tuple(rest) for outcome, *rest in signs}
    assert set(by_outcome) == {"failed", "errored", "won", "cancelled"}
    marks, rest = zip(*((mark, rest) for mark, *rest in by_outcome.values()), strict=True)
    assert len(set(marks)) == 4
    assert len(set(map(tuple, rest))) == 4


def test_a_winner_differs_from_what_passed_beside_it(opened, pages):
    page = opened(pages["decided"])
    fills = page.locator("a.bar").evaluate_all(
        """(bars) => bars.map((bar) => [
          [...bar.classList].at(-1), getComputedStyle(bar.querySelector(".box")).fill])"""
    )
    by_outcome = dict(fills)
    assert by_outcome["won"] != by_outcome["passed"]
    bars = page.locator(".decided .fill").evaluate_all(
        "(bars) => bars.map((bar) => getComputedStyle(bar).fill)"
    )
    assert bars[0] != bars[1] == bars[2]


@pytest.mark.parametrize("name", ["run", "call"])
def test_signs_have_their_size(opened, pages, name):
    page = opened(pages[name])
    small = """[...document.querySelectorAll(".sign rect")]
        .filter((part) => part.checkVisibility())
        .map((part) => part.getBoundingClientRect())
        .filter((place) => Math.min(place.width, place.height) < 19).length"""
    assert page.locator(".sign").count() > 5
    assert page.evaluate(small) == 0


def test_a_thousand_items_load_at_once(opened, some):
    items = many(some, 1000)
    page = opened(run_report(run_of(items), items))
    timing = page.evaluate("performance.getEntriesByType('navigation')[0].duration")
    assert timing < 3000


# --- mouse and touch --------------------------------------------------------------------------


def bar(page, iteration):
    return page.locator(f'a.bar[href$="-{iteration}"]')


def test_a_click_shows_an_iteration_and_another_click_hides_it(opened, pages, keep):
    page = opened(pages["call"])
    inspector = page.locator(".inspector")
    assert inspector.is_hidden()
    bar(page, 3).click()
    assert "reply 3" in inspector.inner_text()
    assert "it is missing" in inspector.inner_text()
    assert bar(page, 3).get_attribute("aria-expanded") == "true"
    keep(page, "report-call-clicked")
    bar(page, 2).click()
    assert "BackendUnavailable: overloaded" in inspector.inner_text()
    assert bar(page, 3).get_attribute("aria-expanded") == "false"
    bar(page, 2).click()
    assert inspector.is_hidden()


def test_the_button_closes_a_panel_and_goes_back_to_the_bar(opened, pages):
    page = opened(pages["call"])
    bar(page, 3).click()
    page.get_by_role("button", name="Close").click()
    assert page.locator(".inspector").is_hidden()
    assert page.evaluate("document.activeElement.getAttribute('href')") == "#it-3"


def test_touch_shows_an_iteration(opened, pages):
    page = opened(pages["call"], viewport={"width": 360, "height": 740}, has_touch=True)
    bar(page, 3).tap()
    assert "reply 3" in page.locator(".inspector").inner_text()


def test_an_item_opens_and_shows_its_call(opened, pages):
    page = opened(pages["run"])
    first = page.locator("details.item").first
    assert first.locator("a.bar").first.is_hidden()
    first.locator("> summary").click()
    first.locator("a.bar").first.click()
    assert "starts with the word" in first.locator(".inspector").inner_text()


def test_without_scripts_a_bar_leads_to_its_panel(opened, pages):
    page = opened(pages["call"], java_script_enabled=False)
    panel = page.locator("#it-3")
    assert panel.is_hidden()
    bar(page, 3).click()
    panel.wait_for(state="visible")
    assert "reply 3" in panel.inner_text()


# --- the keyboard -----------------------------------------------------------------------------


def focused(page):
    return page.evaluate("document.activeElement.getAttribute('href')")


def test_one_tab_reaches_the_winner_and_its_panel_is_shown(opened, pages):
    page = opened(pages["call"])
    page.keyboard.press("Tab")
    assert focused(page) == "#main"
    assert page.locator(".skip").bounding_box()["x"] >= 0
    page.keyboard.press("Tab")
    assert focused(page) == "#it-4"
    assert "reply 4" in page.locator(".inspector").inner_text()


def test_arrow_keys_go_from_bar_to_bar(opened, pages):
    page = opened(pages["call"])
    bar(page, 4).focus()
    for key, iteration in (
        ("ArrowLeft", 1),
        ("ArrowLeft", 1),
        ("ArrowDown", 2),
        ("ArrowRight", 5),
        ("ArrowRight", 5),
        ("ArrowDown", 3),
        ("ArrowDown", 3),
        ("ArrowUp", 5),
        ("Home", 2),
        ("End", 5),
    ):
        page.keyboard.press(key)
        assert focused(page) == f"#it-{iteration}", key
        header = page.locator(".inspector header").inner_text()
        assert "Attempt " in header


def test_a_waterfall_is_one_stop_of_the_tab_key_and_remembers_where(opened, pages):
    page = opened(pages["call"])
    bar(page, 4).focus()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Escape")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.tagName") == "SUMMARY"
    page.keyboard.press("Shift+Tab")
    assert focused(page) == "#it-1"


@pytest.mark.parametrize("key", ["Enter", "Space"])
def test_enter_and_space_go_into_the_panel_and_escape_comes_back(opened, pages, key):
    page = opened(pages["call"])
    bar(page, 3).focus()
    page.keyboard.press(key)
    assert page.evaluate("document.activeElement.className") == "inspector"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Close"
    page.keyboard.press("Escape")
    assert focused(page) == "#it-3"
    assert page.locator(".inspector").is_hidden()
    page.keyboard.press("Escape")
    assert focused(page) == "#it-3"


def test_each_stop_of_the_tab_key_can_be_seen_and_they_go_down_the_page(opened, pages):
    page = opened(pages["run"], reduced_motion="reduce")
    page.locator("details.item").first.evaluate("(item) => { item.open = true; }")
    tops, seen = [], 0
    while seen < 200:
        page.keyboard.press("Tab")
        state = page.evaluate(
            """(() => {
              const e = document.activeElement;
              if (e === document.body) return null;
              const mark = e.matches("a.bar") ? e.querySelector(".box") : e;
              const style = getComputedStyle(mark);
              const outlined = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0;
              const thick = mark !== e && parseFloat(style.strokeWidth) > 3;
              const shown = outlined || thick || e.className === "skip";
              return { top: e.getBoundingClientRect().top + scrollY, shown };
            })()"""
        )
        if state is None:
            break
        seen += 1
        assert state["shown"]
        tops.append(state["top"])
    assert 10 < seen < 200
    assert tops[1:] == sorted(tops[1:])


# --- paper, motion ----------------------------------------------------------------------------


def test_a_printed_call_has_all_its_replies_on_white(opened, pages, tmp_path):
    page = opened(pages["call"], color_scheme="dark")
    page.emulate_media(media="print")
    assert page.locator("#it-1 pre").first.is_visible()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    ink = page.evaluate("getComputedStyle(document.querySelector('h1')).color")
    assert ink == "rgb(27, 36, 48)"
    paper = page.pdf(path=tmp_path / "report.pdf", format="A4")
    assert paper.startswith(b"%PDF-")


def test_a_browser_that_prints_only_what_is_open_gets_it_opened(opened, pages):
    page = opened(pages["call"])
    page.locator(".panel > summary").first.click()
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator(".panel[open]").count() == page.locator(".panel").count() == 5
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.locator(".panel[open]").count() == 1


def test_nothing_moves_for_those_who_want_no_motion(opened, pages):
    moves = "getComputedStyle(document.querySelector('.bar .box')).transitionDuration"
    assert opened(pages["call"], reduced_motion="no-preference").evaluate(moves) == "0.12s"
    assert opened(pages["call"], reduced_motion="reduce").evaluate(moves) == "0s"


# --- no text does anything --------------------------------------------------------------------


@pytest.mark.timeout(240)  # It opens many pages.
def test_no_text_runs_loads_or_hides_anything(opened):
    page = opened("")
    path = unquote(urlsplit(page.url).path)
    for text in NASTY:
        for html in (call_report(nasty_trace(text)), run_report(*nasty_run(text))):
            Path(path).write_text(html, encoding="utf-8")
            page.reload()
            open_all(page)
            assert page.locator("h1").is_visible()
            assert page.locator("main img").count() == 0
            assert page.locator("script").count() == 1
            # A mark that turns writing would show here what stands after it.
            assert page.locator("footer").inner_text().startswith("Made by mellea-like")


def test_the_reply_is_shown_as_it_is(opened):
    text = "\n\n  <b>first</b>\n\n\n\tlast  \n"
    page = opened(call_report(nasty_trace(text)))
    assert page.locator("#it-1 pre").first.evaluate("(pre) => pre.textContent") == text


# --- notebooks --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scheme", "attributes", "background"),
    [
        ("light", "", "rgb(255, 255, 255)"),
        ("dark", "", "rgb(25, 33, 42)"),
        ("light", 'data-jp-theme-light="false"', "rgb(25, 33, 42)"),
        ("dark", 'data-jp-theme-light="true"', "rgb(255, 255, 255)"),
        ("light", 'class="vscode-dark"', "rgb(25, 33, 42)"),
        ("dark", 'class="vscode-light"', "rgb(255, 255, 255)"),
    ],
)
def test_a_cell_follows_the_notebooks_colours(opened, keep, trace, scheme, attributes, background):
    cells = f"{cell(trace)}<p>plain</p>{cell(trace | {'sampling_id': 'b'})}"
    notebook = (
        f'<!doctype html><html lang="en"><body {attributes}><main>{cells}</main></body></html>'
    )
    page = opened(notebook, color_scheme=scheme)
    colour = "getComputedStyle(document.querySelector('.mlr-cell')).backgroundColor"
    assert page.evaluate(colour) == background
    axe = page.evaluate_handle(AXE)
    assert axe.evaluate("axe => axe.lowSigns()") == []
    page.locator("summary").first.click()
    assert page.locator(".inside").first.is_visible()
    outside = page.locator("main > p").evaluate("(p) => getComputedStyle(p).fontFamily")
    assert "Helvetica" not in outside
    if not attributes:
        keep(page, f"notebook-{scheme}")
