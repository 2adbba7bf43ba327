"""The file of ``--trace``: a call's record, for ``mellea-like report``."""

from __future__ import annotations

import json
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mellea_like.cli.exits import Problem
from mellea_like.core.trace import to_dict

if TYPE_CHECKING:
    from mellea_like.core.result import SamplingResult

__all__ = ["check_trace", "write_trace"]


def check_trace(path: Path) -> None:
    """Make sure that a trace can be written, before anything is sent."""
    try:
        if path.exists() and not path.is_file():
            msg = f"--trace: {path} is no file"
            raise Problem(msg)
        if not path.parent.is_dir():
            msg = f"--trace: there is no directory {path.parent}"
            raise Problem(msg)
        allowed = os.access(path.parent, os.W_OK)
    except OSError as exc:
        msg = f"--trace: can't write {path}: {exc.strerror or exc}"
        raise Problem(msg) from exc
    if not allowed:
        msg = f"--trace: can't write {path}: Permission denied"
        raise Problem(msg)


def write_trace(path: Path, result: SamplingResult[Any]) -> None:
    """Write a call's record to a file that only its owner may read; prompts stand in it."""
    part = None
    try:
        text = json.dumps(to_dict(result), ensure_ascii=True)
        descriptor, part = tempfile.mkstemp(prefix=f".{path.name[:100]}.", dir=path.parent)
        with open(descriptor, "w", encoding="ascii") as file:  # noqa: PTH123 (it is open)
            file.write(text + "\n")
        Path(part).replace(path)
        part = None
    except OSError as exc:
        msg = f"--trace: can't write {path}: {exc.strerror or exc}"
        raise Problem(msg) from exc
    finally:
        if part is not None:
            with suppress(OSError):
                Path(part).unlink()
