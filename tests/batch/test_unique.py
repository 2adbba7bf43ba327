"""``unique=``: no two items of a run win with equal or similar replies."""

from __future__ import annotations

import random
import tracemalloc
from collections import Counter, defaultdict
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from statistics import fmean
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
import report_kit
from anyio.lowlevel import checkpoint
from batch_kit import results_of
from engine_kit import votes_of
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field
from report_kit import trace_of

from mellea_like import Generation, RejectionSamplingStrategy, Requirement, Vote, sample_many
from mellea_like.batch.journal.reader import StoredItem
from mellea_like.batch.unique import UniqueReplies, normalized
from mellea_like.errors import JournalError
from mellea_like.report.views import SliceView

pytestmark = pytest.mark.anyio

STORY = "the ship came home in the grey light of a morning that nobody had thought would come"


class Scripted:
    """A backend with a list of replies for each prompt; a number in it is a pause in seconds."""

    model = "scripted"

    def __init__(self, **replies: list[Any]) -> None:
        self.replies = defaultdict(lambda: iter(()), {k: iter(v) for k, v in replies.items()})

    async def generate(self, request: Any) -> Generation:
        said = next(self.replies[request.messages[-1].content], "nothing left")
        while isinstance(said, int):
            await anyio.sleep(said)
            said = next(self.replies[request.messages[-1].content])
        await checkpoint()
        return Generation(said)


def told(item: Any) -> list[tuple[str, str]]:
    """Return each draw's text, and the reasons why it failed."""
    return [(s.text, "; ".join(v.reason for _, v in s.failures)) for s in item.result.slices]


async def sampled(backend: Any, items: str, **more: Any) -> dict[str, Any]:
    strategy = {"loop_budget": 3, "concurrency_budget": 1, **more.pop("strategy", {})}
    arguments = {"concurrency": 1, "unique": True, "in_order": True, **more}
    made = RejectionSamplingStrategy(backend, **strategy)
    results = await results_of(made, items.split(), **arguments)
    return {result.item: result for result in results}


async def test_a_reply_that_another_item_has_fails_with_that_items_id():
    backend = Scripted(a=["Good  Morning"], b=["good morning", "\uff47ood\nMORNING", "Good night"])
    items = await sampled(backend, "a b")
    assert told(items["a"]) == [("Good  Morning", "")]
    twin = "it says the same as the reply to item 0"
    assert told(items["b"]) == [
        ("good morning", twin),
        ("\uff47ood\nMORNING", twin),
        ("Good night", ""),
    ]
    # The prompt doesn't mention replies that the model hasn't seen.
    assert items["b"].result.slices[0].messages[0].content == "b"


@dataclass(frozen=True)
class Terms:
    words: list[str]


class Offer(BaseModel):
    price: Decimal
    tags: set[int] = set()
    until: datetime | None = None
    note: str = Field("", exclude=True)
    terms: Terms | None = None


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ('{"price": 9.90}', '{"price":"9.9"}', True),
        ('{"price": 1, "tags": [0, 8]}', '{"tags": [8, 0, 8], "price": 1}', True),
        ('{"price": 1, "note": "a"}', '{"price": 1, "note": "b"}', False),  # no JSON has it
        (
            '{"price": 1, "until": "2026-01-01T12:00:00Z"}',
            '{"price": 1, "until": "2026-01-01T13:00:00+01:00"}',
            True,
        ),
        ('{"price": 1}', '{"price": 2}', False),
        (
            '{"price": 1, "terms": {"words": ["a"]}}',
            '{"price": 1, "terms": {"words": [ "a" ]}}',
            True,
        ),
    ],
)
async def test_typed_replies_are_the_same_if_their_values_are_equal(first, second, same, path):
    backend = Scripted(a=[first], b=[second, '{"price": 77}'])
    items = await sampled(backend, "a b", format=Offer, journal=path)
    assert (Offer.model_validate_json(first) == Offer.model_validate_json(second)) is same
    assert len(items["b"].result.slices) == 1 + same
    # A resumed run knows the replies of the earlier one.
    more = Scripted(c=[second, '{"price": 78}'])
    items = await sampled(more, "a b c", format=Offer, journal=path)
    assert len(items["c"].result.slices) == 2


async def test_of_two_at_once_the_first_reserves_and_releases_what_does_not_win(virtual_clock):
    """Item a reserves the text, so b fails. Then a fails a slow check, so c may have the text."""

    seen: list[str] = []

    async def slow(candidate: Any) -> bool:
        seen.append(candidate.text)
        first = len(seen) == 1
        await anyio.sleep(5)
        return not first and candidate.text != "a's own"

    backend = Scripted(a=["same", "a's own"], b=[1, "same", "b's own"], c=[20, "same"])
    checks = [Requirement("is slow", slow, check_only=True)]
    more = {"requirements": checks, "strategy": {"loop_budget": 2}}
    items = await sampled(backend, "a b c", concurrency=3, **more)
    assert [text for text, _ in told(items["a"])] == ["same", "a's own"]
    assert not items["a"].success
    assert told(items["b"])[0] == ("same", "it says the same as the reply to item 0")
    assert items["c"].value == "same"


