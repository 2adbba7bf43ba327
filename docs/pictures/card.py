"""Takes the picture that links to the documentation show: ``python docs/pictures/card.py``.

Needs Chromium and playwright. The picture of the race stands in it, under the project's sentence.
"""

from __future__ import annotations

import os
from pathlib import Path

from playwright.sync_api import sync_playwright

HERE = Path(__file__).parent
CARD = """<body style="margin:0;background:#fff;color:#1c2024;font-family:Helvetica,sans-serif">
<h1 style="font-size:64px;margin:36px 56px 8px">mellea_like</h1>
<p style="font-size:30px;line-height:1.3;margin:0 56px 20px">Ask a language model several times at
once, keep the first reply that meets your requirements, and stop paying for the rest.</p>
<img src="race.svg" style="display:block;margin:auto;width:1000px">"""


def main() -> None:
    """Take the picture, at the size that cards have."""
    chromium = os.environ.get("CHROMIUM", "/usr/bin/chromium")
    page_file = HERE / "card.html"
    page_file.write_text(CARD, encoding="utf-8")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1200, "height": 630}, color_scheme="light")
        page.goto(page_file.absolute().as_uri())
        page.screenshot(path=HERE.parent / "_static" / "card.png")
        browser.close()
    page_file.unlink()


if __name__ == "__main__":
    main()
