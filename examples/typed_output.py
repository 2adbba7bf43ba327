"""Get a typed object instead of a text: `format=` with a pydantic model.

A reply that isn't a valid invoice is a failed slice. The reason goes into the next prompt, because
this strategy repairs. Requirements see the parsed object as `candidate.value`.

The backend plays a model that needs three attempts. Put `OpenAIBackend("your-model")` in its place
for a real one.

Run it: ``python examples/typed_output.py``
"""

from __future__ import annotations

import json
import sys

from pydantic import BaseModel, Field

from mellea_like import MelleaError, RepairTemplateStrategy, requirement
from mellea_like.backends import ScriptedBackend

LETTER = "We ordered 3 lamps at 40 euros each, and delivery costs 10 euros. - Nora, Weber & Sons"


class Invoice(BaseModel):
    customer: str
    items: int = Field(ge=1)
    total: float


@requirement("the total is items times 40, plus 10", inline=True)
def total_is_right(candidate):
    invoice = candidate.value
    wanted = invoice.items * 40 + 10
    return invoice.total == wanted, f"the total is {invoice.total:g}, and should be {wanted}"


def main() -> int:
    backend = ScriptedBackend(
        [
            "Sure! Here is the invoice: Weber & Sons, 3 lamps.",
            json.dumps({"customer": "Weber & Sons", "items": 3, "total": 120}),
            json.dumps({"customer": "Weber & Sons", "items": 3, "total": 130}),
        ]
    )
    strategy = RepairTemplateStrategy(backend, loop_budget=3)
    try:
        result = strategy.sample_sync(
            f"Extract the invoice from this letter: {LETTER}", [total_is_right], format=Invoice
        )
        invoice = result.unwrap()
    except MelleaError as exc:
        print(f"No invoice: {exc}", file=sys.stderr)
        return 1

    for slice_ in result.slices:
        print(f"iteration {slice_.iteration}: {slice_.outcome}", *slice_.problems, sep="\n    ")
    print(f"{invoice.customer} pays {invoice.total:.2f} euros ({type(invoice).__name__})")
    return 0


if __name__ == "__main__":
    sys.exit(main())

# expect: iteration 1: failed
# expect: ...the reply does not parse: ...
# expect: iteration 2: failed
# expect: ...the total is 120, and should be 130
# expect: iteration 3: passed
# expect: Weber & Sons pays 130.00 euros (Invoice)
