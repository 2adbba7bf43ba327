"""What a run costs, and how long it takes: directly, by jobs of a batch API, and mixed.

    python benchmarks/batch_api.py [--items N] [--check]

1,000 items, of which a draw passes with probability 0.6, get at most three draws each. The server
is the fake one of the tests, in this process and in virtual time, and so is the bill: the money is
what it charges, at $2 and $8 per million tokens directly and half of it in jobs. The times are
assumptions: a direct request takes 3 s, 64 run at a time, and a job takes an hour. They vary by
some minutes, since virtual time runs on while a thread writes the journal. With ``--check``, the
run's own ledger has to agree with the server's bill to the nano-dollar.

The processor's seconds and the memory are the run's and the fake server's together; each way has a
process of its own.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import httpx2
import openai

sys.path.append(str(Path(__file__).parent.parent / "tests" / "support"))

from batch_servers.kit import make_server
from batch_servers.settings import Settings
from batch_servers.web import Transport
from batch_servers.world import World, loop_clock

from mellea_like import RepairTemplateStrategy, requirement
from mellea_like.backends import OpenAIBackend, OpenAIBatches
from mellea_like.batch import BatchJobs, Journal, sample_many
from mellea_like.core import Usage
from mellea_like.core.prices import IN_A_JOB
from mellea_like.testing import run_virtual

LANES = 64
DIRECT_SECONDS = 3.0
JOB_SECONDS = 3600.0
MODEL = "gpt-test"


class Row(NamedTuple):
    """What came of one run."""

    way: str
    passed: int
    draws: int
    nano: int
    own_nano: int
    seconds: float
    processor: float
    megabytes: float


class Slow(Transport):
    """A transport whose direct requests take their time."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.url.path.endswith("/chat/completions"):
            await anyio.sleep(DIRECT_SECONDS)
        return await super().handle_async_request(request)


@requirement("begins with right", inline=True)
def is_right(candidate: Any) -> bool:
    return candidate.text.startswith("right")


async def run(way: str, items: int, folder: Path) -> Row:
    """Run all items in one way."""
    settings = Settings(pass_rate=0.6, work=JOB_SECONDS, draws="body", validating=0.0)
    world = World(now=loop_clock(), settings=settings)
    transport = Slow(make_server("openai", world).app())
    client = openai.AsyncOpenAI(
        api_key="sk-test",
        base_url="https://api.openai.com/v1",
        http_client=httpx2.AsyncClient(transport=transport, timeout=None),
        timeout=None,
    )
    # A virtual clock jumps to the next timer while a thread works, so there are no long ones.
    direct = OpenAIBackend(MODEL, client=client, timeout=None, total_timeout=None)
    below = 200 if way == "mixed" else 0
    jobs = BatchJobs(
        OpenAIBatches(MODEL, client=client, timeout=None),
        direct=direct,
        direct_below=below,
        poll=60.0,
    )
    strategy = RepairTemplateStrategy(
        direct if way == "direct" else jobs,
        requirements=[is_right],
        loop_budget=3,
        options={"max_tokens": 50, "seed": 7},
    )
    journal = Journal(folder / f"{way}.db")
    passed = draws = own = 0
    began = anyio.current_time()
    prompts = [f"Question {n}?" for n in range(items)]
    async with sample_many(
        strategy, prompts, concurrency=LANES, breadth_first=True, journal=journal
    ) as results:
        async for item in results:
            passed += item.success
            slices = () if item.result is None else item.result.slices
            draws += len(slices)
            own += sum(nano(model, usage) for s in slices for model, usage in s.usage_by_model)
    took = anyio.current_time() - began
    bill = world.bill()["all"]["nano"]
    await client.close()
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return Row(way, passed, draws, bill, own, took, time.process_time(), most)


def in_a_process(way: str, items: int) -> Row:
    """Run all items in one way, in a new process."""
    with tempfile.TemporaryDirectory() as folder:
        return run_virtual(partial(run, way, items, Path(folder)))


def nano(model: str | None, usage: Usage) -> int:
    """Return what tokens cost, in nano-dollars."""
    whole = usage.input_tokens * 2000 + usage.output_tokens * 8000
    return whole // 2 if (model or "").endswith(IN_A_JOB) else whole


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--items", type=int, default=1000, help="how many (1000)")
    parser.add_argument("--check", action="store_true", help="fail if a ledger is wrong")
    given = parser.parse_args()
    rows: list[Row] = []
    print(f"{'way':8}{'passed':>8}{'draws':>8}{'dollars':>10}{'hours':>7}{'CPU s':>7}{'MB':>6}")
    for way in ("direct", "batch", "mixed"):
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
            row = process.submit(in_a_process, way, given.items).result()
        rows.append(row)
        print(
            f"{row.way:8}{row.passed:8,}{row.draws:8,}{row.nano / 1e9:10.4f}"
            f"{row.seconds / 3600:7.1f}{row.processor:7.1f}{row.megabytes:6.0f}"
        )
    wrong = [row.way for row in rows if row.nano != row.own_nano]
    if wrong:
        print(f"the ledger differs from the bill: {', '.join(wrong)}", file=sys.stderr)
    return int(given.check and bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
