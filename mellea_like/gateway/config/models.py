"""The configuration's ``models``: what a model's name stands for."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator

from mellea_like.specification.section import Seconds, Section, Text, Whole
from mellea_like.specification.strategy import StrategySpec

__all__ = ["ModelConfig", "Overrides", "StreamingConfig"]

OURS = (
    "api_base",
    "api_key",
    "base_url",
    "extra_body",
    "extra_headers",
    "extra_query",
    "messages",
    "model",
    "mellea_like",
    "n",
    "stream",
    "stream_options",
    "tools",
)
"""Fields that no caller's request passes on as they are, whatever the configuration says."""


class Overrides(Section):
    """What a request may ask for besides.

    Args:
        requirements: how many requirements in words a request may add.
        checks: how many checks a request may add.
        check_seconds: processor time that its checks and its schema may take, in seconds: on all of
            its draws together.
        loop: draws in a row that a request may ask for, at most; None for the model's own number.
        concurrency: draws at a time that a request may ask for, at most; None for the model's own.
        pass_on: names of further fields that go to the upstream as they are, as in ``top_k``.
    """

    requirements: Annotated[int, Field(ge=0, strict=True)] = 8
    checks: Annotated[int, Field(ge=0, strict=True)] = 16
    check_seconds: Seconds = 2.0
    loop: Whole | None = None
    concurrency: Whole | None = None
    pass_on: tuple[Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")], ...] = ()

    @field_validator("pass_on", mode="after")
    @classmethod
    def _none_of_ours(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if ours := [name for name in names if name in OURS]:
            msg = f"{ours[0]} can't be passed on: the gateway decides it"
            raise ValueError(msg)
        return names


class ModelConfig(StrategySpec):
    """What a model's name stands for: a strategy, what replies must meet, and an upstream.

    Args:
        upstream: the name of the upstream that generates.
        upstream_model: the model to ask it for; by default the upstream's own.
        judge: the name of the upstream that decides ``requirements``; by default the same one.
        tell: whether what must hold is written below the conversation's last message.
        timeout: the longest a call may take, in seconds.
        when_nothing_passed: ``error`` answers 422 with the reasons and the best failure, ``best``
            answers with the best failure and a header that says so.
        overrides: what a request may ask for besides.
    """

    upstream: Text = Field(examples=["main"])
    upstream_model: Text | None = None
    judge: Text | None = None
    tell: bool = True
    timeout: Seconds = 120.0  # pyright: ignore[reportIncompatibleVariableOverride] (frozen)
    when_nothing_passed: Literal["error", "best"] = "error"
    overrides: Overrides = Overrides()

    def _most(self) -> tuple[int, int]:
        loop, concurrency = self.overrides.loop, self.overrides.concurrency
        return max(self.loop, loop or 0), max(self.concurrency, concurrency or 0)


class StreamingConfig(Section):
    """How streamed replies are sent.

    Args:
        keep_alive: seconds of silence after which a comment shows that the gateway is at work.
    """

    keep_alive: Seconds = 5.0
