"""Takes the pictures of reports: ``python docs/pictures/report.py``. Needs Chromium and playwright.

Both are of a real run of 200 items through `sample_many` with a journal, by a model that is a
Markov chain with the latency and the faults of a server. A run takes real time, so that each one's
pictures differ a little; ``tests/browser/test_pictures_of_reports.py`` takes them again.
"""

from __future__ import annotations

import logging
import os
import random
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

from mellea_like import Generation, RepairTemplateStrategy
from mellea_like.backends import MarkovBackend
from mellea_like.batch import Journal, read_items, read_run, sample_many
from mellea_like.core.backend import BackendWrapper
from mellea_like.core.prices import Price
from mellea_like.errors import BackendUnavailable
from mellea_like.report import call_report, run_report
from mellea_like.requirements.checks import contains, excludes, sentence_count, word_count

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from mellea_like import Request

HERE = Path(__file__).parent
TOPICS = ("strings", "lists", "functions", "modules", "classes", "numbers", "files", "errors")
ITEMS = 200
MODEL = "markov-trigram"
WIDTH = 1000
MEDIAN, SLOW, BUSY = 0.04, 0.02, 0.04


class Distant(BackendWrapper):
    """The backend inside, as if it stood far away and were often busy."""

    async def generate(self, request: Request) -> Generation:
        """Answer late, or not at all."""
        asked = f"{request.messages[-1].content} {request.meta.iteration}"
        chance = random.Random(asked)
        await anyio.sleep(
            MEDIAN * chance.lognormvariate(0, 0.5) * (8 if chance.random() < SLOW else 1)
        )
        if chance.random() < BUSY:
            msg = "the server is overloaded"
            raise BackendUnavailable(msg, status=503)
        return await self.inner.generate(request)


async def record(path: Path) -> None:
    """Run what the pictures show."""
    strategy = RepairTemplateStrategy(
        Distant(MarkovBackend()), loop_budget=3, concurrency_budget=3, retry=None
    )
    checks = [
        sentence_count(exactly=1),
        word_count(at_least=5, at_most=18),
        contains("the"),
        excludes("Python"),
    ]
    items = [
        f"Write a sentence about {TOPICS[n % len(TOPICS)]} (number {n + 1})." for n in range(ITEMS)
    ]
    journal = Journal(path, prices={MODEL: Price(0.4, 1.6)})
    settings = {
        "input": "topics.jsonl",
        "prompt": "Write a sentence about {{topic}} (number {{n}}).",
    }
    async with sample_many(
        strategy, items, requirements=checks, concurrency=6, journal=journal, settings=settings
    ) as results:
        async for _ in results:
            pass


def pages(path: Path) -> dict[str, str]:
    """Make the pages: of the whole run, and of its most eventful call."""

    def events(item: dict[str, Any]) -> tuple[int, int]:
        slices = item["trace"]["slices"] if item["status"] == "passed" else []
        # As many kinds of outcomes as there are, in as few iterations as that takes.
        return len({s["outcome"] for s in slices}), -abs(len(slices) - 8)

    run = read_run(path)
    eventful = max(read_items(path), key=events)
    return {
        "report": run_report(run, read_items(path)),
        "waterfall": call_report(eventful["trace"]),
    }


def shoot(browser: Browser, made: dict[str, str], directory: Path) -> None:
    """Take the pictures of pages, and put them into a directory."""
    context = browser.new_context(
        viewport={"width": WIDTH, "height": 1190}, color_scheme="light", reduced_motion="reduce"
    )
    page = context.new_page()
    for name, html in made.items():
        file = directory / f"{name}.html"
        file.write_text(html, encoding="utf-8")
        page.goto(file.absolute().as_uri())
        file.unlink()
        if name == "waterfall":
            # The first one that failed, where there is a panel to show.
            page.locator("a.bar.failed").first.click()
            page.mouse.move(0, 0)
            page.evaluate("scrollTo(0, 0)")
        last, more = (".legend", 62) if name == "waterfall" else ("section:has(#h-cost)", 14)
        below = page.locator(last).bounding_box()
        height = 0 if below is None else below["y"] + below["height"] + more
        page.set_viewport_size({"width": WIDTH, "height": round(height)})
        page.screenshot(path=directory / f"{name}.png")
    context.close()


def main() -> None:
    """Take the pictures and put them beside this file, or into the directory that is named."""
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 (the group browser)

    logging.getLogger("mellea_like").setLevel(logging.CRITICAL)
    directory = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "run.db"
        anyio.run(record, path)
        made = pages(path)
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []  # It does not run as root.
    chromium = os.environ.get("CHROMIUM", "/usr/bin/chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=arguments)
        shoot(browser, made, directory)
        browser.close()


if __name__ == "__main__":
    main()
