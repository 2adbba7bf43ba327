"""The public names: few, documented, and visible to people and tools."""

from __future__ import annotations

import ast
import inspect
import re
from importlib import import_module
from importlib.metadata import version
from inspect import ismodule
from pathlib import Path
from pkgutil import iter_modules
from typing import get_origin

import pytest

import mellea_like

PACKAGE = Path(mellea_like.__file__).parent
FRONT_DOORS = [
    "",
    ".agent",
    ".agreement",
    ".backends",
    ".batch",
    ".batch.ray",
    ".coalescing",
    ".core",
    ".errors",
    ".estimate",
    ".export",
    ".gateway",
    ".hooks",
    ".limits",
    ".report",
    ".requirements",
    ".requirements.code",
    ".rewards",
    ".sampling",
    ".schedules",
    ".selections",
    ".scoring",
    ".telemetry",
    ".testing",
    ".web",
]
OF_PROTOCOLS = {"acquire", "generate", "stream"}
"""What `Backend`, `StreamingBackend` and `Limit` document, for all that have it."""

MODULES = [f"mellea_like{name}" for name in FRONT_DOORS]


def public() -> list[tuple[str, str]]:
    return [
        (module, name)
        for module in MODULES
        for name in getattr(import_module(module), "__all__", ())
    ]


def statically_bound(module: str) -> set[str]:
    """Return the names that a type checker or an editor sees at a module's top level."""
    source = Path(str(import_module(module).__file__)).read_text(encoding="utf-8")
    names: set[str] = set()
    statements = list(ast.parse(source).body)
    for statement in statements:
        if isinstance(statement, ast.If | ast.Try):
            statements += statement.body
        elif isinstance(statement, ast.ImportFrom | ast.Import):
            names |= {alias.asname or alias.name for alias in statement.names}
        elif isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(statement.name)
        elif isinstance(statement, ast.Assign):
            names |= {target.id for target in statement.targets if isinstance(target, ast.Name)}
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            names.add(statement.target.id)
    return names


def parameters_of(thing: object) -> list[str]:
    function = thing.__init__ if isinstance(thing, type) else thing
    try:
        names = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return []
    return [name for name in names if name not in {"self", "args", "kwargs"}]


def test_at_most_40_names_at_the_front_door():
    assert len(mellea_like.__all__) <= 40
    assert len(set(mellea_like.__all__)) == len(mellea_like.__all__)


MOVED = {
    "Action": "core",
    "Blocked": "errors",
    "ChatDispatcher": "coalescing",
    "Plugin": "hooks",
    "RateLimiter": "limits",
    "Telemetry": "telemetry",
    "Tournament": "selections",
    "Usage": "core",
    "current_iteration": "core",
}


@pytest.mark.parametrize(("name", "package"), MOVED.items())
def test_a_name_that_moved_says_where_it_is(name, package):
    place = f"mellea_like.{package}"
    with pytest.raises(ImportError) as caught:
        getattr(mellea_like, name)
    assert str(caught.value) == f"{name} is in {place} now: from {place} import {name}"
    with pytest.raises(ImportError, match="is in"):
        exec(f"from mellea_like import {name}")
    assert name in import_module(place).__all__


FUNCTIONS = {
    "": "check check_sync checks judge_score requirement sample_many",
    ".agent": "run_agent run_agent_sync",
    ".agreement": "agreement comparison_agreement score_agreement",
    ".backends": "azure_client refuses split_url",
    ".batch": "check_many read_items read_run sample_in_processes sample_many",
    ".batch.ray": "local_cluster sample_dataset",
    ".coalescing": "joined watch",
    ".core": "current_iteration",
    ".estimate": ("coverage_curve pass_at_k pass_at_k_interval pass_hat_k pass_rate_interval plan"),
    ".export": "export",
    ".gateway": "make_app read_config",
    ".hooks": "hook register unregister",
    ".limits": "gate_of reserve_round within_budgets",
    ".rewards": "reward",
    ".telemetry": "session",
    ".report": (
        "call_report call_text compare comparison_report comparison_text figures_of run_report"
        " run_text"
    ),
    ".requirements": "is_code_check parse_check",
    ".requirements.code": ("agrees_with fenced parses passes_tests prints returns runs runs_sql"),
    ".sampling": "check_together features_of why_not_together",
    ".schedules": "parse_schedule",
    ".selections": "majority_confidence tool_key word_overlap",
    ".scoring": "judge_score",
    ".testing": "check_backend run_virtual",
    ".web": "while_here",
}
"""A helper becomes public only if it is added here, not because its module exports it."""


@pytest.mark.parametrize("door", FRONT_DOORS)
def test_no_helper_is_public_by_accident(door):
    exports = getattr(import_module(f"mellea_like{door}"), "__all__", ())
    functions = {name for name in exports if name[0].islower()}
    assert functions == set(FUNCTIONS.get(door, "").split())


