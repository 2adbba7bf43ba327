"""Rewards in the real training packages, on a CPU: `nox -s trainers`."""

from __future__ import annotations

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="nox -s trainers installs it")

import verifiers.v1 as vf  # noqa: E402
from datasets import Dataset  # noqa: E402
from tokenizers import Tokenizer, models, pre_tokenizers  # noqa: E402
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast  # noqa: E402
from trl import GRPOConfig, GRPOTrainer  # noqa: E402
from verifiers.v1.errors import TaskError  # noqa: E402

from mellea_like import checks, requirement  # noqa: E402
from mellea_like.rewards import reward  # noqa: E402

pytestmark = [pytest.mark.trainers, pytest.mark.filterwarnings("default"), pytest.mark.timeout(300)]

WORDS = ["when", "is", "the", "tide", "high", "low", "at", "noon", "soon", "never", "yes", "no"]


def tiny_model() -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """An untrained model, which draws words at random."""
    vocabulary = {word: i for i, word in enumerate(["<pad>", "<eos>", "<unk>", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=1,
    )
    return LlamaForCausalLM(config), fast


@requirement("ends with its row's word or is undecided", inline=True)
def undecided_after_no(candidate):
    if "no" in candidate.text.split():
        raise ZeroDivisionError
    return candidate.text.split()[-1:] != ["yes"]


def test_grpo_trains_with_a_reward_in_both_forms(tmp_path):
    seen: list[dict[str, Any]] = []

    def of(row):
        seen.append(dict(row))
        return [checks.contains(row["word"]), undecided_after_no]

    waits = reward(of, name="waits")
    short = reward([checks.word_count(at_most=4)], name="short")
    model, tokenizer = tiny_model()
    trainer = GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=[waits, short.sync],
        train_dataset=Dataset.from_dict(
            {"prompt": ["when is the tide high", "is the tide low"], "word": ["noon", "soon"]}
        ),
        args=GRPOConfig(
            output_dir=str(tmp_path),
            per_device_train_batch_size=16,
            num_generations=8,
            max_completion_length=6,
            max_steps=2,
            logging_steps=1,
            report_to=[],
            use_cpu=True,
            save_strategy="no",
        ),
    )
    trainer.train()

    logged = [line for line in trainer.state.log_history if "rewards/waits/mean" in line]
    assert len(logged) == 2
    for line in logged:
        assert 0 <= line["rewards/waits/mean"] <= 1
        assert 0 <= line["rewards/short/mean"] <= 1
        assert 0 < line["waits/undecided"] < 1  # Of 16 draws of 6 of 15 words, some have a "no".
        assert line["short/undecided"] == 0
    assert {row["word"] for row in seen} == {"noon", "soon"}
    assert {type(row["prompt"]) for row in seen} == {str}


def test_trl_leaves_out_a_completion_that_could_not_be_decided(tmp_path):
    model, tokenizer = tiny_model()
    trainer = GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=[reward([undecided_after_no])],
        train_dataset=Dataset.from_dict({"prompt": ["is the tide low"]}),
        args=GRPOConfig(output_dir=str(tmp_path), report_to=[], use_cpu=True),
    )
    rows = [{"prompt": "is the tide low"}] * 3
    prompts = [row["prompt"] for row in rows]
    rewards = trainer._calculate_rewards(rows, prompts, ["soon", "no", "yes"], [[1], [2], [3]])
    first, second, third = rewards[:, 0].tolist()
    assert (first, third) == (1.0, 0.0)
    assert math.isnan(second)


class TideData(vf.TaskData):
    hour: str


class TideTask(vf.Task[TideData]):
    @vf.reward(weight=2.0)
    async def names_the_hour(self, trace: vf.Trace) -> float:
        return await hour_named.one(trace.last_reply, self.data.prompt_text, hour=self.data.hour)


def of_tides(row):
    return [checks.contains(row["hour"]), undecided_after_no]


hour_named = reward(of_tides)


def trace_of(task: TideTask, reply: str) -> vf.Trace:
    message = vf.AssistantMessage(content=reply)
    trace = vf.Trace.model_construct(
        task=vf.TraceTask(type="TideTask", data=task.data), nodes=[], rewards={}, metrics={}
    )
    trace.root_reply = message.content
    return trace


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_task_of_verifiers_has_the_reward_with_its_weight(anyio_backend):
    task = TideTask(TideData(idx=0, prompt="When is high tide?", hour="noon"))
    for reply, score in [("at noon", 1.0), ("at noon yes", 0.5), ("soon yes", 0.0)]:
        trace = trace_of(task, reply)
        await task.score(trace)
        assert trace.rewards["names_the_hour"].score == score
        assert trace.reward == 2 * score


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_verifiers_records_no_reward_if_it_could_not_be_decided(anyio_backend):
    task = TideTask(TideData(idx=0, prompt="When is high tide?", hour="noon"))
    trace = trace_of(task, "no")
    with pytest.raises(TaskError, match="ZeroDivisionError"):
        await task.score(trace)
    assert trace.rewards == {"names_the_hour": None}