async def test_draws_of_one_item_may_be_alike():
    backend = Scripted(a=["yes", "yes", "no"], b=["yes", "no", "no"])
    items = await sampled(backend, "a b", strategy={"selection": Vote()})
    assert votes_of(items["a"].result.decision)["yes"] == 2
    assert [reason != "" for _, reason in told(items["b"])] == [True, False, False]


async def test_what_an_earlier_run_has_counts_also_for_items_before_it(path):
    """Item b had finished while a was being sampled, so a may not win with b's reply."""
    more = {"journal": path, "unique": True, "concurrency": 2}
    strategy = RejectionSamplingStrategy(Scripted(a=[9, "x"], b=[STORY]), loop_budget=2)
    async with sample_many(strategy, ["a", "b"], **more) as results:
        async for item in results:
            assert item.item == "b"
            break
    backend = Scripted(a=[STORY, f"{STORY} again"])
    items = await sampled(backend, "a b", strategy={"loop_budget": 2}, **more)
    assert items["b"].replayed
    assert [reason for _, reason in told(items["a"])] == [
        "it says the same as the reply to item 1",
        "",
    ]
    again = await sampled(backend, "a b", strategy={"loop_budget": 2}, **more)
    assert [told(again[name]) for name in "ab"] == [told(items[name]) for name in "ab"]
    with pytest.raises(JournalError, match="belongs to another run: requirements"):
        await sampled(backend, "a b", strategy={"loop_budget": 2}, **{**more, "unique": False})


def passed(iteration: int, text: str) -> dict[str, Any]:
    return {**trace_of(("passed", 1))["slices"][0], "iteration": iteration, "text": text}


def unfinished(item: int, *slices: dict[str, Any]) -> StoredItem:
    """Return an item that was killed in each of its attempts, after one draw."""
    drawn = enumerate((SliceView(plain) for plain in slices), 1)
    return StoredItem(report_kit.item(item, None, status="unfinished"), tuple(drawn))


@pytest.mark.parametrize("goes_on", [True, False])
async def test_what_passed_just_before_a_kill_is_reserved_until_its_item_is_drawn_anew(goes_on):
    replies = await loaded(unfinished(1, passed(2, STORY)))
    assert replies.claim(0, 1, STORY) == 1
    earlier = (SimpleNamespace(iteration=2),) if goes_on else ()

    async def call(job: Any, heard: Any) -> Exception:
        assert replies.claim(0, 1, STORY) == (1 if goes_on else None)
        return ValueError()

    await replies.sample(SimpleNamespace(id=1, earlier=earlier), None, call)


async def loaded(*stored: Any) -> UniqueReplies:
    """Return the replies of a run that is resumed with these items."""
    found = iter([list(stored), []])

    async def lookup(first: int, count: int) -> list[Any]:
        return next(found)

    replies = UniqueReplies()
    await replies.load(SimpleNamespace(lookup=lookup))
    return replies


async def test_a_text_that_another_item_has_since_is_not_reserved_for_one_that_was_killed():
    """Item 0 was killed twice and item 2 once; then item 1 won with the text of both."""
    won = report_kit.item(1, trace_of(("passed", 1)) | {"slices": [passed(1, STORY)]})
    replies = await loaded(
        unfinished(0, passed(2, STORY), passed(2, "other")),
        StoredItem(won, ()),
        unfinished(2, passed(1, STORY)),
    )
    assert [replies.claim(3, 1, text) for text in (STORY, "other")] == [1, 0]

    async def call(job: Any, heard: Any) -> Exception:
        assert replies.claim(job.id, 1, STORY) == 1
        return ValueError()

    for item in (0, 2):
        await replies.sample(SimpleNamespace(id=item, earlier=()), None, call)
    assert replies.claim(3, 1, "other") is None


@pytest.mark.parametrize("breadth_first", [False, True], ids=["depth", "breadth"])
async def test_items_that_wait_for_their_next_draw_hold_nothing(path, breadth_first):
    backend = Scripted(a=["x", "y"], b=["X", "b's own"], c=["Y", "c's own"])
    more = {"breadth_first": breadth_first, "journal": path, "strategy": {"loop_budget": 2}}
    fit = Requirement("isn't x", lambda c: c.text != "x", inline=True, check_only=True)
    items = await sampled(backend, "a b c", requirements=[fit], **more)
    won = {name: items[name].value for name in "abc" if items[name].success}
    assert won == ({"b": "X", "c": "Y"} if breadth_first else {"a": "y", "b": "X", "c": "c's own"})


