"""Programs with tests, drawn, run and repaired; what passed and what failed becomes DPO pairs.

Shown: tests in a sandbox, a journal that keeps each draw, and an export that a trainer loads.
For your case: change `TASKS`; keep the journal (`journal="run.db"`) to go on after a crash.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from random import Random

import anyio
from stand_in import show, start

from mellea_like import Backend, Collect, Instruction, RepairTemplateStrategy, Request, sample_many
from mellea_like.export import export
from mellea_like.requirements.code import Sandbox, passes_tests

PAIRS = Path("pairs.jsonl")
TASKS = {
    "median(numbers)": """
assert median([3, 1, 2]) == 2
assert median([1, 2, 9]) == 2
assert median([4, 1, 3, 2]) == 2.5
""",
    "is_leap(year)": """
assert is_leap(2024)
assert not is_leap(1900)
assert is_leap(2000)
""",
    "collatz(n): how many steps it takes to reach 1": """
assert collatz(1) == 0
assert collatz(6) == 8
""",
}


async def write_pairs(model: Backend, journal: Path) -> int:
    """Draw until each task has two programs that pass; return how many pairs came of it."""
    strategy = RepairTemplateStrategy(model, loop_budget=6, selection=Collect(2))
    async with Sandbox() as sandbox:

        def ask(task: str) -> Instruction:
            tests = passes_tests(TASKS[task], names=[task.partition("(")[0]], sandbox=sandbox)
            return Instruction(f"Write a Python function {task}.", requirements=[tests])

        async with sample_many(
            strategy, TASKS, action=ask, concurrency=2, journal=journal, in_order=True
        ) as results:
            async for item in results:
                show(item.item, item)
    made = await anyio.to_thread.run_sync(lambda: export(journal, PAIRS, format="dpo"))
    return made.rows


async def main(model: Backend) -> None:
    with tempfile.TemporaryDirectory() as folder:
        pairs = await write_pairs(model, Path(folder) / "run.db")
    print(f"{PAIRS} has {pairs} pairs:")
    for line in (await anyio.Path(PAIRS).read_text("utf-8")).splitlines():
        pair = json.loads(line)
        for kind in ("chosen", "rejected"):
            print(f"  {kind}: ...{pair[kind][0]['content'].splitlines()[-2].strip()}")


# --- what plays the model: half of its programs are wrong, of those that it repairs one in five


def hopeful_coder(request: Request, chance: Random) -> str:
    prompt = request.messages[0].text
    right, wrong = next(v for k, v in KNOWN.items() if f" {k}(" in prompt)
    fails = chance.random() < (0.2 if "failed" in prompt else 0.5)
    return f"Here it is:\n```python\n{chance.choice(wrong if fails else right)}\n```"


MEDIAN = "def median(numbers):\n    n, s = len(numbers), sorted(numbers)\n    return {}"
LEAP = "def is_leap(year):\n    return year % 4 == 0{}"
COLLATZ = "def collatz(n):\n    return {} if n == 1 else 1 + collatz(3 * n + 1 if {} else n // 2)"
KNOWN = {
    "median": (
        [MEDIAN.format("(s[(n - 1) // 2] + s[n // 2]) / 2")],
        [MEDIAN.format("s[n // 2]"), MEDIAN.format("sum(s) / n")],
    ),
    "is_leap": (
        [LEAP.format(" and (year % 100 != 0 or year % 400 == 0)")],
        [LEAP.format(""), LEAP.format(" and year % 100 != 0"), LEAP.format(" and (year % 100")],
    ),
    "collatz": (
        [COLLATZ.format(0, "n % 2")],
        [COLLATZ.format(1, "n % 2"), COLLATZ.format(-1, "n % 2")],
    ),
}

if __name__ == "__main__":
    start(main, __doc__, model=hopeful_coder)
