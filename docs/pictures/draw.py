"""Draws the pictures of the documentation: ``python docs/pictures/draw.py``.

Timelines are real calls, recorded in virtual time, so that a picture can't say what the library
does not do. ``tests/test_pictures.py`` compares the files with what this script draws.
"""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import anyio

from mellea_like import Generation, Message, RejectionSamplingStrategy, Request
from mellea_like.backends import SimulatedBackend
from mellea_like.coalescing import ChatDispatcher, RerunGate, SamplingCoordinator, Tick
from mellea_like.testing import run_virtual

if TYPE_CHECKING:
    from mellea_like import SamplingResult
    from mellea_like.coalescing import AuditRecord

HERE = Path(__file__).parent
PALETTE = {  # Each colour by day, and by night.
    "ink": ("#22303c", "#e3e9ee"),
    "pale": ("#5b6b7a", "#a3b1bd"),
    "line": ("#9aa7b3", "#5d6b78"),
    "grid": ("#e6eaee", "#2c353e"),
    "paper": ("#fbfcfd", "#161b21"),
    "frame": ("#dfe4e8", "#333d47"),
    "card": ("#ffffff", "#202830"),
    "blue": ("#eef4fb", "#1a2a3c"),
    "blue-edge": ("#b9cfe6", "#3d5f85"),
    "violet": ("#f3f0fa", "#282340"),
    "violet-edge": ("#c9bde6", "#5d4f8f"),
    "passed": ("#bfe8cc", "#174a2b"),
    "passed-edge": ("#1a7038", "#7fdca0"),
    "failed": ("#f6d9a8", "#4d3709"),
    "failed-edge": ("#7d5306", "#f0c169"),
    "errored": ("#f3b9b4", "#58201b"),
    "errored-edge": ("#952217", "#f6a39b"),
    "cancelled": ("#e3e7eb", "#2c353e"),
    "cancelled-edge": ("#5b6b7a", "#a3b1bd"),
}


def shade(name: str) -> str:
    """Name a colour of the palette, as SVG does: a reader's scheme decides which it is."""
    return f"var(--{name})"


def _style() -> str:
    day, night = (
        "".join(f"--{name}:{both[number]};" for name, both in PALETTE.items()) for number in (0, 1)
    )
    return f":root{{{day}}}@media(prefers-color-scheme:dark){{:root{{{night}}}}}"


INK, PALE, LINE, GRID = map(shade, ("ink", "pale", "line", "grid"))
BLUE = shade("blue"), shade("blue-edge")
COLOURS = {
    outcome: (shade(outcome), shade(f"{outcome}-edge"))
    for outcome in ("passed", "failed", "errored", "cancelled")
}

LANES, DEPTH, SEED = 4, 3, 194
"""The call that the race shows; the seed was chosen because every outcome occurs."""


class Drawing:
    """An SVG drawing, put together piece by piece.

    Args:
        width: its width.
        height: its height.
        title: what it shows, for those who can't see it.
        style: further rules.
    """

    def __init__(self, width: int, height: int, title: str, style: str = "") -> None:
        self.parts = [
            (
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img"'
                f' font-family="system-ui, sans-serif" font-size="14">'
            ),
            f"<title>{escape(title)}</title>",
            f"<style>{_style()}{style}</style>",
            (
                '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8"'
                f' markerHeight="8" orient="auto"><path d="M0 0 8 4 0 8z" fill="{PALE}"/>'
                "</marker></defs>"
            ),
            (
                f'<rect width="{width}" height="{height}" rx="10" fill="{shade("paper")}"'
                f' stroke="{shade("frame")}"/>'
            ),
        ]

    def box(self, x: float, y: float, w: float, h: float, fill: str, edge: str = LINE) -> None:
        """Draw a box with round corners."""
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="5" fill="{fill}"'
            f' stroke="{edge}"/>'
        )

    def text(
        self, x: float, y: float, words: str, *, bold: bool = False, anchor: str = "start",
        colour: str = INK, size: int = 14,
    ) -> None:  # fmt: skip
        """Write words; ``anchor`` is start, middle or end."""
        weight = ' font-weight="600"' if bold else ""
        self.parts.append(
            f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" fill="{colour}"'
            f' font-size="{size}"{weight}>{escape(words)}</text>'
        )

    def arrow(self, *points: tuple[float, float], dashed: bool = False) -> None:
        """Draw a line through points, with a tip at its end."""
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self.parts.append(
            f'<polyline points="{path}" fill="none" stroke="{PALE}" stroke-width="1.5"{dash}'
            ' marker-end="url(#tip)"/>'
        )

    def line(self, x1: float, y1: float, x2: float, y2: float, colour: str = LINE) -> None:
        """Draw a thin line."""
        self.parts.append(
            f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{colour}"/>'
        )

    def __str__(self) -> str:
        return "\n".join([*self.parts, "</svg>", ""])