API_PAGES = sorted((PACKAGE.parent / "docs" / "api").glob("*.md"))
ONLY_ON_PAGES = """
    as_action can_coalesce cost cost_of demand draw
    estimate_input_tokens from_dict gives_itself_away listen logger
    parse_reply passes price_for problems relaxed_gc scoring serve
    slice_to_dict strategy_for_checks texts_only to_dict why_incomplete
"""
"""Names that are imported from the module of their API page."""


def test_an_api_page_shows_no_helper():
    public_names = {name for _, name in public()} | set(mellea_like.checks.__all__)
    shown = set()
    for page in API_PAGES:
        text = page.read_text(encoding="utf-8")
        for module, options in re.findall(r"automodule:: (\S+)\n((?:   :.*\n)*)", text):
            # autodoc ignores a list of members, because docs/conf.py asks for all of them.
            assert ":members:" not in options, page
            exports = getattr(import_module(module), "__all__", ())
            hidden = re.findall(r"\w+", options)
            shown |= {n for n in exports if n[0].islower() and n not in hidden}
    assert shown - public_names == set(ONLY_ON_PAGES.split())


def test_each_exported_class_and_function_is_on_an_api_page():
    text = "\n".join(page.read_text(encoding="utf-8") for page in API_PAGES)
    shown = set(re.findall(r":: (mellea_like\S+)\n(?!   :no-members:)", text))
    missing = []
    for module, name in public():
        thing = getattr(import_module(module), name)
        if isinstance(thing, type) or inspect.isfunction(thing):
            home = thing.__module__
            if home.startswith("mellea_like") and not shown & {module, home, f"{home}.{name}"}:
                missing.append(f"{home}.{name}")
    assert not missing


def test_the_version_is_that_of_the_distribution():
    assert mellea_like.__version__ == version("mellea-like")


def test_each_export_exists_and_has_a_docstring_of_its_own():
    silent = []
    for module, name in public():
        thing = getattr(import_module(module), name)
        if isinstance(thing, type) or (callable(thing) and get_origin(thing) is None):
            doc = vars(thing).get("__doc__") if isinstance(thing, type) else thing.__doc__
            if not (doc or "").strip():
                silent.append(f"{module}.{name}")
    assert not silent


@pytest.mark.parametrize("module", MODULES)
def test_exports_are_visible_to_static_tools_and_to_dir(module):
    exports = set(getattr(import_module(module), "__all__", ()))
    assert exports <= statically_bound(module)
    assert exports <= set(dir(import_module(module)))


@pytest.mark.parametrize("door", FRONT_DOORS)
def test_no_module_hides_an_export_of_its_package(door):
    """Importing a submodule sets its package's attribute of that name to the module."""
    package = import_module(f"mellea_like{door}")
    modules = {each.name for each in iter_modules(getattr(package, "__path__", ()))}
    both = modules & set(getattr(package, "__all__", ()))
    assert all(ismodule(getattr(package, name)) for name in both), both


@pytest.mark.parametrize("module", MODULES)
def test_docstrings_of_public_functions_say_what_goes_in_and_comes_out(module):
    for name in getattr(import_module(module), "__all__", ()):
        check_docstrings(getattr(import_module(module), name))


def check_docstrings(thing):
    functions = [thing] if inspect.isfunction(thing) else []
    if isinstance(thing, type):
        functions = [
            member
            for attribute, member in vars(thing).items()
            if inspect.isfunction(member) and not attribute.startswith("_")
        ]
    for function in functions:
        doc = inspect.getdoc(function) or ""
        parameters = parameters_of(function)
        # A method may leave it to what it is like, or say it all in its prose.
        brief = function.__name__ in OF_PROTOCOLS or "see `" in doc or len(parameters) <= 2
        if isinstance(thing, type) and brief and not re.search(r"^Args:$", doc, re.MULTILINE):
            continue
        missing = [
            parameter
            for parameter in parameters
            if not re.search(rf"^ +\*{{0,2}}{parameter}: ", doc, re.MULTILINE)
        ]
        assert not missing, f"{function.__qualname__} does not document {missing}"
        result = function.__annotations__.get("return")
        if result not in {None, "None", "Self", "NoReturn"} and not doc.startswith("Return "):
            assert re.search(r"^(Returns|Yields):$", doc, re.MULTILINE), function.__qualname__


def test_every_module_says_what_it_is():
    silent = [
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert not silent


@pytest.mark.parametrize(
    ("module", "name", "argument", "warning"),
    [
        ("", "BaseSamplingStrategy", "concurrency_budget", "more is spent"),
        ("", "BaseSamplingStrategy", "concurrency_budget", "rate limit"),
        (".hooks", "Payload", "iteration", "aren't monotonic in time"),
    ],
)
def test_what_surprises_stands_where_the_argument_is_explained(module, name, argument, warning):
    docstring = inspect.getdoc(getattr(import_module(f"mellea_like{module}"), name))
    said = re.search(rf"^    {argument}: (.*(?:\n {{5,}}.*)*)", docstring, re.MULTILINE)
    assert warning in " ".join(said[1].split())
