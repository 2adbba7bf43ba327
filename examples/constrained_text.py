"""New sentences in the style of one's own text, within constraints.

`MarkovBackend(corpus=FILE)` learns which words follow which in the file, in milliseconds, and draws
new text from that. Requirements make it useful: here, three short sentences of eight to twelve
words, each about the sea or the harbour, and none of them copied from the file. That is a job for
rejection sampling: draws are cheap, checks are exact, and a share of the draws passes.

Run it: ``python examples/constrained_text.py [FILE]``
"""

from __future__ import annotations

import sys
from pathlib import Path

from mellea_like import MelleaError, RejectionSamplingStrategy, Requirement
from mellea_like.backends import MarkovBackend
from mellea_like.requirements.checks import contains, sentence_count, word_count

CORPUS = Path(__file__).with_name("harbour_notes.txt")


def is_new(corpus: str, seen: list[str]) -> Requirement:
    """Require a sentence that neither the corpus nor an earlier reply has."""

    def validate(candidate):
        if candidate.text in corpus:
            return False, "this sentence is copied from the corpus"
        return candidate.text not in seen, "this sentence was drawn before"

    return Requirement("the sentence is new", validate, inline=True)


def main(path: Path) -> int:
    lines: list[str] = []
    try:
        corpus = path.read_text(encoding="utf-8")
        strategy = RejectionSamplingStrategy(
            MarkovBackend(corpus=path),
            loop_budget=50,
            concurrency_budget=4,
            requirements=[
                sentence_count(exactly=1),
                word_count(at_least=8, at_most=12),
                contains("sea") | contains("harbour"),
                is_new(corpus, lines),
            ],
        )
        for _ in range(3):
            result = strategy.sample_sync("Write about the sea and the harbour.")
            lines.append(result.unwrap())
            print(f"{result.unwrap()}  [{len(result.slices)} drawn]")
    except (MelleaError, OSError, ValueError) as exc:
        print(f"No text: {exc}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else CORPUS))

# expect: ...  [... drawn]
# expect: ...  [... drawn]
# expect: ...  [... drawn]
