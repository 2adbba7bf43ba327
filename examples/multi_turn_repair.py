"""Repair in conversation: the model sees its own reply, and what was wrong with it.

`MultiTurnStrategy` answers a failed reply with a user message that lists what failed, and asks
again. The backend plays a model that puts right one thing at a time: first it drops its greeting,
then it shortens its text.

Run it: ``python examples/multi_turn_repair.py``
"""

from __future__ import annotations

import sys
import textwrap

from mellea_like import MelleaError, MultiTurnStrategy, Request
from mellea_like.backends import ScriptedBackend
from mellea_like.requirements.checks import excludes, word_count

LONG = "The museum opens at nine, closes at six, and offers a free tour every hour to all visitors."
SHORT = "The museum opens at nine and closes at six."


def model(request: Request) -> str:
    """Write a first draft, and from then on put right what is complained of first."""
    if len(request.messages) == 1:
        return f"Hello! {LONG}"
    *_, draft, answer = (message.content for message in request.messages)
    complaint = answer.splitlines()[1]
    return draft.removeprefix("Hello! ") if "Hello" in complaint else SHORT


def main() -> int:
    strategy = MultiTurnStrategy(ScriptedBackend(model), loop_budget=4)
    requirements = [excludes("Hello"), word_count(at_most=10)]
    try:
        result = strategy.sample_sync("Write a notice about our opening hours.", requirements)
        result.unwrap()
    except MelleaError as exc:
        print(f"No notice: {exc}", file=sys.stderr)
        return 1

    for message in result.best.context_after:
        print(f"{message.role}:")
        print(textwrap.indent(message.content, "    "))
    print(f"({len(result.slices)} iterations, {result.usage})")
    return 0


if __name__ == "__main__":
    sys.exit(main())

# expect: user:
# expect:     Write a notice about our opening hours.
# expect: assistant:
# expect:     Hello! The museum opens...
# expect: user:
# expect:     That was not accepted. ...
# expect: assistant:
# expect:     The museum opens at nine, ...
# expect: user:
# expect:     - has at most 10 words: it has 18 words; at most 10 are allowed
# expect: assistant:
# expect:     The museum opens at nine and closes at six.
# expect: (3 iterations, ...
