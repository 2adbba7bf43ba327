"""HTML pages that load no other files; filling them in needs jinja2."""

from __future__ import annotations

from base64 import b64encode
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from mellea_like.lazy import needs_extra
from mellea_like.report.markup import Html, patterns, visible
from mellea_like.version import __version__

if TYPE_CHECKING:
    from jinja2 import Environment

MADE_BY = "A report made by mellea-like"
"""The text in the second line of every page, by which reports are recognized."""

SCOPE = "it"
"""The prefix of the ids of patterns and panels in a page."""

ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16">'
    '<rect width="16" height="16" rx="4" fill="#4453c9"/>'
    '<path d="M3.5 8.5 6.5 11.5 12.5 5" fill="none" stroke="#fff" stroke-width="2"'
    ' stroke-linecap="round" stroke-linejoin="round"/></svg>'
)


def page(template: str, **content: Any) -> str:
    """Return a page: a template filled in with its content."""
    sheet, script = style("trace", "page"), read("page.js")
    policy = (
        f"default-src 'none'; style-src '{_digest(sheet)}'; script-src '{_digest(script)}';"
        " img-src data:; base-uri 'none'; form-action 'none'"
    )
    return (
        environment()
        .get_template(f"{template}.html.jinja")
        .render(
            content,
            made_by=MADE_BY,
            policy=policy,
            icon=f"data:image/svg+xml,{quote(ICON)}",
            style=Html(sheet),
            script=Html(script),
            patterns=patterns(SCOPE),
            version=__version__,
        )
    )


@cache
def environment() -> Environment:
    """Return jinja2's environment, or raise an ImportError that names the extra."""
    with needs_extra("report", "a report as HTML needs jinja2"):
        from jinja2 import Environment, FunctionLoader, StrictUndefined  # noqa: PLC0415 (an extra)
    return Environment(
        loader=FunctionLoader(read),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _finalize(value: Any) -> Any:
    """Make a text's invisible characters visible, before jinja2 escapes the text."""
    if value is None:
        return ""
    return value if hasattr(value, "__html__") else visible(str(value))


def _digest(text: str) -> str:
    return f"sha256-{b64encode(sha256(text.encode()).digest()).decode()}"


@cache
def read(name: str) -> str:
    """Return the text of a file among the templates."""
    return files("mellea_like.report").joinpath("templates", name).read_text(encoding="utf-8")


@cache
def style(*names: str) -> str:
    """Return style sheets as one text, with the colours of dark mode filled in."""
    text = "\n".join(read(f"{name}.css") for name in names)
    return text.replace("/*dark*/", read("dark.css"))
