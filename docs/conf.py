"""How the documentation is built: ``nox -s docs``."""

from __future__ import annotations

import functools
import inspect
import operator
import os
import sys
from importlib.metadata import version as installed_version
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from sphinx.util.inspect import stringify_signature
from sphinx.util.nodes import make_refnode

if TYPE_CHECKING:
    from docutils.nodes import Element
    from sphinx.addnodes import pending_xref
    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment

project = "mellea_like"
author = "The mellea_like maintainers"
project_copyright = author
release = version = installed_version("mellea-like")

repository = "https://github.com/mellea-like/mellea-like"
sentence = (
    "Ask a language model several times at once, keep the first reply that meets your"
    " requirements, and stop paying for the rest."
)

sys.path.append(str(Path(__file__).parent))  # search_weights.py
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinxext.opengraph",
    "search_weights",
]
root_doc = "index"
exclude_patterns = ["_build", "_templates"]

html_theme = "shibuya"
html_title = project
templates_path = ["_templates"]
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_baseurl = os.environ.get("DOCS_URL", "https://mellea-like.github.io/mellea-like/")
html_copy_source = False
html_theme_options = {
    "accent_color": "green",
    "show_ai_links": False,
    "nav_links": [
        {"title": "Tutorial", "url": "tutorial/index"},
        {"title": "How-to", "url": "howto/index"},
        {"title": "Cookbook", "url": "cookbook/index"},
        {"title": "Concepts", "url": "concepts"},
        {"title": "API", "url": "api/index"},
        {"title": "Benchmarks", "url": "benchmarks"},
        {"title": "GitHub", "url": repository, "external": True},
    ],
}

# Descriptions and cards for search engines and for links in chats.
ogp_site_url = html_baseurl
ogp_site_name = project
ogp_image = f"{html_baseurl}_static/card.png"
ogp_image_alt = sentence
ogp_enable_meta_description = True
ogp_social_cards = {"enable": False}  # They need matplotlib: one card for all pages is drawn.

copybutton_selector = ".highlight-python pre, .highlight-bash pre, .highlight-yaml pre"
maximum_signature_line_length = 60
toc_object_entries_show_parents = "hide"
python_trailing_comma_in_multi_line_signatures = False

# Docstrings write `Name` where they mean the thing of that name.
default_role = "py:obj"
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

autodoc_class_signature = "mixed"
autodoc_default_options = {
    "members": True,
    "show-inheritance": True,
    "exclude-members": "model_config, model_post_init",
}
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_attr_annotations = False

# A build must not need the network, so names of other projects are not linked. `Name` in a
# docstring (py:obj) must resolve; a type in a signature (py:class) may be an alias, a type variable
# or another project's.
nitpick_ignore_regex = [
    (r"py:class", r".*"),
    (r"py:exc", r"(concurrent\.futures|openai)\..*"),
    (r"py:obj", r"(?!mellea_like).*\..*"),
    (r"py:obj", r"mellea_like\..*\.[A-Z](_co)?"),
]


def resolve_short_name(
    app: Sphinx,
    env: BuildEnvironment,
    node: pending_xref,
    contnode: Element,
) -> Element | None:
    """Resolve a short name in a docstring to the object documented under it.

    Args:
        app: the application.
        env: knows all objects.
        node: the reference, as written.
        contnode: how the reference looks.

    Returns:
        The link, or None if the name is unknown or ambiguous.
    """
    if node.get("refdomain") != "py":
        return None
    objects = env.domains.python_domain.objects
    target = node["reftarget"].removeprefix("mellea_like.").removesuffix("()")
    found = [
        entry
        for name, entry in objects.items()
        if f".{name}".endswith(f".{target}") and not entry.aliased
    ]
    if len(found) != 1:
        return None
    entry = found[0]
    return make_refnode(app.builder, node["refdoc"], entry.docname, entry.node_id, contnode)


def prepare_docstring(
    app: Sphinx,  # noqa: ARG001 (the event's arguments)
    what: str,
    name: str,  # noqa: ARG001
    obj: object,  # noqa: ARG001
    options: object,  # noqa: ARG001
    lines: list[str],
) -> None:
    """Make a docstring ready for napoleon.

    Types are in signatures, so a colon in the first line of an attribute or under ``Returns:`` does
    not end a type. Markdown fences become code blocks, and Markdown tables become tables.

    Args:
        app: the application.
        what: the kind of the documented thing.
        name: its name.
        obj: the thing itself.
        options: the directive's options.
        lines: the docstring; changed in place.
    """
    # Napoleon skips blank lines and takes text before a colon for a type: an escaped blank is text.
    prepared = ["\\ "] if what in {"attribute", "data", "property"} and any(lines) else []
    fenced = tabled = False
    for line in lines:
        row = line.startswith("|") and not fenced
        if row and not tabled:
            prepared += ["", ".. list-table::", "    :header-rows: 1", ""]
        tabled = row
        if line.startswith("```"):
            fenced = not fenced
            if fenced:
                prepared += ["", f".. code-block:: {line[3:] or 'text'}", ""]
        elif fenced:
            prepared.append(f"    {line}")
        elif row:
            prepared += _cells(line)
        else:
            prepared.append(":returns:" if line == "Returns:" else line)
    lines[:] = prepared


def _cells(row: str) -> list[str]:
    if not row.strip("|- "):
        return []
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    return [f"    {'* ' if not number else '  '}- {cell}" for number, cell in enumerate(cells)]


def show_plain_types(  # noqa: PLR0917 (as autodoc calls it)
    app: Sphinx,  # noqa: ARG001 (the event's arguments)
    what: str,  # noqa: ARG001
    name: str,  # noqa: ARG001
    obj: object,
    options: object,  # noqa: ARG001
    signature: str | None,
    return_annotation: str | None,
) -> tuple[str | None, str | None]:
    """Write the signature of a pydantic model without pydantic's own annotations.

    Args:
        app: the application.
        what: the kind of the documented thing.
        name: its name.
        obj: the thing itself.
        options: the directive's options.
        signature: the signature as autodoc writes it.
        return_annotation: the type of the result.

    Returns:
        The signature and the type of the result.
    """
    if not (signature and inspect.isclass(obj) and issubclass(obj, BaseModel)):
        return signature, return_annotation
    shown = inspect.signature(obj)
    parameters = [
        each.replace(annotation=_plain(each.annotation), default=_shorter(each.default))
        for each in shown.parameters.values()
    ]
    plain = inspect.Signature(parameters)
    return stringify_signature(plain, unqualified_typehints=True), return_annotation


def _plain(annotation: Any) -> Any:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _plain(arguments[0])
    if origin in {None, Literal}:
        return annotation
    plain = [_plain(each) for each in arguments]
    if origin in {Union, UnionType}:
        return functools.reduce(operator.or_, plain)
    return origin[tuple(plain)]


class _Shorter:
    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def _shorter(default: object) -> object:
    """Write a default section without its fields, and a default's factory as valid Python."""
    if isinstance(default, BaseModel):
        return _Shorter(f"{type(default).__name__}()")
    return _Shorter("...") if repr(default) == "<factory>" else default


def setup(app: Sphinx) -> None:
    """Register what this file adds.

    Args:
        app: the application.
    """
    app.connect("missing-reference", resolve_short_name)
    app.connect("autodoc-process-docstring", prepare_docstring, priority=400)
    app.connect("autodoc-process-signature", show_plain_types)