def engine() -> str:
    """Draw the lanes, the queue and the consumer."""
    drawing = Drawing(
        820,
        330,
        "Four lanes put finished draws onto a queue; one consumer takes them, tells"
        " plugins, and cancels the other lanes when one has passed.",
    )
    drawing.text(24, 34, "Lanes", bold=True)
    drawing.text(24, 54, "concurrency_budget = 4 at a time", colour=PALE, size=12)
    steps = ("generate", "validate", "repair")
    for row in range(LANES):
        y = 72 + row * 56
        drawing.box(24, y, 348, 42, *BLUE)
        drawing.text(36, y + 26, f"{row + 1}", bold=True)
        for number, step in enumerate(steps):
            x = 62 + number * 104
            drawing.box(x, y + 8, 84, 26, shade("card"))
            drawing.text(x + 42, y + 26, step, anchor="middle", size=13)
            if number:
                drawing.arrow((x - 19, y + 21), (x - 1, y + 21))
        drawing.arrow((312, y + 35), (312, y + 39), (104, y + 39), (104, y + 35))
        drawing.arrow((373, y + 20), (410, y + 20), (444, 173 + (row - 1.5) * 9))
    drawing.text(24, 312, "up to loop_budget attempts each", colour=PALE, size=12)

    drawing.text(446, 120, "Finished draws", bold=True)
    for number, outcome in enumerate(("failed", "errored", "passed")):
        fill, edge = COLOURS[outcome]
        drawing.box(450 + number * 44, 152, 40, 42, fill, edge)
    drawing.text(448, 216, "in the order they finish", colour=PALE, size=12)
    drawing.arrow((582, 173), (607, 173))

    drawing.text(612, 34, "One consumer", bold=True)
    duties = ("takes draw after draw,", "hands each to plugins", "and to on_slice")
    drawing.box(612, 48, 186, 236, shade("violet"), shade("violet-edge"))
    for number, duty in enumerate(duties):
        drawing.text(624, 80 + number * 22, duty, size=13)
    drawing.line(624, 144, 786, 144)
    drawing.text(624, 170, "at the first that passed", size=13, bold=True)
    for number, duty in enumerate(
        ("no new draw starts", "the others are cancelled", "the result returns")
    ):
        drawing.text(624, 194 + number * 22, duty, size=13)
    drawing.arrow((705, 285), (705, 308), (392, 308), (392, 268), (375, 268), dashed=True)
    drawing.text(550, 301, "cancel: requests are closed", anchor="middle", size=12, colour=PALE)
    return str(drawing)


def record() -> SamplingResult[str]:
    """Run the call that the timeline shows."""

    async def call() -> SamplingResult[str]:
        backend = SimulatedBackend(seed=SEED, median=1.0, pass_rate=0.2, error_rate=0.2)
        strategy = RejectionSamplingStrategy(
            backend, loop_budget=DEPTH, concurrency_budget=LANES, retry=None
        )
        return await strategy.sample("Anything.", [backend.requirement])

    return run_virtual(call)


