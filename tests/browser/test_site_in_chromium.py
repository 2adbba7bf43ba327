"""The documentation's site in a real browser: readable by day and night, wide and narrow."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from contextlib import contextmanager
from functools import partial
from html import unescape
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

pytestmark = [  # Building takes a while, and is done once.
    pytest.mark.browser,
    pytest.mark.timeout(180),
    pytest.mark.xdist_group("site"),
]

DOCS = Path(__file__).resolve().parent.parent.parent / "docs"
AXE = (Path(__file__).parent / "axe.js").read_text(encoding="utf-8")


class Quiet(SimpleHTTPRequestHandler):
    def end_headers(self):
        self.send_header("Cache-Control", "max-age=3600")  # The site stays as it is.
        super().end_headers()

    def log_message(self, format, *args):
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site that ``nox -s browser`` has built; without nox, a new one."""
    if "SITE" in os.environ:
        return Path(os.environ["SITE"])
    built = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "--builder=html", "--quiet", str(DOCS), str(built)]
    subprocess.run(command, check=True, capture_output=True)
    return built


@pytest.fixture(scope="module")
def address(site):
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(scope="module")
def window(chromium):
    """Made once, for what one page has loaded is in the cache of the next."""
    context = chromium.new_context(reduced_motion="reduce")
    yield context
    context.close()


@pytest.fixture
def visit(window, address):
    """Open a page of the site; nothing is asked of any other server, and no script fails."""

    @contextmanager
    def visited(path, *, viewport=None):
        noticed = []

        # Chromium finds no other server: see conftest.py. To route each request through here would
        # stop it, too, but also keep Chromium from using its cache.
        def watch(request):
            if not request.url.startswith((f"{address}/", "data:", "blob:")):
                noticed.append(f"request {request.url}")

        window.on("request", watch)
        page = window.new_page()
        page.on("pageerror", lambda error: noticed.append(f"exception {error}"))
        page.on("response", lambda got: got.ok or noticed.append(f"{got.status} {got.url}"))
        if viewport is not None:
            page.set_viewport_size(viewport)
        page.goto(f"{address}/{path}")
        yield page
        page.close()
        window.remove_listener("request", watch)
        assert noticed == []

    return visited


PAGES = (
    "index",
    "tutorial/01-first-sample",
    "howto/index",
    "howto/typed-output",
    "howto/best-of",
    "howto/gateway",
    "howto/report",
    "concepts",
    "benchmarks",
    "api/sampling",
)
OUTSIDE = """[...document.querySelectorAll("article pre, article .table-wrapper, article img")]
    .filter((e) => e.checkVisibility() && !e.closest("p:has(> img)"))
    .filter((e) => e.getBoundingClientRect().right > document.documentElement.clientWidth)
    .map((e) => e.outerHTML.slice(0, 80))"""


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_readable_by_day_and_night_wide_and_narrow(visit, keep, name):
    for width, height in ((1280, 860), (390, 844)):
        with visit(f"{name}.html", viewport={"width": width, "height": height}) as page:
            axe = page.evaluate_handle(AXE)
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert page.evaluate(OUTSIDE) == []
            for scheme in ("light", "dark"):
                page.emulate_media(color_scheme=scheme)
                keep(page, f"site-{name.replace('/', '-')}-{scheme}-{width}", whole=False)
                assert axe.evaluate("axe => axe.lowText()") == [], scheme


def test_the_first_screen_says_what_installs_shows_and_pictures_it(visit):
    with visit("index.html", viewport={"width": 1280, "height": 860}) as page:
        picture = page.locator('img[src$="race.svg"]')
        for part in (page.locator("h1"), page.locator(".highlight-bash").first, picture):
            box = part.bounding_box()
            assert box["y"] + box["height"] < 860
        assert picture.evaluate("(img) => img.naturalWidth") > 0
        card = page.locator('meta[property="og:image"]').get_attribute("content")
        assert (DOCS / "_static" / Path(card).name).exists()
        for name in ("og:description", "og:title"):
            assert page.locator(f'meta[property="{name}"]').get_attribute("content")
        assert page.locator('a[href="https://github.com/mellea-like/mellea-like"]').is_visible()


def test_a_button_copies_an_example(visit):
    with visit("howto/best-of.html") as page:
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        block = page.locator(".highlight-python").first
        block.hover()
        block.locator("button.copybtn").click()
        page.locator("button.copybtn.success").wait_for()
        copied = page.evaluate("navigator.clipboard.readText()")
        assert copied.startswith("from mellea_like import BestOf")
        assert copied.strip() == block.locator("pre").text_content().strip()


@pytest.mark.parametrize(
    ("words", "guide"),
    [
        ("stream", "howto/stream"),
        ("pass@k", "howto/how-many-draws"),
        ("rate limits", "howto/limits"),
        ("FastAPI", "howto/fastapi"),
    ],
)
def test_the_search_box_finds_the_guide(visit, words, guide):
    with visit("index.html") as page:
        page.locator("input[name=q]").first.fill(words)
        page.keyboard.press("Enter")
        page.locator("ul.search li a").first.wait_for()
        page.locator("#search-progress", has_text=re.compile(r"^$|found")).first.wait_for(
            state="attached"
        )
        hits = page.locator("ul.search li > a").evaluate_all("(all) => all.map((a) => a.pathname)")
        assert guide in [hit.strip("/").removesuffix(".html") for hit in hits[:3]]


