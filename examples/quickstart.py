"""Draw until a text meets its requirements: the smallest complete program.

It needs nothing: no key, no model, no network. `MarkovBackend` is a small Markov chain text
generator that learnt which words follow which from Python's help pages. It understands nothing, and
that is why it is a good first backend: most of its sentences fail, so you see the strategy at work.

Run it: ``python examples/quickstart.py``
"""

from __future__ import annotations

import sys
from itertools import pairwise

from mellea_like import MelleaError, RejectionSamplingStrategy, requirement
from mellea_like.backends import MarkovBackend
from mellea_like.requirements.checks import contains, sentence_count, word_count


@requirement("no word comes twice in a row")
def no_echo(candidate):
    words = candidate.text.lower().split()
    echoes = [word for word, after in pairwise(words) if word == after]
    return not echoes, f"these words stand twice in a row: {', '.join(echoes)}"


def main() -> int:
    strategy = RejectionSamplingStrategy(MarkovBackend(), loop_budget=50, concurrency_budget=4)
    checks = [sentence_count(exactly=1), word_count(at_least=8, at_most=14), contains("string")]
    try:
        result = strategy.sample_sync("Write a sentence about strings.", [*checks, no_echo])
        text = result.unwrap()
    except MelleaError as exc:
        print(f"No text: {exc}", file=sys.stderr)
        return 1

    print("The text that passed:")
    print(f"  {text}")
    print(f"It took {len(result.slices)} draws and {result.usage}.")
    for slice_ in result.slices[:4]:
        name = f"attempt {slice_.attempt}, lane {slice_.lane}"
        print(f"  {name}: {slice_.outcome}", *slice_.problems, sep="\n    ")
    return 0


if __name__ == "__main__":
    sys.exit(main())

# expect: The text that passed:
# expect: It took ... draws and ... requests, ...
