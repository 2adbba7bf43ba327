"""Reward functions for training, made from requirements.

```python
from mellea_like import checks
from mellea_like.rewards import reward

short = reward([checks.word_count(at_most=20)])
print(short.sync(["Noon.", ""]))  # [1.0, 0.0]
```

A reward is from 0 to 1, or None if a requirement could not be judged. The function can be passed
to TRL's ``GRPOTrainer`` (``reward_funcs=[short]``). `Reward.one` scores a single reply, as the
package ``verifiers`` needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from mellea_like.checking import CheckResult, ReplyLike, Requirements, check
from mellea_like.core.argument_checks import is_async, takes, whole_number
from mellea_like.core.conversation import Message
from mellea_like.core.display import shown
from mellea_like.core.generation import Generation
from mellea_like.core.requirement import Requirement, several
from mellea_like.runtime.gather import gather
from mellea_like.runtime.logs import warn
from mellea_like.sampling.prepare import judges_of
from mellea_like.sampling.sync import run_once

if TYPE_CHECKING:
    from mellea_like.core.backend import Backend
    from mellea_like.limits.budget import Budget

__all__ = ["Prompt", "Requirements", "Reward", "reward"]

Prompt: TypeAlias = "str | Sequence[Message | Mapping[str, Any]]"
"""A prompt: a text, or a conversation as messages or OpenAI-style dictionaries."""


def reward(
    requirements: Requirements | Callable[[Mapping[str, Any]], Requirements],
    *,
    name: str = "requirements",
    partial: bool = True,
    format: Any = None,
    judge: Backend | None = None,
    budget: Budget | None = None,
    concurrency: int = 16,
) -> Reward:
    """Make a reward function from requirements.

    The reward of a completion is the mean of its requirements' scores, weighted by ``weight``,
    from 0 to 1. A requirement without a score counts as 1 if it is met, else as 0. A completion
    that is empty, or doesn't parse as the ``format``, gets 0. **If a requirement can't be judged,
    because its validator raised or its judge is down, the reward is None, not 0**: training must
    not teach a model to avoid texts that merely break a checker. TRL ignores completions with the
    reward None.

    A model in training finds every hole in a checker. So a check of code is refused if a program
    can fake a pass: instead of ``passes_tests``, use ``returns``, ``agrees_with`` or ``prints``
    of `mellea_like.requirements.code`.

    Args:
        requirements: the requirements, or a plain function that returns the requirements for one
            row of the data set. It takes a dictionary with the ``prompt`` and the other columns.
        name: the name of the reward in TRL's metrics.
        partial: whether to give partial rewards. If not, a completion gets 1 if it meets all
            requirements, else 0, and checking stops at the first failure.
        format: the type that completions are parsed to, as for ``sample``.
        judge: the model that judges requirements without a validator. It sees the prompt.
        budget: the limit on what the judges may cost; when it is spent, `LimitExceeded` is raised.
        concurrency: how many completions are checked at a time.

    Returns:
        The reward function. It can be pickled if its arguments can.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: an argument is wrong, or a program could fake a pass of a requirement.
    """
    return Reward(requirements, name, partial, format, judge, budget, concurrency)


@dataclass(frozen=True)
class Reward:
    """A reward function for completions; `reward` makes it."""

    requirements: Requirements | Callable[[Mapping[str, Any]], Requirements]
    name: str
    partial: bool
    format: Any
    judge: Backend | None
    budget: Budget | None
    concurrency: int

    def __post_init__(self) -> None:
        whole_number("concurrency", self.concurrency)
        function = self.requirements
        if callable(function):
            if is_async(function) or not takes(function, 1):
                msg = (
                    "requirements of a row must come from a synchronous function of the row,"
                    f" not {function!r}"
                )
                raise TypeError(msg)
            return
        kept = several(function)
        if isinstance(function, Iterator):
            object.__setattr__(self, "requirements", kept)
        _refuse_forgeable(kept)

    @property
    def __name__(self) -> str:
        """The name of the reward in TRL's metrics."""
        return self.name

    async def __call__(
        self,
        completions: Sequence[Any],
        prompts: Sequence[Prompt] | None = None,
        **columns: Any,
    ) -> list[float | None]:
        """Return the rewards of completions.

        Args:
            completions: the completions, each a text or a conversation that ends with the reply.
            prompts: the prompt of each completion; None if there are no prompts.
            **columns: the data set's other columns, each with one value per completion. Arguments
                that aren't lists of this length are ignored, such as TRL's ``trainer_state``.

        Returns:
            A reward from 0 to 1 for each completion, or None if it could not be judged.

        Raises:
            TypeError: an argument is of the wrong type.
            ValueError: there isn't one prompt for each completion, or a requirement is wrong.
            RequirementError: a requirement needs a judge, and there is none.
            LimitExceeded: the budget is spent.
        """
        results = await self.results(completions, prompts, **columns)
        rewards = [self._reward_of(result) for result in results]
        undecided = [result for result in results if result.status == "errored"]
        if undecided:
            warn(
                "%s: no reward for %d of %d completions, the first because of %s",
                self.name,
                len(undecided),
                len(results),
                shown(repr(undecided[0].error)),
            )
        if callable(log_metric := columns.get("log_metric")) and results:
            log_metric(f"{self.name}/undecided", len(undecided) / len(results))
            log_metric(f"{self.name}/passed", sum(map(bool, results)) / len(results))
        return rewards

    @property
    def sync(self) -> Callable[..., list[float | None]]:
        """The same reward function without ``await``, for trainers that take no async functions."""
        return _SyncReward(self)

    async def one(self, completion: Any, prompt: Prompt | None = None, **row: Any) -> float:
        """Return the reward of one completion.

        Args:
            completion: the completion, a text or a conversation that ends with the reply.
            prompt: its prompt.
            **row: the data set's other columns.

        Returns:
            The reward, from 0 to 1.

        Raises:
            Exception: the error that kept a requirement from being judged, or an error that calling
                the reward raises.
        """
        result = await self._check(completion, prompt, {"prompt": prompt, **row})
        found = self._reward_of(result)
        if found is None:
            raise result.error or RuntimeError(str(result))
        return found

    async def results(
        self,
        completions: Sequence[Any],
        prompts: Sequence[Prompt] | None = None,
        **columns: Any,
    ) -> list[CheckResult[Any]]:
        """Return the result of each completion's check, with verdicts, reasons and costs.

        Args:
            completions: as when calling the reward.
            prompts: as when calling the reward.
            **columns: as when calling the reward.

        Returns:
            The results, in order.

        Raises:
            TypeError: an argument is of the wrong type.
            ValueError: there isn't one prompt for each completion.
            Exception: any other error that calling the reward raises.
        """
        count = len(completions)
        if isinstance(completions, str) or isinstance(prompts, str):
            msg = "completions= and prompts= must be lists; for a single completion, use one()"
            raise TypeError(msg)
        if prompts is not None and len(prompts) != count:
            msg = f"there are {len(prompts)} prompts for {count} completions"
            raise ValueError(msg)
        of_rows: dict[str, Sequence[Any]] = {
            column: values
            for column, values in columns.items()
            if isinstance(values, list | tuple) and len(cast("Sequence[Any]", values)) == count
        }

        async def one(i: int) -> CheckResult[Any]:
            prompt = None if prompts is None else prompts[i]
            row: dict[str, Any] = {"prompt": prompt, **{name: of_rows[name][i] for name in of_rows}}
            return await self._check(completions[i], prompt, row)

        return await gather(range(count), self.concurrency, one)

    async def _check(
        self, completion: Any, prompt: Prompt | None, row: Mapping[str, Any]
    ) -> CheckResult[Any]:
        requirements = self.requirements
        if callable(requirements):
            found: Any = requirements(row)
            if found is None:
                msg = f"{requirements!r} returned None, not the requirements of its row"
                raise TypeError(msg)
            requirements = several(found)
            _refuse_forgeable(requirements)
        before, reply = _reply_of(completion)
        asked = () if prompt is None else prompt
        context = [Message("user", asked)] if isinstance(asked, str) else _messages(asked)
        return await check(
            reply,
            requirements,
            context=[*context, *before],
            format=self.format,
            judge=self.judge,
            budget=self.budget,
            validate_all=self.partial,
        )

    def _reward_of(self, result: CheckResult[Any]) -> float | None:
        if self.partial or result.status == "errored":
            return result.score
        return float(result.passed)