GUIDES = """
howto/backends: openai compatible
howto/batch: batch, batches, near-duplicates, multiprocessing
howto/batch-api: batch api, half price
howto/best-of: best of n, best of, tournament, similarity
howto/caching: cache, caches
howto/chat: conversation
howto/check-code: sandbox, sql, unit tests
howto/command-line: cli, exit code, jinja
howto/coordinator: mcp
howto/cost: cost, price, prices, budget
howto/deploy: docker, kubernetes, nginx, sighup
howto/early-rejection: early rejection
howto/escalate: escalate, escalation
howto/evaluate: a/b test
howto/fallback: failover, fallback model
howto/fastapi: fastapi, disconnect
howto/faults: errors, exceptions, timeout, timeouts
howto/gateway: gateway, yaml, proxy
howto/gateway-clients: langchain, codex, node.js
howto/how-many-draws: how many draws
howto/images: vision, pdf
howto/journal: journal, resume, checkpoint, crash
howto/judge: judge, judges, llm as a judge, kappa
howto/jupyter: jupyter, notebooks
howto/limits: retry, retries, rate limit, rate limiter, circuit breaker, backoff
howto/local-server: vllm, ollama, llama.cpp
howto/pass-rates: flaky test
howto/plugins: hooks, plugins, plugin
howto/providers: azure, bedrock, anthropic
howto/ray: ray, cluster
howto/repair: repair, multi-turn
howto/report: html, mcnemar
howto/requirements: requirements, requirement, validator, regex
howto/rerun: file watcher, debounce
howto/rewards: grpo, trl
howto/schedules: hedging, stragglers, latency
howto/security: prompt injection, secrets
howto/stream: streams, streaming
howto/system-prompt: system prompt
howto/telemetry: opentelemetry, OpenTelemetry, logging, traces, telem
howto/testing: mock, pytest
howto/tools: tools, tool calling, function calling, agents
howto/training-data: DPO, fine-tuning, parquet
howto/typed-output: json schema, JSON Schema, structured output, pydantic, typed output
howto/verifiable-instructions: ifeval
howto/vote: vote, votes, majority vote, self-consistency
howto/web: flask, django, threads
concepts: seed, reproducible, cancel, lanes, concurrency
coming-from-instructor: Instructor
supported: trio, windows, python version
tutorial/01-first-sample: install, quickstart
"""
HITS = """(query) => {
    history.replaceState(null, "", "?" + new URLSearchParams({q: query}));
    return Search._performSearch(...Search._parseQuery(query)).reverse().map((hit) => hit[0]);
}"""


def test_each_guide_is_among_the_first_three_hits_for_what_people_call_its_subject(visit):
    missed = {}
    with visit("search.html") as page:
        page.wait_for_function("Search.hasIndex()")
        for line in GUIDES.strip().splitlines():
            guide, _, words = line.partition(": ")
            for query in words.split(", "):
                hits = page.evaluate(HITS, query)
                guides = [hit for hit in hits[:3] if not hit.startswith("api/")]
                if guide not in guides or hits[: len(guides)] != guides:
                    missed[query] = hits[:3]
    assert missed == {}


def test_a_name_of_several_words_finds_its_object_first(visit):
    with visit("search.html") as page:
        page.wait_for_function("Search.hasIndex()")
        for name in ("BestOf", "sample_many", "openaibackend", "SamplingResult.unwrap"):
            assert page.evaluate(HITS, name)[0].startswith("api/"), name


BROKEN = """[...document.querySelectorAll("td code .pre")]
    .filter((e) => e.getClientRects().length > 1)
    .map((e) => e.textContent)"""


def test_no_name_in_a_table_is_broken_on_a_phone(visit, site, address):
    pages = [page for page in site.glob("**/*.html") if "<td><p><code" in page.read_text("utf-8")]
    names = {page.relative_to(site).as_posix() for page in pages}
    assert {"concepts.html", "howto/gateway.html", "howto/typed-output.html"} <= names
    broken, wide = {}, {}
    with visit("index.html", viewport={"width": 390, "height": 844}) as phone:
        for name in sorted(names):
            phone.goto(f"{address}/{name}")
            broken[name] = phone.evaluate(BROKEN)
            wide[name] = phone.evaluate("document.documentElement.scrollWidth")
    assert {name: torn for name, torn in broken.items() if torn} == {}
    assert {name: width for name, width in wide.items() if width > 390} == {}


def links_of(page):
    """Find where a page leads to: (page, fragment) within the site."""
    html = re.sub(
        r"<(script|style|svg).*?</\1>", "", page.read_text(encoding="utf-8"), flags=re.DOTALL
    )
    for href in re.findall(r'<a\s[^>]*?href="([^"]+)"', html):
        parts = urlsplit(unescape(href))
        if not parts.scheme and not parts.netloc:
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            yield target, unquote(parts.fragment)


def test_no_summary_is_torn_at_its_colon(site):
    """Napoleon takes the words before a colon for a type, unless conf.py keeps it from that."""
    pages = [page.read_text(encoding="utf-8") for page in (site / "api").glob("*.html")]
    assert "field-odd" in "".join(pages)
    assert [re.findall(r'class="field-\w+">(?:Type|Return type)\b', page) for page in pages] == [
        [] for _ in pages
    ]


def test_no_link_within_the_site_is_dead(site):
    names = {
        page: {unescape(name) for name in re.findall(r'\bid="([^"]+)"', page.read_text("utf-8"))}
        for page in site.rglob("*.html")
    }
    dead = [
        (page.name, target.name, fragment)
        for page in names
        for target, fragment in links_of(page)
        if target.suffix == ".html"
        and (target not in names or (fragment and fragment not in names[target]))
    ]
    assert dead == []
    assert len(names) > 60
