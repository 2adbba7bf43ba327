"""Support tickets are labelled on a Ray cluster, within one budget for all of its processes.

Shown: a dataset on several actors, a typed label, and a second run that goes on where the budget
of the first one ended. For your case: `ray.init(address=...)`, and rows from `ray.data.read_json`.
"""

from __future__ import annotations

import json
from collections import Counter
from functools import partial
from random import Random
from typing import Any, Literal

import ray
from pydantic import BaseModel
from stand_in import start

from mellea_like import Backend, RejectionSamplingStrategy, Request
from mellea_like.batch.ray import ClusterLimit, local_cluster, sample_dataset
from mellea_like.limits import LimitedBackend

TICKETS = [
    {"id": number, "ticket": f"{what} (order {1000 + number})"}
    for number, what in enumerate(["It never came!", "Wrong size.", "Where is my invoice?"] * 20)
]
PROMPT = "Label this support ticket: {{ ticket }}"


class Label(BaseModel):
    topic: Literal["delivery", "return", "billing"]
    urgent: bool


def make_strategy(model: Backend, limit: Any) -> RejectionSamplingStrategy:
    """Make what samples; each actor calls this once, in its own process."""
    return RejectionSamplingStrategy(LimitedBackend(model, limit), loop_budget=8)


def label(tickets: ray.data.Dataset, model: Backend, requests: int) -> list[dict[str, Any]]:
    labelled = sample_dataset(
        tickets,
        partial(make_strategy, model),
        prompt=PROMPT,
        format=Label,
        key="id",
        actors=2,
        calls_per_actor=4,
        journal_dir="journals",
        limits=ClusterLimit(requests=requests),
    )
    return sorted(labelled.take_all(), key=lambda row: row["id"])


def main(model: Backend) -> None:
    with local_cluster(cpus=3):
        ray.data.DataContext.get_current().enable_progress_bars = False
        tickets = ray.data.from_items(TICKETS, override_num_blocks=4)
        first = label(tickets, model, requests=50)
        count = Counter(row["status"] for row in first)
        print(f"first: {count['passed']} of {len(first)} labelled, the budget is spent")
        then = label(tickets, model, requests=100)
    count = Counter(row["status"] for row in then)
    replayed = sum(row["replayed"] for row in then)
    print(f"then: {count['passed']} of {len(then)}, {replayed} of them from the journals")
    for row in then[:3]:
        print(f"  {row['ticket']} {row['value']}")


# --- what plays the model: 3 of 4 labels are of the type; topics are right where they are


def hasty_clerk(request: Request, chance: Random) -> str:
    ticket = request.messages[0].text
    topic = next(topic for word, topic in KNOWN.items() if word in ticket)
    reply = json.dumps({"topic": topic, "urgent": "!" in ticket})
    return reply if chance.random() < 0.75 else reply.replace(topic, "complaint")


KNOWN = {"came": "delivery", "size": "return", "invoice": "billing"}

if __name__ == "__main__":
    start(main, __doc__, model=hasty_clerk)
