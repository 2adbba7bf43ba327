"""Applications import only public names of the library, and options don't know each other."""

from __future__ import annotations

import pytest
import rings


def test_applications_import_only_public_names_of_the_library():
    assert rings.inner_imports() == []


@pytest.mark.parametrize(
    ("module", "name", "is_public"),
    [
        ("limits", "Budget", True),
        ("limits.store", "StoreAccount", True),
        ("limits.fair_queue", "FairQueue", False),
        ("requirements.checks", "json_schema", True),
        ("requirements.checks_json", "json_only", False),
        ("checking", "strategy_for_checks", True),
    ],
)
def test_a_name_is_public_if_the_front_door_of_its_package_exports_it(module, name, is_public):
    assert (name in rings.exported(f"mellea_like.{module}")) is is_public


def test_an_inner_name_is_found(monkeypatch):
    monkeypatch.setattr("mellea_like.pass_rates.__all__", ())
    assert "pass_rates.pass_at_k_interval" in " ".join(rings.inner_imports())


def test_an_inner_module_is_found_however_it_is_imported(tmp_path):
    folder = tmp_path / "mellea_like" / "export"
    folder.mkdir(parents=True)
    (folder / "one.py").write_text(
        "import mellea_like.sampling.prepare as inner\n"
        "import mellea_like.backends\n"
        "from mellea_like import errors\n"
        "from mellea_like.sampling import Settings, setup\n",
        encoding="utf-8",
    )
    assert rings.inner_imports(["export"], tmp_path) == [
        "export: mellea_like.sampling.prepare",
        "export: mellea_like.sampling.setup",
    ]


@pytest.mark.parametrize("folder", ["options", "hooks"])
def test_options_import_no_other_option_and_nothing_above_them(folder):
    assert rings.imports_of_options(rings.ROOT / rings.NAME / folder) == []


def test_an_import_between_options_is_found_even_for_type_checkers_alone(tmp_path):
    (tmp_path / "one.py").write_text(
        "from typing import TYPE_CHECKING\n"
        "import mellea_like.options.three\n"
        "from mellea_like.kernel.ports import Option\n"
        "if TYPE_CHECKING:\n"
        "    from mellea_like.options.two import Two\n"
        "    from mellea_like.sampling.base import BaseSamplingStrategy\n",
        encoding="utf-8",
    )
    assert rings.imports_of_options(tmp_path) == [
        "one: options.three",
        "one: options.two.Two",
        "one: sampling.base.BaseSamplingStrategy",
    ]
