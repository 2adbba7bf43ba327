"""Applications import only public names of the library."""

from __future__ import annotations

import pytest
import rings


@pytest.fixture(scope="module")
def public():
    return rings.documented()


def test_applications_import_only_public_names_of_the_library():
    assert rings.inner_imports() == []


@pytest.mark.parametrize(
    ("package", "name", "is_public"),
    [
        ("limits", "Budget", True),
        ("limits", "FairQueue", True),
        ("limits", "Entry", False),
        ("checking", "strategy_for_checks", True),
        ("batch", "OpenJournal", False),
    ],
)
def test_a_name_is_public_if_an_api_page_of_its_package_documents_it(
    public, package, name, is_public
):
    assert (name in public[package]) is is_public


def test_an_inner_name_is_found(monkeypatch, public):
    known = {package: set(names) for package, names in public.items()}
    known["pass_rates"] = known["pass_rates"] - {"pass_at_k_interval"}
    monkeypatch.setattr(rings, "documented", lambda: known)
    monkeypatch.setattr("mellea_like.pass_rates.__all__", ())
    assert "pass_rates.pass_at_k_interval" in " ".join(rings.inner_imports())
