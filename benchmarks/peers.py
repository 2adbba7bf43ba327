"""One task, done by this library, by its peers and by hand, before one server that counts.

    python benchmarks/peers.py --install    make an environment for each peer, with pip
    python benchmarks/peers.py              measure, and print the table
    python benchmarks/peers.py --write      and put table and picture into the documentation
    python benchmarks/peers.py --check      and exit 1 where this library misses its targets

The task is a typed reply that passes a check, with at most 16 attempts. The server
(`_peer_server.py`) streams or answers at once, as it is asked, gives each attempt a length and a
chance to be right from a seed, and notices when a client leaves. Each way (`_peer_calls.py`) runs
in a process and an environment of its own. All take turns, and meet the same answers trial by
trial. A peer that isn't installed is left out. It takes about six minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import textwrap
import time
import urllib.request
import venv
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
ROOT = HERE.parent
DATA = ROOT / "docs" / "pictures" / "peers.json"
PAGE = ROOT / "docs" / "benchmarks.md"
FIRST = ROOT / "docs" / "index.md"
MARKS = ("<!-- peers: written by benchmarks/peers.py -->", "<!-- peers: end -->")
PEERS = {
    "Mellea": "mellea==0.8.0",
    "Instructor": "instructor==1.17.0",
    "Pydantic AI": "pydantic-ai-slim[openai]==2.68.0",
    "DSPy": "dspy==3.4.1",
}
HAND, OURS = "by hand", "mellea_like"
TRIALS = 60
STARTS = 3
ROUNDS = 5
CALLS = 30
"""Calls of a round in which the server answers at once: about 75 attempts."""
GRACE = 0.02
"""Seconds after the return of a call when the requests that still run are counted."""
MOST = {"time": 1.15, "busy": 1.2, "running": 0.0}
"""What `--check` allows this library beside the loop by hand."""
OF_MELLEA = 0.35
"""The most CPU that an attempt may take beyond the loop by hand, as a share of Mellea's."""


class Row(NamedTuple):
    """One way of doing the task."""

    way: str
    lanes: int

    @property
    def name(self) -> str:
        """What the table calls it."""
        return f"{self.way} {PEERS[self.way].partition('==')[2]}" if self.way in PEERS else self.way


ROWS = (
    Row(HAND, 1), Row(OURS, 1), Row("Mellea", 1), Row("Instructor", 1), Row("Pydantic AI", 1),
    Row("DSPy", 1), Row(HAND, 4), Row(OURS, 4), Row("Mellea", 4),
)  # fmt: skip


class Server:
    """The server that counts.

    Args:
        port: where it is.
    """

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    def begin(self, seed: int, *, pause: bool) -> None:
        """Start the answers of a seed."""
        self._get(f"/begin?seed={seed}&pause={int(pause)}")

    def log(self) -> list[tuple[float, float, bool]]:
        """Return when each request began and ended, when all have."""
        while True:
            log: list[tuple[float, float, bool]] = self._get("/log")
            if all(end is not None for _, end, _ in log):
                return log
            time.sleep(GRACE)

    def _get(self, path: str) -> Any:
        with urllib.request.urlopen(self.url + path) as answer:
            return json.load(answer)


@contextmanager
def serving() -> Iterator[Server]:
    """Run the server."""
    command = [sys.executable, HERE / "_peer_server.py"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield Server(int(process.stdout.readline()))
        finally:
            process.terminate()


@contextmanager
def calling(row: Row, python: Path, server: Server) -> Iterator[Callable[[int], Any]]:
    """Run a way; what is yielded makes calls and returns what was told of them."""
    command = [python, HERE / "_peer_calls.py", row.way, f"{server.url}/v1", str(row.lanes)]
    # Whatever lies in the folder of the script must not hide a library of that name.
    environment = os.environ | {"PYTHONSAFEPATH": "1"}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        text=True, env=environment,
    ) as process:  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None

        def call(times: int) -> Any:
            print(times, file=process.stdin, flush=True)
            told = process.stdout.readline() if process.stdout else ""
            if not told:
                sys.exit(f"{row.name} failed: {' '.join(map(str, command))}")
            return json.loads(told)

        yield call


class Figures:
    """What was measured of one way."""

    def __init__(self) -> None:
        self.start = 0.0
        self.taken: list[float] = []
        self.busy: list[float] = []
        self.running: list[int] = []
        self.cpu: list[float] = []
        self.memory = 0.0

    def trial(self, told: Any, log: list[tuple[float, float, bool]]) -> None:
        """Add a call and what the server saw of it."""
        then = told["returned"] + GRACE
        self.taken += told["taken"]
        self.busy.append(sum(end - begin for begin, end, _ in log))
        self.running.append(sum(end > then for _, end, _ in log))
        self.memory = told["memory"] / 2**20


