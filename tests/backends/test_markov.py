"""MarkovBackend: a small Markov chain text generator in pure Python."""

from __future__ import annotations

from collections import Counter

import anyio
import pytest
from pydantic import BaseModel

from mellea_like import RejectionSamplingStrategy
from mellea_like.backends.markov import MarkovBackend, prose_of, sentences_of
from mellea_like.core.backend import Options, Request, RequestMeta, StreamingBackend
from mellea_like.core.conversation import Message
from mellea_like.core.generation import REJECTED
from mellea_like.errors import InvalidRequest
from mellea_like.requirements.checks import word_count

pytestmark = pytest.mark.anyio

POEM = """\
The fox ran home.
The fox slept.

A dog ran away. A dog slept at home."""


def ask(prompt: str = "Write a sentence about Python.", **options) -> Request:
    return Request((Message("user", prompt),), Options(**options))


async def texts(backend: MarkovBackend, prompt: str, count: int, **options) -> list[str]:
    return [
        (await backend.generate(ask(prompt, seed=seed, **options))).text for seed in range(count)
    ]


# --- what it writes ---------------------------------------------------------------------------


async def test_words_of_the_instruction_steer_it():
    backend = MarkovBackend()
    about = await texts(backend, "Write about generators.", 50)
    other = await texts(backend, "Write about integers.", 50)
    assert sum("generator" in text.lower() for text in about) >= 35
    assert sum("generator" in text.lower() for text in other) <= 10


async def test_it_writes_one_sentence_or_up_to_four():
    said = await texts(MarkovBackend(text="A b c."), "x", 1000)
    counts = Counter(text.count("A b c.") for text in said)
    # Three times in ten, another one follows.
    expected = {1: 700, 2: 210, 3: 63, 4: 27}
    assert {n: counts[n] for n in expected} == pytest.approx(expected, abs=40)
    assert counts.total() == sum(map(counts.get, expected))


async def test_a_sentence_that_does_not_end_is_cut_off():
    [said] = await texts(MarkovBackend(text=" ".join(map(str, range(99)))), "x", 1)
    assert said.startswith("0 1 2 ")
    assert f"{said} ".startswith(" ".join(map(str, range(32))) + ". ")


# --- options ----------------------------------------------------------------------------------


async def test_temperature_zero_always_takes_the_most_frequent_word():
    backend = MarkovBackend(text="A b c.\n\nA b d.\n\nA b d.")
    assert set(await texts(backend, "x", 20, temperature=0)) == {"A b d."}


async def test_a_low_temperature_sharpens_and_a_high_one_flattens():
    corpus = "A b c.\n\n" + "\n\n".join(["A b d."] * 4)

    async def share(temperature: float) -> float:
        drawn = " ".join(await texts(MarkovBackend(text=corpus), "x", 400, temperature=temperature))
        return drawn.count("c.") / drawn.count("A b")

    assert await share(0.3) < 0.05
    assert await share(1.0) == pytest.approx(0.2, abs=0.06)
    assert await share(50.0) == pytest.approx(0.5, abs=0.08)


async def test_max_tokens_are_words():
    backend = MarkovBackend()
    cut = await backend.generate(ask(seed=1, max_tokens=3))
    assert len(cut.text.split()) == 3
    assert cut.finish_reason == "length"
    assert (await backend.generate(ask(seed=1))).text.startswith(cut.text)
    whole = await backend.generate(ask(seed=1, max_tokens=1000))
    assert whole.finish_reason == "stop"


async def test_stop_texts_end_the_reply_and_are_not_part_of_it():
    backend = MarkovBackend(text="one two three four")
    reply = await backend.generate(ask("x", stop=("four", "thr"), seed=0))
    assert reply.text == "one two "
    assert reply.finish_reason == "stop"


# --- requests that it refuses -----------------------------------------------------------------