def test_near_duplicates_are_found_at_a_stated_similarity(path):
    """This is one test, because datasketch is slow to import."""
    near, far = STORY.replace("grey", "gray"), "a dog slept in the sun all day and no one minded"

    async def run() -> None:
        backend = Scripted(a=[STORY], b=[near, far], c=["a", near])
        items = await sampled(backend, "a b c", unique=0.5, journal=path)
        assert [reason for _, reason in told(items["b"])] == [
            "it says the same as the reply to item 0",
            "",
        ]
        assert items["c"].value == "a"
        # A resumed run compares with the replies that it had.
        more = {"unique": 0.5, "journal": path}
        again = await sampled(Scripted(d=[near]), "a b c d", **more)
        assert told(again["d"])[0] == (near, "it says the same as the reply to item 0")
        backend = Scripted(a=[STORY], b=[near])
        assert (await sampled(backend, "a b", unique=0.95))["b"].value == near

    check_index(0.8)
    check_size_and_recall()
    anyio.run(run)


def check_size_and_recall() -> None:
    """Check that most pairs with similarities of 0.94 and 0.89 are found, and none with 0.5.

    A reply takes 512 bytes for its signature, and some 80 bytes for each of nine bands.
    """
    from mellea_like.batch import minhash  # Slow to import.

    chance, count = random.Random(1), 1500
    texts = [[str(chance.randrange(5000)) for _ in range(100)] for _ in range(count)]
    replies = UniqueReplies(0.8)
    tracemalloc.start()
    for item, words in enumerate(texts):
        assert replies.claim(item, 1, " ".join(words)) is None
        replies.settle(item)
    assert tracemalloc.get_traced_memory()[0] / count < 1600
    tracemalloc.stop()
    found, near = Counter(), minhash.NearTexts(0.8)
    for changed in (1, 2, 3, 11):
        estimates = []
        for item, words in enumerate(texts[:300]):
            other = words.copy()
            for at in range(changed):
                other[at * 9 + 3] = "another"
            one, reply = " ".join(words), " ".join(other)
            estimates.append(alike := minhash._alike(near.key(one), near.key(reply)))
            if replies.claim(count, 1, reply) == item:
                assert alike >= 0.8
                found[changed, alike < 0.84] += 1
        # Each changed word changes 3 of 98 sequences.
        exact = (98 - 3 * changed) / (98 + 3 * changed)
        assert fmean(estimates) == pytest.approx(exact, abs=0.01)
    assert found[1, False] >= 295
    assert found[2, False] + found[2, True] >= 250
    assert found[3, True] > 0
    assert found[11, False] == found[11, True] == 0


def check_index(threshold: float) -> None:
    replies = UniqueReplies(threshold)
    assert replies.claim(0, 1, STORY) is None
    assert replies.claim(0, 2, STORY) is None
    replies.release(0, 1)
    assert replies.claim(1, 1, STORY) == 0
    replies.release(0, 2)
    assert replies.claim(1, 1, STORY) is None
    replies.settle(1)
    assert replies.claim(2, 1, STORY) == 1


@given(st.integers(0, 10**6), st.integers(1, 8))
def test_whatever_is_drawn_no_two_winners_are_alike(seed, concurrency):
    chance = random.Random(seed)

    class Anything:
        model = "any"

        async def generate(self, request: Any) -> Generation:
            for _ in range(chance.randrange(4)):
                await checkpoint()
            return Generation(chance.choice(["a", "A", "b", " b", "c", "d", "D "]))

    async def late(candidate: Any) -> bool:
        await checkpoint()
        return chance.random() < 0.7

    async def run() -> list[Any]:
        strategy = RejectionSamplingStrategy(
            Anything(),
            loop_budget=3,
            concurrency_budget=2,
            requirements=[Requirement("late", late)],
        )
        return await results_of(
            strategy, range(6), action=str, concurrency=concurrency, unique=True
        )

    found = anyio.run(run)
    won = [normalized(item.value) for item in found if item.success]
    assert len(set(won)) == len(won)
    for item in found:  # Whoever failed as a duplicate had a twin at that time.
        assert all("item" in reason for text, reason in told(item) if "same" in reason)


@pytest.mark.parametrize(
    ("unique", "error"),
    [("exact", TypeError), (None, TypeError), (0.0, ValueError), (1.5, ValueError)],
)
def test_a_similarity_is_a_share(unique, error):
    strategy = RejectionSamplingStrategy(Scripted())
    with pytest.raises(error, match="unique"):
        sample_many(strategy, ["a"], concurrency=1, unique=unique)
