"""Code generation, end to end: draw programs, test them, repair what fails, export pairs for DPO.

Each task is a prompt with tests. A reply's program runs in a process of its own, and its tests
drive it from another one; a failed assertion, with the values that it found, goes into the prompt
of the repair. The journal keeps every draw: what passed and what failed become pairs for training.

Nothing here needs a network: a scripted backend plays a model that gets the easy cases right, and
reads what went wrong. For a real model, put its backend in the place of ``ScriptedBackend``.

Run it: ``python examples/code_generation.py``
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import anyio

from mellea_like import Instruction, RepairTemplateStrategy, Request
from mellea_like.backends import ScriptedBackend
from mellea_like.batch import sample_many
from mellea_like.export import export
from mellea_like.requirements.code import Sandbox, passes_tests

TASKS = [
    {
        "name": "median",
        "prompt": "Write a Python function median(numbers).",
        "tests": "assert median([3, 1, 2]) == 2\nassert median([4, 1, 3, 2]) == 2.5",
    },
    {
        "name": "is_leap",
        "prompt": "Write a Python function is_leap(year).",
        "tests": "assert is_leap(2024)\nassert not is_leap(1900)\nassert is_leap(2000)",
    },
    {
        "name": "collatz",
        "prompt": "Write a Python function collatz(n): how many steps it takes to reach 1.",
        "tests": "assert collatz(1) == 0\nassert collatz(6) == 8",
    },
]

FIRST = {
    "median": "def median(numbers):\n    return sorted(numbers)[len(numbers) // 2]",
    "is_leap": "def is_leap(year):\n    return year % 4 == 0",
    "collatz": (
        "def collatz(n):\n    steps = 0\n    while n != 1:\n"
        "        n = n // 2 if n % 2 else 3 * n + 1\n        steps += 1\n    return steps"
    ),
}
REPAIRED = {
    "median": "import statistics\n\n\ndef median(numbers):\n    return statistics.median(numbers)",
    "is_leap": (
        "def is_leap(year):\n    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)"
    ),
    "collatz": (
        "def collatz(n):\n    steps = 0\n    while n != 1:\n"
        "        n = 3 * n + 1 if n % 2 else n // 2\n        steps += 1\n    return steps"
    ),
}


def model(request: Request) -> str:
    """Write a first draft, and a better one once it is said what is wrong with it."""
    prompt = request.messages[-1].content
    name = next(task["name"] for task in TASKS if f" {task['name']}(" in prompt)
    told = "failed" in prompt or "not done after" in prompt
    return f"Here it is:\n\n```python\n{(REPAIRED if told else FIRST)[name]}\n```\n"


async def main() -> None:
    strategy = RepairTemplateStrategy(ScriptedBackend(model), loop_budget=3)
    async with Sandbox(seconds=1) as sandbox:

        def ask(task: dict[str, Any]) -> Instruction:
            """Put a task and its tests into one: an action may bring requirements of its own."""
            tests = passes_tests(task["tests"], names=[task["name"]], sandbox=sandbox)
            return Instruction(task["prompt"], requirements=[tests])

        with tempfile.TemporaryDirectory() as directory:
            journal, pairs = Path(directory) / "run.db", Path(directory) / "pairs.jsonl"
            async with sample_many(
                strategy, TASKS, action=ask, concurrency=2, journal=journal, ordered=True
            ) as results:
                async for item in results:
                    print(f"{TASKS[item.id]['name']}: {item.status}")
                    for draw in item.result.slices:
                        (verdict,) = (verdict for _, verdict in draw.validations)
                        print(f"  {verdict.reason.splitlines()[0]}")

            made = await anyio.to_thread.run_sync(lambda: export(journal, pairs, format="dpo"))
            print(made)
            lines = await anyio.Path(pairs).read_text("utf-8")
            row = json.loads(lines.splitlines()[0])
            print("chosen:", row["chosen"][0]["content"].split("\n\n")[1].splitlines()[1])


if __name__ == "__main__":
    sys.exit(anyio.run(main))

# expect: median: passed
# expect:   it passes 1 of 2 tests: `assert median([4, 1, 3, 2]) == 2.5` failed: ... is 3
# expect:   it passes 2 tests
# expect: is_leap: passed
# expect:   it passes 2 of 3 tests: `assert not is_leap(1900)` failed: is_leap(1900) is True
# expect:   it passes 3 tests
# expect: collatz: passed
# expect:   it was not done after 1 s in `assert collatz(6) == 8`, and was ended
# expect:   it passes 2 tests
# expect: 3 rows of 3 items
# expect: chosen: import statistics