def race() -> str:
    """Draw a real call: which attempt ran when, how it ended, and what the first pass cancelled."""
    result = record()
    left, right, top, row = 100, 796, 62, 46
    scale = (right - left) / (result.elapsed * 1.04)
    drawing = Drawing(
        820,
        316,
        "A call with four lanes over time. The second attempt of lane 3 passes; what the other"
        " lanes are drawing at that moment is cancelled.",
        "@media(max-width:520px){text{font-size:22px}}",  # On a phone, it is half as wide.
    )
    drawing.text(24, 26, "concurrency_budget=4, loop_budget=3", bold=True)
    bottom = top + LANES * row
    for second in range(int(result.elapsed) + 1):
        x = left + second * scale
        drawing.line(x, top - 8, x, bottom + 4, GRID)
        drawing.text(x, bottom + 20, f"{second} s", anchor="middle", size=12, colour=PALE)
    for lane in range(LANES):
        drawing.text(24, top + lane * row + 25, f"lane {lane + 1}", size=13)
    for slice_ in result.slices:
        fill, edge = COLOURS[slice_.outcome]
        x, y = left + slice_.started_at * scale, top + slice_.subsample * row + 4
        width = max(slice_.duration * scale - 3, 6)
        drawing.box(x, y, width, 32, fill, edge)
        words = f"attempt {slice_.depth + 1}"
        label = words if width > 8 * len(words) else words[-1]
        drawing.text(x + width / 2, y + 21, label, anchor="middle", size=13, colour=edge)
    end, won = left + result.elapsed * scale, COLOURS["passed"][1]
    drawing.line(end, top - 8, end, bottom + 4, won)
    drawing.text(end, top - 14, "passed: the rest is cancelled", anchor="end", size=12, colour=won)
    for number, (outcome, (fill, edge)) in enumerate(COLOURS.items()):
        x = left + number * 130
        drawing.box(x, 282, 22, 16, fill, edge)
        drawing.text(x + 30, 295, outcome, size=13)
    return str(drawing)


TYPED = (0.0, 0.35, 0.8, 2.0, 2.6, 3.0, 6.0)
"""When the messages of the chat come, in seconds."""

QUIET, RUN = 0.5, 2.0


def record_chat() -> list[tuple[float, float, list[float]]]:
    """Run the chat that the picture shows: each run's start, end and messages."""
    runs: list[tuple[float, float, list[float]]] = []

    async def reply(messages: list[float]) -> None:
        start = anyio.current_time()
        await anyio.sleep(RUN)
        runs.append((start, anyio.current_time(), messages))

    async def talk() -> None:
        async with ChatDispatcher(reply, quiet=QUIET) as dispatcher:
            for at in TYPED:
                await anyio.sleep_until(at)
                dispatcher.submit("chat", at)
            await anyio.sleep(QUIET)

    run_virtual(talk)
    return runs


def chat() -> str:
    """Draw a real chat: when messages came, and which run answered which."""
    runs = record_chat()
    left, top, scale = 128, 66, 72
    drawing = Drawing(820, 230, "Messages of a chat over time, and the runs that answer them.")
    drawing.text(24, 34, f"One session, quiet = {QUIET:g} s", bold=True)
    for second in range(10):
        x = left + second * scale
        drawing.line(x, top - 8, x, top + 126, GRID)
        drawing.text(x, top + 144, f"{second} s", anchor="middle", size=12, colour=PALE)
    for row, label in enumerate(("messages", "window", "runs")):
        drawing.text(24, top + 18 + row * 46, label, size=13)
    names = {at: f"{number}" for number, at in enumerate(TYPED, 1)}
    for number, (start, end, messages) in enumerate(runs):
        x, y = left + start * scale, top + 88
        fill, edge = COLOURS["passed"]
        drawing.box(x, y, (end - start) * scale - 3, 32, fill, edge)
        text = " + ".join(names[at] for at in messages)
        drawing.text(x + RUN * scale / 2, y + 21, text, anchor="middle", size=13, colour=edge)
        follows = bool(number) and start == runs[number - 1][1]
        if not follows:
            fill, edge = COLOURS["failed"]
            since = left + messages[0] * scale
            drawing.box(since, top + 44, x - since, 26, fill, edge)
            drawing.arrow((x, top + 70), (x, y - 1))
        for at in messages:
            mark = left + at * scale
            drawing.box(mark - 9, top, 18, 26, *BLUE)
            drawing.text(mark, top + 18, names[at], anchor="middle", size=13)
            if follows:
                drawing.arrow((mark, top + 27), (mark, top + 57), (x + 8, top + 57), (x + 8, y - 1))
    drawing.text(
        left + runs[1][0] * scale + 16, top + 61, "no window after a run", size=12, colour=PALE
    )
    return str(drawing)


