"""Names that are imported when they are first used."""

from __future__ import annotations

import pytest

from mellea_like.requirements import checks
from mellea_like.runtime.lazy import lazy_exports

PLACES = {
    "checks": "mellea_like.requirements.checks",
    "watch": "mellea_like.coalescing.rerun.watch",
    "Budget": "mellea_like.limits.budget",
    "Bugdet": "mellea_like.limits.budget",
}


def test_a_name_is_an_attribute_of_its_module_or_the_module_itself():
    attribute, listed = lazy_exports(PLACES, {"__name__": "front"})
    assert attribute("Budget").__name__ == "Budget"
    assert attribute("checks") is checks
    assert callable(attribute("watch"))
    assert listed() == ["Budget", "Bugdet", "__name__", "checks", "watch"]


def test_a_name_that_its_module_lacks_is_an_attribute_error():
    attribute, _ = lazy_exports(PLACES, {"__name__": "front"})
    with pytest.raises(AttributeError, match="Bugdet"):
        attribute("Bugdet")
    with pytest.raises(AttributeError, match="front"):
        attribute("other")
