"""Draws the pictures of docs/concepts.md: ``python docs/pictures/draw.py``.

The timeline is a real call, recorded in virtual time, so that the picture can't say what the engine
does not do. ``tests/test_pictures.py`` compares the files with what this script draws.
"""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from mellea_like import RejectionSamplingStrategy
from mellea_like.backends import SimulatedBackend
from mellea_like.testing import run_virtual

if TYPE_CHECKING:
    from mellea_like import SamplingResult

HERE = Path(__file__).parent
INK, PALE, LINE = "#22303c", "#5b6b7a", "#9aa7b3"
COLOURS = {
    "passed": ("#bfe8cc", "#1d7a3e"),
    "failed": ("#f6d9a8", "#96650a"),
    "errored": ("#f3b9b4", "#a5281b"),
    "cancelled": ("#e3e7eb", "#5b6b7a"),
}

SUBSAMPLES, DEPTH, SEED = 4, 3, 194
"""The call that the timeline shows; the seed was chosen because every outcome occurs."""


class Drawing:
    """An SVG drawing, put together piece by piece.

    Args:
        width: its width.
        height: its height.
        title: what it shows, for those who can't see it.
    """

    def __init__(self, width: int, height: int, title: str) -> None:
        self.parts = [
            (
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img"'
                f' font-family="system-ui, sans-serif" font-size="14">'
            ),
            f"<title>{escape(title)}</title>",
            (
                '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8"'
                f' markerHeight="8" orient="auto"><path d="M0 0 8 4 0 8z" fill="{PALE}"/>'
                "</marker></defs>"
            ),
            f'<rect width="{width}" height="{height}" rx="10" fill="#fbfcfd" stroke="#dfe4e8"/>',
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
    """Draw the subsamples, the queue and the consumer."""
    drawing = Drawing(
        820,
        330,
        "Four subsamples put finished slices onto a queue; one consumer takes them, tells"
        " plugins, and cancels the siblings when one has passed.",
    )
    drawing.text(24, 34, "Subsamples", bold=True)
    drawing.text(24, 54, "concurrency_budget = 4 at a time", colour=PALE, size=12)
    steps = ("generate", "validate", "repair")
    for row in range(SUBSAMPLES):
        y = 72 + row * 56
        drawing.box(24, y, 348, 42, "#eef4fb", "#b9cfe6")
        drawing.text(36, y + 26, f"{row}", bold=True)
        for number, step in enumerate(steps):
            x = 62 + number * 104
            drawing.box(x, y + 8, 84, 26, "#ffffff")
            drawing.text(x + 42, y + 26, step, anchor="middle", size=13)
            if number:
                drawing.arrow((x - 19, y + 21), (x - 1, y + 21))
        drawing.arrow((312, y + 35), (312, y + 39), (104, y + 39), (104, y + 35))
        drawing.arrow((373, y + 20), (410, y + 20), (444, 173 + (row - 1.5) * 9))
    drawing.text(24, 312, "up to loop_budget iterations each", colour=PALE, size=12)

    drawing.text(446, 120, "Queue of slices", bold=True)
    for number, outcome in enumerate(("failed", "errored", "passed")):
        fill, edge = COLOURS[outcome]
        drawing.box(450 + number * 44, 152, 40, 42, fill, edge)
    drawing.text(448, 216, "in the order they finish", colour=PALE, size=12)
    drawing.arrow((582, 173), (607, 173))

    drawing.text(612, 34, "One consumer", bold=True)
    duties = ("takes slice after slice,", "hands each to plugins", "and to on_slice")
    drawing.box(612, 48, 186, 236, "#f3f0fa", "#c9bde6")
    for number, duty in enumerate(duties):
        drawing.text(624, 80 + number * 22, duty, size=13)
    drawing.line(624, 144, 786, 144)
    drawing.text(624, 170, "at the first that passed", size=13, bold=True)
    for number, duty in enumerate(
        ("no new turn starts", "siblings are cancelled", "the result returns")
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
            backend, loop_budget=DEPTH, concurrency_budget=SUBSAMPLES, retry=None
        )
        return await strategy.sample("Anything.", [backend.requirement])

    return run_virtual(call)


def timeline() -> str:
    """Draw a real call: which iteration ran when, and how it ended."""
    result = record()
    left, right, top, row = 128, 780, 62, 46
    scale = (right - left) / (result.elapsed * 1.04)
    drawing = Drawing(820, 316, "A call with four subsamples over time.")
    drawing.text(24, 34, "A call with 4 subsamples of 3 turns", bold=True)
    bottom = top + SUBSAMPLES * row
    for half in range(int(result.elapsed * 2) + 1):
        x = left + half / 2 * scale
        drawing.line(x, top - 8, x, bottom + 4, "#e6eaee")
        if half % 2 == 0:
            drawing.text(x, bottom + 20, f"{half // 2} s", anchor="middle", size=12, colour=PALE)
    for subsample in range(SUBSAMPLES):
        y = top + subsample * row + 24
        drawing.text(24, y, f"subsample {subsample}", size=13)
    for slice_ in result.slices:
        fill, edge = COLOURS[slice_.outcome]
        x, y = left + slice_.started_at * scale, top + slice_.subsample * row + 4
        width = max(slice_.duration * scale - 3, 6)
        drawing.box(x, y, width, 32, fill, edge)
        drawing.text(
            x + width / 2, y + 21, f"{slice_.iteration}", anchor="middle", size=13, colour=edge
        )
    end = left + result.elapsed * scale
    drawing.line(end, top - 8, end, bottom + 4, "#1d7a3e")
    drawing.text(end, top - 14, "won", anchor="middle", size=12, colour="#1d7a3e")
    for number, (outcome, (fill, edge)) in enumerate(COLOURS.items()):
        x = left + number * 130
        drawing.box(x, 282, 22, 16, fill, edge)
        drawing.text(x + 30, 295, outcome, size=13)
    return str(drawing)


PICTURES = {"engine.svg": engine, "timeline.svg": timeline}


if __name__ == "__main__":
    for name, draw in PICTURES.items():
        (HERE / name).write_text(draw(), encoding="utf-8")