CHANGES = (0.3, 0.5, 0.7, 1.4, 1.5, 2.1, 2.3, 5.1, 5.3, 5.5, 5.7, 5.9, 6.1, 6.3, 6.5, 6.7)
"""When files change in the picture of the rerun gate, in seconds."""


class Reruns(NamedTuple):
    """What happened: when each burst began and ended and why, and when each tick ran."""

    bursts: list[tuple[float, float, str]]
    ticks: list[tuple[float, float, tuple[str, ...]]]


def record_reruns() -> Reruns:
    """Run the gate that the picture shows."""

    async def call() -> Reruns:
        reruns = Reruns([], [])

        async def tick(tick: Tick) -> None:
            began = anyio.current_time()
            await anyio.sleep(1.6)
            reruns.ticks.append((began, anyio.current_time(), tick.reasons))

        async def gathered(changes: list[float]) -> None:  # noqa: RUF029 (a run is async)
            now = anyio.current_time()
            why = "quiet" if now < changes[0] + 1.2 else "cap"
            reruns.bursts.append((changes[0], now, why))
            gate.poke(f"{len(reruns.bursts)}")

        # What `watch` does with changes of files, with an exact clock.
        window = ChatDispatcher(gathered, quiet=0.4, max_wait=1.2)
        async with RerunGate(tick) as gate, window:
            for at in CHANGES:
                await anyio.sleep_until(at)
                window.submit("changes", at)
            await anyio.sleep(3)
        return reruns

    return run_virtual(call)


def rerun() -> str:
    """Draw what becomes of file changes: bursts, and ticks that never overlap."""
    reruns = record_reruns()
    left, right, row = 128, 792, 62
    scale = (right - left) / 10
    drawing = Drawing(
        820,
        300,
        "Changes of files are gathered into bursts; each burst pokes the gate, which runs one tick"
        " at a time. Bursts that end during a tick share the next one.",
    )
    drawing.text(24, 34, "Many changes, few runs, never two at a time", bold=True)
    top = 62
    bottom = top + 3 * row
    for second in range(11):
        x = left + second * scale
        drawing.line(x, top - 8, x, bottom, GRID)
        drawing.text(x, bottom + 18, f"{second} s", anchor="middle", size=12, colour=PALE)
    for number, (name, more) in enumerate(
        (("changes", "of files"), ("bursts", "quiet=0.4, max_wait=1.2"), ("ticks", "of the gate"))
    ):
        drawing.text(24, top + number * row + 22, name, size=13)
        if number != 1:
            drawing.text(24, top + number * row + 38, more, size=11, colour=PALE)
    for second in CHANGES:
        drawing.box(left + second * scale - 3, top + 8, 6, 26, *COLOURS["failed"])
    for number, (began, ended, why) in enumerate(reruns.bursts, 1):
        x, y, width = left + began * scale, top + row + 4, (ended - began) * scale
        drawing.box(x, y, width, 32, *COLOURS["cancelled"])
        drawing.text(x + width / 2, y + 21, f"{number}", anchor="middle", size=13)
        drawing.text(x + width / 2, y - 5, why, anchor="middle", size=11, colour=PALE)
        answer = next(tick for tick in reruns.ticks if str(number) in tick[2])
        to = left + answer[0] * scale
        drawing.arrow((x + width, y + 32), (x + width, y + 46), (to, y + 46), (to, y + 61))
    for began, ended, reasons in reruns.ticks:
        x, y, width = left + began * scale, top + 2 * row + 4, (ended - began) * scale - 3
        drawing.box(x, y, width, 32, *COLOURS["passed"])
        words = f"for {' and '.join(reasons)}"
        drawing.text(x + width / 2, y + 21, words, anchor="middle", size=12)
    summary = f"{len(CHANGES)} changes, {len(reruns.bursts)} bursts, {len(reruns.ticks)} ticks"
    drawing.text(left, bottom + 42, summary, size=12, colour=PALE)
    return str(drawing)


