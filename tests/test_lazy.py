"""Names that are imported when they are first used."""

from __future__ import annotations

import pytest

from mellea_like import limits
from mellea_like.lazy import lazy_exports, needs_extra
from mellea_like.requirements import checks

PLACES = {
    "mellea_like": "limits",
    "mellea_like.requirements": "checks",
    "mellea_like.coalescing.rerun.watch": "watch",
    "mellea_like.limits.budget": "Budget Bugdet",
}


def test_a_name_is_an_attribute_of_its_module_or_a_submodule():
    attribute, listed = lazy_exports({"__name__": "mellea_like"}, PLACES)
    assert attribute("Budget").__name__ == "Budget"
    assert attribute("checks") is checks
    assert attribute("limits") is limits
    assert callable(attribute("watch"))
    assert listed() == ["Budget", "Bugdet", "__name__", "checks", "limits", "watch"]


def test_helpers_that_the_package_imports_are_not_listed():
    names = {"__name__": "front", "__all__": ["Text"], "Text": str, "lazy_exports": lazy_exports}
    _, listed = lazy_exports(names, PLACES)
    assert "Text" in listed()
    assert "lazy_exports" not in listed()


def test_a_name_that_its_module_lacks_is_an_error():
    attribute, _ = lazy_exports({"__name__": "front"}, PLACES)
    with pytest.raises(ImportError, match="Bugdet"):
        attribute("Bugdet")
    with pytest.raises(AttributeError, match="front"):
        attribute("other")


def test_a_name_that_moved_says_where_it_is_and_is_not_listed():
    attribute, listed = lazy_exports({"__name__": "front"}, PLACES, {"mellea_like.batch": "Gone"})
    with pytest.raises(ImportError, match=r"Gone is in mellea_like.batch now"):
        attribute("Gone")
    assert "Gone" not in listed()


def test_a_failed_import_names_the_extra_and_keeps_the_library_s_own_error_as_its_cause():
    own = ImportError("libssl.so.3: cannot open shared object file")
    with pytest.raises(ImportError) as raised, needs_extra("report", "a page needs jinja2"):
        raise own
    assert str(raised.value) == "a page needs jinja2: pip install 'mellea-like[report]'"
    assert raised.value.__cause__ is own
