"""Draws what ``benchmarks/peers.py --write`` measured: ``python docs/pictures/peers.py``."""

from __future__ import annotations

import json

from draw import BLUE, COLOURS, GRID, HERE, PALE, Drawing

PANELS = (
    ("p50", "seconds to a valid reply", "bar: median; line: 95th percentile", 124),
    ("busy_seconds", "seconds of the server", "for one valid reply", 148),
    ("cpu_ms", "ms of CPU an attempt", "in the client", 148),
)
GROUPS = {1: "One attempt after the other", 4: "Four lanes side by side"}
LEFT, STEP, TOP = 216, 200, 74


def peers() -> str:
    """Draw a bar for each way and figure."""
    measured = json.loads((HERE / "peers.json").read_text(encoding="utf-8"))
    rows = measured["rows"]
    height = TOP + len(rows) * 26 + len(GROUPS) * 34 + 24
    drawing = Drawing(
        820,
        height,
        "Time to a valid reply, the server's time and processor time, of this library, of its peers"
        " and of a loop by hand. The figures are those of the table.",
    )
    scales = []
    for number, (key, title, note, width) in enumerate(PANELS):
        x = LEFT + number * STEP
        drawing.text(x, 30, title, bold=True, size=13)
        drawing.text(x, 48, note, colour=PALE, size=10)
        drawing.line(x, TOP - 12, x, height - 36, GRID)
        scales.append(width / max(max(row[key], row["p95"] * (key == "p50")) for row in rows))
    y = TOP
    for lanes, words in GROUPS.items():
        drawing.text(24, y + 8, words, bold=True, size=13)
        y += 22
        for row in (row for row in rows if row["lanes"] == lanes):
            drawing.text(36, y + 13, row["name"], size=13)
            fill = COLOURS["passed"] if row["way"] == "mellea_like" else BLUE
            for number, (key, *_) in enumerate(PANELS):
                x, scale = LEFT + number * STEP, scales[number]
                end = x + row[key] * scale
                drawing.box(x, y + 1, row[key] * scale, 16, *fill)
                figure = f"{row[key]:.1f}" if key == "cpu_ms" else f"{row[key]:.2f}"
                if key == "p50":
                    figure += f"; {row['p95']:.2f}"
                    drawing.line(end, y + 9, x + row["p95"] * scale, y + 9, PALE)
                    end = x + row["p95"] * scale
                drawing.text(end + 5, y + 13, figure, size=11)
            y += 26
        y += 12
    drawing.text(24, height - 14, f"Measured {measured['date']}.", colour=PALE, size=11)
    return str(drawing)


if __name__ == "__main__":
    (HERE / "peers.svg").write_text(peers(), encoding="utf-8")
