"""Make prompts from rows with Jinja templates. Values other than texts are written as JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from mellea_like.lazy import needs_extra

with needs_extra("ray", "prompts made from rows need Jinja2"):
    from jinja2 import (
        StrictUndefined,
        Template,
        TemplateSyntaxError,
        Undefined,
        UndefinedError,
        meta,
        nodes,
    )
    from jinja2.sandbox import SandboxedEnvironment
    from jinja2.visitor import NodeTransformer

if TYPE_CHECKING:
    from collections.abc import Mapping

ROW = "row"
"""The name of the whole row in a template, needed for fields whose names aren't identifiers."""


class RowTemplate:
    """A sandboxed Jinja template of a prompt, which has a row's fields, and the row as ``row``."""

    def __init__(self, text: str) -> None:
        environment = SandboxedEnvironment(
            undefined=StrictUndefined,
            autoescape=False,  # It isn't HTML.
            finalize=_written,
        )
        environment.filters["tojson"] = _to_json
        self.text = text
        try:
            parsed = environment.parse(text)
            parsed = _FieldsFirst(parsed).visit(parsed)
            names = meta.find_undeclared_variables(parsed)
        except TemplateSyntaxError as exc:
            msg = f"isn't a valid Jinja template: line {exc.lineno}: {exc.message}"
            raise ValueError(msg) from exc
        if not names:
            msg = (
                "would be the same for every row: name their fields in double braces, as in"
                " {{ text }}"
            )
            raise ValueError(msg)
        self._template: Template = environment.from_string(parsed)

    def __reduce__(self) -> tuple[type[RowTemplate], tuple[str]]:
        return RowTemplate, (self.text,)

    def fill(self, row: Mapping[str, Any]) -> str:
        """Return the prompt of a row."""
        return self._template.render({ROW: dict(row), **row})


class _FieldsFirst(NodeTransformer):
    """Makes ``order.items`` and ``self`` the fields of these names.

    Jinja itself prefers the method of ``dict``, and the template. The method can still be called:
    ``order.items()``.
    """

    def __init__(self, parsed: nodes.Template) -> None:
        self._called = {id(call.node) for call in parsed.find_all(nodes.Call)}

    def visit_Getattr(self, node: nodes.Getattr) -> nodes.Node:  # noqa: N802 (Jinja's name)
        """Return what replaces ``order.items``: ``order["items"]``, unless it is called."""
        self.generic_visit(node)
        if id(node) in self._called:
            return node
        return nodes.Getitem(node.node, nodes.Const(node.attr), node.ctx, lineno=node.lineno)

    def visit_Name(self, node: nodes.Name) -> nodes.Node:  # noqa: N802 (Jinja's name)
        """Return what replaces ``self``: ``row["self"]``."""
        if node.name != "self" or node.ctx != "load":
            return node
        row = nodes.Name(ROW, "load", lineno=node.lineno)
        return nodes.Getitem(row, nodes.Const("self"), "load", lineno=node.lineno)


def _written(value: Any) -> Any:
    if callable(value) and not isinstance(value, Undefined):
        name = getattr(value, "__name__", type(value).__name__)
        msg = f"{name!r} is a function, not a field"
        raise UndefinedError(msg)
    if value is None or isinstance(value, bool | list | tuple | dict):
        return _to_json(value)
    return value


def _to_json(value: Any, indent: int | None = None) -> str:
    """Return a value as JSON. Jinja's own filter would also escape characters for HTML."""
    return json.dumps(value, ensure_ascii=False, indent=indent, default=str)
