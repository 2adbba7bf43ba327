"""A real Chromium, in which no request gets out and no error goes unnoticed."""

from __future__ import annotations

import os
import shutil
from contextlib import ExitStack
from pathlib import Path

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@pytest.fixture(scope="session")
def chromium():
    from playwright.sync_api import sync_playwright

    path = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    assert path, "there is no Chromium: run tools/ensure_chromium.py"
    # Chromium's own sandbox does not run as root.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    arguments.append("--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=arguments)
        yield browser
        browser.close()


@pytest.fixture
def opened(chromium, tmp_path):
    """Open a page in a window of its own; gives the page.

    At the end of the test there must have been no request but that for the file, no dialog, nothing
    on the console and no exception.
    """
    noticed: list[str] = []

    with ExitStack() as stack:

        def open_page(html, *, name="report", **options):
            path = tmp_path / f"{name}.html"
            path.write_text(html, encoding="utf-8")
            context = chromium.new_context(**{"viewport": {"width": 1200, "height": 900}} | options)
            stack.callback(context.close)
            own = path.as_uri()

            def route(route):
                if route.request.url.partition("#")[0] == own:
                    route.continue_()
                else:
                    noticed.append(f"request {route.request.url}")
                    route.abort()

            def dialog(dialog):
                noticed.append(f"dialog {dialog.message}")
                dialog.dismiss()

            context.route("**/*", route)
            page = context.new_page()
            page.on("console", lambda message: noticed.append(f"console {message.text}"))
            page.on("pageerror", lambda error: noticed.append(f"exception {error}"))
            page.on("dialog", dialog)
            page.on("popup", lambda popup: noticed.append(f"popup {popup.url}"))
            page.goto(own)
            return page

        yield open_page
        assert noticed == []


@pytest.fixture
def keep(tmp_path):
    """Keep a screenshot where CI collects what a session leaves, else beside the test's files."""
    directory = Path(os.environ.get("ARTIFACTS") or tmp_path)
    directory.mkdir(parents=True, exist_ok=True)

    def keep_screenshot(page, name, *, whole=True):
        path = directory / f"{name}.png"
        page.screenshot(path=path, full_page=whole)
        assert path.stat().st_size > 10_000
        return path

    return keep_screenshot
