"""What users install: the wheel and the source distribution, and the wheel with each extra."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

pytestmark = [pytest.mark.package, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"][
    "optional-dependencies"
]

ONE_DRAW = """
from mellea_like import FunctionBackend, RejectionSamplingStrategy, checks
strategy = RejectionSamplingStrategy(FunctionBackend(lambda action: "{}"))
result = strategy.sample_sync"""

# What a user of each extra does first.
FIRST_USE = {
    "openai": "from mellea_like import OpenAIBackend; OpenAIBackend('m', api_key='k')",
    "pydantic-ai": """
from mellea_like.backends import PydanticAIBackend
from pydantic_ai.models.test import TestModel
PydanticAIBackend(TestModel())""",
    "llama": "from mellea_like.backends import LlamaCppBackend; import xllamacpp, openai",
    "checks": f"{ONE_DRAW}('Answer.', [checks.json_schema({{'type': 'object'}})])",
    "code": "from mellea_like.requirements.code import runs_sql; import sqlglot",
    "cli": "from mellea_like.cli.main import main; assert main(['--version']) == 0",
    "report": f"""
from mellea_like.report import call_report
{ONE_DRAW}('Answer.', [])
assert "</html>" in call_report(result.to_dict())""",
    "arrow": "from mellea_like.batch.rows.parquet import *; import pyarrow",
    "agreement": "from mellea_like.agreement import Decisions; Decisions(3, 1, 1, 3).kappa",
    "dedupe": "import mellea_like.batch.minhash",
    "ray": "from mellea_like.batch.ray import *; import ray.data",
    "serve": "import mellea_like.gateway.http.app, mellea_like.gateway.config.config_file",
    "mcp": "import mellea_like.backends.mcp",
    "watch": "import mellea_like.coalescing.rerun.watch, watchfiles",
    "anthropic": "from mellea_like.backends import AnthropicBatches",
    "mistral": "from mellea_like.backends import MistralBatches",
    "otel": "import opentelemetry.sdk.trace, opentelemetry.exporter.otlp.proto.http",
    "testing": "from mellea_like.testing import check_backend",
    "all": "import mellea_like; [getattr(mellea_like, name) for name in mellea_like.__all__]",
}


def run(*command: object, cwd: Path | None = None, compiled: Path | None = None) -> str:
    alone = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    if compiled is not None:
        alone["PYTHONPYCACHEPREFIX"] = str(compiled)
    words = [str(word) for word in command]
    done = subprocess.run(words, check=False, capture_output=True, text=True, cwd=cwd, env=alone)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def uv(*arguments: object) -> str:
    return run(sys.executable, "-m", "uv", "--quiet", *arguments)


@pytest.fixture(scope="session")
def built(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    uv("build", "--out-dir", folder, ROOT)  # The wheel from the source distribution.
    return folder


@pytest.fixture(scope="session")
def wheel(built) -> Path:
    (found,) = built.glob("*.whl")
    return found


def installed(wheel: Path, extra: str, home: Path) -> Path:
    """The interpreter of a new environment that has the wheel and nothing else."""
    uv("venv", "--clear", "--python", sys.executable, home)
    python = home / "bin" / "python"
    uv("pip", "install", "--python", python, f"{wheel}{extra}")
    return python


def test_a_package_index_would_take_both(built):
    files = [path for path in built.iterdir() if path.suffix in {".whl", ".gz"}]
    assert len(files) == 2
    run(sys.executable, "-m", "twine", "check", "--strict", *files)


def test_the_wheel_has_each_file_of_the_package_and_no_other(wheel):
    ours = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "mellea_like").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert names == ours
    assert "mellea_like/py.typed" in names


def test_the_page_of_a_package_index_has_no_link_that_leads_nowhere(wheel):
    archive = zipfile.ZipFile(wheel)
    (name,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
    metadata = archive.read(name).decode()
    links = re.findall(r"\]\(([^)]+)\)", metadata)
    assert len(links) > 20
    assert not [link for link in links if not link.startswith(("https://", "#"))]
    for label in ("Documentation", "Source", "Issues", "Changelog"):
        assert f"Project-URL: {label}, https://" in metadata


def test_each_extra_has_a_first_use():
    assert set(FIRST_USE) == set(EXTRAS)


@pytest.fixture(scope="session")
def home(tmp_path_factory) -> Path:
    """The directory in which each new environment replaces the last one.

    Python finds compiled modules by the path of their source, so a module that several extras
    install is compiled only once.
    """
    return tmp_path_factory.mktemp("environment") / "env"


@pytest.mark.parametrize("extra", ["", *FIRST_USE])
def test_a_new_environment_with_an_extra(wheel, extra, home, tmp_path):
    python = installed(wheel, f"[{extra}]" if extra else "", home)
    code = FIRST_USE.get(extra, "import mellea_like; mellea_like.RejectionSamplingStrategy")
    run(python, "-W", "error::SyntaxWarning", "-c", code, cwd=tmp_path, compiled=home.parent)
    if extra in {"cli", "all"}:
        command = home / "bin" / "mellea-like"
        options = ("--backend", "markov", "--attempts", 50, "--check", "words<=30")
        said = run(command, "sample", "Write a sentence about strings.", *options, cwd=tmp_path)
        assert 0 < len(said.split()) <= 30


# --- licences -----------------------------------------------------------------------------------

FREE = re.compile(
    r"MIT|BSD|Apache|ISC|PSF|Python Software Foundation|Mozilla|MPL|Unlicense|Zlib|CC0",
    re.IGNORECASE,
)
COPYLEFT = re.compile(r"\b(A|L)?GPL|Affero|General Public", re.IGNORECASE)
PAGE = ROOT / "docs" / "licences.md"


def direct() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    wanted = [*project["dependencies"], *(line for lines in EXTRAS.values() for line in lines)]
    names = {re.split(r"[\[<>=;! ]", line)[0].lower() for line in wanted}
    return names - {"mellea-like"}


def licence_of(row: dict[str, str]) -> str:
    """Return the licence in the metadata, or the first words of the licence's text."""
    if row["License"] != "UNKNOWN":
        return row["License"]
    return " ".join(row["LicenseText"].split()[:4]).rstrip(",")


def test_licences_of_what_is_installed_are_permissive_and_listed(wheel, home):
    python = installed(wheel, "[all,ray]", home)
    columns = ("--format=json", "--from=mixed", "--with-license-file")
    listing = run(sys.executable, "-m", "piplicenses", "--python", python, *columns)
    licences = {
        row["Name"].lower().replace("_", "-"): licence_of(row) for row in json.loads(listing)
    }
    licences.pop("mellea-like")
    strange = {
        name: licence
        for name, licence in licences.items()
        if not FREE.search(licence) or COPYLEFT.search(licence)
    }
    assert not strange
    if os.environ.get("LICENCES_WRITE"):
        rows = "".join(f"| {name} | {licences[name]} |\n" for name in sorted(direct()))
        head = PAGE.read_text("utf-8").split("| package |")[0]
        PAGE.write_text(f"{head}| package | licence |\n|---|---|\n{rows}", "utf-8")
    listed = re.findall(r"^\| ([a-z0-9-]+) \|", PAGE.read_text("utf-8"), re.MULTILINE)
    assert set(listed) - {"package"} == direct()
