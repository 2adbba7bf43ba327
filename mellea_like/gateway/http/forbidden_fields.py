"""Fields that would choose the upstream or its key: no request may have them."""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING, cast
from urllib.parse import parse_qsl

from mellea_like.gateway.http.refusal import Refusal
from mellea_like.gateway.http.safe_text import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["check_fields", "check_query", "forbidden_path"]

ANYWHERE = frozenset(
    f"{owner}{name}"
    for owner in ("", "x", "openai", "azure", "azureopenai", "litellm", "upstream")
    for name in ("baseurl", "apibase", "apikey", "apiurl", "apihost", "apiendpoint", "apitype")
) | frozenset({"azureendpoint", "azureadtoken", "azuredeployment"})
"""Written with or without dashes, in any case."""

IN_BODIES = ANYWHERE | {"apiversion"}
"""In a query, ``api-version`` is what Azure's clients add to each request; it chooses nothing."""

OWN = frozenset({"extra_body", "mellea_like", "messages", "metadata"})
"""Fields that are looked into at any depth. What stands deeper in others is a name in a JSON Schema
(``response_format``), not supported, or passed on because the configuration says so."""

NEAR_THE_TOP = frozenset(
    {
        "authorization",
        "clientsecret",
        "credentials",
        "defaultheaders",
        "defaultquery",
        "endpoint",
        "extraheaders",
        "extraquery",
        "headers",
        "host",
        "httpclient",
        "organization",
        "proxies",
        "proxy",
        "secret",
        "token",
        "upstream",
        "url",
    }
)
"""Only beside ``model`` and in ``extra_body``: deeper they are names of something else."""

LONGEST_PATH = 200


def forbidden_path(body: object) -> str | None:
    """Find a field that no request may have.

    Args:
        body: parsed JSON.

    Returns:
        Where the first one is, such as ``extra_body.API-Base``, or None.
    """
    for path, name in _fields(body):
        plain = _plain(name)
        near = path in {(), ("extra_body",)}
        if plain in IN_BODIES or (near and plain in NEAR_THE_TOP):
            return one_line(_shown((*path, name)), LONGEST_PATH)
    return None


def check_fields(body: object) -> None:
    """Refuse a request that has such a field.

    Args:
        body: parsed JSON.

    Raises:
        Refusal: it has one; the error names where, and not what it says.
    """
    path = forbidden_path(body)
    if path is not None:
        raise _refusal(path)


def check_query(query: bytes) -> None:
    """Refuse a query string that has such a field.

    Args:
        query: the query string, without the question mark.

    Raises:
        Refusal: it has one, or has too many to look at.
    """
    try:
        pairs = parse_qsl(query.decode("latin-1"), keep_blank_values=True, max_num_fields=100)
    except ValueError:
        raise Refusal(400, "the query string can't be read") from None
    for name, _ in pairs:
        if _plain(name) in ANYWHERE:
            path = f"?{one_line(name, LONGEST_PATH)}"
            raise _refusal(path)


def _refusal(path: str) -> Refusal:
    return Refusal(
        400,
        f"{path}: the upstream's address and key come from this gateway's configuration only",
        code="forbidden_field",
        param=path,
    )


def _plain(name: str) -> str:
    folded = unicodedata.normalize("NFKC", name).casefold()
    return "".join(c for c in folded if c.isalnum())


def _fields(body: object) -> Iterator[tuple[tuple[str | int, ...], str]]:
    # All members of all objects, outer ones first.
    pending: list[tuple[tuple[str | int, ...], object]] = [((), body)]
    for path, value in pending:
        if isinstance(value, dict):
            members = cast("dict[str, object]", value)
            for name in members:
                yield path, name
            pending += [
                ((*path, name), inside)
                for name, inside in members.items()
                if isinstance(inside, dict | list) and (path or name in OWN)
            ]
        elif isinstance(value, list):
            pending += [
                ((*path, number), inside)
                for number, inside in enumerate(cast("list[object]", value))
                if isinstance(inside, dict | list)
            ]


def _shown(path: tuple[str | int, ...]) -> str:
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text