class Answer(BaseModel):
    text: str


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (
            Request((), format=Answer),
            "can't follow a format: use OpenAIBackend or LlamaCppBackend",
        ),
        (Request((), meta=RequestMeta(purpose="judge")), "can't judge"),
        (Request((), Options(model="gpt")), "only the model 'markov-trigram', not 'gpt'"),
    ],
)
async def test_what_it_can_not_do_is_an_invalid_request(request_, message):
    with pytest.raises(InvalidRequest, match=message):
        await MarkovBackend().generate(request_)
    assert not request_.meter.started


# --- streaming, cost, cancellation ------------------------------------------------------------


async def test_a_stream_says_what_the_whole_says():
    backend = MarkovBackend()
    assert isinstance(backend, StreamingBackend)
    for seed in range(20):
        request = ask(seed=seed)
        async with backend.stream(request) as pieces:
            seen = [piece async for piece in pieces]
        whole = await backend.generate(ask(seed=seed))
        assert "".join(seen[:-1]) == seen[-1].text == whole.text
        assert len(seen) > 2
        assert seen[-1].usage == request.meter.usage == whole.usage


async def test_a_check_can_reject_what_it_is_writing():
    strategy = RejectionSamplingStrategy(MarkovBackend(), loop_budget=1)
    result = await strategy.sample("Write.", [word_count(at_most=1, early=True)])
    [rejected] = result.slices
    assert rejected.generation.finish_reason == REJECTED
    assert len(rejected.text.split()) == 2
    assert rejected.usage.output_tokens == 2


async def test_many_first_requests_learn_once():
    backend = MarkovBackend(text=POEM)
    async with anyio.create_task_group() as tasks:
        for _ in range(10):
            tasks.start_soon(backend.generate, ask())
    learnt = backend._model
    await backend.generate(ask())
    assert learnt is not None
    assert backend._model is learnt


# --- the corpus -------------------------------------------------------------------------------


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.txt"):
        MarkovBackend(tmp_path / "none.txt")


def test_a_binary_file_is_no_corpus(tmp_path):
    file = tmp_path / "image.png"
    file.write_bytes(b"\x89PNG\xff\xfe")
    with pytest.raises(ValueError, match=r"image\.png: it isn't UTF-8 text"):
        MarkovBackend(file)


@pytest.mark.parametrize("content", ["", " \n\n "])
def test_an_empty_corpus_is_refused(tmp_path, content):
    file = tmp_path / "empty.txt"
    file.write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=r"can't learn from an empty text: .*empty\.txt"):
        MarkovBackend(file)
    with pytest.raises(ValueError, match="empty text: text"):
        MarkovBackend(text=content)
    with pytest.raises(ValueError, match="empty text"):
        MarkovBackend([])


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("One. Two! Three? Four", ["One.", "Two!", "Three?", "Four"]),
        ('He said "No." Then\nhe left.', ['He said "No."', "Then he left."]),
        ("Mr. Fox and Dr. Owl met. They talked.", ["Mr. Fox and Dr. Owl met.", "They talked."]),
        ("about 3.14 or so. 42 is better.", ["about 3.14 or so.", "42 is better."]),
        ("a b\nc  d\n\ne", ["a b", "c d", "e"]),
        ("Ärger. Über uns.", ["Ärger.", "Über uns."]),
        ("", []),
    ],
)
def test_sentences(text, sentences):
    assert sentences_of(text) == sentences


def test_code_references_and_terms_are_no_prose():
    page = """\
Filler
   The term above an indented definition is left out.

The "with" statement (see `there`) has a body of its own.  See the next page for it.
The "__exit__()" method is code here.  New in version 3.7 is this.  Read section 7 on it.

* A list item is a sentence like any other.

   spam = eggs
"""
    fill = [f"This is sentence number {number} of many." for number in range(60)]
    assert prose_of([page, *fill])[:3] == (
        "The term above an indented definition is left out.",
        "The with statement has a body of its own.",
        "A list item is a sentence like any other.",
    )
    assert len(prose_of([page, *fill, *fill])) == 63
