"""Write files atomically: a new file replaces the old one completely, or not at all."""

from __future__ import annotations

import os
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import BinaryIO


@contextmanager
def replaced(path: Path, mode: int | None = None) -> Generator[BinaryIO]:
    """Open a temporary file for writing, and move it to ``path`` when all of it is on disk.

    The file gets the permissions ``mode``, or else those of the existing file, or else those of
    any new file. If the block raises an exception, the old file is kept. A path that isn't a
    regular file, such as a pipe, is written to directly.

    Yields:
        The open file.
    """
    if path.exists() and not path.is_file():
        with path.open("wb") as file:
            yield file
        return
    place = Path(os.path.realpath(path))
    if mode is None:
        mode = place.stat().st_mode & 0o777 if place.exists() else _mode_of_new_files()
    descriptor, beside = tempfile.mkstemp(".part", f".{place.name[:100]}.", place.parent)
    try:
        with open(descriptor, "wb") as file:  # noqa: PTH123 (it is open)
            yield file
            file.flush()
            os.fsync(file.fileno())
        Path(beside).chmod(mode)
        Path(beside).replace(place)
    except BaseException:
        with suppress(OSError):
            Path(beside).unlink()
        raise


def _mode_of_new_files() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return 0o666 & ~mask
