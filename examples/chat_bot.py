"""A chat in the terminal: lines that are typed quickly get one answer.

People type a thought in three lines and press Enter after each. A bot that answers each line talks
at cross purposes, and costs three times as much. `ChatDispatcher` waits until the typist pauses,
hands over all lines at once, and never answers twice at a time.

The answers are sampled with requirements: one sentence of five to sixteen words that was not said
before and, where the bot knows any of your words, takes up one of them. The backend is a small text
generator that learnt from a file; a real model goes in its place.

Ctrl-D leaves when all is answered, Ctrl-C at once. Needs a POSIX system.

Run it: ``python examples/chat_bot.py [FILE]``
"""

from __future__ import annotations

import os
import re
import sys
from contextlib import suppress
from functools import reduce
from operator import or_
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from mellea_like import Context, MelleaError, RejectionSamplingStrategy, Requirement
from mellea_like.backends import MarkovBackend
from mellea_like.coalescing import ChatDispatcher
from mellea_like.requirements.checks import contains, sentence_count, word_count

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

NOTES = Path(__file__).with_name("harbour_notes.txt")
QUIET = 1.5


class Bot:
    """Answers, and remembers the conversation."""

    def __init__(self, corpus: Path) -> None:
        self.words = set(words_of(corpus.read_text(encoding="utf-8")))
        self.context = Context()
        self.said: list[str] = []
        self.strategy = RejectionSamplingStrategy(
            MarkovBackend(corpus=corpus),
            loop_budget=50,
            concurrency_budget=4,
            requirements=[
                sentence_count(exactly=1),
                word_count(at_least=5, at_most=16),
                Requirement("not said before", self.is_new, inline=True),
            ],
        )

    async def reply(self, lines: list[str]) -> None:
        """Answer some lines at once."""
        text = "\n".join(lines)
        known = [word for word in words_of(text) if word in self.words]
        takes_it_up = [reduce(or_, map(contains, known))] if known else []
        try:
            result = await self.strategy.sample(text, takes_it_up, context=self.context)
            answer = result.unwrap()
        except MelleaError as exc:
            print(f"bot: I am at a loss for words: {exc}", flush=True)
            return
        # Only now: a run that fails or is stopped leaves no trace in the conversation.
        self.context = result.context
        self.said.append(answer)
        drafts = count(len(result.slices), "draft")
        print(f"bot: {answer}  [{count(len(lines), 'line')}, {drafts}]", flush=True)

    def is_new(self, candidate) -> tuple[bool, str]:
        return candidate.text not in self.said, "it was said before"


def words_of(text: str) -> list[str]:
    """Return the words that carry some meaning, more or less."""
    return re.findall(r"[a-z]{4,}", text.lower())


def count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


async def typed_lines() -> AsyncIterator[str]:
    """Yield the lines that are typed, without a thread that Ctrl-C could not stop."""
    source = sys.stdin.fileno()
    if os.isatty(source):
        # Ctrl-C discards what was typed: a read that blocks would wait for more, and hold the
        # event loop. The terminal is opened again, since other programs share stdin's mode.
        source = os.open(os.ttyname(source), os.O_RDONLY | os.O_NONBLOCK)
    rest = b""
    while True:
        with suppress(PermissionError):  # A file, which there is no need to wait for.
            await anyio.wait_readable(source)
        try:
            data = os.read(source, 4096)
        except BlockingIOError:
            continue
        *lines, rest = (rest + data).split(b"\n")
        if not data and rest:
            lines = [rest]
        for line in lines:
            yield line.decode("utf-8", "replace").strip()
        if not data:
            return


async def chat(bot: Bot) -> None:
    lines = 0
    async with ChatDispatcher(bot.reply, quiet=QUIET) as dispatcher:
        print("bot: Let us talk. Ctrl-D or Ctrl-C leaves.", flush=True)
        async for line in typed_lines():
            if line:
                dispatcher.submit("this terminal", line)
                lines += 1
        # Leaving the block answers what is still to be answered.
    print(f"bot: Bye. {count(lines, 'line')}, {count(len(bot.said), 'answer')}.")


def main(corpus: Path) -> int:
    try:
        bot = Bot(corpus)
        anyio.run(chat, bot)
    except KeyboardInterrupt:
        print("\nbot: Bye.")
    except (OSError, ValueError) as exc:
        print(f"No chat: {exc}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else NOTES))

# types: Good morning!
# types: Where does the ferry go,
# types: and who waits for it?
# expect: bot: Let us talk. Ctrl-D or Ctrl-C leaves.
# expect: bot: ...  [3 lines, ...]
# expect: bot: Bye. 3 lines, 1 answer.
