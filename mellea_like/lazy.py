"""Lazy imports: a package's names are imported when they are first used."""

from __future__ import annotations

from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping


def lazy_exports(
    names: dict[str, Any], places: Mapping[str, str], moved: Mapping[str, str] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Make a package's ``__getattr__`` and ``__dir__`` (PEP 562), to import names on first use."""
    package = names["__name__"]
    found = {name: module for module, given in places.items() for name in given.split()}
    elsewhere = {n: module for module, given in (moved or {}).items() for n in given.split()}

    def attribute(name: str) -> Any:
        if name in found:
            module = None if found[name] == package else import_module(found[name])
            submodule = module is None or not hasattr(module, name)
            names[name] = thing = (
                import_module(f"{found[name]}.{name}") if submodule else getattr(module, name)
            )
            return thing
        if name in elsewhere:
            # `from package import name` would replace the message of an AttributeError.
            msg = f"{name} is in {elsewhere[name]} now: from {elsewhere[name]} import {name}"
            raise ImportError(msg, name=package)
        msg = f"module {package!r} has no attribute {name!r}"
        raise AttributeError(msg)

    def listed() -> list[str]:
        # The package also holds the helpers that it imports, such as `lazy_exports`.
        dunders = {name for name in names if name.startswith("__")}
        return sorted({*names.get("__all__", ()), *found, *dunders})

    return attribute, listed


def keep_installed(exports: list[str], **needs: str) -> None:
    """Remove names from an ``__all__`` if a package that they need isn't installed."""
    exports[:] = [n for n in exports if all(map(_installed, needs.get(n, "").split()))]


@contextmanager
def needs_extra(name: str, needs: str) -> Generator[None]:
    """If an import in the block fails, raise an ImportError that says which extra to install."""
    try:
        yield
    except ImportError as exc:
        msg = f"{needs}: pip install 'mellea-like[{name}]'"
        raise ImportError(msg) from exc


def _installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ImportError:
        return False