ASKED = {0.4: "a", 0.8: "b", 1.7: "c", 4.0: "a", 4.15: "a", 4.3: "b", 4.45: "c", 6.3: "b"}
"""Who asks when in the picture of the coordinator, in seconds."""

WINDOW, MOST, ANSWERING = 2.0, 4, 1.4


class Batched(NamedTuple):
    """A batch: when its members asked, when it was sent, and when it was answered."""

    asked: list[float]
    began: float
    ended: float


def record_batches() -> list[Batched]:
    """Run the coordinator that the picture shows."""
    calls: list[tuple[float, float]] = []
    ends: dict[str | None, list[AuditRecord]] = {}

    class Slow:
        async def generate(self, request: Request) -> Generation:  # noqa: ARG002
            began = anyio.current_time()
            await anyio.sleep(ANSWERING)
            calls.append((began, anyio.current_time()))
            # A refusal goes to every member: enough for a picture of when.
            return Generation("no", finish_reason="refusal")

    def note(record: AuditRecord) -> None:
        if record.status != "asked":
            ends.setdefault(record.batch_id, []).append(record)

    async def call() -> list[Batched]:
        async with SamplingCoordinator(
            Slow(), window=WINDOW, max_batch=MOST, audit=note
        ) as coordinator:

            async def ask(at: float) -> None:
                await anyio.sleep_until(at)
                await coordinator.generate(Request((Message("user", f"{at}"),)))

            async with anyio.create_task_group() as tasks:
                for at in ASKED:
                    tasks.start_soon(ask, at)
        asked = [[ended - record.waited for record in records]
                 for (_, ended), records in zip(calls, ends.values(), strict=True)]  # fmt: skip
        return [Batched(sorted(times), *call) for times, call in zip(asked, calls, strict=True)]

    return run_virtual(call)


def coordinator() -> str:
    """Draw which requests go together, and when."""
    batches = record_batches()
    left, top, scale = 128, 66, 66
    drawing = Drawing(
        820,
        262,
        "Requests of three callers over time. Three that come within the window go in one batch;"
        " four fill a batch, which goes at once; one that is alone is passed on as it is.",
    )
    drawing.text(24, 34, f"window = {WINDOW:g} s, max_batch = {MOST}", bold=True)
    for second in range(11):
        x = left + second * scale
        drawing.line(x, top - 8, x, top + 150, GRID)
        drawing.text(x, top + 168, f"{second} s", anchor="middle", size=12, colour=PALE)
    for row, label in enumerate(("requests", "window", "calls")):
        drawing.text(24, top + 18 + row * 54, label, size=13)
    for at, caller in ASKED.items():
        drawing.box(left + at * scale - 4.5, top, 9, 26, *BLUE)
        drawing.text(left + at * scale, top - 4, caller, anchor="middle", size=12, colour=PALE)
    for batch in batches:
        first, count = left + batch.asked[0] * scale, len(batch.asked)
        x, y = left + batch.began * scale, top + 106
        drawing.box(first, top + 54, x - first, 26, *COLOURS["failed"])
        drawing.arrow((x, top + 81), (x, y - 1))
        drawing.box(x, y, (batch.ended - batch.began) * scale, 32, *COLOURS["passed"])
        words = f"{count} in one" if count > 1 else "1, untouched"
        drawing.text(x + 46, y + 21, words, anchor="middle", size=13, colour=COLOURS["passed"][1])
        if count == MOST:
            drawing.text(x + 8, top + 72, "full: at once", size=12, colour=PALE)
    summary = f"{len(ASKED)} requests, {len(batches)} calls"
    drawing.text(left, top + 188, summary, size=12, colour=PALE)
    return str(drawing)


PICTURES = {
    "engine.svg": engine,
    "race.svg": race,
    "chat.svg": chat,
    "rerun.svg": rerun,
    "coordinator.svg": coordinator,
}


if __name__ == "__main__":
    for name, draw in PICTURES.items():
        (HERE / name).write_text(draw(), encoding="utf-8")
