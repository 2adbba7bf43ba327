"""The project's tasks, by name: ``nox -s tests``, ``nox -s lint`` and so on.

The sessions share one virtual environment, ``.nox/dev``, so that the package and its extras are
installed once; other libraries (``clients``, ``peers``, ``trainers``) have their own. Each session
adds the dependency group of the same name and skips what is installed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import venv
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path

import nox
from nox.command import CommandFailed

nox.needs_version = ">=2025.2"
nox.options.sessions = ["tests", "lint", "typing", "docs", "examples"]
nox.options.default_venv_backend = "none"

ROOT = Path(__file__).parent
APART = ("storm", "kill", "ray", "browser", "clients", "package", "trainers")
"""Marks of tests with a session of their own: ``nox -s tests`` leaves them out."""
CLIENTS = ROOT / "tests" / "clients"
HTML = ROOT / "docs" / "_build" / "html"
BUILD_DOCS = (
    *("python", "-m", "sphinx", "--builder=html", "--fail-on-warning", "--keep-going"),
    *("--nitpicky", "--quiet", ROOT / "docs", HTML),
)
NOT_APART = f"not ({' or '.join(APART)})"


class Environment:
    """The shared virtual environment, with a session's dependency group installed.

    Args:
        session: the session that needs it.
        group: the dependency group to install, as named in ``pyproject.toml``.
        apart: whether it is an environment of the group's own, without this project.
    """

    def __init__(self, session: nox.Session, group: str, *, apart: bool = False) -> None:
        self.session = session
        environments = Path(session.cache_dir).absolute().parent
        self.shared = environments / "dev"
        self.home = environments / group if apart else self.shared
        self.project = () if apart else ("--editable", ".")
        self.bin = self.home / ("Scripts" if os.name == "nt" else "bin")
        project = (ROOT / "pyproject.toml").read_bytes()
        digest = hashlib.sha256(f"{sys.version} {ROOT}".encode() + project).hexdigest()
        stamp = self.home / f"installed-{group}"
        if not (stamp.exists() and stamp.read_text(encoding="ascii") == digest):
            self._install(group)
            stamp.write_text(digest, encoding="ascii")
        session.env["VIRTUAL_ENV"] = str(self.home)
        session.env["PATH"] = f"{self.bin}{os.pathsep}{os.environ['PATH']}"
        # Hundreds of processes start here: each would compile all that it imports.
        session.env["PYTHONDONTWRITEBYTECODE"] = ""

    def _install(self, group: str) -> None:
        self._make(self.shared, with_installers=True)
        self._make(self.home, with_installers=False)
        self.install(*self.project, "--group", group)

    def install(self, *what: str) -> None:
        """Install packages, with the installers of the shared environment.

        Args:
            *what: what ``pip install`` is told to install.
        """
        python, installers = self.bin / "python", self.shared / self.bin.name
        install = ("install", "--quiet", *what)
        try:
            self.run(installers / "uv", "pip", *install, "--python", python)
        except CommandFailed:  # It knows nothing of an index that pip is configured for.
            self.run(installers / "python", "-m", "pip", "--python", python, *install)

    def _make(self, home: Path, *, with_installers: bool) -> None:
        """Make an environment, unless there is one."""
        made_by = home / "made-by"
        if made_by.exists() and made_by.read_text(encoding="utf-8") == sys.version:
            return
        self.session.log(f"Making the virtual environment {home}")
        venv.create(home, clear=True, with_pip=with_installers)
        if with_installers:
            # The first pip that knows dependency groups, and what needs a fifth of its time.
            installers = ("pip>=25.1", "uv>=0.8")
            install = ("-m", "pip", "install", "--quiet", "--upgrade", *installers)
            self.run(home / self.bin.name / "python", *install)
        made_by.write_text(sys.version, encoding="utf-8")

    def run(self, tool: str | Path, *arguments: str | Path) -> None:
        """Run a program of the environment; the session fails if the program does.

        Args:
            tool: the program's name, or its path in another environment.
            *arguments: what to pass to it.
        """
        program = shutil.which(tool, path=self.bin)
        if program is None:
            self.session.error(f"{tool} is not in {self.bin}: remove {self.home} and try again")
        self.session.run(program, *map(str, arguments), external=True)

    def run_beside(self, *commands: tuple[str, *tuple[str | Path, ...]]) -> None:
        """Run several programs at a time, one on each core; the session fails if one of them does.

        Args:
            *commands: each program's name and what to pass to it.
        """
        variables = {name: value for name, value in self.session.env.items() if value is not None}

        def run(command: tuple[str, *tuple[str | Path, ...]]) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                [shutil.which(command[0], path=self.bin) or command[0], *command[1:]],
                env=os.environ | variables,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
            )

        failed = []
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for command, ran in zip(commands, pool.map(run, commands), strict=True):
                self.session.log(" ".join(map(str, command)))
                sys.stdout.write(ran.stdout)
                if ran.returncode:
                    failed.append(str(command[0]))
        if failed:
            self.session.error(f"{' and '.join(failed)} failed")


@nox.session
def environment(session: nox.Session) -> None:
    """Install what all of CI's sessions share, so that they can then run side by side."""
    for group in ("test", "ray", "lint", "docs", "typing", "data", "package", "browser"):
        Environment(session, group)