def measure(environments: Path, trials: int) -> dict[Row, Figures]:
    """Measure all ways that are installed, in turn."""
    pythons = {HAND: Path(sys.executable), OURS: Path(sys.executable)}
    pythons |= {way: interpreter(environments / folder(way)) for way in PEERS}
    rows = [row for row in ROWS if pythons[row.way].exists()]
    figures = {row: Figures() for row in rows}
    with serving() as server:
        started: dict[str, list[float]] = {row.way: [] for row in rows}
        for _ in range(STARTS):
            for way, taken in started.items():
                server.begin(0, pause=False)
                with calling(Row(way, 1), pythons[way], server) as call:
                    taken.append(call(1)["since_start"])
        for row in rows:
            figures[row].start = statistics.median(started[row.way])
        with ExitStack() as stack:
            calls = {
                row: stack.enter_context(calling(row, pythons[row.way], server)) for row in rows
            }
            for number in range(ROUNDS + 1):
                for row in rows:
                    server.begin(number, pause=False)
                    worked = calls[row](CALLS)["worked"] / len(server.log())
                    if number:  # The first is to warm up.
                        figures[row].cpu.append(worked)
            for trial in range(trials):
                first = trial % len(rows)
                for row in rows[first:] + rows[:first]:
                    server.begin(trial, pause=True)
                    figures[row].trial(calls[row](1), server.log())
                print(f"{trial + 1} of {trials}", file=sys.stderr, end="\r")
    return figures


def summary(figures: dict[Row, Figures]) -> list[dict[str, Any]]:
    """Return the rows of the table, with ratios beside the loop by hand that has as many lanes."""

    def row_of(row: Row) -> dict[str, Any]:
        mine, hand = figures[row], figures[Row(HAND, row.lanes)]
        beside = [a / b for a, b in zip(mine.taken, hand.taken, strict=True)]
        ratios = [a / b for a, b in zip(mine.cpu, hand.cpu, strict=True)]
        return {
            "way": row.way,
            "name": row.name,
            "lanes": row.lanes,
            "p50": statistics.median(mine.taken),
            "p95": statistics.quantiles(mine.taken, n=20)[-1],
            "time": statistics.median(beside),
            "busy_seconds": statistics.mean(mine.busy),
            "busy": sum(mine.busy) / sum(hand.busy),
            "running": statistics.mean(mine.running),
            "cpu_ms": statistics.median(mine.cpu) * 1000,
            "cpu": statistics.median(ratios),
            "start": mine.start,
            "memory": mine.memory,
        }

    return [row_of(row) for row in figures]


def spread(rows: list[dict[str, Any]], key: str, digits: int) -> str:
    """Return the least and the most of a figure."""
    figures = sorted(row[key] for row in rows)
    return f"{figures[0]:.{digits}f} to {figures[-1]:.{digits}f}"


def three_figures(rows: list[dict[str, Any]]) -> str:
    """Return the table of the first page."""
    peers = [row for row in rows if row["way"] in PEERS]
    if not peers:
        return ""
    ours = next(row for row in rows if row["way"] == OURS and row["lanes"] > 1)
    racing = {row["name"] for row in peers if row["lanes"] > 1}
    single = dict.fromkeys(row["name"] for row in peers if row["name"] not in racing)
    names = f"{', '.join(sorted(racing))}; one attempt after the other: {', '.join(single)}"
    median, late = spread(peers, "p50", 2), spread(peers, "p95", 2)
    lines = [
        f"| before the same server | mellea_like, four lanes | {names} |",
        "|---|--:|--:|",
        f"| a valid reply, in the median after | {ours['p50']:.2f} s | {median} s |",
        f"| and at the 95th percentile | {ours['p95']:.2f} s | {late} s |",
        (
            f"| requests that still run 20 ms after the call | {ours['running']:.1f}"
            f" | {spread(peers, 'running', 1)} |"
        ),
        (
            f"| CPU of an attempt in the client | {ours['cpu_ms']:.1f} ms"
            f" | {spread(peers, 'cpu_ms', 1)} ms |"
        ),
    ]
    return "\n".join(lines)


def in_short(rows: list[dict[str, Any]]) -> str:
    """Return what the table says, in sentences that another run changes by itself."""
    found = {(row["way"], row["lanes"]): row for row in rows}
    ours, alone = found[OURS, 4], found[OURS, 1]
    single = [row for row in rows if row["way"] in PEERS and row["lanes"] == 1]
    if not single:
        return ""

    dearer = ours["busy_seconds"] / alone["busy_seconds"]
    running = f"{ours['running']:.1f} requests still run" if ours["running"] else "no request runs"
    time_ = (
        f"**Time.** Four lanes side by side have a valid reply after {ours['p50']:.2f} s in the"
        f" median and {ours['p95']:.2f} s at the 95th percentile; the peers, one attempt after"
        f" the other, after {spread(single, 'p50', 2)} s and {spread(single, 'p95', 2)} s."
    )
    cpu = (
        f"**Processor time.** An attempt takes {alone['cpu_ms']:.1f} ms of CPU in the client,"
        f" {found[HAND, 1]['cpu_ms']:.1f} ms by hand, and {spread(single, 'cpu_ms', 1)} ms with the"
        " peers."
    )
    cost = (
        "**When one attempt at a time is better.** Four lanes cost the server"
        f" {dearer:.1f} times as much for a valid reply. Instructor, Pydantic AI and DSPy work one"
        " after the other, and where the server's time counts for more than the wait, they are as"
        " good as this library with one lane."
    )
    said = [time_, cpu, cost]
    if mellea := found.get(("Mellea", 4)):
        said.insert(
            1,
            f"**Losers.** 20 ms after the return of a call with four lanes, {running}; with"
            f" Mellea's, {mellea['running']:.1f} do, and the server works"
            f" {mellea['busy'] / ours['busy']:.1f} times as long for a valid reply.",
        )
    return "\n".join(textwrap.fill(f"- {words}", 118, subsequent_indent="  ") for words in said)


