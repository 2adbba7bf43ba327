"""What surrounds the engine: a batch's journal, Ray, the client, the gateway, a report.

    python benchmarks/surroundings.py            print the table
    python benchmarks/surroundings.py --check    and exit 1 where a figure misses its target

Each figure stands beside what it is to be judged by, measured in the same run: batches beside
workers that share the items, written by hand; Ray beside one process; a request through the gateway
beside the same one at the upstream alone; what a request costs its client beside the bare HTTP
library. The modules named ``_..._rows.py`` say how.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from typing import NamedTuple

import _batch_rows
import _client_rows
import _gateway_rows
import _report_size

PARTS = ("batch", "ray", "client", "gateway", "report")


class Row(NamedTuple):
    """One line of the table.

    Attributes:
        what: what was measured.
        figure: what came out.
        beside: the figure that it is judged by.
        ratio: the one over the other, or what else is judged.
        target: what that should be.
        met: whether it is.
    """

    what: str
    figure: str
    beside: str
    ratio: str
    target: str
    met: bool = True


def batch() -> list[Row]:
    found = _batch_rows.measure()
    base = found["by hand"]
    rows = [Row("workers by hand, `strategy.sample` only", f"{base:,.0f} items/s", "", "", "")]
    before, name = base, "by hand"
    for kind, least in (("sample_many", 0.4), ("journal, best text", 0.1)):
        ratio = found[kind] / before
        shown = f"{found[kind]:,.0f} items/s"
        target = f"{ratio:.2f}", f"at least {least}"
        rows.append(Row(kind, shown, name, *target, ratio >= least))
        before, name = found[kind], kind
    ratio = found["journal, all text"] / found["sample_many"]
    shown = f"{found['journal, all text']:,.0f} items/s"
    rows.append(Row("journal, all text", shown, "sample_many", f"{ratio:.2f}", "at least 0.1"))
    usual, relaxed = (found[kind] for kind in _batch_rows.WIDE)
    rows.append(Row("sample_many, 1,000 at a time", f"{usual:,.0f} items/s", "", "", ""))
    gain = f"{relaxed / usual:.2f}"
    shown = f"{relaxed:,.0f} items/s"
    what = "the same in `relaxed_gc`"
    rows.append(Row(what, shown, "without", gain, "at least 1.0", relaxed >= usual))
    return rows


def ray() -> list[Row]:
    if importlib.util.find_spec("ray") is None:
        print("Ray is not installed: its rows are left out.", file=sys.stderr)
        return []
    import _ray_rows

    found = _ray_rows.measure()
    one, ideal = found["one process"], found["ideal"]
    rows = [Row("one process, calls of 0.25 s", f"{one:.1f} rows/s", "", "", "")]
    for kind, what in (("Ray", "the actors' start included"), ("Ray, while it calls", "no start")):
        slower = ideal / found[kind]
        rows.append(
            Row(
                f"Ray, 2 actors, as many calls at a time, {what}",
                f"{found[kind]:.1f} rows/s",
                f"the ideal, {ideal:.0f}",
                f"{slower:.2f} times its time",
                "at most 2.0",
                slower <= 2.0,
            )
        )
    for kind, calls, least in (("Ray", "0.25 s", 0.9), ("Ray, short calls", "0.05 s", 0.6)):
        with_journals = found[f"{kind}, while it calls"]
        without = found[f"{kind}, no journal, while it calls"]
        ratio = with_journals / without
        rows.append(
            Row(
                f"Ray with journals, calls of {calls}, no start",
                f"{with_journals:.1f} rows/s",
                f"without journals, {without:.1f}",
                f"{ratio:.2f}",
                f"at least {least}",
                ratio >= least,
            )
        )
    return rows


def client() -> list[Row]:
    found = _client_rows.measure()
    rows: list[Row] = []
    for at_a_time in (1, 32):
        bare = found[f"bare httpx2, {at_a_time}"]
        rows.append(Row(f"bare httpx2, {at_a_time} at a time", f"{bare:.2f} ms of CPU", "", "", ""))
        for kind, most in (
            ("the SDK's stream", None),
            ("OpenAIBackend", 1.6),
            ("OpenAIBackend, streamed", 1.9),
        ):
            spent = found[f"{kind}, {at_a_time}"]
            ratio = spent / bare
            rows.append(
                Row(
                    f"{kind}, {at_a_time} at a time",
                    f"{spent:.2f} ms of CPU",
                    "bare httpx2",
                    f"{ratio:.2f}",
                    "" if most is None else f"at most {most}",
                    most is None or ratio <= most,
                )
            )
    return rows


def gateway() -> list[Row]:
    found = _gateway_rows.measure()
    added = found["added"]
    return [
        Row("a request at the upstream alone", f"{found['alone']:.2f} ms", "", "", ""),
        Row(
            "the same through the gateway",
            f"{found['gateway']:.2f} ms",
            "the upstream",
            f"{added:.2f} ms more",
            "at most 10 ms more",
            added <= 10,
        ),
    ]


def report() -> list[Row]:
    found = _report_size.measure()
    size, larger = found["kilobytes"], found["kilobytes of 100 times"]
    return [
        Row(
            "report on 1,000 items",
            f"{size:.0f} KB",
            "",
            f"{found['seconds']:.2f} s to make",
            "under 300 KB",
            size < 300,
        ),
        Row(
            "report on 100,000 items",
            f"{larger:.0f} KB",
            "on 1,000",
            f"{larger / size:.2f}",
            "under 300 KB",
            larger < 300,
        ),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--check", action="store_true", help="exit 1 where a figure misses")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="some parts only")
    arguments = parser.parse_args()
    measured = {
        "batch": batch,
        "ray": ray,
        "client": client,
        "gateway": gateway,
        "report": report,
    }
    missed: list[str] = []
    print("| what | figure | beside | ratio | target |")
    print("|---|--:|---|--:|---|")
    for part in arguments.only:
        for row in measured[part]():
            print("|", " | ".join(row[:-1]), "|", flush=True)
            if not row.met:
                missed.append(f"{row.what}: {row.ratio}, {row.target} wanted")
    for miss in missed:
        print("missed:", miss)
    return 1 if missed and arguments.check else 0


if __name__ == "__main__":
    sys.exit(main())