@nox.session
def tests(session: nox.Session) -> None:
    """Run the tests; arguments after ``--`` go to pytest instead."""
    environment = Environment(session, "test")
    if session.posargs:
        environment.run("pytest", *session.posargs)
        return
    # A worker keeps to its files, so that their fixtures are made once.
    many = ("--numprocesses=auto", "--dist=worksteal")
    environment.run("pytest", *many, "-m", f"not alone and {NOT_APART}")
    environment.run("pytest", "-m", f"alone and {NOT_APART}")


@nox.session
def coverage(session: nox.Session) -> None:
    """Run the same tests, which takes twice as long, and report branch coverage."""
    environment = Environment(session, "test")
    quiet = ("--cov-report=", "--cov-fail-under=0")
    many = ("--numprocesses=auto", "-m", f"not alone and {NOT_APART}")
    environment.run("pytest", *many, "--cov", *quiet)
    alone = ("-m", f"alone and {NOT_APART}", "--cov-report=term")
    environment.run("pytest", "--cov", "--cov-append", *alone)


@nox.session
def mutants(session: nox.Session) -> None:
    """Break the package at random places: do the tests notice? CI leaves it out.

    Arguments after ``--`` go to ``tools/mutants.py``. Which tests cover a line is measured once:
    remove ``.nox/contexts`` after a change to the package or the tests.
    """
    environment = Environment(session, "test")
    contexts = environment.home.parent / "contexts"
    if not contexts.exists():
        session.env["COVERAGE_FILE"] = str(contexts)
        quiet = ("--cov", "--cov-context=test", "--cov-report=", "--cov-fail-under=0")
        environment.run("pytest", "--numprocesses=auto", "-m", NOT_APART, *quiet)
    environment.run("python", "tools/mutants.py", "--contexts", contexts, *session.posargs)


@nox.session
def lowest(session: nox.Session) -> None:
    """Run the tests with the oldest libraries that the project allows; CI leaves it out."""
    environment = Environment(session, "lowest", apart=True)
    described = nox.project.load_toml("pyproject.toml")
    extras = {**described["project"]["optional-dependencies"], "ray": []}
    wanted = [*described["project"]["dependencies"], *chain(*extras.values())]
    wanted += nox.project.dependency_groups(described, "test")
    # Otherwise uv would take an extra's libraries for indirect ones, and the latest of them.
    named = [one for one in wanted if not one.startswith("mellea-like")]
    environment.install("--resolution=lowest-direct", "--editable", ".", *named)
    # Only tests need these: old blockbusters take minutes, and old test clients need httpx.
    environment.install("--upgrade", "blockbuster", "httpx")
    # The table of a request's fields is compared with those of the newest SDK.
    newest = f"--ignore={ROOT / 'tests' / 'gateway' / 'test_fields.py'}"
    chosen = session.posargs or ["-m", f"not alone and {NOT_APART}", newest]
    environment.run("pytest", "--numprocesses=auto", "--dist=worksteal", *chosen)


@nox.session
def storm(session: nox.Session) -> None:
    """Run what takes minutes: many calls, limits and cancellations, and load; under 5 minutes.

    The examples are the same each time; with ``STORM=new`` in the environment they are new.
    """
    environment = Environment(session, "test")
    # Many more random examples, cancellations and limits than the tests make up; thousands of calls
    # at once, and what they leave behind; and some tests on the event loop that they left out.
    session.env["STORM"] = os.environ.get("STORM") or "1"
    wanted = ("-m", "(hypothesis or steps or storm) and not (alone or kill)", "--durations=10")
    environment.run("pytest", "--numprocesses=auto", "--dist=loadgroup", *wanted)


