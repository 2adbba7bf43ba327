"""Invoices out of messy letters: typed, with rules across fields, and repaired until they hold.

Shown: a pydantic model with rules of its own, a requirement that looks at the letter, a batch.
For your case: change `Invoice` and its rules, and read your letters from files.
"""

from __future__ import annotations

import json
import re
from datetime import date
from decimal import Decimal
from random import Random
from typing import Any

from pydantic import BaseModel, Field, model_validator
from stand_in import show, start

from mellea_like import Backend, Instruction, MultiTurnStrategy, Request, Requirement, sample_many
from mellea_like.batch import ItemResult

LETTERS = [
    """Re: inv. no. 2024/117 -- Weber & Sons, 3 March 2024
    3 brass lamps a EUR 40,00 ... 1x delivery 10.00. plus 20% VAT = EUR 156,00. 14 days net pls.""",
    """fwd: fwd: bill!! hi Nora, pls pay Harbour Bakery (their ref HB-0933, of 2024-05-17) for
    the 120 rolls at 0.35 and the 2 trays of cake, 18.50 each. VAT 10 pct incl: 86.90 total. Thx""",
    """CITY PRINT LTD *** INVOICE A77 *** 30.09.2024   500 flyers  .12   *   4 posters  7.25
    NET 89.00   VAT 0%  (export)   TO PAY: 89.00   due 14.10.2024""",
]


class Line(BaseModel):
    what: str
    quantity: int = Field(ge=1)
    price: Decimal = Field(gt=0, description="of one, before VAT")


class Invoice(BaseModel):
    number: str
    seller: str
    issued: date
    lines: list[Line] = Field(min_length=1)
    vat_percent: Decimal = Field(ge=0, le=30)
    total: Decimal = Field(description="with VAT")

    @model_validator(mode="after")
    def total_follows_from_lines(self) -> Invoice:
        net = sum((line.quantity * line.price for line in self.lines), Decimal(0))
        total = (net * (1 + self.vat_percent / 100)).quantize(Decimal("0.01"))
        if self.total != total:
            msg = f"the lines with {self.vat_percent}% VAT come to {total}, and not {self.total}"
            raise ValueError(msg)
        return self


def stands_in(letter: str) -> Requirement:
    """Require that what can be looked up in the letter is there: nothing is made up."""
    numbers = {Decimal(n.replace(",", ".")) for n in re.findall(r"\d*[.,]?\d+", letter)}

    def check(candidate: Any) -> tuple[bool, str]:
        invoice: Invoice = candidate.value
        stated = [n for line in invoice.lines for n in (line.quantity, line.price)]
        wrong = [str(n) for n in (*stated, invoice.total) if Decimal(n) not in numbers]
        names = invoice.number, invoice.seller
        wrong += [name for name in names if name.upper() not in letter.upper()]
        return not wrong, f"the letter has no {' and no '.join(wrong)}"

    return Requirement("every number and name stands in the letter", check, inline=True)


def ask(letter: str) -> Instruction:
    return Instruction(f"Extract the invoice:\n\n{letter}", requirements=[stands_in(letter)])


async def read(model: Backend, letters: list[str]) -> list[ItemResult[Invoice]]:
    strategy = MultiTurnStrategy(model, loop_budget=6)
    async with sample_many(
        strategy, letters, action=ask, format=Invoice, concurrency=4, in_order=True
    ) as results:
        return [item async for item in results]


async def main(model: Backend) -> None:
    for item in await read(model, LETTERS):
        show(f"Letter {item.id + 1}", item)
        if item.success:
            invoice = item.result.unwrap()
            print(f"  {invoice.number} of {invoice.seller}, {invoice.issued}: {invoice.total}")


# --- what plays the model: half of its replies are right, the others have a fault that models make


def careless_clerk(request: Request, chance: Random) -> str:
    letter = request.messages[0].text
    number, right, *faults = next(known for known in KNOWN if known[0] in letter)
    reply = json.dumps({"number": number, **right})
    if chance.random() < 0.5:
        old, new = chance.choice(faults)
        reply = reply.replace(old, new)
    return chance.choice([reply, f"Sure! Here it is:\n```json\n{reply}\n```"])


def lines(*items: tuple[str, int, str]) -> list[dict[str, object]]:
    return [{"what": what, "quantity": n, "price": price} for what, n, price in items]


KNOWN: list[Any] = [
    ("2024/117", {"seller": "Weber & Sons", "issued": "2024-03-03", "vat_percent": 20,
        "lines": lines(("brass lamp", 3, "40.00"), ("delivery", 1, "10.00")), "total": "156.00"},
        ("156.00", "130.00"), ('"issued": "2024-03-03", ', "")),
    ("HB-0933", {"seller": "Harbour Bakery", "issued": "2024-05-17", "vat_percent": 10,
        "lines": lines(("roll", 120, "0.35"), ("tray of cake", 2, "18.50")), "total": "86.90"},
        ("86.90", "95.59"), ("2024-05-17", "17 May"), ("Harbour Bakery", "Harbor Bakery Inc.")),
    ("A77", {"seller": "City Print Ltd", "issued": "2024-09-30", "vat_percent": 0,
        "lines": lines(("flyer", 500, "0.12"), ("poster", 4, "7.25")), "total": "89.00"},
        ("500", "5000"), ("A77", "INV-A77"), ("7.25", "2.75")),
]  # fmt: skip

if __name__ == "__main__":
    start(main, __doc__, model=careless_clerk)
