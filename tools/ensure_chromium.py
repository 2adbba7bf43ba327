"""Make sure that there is a Chromium for the tests in a browser.

``python tools/ensure_chromium.py`` prints where it is. Where there is none, it installs Debian's,
if it may: as root, on a system with apt-get. What playwright would download is not used.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find_chromium() -> str | None:
    """Look for a Chromium.

    Returns:
        The path that the environment variable ``CHROMIUM`` names, else of one on the ``PATH``; None
        where there is none.
    """
    named = os.environ.get("CHROMIUM")
    if named:
        return shutil.which(named)
    return next(filter(None, map(shutil.which, NAMES)), None)


def main() -> int:
    """Find a Chromium, or install one.

    Returns:
        The exit code.
    """
    found = find_chromium()
    may_install = shutil.which("apt-get") is not None and os.geteuid() == 0
    if found is None and may_install:
        quiet = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        subprocess.run(["apt-get", "update", "--quiet"], check=True, env=quiet)
        install = ["apt-get", "install", "--yes", "--quiet", "--no-install-recommends"]
        subprocess.run([*install, "chromium", "fonts-liberation"], check=True, env=quiet)
        found = find_chromium()
    if found is None:
        print(
            "The tests in a browser need Chromium: install it, or set CHROMIUM to its path.",
            file=sys.stderr,
        )
        return 1
    print(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