@nox.session
def kill(session: nox.Session) -> None:
    """Kill batch runs at random moments, a hundred times, and see that nothing is lost."""
    environment = Environment(session, "test")
    # A long test that waits behind another goes to whichever process is free.
    side_by_side = ("--numprocesses=auto", "--dist=worksteal", "-m", "kill", "--durations=5")
    environment.run("pytest", *side_by_side, ROOT / "tests" / "kill")


@nox.session
def ray(session: nox.Session) -> None:
    """Run batches on a real Ray cluster of two nodes, in its own network namespace."""
    environment = Environment(session, "ray")
    environment.run("pytest", "-m", "ray", "--durations=5", ROOT / "tests" / "ray")


@nox.session
def trainers(session: nox.Session) -> None:
    """Train a tiny model with rewards, in TRL, and score tasks of verifiers; CI leaves it out.

    It installs PyTorch, some gigabytes on a machine with a GPU.
    """
    environment = Environment(session, "trainers", apart=True)
    environment.install("--editable", ".")
    session.env["HF_HUB_OFFLINE"] = "1"
    environment.run("pytest", "-m", "trainers", ROOT / "tests" / "trainers")


@nox.session
def data(session: nox.Session) -> None:
    """Read exports and runs with the libraries of those who train and analyse."""
    environment = Environment(session, "data")
    session.env["JSON_SCHEMA_SUITE"] = str(_json_schema_suite(environment) / "json")
    checks = ROOT / "tests" / "requirements"
    suites = checks / "test_code_human_eval.py", checks / "test_json_schema_suite.py"
    environment.run("pytest", ROOT / "tests" / "export" / "test_run_as_table.py", *suites)


def _json_schema_suite(environment: Environment) -> Path:
    """Fetch jsonschema's source distribution, which has the JSON-Schema-Test-Suite in it."""
    home = environment.home.parent / "jsonschema-source"
    if not home.exists():
        only_it = ("--no-deps", "--no-binary", "jsonschema", "--dest", home.with_suffix(".part"))
        environment.run("python", "-m", "pip", "download", "--quiet", *only_it, "jsonschema>=4.26")
        [source] = home.with_suffix(".part").glob("jsonschema-*.tar.gz")
        with tarfile.open(source) as archive:
            archive.extractall(home.with_suffix(".part"), filter="data")
        (home.with_suffix(".part") / source.name.removesuffix(".tar.gz")).rename(home)
        shutil.rmtree(home.with_suffix(".part"))
    return home


@nox.session
def browser(session: nox.Session) -> None:
    """Open reports and the docs in a real Chromium; screenshots go to ``.nox/artifacts``."""
    environment = Environment(session, "browser")
    if not _is_site_current():
        # An incremental build would lose the index entries of the pages that it leaves alone.
        shutil.rmtree(HTML, ignore_errors=True)
        Environment(session, "docs").run(*BUILD_DOCS)
    environment.run("python", ROOT / "tools" / "ensure_chromium.py")
    session.env["SITE"] = str(HTML)
    session.env["ARTIFACTS"] = str(Path(session.cache_dir).absolute().parent / "artifacts")
    side_by_side = ("--numprocesses=2", "--dist=loadgroup", "-m", "browser", "--durations=5")
    environment.run("pytest", *side_by_side, ROOT / "tests" / "browser")


def _is_site_current() -> bool:
    """Return whether the docs were built after the last change to them or to the package."""
    built = HTML / "searchindex.js"
    docs = (path for path in (ROOT / "docs").rglob("*") if "_build" not in path.parts)
    sources = (*docs, *(ROOT / "mellea_like").rglob("*.py"))
    return built.exists() and all(
        path.stat().st_mtime <= built.stat().st_mtime for path in sources if path.is_file()
    )


