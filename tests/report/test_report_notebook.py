"""The picture of a result in a notebook needs no extra and leaves the rest of the page alone."""

from __future__ import annotations

import re

import pytest
from command_line import python
from html_page import HtmlPage
from report_kit import trace_of

from mellea_like import RejectionSamplingStrategy
from mellea_like.backends import ScriptedBackend
from mellea_like.report.call import ROOM, cell
from mellea_like.requirements.checks import word_count


@pytest.fixture(scope="module")
def result():
    strategy = RejectionSamplingStrategy(ScriptedBackend(["far too long", "short"]), loop_budget=2)
    return strategy.sample_sync("Write a word.", [word_count(at_most=1)])


def test_a_result_shows_its_draws(result):
    page = HtmlPage(result._repr_html_())
    assert "Passed: attempt 2" in page.text
    assert "far too long" in page.text
    assert page.tags.count("details") == 2
    assert page.tags.count("g") == 2


def test_it_has_no_script_and_refers_to_nothing_outside(result):
    page = HtmlPage(result._repr_html_())
    assert page.scripts == []
    assert page.links == []
    assert not {"iframe", "a", "form"} & set(page.tags)


def test_its_style_is_for_itself_only(result):
    (style,) = HtmlPage(result._repr_html_()).styles
    rules = re.sub(r"/\*.*?\*/", "", style, flags=re.DOTALL)
    selectors = [
        selector.strip()
        for group in re.findall(r"([^{}]+)\{", rules)
        for selector in re.split(r",(?![^(]*\))", group.split(";")[-1])
        if not group.strip().startswith("@") and "@" not in group
    ]
    assert selectors
    assert [selector for selector in selectors if ".mlr" not in selector] == []


def test_two_cells_share_no_id():
    first, second = (cell(trace_of(("failed", 1)) | {"sampling_id": i}) for i in ("a", "b"))
    assert not set(HtmlPage(first).ids) & set(HtmlPage(second).ids)


def test_a_long_call_keeps_the_notebook_small():
    trace = trace_of(*[("failed", 1)] * 999, ("passed", 1), best=999)
    for slice_ in trace["slices"]:
        slice_["text"] = "x" * 10_000
    shown = cell(trace)
    assert f"{1000 - ROOM.panels} more draws not shown." in shown
    assert "Passed: attempt 1000" in shown
    assert len(shown) < 700_000


def test_it_needs_no_extra():
    code = """
import sys
sys.modules["jinja2"] = sys.modules["markupsafe"] = None
from mellea_like import RejectionSamplingStrategy
from mellea_like.backends import ScriptedBackend
result = RejectionSamplingStrategy(ScriptedBackend(["a"])).sample_sync("x")
print("mellea_like.report" in sys.modules, len(result._repr_html_()) > 1000)
"""
    done = python(code)
    assert done.stdout == "False True\n", done.stderr