@dataclass(frozen=True)
class _SyncReward:
    """A reward function without ``await``. It can be pickled, and has the name that TRL shows."""

    reward: Reward

    @property
    def __name__(self) -> str:
        return self.reward.name

    def __call__(
        self, completions: Sequence[Any], prompts: Sequence[Prompt] | None = None, **columns: Any
    ) -> list[float | None]:
        """Return the rewards of completions; see `Reward`."""
        requirements = self.reward.requirements
        known = () if callable(requirements) else several(requirements)
        call = partial(self.reward, completions, prompts, **columns)
        return run_once(call, [self.reward.judge, *judges_of(known)])


def _refuse_forgeable(requirements: Requirements) -> None:
    """Refuse requirements whose pass a program can fake, because a model would learn to do so.

    Raises:
        ValueError: a program can fake a pass of a requirement.
    """
    for part in several(requirements):
        if isinstance(part, Requirement):
            maker = getattr(getattr(part.origin, "func", None), "__name__", None)
            if maker == "passes_tests":
                msg = (
                    f"a program can forge a pass of {shown(part.description)}, because it shares"
                    " a process with its tests; a reward needs code.returns, code.agrees_with or"
                    " code.prints"
                )
                raise ValueError(msg)
            _refuse_forgeable(part.parts)


