"""The fenced blocks of a page of documentation, and what runs them: ``docs_pages.py PAGE``."""

from __future__ import annotations

import ast
import contextlib
import doctest
import inspect
import io
import re
import sys
import types
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from collections.abc import Mapping

FENCE = re.compile(r"^(?P<indent> *)(?P<ticks>`{3,})(?P<info>[^`]*)$")
MARKER = re.compile(r"^ *<!-- *(?P<text>.*?) *-->$")
SERVER = re.compile(r"^<!-- (?P<address>https?://\S+) says: (?P<replies>.+) -->$", re.MULTILINE)


@dataclass
class Block:
    """A fenced block: its language, its text, the comment above it, and where its text starts."""

    language: str
    text: str
    marker: str
    line: int

    @property
    def needs(self) -> str:
        kind, _, reason = self.marker.partition(":")
        return reason.strip() if kind == "needs" else ""

    @property
    def prints(self) -> bool:
        return self.language == "text" and self.marker.partition(":")[0] == "prints"

    def shows(self, printed: str) -> bool:
        """Whether the page shows what an example printed: exactly, or both as the marker says."""
        check = doctest.OutputChecker().check_output
        _, _, loosely = self.marker.partition(":")
        if loosely.strip():
            flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
            return all(check(loosely, text, flags) for text in (self.text, printed))
        return check(self.text, printed, doctest.ELLIPSIS)


def blocks_of(page: Path) -> list[Block]:
    blocks: list[Block] = []
    opened = None
    marker = ""
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        fence = FENCE.match(line)
        if opened is not None:
            if fence and not fence["info"].strip() and len(fence["ticks"]) >= len(opened["ticks"]):
                opened = None
            else:
                blocks[-1].text += line.removeprefix(opened["indent"]) + "\n"
        elif fence:
            opened = fence
            blocks.append(Block(fence["info"].strip(), "", marker, number + 1))
            marker = ""
        elif line.strip():
            comment = MARKER.match(line)
            marker = comment["text"] if comment else ""
    assert opened is None, f"{page}: the last fence is not closed"
    return blocks


def compiled(block: Block, page: Path) -> types.CodeType:
    tree = ast.parse(block.text, str(page))
    ast.increment_lineno(tree, block.line - 1)
    return compile(tree, str(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def run_page(page: Path) -> None:
    """Run all examples of one page, in a process of its own, beside the servers that it names."""
    with contextlib.ExitStack() as servers:
        addresses: dict[str, str] = {}
        for named in SERVER.finditer(page.read_text(encoding="utf-8")):
            from http_server import Answer, OpenAIServer

            answers = map(Answer, named["replies"].split(" | "))
            server = servers.enter_context(OpenAIServer(*answers))
            addresses[named["address"]] = server.url.removesuffix("/v1")
        run_blocks(page, addresses)


def run_blocks(page: Path, addresses: Mapping[str, str]) -> None:
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    printed = None
    for block in blocks_of(page):
        if block.prints:
            assert printed is not None, f"{page}:{block.line}: no example prints this"
            if not block.shows(printed):
                message = f"{page}:{block.line}: says\n{block.text}\nbut it prints\n{printed}"
                raise AssertionError(message)
            printed = None
        elif block.language == "python":
            for address, actual in addresses.items():
                block.text = block.text.replace(address, actual)
            code = compiled(block, page)
            if block.needs:
                printed = None
                continue
            with contextlib.redirect_stdout(io.StringIO()) as stdout:
                result = eval(code, module.__dict__)
                if inspect.iscoroutine(result):
                    anyio.run(partial(_wait_for, result))
            printed = stdout.getvalue()


async def _wait_for(coroutine: types.CoroutineType[object, None, None]) -> None:
    await coroutine


if __name__ == "__main__":
    run_page(Path(sys.argv[1]))