def table(measured: dict[str, Any]) -> str:
    """Return the table in Markdown, and what it says."""
    heads = (
        "way", "lanes", "p50, s", "p95, s", "times by hand", "server, s", "running",
        "CPU, ms", "times by hand", "start, s", "memory, MB",
    )  # fmt: skip
    lines = ["| " + " | ".join(heads) + " |", "|---|" + "--:|" * (len(heads) - 1)]
    formats = {
        "name": "", "lanes": "", "p50": ".2f", "p95": ".2f", "time": ".2f", "busy_seconds": ".2f",
        "running": ".2f", "cpu_ms": ".1f", "cpu": ".1f", "start": ".2f", "memory": ".0f",
    }  # fmt: skip
    for row in measured["rows"]:
        cells = (format(row[key], form) for key, form in formats.items())
        lines.append(f"| {' | '.join(cells)} |")
    when = f"Measured {measured['date']}, {measured['where']}."
    when = textwrap.fill(when, 118)
    return "\n\n".join((when, "\n".join(lines), in_short(measured["rows"])))


def write(measured: dict[str, Any]) -> None:
    """Put the tables into their pages, and the figures where the picture is drawn from."""
    DATA.write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")
    for page, words in {PAGE: table(measured), FIRST: three_figures(measured["rows"])}.items():
        before, mark, rest = page.read_text(encoding="utf-8").partition(MARKS[0])
        _, end, after = rest.partition(MARKS[1])
        if not (mark and end):
            sys.exit(f"{page} has no marks for the table")
        page.write_text(f"{before}{mark}\n\n{words}\n\n{end}{after}", encoding="utf-8")
    subprocess.run([sys.executable, DATA.with_suffix(".py")], check=True)


def misses(measured: dict[str, Any]) -> list[str]:
    """Return which targets this library misses."""
    missed = [
        f"{row['lanes']} lanes: {name} is {row[name]:.2f}, more than {most}"
        for row in measured["rows"]
        if row["way"] == OURS
        for name, most in MOST.items()
        if row[name] > most
    ]
    cpu = {(row["way"], row["lanes"]): row["cpu_ms"] for row in measured["rows"]}
    for lanes in sorted({lanes for way, lanes in cpu if way == "Mellea"}):
        ours, theirs = (cpu[way, lanes] - cpu[HAND, lanes] for way in (OURS, "Mellea"))
        if ours > OF_MELLEA * theirs:
            missed.append(
                f"{lanes} lanes: {ours:.1f} ms of CPU more than by hand, Mellea {theirs:.1f} ms"
            )
    return missed


def folder(way: str) -> str:
    """Return the name of a peer's environment."""
    return way.lower().replace(" ", "-")


def interpreter(environment: Path) -> Path:
    """Return the Python of an environment."""
    return environment / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def install(environments: Path) -> None:
    """Make an environment for each peer, unless it is there already."""
    for way, wanted in PEERS.items():
        home = environments / folder(way)
        stamp = home / "installed"
        if not (stamp.exists() and stamp.read_text(encoding="utf-8") == wanted):
            venv.create(home, clear=True, with_pip=True)
            pip = [interpreter(home), "-m", "pip", "install", "--quiet", wanted]
            if subprocess.run(pip, check=False).returncode:
                print(f"{wanted} can't be installed here: it is left out", file=sys.stderr)
                interpreter(home).unlink()
            else:
                stamp.write_text(wanted, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description="One task, done by this library, peers, by hand.")
    for option in ("install", "write", "check"):
        parser.add_argument(f"--{option}", action="store_true")
    parser.add_argument("--environments", type=Path, default=ROOT / ".nox" / "peers")
    parser.add_argument("--trials", type=int, default=TRIALS)
    asked = parser.parse_args()
    if asked.install:
        install(asked.environments)
        return
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    rows = summary(measure(asked.environments.absolute(), asked.trials))
    where = (
        f"{os.cpu_count()} cores, {platform.system()}, CPython {platform.python_version()},"
        f" openai {version('openai')}, {asked.trials} calls of each, with a load average of"
        f" {load:.0f} before it began"
    )
    measured = {"date": f"{datetime.now(UTC):%Y-%m-%d}", "where": where, "rows": rows}
    print(table(measured))
    if asked.write:
        write(measured)
    if asked.check and (missed := misses(measured)):
        sys.exit("\n".join(missed))


if __name__ == "__main__":
    main()
