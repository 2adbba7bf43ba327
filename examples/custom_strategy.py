"""Write your own strategy: override `repair`, a pure function.

`ImproveTheBest` shows the model its best draft so far, and not only what the last one lacked. The
best one is chosen as the library chooses: most requirements met, then the mean score.

The backend plays a model that adds what is missing to the draft that it is shown.

Run it: ``python examples/custom_strategy.py``
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from mellea_like import BaseSamplingStrategy, Instruction, MelleaError, Request
from mellea_like.backends import ScriptedBackend
from mellea_like.requirements.checks import contains, word_count
from mellea_like.sampling.best_failure import best_failure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mellea_like import Context, Slice
    from mellea_like.core import Action


class ImproveTheBest(BaseSamplingStrategy):
    """Asks for a better version of the best draft so far."""

    needs_all_reasons = True  # the verdict on every requirement goes into the prompt

    def repair(self, history: Sequence[Slice]) -> tuple[Action[str], Context]:
        first, best = history[0], history[best_failure(history)]
        assert isinstance(first.action, Instruction)  # what this program asks for
        shown = f"{TASK}\n\nYour best draft so far:\n{best.text}"
        return replace(first.action, description=shown, repair=best.problems), first.context


TASK = "Write a slogan for a bakery."


def model(request: Request) -> str:
    """Add a missing word to the draft it is shown; without a draft, start with a poor one."""
    prompt = request.messages[-1].content
    if "best draft" not in prompt:
        return "We bake"
    draft = prompt.split("best draft so far:\n")[1].splitlines()[0]
    wrong = prompt.split("Put this right:")[1]
    return f"{draft} bread" if "bread" in wrong else f"{draft}, fresh every morning"


def main() -> int:
    strategy = ImproveTheBest(ScriptedBackend(model), loop_budget=4)
    requirements = [contains("bread"), contains("morning"), word_count(at_most=8)]
    try:
        result = strategy.sample_sync(TASK, requirements)
        slogan = result.unwrap()
    except MelleaError as exc:
        print(f"No slogan: {exc}", file=sys.stderr)
        return 1

    for slice_ in result.slices:
        print(f"attempt {slice_.attempt}: {slice_.text!r}", *slice_.problems, sep="\n    ")
    print(f"The slogan: {slogan}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

# expect: attempt 1: 'We bake'
# expect: attempt 2: 'We bake bread'
# expect: attempt 3: 'We bake bread, fresh every morning'
# expect: The slogan: We bake bread, fresh every morning