def _reply_of(completion: Any) -> tuple[list[Message], ReplyLike]:
    """Split a completion into its earlier messages and its reply, which is ``""`` if missing."""
    if isinstance(completion, str | Mapping | Message | Generation):
        return [], cast("ReplyLike", completion)
    if not _is_conversation(completion):
        msg = f"a completion must be a text or a list of messages, not {shown(completion)}"
        raise TypeError(msg)
    messages = _messages(completion)
    if not messages or messages[-1].role != "assistant":
        return messages, ""  # For example, the conversation ended after its last round of tools.
    return messages[:-1], messages[-1]


def _is_conversation(thing: object) -> bool:
    if not isinstance(thing, list | tuple):
        return False
    return all(isinstance(part, Mapping | Message) for part in cast("Sequence[object]", thing))


MEDIA = ("audio", "image", "video")
"""The types of content parts in TRL's form, which `Message` doesn't know."""


def _messages(conversation: Sequence[Message | Mapping[str, Any]]) -> list[Message]:
    """Convert a conversation to messages, adding the tool calls' ids, which TRL leaves out.

    A field that is None counts as missing, because ``datasets`` fills missing fields with None.
    """
    messages: list[Message] = []
    waiting: list[str] = []
    for message in conversation:
        if isinstance(message, Message):
            messages.append(message)
            continue
        fields = {name: value for name, value in message.items() if value is not None}
        if isinstance(parts := fields.get("content"), list):
            fields["content"] = [_part(part) for part in cast("Sequence[Any]", parts)]
        if calls := fields.get("tool_calls"):
            fields["tool_calls"] = calls = [
                {**call, "id": call.get("id") or f"call_{len(messages)}_{i}"}
                for i, call in enumerate(calls)
            ]
            waiting = [call["id"] for call in calls]
        if fields.get("role") == "tool" and "tool_call_id" not in fields and waiting:
            fields["tool_call_id"] = waiting.pop(0)
        messages.append(Message.from_dict(fields))
    return messages


def _part(part: Any) -> Any:
    """Return a content part, with a placeholder instead of media in TRL's form."""
    if not isinstance(part, Mapping):
        return part
    fields = cast("Mapping[str, Any]", part)
    return f"[{fields['type']}]" if fields.get("type") in MEDIA else fields