@nox.session
def clients(session: nox.Session) -> None:
    """Run clients of OpenAI's against a gateway; ``-- --write`` renews the table in the docs."""
    theirs = Environment(session, "clients", apart=True)
    # It wants an older client of OpenAI's than the others do.
    llama_index = Environment(session, "clients-llama-index", apart=True)
    environment = Environment(session, "test")
    session.env["CLIENTS_PYTHON"] = str(theirs.bin / "python")
    session.env["CLIENTS_LLAMA_INDEX_PYTHON"] = str(llama_index.bin / "python")
    modules = _node_modules(session, theirs.home)
    if modules is not None:
        session.env["CLIENTS_NODE_MODULES"] = str(modules)
    if "--write" in session.posargs:
        session.env["CLIENTS_WRITE"] = "1"
    environment.run("pytest", "-m", "clients", "--durations=3", CLIENTS)


def _node_modules(session: nox.Session, home: Path) -> Path | None:
    """Install the clients for Node.js; None where there is no Node.js."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        session.warn("There is no Node.js with npm here: the clients for it are left out")
        return None
    wanted, installed = (CLIENTS / "package.json").read_bytes(), home / "installed-node"
    if not (installed.exists() and installed.read_bytes() == wanted):
        shutil.copy(CLIENTS / "package.json", home)
        options = ("--no-audit", "--no-fund", "--no-package-lock", "--loglevel=error")
        session.run(npm, "install", *options, "--prefix", str(home), external=True)
        installed.write_bytes(wanted)
    return home / "node_modules"


@nox.session
def package(session: nox.Session) -> None:
    """Build what is published, and install it with each extra into environments of its own."""
    environment = Environment(session, "package")
    side_by_side = ("--numprocesses=2", "-m", "package", "--durations=3")
    environment.run("pytest", *side_by_side, ROOT / "tests" / "package")


@nox.session
def lint(session: nox.Session) -> None:
    """Check style, docstrings, the direction of imports, import circles and habits of English."""
    environment = Environment(session, "lint")
    environment.run("ruff", "check", ".")
    environment.run("ruff", "format", "--check", ".")
    environment.run("lint-imports", "--no-logo")
    environment.run("python", "tools/check_raises.py", "mellea_like")
    environment.run("python", "tools/house.py", "--check")
    environment.run("python", "tools/rings.py", "--check")
    environment.run("python", "tools/prose.py", "--check")


@nox.session
def typing(session: nox.Session) -> None:
    """Check types with mypy and pyright, both strict, and the types of the public API."""
    environment = Environment(session, "typing")
    environment.run_beside(*_type_checks(environment))


@nox.session
def docs(session: nox.Session) -> None:
    """Build the documentation; a warning is an error."""
    environment = Environment(session, "docs")
    environment.run(*BUILD_DOCS)
    session.log(f"Open {HTML / 'index.html'}")


@nox.session
def typing_and_docs(session: nox.Session) -> None:
    """Do both side by side, for each checker and the builder take one core."""
    Environment(session, "docs")
    environment = Environment(session, "typing")
    environment.run_beside(BUILD_DOCS, *_type_checks(environment))


def _type_checks(environment: Environment) -> tuple[tuple[str, *tuple[str | Path, ...]], ...]:
    python = environment.bin / "python"
    return ("pyright", "--project", ROOT, "--pythonpath", python), ("mypy",)


@nox.session
def examples(session: nox.Session) -> None:
    """Run every example offline and compare what it prints."""
    environment = Environment(session, "test")
    files = sorted((ROOT / "tests").glob("test_example*.py"))
    environment.run("pytest", *files, *(session.posargs or ("-v",)))


@nox.session
def bench(session: nox.Session) -> None:
    """Run the benchmarks; ``-- --check`` fails where a ratio misses its target."""
    environment = Environment(session, "test")
    for script in sorted((ROOT / "benchmarks").glob("*.py")):
        if not script.name.startswith("_"):
            environment.run("python", script, *session.posargs)


@nox.session
def peers(session: nox.Session) -> None:
    """Measure this library beside its peers, each in an environment of its own; ``-- --write``."""
    environment = Environment(session, "test")
    script = ROOT / "benchmarks" / "peers.py"
    environment.run("python", script, "--install")
    environment.run("python", script, *session.posargs)


@nox.session
def demo(session: nox.Session) -> None:
    """Show a sampling run live on the terminal, with the backend that needs nothing."""
    environment = Environment(session, "test")
    instruction = "Write a sentence about strings."
    checks = ["--check=words==9", "--check=contains:string", "--check=excludes:Python"]
    budget = ["--backend=markov", "--attempts=250", "--lanes=4"]
    environment.run("mellea-like", "sample", instruction, *checks, *budget, *session.posargs)
