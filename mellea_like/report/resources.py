"""The style sheets and the script that stand in the package."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

__all__ = ["read", "style"]


@cache
def read(name: str) -> str:
    """Read a file of the package."""
    return files("mellea_like.report").joinpath("templates", name).read_text(encoding="utf-8")


@cache
def style(*names: str) -> str:
    """Put style sheets together."""
    text = "\n".join(read(f"{name}.css") for name in names)
    return text.replace("/*dark*/", read("dark.css"))
