"""Ten background jobs, one approval prompt.

Some backends ask a person before each request, such as a client that shows its user every
request for sampling; others are paid by the request. Here, `Client` plays one: it shows what it is
asked, and when that is approved, a model answers, which here is only a table.

Ten jobs label ten messages, each by a call with a requirement. By themselves they make ten prompts.
Through a `SamplingCoordinator` those that come together make one, and each job gets its own answer.
The bookkeeper still gets a record of each request.

Run it: ``python examples/approval_prompts.py``
"""

from __future__ import annotations

import json
import sys

import anyio

from mellea_like import MelleaError, RejectionSamplingStrategy, Request, requirement
from mellea_like.backends import FunctionBackend
from mellea_like.coalescing import AuditRecord, SamplingCoordinator

MESSAGES = [
    "The invoice has my old address.",
    "The app closes when I turn the phone.",
    "Do you ship to Norway?",
    "I was charged twice in May.",
    "The export button does nothing.",
    "Is there a discount for schools?",
    "Please send the receipt again.",
    "The page stays white after the update.",
    "Which plan has two seats?",
    "My card was declined, but I paid.",
]
WORDS = {
    "billing": ("invoice", "charged", "receipt", "card"),
    "fault": ("closes", "nothing", "white"),
}


@requirement("exactly one of these words: billing, fault, question", inline=True)
def known_label(candidate):
    return candidate.text in {"billing", "fault", "question"}


class Client:
    """Asks the person, then the model; knows nothing of coordinators."""

    def __init__(self) -> None:
        self.prompts = 0

    def answer(self, request: Request) -> str:
        self.prompts += 1
        text = request.messages[-1].content
        print(f"  Approve this request of {len(text)} characters? yes")
        if request.messages[0].role == "system":
            # The joint request: a system prompt says what the reply looks like.
            tasks = json.loads(text)["tasks"]
            entries = [
                {
                    "task_index": task["task_index"],
                    "key": task["key"],
                    "response": self.label(task["messages"][-1]["content"]),
                }
                for task in tasks
            ]
            return json.dumps(entries)
        return self.label(text)

    @staticmethod
    def label(text: str) -> str:
        message = text.split("Message: ")[1].splitlines()[0].lower()
        for label, words in WORDS.items():
            if any(word in message for word in words):
                return label
        return "question"


async def label_all(strategy: RejectionSamplingStrategy) -> list[str]:
    """Run ten jobs side by side."""
    labels = [""] * len(MESSAGES)

    async def job(number: int) -> None:
        result = await strategy.sample(f"Label it.\nMessage: {MESSAGES[number]}", [known_label])
        labels[number] = result.unwrap()

    async with anyio.create_task_group() as tasks:
        for number in range(len(MESSAGES)):
            tasks.start_soon(job, number)
    return labels


async def compare() -> None:
    client = Client()
    labels = await label_all(RejectionSamplingStrategy(FunctionBackend(client.answer, inline=True)))
    print(f"By themselves: {client.prompts} prompts, {len(labels)} labels")

    client = Client()
    ledger: list[AuditRecord] = []
    backend = FunctionBackend(client.answer, inline=True)
    async with SamplingCoordinator(backend, idle=0.01, audit=ledger.append) as coordinator:
        together = await label_all(RejectionSamplingStrategy(coordinator))
    prompts = "1 prompt" if client.prompts == 1 else f"{client.prompts} prompts"
    print(f"Together: {prompts}, {len(together)} labels")
    batches = {record.batch_id for record in ledger if record.status == "ok"}
    print(f"On record: {len(ledger) // 2} requests, sent in {len(batches)} batch")
    print(f"The same labels: {together == labels}")
    for message, label in zip(MESSAGES[:3], together, strict=False):
        print(f"  {label:9}{message}")


def main() -> int:
    failed = False
    try:
        anyio.run(compare)
    except* MelleaError as group:
        print(f"No labels: {group.exceptions[0]}", file=sys.stderr)
        failed = True
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())

# expect: By themselves: 10 prompts, 10 labels
# expect:   Approve this request of ... characters? yes
# expect: Together: 1 prompt, 10 labels
# expect: On record: 10 requests, sent in 1 batch
# expect: The same labels: True
# expect:   billing  The invoice has my old address.
# expect:   fault    The app closes when I turn the phone.
# expect:   question Do you ship to Norway?
