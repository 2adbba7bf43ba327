"""Sample again whenever the prompt file is saved: an editor on one side, results on the other.

`watch` runs a function when files change: once for a burst of changes, and never twice at a time.
Here the file holds an instruction, and the words that the reply must contain. So that the program
needs nobody at the keyboard, it plays the editor itself: it saves the file four times in quick
succession, and that costs one run. Then it stops watching, which deals with the last change first.

To watch files of your own, leave out the editor and ``stop``. From the command line, the same is
``mellea-like watch prompt.txt -- python your_program.py``.

Run it: ``python examples/rerun_on_change.py``
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import anyio

from mellea_like import MelleaError, RejectionSamplingStrategy
from mellea_like.backends import MarkovBackend
from mellea_like.coalescing import Changes, watch
from mellea_like.requirements.checks import contains, sentence_count, word_count

SAVED = [
    "Write a sentence about lists.\nlis",
    "Write a sentence about lists.\nlist",
    "Write a short sentence about lists.\nlist",
    "Write a short sentence about lists.\nlist, item",
]


class Sampler:
    """Samples what the prompt file asks for."""

    def __init__(self, prompt: Path) -> None:
        self.prompt = prompt
        self.strategy = RejectionSamplingStrategy(
            MarkovBackend(), loop_budget=100, concurrency_budget=4
        )
        self.runs = 0
        self.ran = anyio.Event()

    async def run(self, changes: Changes) -> None:
        self.runs += 1
        print(f"Run {self.runs} ({changes.reason})")
        instruction, words = (await anyio.Path(self.prompt).read_text("utf-8")).splitlines()
        checks = [contains(word) for word in words.split(", ")]
        checks += [sentence_count(exactly=1), word_count(at_most=20)]
        try:
            result = await self.strategy.sample(instruction, checks)
            print(f"  {instruction} -> {result.unwrap()}")
        except MelleaError as exc:
            print(f"  no text: {exc}")
        self.ran.set()


async def main() -> int:
    with tempfile.TemporaryDirectory() as directory:
        prompt = Path(directory) / "prompt.txt"
        prompt.write_text("Write a sentence about strings.\nstring", encoding="utf-8")
        sampler, stop = Sampler(prompt), anyio.Event()

        async def editor() -> None:
            await sampler.ran.wait()
            for text in SAVED:
                await anyio.Path(prompt).write_text(text, "utf-8")
                await anyio.sleep(0.05)
            stop.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(editor)
            await watch(prompt, sampler.run, quiet=2.0, at_start=True, stop=stop)
    print(f"{sampler.runs} runs for the start and {len(SAVED)} saves")
    return 0


if __name__ == "__main__":
    sys.exit(anyio.run(main))

# expect: Run 1 (start)
# expect:   Write a sentence about strings. -> ...
# expect: Run 2 (prompt.txt modified)
# expect:   Write a short sentence about lists. -> ...list...
# expect: 2 runs for the start and 4 saves
