"""Every Python example in the README and in docs/ runs, and prints what the page says.

A page's ```` ```python ```` blocks run in order, in one namespace, in a process and an empty
directory of their own; a block may ``await`` at its top level. Comments in the page steer it:

- ``<!-- prints -->`` above a ```` ```text ```` block: that is what the Python block before it
  prints. ``<!-- prints: 3 draws, ... ms -->`` says what is the same each time: then the page shows
  what was printed once, and that and what is printed now both match, ``...`` being anything;
- ``<!-- http://localhost:8000 says: one reply | another -->``, on a line anywhere: Python blocks
  that name this address meet a server of OpenAI's protocol there, which says that in turn and the
  last reply from then on;
- ``<!-- needs: a server -->`` above a Python block: it is compiled but not run, for that reason.

The tutorial's pages run as notebooks, in a Jupyter kernel. They and the README also run as scripts,
with nothing installed but what these pages say to install.

Lines of ```` ```bash ```` blocks that call ``mellea-like`` are run too, unless the block ``needs``
something, on a machine without keys: their options exist, and something comes out.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import types
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import docs_pages
import nbformat
import pytest
from command_line import environment, run
from docs_pages import Block, blocks_of, compiled
from nbclient import NotebookClient

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nbformat import NotebookNode

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
PAGES = [page for page in PAGES if "_build" not in page.parts]
TUTORIAL = [page for page in PAGES if re.fullmatch(r"\d\d-.*", page.stem)]


def run_in_process(page: Path, directory: Path) -> subprocess.CompletedProcess[str]:
    return run(str(page), script=docs_pages.__file__, cwd=directory)


def run_python(arguments: list[str], directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", *arguments],
        cwd=directory,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        timeout=50,
    )


def has_examples(page: Path) -> bool:
    return any(block.language == "python" for block in blocks_of(page))


def each(pages: Iterable[Path]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "page", [pytest.param(page, id=str(page.relative_to(ROOT))) for page in pages]
    )


@each(page for page in PAGES if has_examples(page) and page not in TUTORIAL)
def test_examples_of_a_page_run(page, tmp_path):
    done = run_in_process(page, tmp_path)
    assert done.returncode == 0, done.stderr


# --- the tutorial, as a newcomer runs it -------------------------------------------------------

# What is installed here, and is not by ``pip install '.[cli]'``.
NOT_IN_CLI = ["mcp", "openai", "opentelemetry.sdk", "prometheus_client", "pytest", "sniffio"]
NOT_IN_CLI += ["starlette", "trio", "uvicorn", "uvloop", "watchfiles", "xllamacpp", "yaml"]
RUN_WITHOUT = """
import runpy, sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name in sys.argv[2:]:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Absent())
runpy.run_path(sys.argv[1], run_name="__main__")
"""


@each([ROOT / "README.md", *TUTORIAL])
def test_a_page_for_newcomers_is_a_script_that_runs_in_the_environment_it_prescribes(
    page, tmp_path
):
    blocks = [block for block in blocks_of(page) if block.language == "python" and not block.needs]
    script = tmp_path / "script.py"
    script.write_text("\n".join(block.text for block in blocks), encoding="utf-8")
    done = run_python(["-c", RUN_WITHOUT, str(script), *NOT_IN_CLI], tmp_path)
    assert done.returncode == 0, done.stderr


def test_the_seven_pages_of_the_tutorial_run_as_notebooks(tmp_path):
    assert len(TUTORIAL) == 7
    cells: list[NotebookNode] = []
    prints: list[tuple[NotebookNode, Block]] = []
    for page in TUTORIAL:  # In one kernel: starting one takes longer than running a page.
        cells.append(nbformat.v4.new_code_cell("%reset -f"))
        for block in blocks_of(page):
            if block.prints:
                prints.append((cells[-1], block))
            elif block.language == "python":
                compiled(block, page)
                if not block.needs:
                    cells.append(nbformat.v4.new_code_cell(block.text))
    place = {"metadata": {"path": str(tmp_path)}}
    client = NotebookClient(nbformat.v4.new_notebook(cells=cells), timeout=50, resources=place)
    client.execute(env=environment())
    for cell, block in prints:
        printed = "".join(output.text for output in cell.outputs if output.get("name") == "stdout")
        message = f"{cell.source}\nis said to print\n{block.text}\nand prints\n{printed}"
        assert block.shows(printed), message


ALMOST_PYTHON = re.compile(r"\bpy(thon3?|con)?\b|\bipython\b", re.IGNORECASE)


def test_no_python_block_hides_under_another_name():
    hidden = [
        f"{page.name}:{block.line}: {block.language}"
        for page in PAGES
        for block in blocks_of(page)
        if block.language != "python"
        and ALMOST_PYTHON.search(block.language)
        and not block.language.startswith("{literalinclude}")  # Whole programs have tests.
    ]
    assert not hidden


FRONT_DOORS = ["", *(f".{name}" for name in ("errors", "hooks", "requirements", "testing"))]
FRONT_DOORS += [".backends", ".gateway", ".requirements.checks", ".sampling", ".telemetry", ".web"]


def test_every_public_name_stands_in_the_api_reference():
    pages = [page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "api").glob("*.md")]
    documented = set(re.findall(r"automodule:: ([\w.]+)", "\n".join(pages)))
    names = set(re.findall(r"auto(?:class|data|function):: [\w.]+\.(\w+)", "\n".join(pages)))
    missing = set()
    for door in FRONT_DOORS:
        module = import_module(f"mellea_like{door}")
        for name in getattr(module, "__all__", ()):
            named = getattr(module, name)
            is_module = isinstance(named, types.ModuleType)
            home = named.__name__ if is_module else getattr(named, "__module__", module.__name__)
            if name in names or documented & {home, module.__name__}:
                continue
            # Data and aliases don't know their module.
            inner = (import_module(m) for m in documented if m.startswith(f"{module.__name__}."))
            if not any(name in getattr(each, "__all__", ()) for each in inner):
                missing.add(f"{home} (for {name})")
    assert not missing, "add these modules to a page in docs/api/"


def test_every_file_on_the_map_of_the_code_is_there():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    folder, missing = "", []
    for path in re.findall(r"(?<![\w/])(?:[a-z_]+/)+(?:[a-z_]+\.py)?|[a-z_]+\.py", text):
        folder = path[: path.rindex("/") + 1] if "/" in path else folder
        # A bare name is beside the file before it, as in "batch/api.py, item.py", or at the top.
        places = [path] if "/" in path else [f"{folder}{path}", path]
        roots = (ROOT / "mellea_like", ROOT)
        if not any((root / place).exists() for root in roots for place in places):
            missing.append(path)
    assert not missing


# --- commands ---------------------------------------------------------------------------------


def quoted_figures() -> list[tuple[str, str]]:
    """Find the numbers in each paragraph that refers to the page of benchmarks."""
    found: list[tuple[str, str]] = []
    for page in PAGES:
        for paragraph in page.read_text(encoding="utf-8").split("\n\n"):
            if "benchmarks.md" in paragraph:
                words = re.sub(r"\]\([^)]*\)|`[^`]*`", "", paragraph)
                numbers = re.findall(r"(?<![\w.])\d[\d,]*(?:\.\d+)?", words)
                found += [(str(page.relative_to(ROOT)), number) for number in numbers]
    return found


@pytest.mark.parametrize(("page", "figure"), quoted_figures())
def test_a_figure_beside_a_link_to_the_benchmarks_stands_there(page, figure):
    benchmarks = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    assert re.search(rf"(?<![\d.,]){re.escape(figure)}(?![\d]|[.,]\d)", benchmarks), page


def commands_of(page: Path) -> list[list[str]]:
    commands = []
    for block in blocks_of(page):
        if block.language == "bash" and not block.needs:
            lines = block.text.replace("\\\n", " ").splitlines()
            calls = [part.strip() for line in lines for part in line.split(" && ")]
            commands += [shlex.split(call) for call in calls if call.startswith("mellea-like ")]
    return commands


COMMANDS = [
    pytest.param(command, id=f"{page.relative_to(ROOT)}-{number}")
    for page in PAGES
    for number, command in enumerate(commands_of(page), 1)
]


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_of_a_page_run(command, tmp_path):
    done = run(*command[1:], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_readme_has_one_line_to_run_and_one_line_to_test():
    # .ci/run takes its test command from here.
    lines = {block.marker: block.text for block in blocks_of(ROOT / "README.md")}
    assert re.fullmatch(r"pip install .+ && mellea-like sample .+\n", lines["run-command"])
    assert re.fullmatch(r"pip install .+ && .*nox -s tests\n", lines["test-command"])


# --- the harness itself: a broken page must fail ----------------------------------------------

PAGE = """
# A page

```python
import anyio

async def double(x):
    await anyio.sleep(0)
    return 2 * x

print(await double(4), __name__)
```

<!-- prints -->
```text
8 ...
```

<!-- needs: a server -->
```python
1 / 0
```
"""


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("", "", None),
        ("8 ...", "9 ...", "but it prints"),
        ("<!-- prints -->", "<!-- prints: 8 __... -->", "but it prints"),  # The page: "8 ...".
        ("<!-- prints -->\n```text\n8 ...", "<!-- prints: 8 __... -->\n```text\n8 __x__", None),
        ("<!-- prints -->", "<!-- prints: 9 ... -->", "but it prints"),
        ("double(4)", "double(None)", "TypeError"),
        ("<!-- needs: a server -->", "", "ZeroDivisionError"),
        ("<!-- needs: a server -->", "<!-- needs: -->", "ZeroDivisionError"),
        ("1 / 0", "1 /", "SyntaxError"),
        (
            "<!-- prints -->\n",
            "<!-- prints -->\n```text\n8 __main__\n```\n<!-- prints -->\n",
            "no ",
        ),
    ],
)
def test_harness_runs_a_page_and_notices_what_is_wrong(old, new, complaint, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(PAGE.replace(old, new) if old else PAGE, encoding="utf-8")
    done = run_in_process(page, tmp_path)
    assert (done.returncode == 0) == (complaint is None), done.stderr
    assert (complaint or "") in done.stderr


def test_an_error_points_to_the_line_of_the_page(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("Text.\n\n```python\nx = 1\nx.nonsense\n```\n", encoding="utf-8")
    assert f'File "{page}", line 5' in run_in_process(page, tmp_path).stderr
